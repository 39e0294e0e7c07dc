"""What the doctor says of GPUs: the stand-in driver is asked in a real child, and one that hangs costs little."""

import os
from pathlib import Path

import pytest

from kvlogd import gpucheck
from kvlogd.checkup import Item, Mark, worst
from kvlogd.clock import Clock
from kvlogd.config import Enabled
from kvlogd.doctor import examine
from kvlogd.procfs import ProcFs
from kvlogd.reading import DriverFault
from kvlogd.status import GpuStatus, Mode, Status
from tests.lines import START_S
from tests.nvml.driver import LOST, MISMATCH, NOT_LOADED, Driver
from tests.nvml.host import running


def looked(enabled: Enabled = Enabled.AUTO, status: Status | None = None) -> list[Item]:
    return list(gpucheck.items(enabled, status, Clock()))


def test_it_tells_how_many_gpus_there_are_and_the_drivers_version(driver: Driver) -> None:
    assert looked() == [Item("GPU", Mark.OK, "2 GPUs can be read, driver 580.95.05")]


def test_a_gpu_that_is_lost_is_told_with_what_to_do(driver: Driver) -> None:
    driver.set(count=8, **{"3.nvmlDeviceGetMemoryInfo_v2.err": LOST, "5.err": LOST})
    whole, *ill = looked()
    assert (whole.mark, whole.what) == (Mark.OK, "6 GPUs can be read, driver 580.95.05")
    assert {(item.link, item.mark, item.what) for item in ill} == {
        ("GPU 3", Mark.FAIL, "is lost"),
        ("GPU 5", Mark.FAIL, "is lost"),
    }
    assert all("xid" in item.mend for item in ill)


def test_all_gpus_lost_is_no_driver_that_is_silent(driver: Driver) -> None:
    driver.set(**{"0.err": LOST, "1.err": LOST})
    found = looked()
    assert [item.mark for item in found] == [Mark.WARN, Mark.FAIL, Mark.FAIL]
    assert found[0].what.startswith("0 GPUs can be read")


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        ("nvmlInitWithFlags", NOT_LOADED, "the NVIDIA driver is not loaded"),
        ("nvmlDeviceGetCount_v2", MISMATCH, "the NVIDIA driver was changed underneath"),
    ],
)
def test_a_driver_that_fails_is_told_with_its_mend(driver: Driver, call: str, error: int, told: str) -> None:
    driver.set(**{f"{call}.err": error})
    [auto] = looked()
    [wanted] = looked(Enabled.YES)
    assert auto.what.startswith(told)
    assert (auto.mark, wanted.mark) == (Mark.WARN, Mark.FAIL)
    assert auto.mend


def test_a_driver_that_hangs_is_left_after_a_while(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpucheck, "ANSWER_S", 1.0)
    driver.set(**{"nvmlInitWithFlags.ms": 3_600_000})
    [item] = looked()
    assert (item.mark, item.what) == (Mark.WARN, "the NVIDIA driver did not answer within 1 s")
    assert "nvidia-smi" in item.mend
    children = {one.pid for one in ProcFs().processes().values() if one.parent == os.getpid()}
    assert not [pid for pid in children if b"kvlogd.nvml" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_host_without_a_driver_is_in_order_unless_gpus_are_wanted(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver.remove()
    monkeypatch.setattr(gpucheck, "NVIDIA", (tmp_path / "none",))
    assert looked() == [Item("GPU", Mark.OK, "no NVIDIA driver is loaded")]
    assert worst(looked(Enabled.YES)) is Mark.FAIL
    monkeypatch.setattr(gpucheck, "NVIDIA", (tmp_path,))
    [item] = looked()
    assert (item.mark, item.what) == (Mark.WARN, "there is no NVIDIA driver (libnvidia-ml.so.1)")


def test_it_is_not_asked_where_nobody_wants_it(driver: Driver) -> None:
    driver.set(**{"nvmlInitWithFlags.ms": 3_600_000})
    assert looked(Enabled.NO) == [Item("GPU", Mark.OK, "not asked, as the config says")]
    released = (GpuStatus("GPU-a", "released", 0), GpuStatus("GPU-b", "released", 1))
    [item] = looked(status=Status("1", 1, 0.0, 0.0, Mode.EVENTS, "s", gpus=released))
    assert item.mark is Mark.OK
    assert "has let go of them" in item.what


def test_what_the_daemon_told_is_not_told_again(driver: Driver) -> None:
    driver.set(**{"1.err": LOST})
    gpus = (GpuStatus("GPU-a", "ok", 0), GpuStatus("GPU-b", "lost", 1))
    found = looked(status=Status("1", 1, 0.0, 0.0, Mode.EVENTS, "s", gpus=gpus))
    assert [item.link for item in found] == ["GPU 1", "GPU"]


def test_the_doctor_asks_beside_a_daemon_that_reads_them(
    tmp_path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, driver, monkeypatch) as daemon:
        daemon.eventually("SELECT 1 AS one", lambda _: bool(daemon.status()["gpus"]))
        items, _ = examine(daemon.config, [], START_S)
    assert [item for item in items if "GPU" in item.link] == [
        Item("GPU", Mark.OK, "2 GPUs can be read, driver 580.95.05")
    ]


def test_a_silent_driver_is_no_fault_of_its_own() -> None:
    [item] = gpucheck.judged(gpucheck.Answer(fault=DriverFault.HUNG), Enabled.AUTO, has_driver=True, is_told=False)
    assert item.what == "the NVIDIA driver does not answer"
