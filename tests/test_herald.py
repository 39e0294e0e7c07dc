import io

from kvlogd.herald import Backlog, Herald, status_line
from kvlogd.model import AlertEvent, AlertKey, AlertState, Gap, Severity
from kvlogd.piece import Health
from kvlogd.rows import Batch
from kvlogd.voice import Voice
from tests.lines import START_S

KEY = AlertKey("kv-leak", "chat/0", 1)


def event(state: AlertState, at_s: float = START_S) -> AlertEvent:
    evidence = {"bound": 0.5}
    return AlertEvent(KEY, state, "kv-leak", Severity.CRITICAL, "chat", 0, at_s, at_s - 60, None, evidence, "cleared")


def herald() -> tuple[Herald, io.StringIO]:
    out = io.StringIO()
    return Herald(Voice(out, for_journal=True)), out


def test_alerts_are_told_by_their_loudness_and_old_ones_with_their_time() -> None:
    told, out = herald()
    told.stored(Batch(alert_events=[event(AlertState.FIRING), event(AlertState.RESOLVED)]), START_S + 5)
    told.stored(Batch(alert_events=[event(AlertState.FIRING)]), START_S + 86_400)
    first, second, third = out.getvalue().splitlines()
    assert first.startswith("<3>critical: kv-leak chat/0: ")
    assert second == "<5>kv-leak chat/0: over after 1 min (cleared)"
    assert third.endswith("(at 2026-11-29 14:00:00 UTC)")


def test_losses_of_one_kind_are_one_line() -> None:
    told, out = herald()
    gaps = [Gap("chat", None, "line too long", 2), Gap("chat", None, "line too long", 3), Gap("b\n", None, "gone", 0)]
    told.stored(Batch(gaps=gaps), START_S)
    assert out.getvalue() == "<5>chat: line too long, 5 lines (2 times)\n<5>b?: gone\n"


def test_a_log_that_cannot_be_read_is_a_trouble_until_it_can() -> None:
    told, out = herald()
    for second in range(3):
        told.fares([Health("chat", "unreadable", None, "let this user read it")], float(second), START_S)
    told.fares([Health("chat", "reading", 0)], 3.0, START_S)
    assert out.getvalue() == "<4>chat: let this user read it\n<5>chat: in order again\n"


def test_a_log_that_is_read_with_trouble_is_told_too() -> None:
    told, out = herald()
    told.fares([Health("chat", "reading", None, "journalctl hung")], 0.0, START_S)
    told.fares([Health("chat", "reading", None)], 1.0, START_S)
    assert out.getvalue() == "<4>chat: journalctl hung\n<5>chat: in order again\n"


def test_the_line_for_systemd() -> None:
    assert status_line(1, 0, 2, 0, None, "events") == "2 logs, 1 engine, 0 alerts firing, events"
    assert status_line(1, 1, 1, 5 << 20, None, "polling") == "1 log, 1 engine, 1 alert firing, 5 MiB behind, polling"
    told = status_line(1, 1, 1, 5 << 20, 90.0, "polling")
    assert told == "1 log, 1 engine, 1 alert firing, 5 MiB behind, 2 min to go, polling"


def test_a_rule_without_a_gpu_to_look_at_is_told_once_each_time() -> None:
    told, out = herald()
    for found in ([("gpu-lost", "gpu")], [("gpu-lost", "gpu"), ("odd", "chat/0")], [], [("gpu-lost", "gpu")]):
        told.idle(found)
    assert out.getvalue().count("gpu-lost gpu: has had nothing to judge for a day: no GPU is read") == 2
    assert out.getvalue().count("odd chat/0: has had nothing to judge") == 1


def test_how_long_a_backlog_takes_is_told_from_what_was_done_of_it() -> None:
    backlog = Backlog()
    backlog.look(900 << 20, 100.0)
    assert backlog.left_s is None
    backlog.look(600 << 20, 110.0)
    assert backlog.left_s == 20.0
    backlog.look(600 << 20, 120.0)
    assert backlog.left_s is None, "it does not get less"
    backlog.look(500 << 20, 130.0)
    assert backlog.left_s == 50.0
    backlog.look(1000, 140.0)
    assert backlog.left_s is None
