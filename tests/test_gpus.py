"""The parent of the child that reads the GPUs; time is an argument, the child is real unless it must misbehave."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvlogd.gpus import FRESH_S, MENDS, Gpus, News
from kvlogd.reading import DriverFault, Gpu, GpuState
from tests.nvml.driver import LOST, MISMATCH, UUID, Driver
from tests.waiting import until

T0 = 1_767_225_600.0


class Clocked:
    """Gpus with a clock that a test moves."""

    def __init__(self, gpus: Gpus) -> None:
        self.gpus = gpus
        self.now_s = 1000.0

    def look(self) -> News:
        return self.gpus.poll(self.now_s, T0 + self.now_s)

    def later(self, by_s: float) -> News:
        self.now_s += by_s
        return self.look()

    def until(self, holds: Callable[[News], bool]) -> News:
        """Look until something came, while the clock stands still."""
        news = News()

        def came() -> bool:
            nonlocal news
            news = self.look()
            return holds(news)

        until(came)
        return news

    def reading(self) -> News:
        return self.until(lambda news: bool(news.found))

    def fault(self, fault: DriverFault) -> None:
        self.until(lambda _: self.gpus.fault is fault)

    def close(self) -> None:
        self.gpus.close()
        until(lambda: not self.gpus.is_stuck())


@pytest.fixture
def eyes(driver: Driver) -> Iterator[Clocked]:
    clocked = Clocked(Gpus(30.0))
    yield clocked
    clocked.close()


def lying(program: str) -> Clocked:
    return Clocked(Gpus(30.0, command=(sys.executable, "-c", program)))


def test_it_reads_once_an_interval(eyes: Clocked) -> None:
    first = eyes.reading()
    assert [one.gpu.gpu for one in first.found] == [UUID.format(0), UUID.format(1)]
    one = first.found[0]
    assert one.gpu == Gpu(UUID.format(0), 0, "NVIDIA Test 80GB", 81_559.0, "580.95.05", False, "ok", T0 + 1000)
    assert one.sample.ts_s == T0 + 1000
    assert one.sample[2:8] == (0.9, 70_000.0, 81_559.0, 61.0, 402.0, 1980.0)
    assert (one.sample.memory_reserved_mib, one.sample.power_limit_w) == (600.0, 700.0)
    assert eyes.later(29.0) == News()
    eyes.now_s += 1.0
    assert eyes.reading().found[0].sample.ts_s == T0 + 1030


def test_what_is_not_supported_comes_as_none(eyes: Clocked, driver: Driver) -> None:
    driver.set(util="-", procs="4711")
    news = eyes.reading()
    assert news.notes == (("utilisation", 3),)
    assert news.found[0].sample.util is None
    assert news.found[0].processes == ((4711, None),)


def test_without_a_driver_it_tries_ever_more_seldom_and_meets_one_that_comes(eyes: Clocked, driver: Driver) -> None:
    driver.remove()
    waits = []
    for _ in range(4):
        eyes.gpus.fault = None
        eyes.fault(DriverFault.NO_LIBRARY)
        waits.append(eyes.gpus._retry_at_s - eyes.now_s)
        eyes.now_s = eyes.gpus._retry_at_s
    assert waits == [1, 2, 4, 8]
    driver.install()
    assert len(eyes.reading().found) == 2
    assert eyes.gpus.fault is None


def test_a_driver_that_was_changed_underneath_is_met_by_a_new_process(eyes: Clocked, driver: Driver) -> None:
    eyes.reading()
    assert eyes.gpus._child is not None
    first = eyes.gpus._child.pid
    driver.set(**{"nvmlDeviceGetCount_v2.err": MISMATCH})
    eyes.now_s += 30
    eyes.fault(DriverFault.MISMATCH)
    driver.heal()
    eyes.now_s += 2
    eyes.reading()
    assert eyes.gpus._child is not None
    assert eyes.gpus._child.pid != first


@pytest.mark.parametrize("function", ["nvmlDeviceGetMemoryInfo_v2", "nvmlInitWithFlags"])
def test_a_call_that_hangs_makes_values_unknown_and_leaves_one_child(
    eyes: Clocked, driver: Driver, function: str
) -> None:
    if function != "nvmlInitWithFlags":
        eyes.reading()
    driver.set(**{f"{function}.ms": 3_600_000})
    states: list[str] = []
    began_s = eyes.now_s
    while eyes.now_s < began_s + 150:
        for one in eyes.later(5.0).found:
            assert one.sample.memory_used_mib is None
            states.append(one.sample.state)
        living = [child for child in (eyes.gpus._child, eyes.gpus._stuck) if child is not None and child.poll() is None]
        assert len(living) <= 1
    assert eyes.gpus.fault is DriverFault.HUNG
    assert states == ([] if function == "nvmlInitWithFlags" else ["unknown", "unknown"])
    driver.heal()
    eyes.now_s += 300
    eyes.until(lambda _: eyes.gpus.fault is None or eyes.later(1.0) is None)
    assert {gpu.state for gpu in eyes.gpus.gpus.values()} == {"ok"}


def test_a_child_that_cannot_be_ended_is_left_and_none_is_started_beside_it(driver: Driver) -> None:
    eyes = Clocked(Gpus(30.0))
    eyes.reading()

    class Immortal:
        def poll(self) -> None:
            return None

    eyes.gpus._end()
    until(lambda: not eyes.gpus.is_stuck())
    eyes.gpus._stuck = Immortal()  # type: ignore[assignment]
    for _ in range(20):
        eyes.later(60.0)
    assert eyes.gpus._child is None
    assert eyes.gpus.is_stuck()
    assert {gpu.state for gpu in eyes.gpus.gpus.values()} == {"unknown"}


def test_a_lost_gpu_keeps_its_name_and_a_new_process_looks_at_it(eyes: Clocked, driver: Driver) -> None:
    eyes.reading()
    assert eyes.gpus._child is not None
    first = eyes.gpus._child.pid
    driver.set(**{"1.err": LOST})
    eyes.now_s += 30
    lost = eyes.reading().found[1]
    assert (lost.gpu.state, lost.gpu.name, lost.gpu.seen_s) == (GpuState.LOST, "NVIDIA Test 80GB", T0 + 1000)
    assert lost.sample.memory_used_mib is None
    for _ in range(3):
        eyes.now_s += FRESH_S / 2
        fine = eyes.reading().found[0]
        assert fine.sample.memory_used_mib == 70_000
    eyes.now_s += 1
    eyes.look()
    until(lambda: eyes.look() is not None and eyes.gpus._child is not None)
    assert eyes.gpus._child.pid != first


def test_a_gpu_that_is_not_listed_any_more_is_absent_and_is_known_again_by_its_uuid(
    eyes: Clocked, driver: Driver
) -> None:
    eyes.reading()
    driver.set(**{"count": 1, "0.uuid": UUID.format(1)})
    eyes.now_s += 30
    states = {one.gpu.gpu: (one.gpu.state, one.gpu.device_index) for one in eyes.reading().found}
    assert states == {UUID.format(1): ("ok", 0), UUID.format(0): ("absent", 0)}
    driver.set(**{"count": 2, "1.uuid": UUID.format(0)})
    eyes.now_s += 30
    states = {one.gpu.gpu: (one.gpu.state, one.gpu.device_index) for one in eyes.reading().found}
    assert states == {UUID.format(1): ("ok", 0), UUID.format(0): ("ok", 1)}


def test_what_was_known_before_counts_as_expected(driver: Driver) -> None:
    old = Gpu("GPU-old", 2, "NVIDIA Old", 40_000.0, None, None, "ok", T0)
    eyes = Clocked(Gpus(30.0, [old]))
    found = {one.gpu.gpu: one for one in eyes.reading().found}
    assert found["GPU-old"].gpu == old._replace(state="absent")
    assert found["GPU-old"].sample.state == "absent"
    eyes.close()


def test_release_ends_the_child_and_comes_back_by_itself(eyes: Clocked) -> None:
    eyes.reading()
    assert eyes.gpus._child is not None
    child = eyes.gpus._child
    eyes.gpus.release(eyes.now_s, 600.0)
    until(lambda: child.poll() is not None)
    assert [one.sample.state for one in eyes.later(1.0).found] == ["released", "released"]
    assert eyes.gpus.released_for_s(eyes.now_s) == 599
    for _ in range(9):
        assert eyes.later(60.0) == News()
        assert eyes.gpus._child is None
    eyes.now_s += 60
    assert [one.sample.state for one in eyes.reading().found] == ["ok", "ok"]
    assert eyes.gpus.released_for_s(eyes.now_s) is None


@pytest.mark.parametrize(
    "program",
    [
        "raise SystemExit(3)",
        "input(); print('no json')",
        "input(); print('[]')",
        "input(); print('{}')",
        'input(); print(\'{"fault": "a new one"}\')',
        'input(); print(\'{"driver": null, "gpus": [{"uuid": "x", "state": "new"}], "nameless": [], "notes": []}\')',
        "input(); print('{' * 100000)",
        "input(); import os; os.kill(os.getpid(), 9)",
    ],
)
def test_a_child_that_talks_nonsense_is_a_fault_and_no_more(program: str) -> None:
    eyes = lying(program)
    eyes.fault(DriverFault.ENDED)
    eyes.close()


def test_a_driver_without_a_gpu_is_a_fault() -> None:
    eyes = lying('input(); print(\'{"driver": "1", "gpus": [], "nameless": [], "notes": []}\')')
    eyes.fault(DriverFault.NO_GPU)
    eyes.close()


def test_a_program_that_cannot_be_started_is_a_fault(tmp_path: Path) -> None:
    eyes = Clocked(Gpus(30.0, command=(str(tmp_path / "missing"),)))
    eyes.fault(DriverFault.ENDED)


def test_every_fault_has_a_mend() -> None:
    assert set(MENDS) == set(DriverFault)


def test_nothing_of_nvml_is_loaded_here() -> None:
    program = "import sys, kvlogd.cli, kvlogd.service; print({'pynvml', 'kvlogd.nvml'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"
