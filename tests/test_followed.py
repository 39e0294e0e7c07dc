"""A file is known by what is in it: by its first bytes, and by those before the place that was reached."""

import os
from pathlib import Path

import pytest

from kvlogd.followed import (
    HEAD,
    MARK,
    Descriptors,
    Followed,
    Identity,
    Turn,
    alike,
    begins,
    head_signature,
    holds,
    open_regular,
    signature,
)
from kvlogd.rows import Position


def followed(path: Path, offset: int = 0, most: int = 9) -> Followed:
    descriptors = Descriptors(most)
    return Followed(path, "1-2-3-4", descriptors.open(path), offset, descriptors)


def read_all(file: Followed, now_s: float = 0.0) -> bytes:
    data = b""
    while file.look(now_s) is Turn.READ:
        turn, chunk = file.read(now_s)
        data += chunk.data if chunk else b""
        if turn is not Turn.READ:
            break
    return data


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "vllm.log"
    path.write_bytes(b"".join(b"line %04d\n" % number for number in range(1000)))
    return path


def test_what_was_read_is_held_and_anything_else_is_not(log: Path, tmp_path: Path) -> None:
    file = followed(log)
    assert read_all(file) == log.read_bytes()
    place = file.position("log", 7.0)
    assert (place.offset, place.seen_s, place.done) == (10_000, 7.0, False)
    content = log.read_bytes()
    others = {
        "copy": (content, True),
        "longer": (content + b"more\n", True),
        "other head": (b"X" + content[1:], False),
        "other end": (content[:-2] + b"X\n", False),
        "shifted": (b"\n" + content, False),
        "empty": (b"", False),
    }
    for name, (data, expected) in others.items():
        other = tmp_path / name
        other.write_bytes(data)
        with other.open("rb") as opened:
            assert holds(opened.fileno(), place) == expected, name
    file.close()


@pytest.mark.parametrize(
    ("size", "expected"),
    [(5000, True), (HEAD, True), (512, True), (700, None), (40, None), (3, None)],
)
def test_a_shorter_copy_is_known_as_far_as_its_length_was_signed(log: Path, size: int, expected: bool | None) -> None:
    content = log.read_bytes()
    place = Position("log", "id", len(content), head_signature(content[:HEAD]), signature(content[-MARK:]))
    copy = log.with_name("copy")
    copy.write_bytes(content[:size])
    with copy.open("rb") as opened:
        assert begins(opened.fileno(), size, place) is expected
    copy.write_bytes(b"X" + content[1:size])
    with copy.open("rb") as opened:
        assert begins(opened.fileno(), size, place) is (False if size >= 16 else None)


def test_two_files_are_alike_up_to_a_length(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"a" * 5000)
    other.write_bytes(b"a" * 4000 + b"b" * 1000)
    with one.open("rb") as a, other.open("rb") as b:
        assert alike(a.fileno(), b.fileno(), 4000)
        assert not alike(a.fileno(), b.fileno(), 4100)
        assert not alike(a.fileno(), b.fileno(), 5000)


@pytest.mark.parametrize("length", [0, 9_000, 10_000, 20_000])
def test_another_content_under_the_same_descriptor_is_noticed(log: Path, length: int) -> None:
    file = followed(log)
    read_all(file)
    assert not file.is_cut()
    with log.open("r+b") as writer:
        writer.truncate(0)
        writer.write(b"y" * length)
    os.utime(log, (1.0, 1.0))
    assert file.is_cut()
    turn = file.look(1.0)
    assert turn is Turn.CUT or file.read(1.0)[0] is Turn.CUT
    again = file.anew("new")
    assert (again.offset, again.file_id, file.fd) == (0, "new", None)
    again.close()


def test_rest_is_told_from_news_without_reading(log: Path) -> None:
    file = followed(log)
    assert not file.is_at_rest()
    read_all(file, now_s=3.0)
    assert file.look(4.0) is Turn.RESTING
    assert file.is_at_rest()
    assert file.quiet_since_s == 3.0
    with log.open("ab") as writer:
        writer.write(b"half")
    assert not file.is_at_rest()
    assert read_all(file) == b""
    assert (file.offset, file.read_to, file.behind_bytes) == (10_000, 10_004, 0)
    rest = file.rest()
    assert rest is not None
    assert (rest.data, rest.partial, file.offset) == (b"half", True, 10_004)
    file.close()


def test_a_file_goes_on_from_any_offset_with_the_same_signatures(log: Path) -> None:
    whole = followed(log)
    read_all(whole)
    for offset in (0, 10, 500, 1500, 9_990, 10_000):
        part = followed(log, offset)
        assert read_all(part) == log.read_bytes()[offset:]
        assert part.position("log", 0.0) == whole.position("log", 0.0)
        part.close()
    whole.close()


def test_a_closed_file_is_opened_again_unless_another_has_its_name(log: Path) -> None:
    file = followed(log)
    read_all(file)
    file.close()
    with log.open("ab") as writer:
        writer.write(b"more\n")
    assert read_all(file) == b"more\n"
    file.close()
    log.rename(log.with_name("old"))
    log.write_bytes(b"another\n")
    with pytest.raises(FileNotFoundError):
        file.look(0.0)
    assert file.fd is None


def test_what_was_opened_longest_ago_is_closed_but_never_a_file_without_a_name(tmp_path: Path) -> None:
    descriptors = Descriptors(2)
    files = []
    for name in "abcd":
        path = tmp_path / name
        path.write_bytes(b"x\n")
        files.append(Followed(path, "1-2-3-4", descriptors.open(path), 0, descriptors))
        files[0].has_name = False
    assert [file.fd is None for file in files] == [False, True, True, False]
    assert len(descriptors) == 2
    assert read_all(files[1]) == b"x\n"
    assert [file.fd is None for file in files] == [False, False, True, True]
    for file in files:
        file.close()
    assert len(descriptors) == 0


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(IsADirectoryError):
            open_regular(path)


def test_identity_is_that_of_the_file_system(log: Path) -> None:
    status = log.stat()
    assert Identity.of(status) == (status.st_dev, status.st_ino)
