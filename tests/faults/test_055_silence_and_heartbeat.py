"""55. A silence ends by itself and survives a restart; the heartbeat stops where anything is stuck."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvlogd.heartbeat import MOST_S, Heartbeat
from kvlogd.model import Fault, Outcome
from kvlogd.outbox import Silence
from kvlogd.rows import Batch
from tests.outboxes import BEGIN_S, alert
from tests.paging import Desk, Paged
from tests.sinks import DRIP_HEAD, HANG, Answer, HttpSink
from tests.waiting import until

HOUR_S = 3600.0


def test_055_a_silence_survives_a_restart_and_ends_by_itself(tmp_path: Path) -> None:
    with HttpSink() as hook:
        desk = Desk(tmp_path, {"hook": hook.url()})
        try:
            desk.live.store.commit(Batch(silences=[Silence(1, "kv-leak", "*", BEGIN_S, BEGIN_S + HOUR_S)]))
            desk.dispatch.silence(desk.live.store.silences())
            desk.see(alert(0), alert(0, scope="chat/1"))
            desk.go(600, 20)
            desk.kill()
            desk.go(600, 20)
            desk.see(alert(1200, scope="chat/1", over=True))
            desk.go(HOUR_S - 1300, 20)
            assert hook.requests == []
            desk.go(200, 20)
            [request] = hook.requests
            assert "kv-leak chat/0" in str(request.json["title"])
        finally:
            desk.close()


def test_055_a_silence_of_the_command_is_in_force_at_once(tmp_path: Path) -> None:
    with HttpSink() as hook:
        daemon = Paged(tmp_path, {"hook": hook.url()})
        try:
            daemon.up()
            assert daemon.ask("silence", "full@chat/*", "1h").status == 0
            daemon.fire()
            told = daemon.ask("alerts")
            assert told.status == 1
            assert "silenced until" in told.out
            assert "nobody" in told.out
            daemon.rows("SELECT 1 AS one")
            assert daemon.ask("silence", "--end", "1").status == 0
            daemon.waits(lambda: hook.requests)
        finally:
            daemon.close()


@pytest.fixture
def beats() -> Iterator[tuple[HttpSink, Heartbeat]]:
    with HttpSink() as sink:
        heart = Heartbeat()
        heart.aim(f"http://127.0.0.1:{sink.port}/ping", 60.0)
        yield sink, heart


def test_055_it_beats_at_its_pace_while_all_is_well(beats: tuple[HttpSink, Heartbeat]) -> None:
    sink, heart = beats
    for second in range(0, 300, 5):
        heart.beat(float(second), lambda: True)
        if second % 60 == 0:
            until(lambda expected=1 + second // 60: len(sink.requests) == expected)  # type: ignore[misc]
    assert [request.method for request in sink.requests] == ["GET"] * 5
    until(lambda: heart.is_reached)
    for second in range(300, 600, 5):
        heart.beat(float(second), lambda: False)
    assert len(sink.requests) == 5


def test_055_a_server_that_hangs_or_is_not_there_holds_up_nothing(beats: tuple[HttpSink, Heartbeat]) -> None:
    sink, heart = beats
    sink.default = HANG
    heart.aim(f"http://127.0.0.1:{sink.port}/ping", 5.0)
    for second in range(0, 20, 5):
        heart.beat(float(second), lambda: True)
    until(lambda: len(sink.requests) == 3)
    assert heart.under_way() == 3
    broken = Heartbeat()
    broken.aim("http://127.0.0.1:1/", 1.0)
    broken.beat(0.0, lambda: True)
    until(lambda: broken.is_reached is False)


@pytest.mark.parametrize("slow", [DRIP_HEAD, Answer(302, {"Location": "/else"}, "drip")], ids=["head", "redirect"])
def test_055_a_server_that_answers_a_letter_at_a_time_is_left_after_a_while(
    beats: tuple[HttpSink, Heartbeat], slow: Answer
) -> None:
    sink, heart = beats
    sink.default = slow
    heart.beat(0.0, lambda: True)
    until(lambda: len(sink.requests) == 1)
    heart.beat(MOST_S - 1, lambda: True)
    assert heart.under_way() == 1

    def is_left() -> bool:
        heart.beat(MOST_S, lambda: True)
        return heart.under_way() == 0

    until(is_left)
    assert heart.is_reached is False
    sink.default = Answer()
    heart.beat(60.0, lambda: True)
    until(lambda: heart.is_reached)


def _channel_fails(desk: Desk) -> None:
    plan = desk.dispatch._plan
    assert plan is not None
    plan.lines["hook"].ended(Outcome(Fault.REFUSED, 403), 1, desk.live.clock.wall)
    plan.lines["hook"].ended(Outcome(Fault.REFUSED, 403), 1, desk.live.clock.wall)
    plan.lines["hook"].ended(Outcome(Fault.REFUSED, 403), 1, desk.live.clock.wall)


def _store_fails(desk: Desk) -> None:
    desk.dispatch.let_go()


@pytest.mark.parametrize("harm", [_channel_fails, _store_fails])
def test_055_what_cannot_send_is_not_well(tmp_path: Path, harm: Callable[[Desk], None]) -> None:
    desk = Desk(tmp_path, {"hook": "json://127.0.0.1:1/"})
    try:
        assert desk.dispatch.is_well(desk.live.clock.wall)
        harm(desk)
        assert not desk.dispatch.is_well(desk.live.clock.wall)
    finally:
        desk.close()


@pytest.mark.parametrize("stuck", ["sending", "tailing"])
def test_055_a_daemon_beats_until_something_is_stuck(tmp_path: Path, stuck: str) -> None:
    with HttpSink() as hook, HttpSink() as watcher:
        secret = tmp_path / "heartbeat.url"
        secret.write_text(f"http://127.0.0.1:{watcher.port}/ping")
        secret.chmod(0o600)
        more = f"heartbeat: {{url_file: {secret}, every: 1s}}\n"
        daemon = Paged(tmp_path, {"hook": hook.url()}, more)
        try:
            daemon.up()
            daemon.waits(lambda: len(watcher.requests) >= 2)
            if stuck == "sending":
                hook.default = Answer(403)
                daemon.fire()
                daemon.waits(lambda: "is out of order" in daemon.said.read_text(), 90)
            else:
                daemon.log.unlink()
                daemon.log.mkdir()
                daemon.waits(lambda: str(daemon.status()["sources"]).count("unreadable"))
            until(lambda: _is_silent(watcher), 20)
        finally:
            daemon.close()


def _is_silent(watcher: HttpSink) -> bool:
    """Tell whether nothing comes for three of its intervals."""
    before = len(watcher.requests)
    return not watcher.stopped.wait(3.0) and len(watcher.requests) == before


def test_055_a_host_without_a_thread_to_spare_misses_a_beat_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with HttpSink() as watcher:
        heartbeat = Heartbeat()
        heartbeat.aim(f"http://127.0.0.1:{watcher.port}/ping", 1.0)
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refused)
            heartbeat.beat(0.0, lambda: True)
        assert heartbeat.is_reached is False
        heartbeat.beat(1.0, lambda: True)
        until(lambda: heartbeat.is_reached is True)
