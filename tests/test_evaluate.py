from collections.abc import Callable
from pathlib import Path

import pytest

from kvlogd.engines import Fleet, Ids
from kvlogd.evaluate import Bench, _One, combined, excused
from kvlogd.model import Abstained, AlertEvent, Clear, Event, EventKind, Finding, Judgement, NoEvidence, Scrape
from kvlogd.pipeline import Pipeline
from kvlogd.rest import Resting
from kvlogd.rules import Rule, load_rule
from kvlogd.window import SourceWindow, Window
from tests.lines import START_S, record

F, A, C, N = Finding(10.0, 1.0, {"x": 1.0}), Abstained("too few"), Clear(), NoEvidence()


@pytest.mark.parametrize(
    ("judgements", "all_of", "any_of"),
    [
        ([F], Finding, Finding),
        ([F, F], Finding, Finding),
        ([F, C], Clear, Finding),
        ([C, F], Clear, Finding),
        ([F, A], Abstained, Finding),
        ([F, N], NoEvidence, Finding),
        ([A, F], Abstained, Finding),
        ([C, C], Clear, Clear),
        ([C, A], Clear, Abstained),
        ([C, N], Clear, NoEvidence),
        ([A, N], Abstained, Abstained),
        ([N, A], Abstained, Abstained),
        ([N, N], NoEvidence, NoEvidence),
        ([F, C, A, N], Clear, Finding),
        ([F, A, N], Abstained, Finding),
        ([C, A, N], Clear, Abstained),
    ],
)
def test_conditions_combine(judgements: list[Judgement], all_of: type, any_of: type) -> None:
    assert type(combined(True, judgements)) is all_of
    assert type(combined(False, judgements)) is any_of


def test_all_merge_their_evidence_and_hold_since_the_last_began() -> None:
    one, two = Finding(10.0, 1.0, {"x": 1.0, "bound": 5.0}), Finding(30.0, 2.0, {"y": 2.0, "bound": 7.0})
    assert combined(True, [one, two]) == Finding(30.0, 1.0, {"x": 1.0, "y": 2.0, "bound": 5.0})
    assert combined(False, [C, two, one]) == two


@pytest.mark.parametrize(("excuse", "wanted"), [(F, Clear), (A, Finding), (N, Finding), (C, Finding)])
def test_only_an_excuse_that_holds_for_certain_counts(excuse: Judgement, wanted: type) -> None:
    assert type(excused(F, [C, excuse])) is wanted


@pytest.mark.parametrize("judgement", [A, N, C])
def test_what_is_no_finding_needs_no_excuse(judgement: Judgement) -> None:
    assert excused(judgement, [F]) is judgement


# --- a rule at work

RULE = """\
id: my-rule
verdict: kv-capacity
severity: warning
per: {per}
when:
  {when}
unless:
  - {unless}
why: because
do: [look]
"""


MakeRule = Callable[..., Rule]


@pytest.fixture
def rule_of(tmp_path: Path) -> MakeRule:
    def make(when: str, unless: str, per: str = "engine") -> Rule:
        path = tmp_path / "rule.yaml"
        path.write_text(RULE.format(when=when, unless=unless, per=per))
        return load_rule(path)

    return make


def judged(rule: Rule, *, running: int, waiting: int) -> list[AlertEvent]:
    life = Fleet("vllm.log", Ids()).life_of(record(0))
    window = Window(life.run)
    window.observe(record(0, running=running, waiting=waiting, generation_tps=1.0))
    return Bench.of_engine([rule], life).judge(window, START_S + 5)


@pytest.mark.parametrize(("running", "waiting", "fires"), [(0, 9, False), (5, 9, True), (5, 0, False), (0, 0, False)])
def test_unless_keeps_a_rule_quiet(rule_of: MakeRule, running: int, waiting: int, fires: bool) -> None:
    rule = rule_of("threshold: {signal: waiting, above: 3}", "threshold: {signal: running, below: 1}")
    events = judged(rule, running=running, waiting=waiting)
    assert len(events) == fires
    if events:
        assert events[0].key == ("my-rule", "vllm.log/0", 1)
        assert (events[0].source, events[0].engine_index) == ("vllm.log", 0)


