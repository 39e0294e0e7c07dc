"""How coarse the records are tells longer requests from lost blocks, which no mean does."""

from collections.abc import Sequence
from math import log
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlogd import grain
from kvlogd.arrivals import Arrivals
from kvlogd.grain import Grain, growth_between, lumps_of
from kvlogd.model import Stats
from tests.crowd import closed_loop

BLOCK = 60
BUSY = Arrivals(1000.0, BLOCK, 0, 0)


def grain_of(usages: Sequence[float], prompts: Sequence[float], interval_s: float) -> Grain:
    arrivals = Arrivals(interval_s * sum(prompts), len(prompts), prompts.count(0.0), 0)
    return grain.grain_of(lumps_of(usages, prompts), sum(prompts) / len(prompts), interval_s, arrivals)


def grains_of(rows: Sequence[Stats]) -> list[Grain]:
    """Return the grain of each block of some records."""
    blocks = [rows[i : i + BLOCK] for i in range(0, len(rows), BLOCK)]
    return [grain_of([row.kv_usage for row in block], [row.prompt_tps for row in block], 10.0) for block in blocks]


def halves(rows: Sequence[Stats]) -> tuple[list[Grain], list[Grain]]:
    grains = grains_of(rows)
    return grains[: len(grains) // 2], grains[len(grains) // 2 :]


@pytest.mark.parametrize("seed", range(5))
def test_longer_requests_come_in_larger_lumps(seed: int) -> None:
    growth = growth_between(*halves(list(closed_loop(4320, longer=lambda i: 1.0 if i < 2160 else 1.5, seed=seed))))
    assert growth is not None
    assert growth.is_seen
    assert growth.most > 0.5


@pytest.mark.parametrize("seed", range(5))
def test_lost_blocks_leave_the_lumps_as_they_were(seed: int) -> None:
    growth = growth_between(*halves(list(closed_loop(4320, lost=lambda i: 0.3 * i / 4320, seed=seed))))
    assert growth is not None
    assert growth.most < 0.35


def test_longer_answers_alone_show_in_the_usage() -> None:
    few = [Grain(0.1 * (-1) ** i, 0.1 * (-1) ** i, None, BUSY) for i in range(36)]
    many = [grain._replace(usage=(grain.usage or 0.0) + 0.4) for grain in few]
    growth = growth_between(few, many)
    assert growth is not None
    assert growth.is_seen
    assert growth.most > 0.7


def test_more_blocks_tell_more_sharply() -> None:
    rows = list(closed_loop(8640))
    few, many = (growth_between(*halves(rows[:count])) for count in (1440, 8640))
    assert few is not None
    assert many is not None
    assert many.most < few.most


def few_requests(longer: float, seed: int) -> list[Grain]:
    """Return the grain of two clients with long answers: they send a request every other record or so."""
    return grains_of(list(closed_loop(720, clients=2, longer=lambda _i: longer, answer_tokens=1200.0, seed=seed)))


def test_where_few_requests_come_their_number_tells_more_sharply_than_their_lumps() -> None:
    with_number: list[float] = []
    without: list[float] = []
    for seed in range(9):
        before, now = few_requests(1.0, seed), few_requests(1.0, seed + 100)
        busy = [[one._replace(arrivals=BUSY) for one in grains] for grains in (before, now)]
        for found, growth in ((with_number, growth_between(before, now)), (without, growth_between(*busy))):
            assert growth is not None
            found.append(growth.most)
    assert median(with_number) < 0.8 * median(without)


@pytest.mark.parametrize("seed", range(3))
def test_fewer_requests_that_are_larger_are_seen(seed: int) -> None:
    growth = growth_between(few_requests(1.0, seed), few_requests(1.6, seed + 100))
    assert growth is not None
    assert growth.is_seen
    assert growth.most > 0.6


def test_prompts_in_parts_are_compared_whole() -> None:
    before = grains_of(list(closed_loop(4320, chunk_tokens=400.0, seed=3)))
    now = grains_of(list(closed_loop(4320, chunk_tokens=400.0, longer=lambda _i: 1.8, seed=3)))
    whole = [[one._replace(usage=None, arrivals=BUSY) for one in grains] for grains in (before, now)]
    at_once = [[one._replace(prompts_in_parts=None) for one in grains] for grains in whole]
    found, hidden = growth_between(*whole), growth_between(*at_once)
    assert found is not None
    assert hidden is not None
    assert found.most > hidden.most


def test_requests_that_come_in_much_smaller_lumps_are_others() -> None:
    growth = growth_between(*halves(list(closed_loop(4320, longer=lambda i: 1.0 if i < 2160 else 0.5))))
    assert growth is not None
    assert growth.is_seen
    assert growth.most > 0.7


def test_a_steady_rise_is_no_lump() -> None:
    lumps = [0.2, 0.21] * 30
    rising = [usage + 0.002 * i for i, usage in enumerate(lumps)]
    prompts = [10.0, 30.0] * 30
    assert grain_of(rising, prompts, 10.0).usage == pytest.approx(grain_of(lumps, prompts, 10.0).usage, abs=0.01)


def test_the_lumps_of_prompts_are_their_tokens_at_any_interval() -> None:
    for interval_s in (2.0, 10.0):
        prompts = [0.0, 0.0, 500.0 / interval_s, 0.0, 0.0, 0.0, 500.0 / interval_s, 0.0, 0.0]
        assert grain_of([0.1] * 9, prompts, interval_s).prompts == pytest.approx(log(500.0), abs=0.2)


def test_a_prompt_that_takes_several_records_shows_whole_where_they_are_taken_together() -> None:
    prompts = ([50.0] * 3 + [0.0] * 17) * 3  # 1,500 tokens each
    grain = grain_of([0.1] * 60, prompts, 10.0)
    assert grain.prompts is not None
    assert grain.prompts < log(500.0)
    assert grain.prompts_in_parts == pytest.approx(log(1_500.0), abs=0.3)
    assert grain_of([0.1] * 4, prompts[1:5], 10.0).prompts_in_parts is None


def test_a_usage_finer_than_it_is_printed_leaves_the_prompts_to_tell() -> None:
    grain = grain_of([0.1, 0.101, 0.1], [10.0, 40.0, 10.0], 10.0)
    assert grain == Grain(log(10.0 * 450.0 / 20.0), None, None, Arrivals(600.0, 3, 0, 0))
    coarse = grain_of([0.1, 0.2, 0.1], [10.0, 40.0, 10.0], 10.0)
    assert coarse.prompts == pytest.approx(log(10.0 * 450.0 / 20.0))
    assert coarse.usage == pytest.approx(log(0.005 / 20.0))


@pytest.mark.parametrize("prompts", [[0.0, 0.0], [5.0, 5.0], [5.0]])
def test_records_without_prompts_or_steps_tell_nothing(prompts: list[float]) -> None:
    grain = grain_of([0.5] * len(prompts), prompts, 10.0)
    assert grain[:3] == (None, None, None)
    assert growth_between([grain] * 20, [grain] * 20) is None


def test_too_few_blocks_tell_nothing() -> None:
    grains = grains_of(list(closed_loop(4320)))
    assert growth_between(grains[:7], grains[20:]) is None
    assert growth_between(grains[:20], []) is None


shares = st.lists(st.floats(0, 1), min_size=1, max_size=30)


@given(shares, st.data())
def test_no_input_raises(usages: list[float], data: st.DataObject) -> None:
    tps = st.lists(st.floats(0, 1e6), min_size=len(usages), max_size=len(usages))
    grains = [grain_of(usages, data.draw(tps), 10.0) for _ in range(8)]
    growth = growth_between(grains, grains[:3])
    assert growth is None or growth.most >= 0.0
