"""Scenario 61: `kvlogd gpu release` leaves no device open in the process tree, and the GPUs come back by themselves."""

from pathlib import Path

import pytest

from tests.nvml.driver import Driver
from tests.nvml.host import children, holders, newest, readings_after, running


def test_061_let_go_and_taken_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(tmp_path, 2)
    device = tmp_path / "nvidia0"
    device.write_bytes(b"")
    driver.set(device=device)
    with running(tmp_path, driver, monkeypatch) as daemon:
        daemon.eventually("SELECT count(*) AS n FROM gpu_samples", lambda rows: rows[0]["n"] >= 2)
        assert holders(daemon, device) == children(daemon) != set()
        told = daemon.ask("gpu", "release", "10m")
        assert (told.status, told.err) == (0, "")
        assert told.out == "released for 10 min; `sudo kvlogd gpu resume` takes them up before that\n"
        daemon.eventually("SELECT 1 AS one", lambda _: children(daemon) == set())
        assert holders(daemon, device) == set()
        daemon.eventually("SELECT DISTINCT state FROM gpus", lambda rows: rows == [{"state": "released"}])
        status = daemon.status()
        assert "let go of for another" in status["gpus_note"]
        assert [gpu["memory_used_mib"] for gpu in status["gpus"]] == [None, None]
        last = newest(daemon)
        assert daemon.ask("gpu", "resume").status == 0
        assert readings_after(daemon, last) != []
        assert daemon.ask("gpu", "release", "3s").status == 0
        last = newest(daemon)
        assert readings_after(daemon, last) != []
        assert holders(daemon, device) == children(daemon) != set()
        assert daemon.rows("SELECT * FROM alert_events") == []


def test_061_what_is_no_time_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(tmp_path)
    with running(tmp_path, driver, monkeypatch, "gpu: {enabled: no}\n") as daemon:
        assert "write it like 10m" in daemon.ask("gpu", "release", "soon").err
        assert "no GPU is read" in daemon.ask("gpu", "release", "10m").err
    told = daemon.ask("gpu", "release", "10m")
    assert (told.status, told.out) == (2, "")
    assert "no daemon serves this store" in told.err
