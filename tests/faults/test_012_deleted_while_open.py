"""12. Deleted with unread lines: they are read, and then the disk gets its space back."""

from pathlib import Path

from tests.tailing import both_ways, descriptors_of, following, writing


@both_ways
def test_its_lines_are_read_and_its_space_is_freed(tmp_path: Path, is_watched: bool) -> None:
    log = tmp_path / "vllm.log"
    with following(log, is_watched=is_watched) as follower, writing(log) as writer:
        writer.lines(10)
        follower.settle()
        writer.lines(1_000)
        log.unlink()
        follower.poll()
        follower.hinted()
        follower.settle(1.0, rounds=2)
        assert follower.numbers == list(range(1_010))
        for _ in range(10):
            follower.poll(1.0)
        assert descriptors_of("vllm.log") == [str(log) + " (deleted)"] * 0
        assert follower.gaps == []


@both_ways
def test_a_folder_that_is_removed_with_its_log(tmp_path: Path, is_watched: bool) -> None:
    log = tmp_path / "job" / "vllm.log"
    log.parent.mkdir()
    with following(log, is_watched=is_watched) as follower, writing(log) as writer:
        writer.lines(10)
        follower.poll()
        log.unlink()
        log.parent.rmdir()
        follower.settle()
        assert descriptors_of("vllm.log") == []
        log.parent.mkdir()
        with writing(log) as new:
            new.written = writer.written
            new.lines(10)
            follower.settle()
        assert follower.numbers == list(range(20))
