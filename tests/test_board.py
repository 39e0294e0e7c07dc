"""`kvlogd alerts` and `kvlogd silence`, on a store and through a daemon."""

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path

import pytest

from kvlogd import board
from kvlogd.board import Hold, Holder
from kvlogd.model import AlertKey, AlertState, Fault, NoticeKind, Severity
from kvlogd.outbox import Notice, NoticeState, Silence, alert_id, opened
from kvlogd.plan import Policy, Quiet
from kvlogd.rows import Batch
from kvlogd.silencing import obey
from kvlogd.store import Store
from tests.command import installed, kvlogd
from tests.daemon import Running
from tests.outboxes import BEGIN_S, alert
from tests.paging import Paged, standing_of

LEAK = alert(0, scope="chat/0")
ID = alert_id(LEAK.key, LEAK.at_s)


@pytest.fixture
def db(tmp_path: Path) -> Path:
    path = tmp_path / "kvlogd.duckdb"
    stall = alert(60, rule="engine-stall", scope="evil\x1b[2J/0", severity=Severity.WARNING)
    over = alert(100, rule="engine-stall", scope="evil\x1b[2J/0", severity=Severity.WARNING, over=True)
    raised = alert(50, scope="chat/0", reason="severity changed")
    sent = Notice(1, "mail", NoticeKind.FIRING, "kv-leak", NoticeState.SENT, BEGIN_S, BEGIN_S, BEGIN_S)
    told = json.dumps([{"id": ID, **LEAK.key._asdict()}])
    waits = sent._replace(notice_id=2, channel="slack", state=NoticeState.WAITING, attempts=5, failed=4)
    waits = waits._replace(fault=Fault.UNREACHABLE)
    with Store.open(path) as store:
        store.commit(
            Batch(
                alert_events=[LEAK._replace(severity=Severity.WARNING), raised, stall, over],
                standings=[standing_of(LEAK)],
                cases=[opened("slack", NoticeKind.FIRING, LEAK, BEGIN_S)._replace(tried=True)],
                notices=[sent._replace(alerts=told), waits],
                silences=[Silence(1, "kv-*", "*", BEGIN_S, BEGIN_S + 1e9, "a\x1b[31mb")],
            )
        )
    return path


def test_an_alert_that_fires_says_who_was_told_and_who_was_not(db: Path) -> None:
    told = kvlogd("alerts", "--db", db)
    assert told.status == 1
    head, row, *more = told.out.splitlines()
    assert head.split() == ["severity", "rule", "about", "since", "alert", "told"]
    assert row.split()[:3] == ["critical", "kv-leak", "chat/0"]
    assert row.split()[-2:] == [ID, "mail"]
    assert more[0].startswith("  ")
    assert "silenced until" in more[1]
    assert more[2] == "  not delivered: slack (unreachable, 4 tries)"
    assert all(len(line) <= 80 for line in told.out.splitlines())


def test_all_shows_what_is_over_and_nothing_of_a_name_reaches_the_terminal(db: Path) -> None:
    told = kvlogd("alerts", "--all", "--db", db)
    assert [line.split()[:2] for line in told.out.splitlines() if not line.startswith(" ")][1:] == [
        ["critical", "kv-leak"], ["over", "engine-stall"],
    ]  # fmt: skip
    assert "\x1b" not in told.out
    assert "\x1b" not in kvlogd("silence", "--list", "--db", db).out


def test_json_gives_times_with_their_offset(db: Path) -> None:
    [found] = kvlogd("alerts", "--json", "--db", db).records
    assert (found["rule"], found["scope"], found["alert"], found["told"]) == ("kv-leak", "chat/0", ID, ["mail"])
    assert found["since"].endswith("+00:00")
    assert found["over"] is None
    assert [one["is_firing"] for one in kvlogd("alerts", "--all", "--json", "--db", db).records] == [True, False]


def test_no_alert_is_said_so(tmp_path: Path) -> None:
    Store.open(tmp_path / "s.duckdb").close()
    assert kvlogd("alerts", "--db", tmp_path / "s.duckdb") == (0, "no alert fires\n", "")


def test_what_a_socket_carried_is_the_same(db: Path) -> None:
    with Store.open(db, read_only=True) as store:
        found = board.entries(store, BEGIN_S + 60, every=True)
    carried = json.loads(json.dumps([entry._asdict() for entry in found]))
    assert board.from_plain(carried) == found


