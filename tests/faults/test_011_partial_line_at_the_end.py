"""11. The last line of a file that ends has no newline: it stands alone, and is glued to nothing."""

from pathlib import Path

import pytest

from tests.tailing import both_ways, following, lines, rotate, writing


@both_ways
@pytest.mark.parametrize("is_deleted", [False, True], ids=["rotated", "deleted"])
@pytest.mark.parametrize("cut", [1, 20], ids=["all but the newline", "half"])
def test_it_stands_alone(tmp_path: Path, is_watched: bool, is_deleted: bool, cut: int) -> None:
    log = tmp_path / "vllm.log"
    torn = lines([0]).decode()[:-cut]
    with following(log, is_watched=is_watched) as follower, writing(log) as old:
        old.raw(torn)
        follower.settle()
        if is_deleted:
            log.unlink()
        else:
            rotate(log)
        with writing(log) as new:
            new.raw(lines([1]).decode().replace("\n", "\\n"))
            follower.settle()
        (last,) = (piece for piece in follower.stored if piece.is_last)
        assert last.data == torn.encode()
        assert [piece.data for piece in follower.stored if piece.data and not piece.is_last] == [lines([1])]


@both_ways
def test_a_truncated_half_is_not_glued_to_what_comes(tmp_path: Path, is_watched: bool) -> None:
    log = tmp_path / "vllm.log"
    with following(log, is_watched=is_watched) as follower, writing(log) as writer:
        writer.lines(3)
        writer.raw("line 9")
        follower.settle()
        log.write_bytes(b"")
        follower.settle()
        writer.lines(3)
        follower.settle()
        assert follower.numbers == list(range(6))
        assert b"line 9" not in follower.data
