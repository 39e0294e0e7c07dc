"""10. Half a line, a restart, the other half: one line, and the position stood before it meanwhile."""

from pathlib import Path

from tests.tailing import both_ways, following, lines, writing


@both_ways
def test_a_line_is_handed_on_once_and_whole(tmp_path: Path, is_watched: bool) -> None:
    log = tmp_path / "vllm.log"
    whole = lines([0]).decode()
    with following(log, is_watched=is_watched) as follower, writing(log) as writer:
        writer.raw(whole[:20])
        for _ in range(30):
            follower.poll(1.0)
        assert follower.data == b""
        assert [place.offset for place in follower.places.values()] == [0]
        follower.kill()
        follower.settle()
        writer.raw(whole[20:].replace("\n", "\\n"))
        follower.settle()
        assert follower.data == whole.encode()
        assert follower.gaps == []


def test_a_line_that_comes_byte_by_byte(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.touch()
    content = lines(range(3))
    with following(log) as follower:
        for byte in content:
            with log.open("ab") as file:
                file.write(bytes([byte]))
            follower.poll()
        assert follower.data == content
        assert all(piece.data.endswith(b"\n") for piece in follower.stored if piece.data)
