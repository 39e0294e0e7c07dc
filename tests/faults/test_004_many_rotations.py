"""4. Several rotations between two looks, or while stopped: all files are finished; one that is gone is told."""

from pathlib import Path

import pytest

from kvlogd.recall import Loss
from tests.tailing import both_ways, following, rotate, writing


@both_ways
@pytest.mark.parametrize("is_stopped", [False, True], ids=["running", "stopped"])
def test_all_files_are_read_in_order(tmp_path: Path, is_watched: bool, is_stopped: bool) -> None:
    log = tmp_path / "vllm.log"
    with following(log, is_watched=is_watched) as follower, writing(log) as writer:
        writer.lines(10)
        follower.settle()
        for _ in range(3):
            writer.lines(10)
            rotate(log)
            writer.reopen()
        writer.lines(10)
        if is_stopped:
            follower.kill()
        follower.settle()
        assert follower.numbers == list(range(50))
        assert follower.gaps == []


@both_ways
def test_dated_files_as_well(tmp_path: Path, is_watched: bool) -> None:
    log = tmp_path / "vllm.log"
    with following(log, is_watched=is_watched) as follower, writing(log) as writer:
        writer.lines(10)
        follower.settle()
        follower.kill()
        for day in ("20260301", "20260302"):
            writer.lines(10)
            log.rename(tmp_path / f"vllm.log-{day}")
            writer.reopen()
        writer.lines(10)
        follower.settle()
        assert follower.numbers == list(range(40))


@both_ways
def test_a_file_that_is_gone_is_told(tmp_path: Path, is_watched: bool) -> None:
    log = tmp_path / "vllm.log"
    with following(log, is_watched=is_watched) as follower, writing(log) as writer:
        writer.lines(10)
        follower.settle()
        follower.kill()
        writer.lines(10)
        rotate(log).unlink()
        writer.reopen()
        writer.lines(10)
        follower.settle()
        assert follower.numbers == [*range(10), *range(20, 30)]
        assert follower.reasons() in ([Loss.GONE], [Loss.TRUNCATED])  # the new file may have the inode of the old one


def test_a_hundred_rotations(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    with following(log) as follower, writing(log) as writer:
        for _ in range(100):
            writer.lines(7)
            follower.poll(0.5)
            rotate(log)
            writer.reopen()
            follower.poll(0.5)
        follower.settle()
        assert follower.numbers == list(range(700))
        assert follower.gaps == []
