from collections.abc import Sequence
from pathlib import Path

import pytest

from kvlogd.model import AlertEvent, AlertKey, AlertState, Engine, Panel, Run, Severity, Sight, Stats
from kvlogd.panel import MOST_CELLS, drawn, read_panel, spark
from kvlogd.reading import GPU_SOURCE, HOST_SOURCE, GpuProcess, GpuSample, HostSample
from kvlogd.rows import Batch
from kvlogd.store import Store
from tests.lines import START_S

LABEL = "vllm.log/0"


def event(*, state: AlertState = AlertState.FIRING, at_s: float = 3600.0, **evidence: float) -> AlertEvent:
    key = AlertKey("kv-leak", LABEL, 1)
    times = (START_S + at_s, START_S + 1800)
    return AlertEvent(key, state, "kv-leak", Severity.CRITICAL, "vllm.log", 0, *times, None, evidence)


def sights(*usages: float | None, step_s: float = 10.0) -> list[Sight]:
    return [Sight(START_S + i * step_s, u, 4.0, 0.0) for i, u in enumerate(usages) if u is not None]


def stats(at_s: float, usage: float, *, running: int = 4, waiting: int = 0) -> Stats:
    return Stats(START_S + at_s, 7, 0, None, 100.0, 50.0, running, waiting, usage)


def filled(path: Path, samples: list[Stats], runs: list[int]) -> Store:
    store = Store.open(path)
    lives = [Run(run, 1, run, START_S + 1000 * (run - 1), True) for run in sorted(set(runs))]
    store.commit(Batch(engines=[Engine(1, "vllm.log", 0, LABEL)], runs=lives, samples=samples, sample_runs=runs))
    return store


def test_a_long_time_becomes_few_points_that_keep_the_extremes(tmp_path: Path) -> None:
    samples = [stats(i, 0.5 + 0.001 * (i % 7)) for i in range(9000)]
    samples[4321] = stats(4321, 0.99, waiting=77)
    samples[5678] = stats(5678, 0.02)
    with filled(tmp_path / "kv.duckdb", samples, [1] * 9000) as store:
        panel = read_panel(store, event(at_s=9000), START_S + 9000)
    assert panel is not None
    assert 100 < len(panel.ts_s) <= 2 * MOST_CELLS + 2
    assert list(panel.ts_s) == sorted(panel.ts_s)
    known = [share for share in panel.free_share if share is not None]
    assert min(known) == pytest.approx(0.01)
    assert max(known) == pytest.approx(0.98)
    assert max(value or 0 for value in panel.waiting) == 77
    assert {value for value in panel.running if value is not None} == {4.0}


def test_few_samples_are_shown_as_they_are(tmp_path: Path) -> None:
    samples = [stats(1800 + 10 * i, 0.1 * i) for i in range(5)]
    with filled(tmp_path / "kv.duckdb", samples, [1] * 5) as store:
        panel = read_panel(store, event(at_s=1850), START_S + 1850)
    assert panel is not None
    assert panel.ts_s == tuple(sample.ts_s for sample in samples)
    assert panel.free_share == pytest.approx((1.0, 0.9, 0.8, 0.7, 0.6))


