"""The outbox inside the daemon: what it costs where it is not used, how it ends, and what a reload changes."""

import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvlogd.channel import Secret
from kvlogd.config import ChannelConfig
from kvlogd.dispatch import BROKEN_S
from kvlogd.errors import StoreError
from kvlogd.kinds.threshold import Threshold
from kvlogd.model import Broken, NoticeKind
from kvlogd.outbox import NoticeState
from kvlogd.plan import GROUP_S
from kvlogd.rows import Batch
from kvlogd.store import Store
from tests.course import rule
from tests.lines import line_of, record
from tests.outboxes import BEGIN_S, alert
from tests.paging import Beside, Desk, Paged
from tests.sinks import DRIP, HANG, Answer, HttpSink

ROOT = Path(__file__).parent.parent
LOADED = "import sys, kvlogd.service; print(*sorted({name.partition('.')[0] for name in sys.modules}))"


def test_the_daemon_loads_neither_apprise_nor_matplotlib() -> None:
    run = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = run.stdout.split()
    assert "kvlogd" in loaded
    assert {"apprise", "matplotlib", "requests", "numpy"}.isdisjoint(loaded)


def test_without_channels_nothing_is_planned(tmp_path: Path) -> None:
    desk = Desk(tmp_path, {})
    try:
        batch = Batch(alert_events=[alert(0)])
        assert desk.dispatch.planned(batch, 0.0, BEGIN_S) is batch
        desk.go(60)
        assert (desk.notices(), desk.live.store.cases(), desk.dispatch.channels()) == ([], [], [])
        assert desk.dispatch.is_well(BEGIN_S)
    finally:
        desk.close()


def test_the_message_says_what_and_where(tmp_path: Path) -> None:
    with HttpSink() as hook:
        desk = Desk(tmp_path, {"hook": hook.url()})
        try:
            desk.see(alert(0))
            desk.go(10)
            desk.see(alert(3600, over=True, reason="cleared"))
            desk.go(10)
            began, ended = (request.json for request in hook.requests)
            assert "node-7" in str(began["title"])
            assert "kv-leak chat/0" in str(began["title"])
            assert "over after 1 h" in str(ended["title"])
            [first, _] = desk.notices()
            assert first.alerts.partition('"id":"')[2][:8] in str(began["message"])
        finally:
            desk.close()


def test_a_child_is_started_while_a_message_waits_for_others_of_its_rule(tmp_path: Path) -> None:
    with HttpSink() as hook:
        desk = Desk(tmp_path, {"hook": hook.url()})
        try:
            clock = desk.live.clock
            assert desk.dispatch.due_in_s(clock.monotonic_s(), clock.wall_s()) == math.inf
            desk.see(alert(0))
            desk.turn(1)
            assert 0 < desk.dispatch.due_in_s(clock.monotonic_s(), clock.wall_s()) <= GROUP_S
            assert (desk.dispatch.is_flying(), desk.dispatch._postman.is_free("hook")) == (False, False)
            desk.settle()
            assert hook.requests == []
            desk.go(GROUP_S, 1)
            assert len(hook.requests) == 1
        finally:
            desk.close()


def test_a_channel_with_tags_takes_what_rules_find_that_carry_one_of_them(tmp_path: Path) -> None:
    mine, other = (rule(tmp_path, id_=name)._replace(tags=(name,)) for name in ("mine", "other"))
    with HttpSink() as hook:
        desk = Desk(tmp_path, {"hook": hook.url()}, rules=(mine, other), tags=["mine"])
        try:
            desk.see(alert(0, rule="mine"), alert(0, rule="other"))
            desk.go(10)
            assert ["mine chat/0" in str(request.json["title"]) for request in hook.requests] == [True]
        finally:
            desk.close()


def test_a_message_that_cannot_be_written_stops_no_other(tmp_path: Path) -> None:
    with HttpSink() as hook:
        desk = Desk(tmp_path, {"hook": hook.url()})
        try:
            beyond = 3e11  # after the last year that Python knows
            desk.see(alert(0, rule="odd")._replace(since_s=beyond), alert(0))
            desk.go(30)
            assert ["kv-leak" in str(request.json["title"]) for request in hook.requests] == [True]
            [notice] = desk.live.store.notices(NoticeState.WAITING)
            assert notice.rule == "odd"
            assert "cannot be written: " in desk.said.getvalue()
        finally:
            desk.close()


