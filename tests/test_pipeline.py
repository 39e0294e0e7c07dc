from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlogd.engines import Ids
from kvlogd.harvest import Harvest
from kvlogd.model import AlertState, Event, EventKind, Stats
from kvlogd.pipeline import QUIET_END_S, TICK_S, UNSTORED, Pipeline
from kvlogd.rules import Rule, load_rules, shipped_folder
from tests.lines import START_S, record

SOURCE = "vllm.log"
SHIPPED = load_rules([shipped_folder()])
FULL = """\
id: full
verdict: kv-capacity
severity: warning
per: engine
when:
  threshold: {signal: kv_usage, above: 90%}
for: 5m
why: because
do: [look]
"""


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Rule:
    folder = tmp_path_factory.mktemp("rules")
    (folder / "full.yaml").write_text(FULL)
    [rule] = load_rules([folder])
    return rule


def new_pipeline(rules: Sequence[Rule] = SHIPPED) -> Pipeline:
    return Pipeline(SOURCE, Ids(), rules)


def event(kind: EventKind, at_s: float | None = None, *, pid: int | None = 1, **numbers: float) -> Event:
    return Event(None if at_s is None else START_S + at_s, kind, pid, None, numbers)


def taken(found: Sequence[Stats | Event], rules: Sequence[Rule] = SHIPPED, *, to_s: float | None = None) -> Harvest:
    pipeline = new_pipeline(rules)
    pipeline.take(found)
    if to_s is not None:
        pipeline.advance(START_S + to_s)
    return pipeline.harvest()


def told(harvest: Harvest) -> list[tuple[str, str, float]]:
    return [(e.key.rule, e.state.value, e.at_s - START_S) for e in harvest.alert_events]


def busy(at_s: float, kv_usage: float = 0.3, pid: int = 1, index: int = 0) -> Stats:
    return record(at_s, running=4, generation_tps=80.0, kv_usage=kv_usage, pid=pid, index=index)


def still(at_s: float, pid: int = 1) -> Stats:
    return record(at_s, running=4, kv_usage=0.3, pid=pid)


# --- records


def test_records_are_kept_with_their_runs() -> None:
    harvest = taken([busy(0), busy(0, index=1), busy(10), busy(300, pid=2)])
    assert harvest.samples == [busy(0), busy(0, index=1), busy(10), busy(300, pid=2)]
    assert harvest.sample_runs == [1, 2, 1, 3]
    assert [engine.label for engine in harvest.engines] == ["vllm.log/0", "vllm.log/1", "vllm.log/0"]
    assert {run.run_id: run.end_reason for run in harvest.runs} == {1: "restart", 2: "restart", 3: None}


def test_a_harvest_is_taken_once() -> None:
    pipeline = new_pipeline()
    pipeline.take([busy(0), event(EventKind.RESET_OK, 5)])
    assert pipeline.pending() == 1
    assert len(pipeline.harvest().samples) == 1
    assert pipeline.pending() == 0
    assert all(not part for part in pipeline.harvest())


def test_a_record_that_stands_there_twice_counts_once() -> None:
    records = [busy(10.0 * i, kv_usage=0.2 + i / 100) for i in range(20)]
    pipeline = new_pipeline()
    pipeline.take([*records, *records[5:], records[-1], busy(200)])
    harvest = pipeline.harvest()
    assert harvest.samples == [*records, busy(200)]
    assert pipeline.counts["duplicates"] == 16
    assert pipeline.window.stats_lines == 21
    assert harvest.events == []


def test_two_different_records_of_one_second_both_count() -> None:
    assert len(taken([busy(0), busy(0, kv_usage=0.4)]).samples) == 2


def test_a_clock_that_goes_back_is_noted_and_the_records_kept() -> None:
    pipeline = new_pipeline()
    pipeline.take([busy(3600.0 + 10 * i) for i in range(5)])
    pipeline.take([busy(10.0 * i, kv_usage=0.4) for i in range(5)])
    harvest = pipeline.harvest()
    assert len(harvest.samples) == 10
    assert pipeline.counts["clock_back"] == 1
    assert [e.kind for _, _, e in harvest.events] == [EventKind.CLOCK_BACK]
    [track] = pipeline.tracks()
    assert track.window.count == 5  # what came before the jump is no past to compare with
    assert harvest.sample_runs == [1] * 10


