"""5. Copied and truncated: the copy is not read again, the log is read from its start, the window is not invented."""

from pathlib import Path

import pytest

from kvlogd.recall import Loss
from tests.tailing import both_ways, copytruncate, following, lines, writing


@both_ways
@pytest.mark.parametrize("is_stopped", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize("unread", [0, 10])
def test_nothing_is_lost_or_repeated(tmp_path: Path, is_watched: bool, is_stopped: bool, unread: int) -> None:
    log = tmp_path / "vllm.log"
    with following(log, is_watched=is_watched) as follower, writing(log) as writer:
        for _ in range(4):
            writer.lines(100)
            follower.settle()
            writer.lines(unread)
            if is_stopped:
                follower.kill()
            copytruncate(log)
            writer.lines(20)
        follower.settle()
        assert follower.numbers == list(range(writer.written))
        assert follower.reasons() == [Loss.COPIED] * 4


@both_ways
def test_several_copies_between_two_looks(tmp_path: Path, is_watched: bool) -> None:
    log = tmp_path / "vllm.log"
    with following(log, is_watched=is_watched) as follower, writing(log) as writer:
        writer.lines(100)
        follower.settle()
        for _ in range(4):
            writer.lines(30)
            copytruncate(log)
        writer.lines(30)
        follower.settle()
        assert follower.numbers == list(range(writer.written))


@both_ways
def test_what_was_written_between_copy_and_truncation_is_told_as_unknown(tmp_path: Path, is_watched: bool) -> None:
    log = tmp_path / "vllm.log"
    with following(log, is_watched=is_watched) as follower, writing(log) as writer:
        writer.lines(10)
        follower.settle()
        copytruncate(log, between=lambda: writer.lines(3))
        writer.lines(10)
        follower.settle()
        assert follower.numbers == [*range(10), *range(13, 23)]
        assert [(gap.reason, gap.lines) for gap in follower.gaps] == [(Loss.COPIED, 0)]


@both_ways
def test_a_copy_that_is_being_made_is_not_read(tmp_path: Path, is_watched: bool) -> None:
    log = tmp_path / "vllm.log"
    with following(log, is_watched=is_watched) as follower, writing(log) as writer:
        writer.lines(2_000)
        follower.settle()
        content = log.read_bytes()
        copy = tmp_path / "vllm.log.1"
        for part in range(10):
            with copy.open("ab") as file:
                file.write(content[part * len(content) // 10 : (part + 1) * len(content) // 10])
            writer.lines(5)
            follower.settle(2.5, rounds=2)
        copytruncate(log)
        writer.lines(5)
        follower.settle()
        assert follower.numbers == list(range(writer.written))


def test_a_copy_outlives_its_original(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_bytes(lines(range(100)))
    with following(log) as follower:
        follower.settle()
        (tmp_path / "vllm.log.1").write_bytes(log.read_bytes())
        follower.settle()
        log.unlink()
        log.write_bytes(lines(range(100, 150)))
        follower.settle()
        follower.kill()
        (tmp_path / "vllm.log.1").rename(tmp_path / "vllm.log.2")
        follower.settle()
        assert follower.numbers == list(range(150))
