"""29. While a daemon has the store, commands work through it, no second writer gets in, and nothing harms the first.

The daemon is `tests.host`: a process that commits in a loop and serves the socket.
"""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvlogd import ask, wire
from kvlogd.errors import StoreError
from kvlogd.store import Store
from tests import host
from tests.command import kvlogd
from tests.test_sqlgate import ATTACKS

DEADLINE_S = 60
"""Far more than commits may be held up, on a machine that is busy."""
HEAVY = [
    "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range + b.range = -1",
    "SELECT * FROM range(100000000) ORDER BY hash(range)",
    "WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT x FROM t, unnest([1,2,3,4,5,6,7]) u(x)) SELECT count(*) FROM t",
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv.duckdb"


@pytest.fixture
def daemon(path: Path) -> Iterator["subprocess.Popen[str]"]:
    with host.running(path) as process:
        yield process


def test_commands_work_through_the_daemon(path: Path, daemon: "subprocess.Popen[str]") -> None:
    count = "SELECT count(*) AS n FROM samples"
    before = json.loads(kvlogd("sql", "--db", path, "--format", "json", count).out)[0]["n"]
    committed = host.asked(daemon)["commits"]
    while host.asked(daemon)["commits"] < committed + 3:
        pass
    assert json.loads(kvlogd("sql", "--db", path, "--format", "json", count).out)[0]["n"] >= before + 3
    assert f"process {daemon.pid}, " in kvlogd("status", "--db", path).out
    assert kvlogd("snapshot", "--db", path, path.parent / "copy.duckdb").status == 0


def test_a_second_writer_is_told_who_has_it(path: Path, daemon: "subprocess.Popen[str]") -> None:
    with pytest.raises(StoreError, match=f"process {daemon.pid} has the store open"):
        Store.open(path)
    second = subprocess.run(
        [sys.executable, "-m", "tests.host", str(path)], capture_output=True, text=True, check=False, input=""
    )
    assert second.returncode != 0
    assert f"process {daemon.pid} has the store open" in second.stderr
    assert host.asked(daemon)["failed"] == 0


def test_a_bare_client_is_refused_and_harms_nothing(path: Path, daemon: "subprocess.Popen[str]") -> None:
    for read_only in (True, False) * 3:
        assert f"PID {daemon.pid}" in host.opened_elsewhere(path, read_only=read_only)
    for sql in ATTACKS[::5]:  # all of them: tests/test_endpoint.py
        assert kvlogd("sql", "--db", path, "--format", "csv", sql).status == 2
    for read_only in (True, False):
        assert f"PID {daemon.pid}" in host.opened_elsewhere(path, read_only=read_only)
    committed = host.asked(daemon)
    assert (committed["failed"], committed["faults"]) == (0, 0)
    assert (
        kvlogd("sql", "--db", path, "--format", "csv", "SELECT count(*) > 3 AS b FROM samples").out == "b\r\ntrue\r\n"
    )


def test_a_copy_of_the_file_under_the_daemon_harms_nothing(path: Path, daemon: "subprocess.Popen[str]") -> None:
    shutil.copy(path, path.parent / "copy.duckdb")  # by this process, not by the daemon
    assert f"PID {daemon.pid}" in host.opened_elsewhere(path, read_only=False)
    assert host.asked(daemon)["failed"] == 0


def test_heavy_queries_do_not_hold_commits_up(path: Path, daemon: "subprocess.Popen[str]") -> None:
    said: list[str] = []

    def asking(sql: str) -> None:
        try:
            with ask.sql(wire.places(path, None), path, sql, 1000) as found:
                said.append(f"{len(list(found.rows))} rows")
        except StoreError as error:
            said.append(str(error))

    askers = [threading.Thread(target=asking, args=[sql]) for sql in HEAVY]
    for asker in askers:
        asker.start()
    begun = host.asked(daemon)["commits"]
    worst_s = 0.0
    while any(asker.is_alive() for asker in askers):
        worst_s = max(worst_s, host.asked(daemon)["worst_s"])
    for asker in askers:
        asker.join()
    end = host.asked(daemon)
    assert end["commits"] > begun + 10
    assert worst_s < DEADLINE_S
    assert end["faults"] == 0
    allowed = ("longer than 30 s", "Out of Memory", "had to be reopened", "wrote more than", "2 queries run already")
    assert len(said) == len(HEAVY)
    assert all(any(words in text for words in allowed) for text in said), said
    number = kvlogd("sql", "--db", path, "--format", "csv", "SELECT count(*) AS n FROM samples").out.split()[1]
    assert int(number) >= end["commits"] + 3


def test_what_was_committed_is_there_when_the_daemon_has_gone(path: Path) -> None:
    with host.running(path) as daemon:
        kvlogd("sql", "--db", path, "FROM samples")
        committed = host.asked(daemon)["commits"]
        assert (path.parent / "kvlogd.sock").exists()
    assert not (path.parent / "kvlogd.sock").exists()
    told = kvlogd("sql", "--db", path, "--format", "csv", "SELECT count(*) AS n FROM samples")
    assert int(told.out.split()[1]) >= committed + 3
