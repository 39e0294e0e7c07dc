import pytest

from kvlogd.kinds.rate import NAME, SCOPES, V0_STEP, Params, make
from kvlogd.model import Clear, Event, EventKind, Finding, Judgement, Per
from kvlogd.window import Window
from tests.lines import START_S, run_of


def judged(kind: EventKind, times: list[float], at_s: float, **parameters: object) -> Judgement:
    window = Window(run_of())
    for t in times:
        window.event(Event(START_S + t, kind), START_S + t)
    return make(Params.model_validate(parameters)).judge(window, START_S + at_s)


def test_it_judges_engines_only() -> None:
    assert NAME == "rate"
    assert set(SCOPES) == {Per.ENGINE}


@pytest.mark.parametrize(("count", "is_found"), [(0, False), (1, False), (10, False), (11, True), (50, True)])
def test_more_than_the_rate_is_found(count: int, is_found: bool) -> None:
    times = [100.0 + i for i in range(count)]
    judgement = judged(EventKind.KV_EXPIRED, times, 600, of="kv_expired", above="1/min", over="10m")
    assert isinstance(judgement, Finding if is_found else Clear)
    if isinstance(judgement, Finding):
        assert judgement.since_s == START_S + 100
        assert judgement.value == pytest.approx(count / 600)
        assert judgement.evidence == {"events": count, "per_s": judgement.value}


def test_events_outside_the_span_do_not_count() -> None:
    times = [0.0] * 11
    parameters = {"of": "kv_expired", "above": "1/min", "over": "10m"}
    assert isinstance(judged(EventKind.KV_EXPIRED, times, 599, **parameters), Finding)
    assert isinstance(judged(EventKind.KV_EXPIRED, times, 600, **parameters), Clear)
    assert isinstance(judged(EventKind.KV_EXPIRED, times, -1, **parameters), Clear)


def test_a_warning_of_v0_stands_for_fifty_preemptions() -> None:
    parameters = {"of": "preemptions", "above": "9/min", "over": "10m"}
    assert isinstance(judged(EventKind.PREEMPTION, [1.0], 600, **parameters), Clear)
    judgement = judged(EventKind.PREEMPTION, [1.0, 2.0], 600, **parameters)
    assert isinstance(judgement, Finding)
    assert judgement.evidence["events"] == 2 * V0_STEP


@pytest.mark.parametrize(
    ("of", "kind"),
    [
        ("preemptions", EventKind.PREEMPTION),
        ("kv_expired", EventKind.KV_EXPIRED),
        ("kv_load_failures", EventKind.KV_LOAD_FAILURE),
        ("crashes", EventKind.CRASH),
    ],
)
def test_each_count_has_its_kind(of: str, kind: EventKind) -> None:
    for other in (EventKind.PREEMPTION, EventKind.KV_EXPIRED, EventKind.KV_LOAD_FAILURE, EventKind.CRASH):
        judgement = judged(other, [1.0, 2.0, 3.0], 10, of=of, above="1/h", over="1h")
        assert isinstance(judgement, Finding) == (other is kind)


def test_without_an_event_it_is_clear() -> None:
    assert isinstance(judged(EventKind.STOP, [1.0], 10, of="crashes", above="1/h"), Clear)
