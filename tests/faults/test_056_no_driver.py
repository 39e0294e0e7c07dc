"""Scenario 56: without a driver, its library, its device nodes or the right to use them the daemon is ready.

GPU rules have no source, one message says what to do, and the GPUs are taken up when they come.
"""

from pathlib import Path

import pytest

from tests.nvml.driver import NO_PERMISSION, NOT_LOADED, UNKNOWN, Driver
from tests.nvml.host import newest, readings_after, running


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (None, "there is no NVIDIA driver"),
        (NOT_LOADED, "the NVIDIA driver is not loaded: modprobe nvidia"),
        (UNKNOWN, "see that /dev/nvidiactl and /dev/nvidia0 are there"),
        (NO_PERMISSION, "the GPUs may not be opened: give the service /dev/nvidia*"),
    ],
    ids=["no library", "not loaded", "no device nodes", "no permission"],
)
def test_056_gpus_are_taken_up_when_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int | None, message: str
) -> None:
    driver = Driver(tmp_path, 2)
    if fault is None:
        driver.remove()
    else:
        driver.set(**{"nvmlInitWithFlags.err": fault})
    with running(tmp_path, driver, monkeypatch) as daemon:
        daemon.eventually("SELECT 1 AS one", lambda _: message in daemon.said.read_text())
        status = daemon.status()
        assert {rule["rule"] for rule in status["rules"] if rule["state"] == "no source"} >= {
            "gpu-memory-growth", "gpu-skew", "gpu-lost",
        }  # fmt: skip
        assert status["gpus"] == []
        assert message.partition(": ")[0] in status["gpus_note"] or message in status["gpus_note"]
        # a host without any driver may be one without GPUs, which is no trouble
        assert any(trouble["where"] == "gpu" for trouble in status["troubles"]) == (fault is not None)
        assert daemon.rows("SELECT * FROM gpu_samples") == []
        if fault is None:
            driver.install()
        else:
            driver.heal()
        daemon.eventually("SELECT count(*) AS n FROM gpu_samples", lambda rows: rows[0]["n"] >= 2)
        assert len(readings_after(daemon, newest(daemon))) > 0
        assert daemon.said.read_text().count(message) == 1
        over = "gpu: there is a driver now" if fault is None else "gpu: in order again"
        assert over in daemon.said.read_text()
        assert [gpu["state"] for gpu in daemon.status()["gpus"]] == ["ok", "ok"]
