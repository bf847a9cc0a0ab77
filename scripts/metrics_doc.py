"""Write docs/metrics.md from the catalogue, or with --check say whether it is stale."""

from __future__ import annotations

import sys

from generated import DOCS, table, write

from moriio_observed.telemetry.catalog import CATALOG, PREFIX, Instrument, Kind, Scope

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
    values = [
        f"- `{label}` of `{PREFIX}{instrument.name}`: "
        + ", ".join(f"`{value}`" for value in allowed)
        for instrument in CATALOG.values()
        for label, allowed in instrument.closed.items()
    ]
    scopes = [f"- {scope}" for scope in Scope]
    head = ("metric", "kind", "unit", "labels", "what it says")
    metrics = table(head, map(_row, CATALOG.values()))
    return HEAD + metrics + LABELS_HEAD + _lines(values) + SCOPES_HEAD + _lines(scopes)


def _row(instrument: Instrument) -> tuple[str, ...]:
    kind = instrument.kind
    return (
        f"`{PREFIX}{instrument.name}`",
        f"{kind} ({instrument.fold})" if kind is Kind.GAUGE else str(kind),
        instrument.unit,
        ", ".join(f"`{label}`" for label in instrument.labels),
        instrument.help,
    )


def _lines(items: list[str]) -> str:
    return "".join(f"{item}\n" for item in items)


if __name__ == "__main__":
    sys.exit(write(DOCS / "metrics.md", page()))
