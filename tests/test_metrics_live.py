"""The daemon with a log and the /metrics of one vLLM: rows side by side, once each, through kills and trouble."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvlogd import feed, scrape
from kvlogd.doctor import examine
from tests.daemon import Running
from tests.lines import START_S, line_of, record
from tests.live import Live
from tests.metricspage import Told, page
from tests.pageserver import PageServer, whole
from tests.test_privacy import found_in
from tests.waiting import until

CANARY = "KVLOGD-CANARY-a12f"
TOLD = Told(running=2, kv_usage=0.25, prompt_tokens=1000, generation_tokens=500, itl=(0.02,) * 10)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PageServer]:
    monkeypatch.setattr(scrape, "EVERY_S", 0.05)
    with PageServer(whole(page([TOLD]))) as server:
        yield server


class Both:
    """A log that is written and a page that is served while a daemon looks at both."""

    def __init__(self, folder: Path, server: PageServer) -> None:
        self.server = server
        self.at_s = 0.0
        self.log = folder / "vllm.log"
        self.log.touch()
        self.live = Live(self.log, folder / "kv.duckdb", rules=(), metrics=server.url)

    def write(self, *records: Any) -> None:
        with self.log.open("ab") as out:
            for one in records:
                out.write(line_of(one) + b"\n")

    def more_pages(self, count: int = 3) -> None:
        """Let so many more pages be asked for, and the loop see them."""
        scraper = self.live.intake.feeds[0].scraper
        assert scraper is not None
        wanted = scraper.state.pages + count

        def is_there() -> bool:
            self.live.turn(0.1)
            return scraper.state.pages >= wanted

        until(is_there)
        self.live.turn(0.1)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        self.live.commit()
        return self.live.store.read(sql)


@pytest.fixture
def both(tmp_path: Path, server: PageServer) -> Iterator[Both]:
    both = Both(tmp_path, server)
    yield both
    both.live.kill()


def busy(at_s: float, *, pid: int = 1, index: int = 0) -> Any:
    return record(at_s, running=2, generation_tps=50.0, kv_usage=0.25, pid=pid, index=index)


ENGINES = "SELECT label, count(*) FROM engines GROUP BY label ORDER BY label"


def test_the_page_may_come_before_the_first_line(both: Both) -> None:
    both.more_pages()
    assert both.rows(ENGINES) == [("chat/0", 1)]
    both.write(busy(0), busy(10))
    both.more_pages()
    assert both.rows(ENGINES) == [("chat/0", 1)]
    ((runs, samples, scrapes),) = both.rows(
        "SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM samples), (SELECT count(*) FROM scrapes)"
    )
    assert (runs, samples) == (1, 2)
    assert scrapes >= 5
    assert both.rows("SELECT DISTINCT blocks, block_size FROM runs") == [(4096, 16)]


def test_what_is_stored_is_what_was_told(both: Both) -> None:
    both.more_pages()
    both.server.answer = whole(
        page([TOLD._replace(generation_tokens=560, kv_usage=4 / 59, itl=(0.02,) * 10 + (0.04,) * 5)])
    )
    both.more_pages()
    both.server.answer = whole(page([TOLD._replace(generation_tokens=7, itl=(0.3,))], start_s=1.8e9))
    both.more_pages()
    assert both.rows("SELECT sum(generation_tokens) FROM scrapes") == [(67.0,)]
    assert both.rows("SELECT count(*) FROM scrapes WHERE since IS NULL AND generation_tokens IS NULL") == [(1,)]
    assert both.rows("SELECT DISTINCT kv_usage FROM scrapes ORDER BY ALL") == [(4 / 59,), (0.25,)]
    told = both.rows("SELECT metric, count, sum, p50, p95, p99 FROM latency ORDER BY ts")
    assert told == [
        ("itl", 5.0, pytest.approx(0.2), pytest.approx(0.0375), pytest.approx(0.04875), pytest.approx(0.04975)),
        ("itl", 1.0, 0.3, pytest.approx(0.35), pytest.approx(0.485), pytest.approx(0.497)),
    ]
    assert both.rows("SELECT number, end_reason FROM runs ORDER BY number") == [(1, "restart"), (2, None)]


def test_two_ranks(both: Both) -> None:
    both.server.answer = whole(page([TOLD, TOLD._replace(engine=1, kv_usage=0.5)]))
    both.write(busy(0), busy(0, index=1))
    both.more_pages()
    assert both.rows(ENGINES) == [("chat/0", 1), ("chat/1", 1)]
    sql = "SELECT DISTINCT label, kv_usage FROM scrapes JOIN engines USING (engine_id) ORDER BY ALL"
    assert both.rows(sql)[-2:] == [("chat/0", 0.25), ("chat/1", 0.5)]


def test_each_scrape_is_stored_once_through_kills_and_restarts(both: Both) -> None:
    both.write(busy(0), busy(10))
    for end in (both.live.kill, both.live.stop):
        both.more_pages()
        both.rows("SELECT 1")
        both.more_pages()
        end()
        both.live.start()
    both.more_pages()
    ((rows, times),) = both.rows("SELECT count(*), count(DISTINCT ts) FROM scrapes")
    assert rows == times >= 9
    assert both.rows(ENGINES) == [("chat/0", 1)]
    assert both.rows("SELECT count(*) FROM runs") == [(1,)]


def test_what_was_seen_is_remembered(both: Both) -> None:
    both.write(busy(0))
    both.more_pages(5)
    stored = both.rows("SELECT epoch(ts) FROM scrapes ORDER BY ts")
    both.live.stop()
    both.live.store = both.live.store.open(both.live.db)
    both.live.store.transact([("DELETE FROM memories", [])])
    both.live.store.close()
    both.live.start()
    both.live.read_all()
    (track,) = both.live.intake.streams()[0].pipeline.tracks()
    assert [one.ts_s for one in track.window.eyes.recent][: len(stored)] == [pytest.approx(row[0]) for row in stored]


def test_of_a_log_of_two_servers_it_is_said_that_nobody_knows(both: Both) -> None:
    both.write(busy(0, pid=1), busy(1, pid=2), busy(10, pid=1))
    both.live.read_all()
    both.more_pages()
    (eye,) = both.live.intake.eyes()
    assert (eye.state, eye.mend) == ("unreadable", feed.SHARED)
    assert both.rows("SELECT count(*) FROM scrapes") == [(0,)]


def test_a_backlog_is_read_before_the_page_counts(both: Both) -> None:
    both.live.kill()
    old = [busy(10.0 * i, pid=1) for i in range(2000)]
    again = [busy(30_000 + 10.0 * i, pid=7) for i in range(3)]
    both.write(*old, *again)
    both.live.start()
    both.more_pages()
    sql = "SELECT DISTINCT number FROM scrapes JOIN runs USING (run_id)"
    assert both.rows(sql) == [(2,)]


def test_a_page_is_counted_beside_its_source_and_everywhere_alike(tmp_path: Path) -> None:
    with PageServer(whole(page([TOLD]))) as server:
        daemon = Running(tmp_path)
        try:
            text = daemon.config.read_text().replace("timezone: UTC", f"timezone: UTC, metrics: '{server.url}'")
            daemon.config.write_text(text)
            daemon.log.write_bytes(line_of(busy(0)) + b"\n")
            daemon.up()
            assert daemon.ask("status").out.startswith("kvlogd 0.1.0: 1 source (1 with /metrics), 1 log, ")
            [config] = [item.what for item in examine(daemon.config, [], START_S).items if item.link == "config"]
            assert config.startswith("1 source (1 with /metrics), ")
            daemon.send(signal.SIGHUP)
            until(lambda: f"reloaded: {config}\n" in daemon.said.read_text(), 60)
            assert daemon.stop() == 0
        finally:
            daemon.close()


def test_no_name_gets_out_of_a_real_daemon(tmp_path: Path) -> None:
    adapters = f'vllm:lora_requests_info{{running_lora_adapters="{CANARY}",engine="0"}} 1.0\n'.encode()
    good = whole(page([TOLD], model=CANARY) + adapters)
    with PageServer(good) as server:
        daemon = Running(tmp_path)
        try:
            text = daemon.config.read_text().replace("timezone: UTC", f"timezone: UTC, metrics: '{server.url}'")
            daemon.config.write_text(text)
            daemon.log.write_bytes(line_of(busy(0)) + b"\n")
            server.answer = whole(CANARY.encode() * 9, "500 Internal Server Error", f"X-Name: {CANARY}")
            daemon.up()
            until(lambda: scrape.FAILED in daemon.said.read_text(), 60)
            assert any(one["what"] == scrape.FAILED for one in daemon.status()["troubles"])
            server.answer = good
            daemon.eventually("SELECT count(*) AS n FROM scrapes", lambda rows: rows[0]["n"] >= 1)
            status = daemon.status()
            (eye,) = [one for one in status["sources"] if one["name"] == "chat /metrics"]
            assert (eye["state"], eye["records"] >= 1) == ("following", True)
            assert "chat /metrics" in daemon.ask("status").out
            until(lambda: "/metrics: in order again" in daemon.said.read_text(), 60)
            assert daemon.stop() == 0
        finally:
            daemon.close()
    assert CANARY not in str(status)
    assert found_in(tmp_path, CANARY) == []
