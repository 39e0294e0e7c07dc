import pickle

import pytest

from kvlogd.kinds.recompute import CALM_KEPT, NAME, SCOPES, SPAN, Params, Recompute, make
from kvlogd.model import Abstained, Clear, Event, EventKind, Finding, Judgement, NoEvidence, Per, Run, Stats
from kvlogd.window import Window
from tests.lines import START_S, record, run_of

SIZED = run_of()._replace(blocks=4096)


def records(
    n: int,
    *,
    start_s: float = 0.0,
    every_s: float = 10.0,
    running: int = 8,
    usage: float = 0.8,
    generation_tps: float = 240.0,
    prompt_tps: float = 0.0,
    evicts: bool = False,
    preemptions: int | None = None,
) -> list[Stats]:
    """Return records; where it `evicts`, one request goes to and fro between running and waiting."""
    out = []
    for i in range(n):
        back = evicts and i // 2 % 2 == 0
        stats = record(
            start_s + i * every_s,
            running=running - back,
            waiting=int(back),
            prompt_tps=prompt_tps,
            generation_tps=generation_tps,
            kv_usage=usage,
        )
        out.append(stats._replace(preemptions=preemptions))
    return out


CALM = records(60)


def judged(stats_of: list[Stats], run: Run = SIZED, warnings: list[float] | None = None) -> tuple[Recompute, Judgement]:
    """Return the last judgement where the rule is asked after each record, with V0's warnings in between."""
    recompute, window = make(Params()), Window(run)
    judgement: Judgement = NoEvidence()
    waiting = sorted(warnings or [])
    for stats in stats_of:
        while waiting and START_S + waiting[0] <= stats.ts_s:
            at_s = START_S + waiting.pop(0)
            window.event(Event(at_s, EventKind.PREEMPTION), at_s)
        window.observe(stats)
        judgement = recompute.judge(window, stats.ts_s)
    return recompute, judgement


def test_it_judges_engines_only() -> None:
    assert NAME == "recompute"
    assert set(SCOPES) == {Per.ENGINE}


# --- evictions that are counted


@pytest.mark.parametrize(("each", "is_found"), [(1, False), (2, False), (20, True)])
def test_counted_evictions_count_by_what_they_cost(each: int, is_found: bool) -> None:
    # a request holds 0.95 * 65,536 / 60 = 1,038 tokens; 1,400 tokens a second are all the work
    storm = records(
        30, start_s=600, running=60, usage=0.95, generation_tps=1100, prompt_tps=300, evicts=True, preemptions=each
    )
    _, judgement = judged([*CALM, *storm])
    assert isinstance(judgement, Finding) is is_found
    if isinstance(judgement, Finding):
        again = 2.0 * 1038  # two a second
        assert judgement.evidence["lost_work"] == pytest.approx(again / (again + 1400), rel=0.1)
        assert judgement.value == judgement.evidence["lost_work"]


@pytest.mark.parametrize(("usage", "is_found"), [(0.95, True), (0.8, False)])
def test_only_near_a_full_pool(usage: float, is_found: bool) -> None:
    _, judgement = judged([*CALM, *records(30, start_s=600, running=60, usage=usage, evicts=True, preemptions=20)])
    assert isinstance(judgement, Finding) is is_found


@pytest.mark.parametrize(("every_s", "is_found"), [(20.0, True), (400.0, False)])
def test_a_warning_of_v0_stands_for_fifty(every_s: float, is_found: bool) -> None:
    storm = records(60, start_s=600, running=90, usage=0.99, generation_tps=3100, prompt_tps=700)
    warnings = [600 + every_s * i for i in range(1, int(600 / every_s))]
    _, judgement = judged([*CALM, *storm], SIZED, warnings)
    assert isinstance(judgement, Finding) is is_found
    if isinstance(judgement, Finding):
        assert judgement.evidence["evictions_per_min"] == pytest.approx(150, rel=0.15)


