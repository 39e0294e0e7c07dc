from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlogd import alerts
from kvlogd.alerts import Standing
from kvlogd.model import (
    Abstained,
    AlertEvent,
    AlertKey,
    AlertState,
    Clear,
    Finding,
    Judgement,
    NoData,
    NoEvidence,
    Severity,
)

KEY = AlertKey("kv-leak", "vllm.log/0", 2)


class Rule(NamedTuple):
    """What of a rule matters here, as the real ones have it."""

    verdict: str = "kv-leak"
    severity: Severity = Severity.CRITICAL
    for_s: float = 300.0
    keep_firing_for_s: float = 0.0
    no_data: NoData = NoData.HOLD


def finding(since_s: float = 0.0, value: float = 0.5, severity: Severity | None = None) -> Finding:
    return Finding(since_s, value, {"shift": value}, severity)


class Watch:
    """Steps one alert as `evaluate` does, from nothing."""

    def __init__(self, rule: Rule, standing: Standing | None = None) -> None:
        self.rule = rule
        self.standing = standing
        self.events: list[AlertEvent] = []

    def step(self, judgement: Judgement, at_s: float) -> tuple[AlertEvent, ...]:
        if self.standing is None:
            if not isinstance(judgement, Finding):
                return ()
            self.standing = alerts.start(self.rule, KEY, "vllm.log", 0, judgement, at_s)
        self.standing, events = alerts.step(self.rule, self.standing, judgement, at_s)
        self.events += events
        return events

    def run(self, *steps: tuple[float, Judgement]) -> list[tuple[float, AlertState]]:
        for at_s, judgement in steps:
            self.step(judgement, at_s)
        return [(event.at_s, event.state) for event in self.events]

    @property
    def state(self) -> AlertState | None:
        return self.standing.state if self.standing is not None else None


FIRING, RESOLVED = AlertState.FIRING, AlertState.RESOLVED


# --- for (scenario 32)


@pytest.mark.parametrize("cadence_s", [1, 5, 10, 30, 60, 100, 150, 300])
def test_fires_after_exactly_for_whatever_the_cadence(cadence_s: int) -> None:
    watch = Watch(Rule(for_s=300))
    for at_s in range(0, 300, cadence_s):
        assert watch.step(finding(), 1000 + at_s) == ()
        assert watch.state is AlertState.PENDING
    [event] = watch.step(finding(), 1300)
    assert (event.state, event.at_s, event.since_s) == (FIRING, 1300, 0.0)


def test_is_pending_at_4_m_50_s_and_firing_at_5_m() -> None:
    watch = Watch(Rule(for_s=300))
    watch.run(*[(10.0 * i, finding()) for i in range(30)])
    assert (watch.state, watch.events) == (AlertState.PENDING, [])
    assert watch.run((300, finding())) == [(300, FIRING)]


def test_without_for_it_fires_at_once() -> None:
    assert Watch(Rule(for_s=0)).run((7, finding())) == [(7, FIRING)]


def test_a_break_starts_the_time_anew() -> None:
    watch = Watch(Rule(for_s=60))
    assert watch.run((0, finding()), (50, finding()), (60, Clear()), (70, finding()), (129, finding())) == []
    assert watch.run((130, finding())) == [(130, FIRING)]


# --- restarts of kvlogd (scenarios 33 to 36): the standing is all there is


def test_downtime_while_pending_does_not_count() -> None:
    watch = Watch(Rule(for_s=300))
    watch.run((0, finding()), (120, finding()))
    resumed = Watch(Rule(for_s=300), watch.standing)
    resumed.step(NoEvidence(), 300)  # up again, nothing read yet
    assert resumed.run((479, finding())) == []
    assert resumed.run((480, finding())) == [(480, FIRING)]


def test_downtime_while_pending_counts_where_lines_cover_it() -> None:
    watch = Watch(Rule(for_s=300))
    watch.run((0, finding()), (120, finding()))
    resumed = Watch(Rule(for_s=300), watch.standing)
    assert resumed.run(*[(120.0 + 30 * i, finding()) for i in range(1, 7)]) == [(300, FIRING)]


