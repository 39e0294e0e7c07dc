import pickle

import pytest

from kvlogd.engines import Ids
from kvlogd.kinds.skew import NAME, SCOPES, Params, make
from kvlogd.model import Abstained, Clear, Event, EventKind, Finding, Judgement, NoEvidence, Per
from kvlogd.pipeline import Pipeline
from kvlogd.window import Window
from tests.lines import START_S, record, run_of

Numbers = tuple[int, float, float, float]
"""Running, generation, prompt, usage."""
USUAL: Numbers = (20, 600.0, 2400.0, 0.30)


def fleet(*engines: Numbers, records: int = 180, pids: tuple[int, ...] = ()) -> list[Window]:
    """Return the windows of engines of one source, half an hour long."""
    shared: dict[int, Window] = {}
    for i, (running, generation, prompt, usage) in enumerate(engines):
        window = Window(run_of(i + 1))
        window.peers, shared[i + 1] = shared, window
        for at in range(records):
            stats = record(
                10.0 * at, running=running, generation_tps=generation, prompt_tps=prompt, kv_usage=usage, index=i
            )
            window.observe(stats._replace(pid=pids[i] if pids else 1))
    return list(shared.values())


def judged(windows: list[Window], at_s: float = 1800.0) -> Judgement:
    skew = make(Params())
    skew.judge(windows[0], START_S + at_s - 600)
    return skew.judge(windows[0], START_S + at_s)


def test_it_judges_engines_only() -> None:
    assert NAME == "skew"
    assert set(SCOPES) == {Per.ENGINE}


@pytest.mark.parametrize(("share", "is_found"), [(0.5, True), (0.64, True), (0.7, False), (1.0, False), (2.0, False)])
def test_a_slow_engine_among_its_siblings(share: float, is_found: bool) -> None:
    judgement = judged(fleet((20, 600.0 * share, 2400.0 * share, 0.30), USUAL, USUAL, USUAL))
    assert isinstance(judgement, Finding if is_found else Clear)
    if isinstance(judgement, Finding):
        assert judgement.value == pytest.approx(share)
        assert judgement.evidence["siblings"] == 3
        assert judgement.evidence["own_pace"] == pytest.approx(30 * share)


def test_one_sibling_is_enough() -> None:
    assert isinstance(judged(fleet((20, 300.0, 1200.0, 0.30), USUAL)), Finding)


def test_the_siblings_of_a_slow_engine_are_well() -> None:
    windows = fleet((20, 300.0, 1200.0, 0.30), USUAL, USUAL)
    assert isinstance(judged([windows[1], *windows]), Clear)


@pytest.mark.parametrize(("usage", "is_found"), [(0.50, True), (0.44, False)])
def test_an_engine_that_holds_more_for_each_request(usage: float, is_found: bool) -> None:
    judgement = judged(fleet((20, 600.0, 2400.0, usage), USUAL, USUAL))
    assert isinstance(judgement, Finding if is_found else Clear)
    if isinstance(judgement, Finding):
        assert judgement.evidence["own_held"] == pytest.approx(usage / 20)


@pytest.mark.parametrize(
    "own",
    [
        (60, 900.0, 3600.0, 0.90),  # three times the requests
        (20, 300.0, 2400.0, 0.60),  # another mix of prompts and answers
        (8, 120.0, 480.0, 0.30),  # far fewer requests
    ],
)
def test_a_router_that_sends_other_work_is_no_fault(own: Numbers) -> None:
    assert isinstance(judged(fleet(own, USUAL, USUAL)), Clear)


def test_pinned_sessions_show_in_the_hit_rate() -> None:
    windows = fleet((20, 300.0, 1200.0, 0.30), USUAL, USUAL)
    assert isinstance(judged(windows), Finding)
    for window, rate in zip(windows, (0.9, 0.4, 0.4), strict=True):
        latest = [stats._replace(prefix_hit_rate=rate) for stats in window.recent]
        window.recent.clear()
        window.recent.extend(latest)
    assert isinstance(judged(windows), Clear)


def test_siblings_that_differ_among_themselves_are_no_yardstick() -> None:
    others = [(20, 600.0 * f, 2400.0 * f, 0.30) for f in (1.0, 0.75, 1.25)]
    assert isinstance(judged(fleet((20, 360.0, 1440.0, 0.30), *others)), Clear)


@pytest.mark.parametrize(
    "windows",
    [
        fleet((20, 300.0, 1200.0, 0.30)),
        fleet((20, 300.0, 1200.0, 0.30), USUAL, pids=(1, 2)),  # another server
    ],
)
def test_without_siblings_there_is_nothing_to_compare(windows: list[Window]) -> None:
    assert isinstance(judged(windows), NoEvidence)


@pytest.mark.parametrize(
    "windows", [fleet((0, 0.0, 0.0, 0.0), USUAL), fleet(USUAL, (0, 0.0, 0.0, 0.0)), fleet(USUAL, USUAL, records=130)]
)
def test_too_little_to_do_is_no_verdict(windows: list[Window]) -> None:
    assert isinstance(judged(windows), Abstained)


def test_it_looks_once_a_span() -> None:
    windows = fleet((20, 300.0, 1200.0, 0.30), USUAL)
    skew = make(Params())
    assert isinstance(skew.judge(windows[0], START_S + 1199), NoEvidence)
    assert isinstance(skew.judge(windows[0], START_S + 1200), Finding)
    for window in windows:
        window.recent.clear()
    assert isinstance(skew.judge(windows[0], START_S + 1799), Finding)
    assert isinstance(skew.judge(windows[0], START_S + 1800), Abstained)


def test_engines_of_a_source_see_each_other_while_they_live() -> None:
    pipeline = Pipeline("vllm.log", Ids(), [])
    pipeline.take([record(0, index=0), record(0, index=1)])
    first, second = [track.window for track in pipeline.tracks()]
    assert first.peers is second.peers
    assert list(first.peers.values()) == [first, second]
    pipeline.take([Event(START_S + 20, EventKind.BANNER, 1), record(60, pid=2)])
    (alone,) = [track.window for track in pipeline.tracks()]
    assert list(alone.peers.values()) == [alone]


def test_it_can_be_written_down() -> None:
    skew = make(Params())
    skew.judge(fleet(USUAL, USUAL)[0], START_S + 1200)
    assert pickle.loads(pickle.dumps(skew)).__dict__ == skew.__dict__
