"""Scenario 58: a call never comes back. Values become unknown, logs are followed, one child at most is left."""

from pathlib import Path

import pytest

from tests.envelopes import plain
from tests.nvml.driver import Driver
from tests.nvml.host import children, newest, readings_after, running
from tests.test_replay import LINES

HOUR_MS = 3_600_000


@pytest.mark.parametrize("function", ["nvmlDeviceGetMemoryInfo_v2", "nvmlInitWithFlags"])
def test_058_a_driver_that_hangs_hides_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    driver = Driver(tmp_path, 2)
    is_begun = function != "nvmlInitWithFlags"
    if not is_begun:
        driver.set(**{f"{function}.ms": HOUR_MS})
    with running(tmp_path, driver, monkeypatch) as daemon:
        if is_begun:
            daemon.eventually("SELECT count(*) AS n FROM gpu_samples", lambda rows: rows[0]["n"] >= 2)
            driver.set(**{f"{function}.ms": HOUR_MS})
            daemon.eventually("SELECT DISTINCT state FROM gpus", lambda rows: rows == [{"state": "unknown"}])
            assert [gpu["memory_used_mib"] for gpu in daemon.status()["gpus"]] == [None, None]
            last = newest(daemon)
        daemon.eventually("SELECT 1 AS one", lambda _: "the NVIDIA driver does not answer" in daemon.said.read_text())
        daemon.log.write_bytes(plain(LINES))
        daemon.wait_for("WATCHDOG=1")
        daemon.eventually("SELECT count(*) AS n FROM samples", lambda rows: rows[0]["n"] > 0)
        assert len(children(daemon)) <= 1
        if is_begun:
            assert newest(daemon) == last
        driver.heal()
        rows = readings_after(daemon, last) if is_begun else daemon.eventually("FROM gpu_samples", bool)
        assert rows[0]["memory_used_mib"] == 70_000
        assert len(children(daemon)) <= 1
        assert daemon.stop() == 0
