"""Bring anything to front doors for a while: ``python -m tests.fuzz``. Exits 1 when one breaks.

It wants atheris, which comes with the extra `dev`. What widens its coverage is kept in
`build/fuzz/`, where the next run begins, and what breaks a door is beside it: `--again` brings it
once more.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tests.fuzz.doors import DOORS

BUILD = Path(__file__).parents[2] / "build" / "fuzz"
SLOWEST_S = 10
"""What takes longer hangs."""
LONGEST = 8192
"""Bytes; a number of more than 4300 digits is a case of its own in Python."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--door", action="append", choices=DOORS, help="only this; repeatable")
    parser.add_argument("--seconds", type=int, default=600, help="for each (default: 600)")
    parser.add_argument("--again", type=Path, metavar="FILE", help="what broke a --door")
    return parser.parse_args()


def main() -> int:
    chosen = arguments()
    names = chosen.door or list(DOORS)
    if chosen.again:
        for name in names:
            print(f"{name}: {DOORS[name].takes(chosen.again.read_bytes())}")
        return 0
    limit = f"-max_total_time={chosen.seconds}"
    broken = [name for name in names if not holds(name, BUILD, limit)]
    print(f"{len(names) - len(broken)} doors hold, {len(broken)} break: {', '.join(broken)}")
    return 1 if broken else 0


def holds(name: str, build: Path, limit: str) -> bool:
    """Let libFuzzer at a door, in a process of its own, as it ends the one it runs in.

    Args:
        name: Which door.
        build: Where it keeps what it found.
        limit: libFuzzer's option that ends it.
    """
    kept = build / name
    kept.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(DOORS[name].seeds):
        (kept / f"seed-{number}").write_bytes(seed)
    words = build / f"{name}.dict"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in DOORS[name].words))
    options = [
        *(limit, f"-dict={words}", f"-artifact_prefix={build}/{name}-"),
        *(f"-timeout={SLOWEST_S}", f"-max_len={LONGEST}", "-print_final_stats=1", "-verbosity=0"),
    ]
    run = [sys.executable, "-m", "tests.fuzz.guided", name, str(kept), *options]
    print(f"{name} {limit}", flush=True)
    return subprocess.run(run, check=False).returncode == 0


def _escaped(word: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word.encode())


if __name__ == "__main__":
    sys.exit(main())