TAKES = Policy("mail", frozenset({Severity.CRITICAL, Severity.WARNING}), 14_400.0)
LATER_S = 3600.0
MINUTE = int(BEGIN_S % 86400 // 60)
QUIET = Quiet(MINUTE, MINUTE + 60, UTC, Severity.CRITICAL)
"""An hour that begins with the minute of BEGIN_S."""
QUIET_ENDS_S = BEGIN_S - BEGIN_S % 60 + LATER_S


def held(folder: Path, policy: Policy, severity: Severity, *silences_s: float, planned: bool = True) -> board.Entry:
    """Return the entry of an alert that began a moment ago and of which its channel has not heard yet."""
    found = alert(0, severity=severity)
    notice = Notice(1, "mail", NoticeKind.FIRING, found.key.rule, NoticeState.WAITING, BEGIN_S, BEGIN_S + 3, BEGIN_S)
    batch = Batch(
        standings=[standing_of(found)],
        cases=[opened("mail", NoticeKind.FIRING, found, BEGIN_S)],
        notices=[notice] if planned else [],
        silences=[Silence(n, "*", "*", BEGIN_S, BEGIN_S + until_s) for n, until_s in enumerate(silences_s, 1)],
    )
    with Store.open(folder / "held.duckdb") as store:
        store.commit(batch)
        [entry] = board.entries(store, BEGIN_S + 1, every=False, policies=[policy])
    return entry


@pytest.mark.parametrize(
    ("policy", "severity", "silences_s", "hold"),
    [
        (TAKES, Severity.WARNING, (), Hold("mail", Holder.GROUPING, BEGIN_S + 3)),
        (TAKES._replace(quiet=QUIET), Severity.CRITICAL, (), Hold("mail", Holder.GROUPING, BEGIN_S + 3)),
        (TAKES._replace(quiet=QUIET), Severity.WARNING, (), Hold("mail", Holder.QUIET, QUIET_ENDS_S)),
        (TAKES, Severity.WARNING, (60, 600), Hold("mail", Holder.SILENCE, BEGIN_S + 600)),
        (TAKES._replace(quiet=QUIET), Severity.WARNING, (7200,), Hold("mail", Holder.SILENCE, BEGIN_S + 7200)),
        (
            TAKES._replace(quiet=QUIET._replace(from_min=MINUTE + 5)),
            Severity.WARNING,
            (600,),
            Hold("mail", Holder.QUIET, QUIET_ENDS_S),
        ),
    ],
    ids=["grouping", "loud", "quiet", "silence", "silence for longer", "quiet behind a silence"],
)
def test_a_message_that_waits_is_held_by_what_lasts_the_longest(
    tmp_path: Path, policy: Policy, severity: Severity, silences_s: tuple[float, ...], hold: Hold
) -> None:
    entry = held(tmp_path, policy, severity, *silences_s)
    assert entry.held == (hold,)
    carried = json.loads(json.dumps(entry._asdict()))
    assert board.from_plain([carried]) == [entry]
    told = board.text([entry], BEGIN_S + 1)
    assert told.splitlines()[1].endswith("  nobody yet")
    assert ("mail is told at " in told) is (hold.by is not Holder.SILENCE)
    assert ("silenced until" in told) is bool(silences_s)


def test_what_is_to_go_out_now_is_held_by_nothing(tmp_path: Path) -> None:
    entry = held(tmp_path, TAKES, Severity.WARNING, planned=False)
    assert entry.held == (Hold("mail", Holder.NOTHING),)
    assert board.text([entry], BEGIN_S).splitlines()[1].endswith("  nobody yet")


def test_what_no_channel_takes_is_told_to_nobody(tmp_path: Path) -> None:
    entry = held(tmp_path, TAKES._replace(severities=frozenset({Severity.CRITICAL})), Severity.WARNING)
    assert entry.held == ()
    assert board.text([entry], BEGIN_S).splitlines()[1].endswith("  nobody")


def test_a_daemon_says_until_when_quiet_hours_hold_a_message_and_so_does_its_store_alone(tmp_path: Path) -> None:
    daemon = Paged(tmp_path, {"hook": "json://127.0.0.1:1/"})
    from_min = int(time.time() % 86400 // 60)
    clock = ["{:02}:{:02}".format(*divmod((from_min + shift) % 1440, 60)) for shift in (-60, 60)]
    quiet = f"quiet: {{from: '{clock[0]}', to: '{clock[1]}', timezone: UTC, below: critical}}"
    daemon.config.write_text(daemon.config.read_text().replace("url_file", f"{quiet}, url_file"))
    rule = tmp_path / "rules" / "full.yaml"
    rule.write_text(rule.read_text().replace("critical", "warning"))
    words = re.compile(rf"  hook is told at \S+ {clock[1]}:00 UTC: held by its quiet hours")
    try:
        daemon.up()
        daemon.write(0.1, 6, until_s=70.0)
        daemon.write(0.8, 6)
        daemon.waits(lambda: daemon.rows("SELECT 1 AS one") and "warning: full" in daemon.said.read_text())
        told = daemon.ask("alerts")
        assert "  nobody yet" in told.out
        assert words.search(told.out), told.out
        (record,) = daemon.ask("alerts", "--json").records
        assert [(one["channel"], one["by"]) for one in record["held"]] == [("hook", "quiet hours")]
        assert daemon.stop() == 0
        assert words.search(daemon.ask("alerts").out)
    finally:
        daemon.close()


def test_a_silence_is_made_listed_and_ended_on_the_store(tmp_path: Path) -> None:
    path = tmp_path / "s.duckdb"
    Store.open(path).close()
    assert kvlogd("silence", "--list", "--db", path).out == "nothing is silenced\n"
    made = kvlogd("silence", "kv-leak@chat/*", "2h", "--comment", "on it", "--db", path)
    assert made.out.startswith("silenced: kv-leak on chat/*, number 1, until 20")
    [listed] = kvlogd("silence", "--list", "--json", "--db", path).records
    assert (listed["rule"], listed["scope"], listed["comment"]) == ("kv-leak", "chat/*", "on it")
    assert listed["until_s"] - listed["since_s"] == pytest.approx(7200)
    assert "on it" in kvlogd("silence", "--list", "--db", path).out
    assert kvlogd("silence", "--end", "1", "--db", path).out.startswith("ended: kv-leak")
    assert kvlogd("silence", "--list", "--db", path).out == "nothing is silenced\n"
    assert kvlogd("silence", "--end", "1", "--db", path).complaint == (
        "kvlogd: silence 1: no such silence is in force: kvlogd silence --list"
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "silence: what is to be done?"),
        (["kv-leak"], "silence: what is to be done?"),
        (["kv-leak", "2h", "--list"], "silence: what is to be done?"),
        (["kv-leak", "soon"], "'soon' is no duration"),
        (["kv-leak", "9999d"], "silence: must end within a year"),
        (["@chat/0", "2h"], "silence: names no rule"),
        (["kv-leak", "2h", "--comment", "x" * 301], "the comment is longer than 300 characters"),
    ],
)
def test_what_cannot_be_silenced_is_refused(tmp_path: Path, words: list[str], complaint: str) -> None:
    Store.open(tmp_path / "s.duckdb").close()
    told = kvlogd("silence", *words, "--db", tmp_path / "s.duckdb")
    assert told.status == 2
    assert complaint in told.complaint


