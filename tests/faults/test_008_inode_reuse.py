"""8. A new file has the inode of the old one: it is read from its start, and the old one's position is closed."""

from pathlib import Path

import pytest

from tests.tailing import both_ways, following, lines


def recreated(log: Path, content: bytes) -> None:
    """Delete a file and make others until one has its inode."""
    inode = log.stat().st_ino
    log.unlink()
    for attempt in range(2_000):
        path = log.with_name(f"attempt-{attempt}")
        path.write_bytes(content)
        if path.stat().st_ino == inode:
            path.rename(log)
            return
    pytest.skip("this file system does not use inodes again")


@both_ways
@pytest.mark.parametrize("count", [3, 10, 200], ids=["shorter", "as long", "longer"])
def test_a_new_file_is_read_from_its_start(tmp_path: Path, is_watched: bool, count: int) -> None:
    log = tmp_path / "vllm.log"
    log.write_bytes(lines(range(10)))
    with following(log, is_watched=is_watched) as follower:
        follower.settle()
        (old,) = follower.places
        follower.kill()
        recreated(log, lines(range(10, 10 + count)))
        follower.settle()
        assert follower.numbers == list(range(10 + count))
        assert follower.places[old].done
        assert [place.done for name, place in follower.places.items() if name != old] == [False]
