import pytest

from moriio_observed.demo import metrics
from moriio_observed.demo.metrics import parse

WAITS = """\
# TYPE wait_seconds histogram
wait_seconds_bucket{{site="layer",le="0.1"}} {a}
wait_seconds_bucket{{site="layer",le="0.5"}} {b}
wait_seconds_bucket{{site="layer",le="+Inf"}} {c}
wait_seconds_bucket{{site="step",le="0.1"}} 0
wait_seconds_bucket{{site="step",le="0.5"}} {step}
wait_seconds_bucket{{site="step",le="+Inf"}} {step}
wait_seconds_sum{{site="layer"}} 1
wait_seconds_count{{site="layer"}} {c}
"""


def waits(a=0, b=0, c=0, step=0):
    return parse(WAITS.format(a=a, b=b, c=c, step=step))


def test_a_total_sums_the_series_that_have_the_labels():
    scrape = parse(
        "# TYPE hits counter\n"
        'hits_total{cause="a",engine="0"} 2\n'
        'hits_total{cause="b",engine="0"} 3\n'
    )
    assert scrape.total("hits_total") == 5
    assert scrape.total("hits_total", cause="b") == 3
    assert scrape.total("hits_total", cause="c") == 0


def test_only_what_was_added_since_the_earlier_scrape_counts():
    earlier = parse("# TYPE hits counter\nhits_total 2\n")
    later = parse("# TYPE hits counter\nhits_total 5\n# TYPE new counter\nnew_total 1\n")
    change = later.since(earlier)
    assert change.total("hits_total") == 3
    assert change.total("new_total") == 1


def test_a_quantile_is_interpolated_in_its_bucket():
    assert waits(a=5, b=10, c=10).quantile("wait_seconds", 0.75) == pytest.approx(0.3)


def test_a_quantile_in_the_first_bucket_starts_at_zero():
    assert waits(a=10, b=10, c=10).quantile("wait_seconds", 0.5) == pytest.approx(0.05)


def test_a_quantile_beyond_the_last_bound_is_that_bound():
    assert waits(a=0, b=0, c=4).quantile("wait_seconds", 0.5) == 0.5


def test_a_quantile_covers_all_series_of_the_histogram():
    both = waits(a=2, b=2, c=2, step=2)
    assert both.quantile("wait_seconds", 1.0) == pytest.approx(0.5)
    assert both.quantile("wait_seconds", 1.0, site="layer") == pytest.approx(0.1)


def test_a_histogram_without_observations_has_no_quantile():
    assert waits().quantile("wait_seconds", 0.5) is None
    assert waits().quantile("absent_seconds", 0.5) is None


def test_a_quantile_of_a_difference_ignores_what_was_there_before():
    change = waits(a=100, b=104, c=104).since(waits(a=100, b=100, c=100))
    assert change.quantile("wait_seconds", 0.5) == pytest.approx(0.3)


def test_a_page_of_something_else_is_one_clear_error(monkeypatch):
    monkeypatch.setattr(metrics.web, "get", lambda _: "<html>\n")
    with pytest.raises(OSError, match=r"^http://d/metrics is not in Prometheus' text format: "):
        metrics.scrape("http://d")
