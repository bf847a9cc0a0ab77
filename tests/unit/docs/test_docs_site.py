"""The site as it is built: without a warning, whole, and in need of nobody else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[3]
REPOSITORY = "https://git.example/moriio-observed"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def pages(site: Path) -> dict[str, str]:
    return {
        path.parent.relative_to(site).as_posix(): path.read_text()
        for path in site.rglob("index.html")
    }


def test_it_builds_without_a_warning(site: Path) -> None:
    assert (site / "index.html").exists()


def test_every_page_and_every_runbook_is_on_it(site: Path) -> None:
    built = set(pages(site))
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= built
    runbooks = {path.stem for path in (ROOT / "alerts" / "runbooks").glob("*.md")}
    assert {f"runbooks/{name}" for name in runbooks} <= built
    assert {"contributing", "changelog", "security", "rules", "dashboards", "deployment"} <= built


def test_a_runbook_leads_to_a_page_of_docs_on_the_site(site: Path) -> None:
    assert 'href="../../guard/"' in pages(site)["runbooks/MoriioUnprotectedSteps"]


def test_a_link_to_a_file_that_is_no_page_leads_to_the_repository(site: Path) -> None:
    assert f'href="{REPOSITORY}/blob/main/alerts/values.yaml"' in pages(site)["rules"]
    assert f'href="{REPOSITORY}/tree/main/dashboards/json"' in pages(site)["dashboards"]


def test_the_front_page_is_the_readme_with_its_links_on_the_site(site: Path) -> None:
    front = pages(site)["."]
    assert "Is the answer right?" in front
    assert 'href="how-it-works/"' in front
    assert 'href="rules/"' in front


def test_nothing_on_it_is_fetched_from_elsewhere(site: Path) -> None:
    fetched = {
        place
        for text in pages(site).values()
        for tag in re.findall(r"<(?:script|img|iframe|source|link)\b[^>]*>", text)
        if 'rel="canonical"' not in tag
        for place in re.findall(r"\s(?:src|href)=\"?([^\s\">]+)", tag)
    }
    assert fetched
    assert [place for place in fetched if re.match(r"(https?:)?//", place)] == []


def test_lists_are_lists_to_both_readers_of_markdown(site: Path) -> None:
    # GitHub sees a list where no empty line is before it, or one in a list that is hardly indented.
    text = re.compile(r"<p>(?:(?!</p>).)*\n\s*(?:[-*]|\d+\.) ", re.DOTALL)
    broken = {name: found[0] for name, page in pages(site).items() if (found := text.search(page))}
    assert broken == {}


def test_tables_are_tables_to_both_readers_of_markdown(site: Path) -> None:
    assert [name for name, page in pages(site).items() if re.search(r"<p>\s*\|", page)] == []


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "pictures").glob("*.svg")), ids=str)
def test_a_picture_says_what_it_shows_and_brings_its_own_ground(picture: Path) -> None:
    drawn = ET.parse(picture)  # noqa: S314  (our own)
    names = {element.tag.rpartition("}")[2] for element in drawn.iter()}
    assert {"title", "desc"} <= names
    [first, *_] = [each for each in drawn.iter() if each.tag.endswith("rect")]
    assert first.get("class") == "ground"
    assert "prefers-color-scheme: dark" in picture.read_text()
