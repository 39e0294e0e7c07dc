"""Requests that ended and that were given up, counted from what vLLM counts, and which of them a loss goes with."""

import pickle
import random
from collections.abc import Iterable

import pytest

from kvlogd.model import Latency, Scrape, Spread
from kvlogd.tally import KEPT, LEAST_PARTS, Tally, per_request
from tests.lines import START_S, run_of

POOL = 1000


def scrape(
    at_s: float, *, begun: float = 0.0, done: float = 0.0, aborted: float = 0.0, running: int = 0, lost: float = 0.0
) -> Scrape:
    spreads = (Spread(Latency.TTFT, begun, 1.0, None, None, None),) if begun else ()
    return Scrape(
        START_S + at_s, 0, START_S + at_s - 10, lost / POOL, running, 0, finished=done + aborted, aborted=aborted,
        latencies=spreads,
    )  # fmt: skip


def counted(scrapes: Iterable[Scrape]) -> Tally:
    tally = Tally()
    for one in scrapes:
        tally.observe(one, one.ts_s)
    return tally


def spells(*, by_done: float, by_given_up: float, count: int = 30, seed: int = 1, is_mixed: bool = True) -> Tally:
    """Return the counts of a run that idles after each burst of requests, some of which lose a block."""
    luck = random.Random(seed)
    found, lost = [scrape(0)], 0
    for n in range(1, count + 1):
        all_ = luck.randint(5, 60)
        given_up = sum(luck.random() < (0.3 * luck.random() if is_mixed else 1.0) for _ in range(all_))
        done = all_ - given_up
        lost += sum(luck.random() < by_done for _ in range(done)) + sum(
            luck.random() < by_given_up for _ in range(given_up)
        )
        found.append(scrape(60 * n - 30, begun=all_ // 2, running=3, lost=lost))
        found.append(scrape(60 * n, begun=all_ - all_ // 2, done=done, lost=lost))
    return counted(found)


def evidence(tally: Tally, until_s: float, lost: float, since_s: float = 0.0) -> dict[str, float]:
    rate = lost / POOL / (until_s - since_s)
    return per_request(tally, run_of()._replace(blocks=POOL), rate, START_S + since_s, START_S + until_s)


def test_who_began_and_neither_runs_nor_ended_was_given_up() -> None:
    tally = counted([scrape(0), scrape(10, begun=10, done=4, running=2), scrape(20, begun=20, done=18)])
    ended = tally.ended(START_S, START_S + 20)
    assert ended == (22, 8, 0)
    halfway = tally.ended(START_S, START_S + 10)
    assert halfway is None  # two that run are too many beside eight
    assert evidence(tally, 20, 15) == {
        "requests_ended": 30, "requests_given_up": 8, "blocks_per_request": pytest.approx(0.5)
    }  # fmt: skip


def test_a_vllm_that_counts_them_itself_is_not_counted_twice() -> None:
    tally = counted([scrape(0), scrape(10, begun=10, done=6, aborted=4)])
    assert tally.ended(START_S, START_S + 10) == (6, 4, 0)


def test_an_engine_that_times_no_first_token_tells_only_what_ended() -> None:
    tally = counted([scrape(0), scrape(10, done=60)])
    assert evidence(tally, 10, 6) == {"requests_ended": 60, "blocks_per_request": pytest.approx(0.1)}


def test_tokens_where_blocks_are_not_known_and_nothing_where_no_pool_is() -> None:
    tally = counted([scrape(0), scrape(10, begun=60, done=60)])
    run = run_of()._replace(blocks=None, kv_tokens=16_000)
    assert per_request(tally, run, 0.0001, START_S, START_S + 10)["tokens_per_request"] == pytest.approx(16 / 60)
    assert per_request(tally, run._replace(kv_tokens=None), 0.0001, START_S, START_S + 10) == {}
    assert per_request(tally, run, 0.0, START_S, START_S + 10) == {}


def test_without_counts_or_from_the_midst_of_a_span_nothing_is_told() -> None:
    assert evidence(Tally(), 10, 5) == {}
    late = counted([scrape(500), scrape(600, begun=60, done=60)])
    assert evidence(late, 600, 5) == {}
    assert evidence(late, 600, 5, since_s=490)["requests_ended"] == 60


def test_a_loss_by_those_that_were_given_up_is_told_with_its_error() -> None:
    found = evidence(spells(by_done=0.0, by_given_up=0.7), 1800, 100)
    assert found["blocks_per_given_up"] == pytest.approx(0.7, abs=0.1)
    assert 0 < found["given_up_error"] < 0.2


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("by_done", [0.02, 0.2, 1.0])
def test_a_loss_by_all_is_not_blamed_on_those_that_were_given_up(by_done: float, seed: int) -> None:
    assert "blocks_per_given_up" not in evidence(spells(by_done=by_done, by_given_up=by_done, seed=seed), 1800, 100)


def test_what_cannot_be_told_apart_is_not() -> None:
    few = spells(by_done=0.0, by_given_up=1.0, count=LEAST_PARTS - 1)
    assert few.blame(START_S) is None
    only = spells(by_done=0.0, by_given_up=1.0, is_mixed=False)  # whoever comes is given up
    assert only.blame(START_S) is None


def test_months_take_no_more_room_and_are_still_counted() -> None:
    tally = counted([scrape(0), *(scrape(10 * n, begun=3, done=3) for n in range(1, 50_000))])
    assert len(tally._marks.all()) <= KEPT + 2
    assert len(pickle.dumps(tally)) < 60_000
    ended = tally.ended(START_S + 250_000, START_S + 499_990)
    assert ended is not None
    assert ended.done == pytest.approx(75_000, rel=0.02)
    assert tally.ended(START_S + 499_790, START_S + 499_990) is None, "no mark that is kept is near its beginning"
