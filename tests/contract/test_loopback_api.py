"""The loopback's names, signatures and values against those of the real `amd-mori` wheel.

The wheel is for another Python and needs ROCm: it is parsed, never imported.
"""

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from moriio_observed.loopback import descriptors, enums
from moriio_observed.loopback.activation import _API
from moriio_observed.loopback.engine import IOEngine, IOEngineSession
from moriio_observed.loopback.status import TransferStatus

pytestmark = pytest.mark.contract

VERSION = "1.2.4"
CACHE = Path(__file__).parents[2] / "build" / "wheels"
HEADERS = "mori/_jit-sources/include/mori/io"

# What the real package has beyond what vLLM and we use.
NOT_USED = {"fabric_alloc", "fabric_free", "set_log_level"}


@pytest.fixture(scope="module")
def wheel() -> zipfile.ZipFile:
    if not list(CACHE.glob(f"amd_mori-{VERSION}-*.whl")):
        download()
    [path] = CACHE.glob(f"amd_mori-{VERSION}-*.whl")
    return zipfile.ZipFile(path)


def download() -> None:
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary", ":all:", "--python-version", "3.12"),
        *("--platform", "manylinux_2_39_x86_64", "--dest", str(CACHE), f"amd-mori=={VERSION}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(
            f"the wheel of amd-mori {VERSION}, which this test holds the loopback against, could "
            f"not be downloaded to {CACHE}: {done.stderr.strip()}"
        )


def python(wheel: zipfile.ZipFile, name: str) -> ast.Module:
    return ast.parse(wheel.read(f"mori/io/{name}.py"))


def header(wheel: zipfile.ZipFile, name: str) -> str:
    text = wheel.read(f"{HEADERS}/{name}.hpp").decode()
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def body(text: str, kind: str, name: str) -> str:
    """Return what stands between the braces of a class, structure or enumeration."""
    start = re.search(rf"\b{kind} {name}\b[^;{{]*{{", text)
    assert start is not None, f"{kind} {name} is not in the header any more"
    depth, position = 1, start.end()
    while depth:
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        position += 1
    return text[start.end() : position - 1]


def snake(name: str) -> str:
    return re.sub(r"([A-Z])", r"_\1", name.rstrip("_")).lower().strip("_")


def members(text: str) -> dict[str, str]:
    """Return a structure's data members in snake case, with their initial values."""
    found = re.findall(r"^\s*[\w:]+(?:<[^>]*>)? (\w+)(?:\{([^}]*)\})?;", text, flags=re.MULTILINE)
    return {snake(name): value for name, value in found}


Parameters = list[tuple[str, object]]
REQUIRED = inspect.Parameter.empty


def real_methods(wheel: zipfile.ZipFile, owner: str) -> dict[str, tuple[bool, Parameters]]:
    """Return each public method: may its arguments be named, and its parameters."""
    [definition] = [
        node
        for node in python(wheel, "engine").body
        if isinstance(node, ast.ClassDef) and node.name == owner
    ]
    functions = {node.name: node for node in definition.body if isinstance(node, ast.FunctionDef)}
    methods = {}
    for name, function in functions.items():
        if name.startswith("_"):
            continue
        if function.args.vararg is None:
            methods[name] = (True, parameters(function)[1:])
        else:
            # `read(self, *args)` hands its arguments on to a helper, behind a function.
            kind = "batch_single_side" if name.startswith("batch") else "single_side"
            methods[name] = (False, parameters(functions[f"_{kind}_transfer"])[2:])
    return methods


def parameters(function: ast.FunctionDef) -> Parameters:
    names = [argument.arg for argument in function.args.args]
    defaults = [ast.literal_eval(default) for default in function.args.defaults]
    return list(zip(names, [REQUIRED] * (len(names) - len(defaults)) + defaults, strict=True))


def our_methods(owner: type) -> dict[str, tuple[bool, Parameters]]:
    methods = {}
    for name, function in vars(owner).items():
        if inspect.isfunction(function) and not name.startswith("_"):
            _, *given = inspect.signature(function).parameters.values()
            named = all(one.kind is one.POSITIONAL_OR_KEYWORD for one in given)
            methods[name] = (named, [(one.name, one.default) for one in given])
    return methods


@pytest.mark.parametrize("owner", [IOEngine, IOEngineSession])
def test_every_method_has_moris_name_and_signature(wheel, owner):
    assert our_methods(owner) == real_methods(wheel, owner.__name__)


