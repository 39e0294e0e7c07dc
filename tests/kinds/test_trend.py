"""`trend`: what the ladder says becomes a finding with its evidence; the plain slope; real logs of vLLM 0.32."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kvlogd.kinds import floor, trend
from kvlogd.model import Abstained, Clear, Finding, Judgement, Run, Stats
from kvlogd.window import Window
from tests.test_ladder import healthy, leaking, traffic

REAL = Path(__file__).parents[1] / "data" / "real"
LINE = re.compile(
    r"(\d\d-\d\d \d\d:\d\d:\d\d) .*prompt throughput: ([\d.]+) .*generation throughput: ([\d.]+) .*"
    r"Running: (\d+) .*Waiting: (\d+) .*KV cache usage: ([\d.]+)%.*hit rate: ([\d.]+)%"
)
LEAK = trend.Params.model_validate({"signal": "kv_free_share", "direction": "falling", "at_constant": "load"})


def judged(
    rows: Iterator[Stats], params: trend.Params = LEAK, *, kv_tokens: int | None = 100_000, connector: bool = False
) -> tuple[Judgement, float | None]:
    """Return the last verdict and the time of the first finding, judging every third record."""
    window = Window(Run(1, 1, 1, 0.0, True, kv_tokens=kv_tokens, blocks=6250))
    window.run = window.run._replace(kv_connector=connector)
    evaluator = trend.make(params)
    verdict, first_s = evaluator.judge(window, 0.0), None
    for i, stats in enumerate(rows):
        window.observe(stats)
        if i % 3 == 0:
            verdict = evaluator.judge(window, stats.ts_s)
            if first_s is None and isinstance(verdict, Finding):
                first_s = stats.ts_s
    return verdict, first_s


def test_a_leak_is_a_finding_with_rate_and_forecast() -> None:
    verdict, first_s = judged(traffic(4000, leaking))
    assert first_s is not None
    assert isinstance(verdict, Finding)
    assert verdict.evidence["lost_per_h"] == pytest.approx(0.05, rel=0.3)
    assert verdict.evidence["full_in_low_s"] < verdict.evidence["full_in_s"] < verdict.evidence["full_in_high_s"]
    assert verdict.evidence["tokens_lost"] == pytest.approx(100_000 * verdict.evidence["shift"], abs=1)
    assert verdict.since_s > 10_000.0  # it began at record 1000


def test_a_healthy_run_is_clear_and_a_young_one_abstains() -> None:
    assert isinstance(judged(traffic(4000, healthy))[0], Clear)
    assert isinstance(judged(traffic(20, healthy))[0], Abstained)


@pytest.mark.parametrize(("wanted", "fires"), [("30 points", False), ("5 points", True)])
def test_a_rule_may_ask_for_a_larger_shift(wanted: str, fires: bool) -> None:
    params = trend.Params.model_validate({**LEAK.model_dump(exclude_none=True), "by_at_least": wanted})
    assert (judged(traffic(3000, leaking), params)[1] is not None) is fires


def test_judging_seldom_or_often_says_the_same() -> None:
    often, seldom = trend.make(LEAK), trend.make(LEAK)
    window = Window(Run(1, 1, 1, 0.0, True, kv_tokens=100_000))
    for i, stats in enumerate(traffic(3000, leaking)):
        window.observe(stats)
        often.judge(window, stats.ts_s)
        if i % 500 == 0:
            seldom.judge(window, stats.ts_s)
    assert often.judge(window, 0.0) == seldom.judge(window, 0.0)


@pytest.mark.parametrize("signal", ["running", "prompt_tps"])
def test_constant_load_knows_the_pool_only(signal: str) -> None:
    with pytest.raises(ValidationError, match="knows"):
        trend.Params.model_validate({**LEAK.model_dump(exclude_none=True), "signal": signal})


PLAIN = {"signal": "kv_usage", "direction": "rising", "by_at_least": "10 points", "over": "10m"}


@pytest.mark.parametrize(
    ("direction", "slope", "fires"),
    [("rising", 0.0012, False), ("rising", 0.0019, True), ("falling", -0.0019, True), ("rising", -0.0019, False)],
)
def test_a_plain_slope_must_be_steep_and_in_the_named_direction(direction: str, slope: float, fires: bool) -> None:
    rows = (Stats(i * 10.0, 1, 0, None, 1.0, 1.0, 1, 0, 0.4 + slope * i) for i in range(100))
    params = trend.Params.model_validate({**PLAIN, "direction": direction})
    assert isinstance(judged(rows, params)[0], Finding) is fires


def test_a_plain_slope_needs_to_know_how_much() -> None:
    with pytest.raises(ValidationError, match="by_at_least"):
        trend.Params.model_validate({"signal": "kv_usage", "direction": "rising"})


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e6, 1e6)), min_size=2, max_size=30))
def test_slope_and_test_of_any_points_are_numbers_of_the_same_bounds(points: list[tuple[float, float]]) -> None:
    points.sort()
    rising = [(float(i), float(i)) for i in range(len(points))]
    assert trend.theil_sen(rising) == 1.0
    assert abs(trend.kendall_z(points)) <= trend.kendall_z(rising) + 1e-9
    trend.theil_sen(points)


def real(name: str) -> Iterator[Stats]:
    text = (REAL / f"{name}.log").read_text(encoding="utf-8", errors="replace")
    life = re.search(r"pid=\d+", text)
    assert life is not None
    for line in text.splitlines():
        m = LINE.search(line)
        if m is None or life[0] not in line:
            continue
        at_s = datetime.strptime(f"2026-{m[1]} +0000", "%Y-%m-%d %H:%M:%S %z").timestamp()
        share = float(m[6]) / 100
        hit_rate = float(m[7]) / 100
        yield Stats(at_s, 1, 0, None, float(m[2]), float(m[3]), int(m[4]), int(m[5]), share, prefix_hit_rate=hit_rate)


def at(text: str) -> float:
    return datetime.fromisoformat(f"2026-11-29T{text}").replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("name", "kv_tokens", "earliest", "latest"),
    [
        ("leak-to-hang-and-restart", 32_768, "14:27:30", "14:31:30"),
        ("slow-leak-with-idle-spells", 65_536, "15:45:30", "15:55:30"),
    ],
)
def test_real_leaks_fire_in_time(name: str, kv_tokens: int, earliest: str, latest: str) -> None:
    first_s = judged(real(name), kv_tokens=kv_tokens)[1]
    assert first_s is not None
    assert at(earliest) <= first_s <= at(latest)


@pytest.mark.parametrize("name", ["full-pool-that-flows", "latency-creep"])
def test_real_logs_without_a_leak_do_not_fire(name: str) -> None:
    window = Window(Run(1, 1, 1, 0.0, True, kv_tokens=32_768))
    leak, residue = trend.make(LEAK), floor.make(floor.Params())
    for stats in real(name):
        window.observe(stats)
        for evaluator in (leak, residue):
            assert not isinstance(evaluator.judge(window, stats.ts_s), Finding)
    assert window.count > 100
