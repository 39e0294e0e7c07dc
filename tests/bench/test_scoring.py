"""What a page is worth, on streams whose truth is made by hand."""

import math
from collections.abc import Sequence

import pytest

from bench.intervals import median_bounds, poisson_at_most, proportion, quantile, rate
from bench.rivals import Line, State, held, restarted, silent, trending
from bench.scoring import Page, Question, Score, episodes, idle_share, score, truth_of
from bench.traces.labels import Stream, Tick, TraceClass
from tests.bench.streams import QUIET, stream_of

HOUR = 360
"""Ticks."""


def leaking(by_tick: Sequence[int], life: int = 0) -> list[Tick]:
    return [QUIET._replace(leaked_blocks=blocks, life=life) for blocks in by_tick]


def scored(question: Question, stream: Stream, *at_s: float) -> Score:
    return score(truth_of(question, stream), [Page(one, one + 60) for one in at_s])


LEAK = stream_of(leaking([0] * HOUR + list(range(1, 101)) + [100] * HOUR))
"""An hour of nothing, then 10 % lost within 1000 s."""


def test_a_page_after_the_first_lost_block_is_right_with_its_delay_and_loss() -> None:
    got = scored(Question.LEAK, LEAK, 3600 + 500.0)
    assert got.positive is True
    assert (got.hit_s, got.delay_s, got.loss) == (4100.0, 490.0, 0.05)
    assert got.false_at_s == []
    assert got.clean_s == 3600


def test_a_page_before_it_is_false_and_finds_nothing() -> None:
    got = scored(Question.LEAK, LEAK, 1800.0)
    assert got.positive is True
    assert got.hit_s is None
    assert got.false_at_s == [1800.0]


def test_a_stream_that_hardly_leaks_counts_neither_way() -> None:
    got = scored(Question.LEAK, stream_of(leaking([0] * 100 + [30] * 100)), 500.0, 1500.0)
    assert got == Score(None, None, None, None, (), 0.0)
    assert scored(Question.LEAK, stream_of(leaking([0] * 100 + [9] * 100))).positive is False
    assert scored(Question.LEAK, stream_of(leaking([0] * 100 + [50] * 100))).positive is True


def test_a_leak_that_no_line_shows_counts_neither_way() -> None:
    hidden = [tick._replace(printed=False) for tick in leaking([50] * 100)]
    unseen = stream_of([*leaking([0] * 100), *hidden])
    assert scored(Question.LEAK, unseen).positive is None
    assert scored(Question.LEAK, stream_of([*unseen.ticks, *leaking([50])])).positive is True


def test_a_restart_makes_the_engine_clean_again_but_the_worst_loss_stays() -> None:
    down = [QUIET._replace(up=False, printed=False, life=0)] * 10
    second = leaking([0] * 100 + [20] * 100, life=1)
    stream = stream_of([*leaking([0] * 100 + [600] * 100), *down, *second])
    assert scored(Question.LEAK, stream, 2500.0).false_at_s == [2500.0]
    got = scored(Question.LEAK, stream, 3500.0)
    assert (got.delay_s, got.loss, got.clean_s) == (390.0, 0.6, 2000.0)


def test_pages_within_six_hours_of_each_other_are_one() -> None:
    quiet = stream_of([QUIET] * 24 * HOUR)
    apart = 6 * 3600.0 + 61
    assert len(scored(Question.LEAK, quiet, 100.0, 5000.0, 20000.0).false_at_s) == 1
    assert len(scored(Question.LEAK, quiet, 100.0, 100.0 + apart).false_at_s) == 2
    assert episodes([Page(0, 9e9), Page(5, 6), Page(8e9, 8e9)]) == [Page(0, 9e9)]


def creeping(*factors: float, ends: bool = True) -> list[Tick]:
    """Return a life of an hour for each of the worst factors, restarted after each."""
    ticks: list[Tick] = []
    for life, worst in enumerate(factors):
        ticks += [QUIET._replace(life=life, creep_factor=1 + (worst - 1) * n / HOUR) for n in range(HOUR + 1)]
        ticks += [QUIET._replace(life=life, up=False, printed=False)] * 6
    return ticks if ends else ticks[:-6]


@pytest.mark.parametrize(("worst", "positive"), [(1.04, False), (1.10, None), (1.2, True)])
def test_creep_counts_from_fifteen_per_cent_on(worst: float, positive: bool | None) -> None:
    assert scored(Question.LATENCY_CREEP, stream_of(creeping(worst))).positive is positive


def test_a_page_on_creep_is_right_once_steps_are_five_per_cent_slower() -> None:
    stream = stream_of(creeping(1.2))
    assert scored(Question.LATENCY_CREEP, stream, 500.0).false_at_s == [500.0]
    got = scored(Question.LATENCY_CREEP, stream, 1800.0)
    assert got.loss == pytest.approx(0.0994, abs=1e-3)
    assert got.delay_s is not None
    assert 0 < got.delay_s < 1000


