"""The child that reads the GPUs, on the stand-in for the driver's library."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvlogd.reading import DriverFault, GpuState
from tests.nvml.driver import (
    LOST,
    MIB,
    MISMATCH,
    NO_PERMISSION,
    NOT_LOADED,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    UNKNOWN,
    UUID,
    Driver,
)


class Child:
    """The real child; each `ask` is one reading."""

    def __init__(self, driver: Driver) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kvlogd.nvml"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=driver.environment,
            text=True,
        )

    def ask(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("poll\n")
        self.process.stdin.flush()
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told

    def gpus(self) -> list[dict[str, Any]]:
        gpus: list[dict[str, Any]] = self.ask()["gpus"]
        return gpus

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self.process.wait(30)


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path, 2)


@pytest.fixture
def child(driver: Driver) -> Iterator[Child]:
    child = Child(driver)
    yield child
    child.close()


def test_it_reads_what_there_is(child: Child, driver: Driver) -> None:
    driver.set(**{"1.used": 60_000 * MIB, "1.reasons": "0x24", "1.uncorrected": 3, "1.procs": f"4352:{1 << 30},99"})
    told = child.ask()
    assert told["driver"] == "580.95.05"
    assert told["notes"] == []
    first, second = told["gpus"]
    assert (first["uuid"], first["index"], first["state"]) == (UUID.format(0), 0, GpuState.OK)
    assert second == {
        "uuid": UUID.format(1), "index": 1, "state": "ok", "name": "NVIDIA Test 80GB", "total": 81_559 * MIB,
        "used": 60_000 * MIB, "free": 20_959 * MIB, "reserved": 600 * MIB, "util": 90, "memory_util": 40,
        "temperature": 61, "power": 402_000, "power_limit": 700_000, "sm_clock": 1980, "memory_clock": 2619,
        "limit_reasons": 0x24, "ecc_corrected": 0, "ecc_uncorrected": 3, "mig": False,
        "processes": [[4352, 1 << 30], [99, None]], "xid": None,
    }  # fmt: skip
    driver.set(used=1000 * MIB)
    assert [gpu["used"] for gpu in child.gpus()] == [1000 * MIB, 60_000 * MIB]


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (LOST, GpuState.LOST),
        (RESET_REQUIRED, GpuState.RESET_REQUIRED),
        (NO_PERMISSION, GpuState.NO_PERMISSION),
        (UNKNOWN, GpuState.FAILING),
    ],
)
def test_a_gpu_that_fails_hides_no_other_and_comes_back(
    child: Child, driver: Driver, code: int, state: GpuState
) -> None:
    child.ask()
    driver.set(**{"0.err": code})
    first, second = child.gpus()
    assert first == {"uuid": UUID.format(0), "index": 0, "state": state, "xid": None}
    assert (second["state"], second["used"]) == ("ok", 70_000 * MIB)
    driver.heal()
    assert [gpu["state"] for gpu in child.gpus()] == ["ok", "ok"]


def test_what_is_not_supported_is_null_and_noted_once(child: Child, driver: Driver) -> None:
    driver.set(**{"util": "-", "0.power": "-", "procs": "-", "mig": "-"})
    told = child.ask()
    assert told["notes"] == [["utilisation", 3], ["mig", 3], ["power", 3], ["processes", 3]]
    first, second = told["gpus"]
    for field in ("util", "memory_util", "power", "processes", "mig"):
        assert first[field] is None
    assert second["power"] == 402_000
    assert first["temperature"] == 61
    assert child.ask()["notes"] == []


def test_memory_without_the_second_version_is_read_by_the_first(child: Child, driver: Driver) -> None:
    driver.set(**{"nvmlDeviceGetMemoryInfo_v2.err": 13})
    told = child.ask()
    assert told["notes"] == [["memory v2", 13]]
    assert told["gpus"][0]["used"] == 70_600 * MIB
    assert "reserved" not in told["gpus"][0]
    driver.set(**{"nvmlDeviceGetMemoryInfo.err": NOT_SUPPORTED})
    [first, _] = child.gpus()
    assert first["state"] == "ok"
    assert "used" not in first
    assert first["util"] == 90


def test_an_old_driver_has_the_old_names(tmp_path: Path) -> None:
    driver = Driver(tmp_path, 1, "OLD_DRIVER")
    driver.set(reasons=4)
    child = Child(driver)
    told = child.ask()
    child.close()
    assert told["notes"] == []
    assert told["gpus"][0]["limit_reasons"] == 4


def test_a_name_that_is_no_utf_8_is_unknown(child: Child, driver: Driver) -> None:
    driver.answers.write_bytes(b"count 1\nname NVIDIA \xff\xfe\n")
    told = child.ask()
    assert told["gpus"][0]["name"] is None
    assert told["gpus"][0]["used"] == 70_000 * MIB
    assert told["notes"] == [["name", 0]]


def test_an_xid_is_told_once_and_for_its_gpu(child: Child, driver: Driver) -> None:
    driver.set(**{"1.xid": "13@1"})
    assert [gpu["xid"] for gpu in child.gpus()] == [None, None]  # it was there before
    driver.set(**{"1.xid": "79@2"})
    assert [gpu["xid"] for gpu in child.gpus()] == [None, 79]
    assert [gpu["xid"] for gpu in child.gpus()] == [None, None]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ({"nvmlInitWithFlags.err": NOT_LOADED}, DriverFault.NOT_LOADED),
        ({"nvmlInitWithFlags.err": MISMATCH}, DriverFault.MISMATCH),
        ({"nvmlInitWithFlags.err": NO_PERMISSION}, DriverFault.NO_PERMISSION),
        ({"nvmlInitWithFlags.err": UNKNOWN}, DriverFault.FAILED),
        ({"nvmlDeviceGetCount_v2.err": UNKNOWN}, DriverFault.FAILED),
    ],
)
def test_a_driver_that_fails_is_told_and_the_child_ends(
    child: Child, driver: Driver, answer: dict[str, int], fault: DriverFault
) -> None:
    driver.set(**answer)
    assert child.ask() == {"fault": fault}
    assert child.process.wait(30) == 0


def test_without_a_library_the_fault_says_so(child: Child, driver: Driver) -> None:
    driver.remove()
    assert child.ask() == {"fault": DriverFault.NO_LIBRARY}


def test_it_ends_when_nobody_asks_any_more(child: Child) -> None:
    child.ask()
    assert child.process.stdin is not None
    child.process.stdin.close()
    assert child.process.wait(30) == 0
