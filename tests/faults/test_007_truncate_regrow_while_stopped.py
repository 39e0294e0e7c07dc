"""7. As 6, while stopped: the same inode, and every life begins with the same lines."""

import os
from pathlib import Path

import pytest

from kvlogd.recall import Loss
from tests.tailing import both_ways, following, writing

BANNER = r"INFO the banner of every life, without a stamp\n" * 10


@both_ways
@pytest.mark.parametrize("lines", [5, 100, 400])
def test_every_new_line_once(tmp_path: Path, is_watched: bool, lines: int) -> None:
    log = tmp_path / "vllm.log"
    with following(log, is_watched=is_watched) as follower, writing(log) as writer:
        writer.raw(BANNER)
        writer.lines(100)
        follower.settle()
        follower.kill()
        inode = log.stat().st_ino
        os.truncate(log, 0)
        writer.raw(BANNER)
        writer.lines(lines)
        assert log.stat().st_ino == inode
        follower.settle()
        assert follower.numbers == list(range(writer.written))
        assert follower.reasons() == [Loss.TRUNCATED]
