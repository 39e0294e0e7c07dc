"""What reads all sources: how logs are called, and that a restart takes each up where it stood."""

import json
import os
from collections.abc import Container
from pathlib import Path

import pytest

from kvlogd.config import Config, SourceConfig, StoreConfig
from kvlogd.feed import SILENT_S
from kvlogd.intake import Intake
from kvlogd.model import EventKind
from kvlogd.setup import Setup
from kvlogd.store import Store
from tests.lines import START_S, line_of, logged, record

EXPIRED = "which were retrieved by 0 decode worker(s) within 480 seconds."


def lines(count: int, pid: int) -> bytes:
    return b"".join(line_of(record(10.0 * n, running=1, generation_tps=5.0, pid=pid)) + b"\n" for n in range(count))


def read(store: Store, files: tuple[str, ...]) -> list[str]:
    """Read all that is new; return the reasons of what was lost."""
    source = SourceConfig(name="chat", files=files, timezone="UTC")
    intake = Intake(Setup(Config(sources=(source,), store=StoreConfig(path=store.path)), ()), store, 0.0)
    for turn in range(8):
        intake.poll(3.0 * turn, 1.8e9)
    batch = intake.batch(30.0, is_last=True)
    store.commit(batch)
    intake.close()
    return [gap.reason for gap in batch.gaps]


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (("{0}/a/vllm.log",), ["chat"]),
        (("{0}/*/vllm.log",), ["chat/a/vllm.log", "chat/b/vllm.log"]),
        (("{0}/a/vllm.log", "{0}/b/vllm.log"), ["chat/a/vllm.log", "chat/b/vllm.log"]),
        (("{0}/a/*.log",), ["chat/vllm.log"]),
    ],
    ids=["a path", "a wildcard folder", "two paths", "a wildcard"],
)
def test_no_two_logs_have_one_name_and_a_restart_reads_nothing_again(
    tmp_path: Path, files: tuple[str, ...], names: list[str]
) -> None:
    for pid, folder in enumerate(("a", "b"), 1):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "vllm.log").write_bytes(lines(100 * pid, pid))
    named = tuple(pattern.format(tmp_path) for pattern in files)
    with Store.open(tmp_path / "s.duckdb") as store:
        for _ in range(3):
            assert read(store, named) == []
            found = store.read(
                "SELECT source, count(*) FROM samples JOIN engines USING (engine_id) GROUP BY 1 ORDER BY 1"
            )
            assert [source for source, _ in found] == names
            assert [count for _, count in found] == [100, 200][: len(names)]


class Reading:
    """One source at work, on a clock of the test's own."""

    def __init__(self, store: Store, folder: Path, wild: str = "*.log") -> None:
        self._store = store
        self.now_s = 0.0
        source = SourceConfig(name="chat", files=(f"{folder}/{wild}",), timezone="UTC")
        setup = Setup(Config(sources=(source,), store=StoreConfig(path=store.path)), ())
        self.intake = Intake(setup, store, 0.0)

    def go_on(self, for_s: float = 30.0, alive: Container[str] = ()) -> list[str]:
        """Read what is new, let so much time pass and commit; return the logs that are remembered."""
        for _ in range(8):
            self.now_s += 3.0
            self.intake.poll(self.now_s, 1.8e9 + self.now_s)
        self.now_s += for_s
        self._store.commit(self.intake.batch(self.now_s, alive=alive))
        return sorted(stream.log for stream in self.intake.streams())

    def end(self) -> None:
        """End as a daemon does, with what the rules remember."""
        self._store.commit(self.intake.batch(self.now_s, is_last=True))
        self.intake.close()


def write(log: Path, data: bytes) -> None:
    """Add to a log, at the time of these tests' clock."""
    with log.open("ab") as file:
        file.write(data)
    os.utime(log, (1.8e9, 1.8e9))


def live(store: Store, folder: Path, times: int) -> None:
    """Let so many daemons read what is there and end, one after the other."""
    for _ in range(times):
        reading = Reading(store, folder)
        reading.go_on()
        reading.end()


