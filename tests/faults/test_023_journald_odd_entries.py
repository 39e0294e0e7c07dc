"""23. journald's odd entries are parsed or counted, its suppressions are gaps, a child that is killed comes back."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvlogd.envelope import Lost, Unwrapped, Unwrapper
from kvlogd.journal import MAX_ENTRY, SILENCED, SUPPRESSED, TOO_LONG, Journal
from kvlogd.rows import Position
from tests.journals import (
    START_US,
    UNIT,
    FakeJournal,
    Reader,
    RealJournal,
    checked_in,
    needs_journalctl,
    needs_remote,
)

STATS = (
    b"(APIServer pid=1) INFO 11-29 14:16:25 [loggers.py:335] Engine 000: Avg prompt throughput: 5.0 tokens/s, "
    b"Avg generation throughput: 6.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 7.5%"
)
MIB = 1 << 20


@pytest.fixture
def fake(tmp_path: Path) -> FakeJournal:
    return FakeJournal(tmp_path / "fake")


@pytest.fixture
def opened() -> Iterator[list[Journal]]:
    tailers: list[Journal] = []
    yield tailers
    for tailer in tailers:
        tailer.close()


def reader(fake: FakeJournal, opened: list[Journal], last: Position | None = None) -> Reader:
    opened.append(Journal("chat", UNIT, last, program=str(fake.program)))
    return Reader(opened[-1])


def unwrapped(lines: list[bytes]) -> tuple[list[Unwrapped], dict[Lost, int]]:
    unwrapper = Unwrapper()
    inner = [unwrapper.feed(line) for line in lines]
    return [line for line in inner if line is not None], dict(unwrapper.counts)


@pytest.mark.parametrize(
    ("message", "texts", "counts"),
    [
        (list(STATS), [STATS], {}),
        (list(b"\x1b[0;36m" + STATS + b"\x1b[0m"), [STATS], {}),
        ([0xFF, 0xFE, 0x41], [b"\xff\xfeA"], {}),
        (None, [], {Lost.NULL_MESSAGE: 1}),
        ([], [], {}),
        ("", [], {}),
        (["two", "messages"], [], {Lost.UNDECODABLE: 1}),
        ([[1, 2], [3]], [], {Lost.UNDECODABLE: 1}),
        ([1, -5, 300], [], {Lost.UNDECODABLE: 1}),
        ({"a": 1}, [], {Lost.UNDECODABLE: 1}),
        (True, [], {Lost.UNDECODABLE: 1}),
        (7, [], {Lost.UNDECODABLE: 1}),
        ("a\nb", [], {Lost.UNDECODABLE: 1}),
        ("x" * MIB, [], {Lost.CUT: 1}),
        ([27] * MIB, [], {Lost.CUT: 1}),
        ("x" * MAX_ENTRY * 2, [], {}),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_every_form_of_message_is_parsed_or_counted(
    fake: FakeJournal, opened: list[Journal], message: object, texts: list[bytes], counts: dict[Lost, int]
) -> None:
    fake.add(fake.entry(message))
    fake.add(fake.entry("after", _PID="5"))
    ours = reader(fake, opened)
    ours.until(lambda: b'"after"' in b"".join(ours.lines[-1:]))
    inner, lost = unwrapped(ours.lines)
    assert [line.text for line in inner] == [*texts, b"after"]
    assert lost == counts
    assert all(line.ts_s is not None and line.ts_s >= START_US / 1e6 for line in inner)
    too_long = isinstance(message, str) and len(message) > MAX_ENTRY
    assert [(gap.reason, gap.lines) for gap in ours.gaps] == [(TOO_LONG, 1)] * too_long


@pytest.mark.parametrize(
    "fields", [{"_LINE_BREAK": "line-max"}, {"_LINE_BREAK": "nul"}, {"CONTAINER_PARTIAL_MESSAGE": "true"}, {}]
)
def test_the_rest_of_a_line_that_was_cut_is_no_line_after_a_restart(
    fake: FakeJournal, opened: list[Journal], fields: dict[str, str]
) -> None:
    begin = "x" * (100 if fields else 48 * 1024)
    fake.add(json.dumps({**json.loads(fake.entry(begin, _STREAM_ID="1")), **fields}).encode())
    fake.add(fake.entry(STATS.decode(), _STREAM_ID="2"))
    fake.add(fake.entry(STATS.decode().replace("7.5", "99.9"), _STREAM_ID="1"))
    fake.add(fake.entry(STATS.decode(), _STREAM_ID="1"))
    last = Position("chat", "journal", 0, cursor=fake.cursor(0), seen_s=START_US / 1e6)
    ours = reader(fake, opened, last).until_lines(4).rest()
    assert [line.text for line in unwrapped(ours.lines)[0]] == [STATS, STATS]


def test_journalctl_killed_twenty_times(fake: FakeJournal, opened: list[Journal]) -> None:
    ours = reader(fake, opened)
    ours.step_s = 5.0
    killed: set[int] = set()
    while len(killed) < 20:
        fake.write(7)
        ours.until(lambda: bool(ours.children() - killed))
        pid = max(ours.children() - killed)
        os.kill(pid, signal.SIGKILL)
        killed.add(pid)
    ours.until_lines(140).rest()
    assert ours.numbers == list(range(140))
    assert ours.gaps == []
    assert ours.tailer.health()[0].state == "reading"


@needs_remote
def test_real_journalctl_killed_twenty_times_while_it_follows(tmp_path: Path, opened: list[Journal]) -> None:
    made = RealJournal(tmp_path / "j")
    made.write(10)
    opened.append(Journal("chat", UNIT, directory=made.folder))
    ours = Reader(opened[0])
    ours.step_s = 5.0
    killed: set[int] = set()
    while len(killed) < 20:
        made.write(20)
        ours.until(lambda: bool(ours.children() - killed))
        pid = max(ours.children() - killed)
        os.kill(pid, signal.SIGKILL)
        killed.add(pid)
    made.close()
    ours.until_lines(410).rest()
    assert ours.numbers == list(range(410))
    assert ours.gaps == []


def test_suppressed_messages_are_gaps_with_their_count(fake: FakeJournal, opened: list[Journal]) -> None:
    for count in ("27500", "3", "not a number"):
        fake.write(2)
        fake.add(fake.entry("Suppressed", MESSAGE_ID=SUPPRESSED.decode(), N_DROPPED=count))
    ours = reader(fake, opened).rest()
    assert [(gap.reason, gap.lines) for gap in ours.gaps] == [(SILENCED, 27500), (SILENCED, 3), (SILENCED, 0)]
    assert ours.numbers == [0, 1, 3, 4, 6, 7]


@needs_journalctl
def test_what_a_real_journald_made_of_odd_lines(tmp_path: Path, opened: list[Journal]) -> None:
    opened.append(Journal("chat", UNIT, directory=checked_in("odd", tmp_path / "j")))
    ours = Reader(opened[0]).rest()
    inner, lost = unwrapped(ours.lines)
    assert [line.text for line in inner[:3]] == ["café ok".encode(), b"bad \xff\xfe bytes", b"INFO colour"]
    assert [line.text for line in inner[4:7]] == [b"tab\there", b"no newline at end", b"the end"]
    assert len(inner[3].text) == 6000
    assert all(b"Avg prompt throughput" in line.text for line in inner[7:])
    # cut at a NUL, at 48 KiB, and for 2 MiB from one process; two messages in one entry, and one of two lines
    assert lost == {Lost.CUT: 3, Lost.UNDECODABLE: 2}
    assert [(gap.reason, gap.lines) for gap in ours.gaps] == [(SILENCED, 27500)]
