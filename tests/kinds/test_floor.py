"""`floor`: an idle residue that climbs or lasts fires; leases, the null block and delayed frees do not."""

import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlogd.kinds import floor
from kvlogd.model import Abstained, Clear, Finding, Judgement, NoEvidence, Run, Stats
from kvlogd.spells import Spell, Spells
from kvlogd.window import Window


def judged(
    spells: Sequence[tuple[float, float]], *, connector: bool | None = None, generated: float = 0.0
) -> Judgement:
    """Return the verdict after idle spells (time, usage), each after some work."""
    window = Window(Run(1, 1, 1, 0.0, True, kv_tokens=16_000, blocks=1000))
    window.run = window.run._replace(kv_connector=connector)
    evaluator = floor.make(floor.Params())
    verdict: Judgement = NoEvidence()
    for at_s, usage in spells:
        for stats in (
            Stats(at_s - 10.0, None, 0, None, 900.0, 90.0, 4, 0, 0.3),
            Stats(at_s, None, 0, None, 0.0, generated, 0, 0, usage),
        ):
            window.observe(stats)
            verdict = evaluator.judge(window, stats.ts_s)
    return verdict


def every(step_s: float, usages: Sequence[float]) -> list[tuple[float, float]]:
    return [((i + 1) * step_s, usage) for i, usage in enumerate(usages)]


CLIMB = [0.0, 0.0, 0.03, 0.05, 0.07]


def test_a_floor_that_climbs_fires_after_three_spells() -> None:
    verdict = judged(every(150, CLIMB))
    assert isinstance(verdict, Finding)
    assert verdict.since_s == 450
    assert verdict.value == pytest.approx(0.07)
    assert verdict.evidence["blocks_held"] == 70
    assert verdict.evidence["tokens_held"] == 1120


def test_an_engine_that_idles_but_for_moments_is_seen_too() -> None:
    assert isinstance(judged(every(150, CLIMB), generated=12.0), Finding)


@pytest.mark.parametrize(("step_s", "fires"), [(110, False), (125, True)])
def test_a_climb_must_last_four_minutes(step_s: float, fires: bool) -> None:
    assert isinstance(judged(every(step_s, CLIMB)), Finding) is fires


@pytest.mark.parametrize(("step_s", "fires"), [(320, False), (335, True)])
def test_a_rise_that_does_not_climb_must_outlast_a_lease(step_s: float, fires: bool) -> None:
    assert isinstance(judged(every(step_s, [0.0, 0.0, 0.03, 0.03, 0.03])), Finding) is fires


@pytest.mark.parametrize("usage", [0.001, 0.004])
def test_a_null_block_or_less_than_half_a_point_is_clear(usage: float) -> None:
    assert isinstance(judged(every(400, [usage] * 20)), Clear)
    assert isinstance(judged(every(400, [0.0, 0.0, *[usage] * 20])), Clear)


def test_where_a_connector_leases_blocks_more_must_be_held_than_came_within_a_lease() -> None:
    # 990 tokens a record come with 16,000 in the pool: what a lease can hold
    assert isinstance(judged(every(150, CLIMB), connector=True), Abstained)
    assert isinstance(judged(every(400, CLIMB), connector=True), Abstained)
    assert isinstance(judged(every(700, [0.0, 0.0, 0.5, 0.7, 0.9]), connector=True), Finding)


@pytest.mark.parametrize(("step_s", "fires"), [(45, False), (65, True)])
def test_where_no_connector_is_there_two_spells_a_minute_apart_are_enough(step_s: float, fires: bool) -> None:
    spells = every(step_s, [0.0, 0.0, 0.0, 0.0, 0.008, 0.008])
    assert isinstance(judged(spells, connector=False), Finding) is fires
    assert isinstance(judged(spells), Abstained)


@pytest.mark.parametrize(("usage", "fires"), [(0.009, False), (0.011, True)])
def test_where_no_connector_is_there_one_spell_of_two_records_is_enough_for_a_point(usage: float, fires: bool) -> None:
    window = Window(Run(1, 1, 1, 0.0, True, kv_tokens=16_000, blocks=1000))
    window.run, window.interval_s = window.run._replace(kv_connector=False), 10.0
    evaluator = floor.make(floor.Params())
    verdicts = []
    for at_s, running, held in (
        (0, 0, 0.0),
        (100, 4, 0.3),
        (200, 0, 0.0),
        (300, 4, 0.3),
        (400, 0, usage),
        (410, 0, usage),
    ):
        window.observe(Stats(at_s, None, 0, None, 0.0, 90.0 * running, running, 0, held))
        verdicts.append(isinstance(evaluator.judge(window, at_s), Finding))
    assert verdicts == [*[False] * 5, fires]


