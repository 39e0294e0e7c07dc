import pytest
from pydantic import ValidationError

from kvlogd.kinds.threshold import NAME, SCOPES, Params, make
from kvlogd.model import Abstained, Clear, Finding, Judgement, NoEvidence, Per, Stats
from kvlogd.window import RECENT, SIGNALS, SourceWindow, Window
from tests.lines import START_S, record, run_of, window_of


def judged(window: Window, at_s: float, **parameters: object) -> Judgement:
    return make(Params.model_validate(parameters)).judge(window, START_S + at_s)


def full(at_s: float, kv_usage: float) -> Stats:
    return record(at_s, running=1, generation_tps=9.0, kv_usage=kv_usage)


def test_it_judges_every_scope() -> None:
    assert NAME == "threshold"
    assert set(SCOPES) == set(Per)


@pytest.mark.parametrize(("usage", "is_found"), [(0.899, False), (0.9, False), (0.901, True), (1.0, True)])
def test_above(usage: float, is_found: bool) -> None:
    judgement = judged(window_of(full(0, usage)), 5, signal="kv_usage", above="90%")
    assert isinstance(judgement, Finding if is_found else Clear)
    if isinstance(judgement, Finding):
        assert judgement == Finding(START_S + 5, usage, {"kv_usage": usage, "bound": 0.9})


@pytest.mark.parametrize(("running", "is_found"), [(1, True), (2, False), (3, False)])
def test_below(running: int, is_found: bool) -> None:
    window = window_of(record(0, running=running))
    assert isinstance(judged(window, 5, signal="running", below="2"), Finding if is_found else Clear)


def test_the_free_share_is_what_is_not_in_use() -> None:
    window = window_of(full(0, 0.95), full(10, 0.85))
    assert judged(window, 10, signal="kv_free_share", below="16%").value == pytest.approx(0.15)  # type: ignore[union-attr]
    over = judged(window, 10, signal="kv_free_share", below="11%", over="10s", of="mean")
    assert isinstance(over, Finding)
    assert over.value == pytest.approx(0.10)


@pytest.mark.parametrize(("of", "wanted"), [("min", 0.05), ("max", 0.15), ("mean", 0.10)])
def test_least_and_most_of_the_free_share_are_its_own(of: str, wanted: float) -> None:
    window = window_of(full(0, 0.95), full(10, 0.85))
    judgement = judged(window, 10, signal="kv_free_share", below="99%", over="10s", of=of)
    assert isinstance(judgement, Finding)
    assert judgement.value == pytest.approx(wanted)


# --- over a span


@pytest.mark.parametrize(("of", "bound", "is_found"), [
    ("mean", "19%", True), ("mean", "21%", False), ("min", "9%", True), ("min", "11%", False), ("max", "29%", True),
    ("max", "31%", False),
])  # fmt: skip
def test_the_numbers_of_a_span(of: str, bound: str, is_found: bool) -> None:
    window = window_of(*[full(10.0 * i, 0.1 + 0.1 * (i % 3)) for i in range(31)])
    judgement = judged(window, 300, signal="kv_usage", above=bound, over="5m", of=of)
    assert isinstance(judgement, Finding if is_found else Clear)
    if isinstance(judgement, Finding):
        assert judgement.since_s == START_S


def test_a_span_that_is_not_full_yet_is_not_judged() -> None:
    window = window_of(*[full(10.0 * i, 0.99) for i in range(10)])
    assert isinstance(judged(window, 90, signal="kv_usage", above="50%", over="5m"), Abstained)
    assert isinstance(judged(window, 90, signal="kv_usage", above="50%", over="100s"), Finding)


def test_a_span_longer_than_the_memory_is_not_judged_by_half_of_it() -> None:
    window = window_of(*[full(10.0 * i, 0.99) for i in range(RECENT + 500)])
    at_s = 10.0 * (RECENT + 499)
    assert isinstance(judged(window, at_s, signal="kv_usage", above="50%", over="1h"), Finding)
    assert isinstance(judged(window, at_s, signal="kv_usage", above="50%", over="6h"), Abstained)