def test_a_log_that_is_silent_for_a_day_is_let_go_and_taken_up_where_it_stood(tmp_path: Path) -> None:
    log, other = tmp_path / "a.log", tmp_path / "b.log"
    log.write_bytes(lines(100, 1))
    other.write_bytes(lines(100, 2))
    with Store.open(tmp_path / "s.duckdb") as store:
        reading = Reading(store, tmp_path)
        assert reading.go_on() == ["chat/a.log", "chat/b.log"]
        with other.open("ab") as file:
            file.write(lines(110, 2)[len(lines(100, 2)) :])
        assert reading.go_on(SILENT_S - 180.0) == ["chat/a.log", "chat/b.log"]
        with other.open("ab") as file:
            file.write(lines(120, 2)[len(lines(110, 2)) :])
        assert reading.go_on(alive={"chat/a.log"}) == ["chat/a.log", "chat/b.log"]
        assert reading.go_on() == ["chat/b.log"]
        with log.open("ab") as file:
            file.write(lines(130, 1)[len(lines(100, 1)) :])
        assert reading.go_on() == ["chat/a.log", "chat/b.log"]
        track = next(s for s in reading.intake.streams() if s.log == "chat/a.log").pipeline.tracks()[0]
        assert track.window.last is not None
        assert track.life.run.number == 1
        assert len(track.window.recent) > 30  # what was before it was let go is remembered, too
        counts = store.read("SELECT count(*) AS n FROM samples GROUP BY run_id ORDER BY n")
        assert counts == [(120,), (130,)]
        assert [run.ended_s for run in store.runs()] == [None, None]
        reading.intake.close()


