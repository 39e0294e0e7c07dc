"""The log and /metrics of one engine tell of one engine and one life, whoever of them speaks first."""

from collections.abc import Sequence

import pytest

from kvlogd.engines import Ids
from kvlogd.model import Event, EventKind, Scrape, Stats
from kvlogd.pipeline import Pipeline
from tests.lines import START_S, record

Told = Stats | Event | Scrape


def scrape(
    at_s: float, *, index: int = 0, is_alone: bool = True, is_first: bool = False, restarted: bool = False
) -> Scrape:
    since_s = None if is_first else START_S + at_s - 10
    return Scrape(
        START_S + at_s, index, since_s, 0.25, 2, 0, generation_tokens=None if is_first else 100.0,
        restarted=restarted, blocks=4096, block_size=16, is_alone=is_alone,
    )  # fmt: skip


def busy(at_s: float, *, pid: int | None = 1, index: int | None = 0, engines: int | None = None) -> Stats:
    return record(at_s, running=2, generation_tps=50, kv_usage=0.25, pid=pid, index=index, engines=engines)


def lives(*told: Told) -> list[tuple[str, int, int, int]]:
    """Return engine, number of its life, records and scrapes of each life that came of it."""
    pipeline = pipeline_of(told)
    harvest = pipeline.harvest()
    labels = {engine.engine_id: engine.label for engine in harvest.engines}
    return [
        (
            labels[run.engine_id],
            run.number,
            harvest.sample_runs.count(run.run_id),
            sum(run_id == run.run_id for _, run_id, _ in harvest.scrapes),
        )
        for run in harvest.runs
    ]


def pipeline_of(told: Sequence[Told]) -> Pipeline:
    pipeline = Pipeline("chat", Ids(), ())
    for one in told:
        if isinstance(one, Scrape):
            pipeline.scraped(one)
        else:
            pipeline.take([one])
    return pipeline


def start(at_s: float, pid: int = 1) -> Event:
    return Event(START_S + at_s, EventKind.BANNER, pid)


@pytest.mark.parametrize("pid", [1, None])
@pytest.mark.parametrize("index", [0, None], ids=["engine 0", "no number"])
@pytest.mark.parametrize("first", ["log", "metrics"])
def test_one_engine_is_one_row(first: str, index: int | None, pid: int | None) -> None:
    log = [busy(at_s, index=index, pid=pid) for at_s in (0, 10)]
    page = [scrape(1, is_first=True), scrape(11)]
    told: list[Told] = [log[0], page[0], log[1], page[1]] if first == "log" else [page[0], log[0], page[1], log[1]]
    assert lives(*told) == [("chat/0", 1, 2, 2)]


@pytest.mark.parametrize("engines", [0, 1])
@pytest.mark.parametrize("first", ["log", "metrics"])
def test_the_sum_of_one_engine_is_that_engine(first: str, engines: int) -> None:
    log = [busy(at_s, index=None, engines=engines) for at_s in (0, 10)]
    page = [scrape(1, is_first=True), scrape(11)]
    told: list[Told] = [log[0], page[0], log[1], page[1]] if first == "log" else [page[0], log[0], page[1], log[1]]
    assert lives(*told) == [("chat/all" if first == "log" else "chat/0", 1, 2, 2)]


def test_each_rank_meets_its_own() -> None:
    told: list[Told] = [
        busy(0, index=0),
        busy(0, index=1),
        scrape(1, index=0, is_alone=False),
        scrape(1, index=1, is_alone=False),
    ]
    assert lives(*told) == [("chat/0", 1, 1, 1), ("chat/1", 1, 1, 1)]


@pytest.mark.parametrize("first", ["log", "metrics"])
def test_the_sum_of_several_stands_beside_them(first: str) -> None:
    log = [busy(at_s, index=None, engines=2) for at_s in (0, 10)]
    page = [scrape(1, index=index, is_alone=False) for index in (0, 1)]
    told: list[Told] = [*log, *page] if first == "log" else [*page, *log]
    assert sorted(lives(*told)) == [("chat/0", 1, 0, 1), ("chat/1", 1, 0, 1), ("chat/all", 1, 2, 0)]


def test_the_size_of_the_pool_is_learned_where_the_log_does_not_say() -> None:
    (run,) = pipeline_of([busy(0), scrape(1)]).harvest().runs
    assert (run.blocks, run.block_size) == (4096, 16)
    sized = Event(START_S, EventKind.BLOCKS, 1, None, {"num_gpu_blocks": 100.0})
    (run,) = pipeline_of([start(-5), sized, busy(0), scrape(1)]).harvest().runs
    assert (run.blocks, run.block_size) == (100, None)


def test_a_restart_that_the_log_tells_is_one_restart() -> None:
    before: list[Told] = [busy(0), scrape(1, is_first=True), busy(10), scrape(11)]
    after: list[Told] = [start(20, pid=2), scrape(31, restarted=True), busy(35, pid=3), scrape(41), busy(45, pid=3)]
    assert lives(*before, *after) == [("chat/0", 1, 2, 2), ("chat/0", 2, 2, 2)]


def test_a_restart_that_only_metrics_tell() -> None:
    before: list[Told] = [busy(0, pid=None), scrape(1, is_first=True), busy(10, pid=None), scrape(11)]
    told: list[Told] = [*before, scrape(31, restarted=True), busy(35, pid=None), scrape(41)]
    assert lives(*told) == [("chat/0", 1, 2, 2), ("chat/0", 2, 1, 2)]
    (first, _) = pipeline_of(told).harvest().runs
    assert first.end_reason == "restart"


def test_a_restart_of_two_ranks_that_only_metrics_tell() -> None:
    log = [busy(0, pid=None, index=index) for index in (0, 1)]
    page = [scrape(1, index=index, is_alone=False) for index in (0, 1)]
    again = [scrape(11, index=index, is_alone=False, restarted=True) for index in (0, 1)]
    found = lives(*log, *page, *again)
    assert sorted(found) == [("chat/0", 1, 1, 1), ("chat/0", 2, 0, 1), ("chat/1", 1, 1, 1), ("chat/1", 2, 0, 1)]


def test_a_start_that_is_read_late_is_that_of_the_life_that_metrics_began() -> None:
    assert lives(scrape(20, is_first=True), start(5), busy(30)) == [("chat/0", 1, 1, 1)]


def test_a_first_life_is_told_with_its_start_whoever_speaks_first() -> None:
    (run,) = pipeline_of([start(-30), scrape(1, is_first=True), busy(5, pid=2)]).harvest().runs
    assert (run.started_s, run.seen_from_start) == (START_S - 30, True)


def test_of_two_servers_in_one_log_nobody_knows_whose_metrics_they_are() -> None:
    told: list[Told] = [busy(0, pid=1), busy(1, pid=2), busy(10, pid=1), scrape(11)]
    assert lives(*told) == [("chat/0", 1, 2, 0), ("chat~2/0", 1, 1, 0)]
    assert not pipeline_of(told[:-1]).scraped(scrape(11))


def test_a_scrape_moves_no_clock() -> None:
    pipeline = pipeline_of([busy(0), scrape(86400), busy(10)])
    assert pipeline.now_s == START_S + 10
    assert pipeline_of([scrape(5)]).now_s is None