def test_seconds_of_jitter_are_no_clock_that_goes_back() -> None:
    pipeline = new_pipeline()
    pipeline.take([busy(0), busy(10), busy(8.5, kv_usage=0.4), busy(20)])
    assert pipeline.counts["clock_back"] == 0
    assert len(pipeline.harvest().samples) == 4


# --- time


def test_a_threshold_fires_after_its_time_in_record_time(full: Rule) -> None:
    for every_s in (1.0, 2.0, 10.0, 30.0):
        records = [busy(every_s * i, 0.95) for i in range(int(600 / every_s))]
        assert told(taken(records, [full])) == [("full", "firing", 330.0)], every_s


def test_ticks_happen_in_silent_stretches() -> None:
    """A hang is found 200 s after its first record without throughput, though the next line comes an hour later."""
    harvest = taken([busy(0), busy(10), still(20), busy(4000)])
    assert told(harvest) == [("engine-stall", "firing", 240.0)]
    assert told(taken([busy(0), busy(10), still(20), busy(4000), busy(4030)]))[1:] == [
        ("engine-stall", "resolved", 4020.0)
    ]


def test_time_may_be_advanced_without_a_line() -> None:
    assert told(taken([busy(0), still(20)], to_s=219)) == []
    assert told(taken([busy(0), still(20)], to_s=240)) == [("engine-stall", "firing", 240.0)]


def test_an_idle_night_is_quiet() -> None:
    harvest = taken([busy(0), busy(10), record(20), busy(40_000), busy(40_010), record(40_020)], to_s=80_000)
    assert told(harvest) == []


def test_time_does_not_go_back(full: Rule) -> None:
    pipeline = new_pipeline([full])
    pipeline.take([busy(at_s, 0.95) for at_s in range(0, 601, 10)])
    pipeline.advance(START_S + 600)
    pipeline.advance(START_S + 10)
    assert pipeline.now_s == START_S + 600
    assert len(pipeline.harvest().alert_events) == 1


# --- lines without a stamp


def test_a_stop_without_a_stamp_is_dated_by_the_next_one() -> None:
    harvest = taken([busy(0), still(10), event(EventKind.STOP), event(EventKind.BANNER, 1000)])
    [(_, _, stop), (_, _, banner)] = harvest.events
    assert (stop.kind, stop.ts_s, banner.kind) == (EventKind.STOP, START_S + 1000, EventKind.BANNER)
    assert told(harvest)[0] == ("engine-stall", "firing", 210.0)  # the silence was before the stop
    assert told(harvest)[-1][1:] == ("resolved", 1000.0)


def test_a_stop_soon_after_the_last_record_is_no_stall() -> None:
    harvest = taken([busy(0), still(10), event(EventKind.STOP), event(EventKind.BANNER, 60), busy(120)])
    assert told(harvest) == []
    assert [run.end_reason for run in harvest.runs] == ["stop", None]


def test_a_stop_at_the_end_of_the_log_is_kept() -> None:
    pipeline = new_pipeline()
    pipeline.take([busy(0), event(EventKind.STOP)])
    assert pipeline.harvest().events == []
    pipeline.finish()
    [(_, _, stop)] = pipeline.harvest().events
    assert (stop.kind, stop.ts_s) == (EventKind.STOP, START_S)


@pytest.mark.parametrize(
    ("last", "fires"),
    [
        ([], False),
        ([event(EventKind.REQUEST)], True),
        ([event(EventKind.ALIVE)], True),
        ([event(EventKind.ALIVE), busy(30)], False),
    ],
)
def test_the_clock_runs_on_only_where_lines_without_a_stamp_follow(last: list[Stats | Event], fires: bool) -> None:
    pipeline = new_pipeline()
    pipeline.take([busy(0), record(20, running=0, waiting=3), *last])
    now_s = pipeline.now_s
    pipeline.finish()
    assert pipeline.now_s is not None
    assert now_s is not None
    assert pipeline.now_s - now_s == (QUIET_END_S if fires else 0)
    assert ("engine-stall" in {rule for rule, _, _ in told(pipeline.harvest())}) == fires


