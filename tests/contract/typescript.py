"""JSON held against published TypeScript types, by the compiler."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BUILD = Path(__file__).parents[2] / "build"


class Types:
    """The types of a folder, whose `module` says what a document is: its type `Ours`.

    Args:
        folder: With a package.json, a tsconfig.json and the module.
        module: Its name.
    """

    def __init__(self, folder: Path, module: str) -> None:
        self._module = module
        self._build = BUILD / folder.name
        shutil.copytree(folder, self._build, dirs_exist_ok=True)
        # No lock file: it would name the registry that it was made with. All there is, is pinned.
        install = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund"]
        subprocess.run(install, cwd=self._build, check=True, capture_output=True)

    def refused(self, documents: Mapping[str, Any]) -> dict[str, str]:
        """What TypeScript says against each of some documents."""
        written = [self._build / f"{name}.ts" for name in documents]
        for path, document in zip(written, documents.values(), strict=True):
            text = json.dumps(document, indent=1)
            path.write_text(
                f"import type {{ Ours }} from './{self._module}';\n"
                f"export const it: Ours = {text};\n"
            )
        try:
            done = subprocess.run(
                ["node", "node_modules/typescript/bin/tsc", "--pretty", "false", "-p", "."],
                cwd=self._build,
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            for path in written:
                path.unlink()
        said: dict[str, list[str]] = {name: [] for name in documents}
        for line in done.stdout.splitlines():
            file, _, complaint = line.partition(".ts(")
            said.setdefault(file, []).append(complaint)
        return {name: "\n".join(lines) for name, lines in said.items() if lines}
