"""The daemon's eyes beside the logs, on a stand-in driver and a /proc of a test's own making; time is an argument."""

import io
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvlogd.config import Config, SamplerConfig
from kvlogd.engines import Ids
from kvlogd.lookout import Lookout
from kvlogd.model import AlertState, Per, Stats
from kvlogd.pipeline import Pipeline
from kvlogd.reading import HOST_SOURCE
from kvlogd.rows import Batch
from kvlogd.rules import load_rules, shipped_folder
from kvlogd.setup import Setup
from kvlogd.status import RuleState
from kvlogd.store import Store
from kvlogd.voice import Voice
from tests.nvml.driver import LOST, UUID, Driver
from tests.test_procfs import Host
from tests.waiting import until

T0 = 1_767_225_600.0
RULES = load_rules([shipped_folder()])


class Seat:
    """A lookout with a store, a log of two engines and a clock."""

    def __init__(self, folder: Path, machine: Host, **config: Any) -> None:
        self.said = io.StringIO()
        self.store = Store.open(folder / "kv.duckdb")
        self.procfs = machine.procfs
        self.setup = Setup(Config(**config), RULES)
        self.lookout = Lookout(self.setup, Voice(self.said, for_journal=False), machine.procfs)
        self.now_s = 0.0
        self.ahead_s = 0.0
        """By how much the host's clock was set forward."""
        self.pipeline = Pipeline("chat", Ids(), RULES)
        for index in (0, 1):
            self.pipeline.take([Stats(T0, 100, index, None, 1.0, 1.0, 1, 0, 0.1)])
        self.store.commit(Batch(**self.pipeline.harvest()._asdict()))
        self.lookout.begin(self.store, T0)

    def look(self) -> None:
        self.lookout.poll(self.now_s, T0 + self.ahead_s + self.now_s, [self.pipeline])

    def until(self, holds: Callable[[], object]) -> None:
        def looked() -> object:
            self.look()
            return holds()

        until(looked)

    def commit(self) -> Batch:
        batch = self.lookout.joined(Batch())
        self.store.commit(batch)
        return batch

    def reading(self) -> Batch:
        """Look until the GPUs have answered, and store that."""
        self.until(lambda: self.lookout._batch.gpu_samples)
        return self.commit()

    def change(self, setup: Setup) -> None:
        """Go by another config, as a reload does."""
        gpus = self.lookout._gpus
        self.lookout.forget()
        self.lookout.change(setup)
        until(lambda: gpus is None or not gpus.is_stuck())
        self.lookout.begin(self.store, T0 + self.now_s)

    def restart(self, after_s: float) -> None:
        """End, and begin anew some time later."""
        self._end()
        self.now_s += after_s
        self.lookout = Lookout(self.setup, Voice(self.said, for_journal=False), self.procfs)
        self.lookout.begin(self.store, T0 + self.now_s)

    def _end(self) -> None:
        self.lookout.close()
        gpus = self.lookout._gpus
        until(lambda: gpus is None or not gpus.is_stuck())

    def close(self) -> None:
        self._end()
        self.store.close()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.add(100, 1, "vllm serve m", "vllm", anon_kib=2048 * 1024)
    host.add(110, 100, "VLLM::EngineCore_DP0", "VLLM::EngineCor", anon_kib=1024 * 1024)
    host.add(120, 100, "VLLM::EngineCore_DP1", "VLLM::EngineCor", anon_kib=1024 * 1024)
    host.add(900, 1, "python3 train.py --key hunter2")
    host.limit("vllm.service", max=f"{32 << 30}\n", events="oom_kill 0\n")
    return host


@pytest.fixture
def seat(tmp_path: Path, host: Host, driver: Driver) -> Iterator[Seat]:
    seat = Seat(tmp_path, host)
    yield seat
    seat.close()


def test_memory_is_told_to_engines_and_strangers(seat: Seat, driver: Driver) -> None:
    driver.set(**{"0.procs": f"110:{60 << 30},900:{2 << 30}", "1.procs": f"120:{60 << 30}"})
    seat.reading()
    rows = seat.store.read("SELECT gpu, engines_mib, others_mib, processes, other_pid FROM gpu_samples ORDER BY gpu")
    assert rows == [(UUID.format(0), 61_440, 2048, 2, 900), (UUID.format(1), 61_440, 0, 1, None)]
    sql = "SELECT pid, name, p.source, label FROM gpu_processes p LEFT JOIN engines USING (engine_id) ORDER BY pid"
    assert seat.store.read(sql) == [
        (110, "VLLM::EngineCor", "chat", "chat/0"),
        (120, "VLLM::EngineCor", "chat", "chat/1"),
        (900, "python3", None, None),
    ]
    assert [gpu.holders for gpu in seat.lookout.gpus()] == ["chat 60.0, python3[900] 2.0", "chat 60.0"]


