"""6. Truncated and grown past the old place between two looks: read from the start, and the loss is told."""

import os
from pathlib import Path

import pytest

from kvlogd.recall import Loss
from tests.tailing import both_ways, following, writing

BANNER = "the same banner in every life, %s\n" % ("=" * 1500)


@both_ways
@pytest.mark.parametrize("lines", [50, 100, 400])
@pytest.mark.parametrize("banner", ["", BANNER], ids=["no banner", "banner"])
def test_every_new_line_once(tmp_path: Path, is_watched: bool, lines: int, banner: str) -> None:
    log = tmp_path / "vllm.log"
    with following(log, is_watched=is_watched) as follower, writing(log) as writer:
        writer.raw(banner.replace("\n", "\\n"))
        writer.lines(100)
        follower.settle()
        os.truncate(log, 0)
        writer.raw(banner.replace("\n", "\\n"))
        writer.lines(lines)
        follower.settle()
        assert follower.numbers == list(range(writer.written))
        assert follower.reasons() == [Loss.TRUNCATED]


def test_bytes_that_were_seen_and_not_read_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    with following(log) as follower, writing(log) as writer:
        writer.lines(20_000)
        follower.poll(budget=1)
        size, read = log.stat().st_size, len(follower.data)
        os.truncate(log, 0)
        follower.settle()
        (gap,) = follower.gaps
        assert gap.lost_bytes is not None
        assert size - 256 * 1024 <= gap.lost_bytes <= size - read
