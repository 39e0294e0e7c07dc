"""What may stand behind a shift beside a leak, each with what rules it out."""

from collections import deque

import pytest

from kvlogd.block import Block, batch_of, block_of
from kvlogd.curve import Shift, stretch_of
from kvlogd.gates import (
    Balance,
    came_and_went,
    came_at_once,
    granted,
    last_below,
    paid,
    payers,
    replaced,
    request_noise,
    settled,
    spread_of,
    sure,
    turnovers_at_least,
    unchanged,
)
from kvlogd.grain import Growth
from kvlogd.room import Tokens
from tests.crowd import closed_loop


def shift(mean: float, before: float, running: float) -> Shift:
    return Shift(mean, mean, mean, 0.01, mean, 0.01, mean, 1, running, running, before)


def exactly(tokens: float) -> Tokens:
    return Tokens(tokens, tokens)


def test_few_requests_make_more_noise_than_many() -> None:
    assert request_noise(shift(0.1, 0.1, 2), 3.0, 0.5) > request_noise(shift(0.1, 0.1, 20), 3.0, 0.5)
    assert request_noise(shift(0.1, 0.1, 2), 3.0, 0.5) > request_noise(shift(0.1, 0.1, 2), 300.0, 0.5)


@pytest.mark.parametrize(("mix", "spread"), [(9.0, 0.5), (0.0, 0.74), (-2.0, 1.23), (-9.0, 1.4), (None, 1.4)])
def test_what_answers_hold_spreads_further_than_what_prompts_do(mix: float | None, spread: float) -> None:
    usual = stretch_of([block_of(batch_of(list(closed_loop(60))), 10.0)], 1, short=True)
    assert spread_of(usual._replace(mix=mix), short=True) == pytest.approx(spread, abs=0.01)
    assert spread_of(usual._replace(mix=mix), short=False) == 0.5


USUAL = Balance(100.0, 1000.0, 3, 4.0, 2_000.0, 0.0)


NOW_S = 1e9


def bursts(*prompt_tokens: float) -> list[Balance]:
    """Return the balance of blocks, 100 s each, that have so many prompt tokens, and of as many usual ones before."""
    usual = [USUAL._replace(end_s=-100.0 * i) for i in range(len(prompt_tokens) + 3)]
    found = [USUAL._replace(end_s=100.0 * (i + 1), prompt_tokens=tokens) for i, tokens in enumerate(prompt_tokens)]
    return [*reversed(usual), *found]


def test_one_prompt_may_have_brought_what_is_missing() -> None:
    balance = bursts(2_000.0, 8_000.0, 2_000.0)  # 5,000 more than one and a half times the usual
    assert came_at_once(balance, 150.0, NOW_S, exactly(12_000), 100_000)
    assert not came_at_once(balance, 150.0, NOW_S, exactly(13_000), 100_000)
    assert not came_at_once(balance, 200.0, NOW_S, exactly(12_000), 100_000)
    assert came_at_once(balance, 150.0, NOW_S, Tokens(12_000, 50_000), 100_000)


def test_a_prompt_that_is_computed_at_once_shows_among_records_that_have_as_many_together() -> None:
    balance = [USUAL._replace(end_s=100.0 * (i + 1), burst_tokens=1_500.0 if i == 1 else 0.0) for i in range(5)]
    assert came_at_once(balance, 100.0, NOW_S, exactly(3_700), 25_000)
    assert not came_at_once(balance, 100.0, NOW_S, exactly(3_800), 25_000)
    assert not came_at_once(balance, 200.0, NOW_S, exactly(3_700), 25_000)


def test_several_prompts_may_have_brought_it_together_but_not_what_the_usual_ones_are() -> None:
    assert came_at_once(bursts(8_000.0, 2_000.0, 8_000.0), 0.0, NOW_S, exactly(24_000), 100_000)
    assert not came_at_once(bursts(8_000.0, 2_000.0, 8_000.0), 100.0, NOW_S, exactly(24_000), 100_000)
    assert not came_at_once(bursts(*[4_000.0] * 20), 0.0, NOW_S, exactly(24_000), 100_000)


def test_a_prompt_that_came_late_has_not_raised_what_was_there_before() -> None:
    balance = bursts(2_000.0, 8_000.0, 2_000.0)
    assert came_at_once(balance, 0.0, 200.0, exactly(12_000), 100_000)
    assert not came_at_once(balance, 0.0, 199.0, exactly(12_000), 100_000)
    # what it would have generated meanwhile still tells whether an earlier one runs on
    assert came_at_once(bursts(8_000.0, *[2_000.0] * 5), 0.0, 300.0, exactly(12_000), 100_000)
    assert not came_at_once(bursts(8_000.0, *[2_000.0] * 5), 0.0, 300.0, exactly(12_000), 4_000)