def test_unless_counts_for_sources_too(rule_of: MakeRule) -> None:
    rule = rule_of(
        "threshold: {signal: unread_share, above: 10%}", "threshold: {signal: blind_for, above: 3m}", "source"
    )
    source = SourceWindow()
    source.unparsed = 20
    assert len(Bench.of_source([rule], "vllm.log").judge(source, START_S)) == 1
    source.stats_off_s = START_S - 500
    assert Bench.of_source([rule], "vllm.log").judge(source, START_S) == []


def test_nested_conditions(rule_of: MakeRule) -> None:
    when = (
        "all: [{threshold: {signal: load, above: 3}}, "
        "{any: [{threshold: {signal: running, above: 7}}, {threshold: {signal: waiting, above: 7}}]}]"
    )
    rule = rule_of(when, "threshold: {signal: kv_usage, above: 99%}")
    assert len(judged(rule, running=8, waiting=0)) == 1
    assert len(judged(rule, running=0, waiting=8)) == 1
    assert judged(rule, running=4, waiting=4) == []


def test_rules_of_the_other_scope_are_left_out(rule_of: MakeRule) -> None:
    rule = rule_of("threshold: {signal: load, above: 3}", "stall:")
    assert Bench.of_source([rule], "vllm.log").judge(SourceWindow(), START_S) == []


def test_the_end_tells_of_firing_alerts_once(rule_of: MakeRule) -> None:
    rule = rule_of("threshold: {signal: waiting, above: 3}", "stall:")
    life = Fleet("vllm.log", Ids()).life_of(record(0))
    window = Window(life.run)
    window.observe(record(0, running=1, waiting=9, generation_tps=1.0))
    bench = Bench.of_engine([rule], life)
    assert len(bench.judge(window, START_S)) == 1
    [event] = bench.end(START_S + 50, "restart")
    assert (event.state.value, event.reason, event.at_s) == ("resolved", "restart", START_S + 50)
    assert bench.end(START_S + 60, "restart") == []
    assert bench.standings() == []


def test_after_the_clock_went_back_the_alerts_stay_and_the_evaluators_are_new(rule_of: MakeRule) -> None:
    rule = rule_of("threshold: {signal: waiting, above: 3}", "stall:")
    life = Fleet("vllm.log", Ids()).life_of(record(0))
    window = Window(life.run)
    window.observe(record(0, running=1, waiting=9, generation_tps=1.0))
    bench = Bench.of_engine([rule], life)
    bench.judge(window, START_S)
    fresh = bench.renewed()
    assert fresh.standings() == bench.standings()
    assert fresh.judge(window, START_S + 30) == []  # it fires already


def test_equal_conditions_of_two_rules_are_looked_at_once(rule_of: MakeRule) -> None:
    life = Fleet("vllm.log", Ids()).life_of(record(0))
    stall = rule_of("stall:", "threshold: {signal: waiting, above: 99}")
    bench = Bench.of_engine([stall, stall._replace(id="other")], life)
    first, second = bench._works
    assert first.when == second.when
    assert first.when != Bench.of_engine([stall], life)._works[0].when
    window = Window(life.run)
    window.observe(record(0, waiting=9))
    assert [event.key.rule for event in bench.judge(window, START_S + 60)] == ["my-rule", "other"]


# --- when a condition is asked