def test_where_no_connector_is_there_an_unsure_floor_still_asks_for_a_climb() -> None:
    assert isinstance(judged(every(400, [0.034, 0.044, 0.062, 0.070]), connector=False), Finding)
    assert isinstance(judged(every(400, [0.034, 0.044, 0.044, 0.044]), connector=False), Abstained)


@pytest.mark.parametrize(("usages", "fires"), [([0.0, 0.007, 0.009, 0.085], True), ([0.0, 0.007, 0.008, 0.085], False)])
def test_a_climb_of_two_printed_digits_counts_whatever_their_sum_as_floats(
    usages: Sequence[float], fires: bool
) -> None:
    assert isinstance(judged(every(400, usages), connector=False), Finding) is fires


def lost_before(
    idle: Sequence[float],
    *,
    at_work: float = 0.02,
    busy: float = 0.2,
    connector: bool | None = False,
    step_s: float = 400.0,
    later: Mapping[int, float] = MappingProxyType({}),
) -> Judgement:
    """Return the verdict on an engine that idles first after blocks were lost; it worked with less before.

    `later`: its usage at work before the idle spell of a number.
    """
    window = Window(Run(1, 1, 1, 0.0, True, kv_tokens=16_000, blocks=1000, kv_connector=connector))
    evaluator = floor.make(floor.Params())
    for i in range(30):
        window.observe(Stats(10.0 * i, None, 0, None, 900.0, 90.0, 5, 0, at_work if i < 10 else busy))
    verdict: Judgement = NoEvidence()
    for n, usage in enumerate(idle, 1):
        at_s = 300.0 + n * step_s
        for i in range(10):
            window.observe(Stats(at_s - 110.0 + 10.0 * i, None, 0, None, 900.0, 90.0, 5, 0, later.get(n, busy)))
        window.observe(Stats(at_s, None, 0, None, 0.0, 0.0, 0, 0, usage))
        verdict = evaluator.judge(window, at_s)
    return verdict


@pytest.mark.parametrize(
    ("idle", "fires"),
    [
        ([0.15, 0.15], False),
        ([0.15, 0.15, 0.15], True),
        ([0.15, 0.16, 0.15], False),
        ([0.06, 0.06, 0.06, 0.06, 0.06], False),
        ([0.06, 0.06, 0.06, 0.06, 0.06, 0.06], True),
        ([0.024] * 20, False),
    ],
)
def test_an_engine_that_once_worked_with_less_than_it_ever_holds_idle_has_lost_it(
    idle: Sequence[float], fires: bool
) -> None:
    verdict = lost_before(idle)
    assert isinstance(verdict, Finding) is fires
    if isinstance(verdict, Finding):
        assert verdict.evidence["busy_usage"] == 0.02
        assert verdict.evidence["lowest_idle_usage"] == idle[0]
        assert verdict.evidence["blocks_held"] == round(1000 * (idle[-1] - 0.02))


def test_it_works_with_less_again_and_nothing_was_lost() -> None:
    verdict = lost_before([0.15] * 12, later={9: 0.02})
    assert isinstance(verdict, Clear)


def test_a_residue_from_before_the_first_spell_that_moves_is_not_called_healthy() -> None:
    assert isinstance(lost_before([0.15] * 6 + [0.16, 0.15]), Abstained)


def test_what_was_lost_before_the_log_makes_the_requests_no_larger() -> None:
    assert isinstance(lost_before([0.42] * 3, at_work=0.35, busy=0.45), Finding)


def test_what_every_record_has_in_use_is_a_floor_of_its_own() -> None:
    assert not isinstance(lost_before([0.15] * 20, at_work=0.15), Finding)


def test_what_was_lost_before_the_first_spell_may_be_leased_where_a_connector_is_not_ruled_out() -> None:
    assert not isinstance(lost_before([0.15] * 20, connector=None), Finding)
    assert not isinstance(lost_before([0.15] * 20, connector=True), Finding)


