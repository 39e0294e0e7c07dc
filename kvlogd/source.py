"""Finds the logs that are already there and reads them in whole lines, plain or compressed.

Promises: nothing but a regular file is ever read; memory stays flat whatever the file holds; what cannot be read
comes back as an error beside what can be, never as an exception in the middle.
Does not promise: to notice that a file grows or rotates while it is read (that is the tailer's), or to unpack
archives.
"""

import errno
import hashlib
import os
import re
import stat
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from kvlogd.cutter import MAX_LINE, Chunk, Cutter
from kvlogd.errors import SourceError

MIB = 1 << 20
BLOCK = 256 * 1024
"""Bytes read at a time: larger blocks cost more in fresh pages than they save in calls."""
HEAD = 64 * 1024
SIGNED = 1024
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
RAW_GZIP = 64 * 1024
RAW_ZSTD = 1024
"""Compressed bytes a step: zstandard gives no limit for what comes out of them, and 128 KiB can come out of 4."""

_FOREIGN = (
    (b"\x7fELF", "a program, no log", "give the log that the program writes"),
    (b"\xfd7zXZ\0", "compressed with xz", "unpack it with unxz first"),
    (b"BZh", "compressed with bzip2", "unpack it with bunzip2 first"),
    (b"\x04\x22\x4d\x18", "compressed with lz4", "unpack it with unlz4 first"),
    (b"PK\x03\x04", "a zip archive", "unpack it first"),
    (b"LPKSHHRH", "a binary journal", "export it: journalctl --file FILE -a -o export > vllm.export"),
    (b"SQLite format 3\0", "a database", "give the log itself"),
    (b"\xff\xfe", "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
)
_KINDS = (
    (stat.S_ISDIR, "a folder", "give the log files in it"),
    (stat.S_ISFIFO, "a pipe", "write the pipe into a file first"),
    (stat.S_ISSOCK, "a socket", "give a log file"),
    (stat.S_ISCHR, "a device", "give a log file"),
    (stat.S_ISBLK, "a device", "give a log file"),
)
_MENDS = {
    errno.ENOENT: "check the path",
    errno.EACCES: "let this user read it, e.g. through its group",
    errno.ELOOP: "its links lead in a circle",
}

_PACKED = re.compile(r"\.(?:gz|zst)$")
_NUMBERED = re.compile(r"(?P<base>.+)\.(?P<number>\d{1,4})")
_DATED = re.compile(
    r"(?P<base>.+?)[.-](?P<date>20\d\d-?(?:0\d|1[0-2])-?[0-3]\d(?:[-_T.:]?\d{1,10}){0,3})(?P<ext>\.log)?"
)


class LogFile(NamedTuple):
    """One file of a log. Files of one `source` follow each other."""

    path: Path
    source: str
    """The base name without the marks of rotation; with folders before it where two logs have the same."""
    size: int
    """Bytes on disk."""
    mtime_s: float
    head_signature: str
    """`N:HEX` of the first N unpacked bytes (1,024 at most): the same after a rename and after compression."""


class Expanded(NamedTuple):
    """What can be read, in the order to read it, and what cannot."""

    files: list[LogFile]
    errors: list[SourceError]


class Rotation(NamedTuple):
    """Where a file stands in its log: numbered ones first (the highest is the oldest), then dated, then the live."""

    rank: int
    age: int
    date: str
    packed: bool


class _Found(NamedTuple):
    base: Path
    place: Rotation
    file: LogFile


def expand(paths: Iterable[str | os.PathLike[str]]) -> Expanded:
    """Return the readable ones of `paths`, each log's files oldest first, logs in the order given; and the errors.

    A file given twice counts once, and so does a rotated file that is there both plain and compressed. An empty
    file is an error only where nothing else of its log has anything in it.
    """
    found: dict[tuple[int, int], _Found] = {}
    empty: dict[Path, Path] = {}
    errors: list[SourceError] = []
    for path in map(Path, paths):
        base, place = rotation_of(path)
        try:
            identity, file = _inspect(path)
        except SourceError as error:
            errors.append(error)
            continue
        if file.size == 0:
            empty.setdefault(base, path)
        else:
            found.setdefault(identity, _Found(base, place, file))
    bases = {each.base for each in found.values()}
    errors += [
        _error(path, "empty", "wait until vLLM has written to it") for b, path in empty.items() if b not in bases
    ]
    return Expanded(_in_order(list(found.values())), errors)


def _in_order(found: list[_Found]) -> list[LogFile]:
    logs: dict[Path, dict[tuple[int, int, str], _Found]] = {}
    for each in sorted(found, key=lambda each: each.place.packed):
        logs.setdefault(each.base, {}).setdefault(each.place[:3], each)
    names = _names(list(logs))
    given = dict.fromkeys(each.base for each in found)
    return [
        each.file._replace(source=names[base])
        for base in given
        for each in sorted(logs[base].values(), key=lambda each: each.place)
    ]


def _names(bases: list[Path]) -> dict[Path, str]:
    """Return a name for each log: its file name, with as many folders before it as tell it from the others."""
    names = {}
    for base in bases:
        rivals = [other for other in bases if other != base]
        depth = next(
            (n for n in range(1, len(base.parts)) if all(o.parts[-n:] != base.parts[-n:] for o in rivals)),
            len(base.parts),
        )
        names[base] = shown("/".join(base.parts[-depth:]))
    return names


def rotation_of(path: Path) -> tuple[Path, Rotation]:
    """Return the log that a file belongs to, by its name alone, and its place there."""
    folder = Path(os.path.abspath(path)).parent  # noqa: PTH100 - resolve() would follow the link to another name
    name = _PACKED.sub("", path.name)
    packed = name != path.name
    dated = _DATED.fullmatch(name)
    if dated is not None:
        digits = re.sub(r"\D", "", dated["date"])
        return folder / (dated["base"] + (dated["ext"] or "")), Rotation(1, 0, digits, packed)
    numbered = _NUMBERED.fullmatch(name)
    if numbered is not None:
        return folder / numbered["base"], Rotation(0, -int(numbered["number"]), "", packed)
    return folder / name, Rotation(2, 0, "", packed)


def _inspect(path: Path) -> tuple[tuple[int, int], LogFile]:
    """Return a file's identity and record, `source` unset; raises SourceError for what is no log."""
    with _opened(path) as fd:
        status = os.fstat(fd)
        head = b"" if status.st_size == 0 else _head(path, fd)
        if status.st_size:
            _refuse_foreign(path, head)
    signed = head[:SIGNED]
    signature = f"{len(signed)}:{hashlib.blake2b(signed, digest_size=16).hexdigest()}"
    file = LogFile(path, "", status.st_size, status.st_mtime, signature)
    return (status.st_dev, status.st_ino), file


def _head(path: Path, fd: int) -> bytes:
    head = b""
    with suppress(SourceError):  # the damage is told when the file is read; here what came before it is enough
        for block in _blocks(path, fd, HEAD):
            head += block
            if len(head) >= HEAD:
                break
    return head[:HEAD]


def _refuse_foreign(path: Path, head: bytes) -> None:
    for magic, what, mend in _FOREIGN:
        if head.startswith(magic):
            raise _error(path, what, mend)
    if head[257:262] == b"ustar":
        raise _error(path, "a tar archive", "unpack it first")
    # nothing but NULs is what copytruncate leaves before the lines, not a binary file
    if b"\n" not in head and b"\0" in head and head.strip(b"\0"):
        raise _error(path, "binary, no log", "give the text log")


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a regular file for reading; raises SourceError. Looks first: opening a device or a pipe can do things."""
    try:
        _refuse_special(path, path.stat().st_mode)
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    try:
        _refuse_special(path, os.fstat(fd).st_mode)
        yield fd
    finally:
        os.close(fd)


def _refuse_special(path: Path, mode: int) -> None:
    for is_kind, what, mend in _KINDS:
        if is_kind(mode):
            raise _error(path, what, mend)


def _error(path: Path, what: str, mend: str) -> SourceError:
    return SourceError(f"is {what}", where=shown(os.fspath(path)), mend=mend)


def _unreadable(path: Path, error: OSError | ValueError) -> SourceError:
    number = error.errno if isinstance(error, OSError) else None
    why = os.strerror(number) if number else "no possible path"
    mend = _MENDS.get(number or 0, "check the file and its disk")
    return SourceError(f"cannot be read ({why})", where=shown(os.fspath(path)), mend=mend)


def shown(text: str) -> str:
    """Return a file name fit for one line of output: what cannot be printed is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


# --- reading


def chunks(file: LogFile, *, start: int = 0, size: int = BLOCK, max_line: int = MAX_LINE) -> Iterator[Chunk]:
    """Yield the file's whole lines from byte `start` on (of the unpacked text), about `size` bytes at a time.

    A line of more than `max_line` bytes is left out and counted. Never raises for what the file holds: where it
    cannot be read on, the last chunk carries the error.
    """
    cutter = Cutter(start, max_line)
    try:
        with _opened(file.path) as fd:
            for block in _blocks(file.path, fd, max(1, min(size, max_line)), start):
                chunk = cutter.add(block)
                if chunk is not None:
                    yield chunk
    except SourceError as error:
        # the half line before the damage could read like a whole one
        yield cutter.broken(error)
        return
    last = cutter.rest()
    if last is not None:
        yield last


def unpacked(path: Path) -> Generator[bytes]:
    """Yield a file's unpacked bytes, some at a time. Raises SourceError."""
    with _opened(path) as fd:
        yield from _blocks(path, fd, BLOCK)


def _blocks(path: Path, fd: int, size: int, start: int = 0) -> Iterator[bytes]:
    """Yield the file's unpacked bytes from `start` on, in blocks of `size` at most; raises SourceError."""
    try:
        magic = os.pread(fd, 4, 0)
        if magic[:2] == GZIP:
            yield from _sized(_gunzip(path, fd), size, start)
        elif magic == ZSTD or (magic[1:] == b"\x2a\x4d\x18" and magic[0] & 0xF0 == 0x50):
            yield from _sized(_unzstd(path, fd), size, start)
        else:
            os.lseek(fd, start, os.SEEK_SET)
            while block := os.read(fd, size):
                yield block
    except OSError as error:
        raise _unreadable(path, error) from error


def _sized(pieces: Iterator[bytes], size: int, start: int) -> Iterator[bytes]:
    """Yield the bytes of `pieces` from `start` on, in blocks of `size`; before an error, what there was."""
    held, length, skip = [], 0, start
    try:
        for piece in pieces:
            held.append(piece[skip:])
            length += len(held[-1])
            skip = max(0, skip - len(piece))
            if length >= size:
                whole = b"".join(held)
                full = length - length % size
                for at in range(0, full, size):
                    yield whole[at : at + size]
                held, length = [whole[full:]], length - full
    except SourceError:
        if length:
            yield b"".join(held)
        raise
    if length:
        yield b"".join(held)


def _truncated(path: Path) -> SourceError:
    return SourceError(
        "ends in the middle of its compressed data",
        where=shown(os.fspath(path)),
        mend="what came before was read; give the whole file for the rest",
    )


def _damaged(path: Path) -> SourceError:
    return SourceError(
        "has damaged compressed data",
        where=shown(os.fspath(path)),
        mend="what came before was read; give a whole copy for the rest",
    )


def _gunzip(path: Path, fd: int) -> Iterator[bytes]:
    """Yield the text of a gzip file of any number of members; raises SourceError where it is cut or damaged."""
    import zlib

    os.lseek(fd, 0, os.SEEK_SET)
    machine, begun = zlib.decompressobj(31), False
    try:
        while raw := os.read(fd, RAW_GZIP):
            while raw:
                if machine.eof:
                    raw = raw.lstrip(b"\0")  # gzip files may be padded with NULs
                    machine, begun = zlib.decompressobj(31), False
                    continue
                begun = True
                yield machine.decompress(raw, MIB)
                raw = machine.unused_data if machine.eof else machine.unconsumed_tail
        while begun and not machine.eof and (last := machine.decompress(b"", MIB)):
            yield last
    except zlib.error as error:
        raise _damaged(path) from error
    if begun and not machine.eof:
        raise _truncated(path)


def _unzstd(path: Path, fd: int) -> Iterator[bytes]:
    """Yield the text of a zstd file of any number of frames; raises SourceError where it is cut or damaged."""
    if sys.version_info >= (3, 14):
        from compression import zstd

        new, failure = zstd.ZstdDecompressor, zstd.ZstdError
    else:
        import zstandard

        new, failure = zstandard.ZstdDecompressor().decompressobj, zstandard.ZstdError

    os.lseek(fd, 0, os.SEEK_SET)
    machine, begun = new(), False
    while raw := os.read(fd, RAW_ZSTD):
        while raw:
            begun = True
            try:
                yield machine.decompress(raw)
            except failure as error:
                raise _damaged(path) from error
            raw = machine.unused_data if machine.eof else b""
            if machine.eof:
                machine, begun = new(), False
    if begun:
        raise _truncated(path)
