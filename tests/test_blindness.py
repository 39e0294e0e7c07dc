"""Where kvlogd cannot see: a source without records, or with records that cannot be read."""

import pytest

from kvlogd.model import EventKind, Scrape
from tests.lines import START_S
from tests.test_pipeline import SOURCE, busy, event, new_pipeline, taken, told


def test_requests_without_records_are_found() -> None:
    found = [event(EventKind.BANNER, 0), event(EventKind.SERVER_READY), *[event(EventKind.REQUEST)] * 25]
    assert told(taken([*found, event(EventKind.RESET_OK, 500)])) == [("data-source", "firing", 210.0)]
    assert told(taken([*found[:20], event(EventKind.RESET_OK, 500)])) == []


def test_statistics_that_are_off_are_found() -> None:
    harvest = taken([event(EventKind.STATS_DISABLED, 0), event(EventKind.RESET_OK, 500)])
    assert told(harvest) == [("data-source", "firing", 210.0)]
    [alert] = harvest.alert_events
    assert (alert.key.scope, alert.engine_index, alert.since_s) == (SOURCE, None, START_S)


def test_records_end_blindness() -> None:
    found = [event(EventKind.STATS_DISABLED, 0), event(EventKind.RESET_OK, 500)]
    assert told(taken([*found, busy(600), busy(640)]))[-1] == ("data-source", "resolved", 630.0)


def test_requests_before_a_record_are_not_blindness() -> None:
    requests = [event(EventKind.REQUEST)] * 25
    start = [event(EventKind.BANNER, 0), event(EventKind.SERVER_READY, 10)]
    assert told(taken([*start, *requests, busy(3600), busy(3610)])) == []  # the first ones, an hour after the start


def test_a_run_that_metrics_told_of_first_is_not_blind_either() -> None:
    requests = [event(EventKind.REQUEST)] * 25
    pipeline = new_pipeline()
    pipeline.take([event(EventKind.BANNER, 0), event(EventKind.SERVER_READY, 10)])
    pipeline.scraped(Scrape(START_S + 20, 0, None, 0.0, 0, 0))
    for at_s in (60.0, 600.0):
        pipeline.take([*requests, busy(at_s)])
        pipeline.take(requests)
        pipeline.advance(START_S + at_s + 60)
    assert told(pipeline.harvest()) == []


@pytest.mark.parametrize(
    ("unparsed", "impossible", "fires"), [(0, 0, False), (5, 5, False), (6, 6, True), (40, 0, True)]
)
def test_records_that_cannot_be_read_are_found(unparsed: int, impossible: int, fires: bool) -> None:
    pipeline = new_pipeline()
    pipeline.take([busy(10.0 * i) for i in range(90)])
    pipeline.finish(unparsed=unparsed, impossible=impossible)
    assert told(pipeline.harvest()) == ([("data-source", "firing", 890.0)] if fires else [])