def test_a_commit_that_fails_loses_no_outcome_and_sends_nothing_twice(tmp_path: Path) -> None:
    with HttpSink() as hook:
        desk = Desk(tmp_path, {"hook": hook.url()})
        try:
            desk.see(alert(0))
            while not desk.dispatch.is_flying():
                desk.turn(1.0)
            desk.dispatch.let_go()  # as where the store fails
            desk.settle()
            assert desk.live.store.notices(NoticeState.SENT) == []
            desk.dispatch.take_up(desk.setup, desk.live.store, desk.live.clock.wall_s())
            desk.go(60)
            assert len(hook.requests) == 1
            assert [notice.kind for notice in desk.live.store.notices(NoticeState.SENT)] == [NoticeKind.FIRING]
        finally:
            desk.close()


def test_a_reload_touches_no_channel_but_those_that_changed(tmp_path: Path) -> None:
    with HttpSink() as hook, HttpSink() as new:
        hook.default = Answer(500)
        desk = Desk(tmp_path, {"hook": hook.url(), "gone": new.url()})
        try:
            desk.see(alert(0))
            desk.go(60)
            taken, tried = len(new.requests), len(hook.requests)
            channels = (ChannelConfig(name="hook", url_env="X"), ChannelConfig(name="new", url_env="X"))
            urls = {"hook": desk.setup.urls["hook"], "new": desk.setup.urls["gone"]}
            config = desk.setup.config.model_copy(update={"channels": channels})
            desk.dispatch.take_up(desk.setup._replace(config=config, urls=urls), desk.live.store, desk.live.clock.wall)
            desk.go(10, 1)
            assert len(new.requests) == taken + 1, "a new channel hears what fires"
            assert len(hook.requests) == tried, "it is left in peace as before"
            hook.default = Answer()
            desk.go(800, 20)
            assert len(new.requests) == taken + 1
            sent = [(n.channel, n.kind) for n in desk.live.store.notices(NoticeState.SENT)]
            assert sent.count(("hook", NoticeKind.FIRING)) == 1
        finally:
            desk.close()


def test_a_channel_whose_url_was_mended_is_tried_at_once(tmp_path: Path) -> None:
    with HttpSink() as wrong, HttpSink() as right:
        wrong.default = Answer(404)
        desk = Desk(tmp_path, {"hook": wrong.url()})
        try:
            desk.see(alert(0))
            desk.go(300, 20)
            urls = {"hook": Secret(right.url())}
            desk.dispatch.take_up(desk.setup._replace(urls=urls), desk.live.store, desk.live.clock.wall)
            desk.go(2, 1)
            assert len(right.requests) == 1
        finally:
            desk.close()


def test_a_mended_channel_is_tried_at_once_also_where_the_store_fails_meanwhile(tmp_path: Path) -> None:
    with HttpSink() as wrong, HttpSink() as right:
        wrong.default = Answer(500)
        desk = Desk(tmp_path, {"hook": wrong.url()})
        try:
            desk.see(alert(0))
            desk.go(220, 20)
            mended = desk.setup._replace(urls={"hook": Secret(right.url())})
            [notice] = desk.live.store.notices(NoticeState.WAITING)
            assert notice.due_s > desk.live.clock.wall + 10
            broken = Store.open(tmp_path / "broken.duckdb")
            broken.close()
            with pytest.raises(StoreError):
                desk.dispatch.take_up(mended, broken, desk.live.clock.wall)
            desk.dispatch.take_up(mended, desk.live.store, desk.live.clock.wall)
            desk.go(2, 1)
            assert len(right.requests) == 1
        finally:
            desk.close()


def test_a_server_that_hangs_holds_up_neither_the_logs_nor_the_end(tmp_path: Path) -> None:
    with HttpSink() as hung, HttpSink() as slow, HttpSink() as fine:
        hung.default, slow.default = HANG, DRIP
        daemon = Paged(tmp_path, {"hung": hung.url(), "slow": slow.url(), "fine": fine.url()})
        try:
            daemon.up()
            daemon.fire()
            daemon.waits(lambda: hung.requests and slow.requests and fine.requests)
            before = daemon.rows("SELECT count(*) AS n FROM samples")[0]["n"]
            daemon.write(0.8, 3)
            daemon.eventually("SELECT count(*) AS n FROM samples", lambda rows: rows[0]["n"] > before)
            begun_s = time.monotonic()
            assert daemon.stop() == 0
            assert time.monotonic() - begun_s < 10, "systemd's patience is the scenario's bound"
        finally:
            daemon.close()


def test_a_reload_takes_up_a_channel(tmp_path: Path) -> None:
    with HttpSink() as first, HttpSink() as second:
        daemon = Paged(tmp_path, {"first": first.url(), "second": second.url()})
        both = daemon.config.read_text()
        [second_place] = [part for part in both.split("{") if part.startswith("name: second")]
        daemon.config.write_text(both.replace(", {" + second_place.partition("}")[0] + "}", ""))
        try:
            daemon.up()
            daemon.fire()
            daemon.waits(lambda: first.requests)
            assert second.requests == []
            daemon.config.write_text(both)
            daemon.send(signal.SIGHUP)
            daemon.waits(lambda: second.requests)
            daemon.rows("SELECT 1 AS one")
            assert len(first.requests) == 1
        finally:
            daemon.close()


