"""66 f. A daemon whose disk hangs ends with the second SIGTERM, and goes on where it stood."""

import signal
from pathlib import Path

import pytest

from kvlogd.daemon import BUSY_RECORDS
from tests.daemon import PATIENCE_S
from tests.faults.slow_disk import STUCK, on_slow_disk, send
from tests.lines import line_of, record
from tests.waiting import until

COUNT = "SELECT count(*) AS n FROM samples"
MANY = 2 * BUSY_RECORDS
"""So many are stored soon; few wait for a minute."""


def lines(start: int, count: int) -> bytes:
    return b"".join(line_of(record(10 * n)) + b"\n" for n in range(start, start + count))


def test_a_second_one_forces_whatever_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with on_slow_disk(tmp_path, monkeypatch) as (daemon, disk):
        daemon.log.write_bytes(lines(0, 100))
        daemon.eventually(COUNT, lambda rows: rows[0]["n"] == 100)
        disk.set(STUCK)
        with daemon.log.open("ab") as log:
            log.write(lines(100, MANY))
        until(disk.is_stuck, PATIENCE_S)
        assert daemon.process is not None
        send(daemon, signal.SIGTERM)
        assert daemon.process.poll() is None, "it does not let go of a commit for the first one"
        daemon.send(signal.SIGTERM)
        assert daemon.process.wait(PATIENCE_S) == -signal.SIGTERM
        disk.set(0)
        daemon.up()
        daemon.eventually(COUNT, lambda rows: rows[0]["n"] == 100 + MANY)
        assert daemon.rows("SELECT count(DISTINCT ts) AS n FROM samples") == [{"n": 100 + MANY}]
        assert daemon.stop() == 0


def test_the_first_one_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with on_slow_disk(tmp_path, monkeypatch) as (daemon, disk):
        disk.set(STUCK)
        daemon.log.write_bytes(lines(0, MANY))
        until(disk.is_stuck, PATIENCE_S)
        send(daemon, signal.SIGTERM)
        disk.set(0)
        assert daemon.process is not None
        assert daemon.process.wait(PATIENCE_S) == 0
        daemon.process = None
        daemon.up()
        assert daemon.rows(COUNT) == [{"n": MANY}]
