"""Blocks of records: what one keeps, whatever batches it is put together from."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlogd import block
from kvlogd.block import Batch, Block, batch_of, joined, load_bin
from kvlogd.curve import stretch_of
from kvlogd.model import Stats


def record(at_s: float, running: int, usage: float, prompt: float = 100.0, generated: float = 50.0) -> Stats:
    return Stats(at_s, None, 0, None, prompt, generated, running, 0, usage)


def block_of(rows: list[Stats], interval_s: float) -> Block:
    return block.block_of(batch_of(rows), interval_s)


records = st.builds(
    record,
    st.floats(0, 1e9),
    st.integers(0, 10_000),
    st.floats(0, 1),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
)


@given(st.integers(0, 100_000))
def test_bins_never_fall_with_load(running: int) -> None:
    assert load_bin(running) <= load_bin(running + 1) <= 43


@given(st.lists(records, min_size=1, max_size=40), st.floats(0.1, 60))
def test_no_block_raises_and_its_numbers_are_within_its_records(rows: list[Stats], interval_s: float) -> None:
    one = block_of(rows, interval_s)
    assert one.least_usage == min(r.kv_usage for r in rows)
    assert sum(cell.records for cell in one.cells.values()) == len(rows)
    stretch = stretch_of([one, one], 1, short=False)
    assert set(stretch.points) == set(one.cells)


def flat(batch: Batch) -> list[object]:
    lumps = batch.lumps
    return [*batch, *lumps.usage, *lumps.prompts, *(lumps.in_parts or ())]


fives = st.integers(1, 3).flatmap(lambda n: st.lists(records, min_size=5 * n, max_size=5 * n))


@given(st.lists(fives, min_size=1, max_size=6))
def test_batches_that_are_joined_are_the_batch_of_all_records(parts: list[list[Stats]]) -> None:
    whole, found = batch_of([row for part in parts for row in part]), joined([batch_of(part) for part in parts])
    assert (found.by_load, found.loads, found.hit_rate) == (whole.by_load, whole.loads, whole.hit_rate)
    numbers = [[value for value in flat(batch) if isinstance(value, int | float)] for batch in (found, whole)]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-9, abs=1e-9)


def test_order_of_equal_records_does_not_matter() -> None:
    rows = [record(0.0, r, u) for r, u in ((2, 0.25), (2, 0.25), (2, 0.5), (4, 0.5), (4, 0.5))]
    mixed = rows[:]
    random.Random(1).shuffle(mixed)
    assert block_of(rows, 10.0)._replace(cells={}) == block_of(mixed, 10.0)._replace(cells={})
    levels = [{key: cell.usage for key, cell in block_of(r, 10.0).cells.items()} for r in (rows, mixed)]
    assert levels[0] == levels[1]


def test_the_noise_is_left_out_where_it_is_not_needed() -> None:
    batch = batch_of([record(i, 4, 0.2 + 0.01 * (i % 2)) for i in range(10)])
    noisy, plain = block.block_of(batch, 10.0), block.block_of(batch, 10.0, noisy=False)
    assert noisy.cells[4].noise == pytest.approx(0.0105)
    assert plain.cells[4].noise is None
    assert plain.cells[4].usage == noisy.cells[4].usage
