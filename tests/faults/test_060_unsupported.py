"""Scenario 60: what a GPU cannot tell is NULL, never 0; each such field is told once, and rules on it say nothing."""

from pathlib import Path

import pytest

from tests.nvml.driver import Driver
from tests.nvml.host import children, newest, readings_after, running


def test_060_unknown_is_null_and_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(tmp_path)
    driver.set(**{
        "util": "-", "power": "-", "sm": "-", "corrected": "-", "mig": 1, "procs": "4711",
        "nvmlDeviceGetMemoryInfo_v2.err": 13,
    })  # fmt: skip
    with driver.answers.open("ab") as answers:
        answers.write(b"name NVIDIA \xff\xfe\n")
    with running(tmp_path, driver, monkeypatch) as daemon:
        daemon.eventually("SELECT count(*) AS n FROM gpu_samples", lambda rows: rows[0]["n"] >= 3)
        row = readings_after(daemon, newest(daemon))[0]
        for column in (
            "util_share", "memory_util_share", "power_w", "sm_clock_mhz", "ecc_corrected", "ecc_uncorrected",
            "memory_reserved_mib", "others_mib", "engines_mib", "xid",
        ):  # fmt: skip
            expected = 0 if column == "engines_mib" else None
            assert row[column] == (0 if column == "ecc_uncorrected" else expected), column
        assert (row["memory_used_mib"], row["temperature_c"], row["state"]) == (70_600, 61, "ok")
        assert daemon.rows("SELECT name, mig FROM gpus") == [{"name": None, "mig": True}]
        assert daemon.rows("SELECT DISTINCT pid, memory_mib FROM gpu_processes") == [{"pid": 4711, "memory_mib": None}]
        said = daemon.said.read_text()
        for field in ("memory v2", "utilisation", "power", "sm clock", "ecc", "name"):
            assert said.count(f"gpu: {field} cannot be read") == 1, field
        assert daemon.rows("SELECT * FROM alert_events") == []
        assert daemon.process is not None
        for pid, is_child in ((daemon.process.pid, False), *((child, True) for child in children(daemon))):
            assert ("libnvidia-ml" in Path(f"/proc/{pid}/maps").read_text()) is is_child
