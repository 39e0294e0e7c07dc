import pytest

from kvlogd.model import Event, EventKind, Stats
from kvlogd.window import RECENT, SIGNALS, SourceWindow, Window
from tests.lines import START_S, record, run_of, window_of


def busy(at_s: float, kv_usage: float = 0.3) -> Stats:
    return record(at_s, running=2, generation_tps=9.0, kv_usage=kv_usage)


def still(at_s: float, running: int = 2) -> Stats:
    return record(at_s, running=running, kv_usage=0.3)


# --- the interval


@pytest.mark.parametrize(
    ("times", "interval_s"),
    [
        ([0], None),
        ([0, 10], None),
        ([0, 10, 20], 10.0),
        ([0, 10, 20, 500, 510, 520], 10.0),
        ([0, 3, 13, 23], 10.0),
        ([0, 100, 200, 210, 220], 10.0),
        ([0, 0, 0, 10, 10, 10], None),
        ([0, 7, 20, 25], None),
    ],
)
def test_the_interval_is_the_smallest_gap_that_came_twice_running(times: list[float], interval_s: float | None) -> None:
    assert window_of(*[busy(at_s) for at_s in times]).interval_s == interval_s


# --- memory


def test_the_memory_is_bounded_and_the_count_is_not() -> None:
    window = window_of(*[record(10.0 * i) for i in range(RECENT + 100)])
    assert (len(window.recent), window.count) == (RECENT, RECENT + 100)
    for i in range(5000):
        window.event(Event(START_S + i, EventKind.PREEMPTION), START_S + i)
    assert len(window.events[EventKind.PREEMPTION]) <= 1000


def test_since_gives_the_records_from_a_time_on() -> None:
    window = window_of(*[busy(10.0 * i) for i in range(6)])
    assert window.since(START_S + 30) == [busy(30), busy(40), busy(50)]
    assert window.since(START_S + 31) == [busy(40), busy(50)]
    assert window.since(START_S + 51) == []
    assert len(window.since(0)) == 6


# --- standing still


def test_standstill_begins_with_the_first_record_that_has_work_and_no_throughput() -> None:
    window = window_of(busy(0), still(10), still(20, running=3), still(30))
    assert window.zero_since_s == START_S + 10
    window.observe(busy(40))
    assert window.zero_since_s is None
    window.observe(still(50))
    window.observe(record(60))
    assert window.zero_since_s is None


def test_frozen_begins_with_the_first_of_the_records_that_repeat_each_other() -> None:
    window = window_of(still(0, running=3), still(10), still(20), still(30))
    assert window.frozen_since_s == START_S + 10
    window.observe(still(40, running=3))
    assert window.frozen_since_s is None
    assert window.zero_since_s == START_S


def test_idle_records_that_repeat_each_other_are_not_frozen() -> None:
    assert window_of(record(0), record(10), record(20)).frozen_since_s is None


def test_an_engine_crashes_once() -> None:
    window = window_of(busy(0))
    window.event(Event(START_S + 11, EventKind.CRASH), START_S + 11)
    window.event(Event(START_S + 12, EventKind.CRASH), START_S + 12)
    assert window.crashed_s == START_S + 11


def test_silence_counts_from_the_last_record_or_the_start() -> None:
    assert Window(run_of()).silent_s(START_S + 30) == 30
    assert window_of(busy(0), busy(10)).silent_s(START_S + 30) == 20


@pytest.mark.parametrize(
    ("facts", "tokens"),
    [
        ({}, None),
        ({"kv_tokens": 65536, "blocks": 9}, 65536),
        ({"blocks": 100}, 1600),
        ({"blocks": 100, "block_size": 32}, 3200),
    ],
)
def test_the_pool_s_size_in_tokens(facts: dict[str, int], tokens: int | None) -> None:
    assert Window(run_of()._replace(**facts)).pool_tokens() == tokens  # type: ignore[arg-type]


# --- signals


@pytest.mark.parametrize(
    ("signal", "value"),
    [("kv_usage", 0.3), ("kv_free_share", 0.7), ("running", 4), ("waiting", 5), ("load", 9.0), ("prompt_tps", 1.5),
     ("generation_tps", 9.0), ("deferred", None), ("swapped", None), ("prefix_hit_rate", None), ("frozen_for", None),
     ("standstill_for", None), ("log_stopped_for", None), ("metrics_frozen_for", None)],
)  # fmt: skip
def test_each_signal_reads_its_number(signal: str, value: float | None) -> None:
    window = window_of(record(0, running=4, waiting=5, prompt_tps=1.5, generation_tps=9.0, kv_usage=0.3))
    assert SIGNALS[signal].read(window, START_S + 5) == (None if value is None else pytest.approx(value))
    assert SIGNALS[signal].read(Window(run_of()), START_S + 5) is None


def test_no_signal_is_left_out_above() -> None:
    assert len(SIGNALS) == 14


@pytest.mark.parametrize("signal", ["frozen_for", "standstill_for"])
def test_signals_of_time_count_to_now(signal: str) -> None:
    assert SIGNALS[signal].read(window_of(still(0), still(10)), START_S + 70) == 70


# --- sources


def test_blindness_counts_from_when_statistics_went_off() -> None:
    source = SourceWindow()
    assert source.blind_for_s(START_S) is None
    source.ready_s, source.requests_unseen = START_S, 20
    assert source.blind_for_s(START_S + 50) == 50
    source.stats_off_s = START_S + 10
    assert source.blind_for_s(START_S + 50) == 40


def test_the_unread_share_needs_twenty_lines() -> None:
    source = SourceWindow()
    source.unparsed = 19
    assert source.unread_share() is None
    source.impossible = 1
    assert source.unread_share() == 1.0
