"""The canary that stands beside the recorded incident."""

from tests.incident.canary import probed, wrong_share
from tests.incident.recording import ERROR, RIGHT, WRONG, Answer

BEATS = 12


def grown(timeline, name: str, **labels: str) -> float:
    """What all series of a name with these labels grew by."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(
        values[-1] - values[1]
        for series, values in timeline.series.items()
        if series.startswith(f"{name}{{") and all(each in series for each in wanted)
    )


def test_its_rounds_are_right_where_users_are_answered_right() -> None:
    timeline = probed(BEATS, lambda _: 0.0)
    rounds = grown(timeline, "moriio_canary_rounds_total")
    assert rounds == grown(timeline, "moriio_canary_rounds_total", result="right") > 0


def test_every_probe_is_wrong_where_every_user_is_answered_wrong() -> None:
    timeline = probed(BEATS, lambda _: 1.0)
    probes = grown(timeline, "moriio_canary_probes_total")
    assert probes == grown(timeline, "moriio_canary_probes_total", result="diverged") > 0


def test_it_finds_the_same_each_time() -> None:
    def found() -> list[tuple[str, object]]:
        series = probed(BEATS, lambda at_s: at_s / 1000).series
        return [(name, values) for name, values in series.items() if "probe_seconds" not in name]

    assert found() == found()


def test_it_is_not_there_at_the_first_scrape() -> None:
    assert {values[0] for values in probed(BEATS, lambda _: 0.0).series.values()} == {None}


def test_what_users_got_in_the_minute_before_is_what_it_gets() -> None:
    answers = [
        Answer(0, 10, WRONG),
        Answer(0, 100, WRONG),
        Answer(0, 110, RIGHT),
        Answer(0, 115, RIGHT),
        Answer(0, 118, RIGHT),
        Answer(0, 119, ERROR),
        Answer(0, 130, WRONG),
    ]
    assert wrong_share(answers, 120) == 0.25
    assert wrong_share(answers, -10) == 0
