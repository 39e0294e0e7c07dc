"""How much a pool holds is told by the start-up lines or, within bounds, by the records."""

import pytest

from kvlogd.block import Block, batch_of, block_of
from kvlogd.room import Room, Size, Tokens, implied, prompt_of, told
from tests.crowd import closed_loop


def blocks_of(pool_tokens: int, clients: int, *, records: int = 720, seed: int = 7) -> list[Block]:
    rows = list(closed_loop(records, clients=clients, pool_tokens=pool_tokens, seed=seed))
    return [block_of(batch_of(rows[i : i + 60]), 10.0) for i in range(0, records, 60)]


def test_the_start_up_lines_tell_the_pool_and_the_longest_request() -> None:
    assert told(Size(None, 8_192)) is None
    assert told(Size(100_000, 8_192)) == Room(Tokens(100_000, 100_000), 8_192)
    assert told(Size(100_000, None)) == Room(Tokens(100_000, 100_000), 100_000)
    assert told(Size(100_000, 131_072)) == Room(Tokens(100_000, 100_000), 100_000)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("pool_tokens", "clients"), [(20_000, 3), (100_000, 8), (1_000_000, 100)])
def test_the_records_bound_a_pool_that_nothing_tells_of(pool_tokens: int, clients: int, seed: int) -> None:
    blocks = blocks_of(pool_tokens, clients, seed=seed)
    prompt_tokens = prompt_of(blocks)
    assert prompt_tokens is not None
    room = implied(blocks, prompt_tokens, None)
    assert room.pool.least <= pool_tokens <= room.pool.most
    assert room.pool.most < 20 * room.pool.least
    assert room.longest_tokens == room.pool.most
    assert implied(blocks, prompt_tokens, 4_096).longest_tokens == 4_096
    assert implied(blocks, prompt_tokens, 1 << 40) == room


def test_a_prompt_is_as_large_as_the_large_ones_are() -> None:
    # log-normal with a median of 900 tokens and a spread of 0.7: E[p^2] / E[p] is 900 * exp(1.5 * 0.49)
    assert prompt_of(blocks_of(100_000, 8)) == pytest.approx(1_880, rel=0.25)


def test_too_few_blocks_with_prompts_imply_nothing() -> None:
    blocks = blocks_of(100_000, 8)
    mute = [block._replace(grain=block.grain._replace(prompts=None)) for block in blocks]
    assert prompt_of(blocks[:5]) is None
    assert prompt_of([*blocks[:8], *mute[:4]]) is None
    assert prompt_of([*blocks[:11], *mute[:1]]) is not None


def test_an_engine_that_held_nothing_implies_no_bound_and_raises_nothing() -> None:
    blocks = [block._replace(mean_usage=0.0, prompt_tokens=0.0) for block in blocks_of(100_000, 8)]
    assert implied(blocks, 1_000.0, None).pool.most > 1e6


def test_a_share_of_what_is_known_by_its_bounds_has_bounds() -> None:
    assert Tokens(100.0, 400.0).share(0.25) == Tokens(25.0, 100.0)