def test_the_end_of_a_log_is_never_taken_for_a_hang_with_requests_running() -> None:
    pipeline = new_pipeline()
    pipeline.take([busy(0), still(20), event(EventKind.REQUEST)])
    pipeline.finish()
    assert told(pipeline.harvest()) == []


NO_CONNECTOR = event(EventKind.ARGS, -60, kv_connector=0.0)


def ending_idle(held: float) -> list[Stats | Event]:
    """Return what a log ends with whose last two records are idle and come after the last tick."""
    ticks_s = -START_S % TICK_S
    idle = {4: 0.0, 5: 0.0, 14: 0.0, 15: 0.0, 27: held, 28: held}
    records = [
        record(ticks_s + 2 + 10 * i, kv_usage=idle[i]) if i in idle else busy(ticks_s + 2 + 10 * i) for i in range(29)
    ]
    return [NO_CONNECTOR, *records]


@pytest.mark.parametrize(("held", "fires"), [(0.05, True), (0.0, False)])
def test_what_came_since_the_last_tick_is_judged_at_the_end_of_a_log(held: float, fires: bool) -> None:
    pipeline = new_pipeline()
    pipeline.take(ending_idle(held))
    now_s = pipeline.now_s
    assert told(pipeline.harvest()) == []
    pipeline.finish()
    assert told(pipeline.harvest()) == [("kv-idle-residue", "firing", -START_S % TICK_S + 300)] * fires
    assert pipeline.now_s == now_s


def test_what_the_last_look_found_is_taken_back_when_the_log_goes_on_without_it() -> None:
    first = new_pipeline()
    first.take(ending_idle(0.05))
    first.finish()
    before = first.harvest()
    second = Pipeline(SOURCE, Ids(before.engines, before.runs), SHIPPED)
    second.resume([(before.engines[0], before.runs[0], before.samples)])
    second.take([record(-START_S % TICK_S + 292, kv_usage=0.0), busy(-START_S % TICK_S + 400)])
    second.close_unconfirmed(before.alert_events)
    assert [(e.state, e.reason) for e in second.harvest().alert_events] == [(AlertState.RESOLVED, "the log went on")]


def test_what_the_end_of_a_log_seemed_to_say_is_taken_back_when_it_goes_on() -> None:
    first = new_pipeline()
    first.take([busy(0), record(20, running=0, waiting=3), event(EventKind.REQUEST)])
    first.finish()
    before = first.harvest()
    assert told(before) == [("engine-stall", "firing", 90.0)]
    second = Pipeline(SOURCE, Ids(before.engines, before.runs), SHIPPED)
    second.resume([(before.engines[0], before.runs[0], before.samples)])
    second.close_unconfirmed(before.alert_events)
    assert told(second.harvest()) == []
    second.take([busy(30.0 + 10 * i) for i in range(12)])
    second.close_unconfirmed(before.alert_events)
    assert told(second.harvest()) == [("engine-stall", "resolved", 140.0)]


@pytest.mark.parametrize("kind", sorted(UNSTORED))
def test_what_only_counts_is_not_stored(kind: EventKind) -> None:
    assert taken([busy(0), event(kind, 5), event(kind)]).events == []


def test_an_event_before_all_time_is_not_stored() -> None:
    assert taken([event(EventKind.SERVER_READY)]).events == []


def test_events_belong_to_their_run() -> None:
    harvest = taken([event(EventKind.ARGS, -9), busy(0), event(EventKind.RESET_OK, 5)])
    assert [(engine, run, e.kind) for engine, run, e in harvest.events] == [
        (None, None, EventKind.ARGS),
        (1, 1, EventKind.RESET_OK),
    ]


# --- restarts


