import gzip
import os
import random
import socket
import tracemalloc
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kvlogd.cutter import Chunk
from kvlogd.source import MIB, LogFile, chunks, expand

LINE = b"(APIServer pid=1) INFO 11-29 14:16:25 [loggers.py:335] Engine 000: Avg prompt throughput: 5.0 tokens/s\n"


def put(path: Path, data: bytes = LINE, mtime_s: float | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    if mtime_s is not None:
        os.utime(path, (mtime_s, mtime_s))
    return path


def one(path: Path) -> LogFile:
    expanded = expand([path])
    assert expanded.errors == []
    return expanded.files[0]


def joined(parts: list[Chunk]) -> bytes:
    return b"".join(part.data for part in parts)


# --- finding


@pytest.mark.parametrize(
    ("oldest_first", "source"),
    [
        (["vllm.log.10.gz", "vllm.log.2.zst", "vllm.log.1", "vllm.log"], "vllm.log"),
        (["vllm.log-20261126.gz", "vllm.log-20261127", "vllm.log-20261128", "vllm.log"], "vllm.log"),
        (["vllm-20261127.log.gz", "vllm-20261128.log", "vllm.log"], "vllm.log"),
        (["vllm.log.2026-11-27", "vllm.log.2026-11-28", "vllm.log"], "vllm.log"),
        (["vllm.log.2026-11-27_09-00", "vllm.log.2026-11-27_10-00", "vllm.log"], "vllm.log"),
        (["0.log.20261127-141625.gz", "0.log.20261128-141625", "0.log"], "0.log"),
        (["ab12-json.log.2.gz", "ab12-json.log.1", "ab12-json.log"], "ab12-json.log"),
        (["vllm.log.1.gz", "vllm.log.gz"], "vllm.log"),
    ],
)
def test_rotation_is_read_oldest_first(tmp_path: Path, oldest_first: list[str], source: str) -> None:
    paths = [put(tmp_path / name, b"%d\n" % i) for i, name in enumerate(oldest_first)]
    for given_order in (paths, paths[::-1], random.Random(1).sample(paths, len(paths))):
        expanded = expand(given_order)
        assert [file.path.name for file in expanded.files] == oldest_first
        assert {file.source for file in expanded.files} == {source}
        assert expanded.errors == []


@pytest.mark.parametrize("name", ["vllm-8000.log", "case-01.log", "slurm-12345678.out", "vllm-20269999.log", "a.log.b"])
def test_other_numbers_are_part_of_the_name(tmp_path: Path, name: str) -> None:
    assert one(put(tmp_path / name)).source == name


def test_different_logs_keep_the_order_given(tmp_path: Path) -> None:
    names = ["b.log", "a.log.1", "b.log.1", "a.log", "c.log"]
    files = expand([put(tmp_path / name) for name in names]).files
    assert [file.path.name for file in files] == ["b.log.1", "b.log", "a.log.1", "a.log", "c.log"]


def test_logs_of_the_same_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    paths = [put(tmp_path / name) for name in ("x/one/vllm.log", "x/two/vllm.log", "x/two/vllm.log.1", "other.log")]
    assert [file.source for file in expand(paths).files] == [
        "one/vllm.log",
        "two/vllm.log",
        "two/vllm.log",
        "other.log",
    ]


def test_a_file_counts_once(tmp_path: Path) -> None:
    log = put(tmp_path / "vllm.log")
    (tmp_path / "link.log").symlink_to(log)
    assert [file.path for file in expand([log, tmp_path / "link.log", str(log)]).files] == [log]


def test_a_file_that_is_there_plain_and_compressed_counts_once(tmp_path: Path) -> None:
    paths = [put(tmp_path / "vllm.log.1.gz", gzip.compress(LINE)), put(tmp_path / "vllm.log.1")]
    assert [file.path.name for file in expand(paths).files] == ["vllm.log.1"]


def test_a_record_tells_size_time_and_head(tmp_path: Path) -> None:
    file = one(put(tmp_path / "vllm.log", LINE * 100, 1795961785.5))
    assert (file.size, file.mtime_s) == (len(LINE) * 100, 1795961785.5)
    packed = one(put(tmp_path / "vllm.log.1.gz", gzip.compress(LINE * 100)))
    grown = one(put(tmp_path / "copy.log", LINE * 101))
    other = one(put(tmp_path / "other.log", b"x" + LINE * 100))
    assert file.head_signature == packed.head_signature == grown.head_signature != other.head_signature
    assert file.head_signature.startswith("1024:")


REFUSED = [
    ("missing.log", None, "No such file"),
    ("empty.log", b"", "empty"),
    ("program", b"\x7fELF\x02\x01\x01" + bytes(100), "a program"),
    ("binary", bytes(range(1, 9)) + b"\0" * 1000 + b"x", "binary"),
    ("log.xz", b"\xfd7zXZ\0\0", "xz"),
    ("x.journal", b"LPKSHHRH\0\0", "journal"),
    ("log.tar.gz", gzip.compress(b"a" * 257 + b"ustar\0" + b"0" * 500 + b"\n"), "tar"),
    ("utf16.log", "a\n".encode("utf-16"), "UTF-16"),
]


@pytest.mark.parametrize(("name", "data", "why"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_is_no_log_is_told_and_the_rest_is_read(tmp_path: Path, name: str, data: bytes | None, why: str) -> None:
    path = tmp_path / name if data is None else put(tmp_path / name, data)
    good = put(tmp_path / "good.log")
    expanded = expand([path, good])
    assert [file.path for file in expanded.files] == [good]
    [error] = expanded.errors
    assert why in error.what
    assert error.where == str(path)
    assert error.mend


def test_folders_pipes_sockets_and_devices_are_told_without_being_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "socket"))
        expanded = expand([tmp_path, tmp_path / "pipe", tmp_path / "socket", "/dev/zero"])
    assert [error.what for error in expanded.errors] == ["is a folder", "is a pipe", "is a socket", "is a device"]
    assert expanded.files == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_told(tmp_path: Path) -> None:
    put(tmp_path / "secret.log").chmod(0)
    assert "Permission denied" in expand([tmp_path / "secret.log"]).errors[0].what


def test_impossible_and_strange_names(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    strange = tmp_path / os.fsdecode(b"a\nb\x1b[31m\xff.log")
    errors = expand(["a\0b", tmp_path / "loop", strange]).errors
    assert [error.where for error in errors] == [
        "a\\x00b", f"{tmp_path}/loop", f"{tmp_path}/a\\nb\\x1b[31m\\udcff.log",
    ]  # fmt: skip
    assert one(put(strange)).source == "a\\nb\\x1b[31m\\udcff.log"


def test_an_empty_file_among_rotated_ones_is_no_error(tmp_path: Path) -> None:
    expanded = expand([put(tmp_path / "vllm.log", b""), put(tmp_path / "vllm.log.1")])
    assert [file.path.name for file in expanded.files] == ["vllm.log.1"]
    assert expanded.errors == []


def test_a_hole_at_the_begin_is_no_binary_file(tmp_path: Path) -> None:
    assert one(put(tmp_path / "vllm.log", b"\0" * 100_000 + LINE)).source == "vllm.log"


# --- reading


def pack(kind: str, *parts: bytes) -> bytes:
    if kind == "gz":
        return b"".join(map(gzip.compress, parts))
    if kind == "zst":
        return b"".join(map(zstandard.ZstdCompressor().compress, parts))
    return b"".join(parts)


@pytest.mark.parametrize("kind", ["plain", "gz", "zst"])
@pytest.mark.parametrize("start", [0, 1, 1000, 200_000])
def test_chunks_hold_whole_lines_and_all_of_them(tmp_path: Path, kind: str, start: int) -> None:
    data = b"".join(b"%d %s\n" % (i, b"x" * (i % 300)) for i in range(3000))
    file = one(put(tmp_path / "vllm.log", pack(kind, data[:100_001], data[100_001:200_001], data[200_001:])))
    parts = list(chunks(file, start=start, size=4096))
    assert joined(parts) == data[start:]
    assert all(part.data.endswith(b"\n") and not part.partial and part.error is None for part in parts)
    assert all(data[part.offset : part.end_offset] == part.data for part in parts)
    assert parts[-1].end_offset == len(data)
    again = list(chunks(file, start=parts[3].end_offset, size=4096))
    assert joined(again) == data[parts[3].end_offset :]


@pytest.mark.parametrize("kind", ["plain", "gz", "zst"])
def test_a_last_line_without_newline_stands_alone(tmp_path: Path, kind: str) -> None:
    parts = list(chunks(one(put(tmp_path / "vllm.log", pack(kind, LINE * 3 + b"half a li")))))
    assert parts == [
        Chunk(0, LINE * 3, len(LINE) * 3),
        Chunk(len(LINE) * 3, b"half a li", len(LINE) * 3 + 9, partial=True),
    ]


def test_the_start_behind_the_end_gives_nothing(tmp_path: Path) -> None:
    for kind in ("plain", "gz", "zst"):
        assert list(chunks(one(put(tmp_path / "vllm.log", pack(kind, LINE))), start=10_000)) == []


def test_gzip_padding_and_skippable_frames(tmp_path: Path) -> None:
    padded = put(tmp_path / "a.log", gzip.compress(LINE) + bytes(512))
    skipping = put(tmp_path / "b.log", b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + zstandard.compress(LINE))
    for path in (padded, skipping):
        assert list(chunks(one(path))) == [Chunk(0, LINE, len(LINE))]


@pytest.mark.parametrize("kind", ["gz", "zst"])
@pytest.mark.parametrize("members", [1, 2])
def test_a_truncated_file_gives_what_it_has_and_one_error(tmp_path: Path, kind: str, members: int) -> None:
    rng = random.Random(3)
    data = b"".join(b"%s\n" % rng.randbytes(60).hex().encode() for _ in range(6000))
    packed = pack(kind, *[data] * members)
    parts = list(chunks(one(put(tmp_path / "vllm.log", packed[: -len(packed) // (3 * members)]))))
    assert [part.error is not None for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].data == b""
    got = joined(parts)
    assert (data * members).startswith(got)
    assert len(got) > len(data) // 3
    assert got.endswith(b"\n")
    assert parts[-1].error is not None
    assert "middle" in parts[-1].error.what


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_damaged_file_gives_one_error(tmp_path: Path, kind: str) -> None:
    packed = pack(kind, LINE) + b"\x07 no member of anything"
    parts = list(chunks(one(put(tmp_path / "vllm.log", packed))))
    assert joined(parts) == LINE
    assert parts[-1].error is not None
    assert "damaged" in parts[-1].error.what


def test_a_file_that_is_gone_or_became_a_pipe_gives_an_error(tmp_path: Path) -> None:
    file = one(put(tmp_path / "vllm.log"))
    file.path.unlink()
    assert [part.error is not None for part in chunks(file)] == [True]
    os.mkfifo(file.path)
    assert [part.error is not None for part in chunks(file)] == [True]


# --- long lines


@pytest.mark.parametrize("kind", ["plain", "gz"])
def test_a_long_line_is_dropped_in_flat_memory(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "vllm.log"
    with path.open("wb") if kind == "plain" else gzip.open(path, "wb", compresslevel=1) as out:
        out.write(LINE)
        for _ in range(64):
            out.write(b"x" * MIB)
        out.write(b"\n" + LINE * 2)
    file = one(path)
    tracemalloc.start()
    try:
        parts = list(chunks(file))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * MIB
    assert joined(parts) == LINE * 3
    assert sum(part.cut_lines for part in parts) == 1
    assert parts[-1].end_offset == 64 * MIB + 1 + 3 * len(LINE)


def test_a_hole_of_any_length_does_not_swallow_the_line_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    with path.open("wb") as out:
        out.seek(20 * MIB + 7)
        out.write(LINE * 2)
    parts = list(chunks(one(path)))
    assert joined(parts).lstrip(b"\0") == LINE * 2
    assert joined(parts).startswith(b"\0")
    assert [part.cut_lines for part in parts] == [0] * len(parts)
    assert parts[-1].end_offset == 20 * MIB + 7 + 2 * len(LINE)


def test_a_long_last_line_is_counted(tmp_path: Path) -> None:
    parts = list(chunks(one(put(tmp_path / "vllm.log", LINE + b"x" * 5000)), max_line=1000))
    assert joined(parts) == LINE
    assert sum(part.cut_lines for part in parts) == 1


@given(
    lines=st.lists(st.builds(bytes.__mul__, st.sampled_from([b"a", b"bc", b"\r"]), st.integers(0, 40)), max_size=30),
    tail=st.binary(max_size=5).map(lambda data: data.replace(b"\n", b"").replace(b"\0", b"")),
    size=st.integers(1, 64),
    max_line=st.integers(1, 40),
)
def test_any_cut_gives_the_lines_that_fit(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], tail: bytes, size: int, max_line: int
) -> None:
    data = b"".join(line + b"\n" for line in lines) + tail
    path = put(tmp_path_factory.getbasetemp() / "any.log", data)
    parts = list(chunks(LogFile(path, "any.log", len(data), 0.0, ""), size=size, max_line=max_line))
    fitting = [line + b"\n" for line in lines if len(line) <= max_line]
    whole = [part for part in parts if not part.partial]
    assert joined(whole) == b"".join(fitting)
    assert sum(part.cut_lines for part in parts) == len(lines) - len(fitting) + (len(tail) > max_line)
    assert b"".join(part.data for part in parts if part.partial) == (tail if len(tail) <= max_line else b"")
    assert not parts or parts[-1].end_offset == len(data)


@given(st.binary(max_size=300), st.sampled_from([b"", b"\x1f\x8b\x08\0", b"\x28\xb5\x2f\xfd", b"\x51\x2a\x4d\x18"]))
def test_arbitrary_bytes_never_raise(tmp_path_factory: pytest.TempPathFactory, data: bytes, head: bytes) -> None:
    path = put(tmp_path_factory.getbasetemp() / "arbitrary.log", head + data)
    expanded = expand([path])
    assert len(expanded.files) + len(expanded.errors) == 1
    for file in expanded.files:
        assert all(part.error is None or part.data == b"" for part in chunks(file, size=64))


def test_a_small_bomb_stays_small(tmp_path: Path) -> None:
    bomb = zlib.compressobj(9, wbits=31)
    packed = bomb.compress(bytes(64 * MIB)) + bomb.flush()
    file = one(put(tmp_path / "vllm.log.gz", packed))
    tracemalloc.start()
    try:
        count = sum(len(part.data) for part in chunks(file))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 1
    assert peak < 8 * MIB
