"""40. A restart splits everything: no rate, trend or floor reaches from one life into the next."""

from pathlib import Path

import pytest

from tests.command import replay, sql
from tests.logs import Server


def lives(usages: list[float], *, noisy: bool) -> Server:
    """Return a server whose lives differ in how much they use; silent ones print no start-up line."""
    server = Server(seed=40)
    server.start()
    for number, usage in enumerate(usages):
        if number:
            server.pause(90)
            server.pid += 17
            if noisy:
                server.start()
        server.busy(70, 8, usage)
        server.settle(0.0)
    return server


@pytest.mark.parametrize("noisy", [True, False], ids=["start-up lines", "new process only"])
def test_lives_are_not_compared(tmp_path: Path, noisy: bool) -> None:
    log, db = tmp_path / "vllm.log", tmp_path / "s.duckdb"
    log.write_bytes(lives([0.1, 0.3, 0.5, 0.7, 0.2], noisy=noisy).text())
    told = replay(log, "--db", db)
    assert told.alerts == []
    assert told.summary["runs"] == 5
    numbers = sql(db, "SELECT number, count(*) AS n FROM samples JOIN runs USING (run_id) GROUP BY 1 ORDER BY 1")
    assert [(row["number"], row["n"]) for row in numbers] == [(str(i), "71") for i in range(1, 6)]


def test_a_restart_with_another_pool_is_another_run(tmp_path: Path) -> None:
    server = Server(seed=41)
    server.start()
    server.busy(60, 8, 0.3)
    text = server.text()
    server.restart()
    server.busy(60, 8, 0.15)
    text += server.text()[len(text) :].replace(b"65,536 tokens", b"131,072 tokens")
    log, db = tmp_path / "vllm.log", tmp_path / "s.duckdb"
    log.write_bytes(text)
    assert replay(log, "--db", db).alerts == []
    assert [row["kv_tokens"] for row in sql(db, "SELECT kv_tokens FROM runs ORDER BY number")] == ["65536", "131072"]


def test_an_alert_ends_with_the_life_that_it_is_about(tmp_path: Path) -> None:
    server = Server(seed=42)
    server.start()
    server.busy(60, 8, 0.3)
    server.busy(150, 8, 0.3, grows=0.003)
    server.stop()
    server.restart()
    server.busy(60, 8, 0.3)
    log = tmp_path / "vllm.log"
    log.write_bytes(server.text())
    fired, resolved = replay(log).alerts
    assert (fired["verdict"], fired["run"], fired["state"]) == ("kv-leak", 1, "firing")
    assert (resolved["verdict"], resolved["run"], resolved["reason"]) == ("kv-leak", 1, "restart")
