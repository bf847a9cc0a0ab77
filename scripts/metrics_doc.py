"""Write docs/metrics.md from the catalogue, or with --check say whether it is stale."""

from __future__ import annotations

import sys
from pathlib import Path

from moriio_observed.telemetry.catalog import CATALOG, PREFIX, Instrument, Kind, Scope

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"

HEAD = """\
# Metrics

Written by `scripts/metrics_doc.py` from `moriio_observed/telemetry/catalog.py`; change it there.

Every series carries vLLM's labels `model_name` and `engine` besides those below. Counters and
histograms whose label values are known beforehand stand at 0 from the start, and so does every
gauge that is measured; a gauge that is set once is absent until somebody knows it. Time histograms
use the bounds of the setting `wait_buckets`. No metric carries a request id or a layer's name:
`layer` is the layer's index.
"""

LABELS_HEAD = """
## Label values

An open set is bounded where it could grow: `remote` by the setting `max_remotes`, then `other`.
"""

SCOPES_HEAD = """
## Who counts

The HELP text of every metric ends with one of these.
"""


def page() -> str:
    """Return the page as the catalogue has it now."""
    rows = [
        "| metric | kind | unit | labels | what it says |",
        "|---|---|---|---|---|",
        *map(_row, CATALOG.values()),
    ]
    values = [
        f"- `{label}` of `{PREFIX}{instrument.name}`: "
        + ", ".join(f"`{value}`" for value in allowed)
        for instrument in CATALOG.values()
        for label, allowed in instrument.closed.items()
    ]
    scopes = [f"- {scope}" for scope in Scope]
    parts = [HEAD, *rows, LABELS_HEAD, *values, SCOPES_HEAD, *scopes]
    return "\n".join(parts) + "\n"


def _row(instrument: Instrument) -> str:
    labels = ", ".join(f"`{label}`" for label in instrument.labels)
    kind = instrument.kind
    kind_text = f"{kind} ({instrument.fold})" if kind is Kind.GAUGE else str(kind)
    return (
        f"| `{PREFIX}{instrument.name}` | {kind_text} | {instrument.unit} | {labels}"
        f" | {instrument.help} |"
    )


def main(arguments: list[str]) -> int:
    """Write the page, or check it with `--check`; return the exit code."""
    if arguments == ["--check"]:
        stale = not PAGE.exists() or PAGE.read_text() != page()
        if stale:
            print(f"{PAGE} is stale: run python scripts/metrics_doc.py", file=sys.stderr)
        return int(stale)
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
