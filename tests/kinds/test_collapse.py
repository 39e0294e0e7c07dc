import pickle
from typing import Any

import pytest

from kvlogd.kinds.collapse import KEPT, NAME, SCOPES, Collapse, Params, make
from kvlogd.model import Abstained, Clear, Event, EventKind, Finding, Judgement, NoEvidence, Per, Run, Stats
from kvlogd.window import Window
from tests.lines import START_S, record, run_of


def records(
    n: int,
    rate: float | None,
    step: float = 0.0,
    *,
    start_s: float = 0.0,
    running: int = 8,
    prompt_tps: float = 1000.0,
    generation_tps: float = 250.0,
    usage: float = 0.1,
) -> list[Stats]:
    """Return records every 20 s whose hit rate moves by a step."""
    return [
        record(
            start_s + 20.0 * i,
            running=running,
            prompt_tps=prompt_tps,
            generation_tps=generation_tps,
            kv_usage=usage,
        )._replace(prefix_hit_rate=None if rate is None else rate + i * step)
        for i in range(n)
    ]


USUAL = records(120, 0.7)
"""40 min."""


def judged(stats_of: list[Stats], run: Run | None = None, reset_s: float | None = None) -> tuple[Collapse, Judgement]:
    collapse, window = make(Params()), Window(run or run_of())
    judgement: Judgement = NoEvidence()
    for stats in stats_of:
        if reset_s is not None and stats.ts_s >= START_S + reset_s:
            window.event(Event(stats.ts_s, EventKind.RESET_OK), stats.ts_s)
            reset_s = None
        window.observe(stats)
        judgement = collapse.judge(window, stats.ts_s)
    return collapse, judgement


def low(n: int = 36, rate: float = 0.3, **more: Any) -> list[Stats]:
    return records(n, rate, start_s=2400.0, **more)


def test_it_judges_engines_only() -> None:
    assert NAME == "collapse"
    assert set(SCOPES) == {Per.ENGINE}


@pytest.mark.parametrize(("rate", "is_found"), [(0.0, True), (0.48, True), (0.50, False), (0.69, False)])
def test_it_must_fall_by_a_third(rate: float, is_found: bool) -> None:
    _, judgement = judged([*USUAL, *low(rate=rate)])
    assert isinstance(judgement, Finding) is is_found
    if isinstance(judgement, Finding):
        assert judgement.value == rate
        assert judgement.evidence["usual_hit_rate"] == pytest.approx(0.7)
        assert judgement.since_s <= START_S + 2400


@pytest.mark.parametrize(("n", "is_found"), [(30, False), (36, True)])
def test_it_must_last_ten_minutes(n: int, is_found: bool) -> None:
    assert isinstance(judged([*USUAL, *low(n)])[1], Finding) is is_found


@pytest.mark.parametrize(
    "more",
    [
        {"running": 20},  # more requests
        {"generation_tps": 400.0, "prompt_tps": 1600.0},  # more tokens
        {"usage": 0.9},  # a fuller pool
        {"running": 2},  # next to nothing to do
        {"prompt_tps": 500.0},  # shorter prompts
    ],
)
def test_another_load_explains_it(more: dict[str, Any]) -> None:
    assert isinstance(judged([*USUAL, *low(**more)])[1], Clear)


def test_requests_held_back_are_load_too() -> None:
    held = [stats._replace(waiting=90, deferred=90) for stats in low(running=2)]
    assert isinstance(judged([*USUAL, *held])[1], Finding)


@pytest.mark.parametrize(
    ("version", "prompt_tps", "is_found"),
    [
        (None, 1000.0, True),
        ("0.15.1", 1000.0, True),
        ("0.16.0", 1000.0, False),
        ("0.16.0", 2000.0, True),
        ("1.0", 1000.0, False),
    ],
)
def test_where_only_computed_prompts_count_misses_must_show(
    version: str | None, prompt_tps: float, is_found: bool
) -> None:
    run = run_of()._replace(vllm_version=version)
    assert isinstance(judged([*USUAL, *low(prompt_tps=prompt_tps)], run)[1], Finding) is is_found


def test_what_it_was_before_is_no_collapse() -> None:
    night = records(60, 0.3, start_s=2400.0, running=2)
    day = records(120, 0.7, start_s=3600.0)
    again = records(60, 0.3, start_s=6000.0)
    assert isinstance(judged([*USUAL, *night, *day, *again])[1], Clear)
    assert isinstance(judged([*USUAL, *night, *day, *records(60, 0.1, start_s=6000.0)])[1], Finding)


def test_a_rate_that_never_lasted_is_no_yardstick() -> None:
    falling = records(180, 0.95, -0.004)
    assert isinstance(judged([*falling, *records(40, 0.2, start_s=3600.0)])[1], Abstained)


def test_a_young_run_has_no_past() -> None:
    assert isinstance(judged([*records(10, 0.7), *records(30, 0.1, start_s=200.0)])[1], Abstained)


def test_a_reset_of_the_cache_begins_anew() -> None:
    assert isinstance(judged([*USUAL, *low()], reset_s=2400.0)[1], Abstained)


def test_no_hit_rate_means_no_judgement() -> None:
    assert isinstance(judged(records(200, None))[1], NoEvidence)


def test_it_stays_found_until_the_rate_is_back() -> None:
    fallen = [*USUAL, *low(300, rate=0.2)]
    assert isinstance(judged(fallen)[1], Finding)
    assert isinstance(judged([*fallen, *records(20, 0.55, start_s=9000.0)])[1], Finding)
    assert isinstance(judged([*fallen, *records(20, 0.65, start_s=9000.0)])[1], Clear)


def test_its_memory_is_bounded_and_can_be_written_down() -> None:
    collapse, _ = judged(records(4000, 0.7))
    assert len(collapse._blocks) <= KEPT
    assert len(collapse._latest) < 20
    again = pickle.loads(pickle.dumps(collapse))
    assert again._blocks == collapse._blocks


def test_a_dip_is_remembered_however_old_the_run_is() -> None:
    dip = records(30, 0.3, start_s=2400.0)
    later = records(3000, 0.7, start_s=3000.0)
    collapse, _ = judged([*USUAL, *dip, *later])
    assert min(block.lowest for block in collapse._blocks) == 0.3


def test_an_old_run_is_looked_at_each_two_minutes() -> None:
    rests = [judged(records(n, 0.7))[0].rest_s for n in (600, 2000)]
    assert rests == [60.0, 120.0]


def test_without_a_prefix_cache_nothing_is_kept() -> None:
    evaluator, verdict = judged(records(2000, rate=0.0))
    assert isinstance(verdict, Clear)
    assert not evaluator._blocks