def test_a_start_revives_silent_logs_too_and_lets_them_go_after_another_day(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.log").write_bytes(lines(50, 1 + number))
    with Store.open(tmp_path / "s.duckdb") as store:
        reading = Reading(store, tmp_path)
        assert len(reading.go_on(2 * SILENT_S)) == 0
        (tmp_path / "new.log").write_bytes(lines(50, 99))
        assert reading.go_on() == ["chat/new.log"]
        reading.intake.close()
        again = Reading(store, tmp_path)
        again.now_s = reading.now_s
        assert len(again.go_on()) == 6
        again.go_on()
        assert again.go_on(SILENT_S) == []
        assert len(store.runs()) == 6
        again.intake.close()


def test_a_start_does_not_revive_logs_whose_files_are_gone_for_days(tmp_path: Path) -> None:
    """Pods come under ever new names, and each would cost every later start its time and memory."""
    logs = [tmp_path / f"{number}.log" for number in range(4)]
    for number, log in enumerate(logs):
        log.write_bytes(lines(50, 1 + number))
    with Store.open(tmp_path / "s.duckdb") as store:
        reading = Reading(store, tmp_path)
        reading.go_on()
        for log in logs[:3]:
            log.unlink()
        assert len(reading.go_on()) == 4
        reading.end()
        # as soon as that they may not be over: their silence can still be a hang
        again = Reading(store, tmp_path)
        again.now_s = reading.now_s
        assert len(again.go_on()) == 4
        again.end()
        later = Reading(store, tmp_path)
        later.now_s = 3 * SILENT_S
        with logs[3].open("ab") as file:
            file.write(lines(60, 4)[len(lines(50, 4)) :])
        later.go_on()
        later.end()
        last = Reading(store, tmp_path)
        last.now_s = later.now_s
        assert last.go_on() == ["chat/3.log"]
        logs[0].write_bytes(lines(70, 1)[len(lines(50, 1)) :])
        assert last.go_on() == ["chat/0.log", "chat/3.log"]
        track = next(s for s in last.intake.streams() if s.log == "chat/0.log").pipeline.tracks()[0]
        assert (track.life.run.number, len(track.window.recent) > 20) == (1, True)
        last.end()


def test_a_log_that_was_let_go_is_brought_back_in_the_background(tmp_path: Path) -> None:
    log, other = tmp_path / "a.log", tmp_path / "b.log"
    log.write_bytes(lines(100, 1))
    with Store.open(tmp_path / "s.duckdb") as store:
        reading = Reading(store, tmp_path)
        assert reading.go_on(2 * SILENT_S) == []
        store.transact([("DELETE FROM memories", [])])  # as where another kvlogd wrote it
        log.write_bytes(lines(130, 1))
        other.write_bytes(lines(20, 2))
        reading.now_s += 3.0
        reading.intake.poll(reading.now_s, 1.8e9 + reading.now_s)
        assert reading.intake.feeds[0].is_reviving
        assert reading.go_on() == ["chat/a.log", "chat/b.log"]
        track = next(s for s in reading.intake.streams() if s.log == "chat/a.log").pipeline.tracks()[0]
        assert track.life.run.number == 1
        assert len(track.window.recent) > 30
        assert store.read("SELECT count(*) AS n FROM samples GROUP BY run_id ORDER BY n") == [(20,), (130,)]
        reading.intake.close()


@pytest.mark.parametrize("beside", ["packed", "folder", "circle"])
def test_what_a_wildcard_matches_and_nobody_can_follow_blinds_no_other_log(tmp_path: Path, beside: str) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    if beside == "packed":
        (logs / "old.log.1.gz").write_bytes(b"\x1f\x8b")
    elif beside == "folder":
        (logs / "old").mkdir()
    else:
        (logs / "old.log").symlink_to("old.log")
    log = logs / "vllm.log"
    log.write_bytes(lines(20, 1) + logged("EngineCore encountered a fatal error.", 200.0) + b"\n")
    with Store.open(tmp_path / "s.duckdb") as store:
        reading = Reading(store, logs, "*")
        assert reading.go_on() == ["chat/vllm.log"]
        assert store.read("SELECT count(*) FROM events WHERE kind = 'crash'") == [(1,)]
        assert {place.offset for place in store.places()} == {log.stat().st_size}
        feed = reading.intake.feeds[0]
        states = {health.state for health in feed.health() if "old" in health.log}
        assert states == {"unreadable" if beside == "circle" else "skipped"}
        stream = feed.streams["chat/vllm.log"]
        before_s = stream.pipeline.now_s
        reading.go_on(900.0)
        reading.go_on()
        assert stream.pipeline.now_s is not None
        assert before_s is not None
        assert stream.pipeline.now_s - before_s > 800.0  # its silence counts
        reading.intake.close()


def test_a_log_is_let_go_only_once_all_that_was_read_of_it_is_stored(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(lines(20, 1))
    with Store.open(tmp_path / "s.duckdb") as store:
        reading = Reading(store, tmp_path)
        reading.go_on()
        with log.open("ab") as file:
            file.write(logged("EngineCore encountered a fatal error.", 200.0) + b"\n")
        reading.now_s += 3.0
        reading.intake.poll(reading.now_s, 1.8e9 + reading.now_s)  # it is held back for a record that may follow
        reading.now_s += 2 * SILENT_S
        store.commit(reading.intake.batch(reading.now_s))
        assert [stream.log for stream in reading.intake.streams()] == ["chat/a.log"]
        assert reading.go_on() == []
        assert store.read("SELECT count(*) FROM events WHERE kind = 'crash'") == [(1,)]
        reading.intake.close()


def test_a_restart_counts_no_event_again(tmp_path: Path) -> None:
    """An idle engine may let leases expire for hours after its last record."""
    log = tmp_path / "a.log"
    expired = [logged(f"Releasing expired KV blocks for request {n} {EXPIRED}", 900.0 + n) + b"\n" for n in range(5)]
    write(log, lines(50, 1) + b"".join(expired[:3]))
    with Store.open(tmp_path / "s.duckdb") as store:
        live(store, tmp_path, 3)
        write(log, b"".join(expired[3:]))
        reading = Reading(store, tmp_path)
        reading.go_on()
        track = reading.intake.streams()[0].pipeline.tracks()[0]
        assert list(track.window.events[EventKind.KV_EXPIRED]) == [START_S + 900.0 + n for n in range(5)]
        reading.end()
        store.transact([("DELETE FROM memories", [])])
        again = Reading(store, tmp_path)
        again.go_on()
        assert len(again.intake.streams()[0].pipeline.tracks()[0].window.events[EventKind.KV_EXPIRED]) == 5
        again.end()


def test_a_folder_of_wildcards_that_may_not_be_read_is_told_and_is_no_silence(tmp_path: Path) -> None:
    logs, real = tmp_path / "logs", os.geteuid()
    logs.mkdir()
    (logs / "a.log").write_bytes(lines(50, 1))
    with Store.open(tmp_path / "s.duckdb") as store:
        reading = Reading(store, logs)
        reading.go_on()
        reading.end()
        for folder in (tmp_path, *tmp_path.parents):
            if folder != Path("/") and folder.stat().st_uid == real:
                folder.chmod(folder.stat().st_mode | 0o011)
        logs.chmod(0o000)
        again = Reading(store, logs)
        os.seteuid(65534 if real == 0 else real)  # root may read everything
        try:
            for _ in range(4):
                again.now_s += 10.0
                again.intake.poll(again.now_s, 1.8e9)
        finally:
            os.seteuid(real)
        (health,) = again.intake.health()
        assert (health.log, health.state) == (str(logs), "unreadable")
        assert "kvlogd's user" in health.mend
        (feed,) = again.intake.feeds
        assert feed.blind() == {"chat/a.log"}
        logs.chmod(0o755)
        again.go_on()
        assert [health.state for health in again.intake.health()] == ["reading"]
        assert feed.blind() == set()
        again.end()


@pytest.mark.parametrize("moved", [False, True], ids=["its file is there", "no pattern names it any more"])
def test_after_a_restart_only_a_log_that_is_there_is_silent(tmp_path: Path, moved: bool) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
    (old / "a.log").write_bytes(lines(50, 1))
    (new / "b.log").write_bytes(lines(50, 2))
    for log in (old / "a.log", new / "b.log"):
        os.utime(log, (1.8e9, 1.8e9))
    with Store.open(tmp_path / "s.duckdb") as store:
        reading = Reading(store, old)
        reading.go_on()
        reading.end()
        again = Reading(store, new if moved else old)
        again.go_on(300.0)
        again.go_on()
        (stream,) = [one for one in again.intake.streams() if one.log == "chat/a.log"]
        silent_s = (stream.pipeline.now_s or 0.0) - (START_S + 490.0)
        assert silent_s == pytest.approx(0.0 if moved else 330.0, abs=60.0)
        again.end()


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59.9Z", "9999-12-31T23:59:59-14:00"])
def test_a_time_at_the_end_of_the_calendar_does_not_keep_the_daemon_from_starting(tmp_path: Path, time: str) -> None:
    log = tmp_path / "a.log"
    stop = json.dumps({"log": "(APIServer pid=1) INFO:     Shutting down\n", "stream": "stdout", "time": time})
    write(log, lines(20, 1) + stop.encode() + b"\n")
    with Store.open(tmp_path / "s.duckdb") as store:
        live(store, tmp_path, 2)
        write(log, lines(21, 1)[len(lines(20, 1)) :])
        again = Reading(store, tmp_path)
        again.go_on()
        (stream,) = again.intake.streams()
        assert stream.pipeline.now_s == START_S + 200.0
        again.end()
        assert store.read("SELECT count(*) FROM samples") == [(21,)]


def wrapped(text: str, *, cri: bool, is_part: bool = False) -> bytes:
    """Return a line as docker or a kubelet writes it."""
    at = "2026-11-29T14:00:00.000000000Z"
    if cri:
        return f"{at} stdout {'P' if is_part else 'F'} {text}\n".encode()
    entry = {"log": text if is_part else f"{text}\n", "stream": "stdout", "time": at}
    return json.dumps(entry).encode() + b"\n"


@pytest.mark.parametrize("cri", [False, True], ids=["docker", "kubelet"])
def test_the_rest_of_a_line_whose_begin_was_read_before_a_restart_is_no_line(tmp_path: Path, cri: bool) -> None:
    log = tmp_path / "a.log"
    known = [line_of(record(10.0 * n, running=1)).decode() for n in range(100)]
    begin = logged("Received request: " + "a" * 15_000, 15.0).decode()
    log.write_bytes(b"".join(wrapped(text, cri=cri) for text in known[:2]) + wrapped(begin, cri=cri, is_part=True))
    with Store.open(tmp_path / "s.duckdb") as store:
        reading = Reading(store, tmp_path)
        reading.go_on()
        reading.end()
        with log.open("ab") as file:
            # what somebody asked for: a line of vLLM's, right where docker cuts
            file.write(wrapped(known[99], cri=cri, is_part=True) + wrapped(known[98], cri=cri))
            file.write(wrapped(known[2], cri=cri))
        again = Reading(store, tmp_path)
        again.go_on()
        again.end()
        found = store.read("SELECT epoch(max(ts)), count(*) FROM samples")
        assert found == [(START_S + 20.0, 3)]
        assert [gap.reason for gap in store.gaps()] == ["cut_line"]
