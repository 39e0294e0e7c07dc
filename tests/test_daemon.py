"""The daemon as systemd and people meet it: a real process, real signals, a real store."""

import contextlib
import signal
import subprocess
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvlogd.store import Store
from tests import envelopes
from tests.command import installed
from tests.daemon import PATIENCE_S, Running
from tests.lines import line_of, record
from tests.test_privacy import CANARY, found_in, poisoned

REAL = Path(__file__).parent / "data" / "real" / "leak-to-hang-and-restart.log"
COUNT = "SELECT count(*) AS n FROM samples"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    found = Running(tmp_path)
    yield found
    found.close()


def lines(start: int, count: int) -> bytes:
    return b"".join(
        line_of(record(10 * n, running=2, generation_tps=50.0)) + b"\n" for n in range(start, start + count)
    )


def said(running: Running, text: str) -> str:
    """Wait until the daemon has written a text to its log; return all of it."""
    deadline = time.monotonic() + PATIENCE_S
    while text not in (found := running.said.read_text()):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def test_follows_answers_and_ends(running: Running) -> None:
    running.up()  # before the log is there
    running.log.write_bytes(REAL.read_bytes())
    running.eventually(COUNT, lambda rows: rows[0]["n"] == 291)
    alerts = running.rows("SELECT rule, state FROM alert_events ORDER BY ts, rule")
    assert [(a["rule"], a["state"]) for a in alerts] == [
        ("kv-leak", "firing"), ("kv-idle-residue", "firing"), ("engine-stall", "firing"),
        ("engine-stall", "resolved"), ("kv-idle-residue", "resolved"), ("kv-leak", "resolved"),
        ("restart-recovery", "firing"),
    ]  # fmt: skip
    status = running.status()
    assert [source["name"] for source in status["sources"]] == ["chat"]
    [engine] = status["engines"]
    assert engine["label"] == "chat/0"
    assert len(engine["course"]) == 12
    assert status["mode"] == "events"
    text = said(running, "kv-leak chat/0: over")
    assert "critical: kv-leak chat/0: free blocks" in text
    assert "UTC)" in text, "what happened long ago has its time"
    assert "STATUS=1 log, 1 engine, 1 alert firing, events" in running.wait_for("STATUS=1 log")
    assert running.stop() == 0
    assert not (running.folder / "kvlogd.sock").exists()


def test_new_lines_can_be_asked_for_at_once(running: Running) -> None:
    running.log.write_bytes(lines(0, 5))
    running.up()
    running.eventually(COUNT, lambda rows: rows[0]["n"] == 5)
    with running.log.open("ab") as log:
        log.write(lines(5, 1))
    running.eventually(COUNT, lambda rows: rows[0]["n"] == 6)


def test_a_bad_config_ends_it_with_78(running: Running) -> None:
    running.config.write_text("sources: [{name: chat, file: [x]}]\n")
    running.start()
    assert running.process is not None
    assert running.process.wait(PATIENCE_S) == 78
    assert f"{running.config}:1: unknown key file: did you mean files?" in running.said.read_text()


def test_a_bad_reload_keeps_the_old_config_and_a_good_one_takes_the_new(running: Running) -> None:
    running.log.write_bytes(lines(0, 5))
    running.up()
    good = running.config.read_text()
    running.config.write_text(good + "nonsense: 1\n")
    running.send(signal.SIGHUP)
    assert "MONOTONIC_USEC=" in running.wait_for("RELOADING=1")
    assert "READY=1\nSTATUS=reload failed" in running.wait_for("READY=1")
    assert "unknown key nonsense" in said(running, "nonsense")
    other = running.folder / "other.log"
    other.write_bytes(lines(0, 3))
    running.config.write_text(good.replace(str(running.log), f"{running.folder}/*.log"))
    running.send(signal.SIGHUP)
    running.wait_for("READY=1")
    # under their new names, and with them from their beginnings
    rows = running.eventually(
        "SELECT source, count(*) AS n FROM samples JOIN engines USING (engine_id) GROUP BY source ORDER BY source",
        lambda rows: len(rows) == 3,
    )
    assert [(row["source"], row["n"]) for row in rows] == [("chat", 5), ("chat/other.log", 3), ("chat/vllm.log", 5)]


