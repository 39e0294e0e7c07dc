"""Whatever becomes of a log, each of its lines is handed on once, or its loss is told.

A state machine writes, rotates, copies, truncates, deletes and kills at random; `KVLOGD_TAIL_RUNS` is the number of
histories (60 by default). The oracle is a number on each line; what is on disk is the truth about what can be read.
"""

import gzip
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvlogd.followed import HEAD
from kvlogd.model import Gap
from kvlogd.piece import Piece
from kvlogd.rows import Position
from kvlogd.tail import Tail, globbed

RUNS = int(os.environ.get("KVLOGD_TAIL_RUNS", "60"))
KEPT = 4
"""Rotated files that are kept."""
BANNER = b"".join(b"banner line %d, the same in every file\n" % i for i in range(16))
LINE = re.compile(rb"<(\d{6}) x*(\d{6})>")
BEGUN = re.compile(rb"<(\d{6})")
WALL_S = 1.8e9


def line(number: int, length: int) -> bytes:
    return b"<%06d " % number + b"x" * length + b"%06d>\n" % number


def numbers(data: bytes) -> list[int]:
    """Return the numbers of the whole lines; what was torn or glued does not match."""
    whole = (LINE.fullmatch(each) for each in data.split(b"\n"))
    return [int(match[1]) for match in whole if match and match[1] == match[2]]


