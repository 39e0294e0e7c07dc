"""The course of a life: what is newest in it."""

import pytest

from kvlogd.course import newest


@pytest.mark.parametrize("count", [0, 2, 5, 9])
def test_newest_are_the_last_in_order(count: int) -> None:
    rows = list(range(5))
    assert newest(rows, count) == rows[max(0, 5 - count) :]