def test_an_engine_learns_how_busy_its_gpus_are(seat: Seat, driver: Driver) -> None:
    driver.set(**{"0.procs": f"110:{60 << 30}", "1.procs": f"120:{60 << 30}", "0.util": 0, "1.util": 75})
    seat.reading()
    now_s = seat.pipeline.now_s or 0.0
    first, second = (track.window.eyes.work for track in seat.pipeline.tracks())
    assert (first.idle_since_s(now_s), first.since(now_s, now_s)) == (now_s, 0.0)
    assert (second.idle_since_s(now_s), second.since(now_s, now_s)) == (None, 0.75)
    driver.set(**{"1.procs": f"110:{60 << 30}"})  # two GPUs of one engine: the busier counts
    seat.now_s += 30
    seat.reading()
    assert first.idle_since_s(now_s) is None
    assert second.since(now_s, now_s) == 0.75


def test_how_busy_a_gpu_is_now_says_nothing_of_a_log_that_is_behind(seat: Seat, driver: Driver) -> None:
    driver.set(**{"0.procs": f"110:{60 << 30}", "0.util": 0})
    seat.now_s = 3600.0
    seat.reading()
    now_s = seat.pipeline.now_s or 0.0
    assert [track.window.eyes.work.idle_since_s(now_s) for track in seat.pipeline.tracks()] == [None, None]


def test_the_memory_of_a_server_is_stored_with_its_limit(seat: Seat) -> None:
    seat.reading()
    assert seat.store.read("SELECT source, rss_mib, limit_mib, oom_kills, processes, pid FROM host_samples") == [
        ("chat", 4096.0, 32_768.0, 0, 3, 100)
    ]


def test_after_a_restart_the_servers_processes_are_known_before_it_logs_again(seat: Seat) -> None:
    seat.reading()
    seat.lookout.forget()
    seat.lookout.begin(seat.store, T0 + seat.now_s)
    seat.pipeline = Pipeline("chat", Ids(seat.store.engines(), seat.store.runs()), RULES)
    lives = [
        (engine, run, seat.store.lines_of(run.run_id))
        for engine, run in zip(seat.store.engines(), seat.store.runs(), strict=True)
    ]
    seat.pipeline.resume(lives)
    assert {track.window.last.pid for track in seat.pipeline.tracks() if track.window.last is not None} == {None}
    seat.now_s += 30
    seat.reading()
    assert seat.store.read("SELECT pid, processes FROM host_samples ORDER BY ts") == [(100, 3), (100, 3)]


def test_device_memory_is_found_for_an_engine(seat: Seat, driver: Driver) -> None:
    driver.set(**{"0.procs": f"110:{60 << 30}", "1.procs": f"120:{60 << 30}", "1.used": 50_000 << 20})
    seat.reading()
    seat.now_s += 30
    driver.set(**{"1.used": 50_100 << 20})
    seat.reading()
    assert seat.store.device_memory("chat/1", T0 - 60, T0 + 60) == (50_000.0, 50_100.0, 81_559.0)
    assert seat.store.device_memory("chat/0", T0 - 60, T0 + 60) == (70_000.0, 70_000.0, 81_559.0)
    assert seat.store.device_memory("somebody/0", T0 - 60, T0 + 60) == (50_000.0, 50_100.0, 81_559.0)
    assert seat.store.device_memory("chat/0", T0 + 6000, T0 + 7000) is None


def test_processes_are_written_when_they_change_and_now_and_then(seat: Seat, driver: Driver) -> None:
    driver.set(**{"0.procs": f"110:{60 << 30}"})
    counts = []
    for used in (60 << 10, 60 << 10, (60 << 10) + 10, (60 << 10) + 80, (60 << 10) + 80):
        driver.set(**{"0.procs": f"110:{used << 20}"})
        batch = seat.reading()
        counts.append((len(batch.gpu_samples), len(batch.gpu_processes), len(batch.gpus)))
        seat.now_s += 30
    assert counts == [(2, 1, 2), (2, 0, 0), (2, 0, 0), (2, 1, 1), (2, 0, 0)]
    later = 0
    while not seat.reading().gpu_processes:
        seat.now_s += 30
        later += 1
    assert later == 18  # ten minutes after the last time


