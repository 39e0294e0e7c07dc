"""13. Eight replicas whose logs begin with the same 4 KiB: eight positions, nothing merged, nothing skipped."""

from pathlib import Path

from tests.tailing import both_ways, copytruncate, following, lines, numbers

HEAD = b"INFO the same banner in every replica\n" * 110


@both_ways
def test_each_log_is_followed_on_its_own(tmp_path: Path, is_watched: bool) -> None:
    logs = [tmp_path / f"replica-{number}.log" for number in range(8)]
    for number, log in enumerate(logs):
        log.write_bytes(HEAD + lines(range(100 * number, 100 * number + 10)))
    with following(tmp_path / "*.log", is_watched=is_watched) as follower:
        follower.settle()
        follower.kill()
        for number, log in enumerate(logs):
            copytruncate(log)
            log.write_bytes(HEAD + lines(range(100 * number + 10, 100 * number + 20)))
        follower.settle()
        for number, log in enumerate(logs):
            data = b"".join(piece.data for piece in follower.stored if piece.log == log.name)
            assert numbers(data) == list(range(100 * number, 100 * number + 20))
        assert len({place.file_id for place in follower.places.values()}) == len(follower.places)