def test_a_prompt_whose_request_would_be_too_long_by_now_brought_nothing() -> None:
    balance = bursts(9_000.0, *[2_000.0] * 30)
    assert came_at_once(balance[:-21], 0.0, NOW_S, exactly(10_000), 11_000)
    assert not came_at_once(balance[:-18], 0.0, NOW_S, exactly(10_000), 11_000)  # than a request can be
    assert came_at_once(balance[:-11], 0.0, NOW_S, exactly(10_000), 100_000)
    assert not came_at_once(balance[:-9], 0.0, NOW_S, exactly(10_000), 100_000)  # than what is missing
    assert came_at_once(balance, 0.0, NOW_S, Tokens(10_000, 20_000), 100_000)


@pytest.mark.parametrize(("before", "now", "share"), [(0.0, 0.0, 0.15), (0.0, -0.5, 0.39), (0.0, 0.5, 0.15)])
def test_requests_that_bring_no_prompts_show_in_the_mix(before: float, now: float, share: float) -> None:
    blocks = [block_of(batch_of(list(closed_loop(60))), 10.0)]
    usual = stretch_of(blocks, 1, short=False)
    assert payers(usual._replace(mix=before), usual._replace(mix=now)) == pytest.approx(share, abs=0.01)
    assert payers(usual._replace(mix=None), usual) == payers(usual, usual._replace(mix=None)) == 0.15


@pytest.mark.parametrize(
    ("tokens", "is_paid"),
    [
        (4_000, False),  # a request that ran all the while would hold far more
        (6_000, True),
        (14_000, True),
        (15_000, False),  # and no request can have made as many
    ],
)
def test_what_unfinished_requests_can_pay_for(tokens: float, is_paid: bool) -> None:
    balance = [Balance(100.0 * (i + 1), 1000.0, 3, 4.0, 2_000.0, 0.0) for i in range(10)]
    assert paid(balance, 0.0, exactly(tokens), 100_000) is is_paid
    assert not paid([*balance[:-1], balance[-1]._replace(least_running=0)], 0.0, exactly(tokens), 100_000)


def test_a_request_holds_no_more_than_the_longest_one_may() -> None:
    balance = [Balance(100.0 * (i + 1), 1000.0, 3, 4.0, 2_000.0, 0.0) for i in range(10)]
    assert paid(balance, 0.0, exactly(10_000), 8_000)
    assert not paid(balance, 0.0, exactly(10_000), 6_000)


def test_requests_that_would_be_far_too_long_by_now_have_ended() -> None:
    balance = [Balance(100.0 * (i + 1), 1000.0, 20, 20.0, 2_000.0, 0.0) for i in range(10)]
    assert paid(balance, 0.0, exactly(10_000), 5_000)
    assert not paid(balance, 0.0, exactly(10_000), 4_900)


def test_what_is_missing_is_paid_for_where_any_size_of_the_pool_allows_it() -> None:
    balance = [Balance(100.0 * (i + 1), 1000.0, 3, 4.0, 2_000.0, 0.0) for i in range(10)]
    assert paid(balance, 0.0, Tokens(4_000, 6_000), 100_000)
    assert paid(balance, 0.0, Tokens(14_000, 30_000), 100_000)
    assert not paid(balance, 0.0, Tokens(2_000, 4_000), 100_000)
    assert not paid(balance, 0.0, Tokens(15_000, 30_000), 100_000)


def test_requests_are_replaced_as_often_as_their_prompts_come() -> None:
    now = stretch_of([block_of(batch_of(list(closed_loop(60))), 10.0)], 1, short=False)
    few, many = (turnovers_at_least(shift(0.1, 0.1, 8), now, tokens) for tokens in (4_000.0, 1_000.0))
    assert many == pytest.approx(4 * few)
    assert replaced(shift(0.1, 0.01, 8), 4.5, 0.5)
    assert not replaced(shift(0.1, 0.01, 8), 4.4, 0.5)
    assert not replaced(shift(0.1, 1.0, 8), 4.5, 0.5)
    assert replaced(shift(0.1, 0.2, 8), 4.5, 0.5)
    assert not replaced(shift(0.1, 0.2, 8), 4.5, 0.5, beyond=4)


@pytest.mark.parametrize(
    ("growth", "same_rate", "other_rate"),
    [
        (Growth(0.05, False), 0.15, 0.2),  # nothing grew, and that is sure
        (Growth(0.2, False), 0.2, 0.2),
        (Growth(0.9, False), 0.35, 0.7),  # not sure at all: no more than what is granted anyway
        (Growth(0.9, True), 0.9, 0.9),
        (Growth(0.2, True), 0.35, 0.7),  # seen to grow never grants less than not seen
        (None, 0.35, 0.7),
    ],
)
def test_by_what_share_requests_may_have_grown(growth: Growth | None, same_rate: float, other_rate: float) -> None:
    assert granted(growth, 1.0) == granted(growth, 1.15) == same_rate
    assert granted(growth, 1.2) == pytest.approx(other_rate)
    assert granted(growth, 2.0) == pytest.approx(max(1.0, other_rate))