def test_the_engine_is_made_as_moris_is(wheel):
    [init] = [
        node
        for owner in python(wheel, "engine").body
        if isinstance(owner, ast.ClassDef) and owner.name == "IOEngine"
        for node in owner.body
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]
    ours = inspect.signature(IOEngine).parameters.values()
    assert [(one.name, one.default) for one in ours] == parameters(init)[1:]


def test_mori_io_has_every_name_of_the_real_one(wheel):
    names = {
        alias.name
        for node in python(wheel, "__init__").body
        if isinstance(node, ast.ImportFrom) and node.module == "mori.cpp"
        for alias in node.names
    }
    assert names >= NOT_USED
    assert names - NOT_USED <= _API.keys()


@pytest.mark.parametrize(
    ("ours", "file"),
    [
        (enums.StatusCode, "enum"),
        (enums.BackendType, "enum"),
        (enums.MemoryLocationType, "enum"),
        (enums.PollCqMode, "enum"),
        (enums.PeerFailureReason, "peer_failure"),
    ],
)
def test_every_enumeration_has_moris_members_and_values(wheel, ours, file):
    text = body(header(wheel, file), "enum class", ours.__name__)
    real = {name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", text)}
    # Only marks where the errors begin; Python never sees it.
    real.pop("ERR_BEGIN", None)
    assert {member.name: member.value for member in ours} == real


@pytest.mark.parametrize(
    "ours",
    [
        descriptors.RdmaBackendConfig,
        descriptors.XgmiBackendConfig,
        descriptors.FabricBackendConfig,
    ],
)
def test_every_backends_configuration_takes_moris_arguments(wheel, ours):
    text = body(header(wheel, "backend"), "struct", ours.__name__)
    [arguments] = re.findall(rf"{ours.__name__}\(([^)]+)\)", text)
    names = [snake(re.split(r"[ =]+", one.strip())[1]) for one in arguments.split(",")]
    initial = members(text)
    expected = [(name, literal(initial[name])) for name in names]
    assert [(one.name, one.default) for one in dataclasses.fields(ours)] == expected


def literal(text: str) -> object:
    if text.startswith("PollCqMode::"):
        return enums.PollCqMode[text.removeprefix("PollCqMode::")]
    return {"true": True, "false": False}[text] if text in ("true", "false") else int(text)


def test_an_engines_configuration_is_moris(wheel):
    real = members(body(header(wheel, "engine"), "struct", "IOEngineConfig"))
    assert [one.name for one in dataclasses.fields(descriptors.IOEngineConfig)] == list(real)


def test_a_peer_failure_tells_what_moris_tells(wheel):
    real = members(body(header(wheel, "peer_failure"), "struct", "PeerFailureEvent"))
    assert [one.name for one in dataclasses.fields(descriptors.PeerFailureEvent)] == list(real)


@pytest.mark.parametrize(
    ("ours", "own_fields"),
    [(descriptors.EngineDesc, {"start_time"}), (descriptors.MemoryDesc, set())],
)
def test_descriptors_have_no_field_that_mori_lacks_but_those_of_the_loopback(
    wheel, ours, own_fields
):
    real = members(body(header(wheel, "common"), "struct", ours.__name__))
    names = {one.name for one in dataclasses.fields(ours)}
    assert names - real.keys() == own_fields
    assert {"pack", "unpack"} <= vars(ours).keys()


def test_a_status_has_the_methods_python_sees_of_moris(wheel):
    text = body(header(wheel, "common"), "struct", "TransferStatus")
    declared = set(re.findall(r"^  [\w:]+(?: StatusCode)? (\w+)\(", text, flags=re.MULTILINE))
    library = wheel.read("mori/libmori_pybinds.so")
    bound = {name for name in declared if b"\0" + name.encode() + b"\0" in library}
    assert {name for name in vars(TransferStatus) if not name.startswith("_")} == bound


def test_a_statuss_timed_wait_has_moris_argument_and_default(wheel):
    text = body(header(wheel, "common"), "struct", "TransferStatus")
    [(name, default)] = re.findall(r"WaitFor\(int (\w+) = (-?\d+)\)", text)
    [_, ours] = inspect.signature(TransferStatus.WaitFor).parameters.values()
    assert (ours.name, ours.default) == (snake(name), int(default))