def test_lives_but_the_first_are_marked(tmp_path: Path) -> None:
    samples = [stats(10 * i, 0.2) for i in range(300)]
    runs = [1 + i // 100 for i in range(300)]
    with filled(tmp_path / "kv.duckdb", samples, runs) as store:
        panel = read_panel(store, event(at_s=3000), START_S + 3000, START_S + 2000)
    assert panel is not None
    assert panel.restarts_s == (START_S + 1000, START_S + 2000)
    assert panel.firing_s == START_S + 2000


def test_what_has_no_engine_or_no_sample_has_no_chart(tmp_path: Path) -> None:
    with filled(tmp_path / "kv.duckdb", [stats(0, 0.2)], [1]) as store:
        assert read_panel(store, event(at_s=90_000)._replace(since_s=START_S + 89_000), START_S + 90_000) is None
        assert read_panel(store, event()._replace(key=AlertKey("data-source", "vllm.log", None)), START_S + 60) is None


def test_a_silence_is_a_hole() -> None:
    seen = sights(*[0.1] * 10, *[None] * 20, *[0.1] * 10)
    panel = drawn(event(), seen, [], 1.0)
    assert panel.free_share.count(None) == 1
    assert panel.running[panel.free_share.index(None)] is None
    assert drawn(event(), seen, [], 100.0).free_share.count(None) == 0  # summed up more coarsely than that


def test_the_trend_is_that_of_the_finding() -> None:
    told = event(at_s=3600, usage_now=0.5, lost_per_h=0.2, full_in_s=7200.0)
    seen = sights(*[0.4 + 0.2 * i / 360 for i in range(360)])
    panel = drawn(told, seen, [], 10.0)
    assert panel.trend is not None
    (start_s, start), (end_s, end) = panel.trend
    assert (start - end) / (end_s - start_s) == pytest.approx(0.2 / 3600)
    assert panel.full_s == START_S + 3600 + 7200
    assert drawn(event(), seen, [], 10.0).trend is None


def test_what_is_over_has_no_trend_any_more() -> None:
    told = event(state=AlertState.RESOLVED, usage_now=0.5, lost_per_h=0.2, full_in_s=7200.0)
    panel = drawn(told, sights(*[0.5] * 360), [], 10.0)
    assert (panel.trend, panel.full_s, panel.over_s) == (None, None, told.at_s)


def panel_of(free: Sequence[float | None], **marks: float) -> Panel:
    times = tuple(START_S + 60 * i for i in range(len(free)))
    zero = tuple(0.0 for _ in free)
    firing_s = START_S + marks.get("firing", 1e9)
    return Panel("a/0", times, tuple(free), zero, zero, START_S, firing_s, (START_S + marks.get("restart", -60.0),))


def test_a_line_of_bars_is_high_where_the_pool_is_free() -> None:
    free: list[float | None] = [1 - i / 95 for i in range(96)]
    bars, marks, bottom, top = spark(panel_of(free))
    assert (marks, bottom, top) == ("", 0.0, 1.0)
    assert len(bars) == 32
    assert bars[0] == "█"
    assert bars[-1] == "▁"
    assert list(bars) == sorted(bars, reverse=True)


def test_below_the_bars_stands_what_happened() -> None:
    free: list[float | None] = [*[0.5] * 40, *[None] * 16, *[1.0] * 40]
    bars, marks, *_ = spark(panel_of(free, firing=41 * 60, restart=57 * 60))
    assert "·" in bars
    assert (marks.index("^"), marks.index("R")) == (11, 15)
    assert marks.endswith(" ^ alert, R restart")


def test_few_samples_make_a_short_line() -> None:
    assert spark(panel_of([0.55])).bars == "▅·······"
    assert len(spark(panel_of([0.5] * 36)).bars) == 12


@pytest.mark.parametrize(
    ("low", "high", "scale"),
    [(0.91, 0.97, (0.9, 1.0)), (0.31, 0.65, (0.3, 0.7)), (0.2, 0.7, (0.0, 1.0)), (1.0, 1.0, (0.9, 1.0))],
)
def test_what_hardly_moves_is_shown_larger(low: float, high: float, scale: tuple[float, float]) -> None:
    line = spark(panel_of([*[high] * 40, *[low] * 40]))
    assert (line.bottom, line.top) == pytest.approx(scale)
    assert line.bars[0] > line.bars[-1] or low == high


def growth(scope: str = "gpu/a", source: str = GPU_SOURCE, **evidence: float) -> AlertEvent:
    facts = evidence or {"grown_mib_per_h": 1024.0, "used_mib": 71_680.0, "compared_s": 3600.0, "full_in_s": 7200.0}
    key = AlertKey("gpu-memory-growth", scope, None)
    times = (START_S + 7200, START_S + 3600)
    return AlertEvent(key, AlertState.FIRING, key.rule, Severity.WARNING, source, None, *times, None, facts)


def read(path: Path) -> Store:
    """Return a store with two GPUs, the server of one of them and its pool, and a stranger's pool."""
    store = Store.open(path)
    lives = [Run(1, 1, 2, START_S + 3000, True), Run(2, 2, 1, START_S, True)]
    gpus = [
        GpuSample(START_S + 30 * i, gpu, 0.9, 1024.0 * (gib + rise * i / 120), 81_920.0, 60.0, 400.0, 1980.0)
        for i in range(240)
        for gpu, gib, rise in (("a", 68, 1), ("b", 20, 2))
    ]
    store.commit(
        Batch(
            engines=[Engine(1, "chat", 0, "chat/0"), Engine(2, "other", 0, "other/0")],
            runs=lives,
            samples=[stats(30 * i, usage) for i in range(240) for usage in (0.25, 0.75)],
            sample_runs=[1, 2] * 240,
            gpu_samples=gpus,
            host_samples=[HostSample(START_S + 30 * i, "chat", 1024.0 * 8, 32_768.0, 0, 4, 100) for i in range(240)],
            gpu_processes=[GpuProcess(START_S, "a", 110, "VLLM", 6e4, "chat", 1)],
        )
    )
    return store


def test_an_alert_about_a_gpu_shows_its_memory_beside_the_pool_on_it(tmp_path: Path) -> None:
    with read(tmp_path / "kv.duckdb") as store:
        panel = read_panel(store, growth(), START_S + 7200, START_S + 7000)
        unknown = read_panel(store, growth("gpu/b"), START_S + 7200)
        assert store.device_memory("gpu/a", START_S, START_S + 3600) == (69_632.0, 70_656.0, 81_920.0)
        assert store.device_memory("chat", START_S, START_S + 3600) == (69_632.0, 70_656.0, 81_920.0)
    assert panel is not None
    assert unknown is not None
    assert panel.memory is not None
    assert (panel.memory.limit_gib, panel.memory.is_device) == (80.0, True)
    used = [gib for gib in panel.memory.used_gib if gib is not None]
    assert used[0] == pytest.approx(68.5, abs=0.1)
    assert used[-1] == pytest.approx(70, abs=0.1)
    assert set(panel.free_share) == {0.75}
    assert {round(share or 0, 2) for share in unknown.free_share} == {0.5}  # of both: whose it is, is not known
    assert (panel.restarts_s, panel.firing_s) == ((START_S + 3000,), START_S + 7000)
    assert panel.trend == ((START_S + 3600, 69.0), (START_S + 14_400, 72.0))
    assert panel.full_s == START_S + 14_400
    line = spark(panel)
    assert line.bars[0] < line.bars[-1]
    assert 60 < line.bottom < 69 < 70 <= line.top <= 80


def test_an_alert_about_a_server_shows_its_memory(tmp_path: Path) -> None:
    with read(tmp_path / "kv.duckdb") as store:
        panel = read_panel(store, growth("chat", HOST_SOURCE, oom_kills=1.0), START_S + 7200)
        assert read_panel(store, growth("mail", HOST_SOURCE), START_S + 7200) is None
    assert panel is not None
    assert panel.memory is not None
    assert set(panel.memory.used_gib) == {8.0}
    assert (panel.memory.limit_gib, panel.memory.is_device, panel.trend) == (32.0, False, None)
    line = spark(panel)
    assert len(set(line.bars)) == 1  # what is flat looks flat


def test_an_alert_about_the_clock_of_a_gpu_shows_no_memory(tmp_path: Path) -> None:
    with read(tmp_path / "kv.duckdb") as store:
        assert read_panel(store, growth(own_clock_mhz=900.0), START_S + 7200) is None


def test_the_memory_of_the_gpus_beside_it(tmp_path: Path) -> None:
    sql = "INSERT INTO gpu_samples (ts, gpu, memory_used_mib, memory_total_mib) VALUES (to_timestamp(?), ?, ?, 81920)"
    readings = [(at_s, gpu, 1024 * 71.25) for at_s in (0, 60, 120) for gpu in "01"] + [(600, "1", 1024 * 75.0)]
    with Store.open(tmp_path / "kv.duckdb") as store:
        store.transact((sql, [START_S + at_s, gpu, used_mib]) for at_s, gpu, used_mib in readings)
        spans = [(0, 300), (0, 900), (5000, 9000)]
        found = [store.device_memory("a/0", START_S + since_s, START_S + until_s) for since_s, until_s in spans]
    assert found == [(72_960.0, 72_960.0, 81_920.0), (72_960.0, 76_800.0, 81_920.0), None]