def test_records_before_the_span_do_not_count() -> None:
    window = window_of(*[full(10.0 * i, 0.99 if i < 30 else 0.1) for i in range(61)])
    judgement = judged(window, 600, signal="kv_usage", above="50%", over="5m", of="max")
    assert isinstance(judgement, Clear)


def test_silence_over_the_whole_span_says_nothing() -> None:
    assert isinstance(judged(window_of(full(0, 0.99)), 600, signal="kv_usage", above="50%", over="5m"), NoEvidence)


# --- unknown is neither above nor below


def test_without_a_record_there_is_nothing_to_judge() -> None:
    for signal, bound in (("kv_usage", "50%"), ("load", "3"), ("frozen_for", "3m")):
        assert isinstance(judged(Window(run_of()), 600, signal=signal, above=bound), NoEvidence)


def test_a_number_that_the_log_does_not_give_is_no_zero() -> None:
    window = window_of(record(0))
    assert isinstance(judged(window, 5, signal="prefix_hit_rate", below="10%"), NoEvidence)
    assert isinstance(judged(window, 5, signal="prefix_hit_rate", below="10%", over="1s"), NoEvidence)


def test_records_that_move_are_not_frozen() -> None:
    assert isinstance(judged(window_of(full(0, 0.1), full(10, 0.2)), 600, signal="frozen_for", above="3m"), Clear)


# --- for how long


@pytest.mark.parametrize(("at_s", "is_found"), [(180, False), (181, True)])
def test_frozen_records(at_s: float, is_found: bool) -> None:
    window = window_of(*[record(10.0 * i, running=106, kv_usage=0.904) for i in range(10)])
    judgement = judged(window, at_s, signal="frozen_for", above="3m")
    assert isinstance(judgement, Finding if is_found else Clear)
    if isinstance(judgement, Finding):
        assert judgement.since_s == START_S  # when it began, not when it was found
        assert judgement.value == at_s


# --- sources


def test_requests_without_records() -> None:
    source = SourceWindow()
    blind = make(Params(signal="blind_for", above="3m"))
    assert isinstance(blind.judge_source(source, START_S), Clear)
    source.ready_s = START_S
    source.requests_unseen = 19
    assert isinstance(blind.judge_source(source, START_S + 500), Clear)
    source.requests_unseen = 20
    assert isinstance(blind.judge_source(source, START_S + 180), Clear)
    judgement = blind.judge_source(source, START_S + 181)
    assert judgement == Finding(START_S, 181.0, {"blind_for": 181.0, "bound": 180.0})


@pytest.mark.parametrize(("stats", "unparsed", "impossible", "is_found"), [
    (18, 2, 0, False), (17, 2, 1, True), (0, 0, 20, True), (0, 19, 0, False), (1000, 90, 10, False),
    (1000, 100, 20, True),
])  # fmt: skip
def test_unread_share(stats: int, unparsed: int, impossible: int, is_found: bool) -> None:
    source = SourceWindow()
    source.stats_lines, source.unparsed, source.impossible = stats, unparsed, impossible
    judgement = make(Params(signal="unread_share", above="10%")).judge_source(source, START_S)
    assert isinstance(judgement, Finding if is_found else Clear)


def test_a_signal_of_the_other_scope_has_no_evidence() -> None:
    assert isinstance(make(Params(signal="kv_usage", above="1%")).judge_source(SourceWindow(), 0), NoEvidence)
    assert isinstance(judged(window_of(record(0)), 0, signal="blind_for", above="3m"), NoEvidence)


# --- parameters


@pytest.mark.parametrize("signal", sorted(SIGNALS))
def test_each_signal_has_a_unit_and_refuses_others(signal: str) -> None:
    bounds = ("3m", "10%", "8", "5 tokens/s")
    fitting = []
    for bound in bounds:
        try:
            Params(signal=signal, above=bound)
        except ValidationError:
            continue
        fitting.append(bound)
    assert len(fitting) == 1


@pytest.mark.parametrize("bounds", [{}, {"above": "1%", "below": "2%"}])
def test_one_bound_exactly(bounds: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="give one of above and below"):
        Params.model_validate({"signal": "kv_usage", **bounds})
