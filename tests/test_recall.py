"""What is remembered of files that are gone, and told of those from which nothing goes on."""

import os
from pathlib import Path

import pytest

from kvlogd.followed import Identity, head_signature, signature
from kvlogd.recall import LEAST_COPY, MOST_GONE, Loss, Recall
from kvlogd.rows import Position

CONTENT = b"".join(b"line %05d of a log\n" % number for number in range(500))


def place(offset: int, inode: int = 1, serial: int = 0, *, done: bool = False, seen_s: float = 100.0) -> Position:
    head, mark = head_signature(CONTENT[:1024][:offset]), signature(CONTENT[max(0, offset - 512) : offset])
    return Position("log", f"1-{inode}-1000-{serial}", offset, head, mark, done=done, seen_s=seen_s)


def never(_: Position) -> bool:
    return False


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_bytes(CONTENT)
    return path


def test_the_furthest_place_that_a_file_holds_is_found(file: Path) -> None:
    recall = Recall("log", [])
    for offset in (100, 9_000, 2_000):
        recall.lose(place(offset), Loss.GONE)
    recall.lose(place(9_400)._replace(marker=signature(b"other")), Loss.GONE)
    with file.open("rb") as opened:
        found = recall.find(opened.fileno(), 9_500, is_live=False)
        assert found is not None
        assert found.offset == 9_000
        found = recall.find(opened.fileno(), 5_000, is_live=False)
        assert found is not None
        assert found.offset == 2_000


def test_a_live_file_needs_more_than_a_common_banner(file: Path) -> None:
    recall = Recall("log", [])
    recall.lose(place(LEAST_COPY - 1), Loss.GONE)
    with file.open("rb") as opened:
        assert recall.find(opened.fileno(), len(CONTENT), is_live=True) is None
        assert recall.find(opened.fileno(), len(CONTENT), is_live=False) is not None


def test_what_nothing_goes_on_from_is_told_once_with_its_bytes() -> None:
    recall = Recall("log", [])
    lost = place(500)
    recall.lose(lost, Loss.TRUNCATED, 42)
    assert recall.is_open
    (piece,) = recall.told(never)
    assert piece.position == lost._replace(done=True)
    assert [(gap.reason, gap.lines, gap.lost_bytes) for gap in piece.gaps] == [(Loss.TRUNCATED, 0, 42)]
    assert recall.told(never) == []
    assert not recall.is_open


def test_a_copy_that_goes_on_may_lack_what_came_after_it_and_the_same_file_may_not() -> None:
    recall = Recall("log", [])
    for inode in (1, 2):
        recall.lose(place(500, inode), Loss.TRUNCATED)
    recall.go_on(place(500, 1), Identity(1, 77))
    recall.go_on(place(500, 2), Identity(1, 2))
    assert [[gap.reason for gap in piece.gaps] for piece in recall.told(never)] == [[Loss.COPIED], []]


def test_a_crash_between_two_commits_is_told_as_a_copy() -> None:
    recall = Recall("log", [])
    recall.lose(place(500), Loss.TRUNCATED)
    (piece,) = recall.told(lambda place: place.offset == 500)
    assert [gap.reason for gap in piece.gaps] == [Loss.COPIED]


def test_a_file_that_was_finished_is_missed_without_a_word() -> None:
    recall = Recall("log", [place(500, 1, done=True), place(500, 2)])
    recall.miss({Identity(1, 2)})
    assert recall.told(never) == []
    recall.miss(set())
    assert len(recall.told(never)) == 1


def test_of_two_positions_in_one_inode_the_later_holds() -> None:
    recall = Recall("log", [place(300, serial=11), place(700, serial=2), place(50, serial=10)])
    assert recall.places == {Identity(1, 1): place(300, serial=11)}
    assert {piece.position.offset for piece in recall.told(never) if piece.position} == {700, 50}


def test_positions_that_are_not_of_files_are_left_alone() -> None:
    recall = Recall("log", [Position("log", "journal", 0, cursor="s=1"), Position("log", "1024:abcd", 7)])
    assert recall.places == {}
    assert recall.since_s is None


def test_only_files_older_than_the_last_reading_are_old(file: Path) -> None:
    recall = Recall("log", [place(10, seen_s=1000.0)])
    for mtime_s, expected in ((900.0, True), (994.0, True), (996.0, False), (2000.0, False)):
        os.utime(file, (mtime_s, mtime_s))
        assert recall.is_old(file.stat()) is expected
    assert Recall("log", []).is_old(file.stat())


def test_memory_of_what_is_gone_is_bounded() -> None:
    recall = Recall("log", [])
    for serial in range(3 * MOST_GONE):
        recall.lose(place(500, serial=serial, done=True), Loss.GONE)
    assert len(recall.remembered()) == MOST_GONE
