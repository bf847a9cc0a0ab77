"""Libraries of an extra are missing only to the commands that need them."""

import subprocess
import sys

import pytest

from moriio_observed.cli.extras import MissingExtraError, extra

# A None in sys.modules is how Python itself says that a module cannot be had.
WITHOUT_THE_EXTRAS = (
    "import sys; sys.modules.update(yaml=None, promql_parser=None);"
    "from moriio_observed.cli import main; sys.exit(main())"
)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_THE_EXTRAS, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", ["demo", "traces", "alerts"])
def test_every_command_shows_its_help_without_the_extras(command: str) -> None:
    shown = run(command, "--help")
    assert shown.returncode == 0, shown.stderr


def test_a_command_without_its_extra_says_in_one_line_how_to_get_it() -> None:
    failed = run("alerts", "check")
    assert failed.returncode == 1
    assert failed.stderr == (
        "moriio-observed alerts: promql_parser is not installed; it comes with the extra alerts: "
        "pip install '.[alerts]' in the checkout of moriio-observed\n"
    )


def test_what_else_goes_wrong_is_left_as_it_is() -> None:
    with pytest.raises(ImportError) as raised, extra("alerts"):
        raise ImportError("broken")
    assert not isinstance(raised.value, MissingExtraError)
