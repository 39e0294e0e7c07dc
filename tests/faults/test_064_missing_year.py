"""64. Stamps without a year: nearest to the file's own time, then by position; New Year and 29 February."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.command import kvlogd
from tests.logs import Server


def replayed(folder: Path, start: datetime, records: int, written: datetime, *options: str) -> tuple[str, str]:
    """Return the first and last time that a replay sees in a log that was last written at some time."""
    server = Server(seed=64, start=start)
    server.start()
    server.busy(records, 5, 0.2)
    log = folder / "vllm.log"
    log.write_bytes(server.text())
    os.utime(log, (written.timestamp(), written.timestamp()))
    told = kvlogd("replay", "--json", "--timezone", "UTC", *options, log)
    assert told.alerts == []
    assert told.summary["stats_lines"] == records
    assert told.summary["runs"] == 1
    return told.summary["first"], told.summary["last"]


@pytest.mark.parametrize("options", [(), ("--year", "2025")], ids=["by the file", "by --year"])
def test_new_year(tmp_path: Path, options: tuple[str, ...]) -> None:
    start = datetime(2025, 12, 31, 23, 30, tzinfo=UTC)
    end = start + timedelta(seconds=40 + 3600)
    first, last = replayed(tmp_path, start, 360, end, *options)
    assert (first, last) == (start.isoformat(), end.isoformat())


def test_a_log_of_last_december_copied_in_march(tmp_path: Path) -> None:
    start = datetime(2025, 12, 10, 8, 0, tzinfo=UTC)
    first, _ = replayed(tmp_path, start, 60, datetime(2026, 3, 5, tzinfo=UTC))
    assert first == start.isoformat()


def test_29_february(tmp_path: Path) -> None:
    start = datetime(2024, 2, 28, 23, 50, tzinfo=UTC)
    first, last = replayed(tmp_path, start, 360, datetime(2024, 3, 1, tzinfo=UTC))
    assert first == start.isoformat()
    assert last.startswith("2024-02-29T00:50")