def test_a_rule_that_is_not_there_is_refused_with_the_nearest(tmp_path: Path) -> None:
    config = tmp_path / "kvlogd.yaml"
    config.write_text(f"store: {{path: {tmp_path / 's.duckdb'}}}\n")
    told = kvlogd("silence", "kv-leek", "2h", "--config", config)
    assert (told.status, told.complaint) == (2, "kvlogd: kv-leek: no rule of that name: did you mean kv-leak?")
    assert "there is no such store" in kvlogd("silence", "kv-leak", "2h", "--config", config).complaint


def test_a_rule_file_that_is_wrong_keeps_nobody_from_silencing(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "mine.yaml").write_text("id: [")
    config = tmp_path / "kvlogd.yaml"
    config.write_text(f"{{store: {{path: {tmp_path / 's.duckdb'}}}, rules: {{folders: [{tmp_path / 'rules'}]}}}}\n")
    Store.open(tmp_path / "s.duckdb").close()
    told = kvlogd("silence", "kv-leak", "2h", "--config", config)
    assert (told.status, told.out[:10], told.err) == (0, "silenced: ", "")
    told = kvlogd("silence", "mine", "2h", "--config", config)
    assert (told.status, told.out[:10]) == (0, "silenced: ")
    assert told.complaint.startswith("kvlogd: mine: no shipped rule has this name, and your own cannot be read now")


@pytest.mark.parametrize("for_s", [True, "2h", None, 0, -1, float("nan")])
def test_what_comes_over_the_socket_is_checked(tmp_path: Path, for_s: object) -> None:
    with Store.open(tmp_path / "s.duckdb") as store:
        with pytest.raises(Exception, match="must end within a year"):
            obey(store, {"rule": "*", "scope": "*", "for_s": for_s}, BEGIN_S)
        assert store.silences() == []


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    found = Running(tmp_path)
    yield found
    found.close()


def test_a_daemon_answers_both(running: Running) -> None:
    running.up()
    assert running.ask("alerts").out == "no alert fires\n"
    assert running.ask("silence", "kv-*", "2h").out.startswith("silenced: kv-* on *, number 1")
    assert len(running.ask("silence", "--list", "--json").records) == 1
    running.kill()
    assert len(running.ask("silence", "--list", "--json").records) == 1
    running.up()
    assert running.ask("silence", "--end", "1").status == 0
    assert running.ask("silence", "--end", "1").status == 2
    assert installed("silence", "--list", "--config", running.config).out == "nothing is silenced\n"
    assert running.stop() == 0


def test_only_alerts_that_fire_are_silenced_or_failing(db: Path) -> None:
    with Store.open(db) as store:
        found = board.entries(store, BEGIN_S + 60, every=True)
        gone = [entry for entry in found if not entry.is_firing]
        assert [(entry.silenced_until_s, entry.failing) for entry in gone] == [(None, ())]
        assert AlertKey(gone[0].rule, gone[0].scope, gone[0].run) in {
            event.key for event in store.alert_events() if event.state is AlertState.RESOLVED
        }
