"""Is it ours that serves, on which mori, and does it protect what it says?"""

from __future__ import annotations

from collections.abc import Iterator

from moriio_observed.accept.claims.counted import by_counters, plural
from moriio_observed.accept.facts import Facts, Number, Side, Watched
from moriio_observed.accept.verdicts import Claim, Ruling, not_proven, proven, refuted
from moriio_observed.doctor.versions import GRAPH_MODES
from moriio_observed.telemetry.catalog import PREFIX

CONSUMERS, PRODUCERS = ("kv_consumer",), ("kv_producer", "kv_both")
"""Roles of the two sides."""
SHOWN = (
    *("role", "mode", "barrier", "guard", "cudagraph_mode"),
    *("vllm_version", "mori_version", "version"),
)
"""Labels of ``config_info`` that the report has."""


def observed(facts: Facts) -> Ruling:
    """Our connector, in READ mode, with every hook in force."""
    numbers = (*_deployment(facts.decode), *_deployment(facts.prefill))
    silent = [one for one in facts.decode.engines if one.latest.metrics is None]
    if silent or not facts.decode.engines:
        return not_proven(
            silent[0].latest.trouble if silent else "no decode engine is known", *numbers
        )
    problems = [
        *(text for one in facts.decode.engines for text in _problems(one, CONSUMERS)),
        *(text for one in facts.prefill.engines if one.info for text in _problems(one, PRODUCERS)),
    ]
    if problems:
        return refuted("; ".join(problems), *numbers)
    bare = [one.name for one in facts.prefill.engines if not one.info]
    also = (
        f"; the {' and '.join(bare)} engine shows no numbers of ours, which is allowed"
        if bare
        else ""
    )
    return proven(f"it is loaded in READ mode, and every hook is in force{also}", *numbers)


def mori(facts: Facts) -> Ruling:
    """What posts the reads is AMD's."""
    versions = facts.decode.infos("mori_version")
    numbers = tuple(Number("mori_version", version) for version in versions)
    if not versions or any("loopback" in version for version in versions):
        return not_proven(facts.stand_in, *numbers)
    if "unknown" in versions:
        return not_proven("mori does not tell its version, so which it is is not known", *numbers)
    if not facts.decode.after("reads_posted_total"):
        return not_proven("no read was posted with it", *numbers)
    return proven(f"reads are posted with mori {', '.join(sorted(set(versions)))}", *numbers)


@by_counters
def full_graphs(facts: Facts) -> Ruling:
    """A FULL replay must be seen, and have waited."""
    side = facts.decode
    modes = side.infos("cudagraph_mode")
    numbers = (
        *(Number("cudagraph_mode", mode) for mode in modes),
        *(side.number("full_graph_skips_total", protected=flag) for flag in ("true", "false")),
        *(
            side.number("steps_total", runtime_mode="FULL", reads=flag)
            for flag in ("true", "false")
        ),
    )
    unprotected = [
        one.name
        for one in side.engines
        if any(value == 0 for _, value in one.latest.page.of(f"{PREFIX}full_graph_protected"))
    ]
    if unprotected:
        return refuted(
            f"the barrier of the {' and '.join(unprotected)} engine leaves FULL graphs unprotected:"
            " set observed.barrier to 'auto'",
            *numbers,
        )
    if open_steps := side.growth("full_graph_skips_total", protected="false"):
        return refuted(f"{plural(open_steps, 'FULL graph step')} waited for nothing", *numbers)
    if not any(GRAPH_MODES.get(mode, False) for mode in modes):
        return not_proven(f"no FULL graphs are configured: {', '.join(modes)}", *numbers)
    seen = side.growth("full_graph_skips_total", protected="true")
    if seen:
        return proven(f"{plural(seen, 'FULL graph step')} with reads, all protected", *numbers)
    if side.growth("steps_total", runtime_mode="FULL"):
        return not_proven("FULL graphs were replayed, but never in a step with reads", *numbers)
    return not_proven(
        "FULL graphs are configured, and no step was seen to replay one: if your engine does replay"
        " them, they are not recognised, and that is worth a report",
        *numbers,
    )


def _problems(one: Watched, roles: tuple[str, ...]) -> Iterator[str]:
    info = one.info
    if not info:
        has_vllms = any(name.startswith("vllm:") for name in one.latest.page.names)
        yield (
            f"the {one.name} engine runs without our connector"
            if has_vllms
            else f"the {one.name} engine shows no numbers, of vLLM neither: --disable-log-stats?"
        )
        return
    if info.get("mode") != "read":
        yield f"the {one.name} engine is in mode {info.get('mode')}, not read"
    if info.get("role") not in roles:
        yield f"the {one.name} engine has the role {info.get('role')}, not {roles[0]}"
    if info.get("barrier") == "off" and roles is CONSUMERS:
        yield f"the {one.name} engine runs with barrier off: no step waits for its reads"
    hooks = sorted(
        {
            labels.get("hook", "")
            for labels, value in one.latest.page.of(f"{PREFIX}hook_installed")
            if value == 0
        }
    )
    if hooks:
        yield f"hooks of the {one.name} engine are not in force: {', '.join(hooks)}"


def _deployment(side: Side) -> Iterator[Number]:
    for one in side.engines:
        for label in SHOWN:
            if label in one.info:
                yield Number(f"{one.name}: {label}", one.info[label])
        installed = [value for _, value in one.latest.page.of(f"{PREFIX}hook_installed")]
        yield Number(f"{one.name}: hooks in force", f"{sum(installed):g} of {len(installed)}")


CLAIMS = (
    Claim(
        "observed",
        "Our connector is what serves, in READ mode, with every hook in force.",
        "Engines behind a router that were not given as --engine.",
        observed,
    ),
    Claim(
        "mori",
        "Reads are posted with AMD's mori.",
        "Which GPU and which network card: --hardware says so in your words.",
        mori,
        needs_hardware=True,
    ),
    Claim(
        "full-graphs",
        "Steps that replay a FULL CUDA graph are recognised, and wait for their reads.",
        "Graph modes that this engine was not started with.",
        full_graphs,
        needs_hardware=True,
    ),
)