def test_a_restart_while_firing_says_nothing_and_keeps_the_start() -> None:
    watch = Watch(Rule(for_s=0))
    watch.run((10, finding(since_s=3)))
    resumed = Watch(Rule(for_s=0), watch.standing)
    assert resumed.run((500, NoEvidence()), (510, finding(since_s=505)), (520, finding(since_s=505))) == []
    assert resumed.standing is not None
    assert (resumed.standing.since_s, resumed.standing.entered_s) == (3, 10)


def test_a_restart_inside_keep_firing_keeps_the_remaining_time() -> None:
    rule = Rule(for_s=0, keep_firing_for_s=600)
    watch = Watch(rule)
    watch.run((0, finding()), (100, Clear()), (400, Clear()))
    assert Watch(rule, watch.standing).run((699, Clear())) == []
    assert Watch(rule, watch.standing).run((700, Clear())) == [(700, RESOLVED)]


def test_the_end_while_stopped_has_its_true_time() -> None:
    watch = Watch(Rule(for_s=0))
    watch.run((0, finding()))
    resumed = Watch(Rule(for_s=0), watch.standing)
    [(at_s, state)] = resumed.run((300, Clear()), (900, Clear()))  # the lines that were written meanwhile
    assert (at_s, state) == (300, RESOLVED)


# --- no data


@pytest.mark.parametrize("nothing", [NoEvidence(), Abstained("too few records")])
def test_hold_neither_fires_nor_resolves(nothing: Judgement) -> None:
    watch = Watch(Rule(for_s=100))
    assert watch.run((0, finding()), (60, finding()), (10_000, nothing), (20_000, nothing)) == []
    assert watch.state is AlertState.PENDING
    assert watch.run((20_040, finding())) == [(20_040, FIRING)]
    assert watch.run((90_000, nothing)) == [(20_040, FIRING)]
    assert watch.state is FIRING


def test_hold_does_not_count_towards_the_end() -> None:
    watch = Watch(Rule(for_s=0, keep_firing_for_s=600))
    watch.run((0, finding()), (100, Clear()), (200, Clear()), (9_000, NoEvidence()))
    assert watch.run((9_499, Clear())) == [(0, FIRING)]
    assert watch.run((9_500, Clear())) == [(0, FIRING), (9_500, RESOLVED)]


def test_ok_takes_silence_for_a_cure() -> None:
    watch = Watch(Rule(for_s=0, no_data=NoData.OK))
    assert watch.run((0, finding()), (30, NoEvidence())) == [(0, FIRING), (30, RESOLVED)]
    assert Watch(Rule(for_s=60, no_data=NoData.OK)).run((0, finding()), (30, NoEvidence()), (60, finding())) == []


def test_alert_takes_silence_for_the_same_fault() -> None:
    watch = Watch(Rule(for_s=60, no_data=NoData.ALERT))
    assert watch.run((0, finding(value=0.7)), (30, NoEvidence()), (60, NoEvidence())) == [(60, FIRING)]
    assert watch.events[0].value == 0.7


# --- flapping, identity, severity (39, 41)


def test_a_value_that_flaps_for_an_hour_gives_two_notices_at_most() -> None:
    watch = Watch(Rule(for_s=0, keep_firing_for_s=300))
    steps = [(20.0 * i, finding() if i % 2 == 0 else Clear()) for i in range(180)]
    assert watch.run(*steps, (3_879, Clear()), (3_880, Clear()), (4_300, Clear())) == [(0, FIRING), (3_880, RESOLVED)]


def test_a_value_that_flaps_under_for_gives_none() -> None:
    assert Watch(Rule(for_s=60)).run(*[(20.0 * i, finding() if i % 3 else Clear()) for i in range(180)]) == []


def test_changing_numbers_are_one_alert() -> None:
    watch = Watch(Rule(for_s=0))
    watch.run(*[(10.0 * i, finding(value=i / 100)) for i in range(1, 60)], (600, Clear()))
    assert [event.state for event in watch.events] == [FIRING, RESOLVED]
    assert {event.key for event in watch.events} == {KEY}
    assert watch.events[1].value == 0.59  # the latest that was found


