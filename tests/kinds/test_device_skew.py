from typing import Any

from kvlogd.gauge import GpuWindow
from kvlogd.kinds.device_skew import NAME, SCOPES, Params, make
from kvlogd.model import Abstained, Clear, Finding, Judgement, NoEvidence, Per
from kvlogd.reading import GpuSample

T0 = 1_767_225_600.0


def gpus(*clocks: float | None, **more: Any) -> list[GpuWindow]:
    """Return the windows of GPUs after a quarter of an hour at their clocks; `more` is what the first one reads."""
    peers: dict[str, GpuWindow] = {}
    for at, clock in enumerate(clocks):
        window = peers[str(at)] = GpuWindow(str(at), peers)
        for i in range(30):
            sample = GpuSample(T0 + i * 30, str(at), 0.95, 7e4, 81_559.0, 65.0, 600.0, clock)
            window.observe(sample._replace(**more) if at == 0 else sample)
    return list(peers.values())


def judged(*clocks: float | None, **more: Any) -> Judgement:
    return make(Params()).judge_gpu(gpus(*clocks, **more)[0], T0 + 870)


def test_it_judges_gpus_only() -> None:
    assert NAME == "device_skew"
    assert set(SCOPES) == {Per.GPU}


def test_the_slow_one_is_found_with_what_holds_it_back() -> None:
    found = judged(1200.0, 1980.0, 1960.0, 1970.0, limit_reasons=0x44, temperature_c=88.0)
    assert isinstance(found, Finding)
    assert found.value == 1200 / 1970
    assert found.evidence == {
        "own_clock_mhz": 1200, "siblings_clock_mhz": 1970, "siblings": 3, "util": found.evidence["util"],
        "temperature_c": 88, "siblings_temperature_c": 65, "held_back": 1,
    }  # fmt: skip


def test_its_siblings_are_not_accused() -> None:
    fast = gpus(1200.0, 1980.0)[1]
    assert isinstance(make(Params()).judge_gpu(fast, T0 + 870), Clear)


def test_both_sides_of_the_bound() -> None:
    assert isinstance(judged(1590.0, 2000.0), Finding)
    assert isinstance(judged(1600.0, 2000.0), Clear)


def test_who_has_no_work_or_no_sibling_is_not_compared() -> None:
    assert isinstance(judged(345.0, 1980.0, util=0.0), Abstained)
    assert isinstance(judged(1200.0, 1980.0, util=0.6), Abstained)
    assert isinstance(judged(1200.0, 1980.0, memory_total_mib=24_576.0), NoEvidence)
    assert isinstance(judged(1200.0), NoEvidence)
    assert isinstance(judged(None, 1980.0), Abstained)
    assert isinstance(make(Params()).judge_gpu(gpus(1200.0, 1980.0)[0], T0 + 2000), NoEvidence)
