import pytest

from kvlogd.gauge import GpuWindow, HostWindow
from kvlogd.kinds.growth import NAME, SCOPES, Params, make
from kvlogd.model import Abstained, Clear, Finding, Judgement, NoEvidence, Per
from kvlogd.reading import GpuSample, HostSample

T0 = 1_767_225_600.0


def device(values: list[float], others: list[float] | None = None, pid: int | None = None) -> tuple[GpuWindow, float]:
    window = GpuWindow("0", {})
    for i, value in enumerate(values):
        aside = None if others is None else others[i]
        sample = GpuSample(T0 + i * 30, "0", 0.9, value, 80_000.0, 60.0, 400.0, 1980.0)
        window.observe(sample._replace(others_mib=aside, other_pid=pid, memory_reserved_mib=600.0))
    return window, T0 + (len(values) - 1) * 30


def on_device(values: list[float], others: list[float] | None = None, pid: int | None = None) -> Judgement:
    return make(Params(by_at_least=0.01)).judge_gpu(*device(values, others, pid))


def server(values: list[float], limit_mib: float | None, every_s: float = 30.0) -> Judgement:
    window = HostWindow()
    for i, value in enumerate(values):
        window.observe(HostSample(T0 + i * every_s, None, value, limit_mib))
    return make(Params(by_at_least=0.05)).judge_host(window, T0 + (len(values) - 1) * every_s)


def test_it_judges_gpus_and_hosts() -> None:
    assert NAME == "growth"
    assert set(SCOPES) == {Per.GPU, Per.HOST}


def test_a_device_that_grows_is_found_with_its_speed_and_end() -> None:
    found = on_device([70_000.0 + 20 * i for i in range(120)])
    assert isinstance(found, Finding)
    assert found.value == pytest.approx(2400, rel=0.02)
    assert found.evidence["full_in_s"] == pytest.approx((80_000 - 72_380 - 600) / 2400 * 3600, rel=0.03)
    assert found.since_s >= T0 + 600
    assert "other_pid" not in found.evidence


@pytest.mark.parametrize(("step", "is_found"), [(7.2, True), (6.2, False)])
def test_one_per_cent_in_half_an_hour_is_the_bound(step: float, is_found: bool) -> None:
    # of 90 readings the first 20 do not count, so that only the shortest span is full
    found = on_device([70_000.0 + 2 * step * i for i in range(90)])
    assert isinstance(found, Finding if is_found else Clear)


def test_it_says_which_other_process_grows() -> None:
    others = [2000.0 + 20 * i for i in range(120)]
    found = on_device([70_000.0 + other for other in others], others, 4711)
    assert isinstance(found, Finding)
    assert found.evidence["other_pid"] == 4711
    assert found.evidence["others_grown_mib"] == pytest.approx(found.evidence["grown_mib"])


def test_a_process_that_does_not_grow_is_not_named() -> None:
    found = on_device([70_000.0 + 20 * i for i in range(120)], [2000.0] * 120, 4711)
    assert isinstance(found, Finding)
    assert found.evidence["others_grown_mib"] == 0
    assert "other_pid" not in found.evidence


def test_without_readings_it_says_nothing() -> None:
    judge = make(Params(by_at_least=0.01))
    window, end_s = device([70_000.0 + 20 * i for i in range(120)])
    assert isinstance(judge.judge_gpu(window, end_s + 91), NoEvidence)
    assert isinstance(judge.judge_gpu(GpuWindow("0", {}), T0), NoEvidence)
    assert isinstance(judge.judge_host(HostWindow(), T0), NoEvidence)
    assert isinstance(on_device([70_000.0] * 20), Abstained)


@pytest.mark.parametrize(("room_h", "is_found"), [(20, True), (28, False)])
def test_a_server_must_reach_its_limit_within_a_day(room_h: float, is_found: bool) -> None:
    values = [8000.0 + 10 * i for i in range(120)]
    assert isinstance(server(values, values[-1] + 1200 * room_h), Finding if is_found else Clear)


@pytest.mark.parametrize(
    ("every_s", "limit_mib", "is_found"), [(600.0, None, True), (300.0, None, False), (600.0, 9e4, False)]
)
def test_slow_growth_must_be_seen_for_hours(every_s: float, limit_mib: float | None, is_found: bool) -> None:
    found = server([8000.0 + 9 * i for i in range(60)], limit_mib, every_s)
    assert isinstance(found, Finding) is is_found
