"""3. Renamed while the writer still writes to the old file: all of it is read, and then the old file is let go."""

from pathlib import Path

from tests.tailing import both_ways, descriptors_of, following, rotate, writing


@both_ways
def test_late_lines_in_the_old_file_are_read_and_it_is_let_go(tmp_path: Path, is_watched: bool) -> None:
    log = tmp_path / "vllm.log"
    with following(log, is_watched=is_watched) as follower, writing(log) as old:
        old.lines(50)
        follower.settle()
        rotate(log)
        with writing(log) as new:
            for _ in range(10):
                old.lines(10)
                follower.poll(0.3)
            new.written = old.written
            new.lines(20)
            follower.settle(0.5, rounds=3)
            assert sorted(follower.numbers) == list(range(170))
            assert len(descriptors_of("vllm.log.1")) == 1
            for _ in range(10):
                follower.poll(1.0)
            assert descriptors_of("vllm.log.1") == []
            assert follower.gaps == []


@both_ways
def test_lines_that_come_after_it_was_let_go_are_read_as_well(tmp_path: Path, is_watched: bool) -> None:
    log = tmp_path / "vllm.log"
    with following(log, is_watched=is_watched) as follower, writing(log) as old:
        old.lines(5)
        follower.settle()
        rotate(log)
        log.touch()
        follower.settle()
        assert descriptors_of("vllm.log.1") == []
        old.lines(5)
        follower.settle(10.0)
        assert follower.numbers == list(range(10))


def test_the_files_are_read_in_the_order_of_their_age(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    with following(log) as follower, writing(log) as writer:
        writer.lines(5)
        follower.settle()
        for _ in range(3):
            writer.lines(5)
            rotate(log)
            writer.reopen()
        writer.lines(5)
        follower.settle()
        assert follower.numbers == list(range(25))
