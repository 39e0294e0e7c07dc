"""14. Empty files and files of a few bytes: no noise, and the first line is read within two looks."""

from pathlib import Path

from tests.tailing import both_ways, following, rotate


@both_ways
def test_the_first_line_is_read_when_it_comes(tmp_path: Path, is_watched: bool) -> None:
    log = tmp_path / "vllm.log"
    log.touch()
    with following(log, is_watched=is_watched) as follower:
        follower.settle()
        assert len(follower.stored) == 1  # where it stands: at its start
        assert [(health.state, health.mend) for health in follower.health] == [("reading", "")]
        log.write_bytes(b"twenty bytes of text\n")
        follower.poll(0.5)
        follower.poll(0.5)
        assert follower.data == b"twenty bytes of text\n"


def test_empty_files_that_are_rotated_make_no_noise(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.touch()
    with following(log) as follower:
        for _ in range(5):
            follower.settle(rounds=2)
            rotate(log)
            log.touch()
        follower.settle()
        assert follower.data == b""
        assert follower.gaps == []
        follower.kill()
        follower.settle()
        assert follower.gaps == []
