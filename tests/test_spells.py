"""Idle spells: the lowest that an engine comes down to, remembered within a bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlogd.model import Stats
from kvlogd.spells import KEPT, Spell, Spells, climbs


def record(at_s: float, running: int, usage: float) -> Stats:
    return Stats(at_s, None, 0, None, 100.0, 50.0, running, 0, usage)


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 1), st.floats(0, 100)), max_size=200))
def test_spells_remember_the_lowest_and_never_more_than_their_bound(rows: list[tuple[int, float, float]]) -> None:
    spells, at_s, worked = Spells(), 0.0, True
    raised = spells.above(0.005)
    for running, usage, later_s in rows:
        at_s += later_s
        if not running:
            spells.observe(record(at_s, running, usage), 10.0, worked=worked)
        worked = bool(running)
    idle = [usage for running, usage, _ in rows if not running]
    assert spells.lowest == (min(idle) if idle else None)
    assert all(spell.usage >= (spells.lowest or 0) + 0.005 - 1e-6 for spell in raised.spells)


def test_spells_of_months_are_thinned_out() -> None:
    spells = Spells()
    raised = spells.above(0.005)
    for i in range(5000):
        spells.observe(record(i * 100.0, 0, 0.0 if i == 0 else 0.1), 10.0, worked=True)
    assert spells.count == 5000
    assert len(spells.past) <= KEPT + 1
    assert len(raised.spells) <= KEPT + 1
    assert raised.spells[0].start_s == 100.0
    assert raised.count == 4999


@given(st.lists(st.floats(0, 1), max_size=40))
def test_whoever_asks_late_sees_the_same_raised_spells(usages: list[float]) -> None:
    early, late = Spells(), Spells()
    raised = early.above(0.02)
    for i, usage in enumerate(usages):
        for spells in (early, late):
            spells.observe(record(i * 100.0, 0, usage), 10.0, worked=True)
    assert (late.above(0.02).spells, late.above(0.02).count) == (raised.spells, raised.count)


@pytest.mark.parametrize(("usages", "says"), [([0.03, 0.05, 0.07], True), ([0.03, 0.03, 0.07], False)])
def test_climbing_is_every_third_above_the_one_before(usages: list[float], says: bool) -> None:
    assert climbs([Spell(i, i, usage) for i, usage in enumerate(usages)]) is says
