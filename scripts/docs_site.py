"""What mkdocs.yml cannot say: pages from outside docs/, and links to what is no page.

Every Markdown file has its links as GitHub reads them, relative to itself. On the site those to a
page lead to the page, and those to any other file of the repository lead to the repository.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
RUNBOOKS = "runbooks/"
"""What stands in the navigation for all runbooks."""
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "alerts/README.md": "rules.md",
    "alerts/incident/README.md": "incident.md",
    "dashboards/README.md": "dashboards.md",
    "deploy/README.md": "deployment.md",
    **{
        f"alerts/runbooks/{path.name}": f"{RUNBOOKS}{path.name}"
        for path in sorted((ROOT / "alerts" / "runbooks").glob("*.md"))
    },
}
"""Pages of the site by the file they are made of."""
TARGET = re.compile(r"(?<=\]\()(?P<path>[^)\s:#]+)(?P<anchor>#[^)\s]*)?(?=\))")


def on_config(config: MkDocsConfig) -> None:
    """List every runbook in the navigation."""
    _list_runbooks(config.nav)


def _list_runbooks(entries: Any) -> None:
    for entry in entries:
        for title, content in entry.items():
            if content == RUNBOOKS:
                entry[title] = [uri for uri in ELSEWHERE.values() if uri.startswith(RUNBOOKS)]
            elif isinstance(content, list):
                _list_runbooks(content)


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages from outside docs/."""
    for source, uri in ELSEWHERE.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / source)))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead where their target is on the site, or else in the repository."""
    uris = {file.abs_src_path: file.src_uri for file in files}
    here = posixpath.dirname(page.file.src_uri)
    folder = Path(page.file.abs_src_path or "").parent

    def lead(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / link["path"]))
        if str(target) in uris:
            leads_to = posixpath.relpath(uris[str(target)], here)
        elif target.exists():
            kind = "tree" if target.is_dir() else "blob"
            leads_to = f"{config.repo_url}/{kind}/main/{target.relative_to(ROOT).as_posix()}"
        else:
            return link[0]
        return leads_to + (link["anchor"] or "")

    return TARGET.sub(lead, markdown)