@pytest.mark.parametrize(("each", "is_found"), [(1, False), (4, True)])
def test_without_the_pool_s_size_each_running_request_must_have_been_evicted_once(each: int, is_found: bool) -> None:
    storm = records(40, start_s=600, running=60, usage=0.95, generation_tps=1100, evicts=True, preemptions=each)
    _, judgement = judged([*CALM, *storm], run_of())
    assert isinstance(judgement, Finding) is is_found
    if isinstance(judgement, Finding):
        assert judgement.value is None


# --- evictions that are inferred


@pytest.mark.parametrize(("generation_tps", "is_found"), [(40.0, True), (90.0, True), (115.0, False), (240.0, False)])
def test_a_full_pool_that_flows_keeps_its_speed(generation_tps: float, is_found: bool) -> None:
    storm = records(24, start_s=600, usage=0.95, generation_tps=generation_tps, evicts=True)
    _, judgement = judged([*CALM, *storm], run_of())
    assert isinstance(judgement, Finding) is is_found
    if isinstance(judgement, Finding):
        assert judgement.since_s >= START_S + 590
        assert judgement.evidence["lost_work"] == pytest.approx(1 - generation_tps / 225, abs=0.05)


@pytest.mark.parametrize(
    "storm",
    [
        records(24, start_s=600, usage=0.5, generation_tps=40, evicts=True),  # the pool has room
        records(24, start_s=600, usage=0.95, generation_tps=40),  # nothing goes back
        records(24, start_s=600, usage=0.95, generation_tps=40, prompt_tps=3000, evicts=True),  # prompts explain it
    ],
)
def test_a_slow_engine_for_another_reason(storm: list[Stats]) -> None:
    assert isinstance(judged([*CALM, *storm], run_of())[1], Clear)


def test_an_engine_with_more_running_generates_no_less() -> None:
    storm = records(24, start_s=600, running=20, usage=0.95, generation_tps=90, evicts=True)
    assert isinstance(judged([*CALM, *storm], run_of())[1], Finding)


def test_without_a_calm_past_nothing_can_be_said() -> None:
    assert isinstance(judged(records(60, usage=0.95, generation_tps=40, evicts=True), run_of())[1], Abstained)


def test_it_ends_with_the_storm() -> None:
    storm = records(24, start_s=600, usage=0.95, generation_tps=40, evicts=True)
    assert isinstance(judged([*CALM, *storm, *records(20, start_s=840)], run_of())[1], Clear)


def test_an_engine_that_idles_each_minute_has_a_calm_past_too() -> None:
    """Its blocks end idle: what it did before is learned from all the same."""
    window, evaluator = Window(SIZED), make(Params())
    for i in range(360):
        stats = Stats(10.0 * i, 1, 0, None, 300.0, 200.0, 8, 0, 0.5)
        window.observe(
            stats if i % 6 < 5 else stats._replace(prompt_tps=0.0, generation_tps=0.0, running=0, kv_usage=0.0)
        )
        if i % 6 == 5:
            evaluator.judge(window, 10.0 * i)
    verdict: Judgement = NoEvidence()
    for i in range(360, 420):
        calm = i % 2
        window.observe(Stats(10.0 * i, 1, 0, None, 300.0, 50.0, 8 if calm else 6, 1 if calm else 3, 0.97))
        verdict = evaluator.judge(window, 10.0 * i)
    assert isinstance(verdict, Finding)


def test_its_memory_is_bounded_and_can_be_written_down() -> None:
    many = [record(60.0 * i, running=1 + i % 200, generation_tps=9.0, kv_usage=0.9) for i in range(2000)]
    recompute, _ = judged(many)
    assert len(recompute._latest) <= SPAN
    assert len(recompute._calm) <= 45
    assert max(len(kept) for kept in recompute._calm.values()) <= CALM_KEPT
    again = pickle.loads(pickle.dumps(recompute))
    assert again._usual == recompute._usual
