"""Scenario 57: one of eight GPUs is lost; seven keep all their samples, and the lost one is known again by its UUID."""

from pathlib import Path

import pytest

from tests.nvml.driver import LOST, RESET_REQUIRED, UNKNOWN, UUID, Driver
from tests.test_lookout import Seat
from tests.test_procfs import Host


def test_057_seven_keep_their_samples_and_the_lost_one_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(tmp_path, 8)
    for name in ("LD_LIBRARY_PATH", "NVML_STUB"):
        monkeypatch.setenv(name, driver.environment[name])
    seat = Seat(tmp_path, Host(tmp_path))
    lost, readings = UUID.format(3), 0

    def look(times: int) -> None:
        nonlocal readings
        for _ in range(times):
            seat.reading()
            seat.now_s += 30
            readings += 1

    look(3)
    lost_s = seat.now_s
    driver.set(**{"3.err": LOST})
    look(4)
    driver.set(**{"3.err": UNKNOWN})
    look(3)
    driver.set(**{"3.err": RESET_REQUIRED})
    look(3)

    states = seat.store.read("SELECT DISTINCT state FROM gpu_samples WHERE gpu = ? ORDER BY 1", [lost])
    assert [state for (state,) in states] == ["failing", "lost", "ok", "reset required"]
    first = seat.store.read("SELECT epoch(min(ts)) FROM gpu_samples WHERE state != 'ok'")[0][0]
    assert first - (1_767_225_600 + lost_s) <= 60
    others = seat.store.read("SELECT gpu, count(memory_used_mib) FROM gpu_samples WHERE gpu != ? GROUP BY gpu", [lost])
    assert {count for _, count in others} == {readings}
    assert len(others) == 7
    [fired] = seat.store.alert_events()
    assert (fired.key.rule, fired.key.scope, fired.state.value) == ("gpu-lost", f"gpu/{lost}", "firing")

    # after the reset its number is another one
    driver.heal()
    driver.set(**{"3.uuid": UUID.format(7), "7.uuid": lost})
    look(5)
    assert seat.store.read("SELECT device_index, state FROM gpus WHERE gpu = ?", [lost]) == [(7, "ok")]
    assert [event.state.value for event in seat.store.alert_events()] == ["firing", "resolved"]
    assert len(seat.store.gpus()) == 8
    seat.close()