def test_what_came_and_went_before_is_told_from_what_stays() -> None:
    assert came_and_went([(0.0, 0.0), (1.0, 0.15), (2.0, 0.0), (3.0, 0.3)], 0.3, 0.5)
    assert not came_and_went([(0.0, 0.0), (1.0, 0.1), (2.0, 0.0), (3.0, 0.3)], 0.3, 0.5)
    assert not came_and_went([(0.0, 0.0), (1.0, 0.15), (2.0, 0.1), (3.0, 0.3)], 0.3, 0.5)
    assert not came_and_went([(0.0, 0.0), (1.0, 0.2), (2.0, 0.0), (3.0, 0.3)], 0.3, 0.75)


def blocks_of(records: int = 540, *, lost: float = 0.0) -> list[Block]:
    rows = list(closed_loop(records, lost=lambda _i: lost))
    return [block_of(batch_of(rows[i : i + 60]), 10.0) for i in range(0, records, 60)]


def test_a_step_among_the_same_requests_has_settled_once_no_block_lies_much_further_up() -> None:
    reference = stretch_of(blocks_of(), 1, short=False)
    lifted = blocks_of(lost=0.1)
    assert settled(reference, lifted, 0.1)
    assert not settled(reference, [*lifted[:-1], *blocks_of(lost=0.4)[:1]], 0.1)  # something is under way
    assert settled(reference, [*lifted, lifted[0]._replace(cells={})], 0.1)  # a load that was never seen tells nothing


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [(0.0, 0.07, True), (0.0, 0.1, False), (0.9, 0.905, True), (0.9, 0.92, False), (1.0, 1.0, True)],
)
def test_a_prefix_that_is_shared_shows_in_the_part_of_prompts_that_is_computed(
    before: float, after: float, same: bool
) -> None:
    reference = stretch_of(blocks_of(), 1, short=False)._replace(hit_rate=before)
    assert settled(reference, [block._replace(hit_rate=after) for block in blocks_of(lost=0.1)], 0.1) is same


@pytest.mark.parametrize(("factor", "same"), [(0.85, False), (1.0, True), (1.2, False)])
def test_prompts_that_come_at_another_rate_are_others(factor: float, same: bool) -> None:
    reference = stretch_of(blocks_of(), 1, short=False)
    blocks = [block._replace(prompt_tokens=factor * block.prompt_tokens) for block in blocks_of(lost=0.1)]
    assert settled(reference, blocks, 0.1) is same


@pytest.mark.parametrize(
    ("growth", "mix", "hit_rate", "same"),
    [
        (Growth(0.1, False), 0.05, 0.05, True),
        (Growth(0.3, False), 0.05, 0.05, False),  # they may have grown by as much
        (Growth(0.1, False), 0.15, 0.05, False),
        (Growth(0.1, False), None, 0.05, False),
        (Growth(0.1, False), 0.05, 0.1, False),
        (Growth(0.1, False), 0.05, None, False),
    ],
)
def test_requests_are_unchanged_where_nothing_tells_that_they_are_others(
    growth: Growth, mix: float | None, hit_rate: float | None, same: bool
) -> None:
    reference = stretch_of(blocks_of(), 1, short=False)._replace(mix=0.0, hit_rate=0.0)
    now = reference._replace(mix=mix, hit_rate=hit_rate)
    assert unchanged(shift(0.1, 0.4, 8), reference, now, growth) is same


@pytest.mark.parametrize(
    ("before", "after", "same", "same_by_a_curve"),
    [
        (0.0, 0.07, True, True),
        (0.0, 0.1, False, True),
        (0.5, 0.55, False, True),
        (0.5, 0.6, False, False),
        (0.9, 0.915, True, True),
        (0.9, 0.93, False, True),
        (0.9, 0.95, False, False),
        (1.0, 1.0, True, True),
    ],
)
def test_where_most_prompts_are_shared_a_point_of_the_hit_rate_is_much(
    before: float, after: float, same: bool, same_by_a_curve: bool
) -> None:
    reference = stretch_of(blocks_of(), 1, short=False)._replace(mix=0.0, hit_rate=before)
    now = reference._replace(hit_rate=after)
    assert unchanged(shift(0.1, 0.4, 8), reference, now, Growth(0.1, False)) is same
    assert sure(shift(0.1, 0.4, 8)._replace(bins=5), reference, now, None) is same_by_a_curve


def test_last_below_looks_from_the_end() -> None:
    history = deque([(0.0, 0.0), (1.0, 0.2), (2.0, 0.05), (3.0, 0.3)])
    assert last_below(history, 0.1) == 2.0
    assert last_below(history, 0.0) is None
