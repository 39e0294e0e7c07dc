"""68 d. A store that takes a second for each commit, or hangs: reading waits for it, and nothing is dropped."""

import select
from pathlib import Path

import pytest

from kvlogd.daemon import COMMIT_RECORDS
from kvlogd.intake import BUDGET_BYTES
from tests.daemon import PATIENCE_S, Running
from tests.faults.slow_disk import STUCK, on_slow_disk
from tests.lines import line_of, record
from tests.waiting import until

COUNT = "SELECT count(*) AS n FROM samples"
BACKLOG = 5 * COMMIT_RECORDS // 2
LOOKS, LOOK_S = 5, 0.2


def lines(count: int) -> bytes:
    return b"".join(line_of(record(10 * n, running=n % 7)) + b"\n" for n in range(count))


def read_bytes(daemon: Running) -> int:
    """Return how much the daemon has read, of whatever file."""
    assert daemon.process is not None
    return int(Path(f"/proc/{daemon.process.pid}/io").read_text().split()[1])


def test_a_store_that_hangs_stops_the_reading_and_a_slow_one_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backlog = lines(BACKLOG)
    most_unstored = COMMIT_RECORDS * len(backlog) // BACKLOG + 3 * BUDGET_BYTES
    assert most_unstored < len(backlog)
    with on_slow_disk(tmp_path, monkeypatch) as (daemon, disk):
        disk.set(STUCK)
        before = read_bytes(daemon)
        daemon.log.write_bytes(backlog)
        until(disk.is_stuck, PATIENCE_S)
        read = read_bytes(daemon) - before
        assert read <= most_unstored
        for _ in range(LOOKS):
            select.select([], [], [], LOOK_S)
            assert read_bytes(daemon) - before <= read + 65_536, "it reads on while nothing can be stored"
        disk.set(1000)
        daemon.eventually(COUNT, lambda rows: rows[0]["n"] == BACKLOG)
        [found] = daemon.rows("SELECT count(DISTINCT ts) AS n, sum(running) AS of FROM samples")
        assert found == {"n": BACKLOG, "of": sum(n % 7 for n in range(BACKLOG))}
        assert daemon.rows("SELECT * FROM gaps") == []
        disk.set(0)
        assert daemon.stop() == 0
