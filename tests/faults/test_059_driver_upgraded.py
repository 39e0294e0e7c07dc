"""Scenario 59: the driver is changed underneath; a new child meets the new one, and the daemon goes on."""

from pathlib import Path

import pytest

from tests.nvml.driver import MISMATCH, Driver
from tests.nvml.host import children, newest, readings_after, running


def test_059_a_new_child_meets_the_new_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(tmp_path, 2)
    with running(tmp_path, driver, monkeypatch) as daemon:
        daemon.eventually("SELECT count(*) AS n FROM gpu_samples", lambda rows: rows[0]["n"] >= 2)
        [first] = children(daemon)
        driver.set(**{"nvmlDeviceGetCount_v2.err": MISMATCH, "nvmlInitWithFlags.err": MISMATCH})
        message = "if it lasts, reload the nvidia modules or reboot"
        daemon.eventually("SELECT 1 AS one", lambda _: message in daemon.said.read_text())
        assert "different versions" in daemon.status()["gpus_note"]
        driver.set(driver="590.10.01")
        driver.heal()
        assert readings_after(daemon, newest(daemon)) != []
        daemon.eventually("SELECT DISTINCT driver FROM gpus", lambda rows: rows == [{"driver": "590.10.01"}])
        assert children(daemon) != {first}
        assert daemon.said.read_text().count(message) == 1
