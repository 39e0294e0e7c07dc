"""63. The night of a clock change, in a log of local time: order by position, both hours right with a zone."""

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.command import replay, sql
from tests.logs import Server

BERLIN = ZoneInfo("Europe/Berlin")


class LocalServer(Server):
    """A server whose stamps are those of Berlin."""

    def log(self, file: str, message: str, *, level: str = "INFO", process: str = "APIServer", pid: int = 0) -> None:
        """Write a line with the local time."""
        true = self.now
        self.now = true.astimezone(BERLIN)
        super().log(file, message, level=level, process=process, pid=pid)
        self.now = true


@pytest.mark.parametrize(
    "start",
    [datetime(2026, 10, 24, 23, 0, tzinfo=UTC), datetime(2026, 3, 28, 23, 0, tzinfo=UTC)],
    ids=["autumn", "spring"],
)
def test_both_hours_are_right(tmp_path: Path, start: datetime) -> None:
    server = LocalServer(seed=63, start=start)
    server.start()
    server.busy(1080, 5, 0.2)
    log, db = tmp_path / "vllm.log", tmp_path / "s.duckdb"
    log.write_bytes(server.text())
    told = replay(log, "--db", db, "--timezone", "Europe/Berlin")
    assert told.alerts == []
    assert told.summary["runs"] == 1
    assert told.summary["stats_lines"] == 1080
    assert told.summary["last"] == server.now.isoformat()
    steps = sql(db, "SELECT DISTINCT epoch(ts - lag(ts) OVER (ORDER BY ts)) AS step FROM samples ORDER BY 1")
    assert [row["step"] for row in steps if row["step"]] == ["10.0"]


def test_without_a_zone_nothing_cries_wolf(tmp_path: Path) -> None:
    server = LocalServer(seed=63, start=datetime(2026, 10, 24, 23, 0, tzinfo=UTC))
    server.start()
    server.busy(1080, 5, 0.2)
    log = tmp_path / "vllm.log"
    log.write_bytes(server.text())
    told = replay(log, "--timezone", "UTC")
    assert told.alerts == []
    assert told.status == 0