@pytest.mark.parametrize(
    ("factors", "ends", "positive"),
    [
        ((1.2, 1.2), True, True),
        ((1.2, 1.0, 1.2), True, True),
        ((1.2, 1.2), False, None),
        ((1.2, 1.0), True, None),
        ((1.0, 1.0, 1.0), True, False),
    ],
)
def test_restart_recovery_needs_two_bad_lives_that_a_restart_ended(
    factors: tuple[float, ...], ends: bool, positive: bool | None
) -> None:
    stream = stream_of(creeping(*factors, ends=ends))
    assert scored(Question.RESTART_RECOVERY, stream).positive is positive


def test_restart_recovery_is_false_before_the_first_bad_life_has_ended() -> None:
    stream = stream_of(creeping(1.2, 1.2))
    assert scored(Question.RESTART_RECOVERY, stream, 3000.0).false_at_s == [3000.0]
    assert scored(Question.RESTART_RECOVERY, stream, 5000.0).hit_s == 5000.0


def hanging(running: int) -> Stream:
    busy = QUIET._replace(running=running, generation_tps=10.0)
    hung = QUIET._replace(running=running, hung=True, stuck=running > 0, printed=False)
    return stream_of([*[busy] * 60, hung._replace(printed=running > 0), *[hung] * 60], TraceClass.HANG)


def test_a_hang_with_requests_must_be_found() -> None:
    got = scored(Question.ENGINE_STALL, hanging(3), 800.0)
    assert got.positive is True
    assert got.hit_s == 800.0
    assert scored(Question.ENGINE_STALL, hanging(3), 300.0).false_at_s == [300.0]


def test_a_hang_of_an_idle_engine_counts_neither_way() -> None:
    assert scored(Question.ENGINE_STALL, hanging(0)).positive is None


def test_a_pool_that_starves_its_queue_excuses_a_stall() -> None:
    stuck = [QUIET._replace(waiting=3, stuck=True, printed=False)] * 12
    stream = stream_of([*[QUIET] * 60, *stuck, *[QUIET] * 200])
    assert scored(Question.ENGINE_STALL, stream, 650.0).false_at_s == []
    assert scored(Question.ENGINE_STALL, stream, 2000.0).false_at_s == [2000.0]
    blink = stream_of([*[QUIET] * 60, *stuck[:3], *[QUIET] * 200])
    assert scored(Question.ENGINE_STALL, blink, 630.0).false_at_s == [630.0]


def test_idle_lines_are_counted_among_those_that_were_printed() -> None:
    busy = QUIET._replace(running=1)
    assert idle_share(stream_of([QUIET, busy, busy, busy, QUIET._replace(printed=False)])) == 0.25


def test_intervals_are_those_of_the_books() -> None:
    assert proportion(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert proportion(0, 0) == (0.0, 1.0)
    assert rate(0, 100) == pytest.approx((0.0, 0.036889), abs=1e-5)
    assert rate(11, 545) == pytest.approx((5.4912 / 545, 19.6820 / 545), abs=1e-5)
    assert rate(1, 0) == (0.0, math.inf)
    assert poisson_at_most(2, 1.0) == pytest.approx(2.5 / math.e)


@pytest.mark.parametrize(("count", "low", "high"), [(6, 1, 6), (10, 2, 9), (28, 9, 20), (100, 40, 61)])
def test_a_median_lies_between_the_ranks_of_the_books(count: int, low: int, high: int) -> None:
    assert median_bounds(range(count, 0, -1)) == (low, high)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_few_values_do_not_bound_their_median(count: int) -> None:
    assert median_bounds([1.0] * count) == (-math.inf, math.inf)


def test_a_quantile_lies_between_its_neighbours() -> None:
    assert quantile([], 0.5) is None
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile([0, 10], 0.9) == 9


def test_an_expression_must_hold_for_its_time() -> None:
    states: list[State] = [(10.0 * n, 5 <= n < 20 or 30 <= n < 32) for n in range(40)]
    assert held(states, 60) == [Page(110.0, 200.0)]
    assert held([(0.0, True), (50.0, True)], 30) == [Page(50.0, 50.0)]


def test_a_line_is_that_of_least_squares() -> None:
    line = Line(3600)
    for minute in range(90):
        line.add(minute * 60.0, 0.1 + (0.2 if minute >= 30 else 0.9) * minute / 60)
    assert line.per_hour() == pytest.approx(0.2, abs=1e-6)
    assert line.in_(1.0) == pytest.approx(0.1 + 0.2 * (89 / 60 + 1), abs=1e-6)
    assert Line(3600).per_hour() is None


def test_mann_kendall_sees_a_trend_and_no_trend() -> None:
    rising = list(trending((600.0 * n, n + (-1) ** n * 5.0) for n in range(144)))
    assert rising[-1][1]
    assert not rising[40][1]
    assert not any(holds for _, holds in trending((600.0 * n, (n * 37 % 11) * 1.0) for n in range(144)))


def test_rivals_without_numbers_page_on_restarts_and_on_silence() -> None:
    stream = stream_of(creeping(1.2, 1.2, 1.2))
    assert len(restarted(stream)) == 1
    assert len(silent(stream_of([QUIET] * 10 + [QUIET._replace(printed=False)] * 40))) == 1
    assert silent(stream_of([QUIET] * 50)) == []
