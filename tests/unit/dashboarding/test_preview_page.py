"""The page that draws is built when its source is new, and only then."""

import os
import shutil
from pathlib import Path

import pytest

from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.dashboarding.preview.page import built

NPM = """\
#!/bin/sh
echo "$*" >>calls
if [ "$1" = "$REFUSED" ]; then echo 'npm error: no such thing'; exit 1; fi
mkdir -p dist
"""


class Workshop:
    """A source, a place to build it, and a stand-in for npm that only notes what it was told."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.source = folder / "source"
        self.build = folder / "build"
        self.said: list[str] = []
        for name, text in {
            "bin/npm": NPM,
            "bin/node": "#!/bin/sh\n",
            "source/package.json": "{}",
            "source/src/main.tsx": "it",
        }.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def make(self) -> list[str]:
        """What npm was told."""
        calls = self.build / "calls"
        calls.unlink(missing_ok=True)
        built(self.source, self.build, self.said.append)
        return (
            [line.split()[0] for line in calls.read_text().splitlines()] if calls.exists() else []
        )


@pytest.fixture
def workshop(tmp_path, monkeypatch) -> Workshop:
    workshop = Workshop(tmp_path)
    monkeypatch.setenv("PATH", f"{workshop.bin}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return workshop


def test_a_page_is_installed_and_built_once(workshop) -> None:
    assert workshop.make() == ["ci", "run"]
    assert workshop.make() == []
    assert workshop.said == [
        f"building the page that draws in {workshop.build}, once: this takes some minutes"
    ]


@pytest.mark.parametrize("change", ["write", "rename", "add"])
def test_a_changed_source_is_built_anew(workshop, change) -> None:
    workshop.make()
    main = workshop.source / "src" / "main.tsx"
    match change:
        case "write":
            main.write_text("other")
        case "rename":
            main.rename(main.with_name("other.tsx"))
        case "add":
            main.with_name("other.tsx").touch()
    assert workshop.make() == ["ci", "run"]
    built_from = {path.name for path in (workshop.build / "src").iterdir()}
    assert built_from == {path.name for path in main.parent.iterdir()}


@pytest.mark.parametrize("refused", ["ci", "run"])
def test_a_failed_build_tells_what_npm_said_and_does_not_count(
    workshop, monkeypatch, refused
) -> None:
    monkeypatch.setenv("REFUSED", refused)
    with pytest.raises(DashboardsError, match=rf"npm {refused} .*(\n.*)*no such thing"):
        workshop.make()
    monkeypatch.delenv("REFUSED")
    assert workshop.make() == ["ci", "run"]


@pytest.mark.parametrize("program", ["node", "npm"])
def test_a_missing_program_is_named(workshop, monkeypatch, program) -> None:
    (workshop.bin / program).unlink()
    monkeypatch.setenv("PATH", str(workshop.bin))
    with pytest.raises(DashboardsError, match=f"{program} is not installed: .* Node.js"):
        workshop.make()


def test_a_folder_that_is_no_source_is_named(workshop) -> None:
    shutil.rmtree(workshop.source)
    with pytest.raises(DashboardsError, match=rf"{workshop.source} is not the page .* --page"):
        workshop.make()
