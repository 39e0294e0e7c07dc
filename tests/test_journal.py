"""The journal of a unit: where reading begins and goes on, what a poll may take, how the child lives and dies."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvlogd import journal, journalctl
from kvlogd.journal import Journal
from kvlogd.piece import Health, Tailer
from kvlogd.rows import Position
from tests.journals import (
    START_US,
    UNIT,
    FakeJournal,
    Reader,
    RealJournal,
    followers,
    needs_journalctl,
    needs_remote,
)

ROOT = Path(__file__).parent.parent


@pytest.fixture
def fake(tmp_path: Path) -> FakeJournal:
    return FakeJournal(tmp_path / "fake")


@pytest.fixture
def opened() -> Iterator[list[Journal]]:
    tailers: list[Journal] = []
    yield tailers
    for tailer in tailers:
        tailer.close()


def reader(fake: FakeJournal, opened: list[Journal], last: Position | None = None, budget: int = 1 << 20) -> Reader:
    opened.append(Journal("chat", UNIT, last, program=str(fake.program)))
    return Reader(opened[-1], budget=budget)


def position(cursor: str | None, seen_s: float | None = START_US / 1e6 + 1000) -> Position:
    return Position("chat", "journal", 0, cursor=cursor, seen_s=seen_s)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


# --- where it begins and goes on


def test_it_is_a_tailer(fake: FakeJournal, opened: list[Journal]) -> None:
    tailer: Tailer = reader(fake, opened).tailer
    assert tailer.health() == [Health("chat", "reading", None)]


def test_the_first_start_reads_all_that_there_is_of_any_boot(fake: FakeJournal, opened: list[Journal]) -> None:
    fake.write(40, boot="1")
    fake.write(10, boot="2")
    fake.script("boot", "2" * 32)  # --follow shows this boot alone
    ours = reader(fake, opened).until_lines(50)
    fake.write(5, boot="2")
    assert ours.until_lines(55).rest().numbers == list(range(55))
    assert ours.gaps == []
    last = ours.pieces[-1].position
    assert last is not None
    assert last._replace(seen_s=None) == Position("chat", "journal", 0, cursor=fake.cursor(54, boot="2"))


def test_a_unit_that_has_not_logged_yet_is_waited_for(fake: FakeJournal, opened: list[Journal]) -> None:
    ours = reader(fake, opened).rest()
    assert ours.tailer.health() == [Health("chat", "waiting", None, journal.NOT_YET)]
    fake.write(3)
    assert ours.until_lines(3).numbers == [0, 1, 2]
    assert ours.tailer.health() == [Health("chat", "reading", None)]


@pytest.mark.parametrize("at", [0, 4, 9])
def test_it_goes_on_right_behind_the_cursor(fake: FakeJournal, opened: list[Journal], at: int) -> None:
    fake.write(10)
    ours = reader(fake, opened, position(fake.cursor(at))).rest()
    assert ours.numbers == list(range(at + 1, 10))
    fake.write(2)
    assert ours.until_lines(11 - at).rest().numbers == list(range(at + 1, 12))
    assert ours.gaps == []


def test_it_goes_on_behind_a_cursor_of_another_boot(fake: FakeJournal, opened: list[Journal]) -> None:
    fake.write(5, boot="1")
    fake.script("boot", "2" * 32)
    ours = reader(fake, opened, position(fake.cursor(4, boot="1"))).rest()
    fake.write(3, boot="2")
    assert ours.until_lines(3).rest().numbers == [5, 6, 7]
    assert ours.gaps == []


def test_the_cursor_is_that_of_the_last_whole_entry(fake: FakeJournal, opened: list[Journal]) -> None:
    fake.write(500)
    ours = reader(fake, opened, budget=1000).until_lines(500)
    for piece in ours.pieces:
        last = json.loads(piece.data.splitlines()[-1])
        assert piece.position is not None
        assert piece.position.cursor == last["__CURSOR"]
        assert piece.data.endswith(b"}\n")


def test_every_piece_can_be_the_last(fake: FakeJournal, opened: list[Journal]) -> None:
    fake.write(24)
    whole = reader(fake, opened, budget=900).until_lines(24)
    whole.tailer.close()
    for number, piece in enumerate(whole.pieces):
        again = reader(fake, opened, piece.position).rest()
        before = [line for p in whole.pieces[: number + 1] for line in p.data.splitlines()]
        assert before + again.lines == whole.lines
        again.tailer.close()


# --- what a poll may take


def test_a_poll_keeps_to_its_budget_and_the_pipe_makes_journalctl_wait(
    fake: FakeJournal, opened: list[Journal]
) -> None:
    fake.add(*[fake.entry(f"seq={number}", SYSLOG_PID="x" * 1000) for number in range(4000)])
    ours = reader(fake, opened, budget=20_000).until_lines(1)
    pid = int(fake.calls()[0][0])
    assert all(len(piece.data) <= 20_000 + 1200 for piece in ours.until_lines(300).pieces)
    read = sum(len(piece.data) for piece in ours.pieces)
    written = int(Path(f"/proc/{pid}/io").read_text(encoding="utf-8").split("wchar: ")[1].split()[0])
    assert written <= read + 2 * journalctl.PIPE < 4_000_000
    ours.budget = 1 << 20
    assert ours.until_lines(4000).numbers == list(range(4000))


@pytest.mark.parametrize("length", [journal.MAX_ENTRY - 400, journal.MAX_ENTRY + (2 << 20), 3 * journal.MAX_ENTRY])
def test_an_entry_that_is_too_long_is_counted_and_passed_over(
    fake: FakeJournal, opened: list[Journal], length: int
) -> None:
    fake.write(1)
    fake.add(fake.entry("x" * length))
    fake.write(1)
    ours = reader(fake, opened)
    ours.until(lambda: ours.numbers[-1:] == [2])
    assert ours.numbers == [0, 2]
    is_long = length > journal.MAX_ENTRY
    assert [(gap.reason, gap.lines, gap.ts_s) for gap in ours.gaps] == [
        (journal.TOO_LONG, 1, START_US / 1e6 + 1)
    ] * is_long
    assert len(ours.lines) == 3 - is_long


def test_what_journald_suppressed_is_a_gap(fake: FakeJournal, opened: list[Journal]) -> None:
    fake.write(1)
    id_ = journal.SUPPRESSED.decode()
    fake.add(fake.entry(f"Suppressed 27500 messages from {UNIT}", MESSAGE_ID=id_, N_DROPPED="27500"))
    ours = reader(fake, opened).rest()
    assert [tuple(gap) for gap in ours.gaps] == [("chat", START_US / 1e6 + 1, journal.SILENCED, 27500, None, None)]
    assert ours.numbers == [0]
    last = ours.pieces[-1].position
    assert last is not None
    assert last.cursor == fake.cursor(1)  # committed with the gap: it is not counted twice
    ours.tailer.close()
    assert reader(fake, opened, last).rest().pieces == []


def test_a_line_that_only_speaks_of_suppression_stays(fake: FakeJournal, opened: list[Journal]) -> None:
    fake.add(fake.entry(f'seq=0 "MESSAGE_ID":"{journal.SUPPRESSED.decode()}" "__CURSOR":"s=1"'))
    ours = reader(fake, opened).rest()
    assert len(ours.lines) == 1
    assert ours.gaps == []
    assert ours.pieces[0].position is not None
    assert ours.pieces[0].position.cursor == fake.cursor(0)


# --- how the child lives and dies


def test_half_an_entry_of_a_child_that_dies_is_read_again(fake: FakeJournal, opened: list[Journal]) -> None:
    fake.write(30)
    fake.script("die", "7 5 0 1 4")
    ours = reader(fake, opened).until_lines(30).rest()
    assert ours.numbers == list(range(30))
    assert ours.gaps == []


def test_waits_grow_up_to_a_minute_and_begin_anew_with_the_next_entry(fake: FakeJournal, opened: list[Journal]) -> None:
    fake.script("fail", "1 Failed to iterate through journal: Bad message")
    ours = reader(fake, opened)
    ours.step_s = 0
    ours.poll()
    for wait_s in (1, 2, 4, 8, 16, 32, 60, 60):
        assert starts_again_after(ours, wait_s)
    [health] = ours.tailer.health()
    assert health.state == "restarting"
    assert "status 1" in health.mend
    fake.unscript("fail")
    fake.write(1)
    ours.now_s += 100
    ours.until_lines(1)
    assert ours.tailer.health() == [Health("chat", "reading", None)]
    os.kill(follower(ours), signal.SIGKILL)
    assert starts_again_after(ours, 1)
    assert "signal 9" in ours.tailer.health()[0].mend
    fake.write(1)
    assert ours.until_lines(2).numbers == [0, 1]


def starts_again_after(ours: Reader, wait_s: float) -> bool:
    """Let the child end, and tell whether the next one starts that much later and not sooner."""
    ours.until(lambda: not ours.children())
    ours.now_s += wait_s - 0.01
    ours.poll()
    is_early = bool(ours.children())
    ours.now_s += 0.02
    ours.poll()
    return not is_early and bool(ours.children())


def follower(ours: Reader) -> int:
    """Return the process id of the child that follows, once it runs."""
    ours.until(lambda: bool(ours.followers()))
    return ours.followers()[0]


@pytest.mark.parametrize(
    ("script", "state", "mend"),
    [
        ("1 No journal files were opened due to insufficient permissions.", "unreadable", journal.ACCESS),
        ("1 Failed to open journal: Permission denied", "unreadable", journal.ACCESS),
    ],
)
def test_no_permission_is_told_with_the_mend(
    fake: FakeJournal, opened: list[Journal], script: str, state: str, mend: str
) -> None:
    fake.script("fail", script)
    ours = reader(fake, opened)
    ours.until(lambda: ours.tailer.health()[0].state != "reading")
    assert ours.tailer.health() == [Health("chat", state, None, mend)]
    fake.unscript("fail")
    fake.write(1)
    assert ours.until_lines(1).tailer.health() == [Health("chat", "reading", None)]


def test_a_missing_journalctl_is_told_and_tried_again(fake: FakeJournal, opened: list[Journal]) -> None:
    away = fake.program.rename(fake.folder / "away")
    ours = reader(fake, opened)
    ours.until(lambda: ours.tailer.health() == [Health("chat", "unreadable", None, journal.MISSING)])
    away.rename(fake.program)
    fake.write(1)
    assert ours.until_lines(1).numbers == [0]


def test_a_child_that_hangs_is_left_for_another_and_nothing_is_lost(fake: FakeJournal, opened: list[Journal]) -> None:
    fake.write(3)
    ours = reader(fake, opened).rest()
    fake.script("hang", "yes")
    fake.write(2)
    hung = ours.followers()
    ours.now_s += journal.SILENT_S - 60
    assert ours.rest().numbers == [0, 1, 2]
    ours.now_s += 60
    ours.until_lines(5)
    fake.unscript("hang")
    fake.write(2)
    assert ours.until_lines(7).rest().numbers == list(range(7))
    assert ours.gaps == []
    assert set(ours.followers()).isdisjoint(hung)
    assert not any(map(is_running, hung))
    assert ours.tailer.health() == [Health("chat", "reading", None, journal.HUNG)]
    ours.now_s += journal.TOLD_S
    ours.poll()
    assert ours.tailer.health() == [Health("chat", "reading", None)]


def until_lives(ours: Reader, fake: FakeJournal, count: int) -> Reader:
    return ours.until(lambda: len(fake.calls()) == count)


def test_a_unit_that_is_silent_is_looked_at_ever_more_seldom(fake: FakeJournal, opened: list[Journal]) -> None:
    fake.write(3)
    ours = reader(fake, opened).rest()
    for silent_s in (journal.SILENT_S, 2 * journal.SILENT_S, journal.LONGEST_SILENT_S, journal.LONGEST_SILENT_S):
        lives = len(fake.calls())
        ours.now_s += silent_s - 60
        ours.poll()
        assert len(fake.calls()) == lives
        ours.now_s += 60
        until_lives(ours, fake, lives + 2).rest()  # once to the end, and on from there
    assert ours.numbers == [0, 1, 2]
    assert ours.tailer.health() == [Health("chat", "reading", None)]
    fake.vacuum(keep=0)  # what was read may go while it is silent: nothing is lost by that
    lives = len(fake.calls())
    ours.now_s += journal.LONGEST_SILENT_S
    until_lives(ours, fake, lives + 2).rest()
    fake.write(2)
    assert ours.until_lines(5).numbers == [0, 1, 2, 3, 4]
    assert ours.gaps == []


def test_a_unit_that_speaks_after_the_clock_was_set_back_did_not_hang(fake: FakeJournal, opened: list[Journal]) -> None:
    fake.write(3)
    ours = reader(fake, opened).rest()
    lives = len(fake.calls())
    ours.now_s += journal.SILENT_S
    ours.wall_s += journal.SILENT_S
    until_lives(ours, fake, lives + 2).rest()
    ours.wall_s = START_US / 1e6 + 3.0
    fake.write(2)
    assert ours.until_lines(5).numbers == [0, 1, 2, 3, 4]
    assert ours.tailer.health() == [Health("chat", "reading", None)]


@pytest.mark.parametrize("stubborn", [False, True])
def test_close_ends_the_child_within_a_second(fake: FakeJournal, opened: list[Journal], stubborn: bool) -> None:
    if stubborn:
        fake.script("stubborn", "yes")
    fake.write(1)
    ours = reader(fake, opened).until_lines(1)
    pid = follower(ours)
    ours.tailer.close()
    assert not is_running(pid)
    ours.tailer.close()


HOLDER = """
import sys, time
from pathlib import Path
from kvlogd.journal import Journal
tailer = Journal("chat", "vllm.service", directory=Path(sys.argv[1]))
while True:
    tailer.poll(1 << 20, time.monotonic(), time.time())
    time.sleep(0.02)
