"""`kvlogd replay --notify`: what a daemon would have sent, through the real Apprise to local servers."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from kvlogd.channel import Secret
from kvlogd.config import ChannelConfig
from kvlogd.model import AlertEvent, AlertKey, AlertState, Fault, NoticeKind, Outcome, Severity
from kvlogd.plan import Ledger, Plan, Policy
from kvlogd.rehearsal import UNWRITTEN, Addresses, course, rehearse
from kvlogd.rules import load_rules, shipped_folder
from kvlogd.store import Store
from tests.command import kvlogd
from tests.lines import START_S
from tests.outboxes import BEGIN_S, alert
from tests.sinks import Answer, HttpSink, SmtpSink

LEAK = Path(__file__).parent / "data/real/leak-to-hang-and-restart.log"
OPTIONS = ("--timezone", "UTC", "--year", "2026")


def config(folder: Path, *channels: str, **urls: str) -> Path:
    for name, url in urls.items():
        (folder / name).write_text(url)
        (folder / name).chmod(0o600)
    lines = [f"  - {{name: {n}, url_file: {folder / n}{m}}}\n" for n, _, m in (c.partition(";") for c in channels)]
    (folder / "kvlogd.yaml").write_text("channels:\n" + "".join(lines))
    return folder / "kvlogd.yaml"


def test_a_leaking_log_sends_exactly_the_messages_of_its_day(tmp_path: Path) -> None:
    with SmtpSink() as mail, HttpSink() as web:
        path = config(tmp_path, "ops", "pager;, severities: [critical]", ops=mail.url(), pager=web.url())
        ran = kvlogd("replay", LEAK, *OPTIONS, "--notify", "--config", path)
    assert ran.status == 1
    subjects = [str(one.message["Subject"]).partition("] ") for one in mail.mails]
    told = [(state.strip("[").split()[1], words.split()[0]) for state, _, words in subjects]
    assert told == [
        ("critical", "kv-leak"),
        ("critical", "kv-idle-residue"),
        ("critical", "engine-stall"),
        ("resolved", "kv-leak"),
        ("resolved", "kv-idle-residue"),
        ("resolved", "engine-stall"),
        ("warning", "restart-recovery"),
    ]
    assert [one.json["title"].partition("] ")[2].split()[0] for one in web.requests] == [
        "kv-leak", "kv-idle-residue", "engine-stall", "kv-leak", "kv-idle-residue", "engine-stall",
    ]  # fmt: skip
    first = mail.mails[0]
    assert "This is a replay" in first.part("text/plain")
    assert "This is a replay" in first.part("text/html")
    pictures = [part for part in first.message.walk() if part.get_content_type() == "image/png"]
    assert len(pictures) == 1
    assert ran.err.count("channel ops: sent (250): [replay: ") == 7


def test_without_being_asked_it_sends_nothing(tmp_path: Path) -> None:
    with HttpSink() as web:
        path = config(tmp_path, "pager", pager=web.url())
        assert kvlogd("replay", LEAK, *OPTIONS, "--config", path).status == 1
    assert web.requests == []


def test_what_was_told_once_is_not_told_again_by_the_same_store(tmp_path: Path) -> None:
    with HttpSink() as web:
        path = config(tmp_path, "pager", pager=web.url())
        again = ("replay", LEAK, *OPTIONS, "--notify", "--config", path, "--db", tmp_path / "kv.duckdb")
        assert kvlogd(*again).status == 1
        count = len(web.requests)
        assert kvlogd(*again).status == 1
    assert (count, len(web.requests)) == (7, 7)


def test_a_channel_that_refuses_gets_one_and_costs_the_others_nothing(tmp_path: Path) -> None:
    with HttpSink() as bad, HttpSink() as good:
        bad.default = Answer(403)
        path = config(tmp_path, "one", "two", one=bad.url(), two=good.url())
        ran = kvlogd("replay", LEAK, *OPTIONS, "--notify", "--config", path)
    assert ran.status == 2
    assert (len(bad.requests), len(good.requests)) == (1, 7)
    assert "kvlogd: channel one: did not take it: it gets no more" in ran.err
    assert "kv-leak leak-to-hang-and-restart.log/0" in ran.out


def test_without_channels_it_says_so_before_it_reads(tmp_path: Path) -> None:
    (tmp_path / "kvlogd.yaml").write_text("channels: []\n")
    ran = kvlogd("replay", LEAK, *OPTIONS, "--notify", "--config", tmp_path / "kvlogd.yaml")
    assert (ran.status, ran.out) == (2, "")
    assert "there are no channels" in ran.err


def event(state: AlertState, at_s: float) -> AlertEvent:
    key = AlertKey("kv-leak", "a/0", 1)
    times = (START_S + at_s, START_S)
    return AlertEvent(key, state, "kv-leak", Severity.CRITICAL, "a", 0, *times, None, {}, "cleared")


def gone_through(events: Sequence[AlertEvent], until_s: float, fate: Outcome) -> list[tuple[NoticeKind, float]]:
    plan = Plan([Policy("c", frozenset(Severity), 4 * 3600.0)], {}, Ledger(), START_S)
    found = []
    for sending, at_s, settle in course(plan, events, START_S + until_s):
        settle(fate)
        found.append((sending.notice.kind, at_s - START_S))
    return found


FIRE, END = event(AlertState.FIRING, 100), event(AlertState.RESOLVED, 30_000)


def test_what_went_on_for_hours_and_is_over_is_not_repeated() -> None:
    found = gone_through([FIRE, END], 40_000, Outcome(None))
    assert found == [(NoticeKind.FIRING, 103), (NoticeKind.RESOLVED, 30_003)]


def test_what_still_fires_after_weeks_is_repeated_once_at_the_end() -> None:
    weeks_s = 21 * 86_400
    [first, last] = gone_through([FIRE], weeks_s, Outcome(None))
    assert (first, last[0]) == ((NoticeKind.FIRING, 103), NoticeKind.REPEAT)
    assert last[1] == pytest.approx(weeks_s, abs=20)


def test_a_replay_goes_by_the_tags_of_the_config(tmp_path: Path) -> None:
    rules = load_rules([shipped_folder()])
    channel = ChannelConfig(name="hook", url_env="X", tags=("mine",))
    with HttpSink() as web, Store.open(tmp_path / "kvlogd.duckdb") as store:
        for tags in ({}, {"kv-leak": ("mine",)}):
            to = Addresses([channel], {"hook": Secret(web.url())}, tags)
            assert len(list(rehearse([alert(0)], store, rules, to, host="", until_s=BEGIN_S))) == len(tags)


def test_a_log_that_ends_with_its_alert_tells_of_it() -> None:
    assert gone_through([FIRE], 100, Outcome(None)) == [(NoticeKind.FIRING, 103)]
    assert gone_through([], 100, Outcome(None)) == []
    assert gone_through([FIRE, END], 40_000, Outcome(Fault.REFUSED)) == [(NoticeKind.FIRING, 103)]


def test_a_message_that_cannot_be_written_costs_the_replay_no_other(tmp_path: Path) -> None:
    beyond = 3e11  # after the last year that Python knows
    events = [alert(0, rule="odd")._replace(since_s=beyond), alert(0)]
    with HttpSink() as web, Store.open(tmp_path / "kvlogd.duckdb") as store:
        to = Addresses([ChannelConfig(name="hook", url_env="X")], {"hook": Secret(web.url())})
        sent = list(rehearse(events, store, (), to, host="node-7", until_s=BEGIN_S + 60))
    assert [one.subject for one in sent if one.fate == UNWRITTEN] == ["odd: cannot be written"]
    assert len(web.requests) == 1
