"""What may stand behind a shift beside a leak, each with what rules it out."""

from collections import deque

import pytest

from kvlogd.curve import Shift
from kvlogd.gates import Balance, came_and_went, came_at_once, granted, last_below, paid, request_noise
from kvlogd.grain import Growth


def shift(mean: float, before: float, running: float) -> Shift:
    return Shift(mean, mean, mean, 0.01, mean, 0.01, mean, 1, running, running, before)


def test_few_requests_make_more_noise_than_many() -> None:
    assert request_noise(shift(0.1, 0.1, 2), 3.0) > request_noise(shift(0.1, 0.1, 20), 3.0)
    assert request_noise(shift(0.1, 0.1, 2), 3.0) > request_noise(shift(0.1, 0.1, 2), 300.0)


def test_one_prompt_may_have_brought_what_is_missing() -> None:
    usual = Balance(100.0, 1000.0, 3, 4.0, 0.0)
    balance = [usual, usual._replace(end_s=200.0, burst_tokens=5_000.0), usual._replace(end_s=300.0)]
    assert came_at_once(balance, 150.0, 12_000)
    assert not came_at_once(balance, 150.0, 13_000)
    assert not came_at_once(balance, 200.0, 12_000)


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
    balance = [Balance(100.0 * (i + 1), 1000.0, 3, 4.0, 0.0) for i in range(10)]
    assert paid(balance, 0.0, tokens, None) is is_paid
    assert not paid([*balance[:-1], balance[-1]._replace(least_running=0)], 0.0, tokens, None)


def test_a_request_holds_no_more_than_the_longest_one_may() -> None:
    balance = [Balance(100.0 * (i + 1), 1000.0, 3, 4.0, 0.0) for i in range(10)]
    assert paid(balance, 0.0, 10_000, 8_000)
    assert not paid(balance, 0.0, 10_000, 6_000)


@pytest.mark.parametrize(
    ("growth", "share"),
    [
        (Growth(0.05, False), 0.15),  # nothing grew, and that is sure
        (Growth(0.2, False), 0.2),
        (Growth(0.9, False), 0.35),  # not sure at all: no more than what is granted anyway
        (Growth(0.9, True), 0.9),
        (Growth(0.2, True), 0.35),  # seen to grow never grants less than not seen
        (None, None),
    ],
)
def test_by_what_share_requests_may_have_grown(growth: Growth | None, share: float | None) -> None:
    assert granted(growth) == share


def test_what_came_and_went_before_is_told_from_what_stays() -> None:
    assert came_and_went([(0.0, 0.0), (1.0, 0.15), (2.0, 0.0), (3.0, 0.3)], 0.3)
    assert not came_and_went([(0.0, 0.0), (1.0, 0.1), (2.0, 0.0), (3.0, 0.3)], 0.3)
    assert not came_and_went([(0.0, 0.0), (1.0, 0.15), (2.0, 0.1), (3.0, 0.3)], 0.3)


def test_last_below_looks_from_the_end() -> None:
    history = deque([(0.0, 0.0), (1.0, 0.2), (2.0, 0.05), (3.0, 0.3)])
    assert last_below(history, 0.1) == 2.0
    assert last_below(history, 0.0) is None