def test_alerts_end_at_a_restart(full: Rule) -> None:
    records = [busy(10.0 * i, 0.95) for i in range(60)]
    after = [busy(1000 + 10.0 * i, 0.95, pid=2) for i in range(60)]
    harvest = taken([*records, *after], [full])
    assert told(harvest) == [("full", "firing", 330.0), ("full", "resolved", 1000.0), ("full", "firing", 1320.0)]
    assert [e.reason for e in harvest.alert_events] == ["", "restart", ""]
    assert [e.key.run for e in harvest.alert_events] == [1, 1, 2]


def test_pending_time_does_not_reach_across_a_restart(full: Rule) -> None:
    first = [busy(10.0 * i, 0.95) for i in range(25)]
    second = [busy(250 + 10.0 * i, 0.95, pid=2) for i in range(25)]
    assert told(taken([*first, event(EventKind.STOP, 245), *second], [full])) == []


def test_counters_and_windows_do_not_reach_across_a_restart() -> None:
    pipeline = new_pipeline()
    pipeline.take([event(EventKind.BANNER, -60), *[record(10.0 * i, kv_usage=0.5) for i in range(9)]])
    pipeline.take([event(EventKind.CRASH, 95), event(EventKind.BANNER, 100), busy(200), busy(210)])
    [track] = pipeline.tracks()
    window = track.window
    assert (window.count, window.crashed_s) == (2, None)
    assert window.run.number == 2
    assert told(pipeline.harvest()) == [("engine-stall", "firing", 95.0), ("engine-stall", "resolved", 100.0)]


def test_a_crash_is_told_at_once_and_a_stop_is_not() -> None:
    assert told(taken([busy(0), event(EventKind.CRASH, 7)])) == [("engine-stall", "firing", 7.0)]
    assert told(taken([busy(0), still(10), event(EventKind.STOP, 17)], to_s=5000)) == []
    assert told(taken([busy(0), event(EventKind.STOP, 17), event(EventKind.CRASH, 18)], to_s=5000)) == []


# --- however it is cut, and wherever it is stopped

steps = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from([2.0, 10.0, 10.0, 10.0, 40.0, 400.0]), st.sampled_from(["busy", "full", "still", "idle"])
        ),
        st.tuples(st.sampled_from([0.0, 5.0]), st.sampled_from(list(EventKind))),
    ),
    max_size=60,
)


def story(plan: list[tuple[float, str]], *, events: bool = True) -> list[Stats | Event]:
    at_s, found = 0.0, list[Stats | Event]()
    for gap_s, what in plan:
        at_s += gap_s
        if what == "busy":
            found.append(busy(at_s))
        elif what == "full":
            found.append(busy(at_s, 0.97))
        elif what == "still":
            found.append(still(at_s))
        elif what == "idle":
            found.append(record(at_s, kv_usage=0.05))
        elif events:
            found.append(event(EventKind(what), None if gap_s == 0.0 else at_s))
    return found


@given(plan=steps, cuts=st.lists(st.integers(0, 60)))
def test_however_the_records_are_cut_the_alerts_are_the_same(
    full: Rule, plan: list[tuple[float, str]], cuts: list[int]
) -> None:
    found = story(plan)
    rules = [*SHIPPED, full]
    whole, parts = new_pipeline(rules), new_pipeline(rules)
    whole.take(found)
    whole.finish()
    harvests, start = [], 0
    for cut in [*sorted(cuts), len(found)]:
        parts.take(found[start:cut])
        start = max(start, cut)
        harvests.append(parts.harvest())
    parts.finish()
    harvests.append(parts.harvest())
    one = whole.harvest()
    assert [e for h in harvests for e in h.alert_events] == list(one.alert_events)
    assert [s for h in harvests for s in h.samples] == list(one.samples)
    assert [e for h in harvests for e in h.events] == list(one.events)
    assert {r.run_id: r for h in harvests for r in h.runs} == {r.run_id: r for r in one.runs}


