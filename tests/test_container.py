"""A docker container is followed by its name, through new containers and rotations."""

import json
import shutil
from pathlib import Path

from kvlogd.container import ContainerTail
from kvlogd.piece import Piece
from kvlogd.rows import Position
from tests.lines import line_of, record


def container(root: Path, number: int, name: str = "chat") -> Path:
    """Make a container's folder as docker does; return its log."""
    id_ = f"{number:064x}"
    folder = root / id_
    folder.mkdir(parents=True)
    log = folder / f"{id_}-json.log"
    created = f"2026-11-29T14:00:{number:02}.000000000Z"
    (folder / "config.v2.json").write_text(
        json.dumps({"ID": id_, "Name": f"/{name}", "Created": created, "LogPath": str(log)})
    )
    (folder / "hostconfig.json").write_text(json.dumps({"LogConfig": {"Type": "json-file", "Config": {}}}))
    return log


def entry(number: int) -> str:
    text = line_of(record(10 * number, running=1)).decode() + "\n"
    return json.dumps({"log": text, "stream": "stdout", "time": "2026-11-29T14:00:00.000000000Z"}) + "\n"


def follow(tail: ContainerTail, now_s: float) -> list[Piece]:
    pieces: list[Piece] = []
    for step in range(4):
        pieces += tail.poll(1 << 20, now_s + 3 * step, 1.8e9 + now_s + 3 * step)
    return pieces


def count(pieces: list[Piece]) -> int:
    return sum(piece.data.count(b"Avg prompt") for piece in pieces)


def places(pieces: list[Piece]) -> list[Position]:
    return list({piece.position.file_id: piece.position for piece in pieces if piece.position is not None}.values())


def test_a_container_made_anew_goes_on_as_the_same_log(tmp_path: Path) -> None:
    first = container(tmp_path, 1)
    first.write_text("".join(map(entry, range(3))))
    container(tmp_path, 9, "other").write_text(entry(50))
    tail = ContainerTail("chat", "chat", root=tmp_path)
    pieces = follow(tail, 0.0)
    container(tmp_path, 2).write_text("".join(map(entry, range(3, 5))))
    pieces += follow(tail, 20.0)
    assert {piece.log for piece in pieces} == {"chat"}
    assert count(pieces) == 5
    assert [gap for piece in pieces for gap in piece.gaps] == []
    tail.close()


def test_after_a_restart_nothing_is_read_twice_and_what_is_gone_is_a_gap(tmp_path: Path) -> None:
    first, second = container(tmp_path, 1), container(tmp_path, 2)
    first.write_text(entry(0))
    second.write_text(entry(1))
    tail = ContainerTail("chat", "chat", root=tmp_path)
    known = places(follow(tail, 0.0))
    tail.close()
    for path in first.parent.iterdir():
        path.unlink()
    first.parent.rmdir()
    with second.open("a") as log:
        log.write(entry(2))
    again = ContainerTail("chat", "chat", known, root=tmp_path)
    pieces = follow(again, 0.0)
    assert count(pieces) == 1
    assert [gap.reason for piece in pieces for gap in piece.gaps] == ["rotated away before it was read"]
    again.close()


def test_no_container_says_what_to_do(tmp_path: Path) -> None:
    tail = ContainerTail("chat", "chat", root=tmp_path / "none")
    assert follow(tail, 0.0) == []
    [health] = tail.health()
    assert (health.state, health.log) == ("unreadable", "chat")
    assert "docker info" in health.mend


def test_a_container_that_cannot_be_seen_for_a_while_is_not_read_again(tmp_path: Path) -> None:
    root = tmp_path / "containers"
    log = container(root, 1)
    log.write_text("".join(map(entry, range(3))))
    tail = ContainerTail("chat", "chat", root=root)
    assert count(follow(tail, 0.0)) == 3
    config = log.parent / "config.v2.json"
    whole = config.read_text()
    config.write_text(whole[:20])
    assert count(follow(tail, 20.0)) == 0
    config.write_text(whole)
    root.rename(tmp_path / "away")
    assert count(follow(tail, 40.0)) == 0
    (tmp_path / "away").rename(root)
    with log.open("a") as out:
        out.write(entry(3))
    assert count(follow(tail, 60.0)) == 1
    tail.close()


def test_what_a_removed_container_wrote_is_read_to_its_end(tmp_path: Path) -> None:
    log = container(tmp_path, 1)
    log.write_text("".join(map(entry, range(3000))))
    tail = ContainerTail("chat", "chat", root=tmp_path)
    pieces = tail.poll(1 << 16, 0.0, 1.8e9)
    assert 0 < count(pieces) < 3000
    shutil.rmtree(log.parent)
    container(tmp_path, 2).write_text(entry(3000))
    for turn in range(1, 40):
        pieces += tail.poll(1 << 16, float(turn), 1.8e9 + turn)
    assert count(pieces) == 3001
    assert len(tail.folders()) == 1
    tail.close()
    # all of it was told: nothing is missed after a restart
    again = ContainerTail("chat", "chat", places(pieces), root=tmp_path)
    assert [gap for piece in follow(again, 100.0) for gap in piece.gaps] == []
    again.close()