def test_states_are_told_once_and_when_they_are_over(seat: Seat, driver: Driver) -> None:
    seat.reading()
    driver.set(**{"1.err": LOST})
    for _ in range(3):
        seat.now_s += 30
        seat.reading()
    assert seat.said.getvalue().count("gpu 1: lost") == 1
    assert [gpu.state for gpu in seat.lookout.gpus()] == ["ok", "lost"]
    assert [gpu.memory_used_mib for gpu in seat.lookout.gpus()] == [70_000.0, None]
    assert seat.store.read("SELECT state FROM gpus ORDER BY device_index") == [("ok",), ("lost",)]
    driver.heal()
    seat.now_s += 30
    seat.reading()
    assert seat.said.getvalue().endswith("gpu 1: in order again\n")


def test_what_a_field_lacks_is_said_once(seat: Seat, driver: Driver) -> None:
    driver.set(util="-")
    for _ in range(2):
        seat.reading()
        seat.now_s += 30
    assert seat.said.getvalue().count("utilisation cannot be read (NVML error 3)") == 1
    assert seat.store.read("SELECT DISTINCT util_share FROM gpu_samples") == [(None,)]


def test_without_a_driver_rules_have_no_source_and_one_line_says_why(seat: Seat, driver: Driver) -> None:
    driver.remove()
    gpus = seat.lookout._gpus
    assert gpus is not None
    for _ in range(3):
        before_s = gpus._retry_s
        seat.until(partial(lambda retry_s: gpus._retry_s > retry_s, before_s))
        seat.now_s += 60
    assert seat.said.getvalue().count("gpu: there is no NVIDIA driver") == 1
    without = {rule.rule: rule.state for rule in seat.lookout.without_source()}
    assert set(without) == {"gpu-memory-growth", "gpu-skew", "gpu-lost"}
    assert set(without.values()) == {RuleState.NO_SOURCE}
    assert "a host without GPUs needs none" in seat.lookout.note()


def test_nothing_is_watched_that_is_switched_off(tmp_path: Path, host: Host, driver: Driver) -> None:
    off = SamplerConfig.model_validate({"enabled": "no"})
    seat = Seat(tmp_path, host, gpu=off, host=off)
    for _ in range(5):
        seat.look()
        seat.now_s += 30
    assert seat.lookout._gpus is None
    assert not any(seat.commit())
    assert list(seat.lookout.gpus()) == []
    seat.close()


def test_alerts_go_on_after_the_store_was_opened_anew(tmp_path: Path, host: Host, driver: Driver) -> None:
    seat = Seat(tmp_path, host)
    seat.reading()
    driver.set(**{"1.err": LOST})
    for _ in range(5):
        seat.now_s += 30
        seat.reading()
    fired = seat.store.alert_events()
    assert [(event.key.rule, event.key.scope) for event in fired] == [("gpu-lost", f"gpu/{UUID.format(1)}")]
    seat.lookout.forget()
    seat.lookout.begin(seat.store, T0 + seat.now_s)
    for _ in range(3):
        seat.now_s += 30
        seat.reading()
    assert seat.store.alert_events() == fired
    driver.heal()
    for _ in range(5):
        seat.now_s += 30
        seat.reading()
    assert [event.state.value for event in seat.store.alert_events()] == ["firing", "resolved"]
    seat.close()


def fired(tmp_path: Path, host: Host, driver: Driver, **config: Any) -> Seat:
    """Return a seat at which a GPU is lost and the kernel has killed a process of a server."""
    seat = Seat(tmp_path, host, **config)
    seat.reading()
    driver.set(**{"1.err": LOST})
    host.limit("vllm.service", events="oom_kill 1\n")
    for _ in range(5):
        seat.now_s += 30
        seat.reading()
    assert sorted(one.key.rule for one in seat.store.standings()) == ["gpu-lost", "host-memory-growth"]
    assert seat.lookout.firing() == 2
    return seat


def ends(seat: Seat) -> list[tuple[str, str]]:
    events = seat.store.alert_events()
    return [(event.key.rule, event.reason) for event in events if event.state is AlertState.RESOLVED]


def leave(host: Host) -> None:
    """End all processes of the server."""
    for pid in (100, 110, 120):
        shutil.rmtree(host.root / str(pid))


def test_a_server_that_ended_ends_its_alerts(tmp_path: Path, host: Host, driver: Driver) -> None:
    seat = fired(tmp_path, host, driver)
    leave(host)
    seat.now_s += 30
    assert not seat.lookout.has_news()
    seat.until(seat.lookout.has_news)
    seat.reading()
    assert not seat.lookout.has_news()
    assert ends(seat) == [("host-memory-growth", "server ended")]
    assert {rule.rule for rule in seat.lookout.without_source()} == {"host-memory-growth"}
    seat.close()