@given(plan=steps, at=st.integers(0, 60))
def test_resumed_it_goes_on_as_if_it_had_never_stopped(full: Rule, plan: list[tuple[float, str]], at: int) -> None:
    found = story(plan, events=False)
    rules = [*SHIPPED, full]
    whole = new_pipeline(rules)
    whole.take(found)
    first = new_pipeline(rules)
    first.take(found[:at])
    before = first.harvest()
    second = Pipeline(SOURCE, Ids(before.engines, before.runs), rules)
    engines = {engine.engine_id: engine for engine in before.engines}
    second.resume([(engines[run.engine_id], run, list(before.samples)) for run in before.runs])
    second.take(found[at:])
    after = second.harvest()
    assert [*before.alert_events, *after.alert_events] == list(whole.harvest().alert_events)


def test_an_alert_that_fires_already_is_not_told_again_after_resuming(full: Rule) -> None:
    first = new_pipeline([full])
    first.take([busy(10.0 * i, 0.95) for i in range(60)])
    before = first.harvest()
    assert [e.state for e in before.alert_events] == [AlertState.FIRING]
    second = Pipeline(SOURCE, Ids(before.engines, before.runs), [full])
    second.resume([(before.engines[0], before.runs[0], before.samples)])
    second.take([busy(600 + 10.0 * i, 0.95) for i in range(6)])
    assert second.harvest().alert_events == []
    second.take([busy(700, 0.1), busy(740, 0.1)])
    [event] = second.harvest().alert_events
    assert (event.state, event.since_s) == (AlertState.RESOLVED, before.alert_events[0].since_s)


def test_resuming_remembers_a_crash_and_records_of_one_moment() -> None:
    first = new_pipeline()
    twice = [busy(100), busy(100)._replace(deferred=5)]
    first.take([event(EventKind.BANNER, -60), busy(0), *twice, event(EventKind.CRASH, 105)])
    before = first.harvest()
    assert told(before) == [("engine-stall", "firing", 105.0)]
    second = Pipeline(SOURCE, Ids(before.engines, before.runs), SHIPPED)
    lines: list[Stats | Event] = [*before.samples, *[one for _, run_id, one in before.events if run_id is not None]]
    second.resume([(before.engines[0], before.runs[0], lines)])
    second.advance(START_S + 300)
    assert told(second.harvest()) == []
    second.take([event(EventKind.BANNER, 400)])
    assert told(second.harvest()) == [("engine-stall", "resolved", 400.0)]


def test_resuming_gives_each_engine_its_own_records() -> None:
    first = new_pipeline()
    first.take(
        [one._replace(engine_index=i) for t in range(30) for i, one in enumerate((busy(10.0 * t), busy(10.0 * t)))]
    )
    before = first.harvest()
    second = Pipeline(SOURCE, Ids(before.engines, before.runs), SHIPPED)
    engines = {engine.engine_id: engine for engine in before.engines}
    of_run = {
        run.run_id: [s for s, r in zip(before.samples, before.sample_runs, strict=True) if r == run.run_id]
        for run in before.runs
    }
    second.resume((engines[run.engine_id], run, of_run[run.run_id]) for run in before.runs)
    assert [track.window.count for track in second.tracks()] == [30, 30]


def test_one_stamp_from_the_future_does_not_stop_the_clock() -> None:
    pipeline = new_pipeline()
    pipeline.take([busy(0), busy(30 * 86400.0), busy(10), record(20, running=0, waiting=3), busy(200)])
    assert told(pipeline.harvest())[0] == ("engine-stall", "firing", 90.0)


def test_a_silence_of_years_costs_no_more_than_one_of_a_day() -> None:
    pipeline = new_pipeline()
    pipeline.take([busy(0), record(10, running=0, waiting=3)])
    pipeline.advance(START_S + 1e11)
    assert pipeline.now_s == START_S + 1e11
    assert told(pipeline.harvest()) == [("engine-stall", "firing", 90.0)]


def test_what_could_not_be_judged_is_said() -> None:
    pipeline = new_pipeline()
    pipeline.take([busy(10.0 * i) for i in range(5)])
    pipeline.advance(START_S + 60)
    pipeline.finish()
    assert ("kv-leak", "vllm.log/0") in pipeline.abstained