def test_a_step_in_severity_is_told_once_and_is_no_new_alert() -> None:
    watch = Watch(Rule(for_s=0, severity=Severity.WARNING))
    watch.run((0, finding()), (30, finding(severity=Severity.CRITICAL)), (60, finding(severity=Severity.CRITICAL)))
    assert [(e.state, e.severity, e.reason) for e in watch.events] == [
        (FIRING, Severity.WARNING, ""),
        (FIRING, Severity.CRITICAL, "severity changed"),
    ]
    [event] = watch.step(Clear(), 90)
    assert (event.state, event.severity, event.reason) == (RESOLVED, Severity.CRITICAL, "cleared")


def test_since_is_the_earliest_begin_until_it_fires() -> None:
    watch = Watch(Rule(for_s=60))
    watch.run((100, finding(since_s=90)), (130, finding(since_s=40)), (160, finding(since_s=95)))
    assert watch.events[0].since_s == 40
    watch.run((190, finding(since_s=10)), (220, Clear()))
    assert watch.events[1].since_s == 40


def test_the_end_by_force_is_told_of_firing_alerts_only() -> None:
    watch = Watch(Rule(for_s=60))
    watch.run((0, finding()))
    assert watch.standing is not None
    assert alerts.end(watch.standing, 10, "rule removed") == ()
    watch.run((60, finding()))
    [event] = alerts.end(watch.standing, 70, "rule removed")
    assert (event.state, event.reason, event.at_s) == (RESOLVED, "rule removed", 70)


def test_a_longer_for_does_not_end_a_firing_alert() -> None:
    watch = Watch(Rule(for_s=60))
    watch.run((0, finding()), (60, finding()))
    assert Watch(Rule(for_s=3600), watch.standing).run((90, finding())) == []


def test_a_clock_that_goes_back_takes_no_time_away() -> None:
    watch = Watch(Rule(for_s=100))
    watch.run((1000, finding()), (1090, finding()), (10, finding()))
    assert watch.run((20, finding())) == [(20, FIRING)]


# --- any order of judgements

judgements = st.one_of(
    st.builds(finding, st.floats(0, 1e6), st.floats(0, 1), st.sampled_from([None, *Severity])),
    st.just(Clear()),
    st.just(NoEvidence()),
    st.just(Abstained("too few")),
)
steps_of = st.lists(st.tuples(st.floats(0, 600), judgements), max_size=40)
rules = st.builds(
    Rule,
    for_s=st.sampled_from([0.0, 60.0, 300.0]),
    keep_firing_for_s=st.sampled_from([0.0, 60.0, 1800.0]),
    no_data=st.sampled_from(NoData),
)


def in_time(gaps: list[tuple[float, Judgement]]) -> list[tuple[float, Judgement]]:
    at_s, steps = 0.0, []
    for gap_s, judgement in gaps:
        at_s += gap_s
        steps.append((at_s, judgement))
    return steps


@given(rules, steps_of)
def test_firing_and_resolved_take_turns(rule: Rule, gaps: list[tuple[float, Judgement]]) -> None:
    watch = Watch(rule)
    watch.run(*in_time(gaps))
    told = [event for event in watch.events if event.reason != "severity changed"]
    assert all(a.state is not b.state for a, b in pairwise(told))
    assert not told or told[0].state is FIRING
    assert (watch.state is FIRING) == bool(told and told[-1].state is FIRING)
    assert all(a.at_s <= b.at_s for a, b in pairwise(watch.events))


@given(rules, steps_of, st.integers(0, 40))
def test_a_standing_is_all_that_goes_on(rule: Rule, gaps: list[tuple[float, Judgement]], at: int) -> None:
    steps = in_time(gaps)
    whole, first = Watch(rule), Watch(rule)
    whole.run(*steps)
    first.run(*steps[:at])
    restored = Standing(*first.standing) if first.standing is not None else None
    second = Watch(rule, restored)
    second.run(*steps[at:])
    assert first.events + second.events == whole.events
    assert second.standing == whole.standing


@given(rules, steps_of)
def test_nothing_fires_before_its_time(rule: Rule, gaps: list[tuple[float, Judgement]]) -> None:
    watch = Watch(rule)
    first_found_s: float | None = None
    for at_s, judgement in in_time(gaps):
        if isinstance(judgement, Finding) and first_found_s is None:
            first_found_s = at_s
        for event in watch.step(judgement, at_s):
            if event.state is FIRING and event.reason == "":
                assert first_found_s is not None
                assert at_s - first_found_s >= rule.for_s - 1e-6
        if watch.standing is None:
            first_found_s = None