def test_a_rule_that_fails_is_told_after_a_quarter_of_an_hour_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    with HttpSink() as hook:
        desk = Desk(tmp_path, {"hook": hook.url()}, rules=(rule(tmp_path, id_="bad", for_="0s"),))
        try:
            monkeypatch.setattr(Threshold, "judge", fails)
            desk.live.log.write_bytes(b"".join(line_of(record(10.0 * n, running=1)) + b"\n" for n in range(12)))
            desk.live.read_all()
            desk.go(BROKEN_S - 60, 30)
            assert hook.requests == []
            desk.go(3600, 30)
            [request] = hook.requests
            assert "rule bad fails and finds nothing" in str(request.json["title"])
            assert "ZeroDivisionError" in str(request.json["message"])
            assert not desk.dispatch.is_well(desk.live.clock.wall)
            desk.kill()
            desk.go(3 * BROKEN_S, 30)
            assert len(hook.requests) == 1, "a restart is no reason to tell it again"
            monkeypatch.undo()
            with desk.live.log.open("ab") as log:
                log.write(b"".join(line_of(record(10.0 * n, running=1)) + b"\n" for n in range(12, 24)))
            desk.live.read_all()
            desk.go(60, 30)
            assert (len(hook.requests), desk.live.store.cases()) == (1, [])
            assert desk.dispatch.is_well(desk.live.clock.wall)
        finally:
            desk.close()


def test_rules_of_gpus_and_hosts_that_fail_are_told_too(tmp_path: Path) -> None:
    word = (rule(tmp_path, id_="bad-gpu"), "gpu-1", Broken("the rule failed: ZeroDivisionError"))
    with HttpSink() as hook:
        desk = Desk(tmp_path, {"hook": hook.url()}, beside=Beside([word]))
        try:
            desk.go(BROKEN_S + 60, 30)
            [request] = hook.requests
            assert "rule bad-gpu fails and finds nothing" in str(request.json["title"])
        finally:
            desk.close()


def test_a_rule_without_a_gpu_to_look_at_is_told_once_to_who_takes_it(tmp_path: Path) -> None:
    with HttpSink() as hook:
        beside = Beside(lacking=[("gpu-memory-growth", "gpu")])
        desk = Desk(tmp_path, {"hook": hook.url()}, beside=beside, severities=["info", "warning"])
        try:
            desk.go(7200, 60)
            [request] = hook.requests
            assert "rule gpu-memory-growth has had nothing to judge for 1 d, gpu" in str(request.json["title"])
            assert "which GPUs and servers are read" in str(request.json["message"])
        finally:
            desk.close()


def test_a_rule_that_fails_stops_the_heartbeat_where_there_is_no_channel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    desk = Desk(tmp_path, {}, rules=(rule(tmp_path, id_="bad", for_="0s"),))
    try:
        desk.go(30)
        assert desk.dispatch.is_well(desk.live.clock.wall)
        monkeypatch.setattr(Threshold, "judge", fails)
        desk.live.log.write_bytes(b"".join(line_of(record(10.0 * n, running=1)) + b"\n" for n in range(12)))
        desk.live.read_all()
        desk.go(30)
        assert not desk.dispatch.is_well(desk.live.clock.wall)
    finally:
        desk.close()


def test_what_is_planned_as_the_clock_is_set_goes_out_at_once(tmp_path: Path) -> None:
    with HttpSink() as hook:
        desk = Desk(tmp_path, {"hook": hook.url()})
        try:
            desk.go(30)
            desk.live.clock.wall += 8 * 3600.0
            desk.see(alert(0))
            desk.go(30)
            assert len(hook.requests) == 1
        finally:
            desk.close()


def test_what_a_channel_that_was_removed_was_owed_is_forgotten(tmp_path: Path) -> None:
    desk = Desk(tmp_path, {"hook": "json://127.0.0.1:1/"})
    try:
        desk.see(alert(0))
        desk.go(10)
        config = desk.setup.config.model_copy(update={"channels": ()})
        desk.dispatch.take_up(desk.setup._replace(config=config), desk.live.store, desk.live.clock.wall)
        desk.turn(1.0)
        assert (desk.live.store.cases(), desk.live.store.notices(NoticeState.WAITING)) == ([], [])
        [notice] = desk.notices()
        assert notice.why == "the channel was removed"
        assert desk.voice.complaints() == []
    finally:
        desk.close()
