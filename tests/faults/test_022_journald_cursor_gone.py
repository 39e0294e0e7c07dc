"""22. journald cursor gone: from the oldest entry that is newer, one gap with both times, no loop and no flood."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvlogd.journal import GONE, Journal
from kvlogd.model import Gap
from kvlogd.rows import Position
from tests.journals import START_US, UNIT, FakeJournal, Reader, RealJournal, needs_remote

START_S = START_US / 1e6


@pytest.fixture
def fake(tmp_path: Path) -> FakeJournal:
    return FakeJournal(tmp_path / "fake")


@pytest.fixture
def opened() -> Iterator[list[Journal]]:
    tailers: list[Journal] = []
    yield tailers
    for tailer in tailers:
        tailer.close()


def resumed(fake: FakeJournal, opened: list[Journal], cursor: str | None, seen_s: float | None) -> Reader:
    last = Position("chat", "journal", 0, cursor=cursor, seen_s=seen_s)
    opened.append(Journal("chat", UNIT, last, program=str(fake.program)))
    return Reader(opened[-1])


def gone(since_s: float | None, until_s: float) -> Gap:
    return Gap("chat", since_s, GONE, 0, until_s=until_s)


def test_the_entry_at_the_cursor_was_vacuumed(fake: FakeJournal, opened: list[Journal]) -> None:
    fake.write(50)
    fake.vacuum(10)
    ours = resumed(fake, opened, fake.cursor(20), START_S + 21).rest()
    assert ours.numbers == list(range(40, 50))
    assert ours.gaps == [gone(START_S + 20, START_S + 40)]
    assert ours.tailer.health()[0].state == "reading"
    last = ours.pieces[-1].position
    assert last is not None
    ours.tailer.close()
    again = resumed(fake, opened, last.cursor, last.seen_s).rest()
    assert (again.numbers, again.gaps) == ([], [])
    assert len(fake.calls()) <= 4  # two lives each: no loop


def test_all_was_vacuumed_and_the_unit_logs_again_later(fake: FakeJournal, opened: list[Journal]) -> None:
    fake.write(50)
    fake.vacuum(0)
    ours = resumed(fake, opened, fake.cursor(49), START_S + 49).rest()
    assert ours.pieces == []
    fake.write(3)
    ours.until_lines(3).rest()
    assert ours.numbers == [50, 51, 52]
    assert ours.gaps == [gone(START_S + 49, START_S + 50)]


def test_a_gap_across_a_reboot(fake: FakeJournal, opened: list[Journal]) -> None:
    fake.write(20, boot="1")
    fake.vacuum(0)
    fake.script("boot", "2" * 32)
    ours = resumed(fake, opened, fake.cursor(19, boot="1"), START_S + 19).rest()
    fake.write(5, boot="2")
    ours.until_lines(5).rest()
    assert ours.numbers == [20, 21, 22, 23, 24]
    assert ours.gaps == [gone(START_S + 19, START_S + 20)]


@pytest.mark.parametrize(
    "cursor",
    ["garbage", "", "i=15;t=6616af", "s=" + "a" * 32 + ";i=1", "\udcff\n", "a\0b", "--help", None],
    ids=lambda value: repr(value)[:12],
)
def test_a_corrupt_cursor_goes_on_by_time(fake: FakeJournal, opened: list[Journal], cursor: str | None) -> None:
    fake.write(30)
    ours = resumed(fake, opened, cursor, START_S + 12.5)
    ours.until_lines(17).rest()
    assert ours.numbers == list(range(13, 30))
    assert [gap._replace(ts_s=None) for gap in ours.gaps] == [gone(None, START_S + 13)]
    assert ours.gaps[0].ts_s == START_S + 12.5
    assert len(fake.calls()) <= 3  # no loop
    fake.write(1)
    assert ours.until_lines(18).rest().numbers[-1] == 30
    assert len(ours.gaps) == 1


def test_an_entry_of_the_very_time_that_is_stored_is_not_read_again(fake: FakeJournal, opened: list[Journal]) -> None:
    fake.write(30)
    assert resumed(fake, opened, "garbage", START_S + 12).until_lines(17).rest().numbers == list(range(13, 30))


def test_a_journal_of_another_machine_goes_on_by_time(fake: FakeJournal, opened: list[Journal]) -> None:
    fake.write(30)
    ours = resumed(fake, opened, fake.cursor(12, series="b"), START_S + 100).rest()
    assert ours.numbers == list(range(13, 30))
    assert ours.gaps == [gone(START_S + 12, START_S + 13)]


def test_a_cursor_that_names_a_time_to_come_is_not_believed(fake: FakeJournal, opened: list[Journal]) -> None:
    fake.write(30)
    broken = fake.cursor(20).replace("s=", "z=").replace(f"t={START_US + 20_000_000:x}", "t=fffffffffffff")
    assert resumed(fake, opened, broken, START_S + 20).until_lines(9).rest().numbers == list(range(21, 30))


def test_no_flood_while_the_journal_stays_empty(fake: FakeJournal, opened: list[Journal]) -> None:
    ours = resumed(fake, opened, "garbage", START_S).rest()
    for _ in range(200):
        ours.poll()
    assert ours.pieces == []
    assert len(fake.calls()) <= 3


@needs_remote
@pytest.mark.parametrize("is_garbage", [False, True])
def test_real_journalctl_with_a_cursor_that_is_gone(tmp_path: Path, opened: list[Journal], is_garbage: bool) -> None:
    old = RealJournal(tmp_path / "old")
    old.write(40)
    old.close()
    opened.append(Journal("chat", UNIT, directory=old.folder))
    last = Reader(opened[0]).until_lines(40).pieces[-1].position
    opened[0].close()
    assert last is not None
    new = RealJournal(tmp_path / "new")
    new.count = 30  # ten entries that were read already, and thirty that were not
    new.write(40)
    new.close()
    last = last._replace(cursor="garbage", seen_s=START_S + 0.039) if is_garbage else last
    opened.append(Journal("chat", UNIT, last, directory=new.folder))
    ours = Reader(opened[1]).until_lines(30).rest()
    assert ours.numbers == list(range(40, 70))
    assert ours.gaps == [gone(START_S + 0.039, START_S + 0.040)]
