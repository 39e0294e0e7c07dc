"""Cuts the bytes of a log into whole lines, wherever the blocks that they come in begin and end.

Promises: a line is handed on once, whole, with the offset behind it; memory stays under one block and one line,
whatever the log holds: a longer line is left out and counted, a hole of NULs is one byte.
"""

from typing import NamedTuple

from kvlogd.errors import SourceError

MAX_LINE = 1 << 20
"""Bytes of the longest line that is kept."""


class Chunk(NamedTuple):
    """Whole lines of a file. Offsets count unpacked bytes."""

    offset: int
    data: bytes
    end_offset: int
    """Where the next chunk begins; not `offset + len(data)` where lines were cut or NULs left out."""
    cut_lines: int = 0
    partial: bool = False
    """True for the file's last line where it has no newline; it stands alone in its chunk."""
    error: SourceError | None = None
    """Set in the last chunk of a file that could not be read to its end."""


class Cutter:
    """Cuts blocks, none longer than `max_line`, into whole lines; holds back one line at most."""

    def __init__(self, start: int, max_line: int = MAX_LINE) -> None:
        self.max_line = max_line
        self.tail = b""
        self.line_at = start
        """Where the line in `tail` begins."""
        self.read_to = start
        self.skipping = False
        self.cut_lines = 0

    def add(self, block: bytes) -> Chunk | None:
        """Take in the next block; return the lines that are whole now."""
        begin, self.read_to = self.read_to, self.read_to + len(block)
        cut = block.rfind(b"\n") + 1
        if cut == 0:
            self._grow(block)
            return None
        low = 0
        if self.skipping or len(self.tail) + block.find(b"\n") > self.max_line:
            low = self._end_long_line(block, begin)
        data = b"".join((self.tail, memoryview(block)[low:cut]))
        chunk = Chunk(self.line_at, data, begin + cut, self.cut_lines)
        self.tail, self.line_at = block[cut:], begin + cut
        if not data:
            return None
        self.cut_lines = 0
        return chunk

    def _grow(self, block: bytes) -> None:
        if self.skipping:
            return
        self.tail = _without_hole(self.tail + block)
        if len(self.tail) > self.max_line:
            self.tail, self.skipping = b"", True

    def _end_long_line(self, block: bytes, begin: int) -> int:
        """Return where in the block the next line begins, having dropped the long one."""
        end = block.find(b"\n") + 1
        if not self.skipping:
            line = _without_hole(self.tail + block[:end])
            if len(line) <= self.max_line + 1:
                self.tail = line
                return end
        self.tail, self.line_at, self.skipping = b"", begin + end, False
        self.cut_lines += 1
        return end

    def rest(self) -> Chunk | None:
        """Return the last line without its newline, or what was cut and not told yet, at the end of the file."""
        cut_lines = self.cut_lines + self.skipping
        if not self.tail and not cut_lines:
            return None
        return Chunk(self.line_at, self.tail, self.read_to, cut_lines, partial=bool(self.tail) or self.skipping)

    def jump(self, to: int) -> None:
        """Go on at byte `to`: between here and there the file has a hole, which reads as NULs."""
        self.read_to = to
        if not self.skipping:
            self.tail = _without_hole(self.tail + b"\0\0")

    def broken(self, error: SourceError) -> Chunk:
        """Return what ends a file that cannot be read on: the half line before the damage counts as cut."""
        cut_lines = self.cut_lines + (self.skipping or bool(self.tail))
        return Chunk(self.line_at, b"", self.read_to, cut_lines, error=error)


def _without_hole(line: bytes) -> bytes:
    """Return a line whose leading NULs (copytruncate leaves gigabytes of them) are one, which still tells the hole."""
    return b"\0" + line.lstrip(b"\0") if line[:2] == b"\0\0" else line