def test_a_server_that_ended_while_nobody_looked_ends_its_alerts(tmp_path: Path, host: Host, driver: Driver) -> None:
    seat = fired(tmp_path, host, driver)
    leave(host)
    seat.restart(3600)
    seat.reading()
    assert ends(seat) == [("host-memory-growth", "server ended")]
    seat.close()


def test_alerts_about_what_was_not_read_for_days_end(tmp_path: Path, host: Host, driver: Driver) -> None:
    seat = fired(tmp_path, host, driver)
    seat.restart(7 * 86_400)
    seat.commit()
    assert ends(seat) == [("host-memory-growth", "source removed")]
    seat.close()


def test_a_log_that_is_read_no_more_ends_the_alerts_about_its_server(
    tmp_path: Path, host: Host, driver: Driver
) -> None:
    seat = fired(tmp_path, host, driver)
    seat.lookout.poll(seat.now_s + 30, T0 + seat.now_s + 30, [])
    seat.commit()
    assert ends(seat) == [("host-memory-growth", "source removed")]
    assert seat.lookout._sideline is not None
    assert "chat" not in seat.lookout._sideline.scopes(HOST_SOURCE)
    seat.close()


def test_what_is_switched_off_ends_its_alerts(tmp_path: Path, host: Host, driver: Driver) -> None:
    off = SamplerConfig.model_validate({"enabled": "no"})
    seat = fired(tmp_path, host, driver)
    seat.change(Setup(Config(gpu=off, host=off), RULES))
    seat.commit()
    assert sorted(ends(seat)) == [("gpu-lost", "source removed"), ("host-memory-growth", "source removed")]
    seat.close()


def test_a_gpu_that_was_taken_out_is_expected_for_a_day(tmp_path: Path, host: Host, driver: Driver) -> None:
    seat = fired(tmp_path, host, driver)
    driver.set(count=1)
    for _ in range(5):
        seat.now_s += 30
        seat.reading()
    assert [gpu.state for gpu in seat.lookout.gpus()] == ["ok", "absent"]
    assert ends(seat) == []
    seat.now_s += 86_400
    seat.reading()
    seat.now_s += 30
    seat.reading()
    assert ends(seat) == [("gpu-lost", "source removed")]
    assert [gpu.state for gpu in seat.lookout.gpus()] == ["ok"]
    assert seat.said.getvalue().count("gpu 1: not listed for a day: expected no more") == 1
    assert "gpu 1: in order again" not in seat.said.getvalue()
    seat.close()


def test_a_clock_that_was_set_forward_by_days_takes_no_gpu_out(tmp_path: Path, host: Host, driver: Driver) -> None:
    seat = fired(tmp_path, host, driver)
    driver.set(count=1)
    seat.now_s += 30
    seat.reading()
    seat.ahead_s = 3 * 86_400.0
    for _ in range(3):
        seat.now_s += 30
        seat.reading()
    assert ends(seat) == []
    assert [gpu.state for gpu in seat.lookout.gpus()] == ["ok", "absent"]
    seat.close()


def test_a_gpu_that_is_lost_for_days_is_the_same_alert_after_a_restart(
    tmp_path: Path, host: Host, driver: Driver
) -> None:
    seat = fired(tmp_path, host, driver)
    seat.restart(2 * 86_400)
    for _ in range(5):
        seat.now_s += 30
        seat.reading()
    assert [one.rule for one in (event.key for event in seat.store.alert_events()) if one.rule == "gpu-lost"] == [
        "gpu-lost"
    ]
    seat.close()


def test_rules_without_a_gpu_are_told_of_where_that_is_odd(tmp_path: Path, host: Host, driver: Driver) -> None:
    driver.remove()
    seat = Seat(tmp_path, host, host=SamplerConfig.model_validate({"enabled": "no"}))
    own = next(rule for rule in RULES if rule.per is Per.GPU)._replace(id="mine", path=tmp_path / "mine.yaml")
    seat.lookout.change(seat.setup._replace(rules=(*RULES, own)))
    seat.look()
    assert seat.lookout.without_evidence() == []
    seat.now_s += 86_400
    seat.look()
    assert seat.lookout.without_evidence() == [("mine", "gpu")]
    seat.close()


def test_rules_whose_gpus_have_gone_are_told_of(seat: Seat, driver: Driver) -> None:
    seat.reading()
    assert seat.lookout.without_evidence() == []
    driver.remove()
    seat.now_s += 3 * 86_400
    seat.change(seat.setup)
    seat.look()
    assert ("gpu-lost", "gpu") in seat.lookout.without_evidence()
    seat.change(seat.setup._replace(config=Config(gpu=SamplerConfig.model_validate({"enabled": "no"}))))
    seat.now_s += 2 * 86_400
    seat.look()
    assert seat.lookout.without_evidence() == []  # whoever switched it off knows it