"""


@needs_remote
def test_the_child_dies_with_a_daemon_that_is_killed(tmp_path: Path) -> None:
    made = RealJournal(tmp_path / "j")
    made.write(20)
    made.close()
    command = [sys.executable, "-c", HOLDER, str(made.folder)]
    deadline = time.monotonic() + 30
    with subprocess.Popen(command, cwd=ROOT) as daemon:
        while not (pids := followers(daemon.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        [pid] = pids
        daemon.kill()
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- the real journalctl


@needs_remote
def test_a_journal_that_grows_is_followed(tmp_path: Path, opened: list[Journal]) -> None:
    made = RealJournal(tmp_path / "j")
    other = RealJournal(tmp_path / "j", "other.service")
    other.write(5)
    made.write(100)
    made.reboot()
    made.write(100)
    opened.append(Journal("chat", UNIT, directory=made.folder))
    ours = Reader(opened[0]).until_lines(200)
    made.write(50)
    ours.until_lines(250)
    made.reboot()
    made.write(50)
    assert ours.until_lines(300).rest().numbers == list(range(300))
    for journal_file in (made, other):
        journal_file.close()


@needs_remote
@pytest.mark.parametrize("at", [0, 57, 119])
def test_a_real_cursor_is_gone_on_from(tmp_path: Path, opened: list[Journal], at: int) -> None:
    made = RealJournal(tmp_path / "j")
    made.write(120)
    made.close()
    opened.append(Journal("chat", UNIT, directory=made.folder))
    cursor = json.loads(Reader(opened[0]).until_lines(120).lines[at])["__CURSOR"]
    opened[0].close()
    opened.append(Journal("chat", UNIT, position(cursor), directory=made.folder))
    again = Reader(opened[1]).rest()
    assert again.numbers == list(range(at + 1, 120))
    assert again.gaps == []


@needs_journalctl
def test_no_folder_is_told(tmp_path: Path, opened: list[Journal]) -> None:
    opened.append(Journal("chat", UNIT, directory=tmp_path / "none"))
    ours = Reader(opened[0])
    ours.until(lambda: ours.tailer.health()[0].state == "restarting")
