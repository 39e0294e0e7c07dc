"""1. Stopped in the middle and started again: reading goes on where the store says, each line once."""

from pathlib import Path

from tests.tailing import both_ways, following, lines, writing


@both_ways
def test_reading_goes_on_where_it_was_left(tmp_path: Path, is_watched: bool) -> None:
    log = tmp_path / "vllm.log"
    with writing(log) as writer, following(log, is_watched=is_watched) as follower:
        writer.lines(10_000)
        follower.poll(budget=1)
        half = len(follower.numbers)
        assert 0 < half < 10_000
        follower.kill()
        writer.lines(1_000)
        first = follower.poll()
        assert first[0].data.startswith(lines([half]))
        follower.settle()
        assert follower.numbers == list(range(11_000))
        assert follower.gaps == []


@both_ways
def test_a_position_says_how_far_the_file_was_read(tmp_path: Path, is_watched: bool) -> None:
    log = tmp_path / "vllm.log"
    log.write_bytes(lines(range(3)))
    with following(log, is_watched=is_watched) as follower:
        follower.settle()
        (place,) = follower.places.values()
        assert (place.source, place.offset, place.done) == ("vllm.log", log.stat().st_size, False)
        assert place.file_id.startswith(f"{log.stat().st_dev}-{log.stat().st_ino}-")


def test_nothing_is_handed_on_twice_where_nothing_is_new(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_bytes(lines(range(3)))
    with following(log) as follower:
        follower.settle()
        for _ in range(5):
            follower.kill()
            assert follower.poll() == []