@pytest.mark.parametrize(("step_s", "fires"), [(320, False), (335, True)])
def test_what_was_lost_before_the_first_spell_must_last(step_s: float, fires: bool) -> None:
    assert isinstance(lost_before([0.15, 0.15, 0.15], step_s=step_s), Finding) is fires


def test_blocks_that_came_back_once_are_held_by_something_else_than_a_leak() -> None:
    assert not isinstance(judged(every(100, [0.0, 0.0, 0.03, 0.0, 0.03, 0.03]), connector=False), Finding)


def test_a_lease_that_expires_is_clear() -> None:
    assert isinstance(judged(every(150, [0.0, 0.0, 0.03, 0.05, 0.0])), Clear)


def test_a_floor_seen_but_once_asks_for_more_spells() -> None:
    assert isinstance(judged(every(400, [0.034, 0.044, 0.062, 0.070])), Abstained)
    assert isinstance(judged(every(400, [0.034, *[0.044 + 0.01 * i for i in range(6)]])), Finding)


def test_delayed_frees_that_follow_the_day_do_not_fire() -> None:
    rng = random.Random(3)
    night = [rng.uniform(0.0, 0.05) for _ in range(100)]
    day = [rng.uniform(0.2, 0.4) for _ in range(100)]
    assert not isinstance(judged(every(300, [0.0, *night, *day])), Finding)


def test_a_leak_on_an_engine_with_delayed_frees_fires_after_a_day() -> None:
    rng = random.Random(3)
    usages = [rng.uniform(0.0, 0.05) for _ in range(300)] + [rng.uniform(0.2, 0.25) for _ in range(300)]
    assert isinstance(judged(every(300, [0.0, *usages])), Finding)


def test_too_little_evidence_abstains_and_says_so() -> None:
    verdict = judged(every(100, [0.3]))
    assert isinstance(verdict, Abstained)
    assert "idle" in verdict.why


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.floats(0, 1), st.floats(0, 99)), max_size=60))
def test_no_input_raises_and_a_floor_that_never_rises_never_fires(rows: list[tuple[int, int, float, float]]) -> None:
    window = Window(Run(1, 1, 1, 0.0, False))
    evaluator = floor.make(floor.Params())
    lowest = 1.0
    for i, (running, waiting, usage, generated) in enumerate(rows):
        window.observe(Stats(i * 400.0, None, None, None, 0.0, generated, running, waiting, usage))
        verdict = evaluator.judge(window, i * 400.0)
        if not running and not waiting:
            lowest = min(lowest, usage)
            if usage <= lowest:
                assert not isinstance(verdict, Finding)


def test_how_fast_is_counted_from_when_the_floor_was_last_seen() -> None:
    window = Window(Run(1, 1, 1, 0.0, True, kv_tokens=16_000, blocks=1000))
    window.run, window.interval_s = window.run._replace(kv_connector=False), 10.0
    evaluator = floor.make(floor.Params())
    verdict: Judgement = NoEvidence()
    for at_s, running, held in (
        (0, 0, 0.0),
        (100, 4, 0.3),
        (200, 0, 0.0),
        (3600, 4, 0.3),
        (3790, 0, 0.02),
        (3800, 0, 0.02),
    ):
        window.observe(Stats(at_s, None, 0, None, 0.0, 90.0 * running, running, 0, held))
        verdict = evaluator.judge(window, at_s)
    assert isinstance(verdict, Finding)
    assert verdict.evidence["lost_per_h"] == pytest.approx(0.02)


def test_what_another_cache_had_of_the_prompts_is_leased_too() -> None:
    window = Window(Run(1, 1, 1, 0.0, True, kv_tokens=16_000))
    window.run, window.interval_s = window.run._replace(kv_connector=True), 10.0
    spells, raised = Spells(), [Spell(700.0, 700.0, 0.5)]
    spells.lowest = 0.0
    window.observe(Stats(690.0, None, 0, None, 700.0, 0.0, 4, 0, 0.3))
    assert floor.outgrows_leases(window, spells, raised)
    window.observe(Stats(695.0, None, 0, None, 70.0, 0.0, 4, 0, 0.3, external_prefix_hit_rate=0.8))
    assert not floor.outgrows_leases(window, spells, raised)