class Asked(Resting):
    """An evaluator that says when it was asked."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.rest_s = 60.0
        self.ripe = 100

    def judge(self, _window: Window, at_s: float) -> Judgement:
        self.times.append(at_s)
        return C


@pytest.fixture
def asked() -> tuple[Bench, Window, list[float]]:
    """Return a bench with one condition, its window and the times at which it was asked."""
    life, evaluator = Fleet("vllm.log", Ids()).life_of(record(0)), Asked()
    bench = Bench.of_engine([], life)
    bench._ones = [_One(evaluator, "judge")]
    return bench, Window(life.run), evaluator.times


def test_a_condition_rests_for_as_long_as_it_says(asked: tuple[Bench, Window, list[float]]) -> None:
    bench, window, times = asked
    for at_s in (0, 30, 60, 90, 120, 210):
        bench.judge(window, START_S + at_s)
    assert times == [START_S, START_S + 60, START_S + 120, START_S + 210]


def test_its_rest_ends_when_the_run_has_as_many_records_as_it_waits_for(
    asked: tuple[Bench, Window, list[float]],
) -> None:
    bench, window, times = asked
    for number in range(101):
        window.observe(record(number))
        bench.judge(window, START_S + number / 10)
    assert times == [START_S, START_S + 9.9, START_S + 10]


def test_a_condition_that_waits_for_a_record_is_not_asked_before_it(asked: tuple[Bench, Window, list[float]]) -> None:
    bench, window, times = asked
    bench._ones[0]._evaluator.least = 3
    for at_s in (0, 60, 120, 180, 240, 300):
        window.observe(record(at_s))
        bench.judge(window, START_S + at_s)
    assert times == [START_S, *(START_S + at_s for at_s in (120, 180, 240, 300))]


def test_the_first_scrape_ends_the_wait_for_records(asked: tuple[Bench, Window, list[float]]) -> None:
    bench, window, times = asked
    bench._ones[0]._evaluator.least = 3
    for at_s in (0, 60, 120):
        bench.judge(window, START_S + at_s)
    window.scraped(Scrape(START_S + 130, 0, None), START_S + 130)
    bench.judge(window, START_S + 150)
    assert times == [START_S, START_S + 150]


def test_in_an_old_run_those_that_rest_are_asked_at_whole_minutes(asked: tuple[Bench, Window, list[float]]) -> None:
    bench, window, times = asked
    bench._ones[0]._evaluator.rest_s = 40.0
    bench._ones[0]._evaluator.ripe = 2000
    for number in range(1000):
        window.observe(record(number))
    for at_s in (30, 60, 90, 120, 150, 180):
        bench.judge(window, START_S + at_s)
    assert times == [START_S + at_s for at_s in (30, 120, 180)]


def test_a_clock_that_goes_back_keeps_no_condition_from_being_asked(asked: tuple[Bench, Window, list[float]]) -> None:
    bench, window, times = asked
    for at_s in (7200, 100, 110, 160):
        bench.judge(window, START_S + at_s)
    assert times == [START_S + 7200, START_S + 100, START_S + 160], "it was asked in what was then the present"


def test_a_condition_that_has_nothing_new_to_say_is_told_of_as_long_as_it_holds(rule_of: MakeRule) -> None:
    rule = rule_of("threshold: {signal: frozen_for, above: 3m}", "threshold: {signal: waiting, above: 99}")
    life = Fleet("vllm.log", Ids()).life_of(record(0))
    window, bench = Window(life.run), Bench.of_engine([rule._replace(for_s=60.0)], life)
    for at_s in range(0, 400, 10):
        window.observe(record(at_s, running=1, generation_tps=0.0))
    states = {
        at_s: [event.state.value for event in bench.judge(window, START_S + at_s)] for at_s in range(400, 500, 30)
    }
    assert states == {400: [], 430: [], 460: ["firing"], 490: []}


@pytest.mark.parametrize(
    ("last_s", "end_s", "is_asked"), [(25, 60, True), (0, 60, True), (55, 90, False), (65, 90, True)]
)
def test_at_the_end_of_a_log_what_came_since_all_were_asked_together_is_judged(
    last_s: int, end_s: int, is_asked: bool, asked: tuple[Bench, Window, list[float]]
) -> None:
    bench, window, times = asked
    window.observe(record(last_s))
    bench.judge_newest(window, START_S + end_s)
    assert bool(times) is is_asked


STOOD = """\
id: stood
verdict: engine-stall
severity: critical
per: engine
when:
  stall: {}
no_data: alert
why: because
do: [look]
"""


@pytest.mark.parametrize("kind", [EventKind.STOP, EventKind.SLEEP, EventKind.PAUSE])
def test_a_condition_that_rests_is_asked_when_its_engine_stops_or_sleeps(kind: EventKind, tmp_path: Path) -> None:
    (tmp_path / "stood.yaml").write_text(STOOD)
    pipeline = Pipeline("vllm.log", Ids(), [load_rule(tmp_path / "stood.yaml")])
    pipeline.take([record(10 * n, running=4, generation_tps=80.0, kv_usage=0.3) for n in range(900)])
    pipeline.advance(START_S + 10_000)  # all that came was looked at; the next record may never come
    pipeline.take([Event(START_S + 10_010, kind, 1)])
    pipeline.advance(START_S + 10_100)
    assert pipeline.harvest().alert_events[-1].at_s == START_S + 10_020