class History(RuleBasedStateMachine):
    """One log and its tail."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.log = self.folder / "logs" / "vllm.log"
        self.log.parent.mkdir()
        self.now = 0.0
        self.ops = 0
        self.written = 0
        self.half: tuple[int, int, int] | None = None
        """Descriptor, number and length of a line that has only begun."""
        self.torn: set[int] = set()
        self.excused: set[int] = set()
        """Numbers of which the last copy was destroyed."""
        self.to_tell: set[int] = set()
        """Those of them that stood in a file of which something is in the store."""
        self.unlooked: set[int] = set()
        """Numbers written to a rotated file, which may have been let go, since it was surely looked at."""
        self.unpromised: set[int] = set()
        """Numbers written to a deleted file, which may have been let go already."""
        self.orphans: dict[int, bool] = {}
        """Descriptors of deleted files, and whether the tail had seen them."""
        self.places: dict[str, Position] = {}
        self.stored: set[int] = set()
        self.gaps: list[Gap] = []
        self.pending: list[Piece] = []
        self.seen: set[int] = set()
        """Inodes that stood there at a look of this tail."""
        self.late: int | None = None
        self.banner = b""
        self.targets = 0

    # --- the writer

    @initialize(banner=st.booleans(), linked=st.booleans())
    def begin(self, banner: bool, linked: bool) -> None:
        self.banner = BANNER if banner else b""
        self.linked = linked
        if linked:
            (self.folder / "targets").mkdir()
        self.fd = self.fresh()
        self.tail = self.new_tail()
        self.poll(0.1, hinted=False)
        self.commit(len(self.pending))  # files that were rotated before kvlogd ever ran are not read

    def fresh(self) -> int:
        path = self.log
        if self.linked:
            path = self.folder / "targets" / f"{self.targets}.log"
            self.targets += 1
            link = self.folder / "link"
            link.symlink_to(path)
            link.rename(self.log)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(fd, self.banner)
        self.stamp(fd)
        return fd

    def stamp(self, fd: int) -> None:
        """Give a file the time of the machine's own clock."""
        self.ops += 1
        at_ns = int((WALL_S + self.now) * 1e9) + self.ops
        os.utime(fd, ns=(at_ns, at_ns))

    def put(self, fd: int, lengths: list[int]) -> None:
        for length in lengths:
            os.write(fd, line(self.written, length))
            self.written += 1
        self.stamp(fd)

    def finish_half(self) -> None:
        """Complete the line that has begun; where its file was changed meanwhile, the rest stands alone."""
        if self.half is None:
            return
        fd, number, length = self.half
        os.write(fd, line(number, length)[20:])
        self.stamp(fd)
        if number not in numbers(self.content(fd)) or fd in self.orphans:
            self.torn.add(number)
        if fd == self.late:
            self.unlooked.add(number)
        self.half = None

    def leave(self, fd: int) -> None:
        """Note which descriptor late lines go to; the one before is closed."""
        if self.late is not None and self.late not in self.orphans and (not self.half or self.half[0] != self.late):
            os.close(self.late)
        self.late = fd

    def on_disk(self) -> set[int]:
        return {number for path in self.files() for number in numbers(path.read_bytes())}

    def files(self) -> list[Path]:
        here = self.log.parent.iterdir()
        return [path for path in here if path.name.startswith("vllm.log") and path.suffix != ".gz"]

    def destroying(self, destroy: Callable[[], None], victim: Path | None) -> None:
        """Do something that may destroy lines; `victim` is the file that it is done to, if it is there."""
        before = self.reachable()
        content = set(numbers(victim.read_bytes())) if victim is not None and victim.exists() else set()
        destroy()
        lost = before - self.reachable() - self.stored
        self.excused |= lost
        if content & self.stored:
            self.to_tell |= lost & content

    def reachable(self) -> set[int]:
        held = {n for fd, seen in self.orphans.items() if seen for n in numbers(self.content(fd))}
        return self.on_disk() | held

    def content(self, fd: int) -> bytes:
        return Path(f"/proc/self/fd/{fd}").read_bytes()

    def delete(self, path: Path, fd: int | None) -> None:
        """Delete a file; the writer may still have it open."""
        if fd is not None:
            self.orphans[fd] = os.fstat(fd).st_ino in self.seen
        elif path.exists() and path.stat().st_ino in self.seen:
            held = os.open(path, os.O_RDONLY)  # the inode must not be used again while the tail has it open, nor is it
            self.orphans[held] = True
        path.unlink()

    @rule(lengths=st.lists(st.integers(5, 300), min_size=1, max_size=12))
    def write(self, lengths: list[int]) -> None:
        self.finish_half()
        self.put(self.fd, lengths)

    @rule(length=st.integers(10, 300))
    def half_write(self, length: int) -> None:
        self.finish_half()
        os.write(self.fd, line(self.written, length)[:20])
        self.half = (self.fd, self.written, length)
        self.written += 1
        self.stamp(self.fd)

    @rule()
    def complete(self) -> None:
        self.finish_half()

    @precondition(lambda self: self.late is not None)
    @rule(lengths=st.lists(st.integers(5, 300), min_size=1, max_size=3))
    def write_late(self, lengths: list[int]) -> None:
        assert self.late is not None
        self.finish_half()
        first = self.written
        self.put(self.late, lengths)
        self.unlooked |= set(range(first, self.written))
        if self.late in self.orphans or (self.linked and self.late != self.fd):
            self.excused |= set(range(first, self.written))
            self.unpromised |= set(range(first, self.written))

    def shift(self) -> None:
        last = self.log.with_name(f"vllm.log.{KEPT}")
        if last.exists():
            self.excused |= self.unlooked & set(numbers(last.read_bytes()))
            self.unpromised |= self.unlooked & self.excused
            is_open = self.late is not None and os.fstat(self.late).st_ino == last.stat().st_ino
            self.destroying(lambda: self.delete(last, self.late if is_open else None), last)
        for number in range(KEPT - 1, 0, -1):
            path = self.log.with_name(f"vllm.log.{number}")
            if path.exists():
                path.rename(self.log.with_name(f"vllm.log.{number + 1}"))
            if self.packed(number).exists():
                self.packed(number).rename(self.packed(number + 1))

    @rule(number=st.integers(1, KEPT))
    def pack(self, number: int) -> None:
        """Compress a rotated file: what of it was not read yet may be got from there, or is told."""
        path = self.log.with_name(f"vllm.log.{number}")
        if not path.exists():
            return
        status = path.stat()
        packed = self.packed(number)
        packed.write_bytes(gzip.compress(path.read_bytes(), 1))
        os.utime(packed, ns=(status.st_atime_ns, status.st_mtime_ns))
        self.excused |= self.unlooked & set(numbers(path.read_bytes()))
        self.unpromised |= self.unlooked & self.excused
        is_open = self.late is not None and os.fstat(self.late).st_ino == status.st_ino
        self.destroying(lambda: self.delete(path, self.late if is_open else None), path)

    @precondition(lambda self: not self.linked)
    @rule(lengths=st.lists(st.integers(5, 300), max_size=20), pieces=st.integers(0, 4))
    def pack_while_stopped(self, lengths: list[int], pieces: int) -> None:
        self.commit(pieces)
        self.finish_half()
        self.put(self.fd, lengths)
        self.rotate()
        self.pack(1)
        self.kill()

    def packed(self, number: int) -> Path:
        return self.log.with_name(f"vllm.log.{number}.gz")

    def first(self) -> Path:
        return self.log.with_name("vllm.log.1")

    @precondition(lambda self: not self.linked)
    @rule()
    def rotate(self) -> None:
        self.shift()
        self.log.rename(self.first())
        self.leave(self.fd)
        self.fd = self.fresh()

    @precondition(lambda self: not self.linked)
    @rule()
    def copy(self) -> None:
        self.shift()
        shutil.copy(self.log, self.first())
        with self.first().open("rb") as file:
            self.stamp(file.fileno())

    @rule(lengths=st.lists(st.integers(5, 300), max_size=20))
    def truncate_and_regrow(self, lengths: list[int]) -> None:
        self.destroying(lambda: os.truncate(self.fd, 0), self.log)
        self.stamp(self.fd)
        self.put(self.fd, lengths)

    @precondition(lambda self: not self.linked)
    @rule()
    def copytruncate(self) -> None:
        self.copy()
        self.truncate_and_regrow([])

    @precondition(lambda self: not self.linked)
    @rule(keeps_open=st.booleans())
    def delete_and_recreate(self, keeps_open: bool) -> None:
        old = self.fd
        if not keeps_open and self.half is not None:
            self.torn.add(self.half[1])
            self.half = None
        self.destroying(lambda: self.delete(self.log, old if keeps_open else None), self.log)
        if keeps_open:
            self.leave(old)
        else:
            os.close(old)
        self.fd = self.fresh()

    @precondition(lambda self: self.linked)
    @rule()
    def relink(self) -> None:
        old = self.fd
        seen = os.fstat(old).st_ino in self.seen

        def switch() -> None:
            self.orphans[old] = seen
            self.fd = self.fresh()

        self.destroying(switch, self.log)
        self.leave(old)

    # --- the tail

    def new_tail(self) -> Tail:
        self.seen = set()
        return Tail("log", globbed([str(self.log)]), lambda _: "log", list(self.places.values()))

    @rule(hinted=st.booleans(), passes_s=st.sampled_from((0.1, 0.5, 3.0)), commits=st.booleans())
    def wake(self, hinted: bool, passes_s: float, commits: bool) -> None:
        if commits:
            self.commit(len(self.pending))
        self.poll(passes_s, hinted=hinted)

    @rule()
    def time_passes(self) -> None:
        for _ in range(6):
            self.poll(1.0, hinted=False)

    def poll(self, passes_s: float, *, hinted: bool) -> list[Piece]:
        self.now += passes_s
        if hinted:
            self.tail.hint()
        pieces = self.tail.poll(1 << 20, self.now, WALL_S + self.now)
        self.pending += pieces
        self.torn |= {int(n) for piece in pieces for n in BEGUN.findall(piece.data)} - {
            n for piece in pieces for n in numbers(piece.data)
        }
        return pieces

    @rule(pieces=st.integers(1, 4))
    def commit(self, pieces: int) -> None:
        """Let the store take the next pieces: lines, position and gaps in one step."""
        taken, self.pending = self.pending[:pieces], self.pending[pieces:]
        for piece in taken:
            new = numbers(piece.data)
            repeated = self.stored & set(new)
            assert not repeated, f"again: {sorted(repeated)}"
            assert len(new) == len(set(new))
            self.stored |= set(new)
            self.gaps += piece.gaps
            if piece.position is not None:
                self.places[piece.position.file_id] = piece.position

    @rule()
    def kill(self) -> None:
        self.pending = []

        def end() -> None:
            self.tail.close()
            self.orphans = dict.fromkeys(self.orphans, False)

        known = self.stored
        held = {fd: numbers(self.content(fd)) for fd, seen in self.orphans.items() if seen}
        self.destroying(end, None)
        for content in held.values():
            if known & set(content):
                self.to_tell |= set(content) & self.excused - self.stored
        self.tail = self.new_tail()

    @rule()
    def restart(self) -> None:
        self.commit(len(self.pending))
        self.kill()

    @rule()
    def settle(self) -> None:
        """Let the tail read all there is: nothing is missing but what was destroyed, and then it is told."""
        self.finish_half()
        quiet = 0
        while quiet < 8:
            quiet = 0 if self.poll(2.0, hinted=True) else quiet + 1
        self.commit(len(self.pending))
        self.seen = {path.stat().st_ino for path in self.files()}
        missing = set(range(self.written)) - self.stored - self.torn
        if self.banner and self.gaps:
            self.excused |= missing & self.undecidable()  # they stay so, and are told once
        assert missing <= self.excused, f"missing: {sorted(missing - self.excused)}"
        to_tell = missing & self.to_tell - self.unpromised
        assert self.gaps or not to_tell, f"not told: {sorted(to_tell)}"
        self.to_tell, self.gaps, self.unlooked = set(), [], set()
        assert [health.state for health in self.tail.health()] == ["reading"]
        assert [health.behind_bytes for health in self.tail.health()] == [0]

    def undecidable(self) -> set[int]:
        """Return the numbers in rotated files that are too short to be told from what was lost, as documented."""
        short = (path for path in self.files() if path != self.log and path.stat().st_size < HEAD)
        return {number for path in short for number in numbers(path.read_bytes())}

    def teardown(self) -> None:
        if hasattr(self, "tail"):
            self.settle()
            self.tail.close()
        for fd in {*self.orphans, getattr(self, "fd", -1), self.late or -1} - {-1}:
            os.close(fd)
        shutil.rmtree(self.folder)


TestHistory = History.TestCase
TestHistory.settings = settings(
    max_examples=RUNS,
    derandomize="KVLOGD_TAIL_RUNS" not in os.environ,  # the short run is the same everywhere
    stateful_step_count=30,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