def test_many_reloads_are_one_or_two(running: Running) -> None:
    running.up()
    for _ in range(100):
        running.send(signal.SIGHUP)
    said(running, "reloaded")
    running.status()
    assert running.said.read_text().count("reloaded") <= 5
    assert running.stop() == 0


def test_a_second_daemon_is_refused_and_told_whom_to_ask(running: Running) -> None:
    running.up()
    assert running.process is not None
    told = installed("run", "--config", running.config)
    assert told.status == 2
    assert f"process {running.process.pid} has the store open" in told.complaint
    assert running.rows(COUNT) == [{"n": 0}]


def test_the_stacks_of_all_threads_can_be_seen(running: Running) -> None:
    running.up()
    running.send(signal.SIGUSR1)
    text = said(running, "kvlogd/daemon.py")
    assert "Current thread" in text
    assert running.stop() == 0


def test_a_store_that_fails_costs_nothing_that_the_log_still_holds(running: Running) -> None:
    """26. A disk that is full, as the limit of a file's size."""
    running.log.write_bytes(lines(0, 2000))
    running.up()
    running.eventually(COUNT, lambda rows: rows[0]["n"] == 2000)
    assert running.process is not None
    size = running.store.stat().st_size
    _limit(running.process.pid, size)
    with running.log.open("ab") as log:
        log.write(lines(2000, 8_000))
    said(running, "store: ")
    assert running.process.poll() is None
    _limit(running.process.pid, None)
    running.eventually(COUNT, lambda rows: rows[0]["n"] == 10_000)
    said(running, "store: in order again")


def _limit(pid: int, size: int | None) -> None:
    """Let a process write no file larger than this: what a full disk is to it, but for the error's name."""
    bytes_ = "unlimited" if size is None else str(size)
    subprocess.run(["prlimit", "--pid", str(pid), f"--fsize={bytes_}:unlimited"], check=True)


def test_memory_outlives_a_kill(running: Running) -> None:
    running.log.write_bytes(REAL.read_bytes())
    running.up()
    running.eventually("SELECT count(*) AS n FROM memories", lambda rows: rows[0]["n"] == 1)
    running.eventually(COUNT, lambda rows: rows[0]["n"] == 291)
    running.kill()
    running.up()
    running.eventually(COUNT, lambda rows: rows[0]["n"] == 291)
    assert running.rows("SELECT count(*) AS n FROM alert_events") == [{"n": 7}]
    assert running.stop() == 0
    with Store.open(running.store, read_only=True) as store:
        assert len(store.runs()) == 2


def test_it_ends_while_it_reads_a_backlog(running: Running) -> None:
    running.log.write_bytes(lines(0, 60_000))
    running.up()
    begun = time.monotonic()
    assert running.stop() == 0
    assert time.monotonic() - begun < PATIENCE_S
    with contextlib.closing(Store.open(running.store)) as store:
        stored = next(iter(store.read("SELECT count(*) FROM samples")))[0]
        offset = next(iter(store.read("SELECT max(byte_offset) FROM positions")))[0]
    assert running.log.read_bytes()[:offset].count(b"\n") == stored


def test_no_canary_gets_into_store_memory_log_or_answers(running: Running) -> None:
    """67a. Everything on disk is looked at, and what the rules remember unpacked."""
    running.up()
    running.log.write_bytes(envelopes.plain(poisoned()))
    running.eventually(COUNT, lambda rows: rows[0]["n"] > 0)
    answers = running.ask("status", "--json").out + running.ask("sql", "SELECT * FROM events").out
    assert running.stop() == 0
    running.log.unlink()
    assert found_in(running.folder) == []
    assert CANARY not in answers
    with Store.open(running.store, read_only=True) as store:
        [memory] = store.memories()
    assert CANARY.encode() not in zlib.decompress(memory.memory)
