import random

import pytest

from kvlogd.gauge import GPU_SIGNALS, HOST_SIGNALS, SPANS_S, Gauge, GpuWindow, HostWindow
from kvlogd.reading import GpuSample, GpuState, HostSample

T0 = 1_767_225_600.0
TOTAL = 81_559.0


def gpu(at_s: float, used_mib: float | None = 70_000.0, state: str = GpuState.OK, **more: float) -> GpuSample:
    return GpuSample(T0 + at_s, "0", 0.9, used_mib, TOTAL, 60.0, 400.0, 1980.0, state, **more)  # type: ignore[arg-type]


def filled(values: list[float], every_s: float = 30.0) -> Gauge:
    gauge = Gauge()
    for i, value in enumerate(values):
        gauge.observe(T0 + i * every_s, value)
    return gauge


def test_growth_is_measured_over_the_longest_span_that_shows_it() -> None:
    gauge = filled([1000.0 + i for i in range(600)])
    found = gauge.growths()
    assert [growth.span_s for growth in found] == [14_400.0, 7200.0, 3600.0, 1800.0]
    assert found[0].per_s == pytest.approx(1 / 30, rel=0.02)
    assert found[0].grown == pytest.approx(480, rel=0.02)
    assert found[0].since_s >= T0 + 600


def test_rushes_on_top_of_a_flat_memory_are_no_growth() -> None:
    rng = random.Random(4)
    assert filled([1000.0 + rng.choice([0, 0, 300]) + rng.random() for _ in range(2000)]).growths() == []


def test_growth_under_rushes_is_found_all_the_same() -> None:
    rng = random.Random(5)
    assert filled([1000.0 + i + rng.choice([0, 0, 300]) for i in range(600)]).growths() != []


@pytest.mark.parametrize(
    "values",
    [
        [1000.0] * 100 + [1500.0] * 100,
        [1000.0] * 80 + [1200.0] * 80 + [1500.0] * 80,
        [2000.0 - 1000.0 * 0.97**i for i in range(400)],
        [1000.0 - i for i in range(300)],
    ],
    ids=["a step", "two steps", "it slackens", "it falls"],
)
def test_steps_and_what_slackens_are_no_growth(values: list[float]) -> None:
    assert all(growth.grown < 1 for growth in filled(values).growths())


def test_a_span_with_holes_is_not_judged() -> None:
    gauge = Gauge()
    for i in range(400):
        if not 150 < i < 350:
            gauge.observe(T0 + i * 30.0, 1000.0 + i)
    assert [growth.span_s for growth in gauge.growths()] == []


def test_memory_does_not_grow_with_age() -> None:
    gauge = filled([1000.0 + i for i in range(20_000)])
    assert len(gauge._spans) == len(SPANS_S)
    assert all(len(span._parts) <= 13 for span in gauge._spans)


def test_a_process_that_comes_or_goes_begins_the_memory_anew() -> None:
    window = GpuWindow("0", {})
    for i in range(100):
        window.observe(gpu(i * 30.0, 60_000.0))
    assert window.memory.began_s == T0
    window.observe(gpu(3000.0, 66_000.0))
    assert window.memory.began_s == T0 + 3000
    window.observe(gpu(3030.0, 66_100.0))
    assert window.memory.began_s == T0 + 3000


def test_lost_is_counted_from_the_first_reading_that_failed_and_blindness_is_not_loss() -> None:
    window = GpuWindow("0", {})
    window.observe(gpu(0.0))
    window.observe(gpu(30.0, None, GpuState.UNKNOWN))
    assert GPU_SIGNALS["lost_for"].read(window, T0 + 40) is None
    window.observe(gpu(60.0, None, GpuState.LOST))
    window.observe(gpu(90.0, None, GpuState.FAILING))
    assert GPU_SIGNALS["lost_for"].read(window, T0 + 100) == 40
    assert GPU_SIGNALS["gpu_memory"].read(window, T0 + 100) is None
    window.observe(gpu(120.0))
    assert GPU_SIGNALS["lost_for"].read(window, T0 + 130) is None
    assert GPU_SIGNALS["gpu_memory"].read(window, T0 + 130) == pytest.approx(70_000 / TOTAL)
    assert GPU_SIGNALS["gpu_util"].read(window, T0 + 130) == 0.9


def test_readings_are_stale_after_three_intervals() -> None:
    window = GpuWindow("0", {})
    assert window.is_stale(T0)
    for i in range(5):
        window.observe(gpu(i * 60.0))
    assert not window.is_stale(T0 + 240 + 180)
    assert window.is_stale(T0 + 240 + 181)


def test_a_clock_that_was_set_back_begins_anew() -> None:
    window = GpuWindow("0", {})
    for i in range(20):
        window.observe(gpu(7200 + i * 30.0))
    window.observe(gpu(0.0))
    assert window.memory.began_s == T0
    assert len(window.recent) == 1


def test_another_server_process_begins_the_memory_anew() -> None:
    window = HostWindow()
    window.observe(HostSample(T0, "a", 8000.0, 16_000.0, 0, 3, 100))
    window.observe(HostSample(T0 + 30, "a", 8010.0, 16_000.0, 0, 3, 100))
    assert window.memory.began_s == T0
    window.observe(HostSample(T0 + 60, "a", 8020.0, 16_000.0, 0, 3, 200))
    assert window.memory.began_s == T0 + 60
    window.observe(HostSample(T0 + 90, "a", 4000.0, 16_000.0, 0, 3, 200))
    assert window.memory.began_s == T0 + 90
    assert HOST_SIGNALS["host_memory"].read(window, T0 + 90) == 0.25


def test_a_kill_is_news_for_ten_minutes_and_one_of_before_is_none() -> None:
    window = HostWindow()
    assert window.oom_kills(T0) is None
    window.observe(HostSample(T0, None, 8000.0, None, 4))
    assert window.oom_kills(T0) == 0
    window.observe(HostSample(T0 + 30, None, 8000.0, None, 6))
    assert window.oom_kills(T0 + 60) == 2
    assert window.oom_kills(T0 + 631) == 0
