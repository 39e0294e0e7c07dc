"""Readings to alerts: the same whether they come at once, one by one, or with a restart in between."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from kvlogd.model import AlertEvent, AlertState
from kvlogd.reading import GPU_SOURCE, HOST_SOURCE, GpuSample, GpuState, HostSample
from kvlogd.rules import load_rules, shipped_folder
from kvlogd.sideline import Sideline, in_order, restored
from tests.command import replay, sql
from tests.envelopes import plain
from tests.test_replay import LINES

T0 = 1_767_225_600.0
RULES = load_rules([shipped_folder()])
Reading = GpuSample | HostSample


def leak(count: int = 240, start: int = 0) -> list[Reading]:
    """Two GPUs of which one leaks, and a server that climbs to its limit."""
    found: list[Reading] = []
    for i in range(start, start + count):
        at_s = T0 + i * 30.0
        found.append(GpuSample(at_s, "a", 0.9, 70_000.0 + 20 * i, 81_559.0, 60.0, 400.0, 1980.0))
        found.append(GpuSample(at_s, "b", 0.9, 70_000.0, 81_559.0, 60.0, 400.0, 1980.0))
        found.append(HostSample(at_s, "chat", 8000.0 + 60 * i, 32_768.0, 0, 4, 100))
    return found


def told(events: Sequence[AlertEvent]) -> list[tuple[str, str, str, float]]:
    return [(event.key.rule, event.key.scope, event.state.value, event.at_s - T0) for event in events]


def at_once(readings: Sequence[Reading]) -> list[tuple[str, str, str, float]]:
    sideline = Sideline(RULES)
    sideline.take(readings)
    sideline.advance(readings[-1].ts_s)
    return told(sideline.harvest().alert_events)


def test_what_leaks_is_told_and_nothing_else() -> None:
    found = at_once(leak())
    assert [(rule, scope, state) for rule, scope, state, _ in found] == [
        ("host-memory-growth", "chat", "firing"),
        ("gpu-memory-growth", "gpu/a", "firing"),
    ]
    assert all(35 * 60 < at_s < 60 * 60 for *_, at_s in found)


def test_alerts_do_not_hang_on_when_time_passes_and_readings_come() -> None:
    readings, sideline = leak(), Sideline(RULES)
    events: list[AlertEvent] = []
    for reading in readings:
        sideline.take([reading])
        events += sideline.harvest().alert_events
        if reading.ts_s % 60:
            sideline.advance(reading.ts_s - 15)
            events += sideline.harvest().alert_events
    sideline.advance(readings[-1].ts_s)
    assert told([*events, *sideline.harvest().alert_events]) == at_once(readings)


@pytest.mark.parametrize("cut", [60, 180, 300, 400])
def test_alerts_go_on_after_a_restart(cut: int) -> None:
    readings = leak()
    first = Sideline(RULES)
    first.take(readings[:cut])
    before = first.harvest()
    second = Sideline(RULES)
    second.recall(readings[:cut], before.standings)
    assert second.harvest().alert_events == []
    second.take(readings[cut:])
    second.advance(readings[-1].ts_s)
    assert told([*before.alert_events, *second.harvest().alert_events]) == at_once(readings)


def test_a_standing_alert_stays_until_its_gpu_is_read_again_or_forgotten() -> None:
    first = Sideline(RULES)
    first.take(leak())
    standings = first.harvest().standings
    second = Sideline(RULES)
    second.recall([], standings)
    assert second.harvest() == ([], [], [])
    assert second.unmet() == {"gpu/a", "chat"}
    second.forget(["gpu/a"], T0 + 9000)
    [event] = second.harvest().alert_events
    assert (event.key.scope, event.state, event.reason) == ("gpu/a", AlertState.RESOLVED, "source removed")
    assert second.unmet() == {"chat"}


def test_another_server_in_its_place_ends_the_alerts_of_the_one_before() -> None:
    sideline = Sideline(RULES)
    sideline.take(leak())
    sideline.harvest()
    after = leak(20, 240)
    sideline.take(r._replace(pid=200, rss_mib=8000.0) if isinstance(r, HostSample) else r for r in after)
    [event] = sideline.harvest().alert_events
    assert (event.key.rule, event.reason, event.at_s) == ("host-memory-growth", "restart", T0 + 240 * 30)


def test_a_kill_that_ended_a_server_is_told_of_the_one_in_its_place() -> None:
    def reading(i: int, pid: int, kills: int) -> HostSample:
        return HostSample(T0 + 30 * i, "chat", 8000.0, 32_768.0, kills, 4, pid)

    sideline = Sideline(RULES)
    sideline.take(reading(i, 100, 0) for i in range(10))
    sideline.end(["chat"], T0 + 300)
    assert list(sideline.at_work()) == []
    sideline.take(reading(i, 200, 1) for i in range(12, 20))
    sideline.take(reading(i, 300, 1) for i in range(20, 30))
    found = [(event.key.rule, event.reason) for event in sideline.harvest().alert_events]
    assert found == [("host-memory-growth", ""), ("host-memory-growth", "restart")]


def test_two_servers_that_write_one_log_are_no_restart() -> None:
    sideline = Sideline(RULES)
    for i in range(30):
        kills = int(i >= 10)
        sideline.take(HostSample(T0 + 30 * i, "chat", 8000.0, 32_768.0, kills, 4, pid) for pid in (100, 200))
    found = [(event.key.rule, event.reason) for event in sideline.harvest().alert_events]
    assert found == [("host-memory-growth", "")]


def test_the_alerts_about_a_server_that_ended_are_over_and_do_not_come_back() -> None:
    sideline = Sideline(RULES)
    sideline.take(leak())
    sideline.harvest()
    assert sideline.roots() == {"chat": 100}
    sideline.end(["chat"], T0 + 7200)
    assert sideline.roots() == {}
    sideline.advance(T0 + 7300)
    harvest = sideline.harvest()
    assert [(event.key.scope, event.reason) for event in harvest.alert_events] == [("chat", "server ended")]
    assert [key.scope for key in harvest.over] == ["chat"]


def test_an_alert_of_a_rule_that_is_gone_ends() -> None:
    first = Sideline(RULES)
    first.take(leak())
    standings = first.harvest().standings
    second = Sideline([rule for rule in RULES if rule.id != "gpu-memory-growth"])
    second.recall([], standings)
    second.take(leak(3, 240))
    [event] = second.harvest().alert_events
    assert (event.key.rule, event.reason) == ("gpu-memory-growth", "rule removed")


def test_a_lost_gpu_is_told_and_the_other_is_not() -> None:
    readings: list[Reading] = []
    for i in range(40):
        lost = GpuSample(T0 + i * 30, "a", None, None, None, None, None, None, GpuState.LOST)
        fine = GpuSample(T0 + i * 30, "a", 0.5, 7e4, 81_559.0, 60.0, 400.0, 1980.0)
        readings.append(lost if 10 <= i < 20 else fine)
        readings.append(GpuSample(T0 + i * 30, "b", 0.5, 7e4, 81_559.0, 60.0, 400.0, 1980.0))
    found = at_once(readings)
    assert [one[:3] for one in found] == [("gpu-lost", "gpu/a", "firing"), ("gpu-lost", "gpu/a", "resolved")]
    assert found[0][3] == 360


def test_a_clock_that_jumps_moves_no_rule() -> None:
    flat = [reading for reading in leak() if isinstance(reading, GpuSample) and reading.gpu == "b"]
    for jump_s in (-86_400.0, -3600.0, 3600.0, 86_400.0):
        moved = [*flat[:100], *(reading._replace(ts_s=reading.ts_s + jump_s) for reading in flat[100:])]
        assert at_once(moved) == []


def test_restored_picks_what_is_about_gpus_and_hosts() -> None:
    sideline = Sideline(RULES)
    sideline.take(leak())
    standings = sideline.harvest().standings
    assert {one.source for one in standings} == {GPU_SOURCE, HOST_SOURCE}
    assert len(restored([*standings, standings[0]._replace(source="chat")])) == len(standings)


# --- the same from files


def csvs(folder: Path) -> list[str | Path]:
    gpu = ["timestamp, index, utilization.gpu [%], memory.used [MiB], memory.total [MiB]"]
    host = ["ts,rss_mib,limit_mib"]
    for reading in leak():
        minute, second = divmod(int(reading.ts_s - T0), 60)
        clock = f"{minute // 60:02}:{minute % 60:02}:{second:02}"
        if isinstance(reading, HostSample):
            host.append(f"2026-01-01T{clock},{reading.rss_mib},{reading.limit_mib}")
        else:
            index = "ab".index(reading.gpu)
            gpu.append(f"2026/01/01 {clock}.000, {index}, 90 %, {reading.memory_used_mib:.0f} MiB, 81559 MiB")
    (folder / "gpu.csv").write_text("\n".join(gpu) + "\n")
    (folder / "host.csv").write_text("\n".join(host) + "\n")
    (folder / "vllm.log").write_bytes(plain(LINES))
    return ["--gpu-csv", folder / "gpu.csv", "--host-csv", folder / "host.csv"]


def test_a_replay_of_csv_files_tells_the_same_once(tmp_path: Path) -> None:
    wanted = [one[:3] for one in at_once(leak())]
    options = [*csvs(tmp_path), "--db", tmp_path / "kv.duckdb"]
    for _ in range(2):
        found = replay(tmp_path / "vllm.log", *options)
        side = [a for a in found.alerts if a["source"] in (GPU_SOURCE, HOST_SOURCE)]
        assert found.err == ""
        assert [
            (a["rule"], a["engine"].replace("gpu/0", "gpu/a").replace("host", "chat"), a["state"]) for a in side
        ] == [(rule, scope, state) for rule, scope, state in wanted]
    gpu = next(a for a in side if a["rule"] == "gpu-memory-growth")
    assert "MiB/h" in gpu["summary"]
    assert "full in about" in gpu["summary"]
    rows = sql(tmp_path / "kv.duckdb", "SELECT count(*) AS n, min(state) AS state FROM gpu_samples")
    assert rows == [{"n": "480", "state": "ok"}]


def test_device_memory_stands_beside_the_cache_in_one_query(tmp_path: Path) -> None:
    from datetime import UTC, datetime

    stamps = [datetime.fromtimestamp(T0 + i * 30, UTC).strftime("%m-%d %H:%M:%S") for i in range(20)]
    record = (
        "Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 20.0 tokens/s, Running: 2 reqs, "
        "Waiting: 0 reqs, GPU KV cache usage: 25.0%, Prefix cache hit rate: 0.0%"
    )
    lines = [f"INFO {stamp} [loggers.py:127] {record}" for stamp in stamps]
    options = csvs(tmp_path)
    (tmp_path / "vllm.log").write_text("\n".join(lines) + "\n")
    replay(tmp_path / "vllm.log", *options, "--db", tmp_path / "kv.duckdb")
    rows = sql(
        tmp_path / "kv.duckdb", "SELECT gpu, free_share, memory_used_mib FROM gpu_vs_kv ORDER BY minute, gpu LIMIT 2"
    )
    assert rows == [
        {"gpu": "0", "free_share": "0.75", "memory_used_mib": "70010.0"},
        {"gpu": "1", "free_share": "0.75", "memory_used_mib": "70000.0"},
    ]


def test_in_order_merges_feeds() -> None:
    readings = leak(3)
    gpus = [reading for reading in readings if isinstance(reading, GpuSample)]
    hosts = [reading for reading in readings if isinstance(reading, HostSample)]
    assert [reading.ts_s for reading in in_order(gpus, hosts)] == [reading.ts_s for reading in readings]
