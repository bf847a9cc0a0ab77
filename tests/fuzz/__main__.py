"""Knock at front doors for a while: ``python -m tests.fuzz``. Exits 1 when one breaks.

What coverage finds is kept in `build/fuzz/`, where the next run begins, and what breaks a door
beside it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tests.fuzz.doors import DOORS

BUILD = Path(__file__).parents[2] / "build" / "fuzz"
SLOWEST_S, LONGEST = 10, 8192


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--door", action="append", choices=DOORS, help="only this; repeatable")
    parser.add_argument("--seconds", type=int, default=600, help="for each (default: 600)")
    parser.add_argument("--again", type=Path, metavar="FILE", help="only what broke a --door")
    return parser.parse_args()


def main() -> int:
    chosen = arguments()
    names = chosen.door or list(DOORS)
    if chosen.again:
        for name in names:
            DOORS[name].knock(chosen.again.read_bytes())
        return 0
    broken = [name for name in names if not holds(name, chosen.seconds, BUILD)]
    print(f"{len(names) - len(broken)} doors hold, {len(broken)} break: {', '.join(broken)}")
    return 1 if broken else 0


def holds(name: str, seconds: int, build: Path) -> bool:
    """Let libFuzzer knock at a door, in a process of its own: it ends the one it runs in."""
    kept = build / name
    kept.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(DOORS[name].seeds):
        (kept / f"seed-{number}").write_bytes(seed)
    words = build / f"{name}.dict"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in DOORS[name].words if word))
    run = [sys.executable, "-m", "tests.fuzz.guided", name, str(kept), f"-dict={words}"]
    limits = [f"-max_total_time={seconds}", f"-timeout={SLOWEST_S}", f"-max_len={LONGEST}"]
    print(f"{name}: {seconds} s", flush=True)
    options = [*limits, f"-artifact_prefix={build}/{name}-", "-print_final_stats=1", "-verbosity=0"]
    return subprocess.run([*run, *options], check=False).returncode == 0


def _escaped(word: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word.encode())


if __name__ == "__main__":
    sys.exit(main())
