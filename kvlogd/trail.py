"""The trail of one log: the file that vLLM writes to, and those it was rotated to, as far as they are not read.

Rename rotation, copytruncate, truncation and growth past the old place, deletion, used-again inodes: all are told by
identity and content (`kvlogd.followed`, `kvlogd.recall`), never by events. Files are read oldest first.
Promises: each line once; what was lost for good is a gap with its reason, and its bytes where they are known; where
it cannot be told whether a file was read, it is not read again.
Does not promise: what only compressed copies hold any more (a gap says so), but for the rest of a file that was being
read; lines written to a deleted file after it was silent for `DRAIN_S`; to know of a file that came and went between
two looks; to see a file rewritten within one tick of the file system's clock to its old length.
"""

import errno
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from kvlogd import remnant
from kvlogd.cutter import Chunk
from kvlogd.followed import BLOCK, HEAD, Descriptors, Followed, Identity, Turn, alike, holds, looks_cut, reason
from kvlogd.model import Gap
from kvlogd.piece import Health, Piece
from kvlogd.recall import LEAST_COPY, Loss, Recall
from kvlogd.rows import Position
from kvlogd.source import Rotation
from kvlogd.unpacked import rest_of

DRAIN_S = 5.0
"""How long a renamed or deleted file must be silent before it is let go: writers change over within seconds."""
MOST_PACKED = 16
"""Compressed rotations in which it is looked for what was not read."""

_serial = count()
_LIVE = 2
"""`Rotation.rank` of the name that vLLM writes to."""


class Candidate(NamedTuple):
    """A file that stands in the folder and belongs to the log by its name."""

    path: Path
    status: os.stat_result
    is_named: bool
    """The source names it itself; otherwise it is a rotation of what is named."""
    rotation: Rotation

    @property
    def identity(self) -> Identity:
        """Return what the file system knows it by."""
        return Identity.of(self.status)

    @property
    def stamp(self) -> tuple[int, int]:
        """Return what changes when it is written to: size and mtime (ns)."""
        return self.status.st_size, self.status.st_mtime_ns


class Trail:
    """The files of one log. `places` are its positions in the store."""

    def __init__(self, name: str, places: Iterable[Position], descriptors: Descriptors) -> None:
        self.name = name
        self.files: list[Followed] = []
        """Oldest first."""
        self.wants_look = False
        """A file was truncated: what stands in the folder must be looked at before anything is read on."""
        self.taken_bytes = 0
        """How many bytes the last turn read."""
        self.recall = Recall(name, places)
        self._descriptors = descriptors
        self._settled: dict[Identity, tuple[int, int]] = {}
        """Stamps of files of which all was read: they need not be opened to see that."""
        self._passed: dict[Identity, tuple[int, int]] = {}
        """Stamps of files that were passed over: copies of the live one, which may be needed when that is cut."""
        self._there: dict[Identity, Candidate] = {}
        self._state: object = None
        """What stood there when it was last taken up."""
        self._live: Identity | None = None
        self._waiting: list[Piece] = []
        """Positions and gaps without data, for the next turn."""
        self._is_fresh = True
        """Nothing has been read since the start: of what was read before it only the store knows."""
        self._trouble = ""
        self._unpacking: Generator[int] | None = None
        """What looks for the lost in packed rotations, a step each turn; what stands in the folder waits for it."""

    @property
    def is_over(self) -> bool:
        """Return whether nothing is followed, and nothing is left to tell."""
        return not self.files and not self._waiting and self._unpacking is None

    @property
    def is_troubled(self) -> bool:
        """Return whether a file could not be read the last time."""
        return bool(self._trouble)

    # --- looking

    def reconcile(
        self, found: Sequence[Candidate], wall_s: float, *, is_whole: bool = True, packed: Sequence[Candidate] = ()
    ) -> dict[Path, str]:
        """Take up what stands in the folder now; return what cannot be read, with the reason.

        `is_whole` says that `found` is all there is: what is missing is gone. `packed` are compressed rotations.
        """
        state = (is_whole, [(candidate.path, candidate.identity, candidate.stamp) for candidate in found])
        if state == self._state and not self.wants_look:
            return {}
        self._state = None
        if self._has_cut(wall_s):  # a copy may have been made after the folder was looked at
            return {}
        self.wants_look = False
        self._there = {candidate.identity: candidate for candidate in found}
        if is_whole and found:  # nothing at all: the folder may be away for a while
            self.recall.miss(self._there)
        self._arrange(max(found, key=lambda candidate: candidate.rotation, default=None), is_whole=is_whole)
        followed = {file.identity for file in self.files}
        fresh = [candidate for candidate in found if candidate.identity not in followed]
        troubles: dict[Path, str] = {}
        # known files first: only then is it known what is missing; and of two copies the longer one
        fresh = [candidate for candidate in fresh if not self._met(candidate, self._resume, wall_s, troubles)]
        for candidate in sorted(fresh, key=lambda candidate: -candidate.status.st_size):
            self._met(candidate, self._begin, wall_s, troubles)
        self._stop_unpacking()
        if not self.wants_look and not troubles:
            older = sorted(packed, key=lambda candidate: candidate.rotation, reverse=True)
            self._unpacking = self._unpack(older, wall_s)
            next(self._unpacking, 0)
            self._state = state
        self._sort()
        return troubles

    def _sort(self) -> None:
        # a file that has no name any more was rotated away long ago
        self.files.sort(key=lambda f: (1, self._there[f.identity].rotation) if f.identity in self._there else (0,))

    def _met(
        self,
        candidate: Candidate,
        meet: Callable[[Candidate, float], bool],
        wall_s: float,
        troubles: dict[Path, str],
    ) -> bool:
        try:
            return meet(candidate, wall_s)
        except OSError as error:
            if error.errno == errno.ENOENT:  # renamed since the folder was looked at
                self.wants_look = True
            else:
                troubles[candidate.path] = reason(error)
        return True

    def _has_cut(self, wall_s: float) -> bool:
        cut = [file for file in self.files if looks_cut(file)]
        for file in cut:
            self._cut(file, wall_s)
        return bool(cut)

    def _arrange(self, newest: Candidate | None, *, is_whole: bool) -> None:
        """Note which names the files have now, and which of them is the one that vLLM writes to."""
        there, live = self._there, newest and newest.identity
        for file in self.files:
            if file.identity in there:
                file.path = there[file.identity].path
            if file.identity in there or is_whole:
                file.has_name = file.identity in there
                file.is_live = file.identity == live
        if live != self._live:
            self._live, self._passed = live, {}
        self._settled = {identity: stamp for identity, stamp in self._settled.items() if identity in there}
        self._passed = {identity: stamp for identity, stamp in self._passed.items() if identity in there}

    def _resume(self, candidate: Candidate, wall_s: float) -> bool:
        """Go on with a file that was read before; return whether it is one."""
        place = self.recall.places.get(candidate.identity)
        if place is None:
            return False
        if self._settled.get(candidate.identity) == candidate.stamp:
            return True
        with self._opened(candidate) as (fd, status):
            if status.st_size >= place.offset and holds(fd, place):
                if place.offset < HEAD:  # too little to be sure that it is the same file
                    return False
                self._follow(candidate, (fd, status), place.file_id, place.offset, wall_s)
                return True
        del self.recall.places[candidate.identity]
        self.recall.lose(place, Loss.TRUNCATED)
        return False

    def _begin(self, candidate: Candidate, wall_s: float) -> bool:
        """Begin with a file that is new, or known by its content only."""
        if self._passed.get(candidate.identity) == candidate.stamp and not self.recall.is_open:
            return True
        with self._opened(candidate) as (fd, status):
            place = self.recall.places.get(candidate.identity)
            start = self._start_of(fd, status, candidate, place)
            if start is None:
                self._passed[candidate.identity] = candidate.stamp
                return True
            if place is not None and place.offset == start:
                self._follow(candidate, (fd, status), place.file_id, start, wall_s)
                return True
            if place is not None:
                self.recall.drop(candidate.identity)
            file = self._follow(candidate, (fd, status), _file_id(candidate.identity, wall_s), start, wall_s)
            self._waiting.append(Piece(self.name, b"", file.position(self.name, wall_s, done=file.fd is None)))
        return True

    def _follow(
        self, candidate: Candidate, opened: tuple[int, os.stat_result], file_id: str, start: int, wall_s: float
    ) -> Followed:
        file = Followed(candidate.path, file_id, (os.dup(opened[0]), opened[1]), start, self._descriptors)
        self.recall.places.pop(candidate.identity, None)
        file.is_live = candidate.identity == self._live
        if file.is_live or start < opened[1].st_size:
            self.files.append(file)
            self._tell_cut(opened[0], start)
        else:
            self._settled[file.identity] = candidate.stamp
            self.recall.places[file.identity] = file.position(self.name, wall_s, done=True)
            file.close()
        return file

    def _stop_unpacking(self) -> None:
        if self._unpacking is not None:
            self._unpacking.close()
        self._unpacking = None

    def _unpack(self, packed: Sequence[Candidate], wall_s: float) -> Generator[int]:
        """Go on with files that were packed before they were read; what was packed and never begun is told.

        Yields the bytes that were unpacked so far.
        """
        used: set[Identity] = set()
        for place in sorted(self.recall.lost(), key=lambda place: -place.offset):
            for number, candidate in enumerate(packed[:MOST_PACKED] if not self._is_read(place) else ()):
                fd = yield from rest_of(candidate.path, candidate.status, place)
                if fd is None:
                    continue
                opened = fd, os.fstat(fd)
                self.recall.go_on(place, Identity.of(opened[1]))
                if candidate.identity in used:  # of two that were read of one file this is the one that fell behind
                    os.close(fd)
                    break
                used.add(candidate.identity)
                furthest = self.recall.find(fd, opened[1].st_size, is_live=False) or place
                self._follow_packed(candidate, opened, max(furthest.offset, place.offset), wall_s)
                if not all(self.recall.is_old(younger.status) for younger in packed[:number]):
                    self._waiting.append(Piece(self.name, b"", None, [Gap(self.name, None, Loss.GONE, 0)]))
                break
        self._waiting += self.recall.told(self._is_read)
        self.recall.since_s = self.recall.since_s or wall_s
        self._unpacking = None
        self._sort()

    def _follow_packed(
        self, candidate: Candidate, opened: tuple[int, os.stat_result], start: int, wall_s: float
    ) -> None:
        file_id = _file_id(Identity.of(opened[1]), wall_s)
        file = Followed(candidate.path, file_id, opened, start, self._descriptors)
        file.is_live = file.has_name = False
        self.files.append(file)
        self._waiting.append(Piece(self.name, b"", file.position(self.name, wall_s)))
        self._tell_cut(opened[0], start)

    def _tell_cut(self, fd: int, start: int) -> None:
        """Where reading begins within a line that came in parts, say that its rest is none."""
        at = max(0, start - remnant.MOST_BYTES)
        cut = remnant.cut_after(os.pread(fd, start - at, at)) if self._is_fresh and start else None
        if cut is not None:
            self._waiting.append(Piece(self.name, cut, None))

    # --- what a file is, by its content

    def _start_of(self, fd: int, status: os.stat_result, candidate: Candidate, at_least: Position | None) -> int | None:
        """Return from which byte on a file is to be read, its size for "not at all"; None leaves that open."""
        size, is_live = status.st_size, candidate.rotation.rank == _LIVE
        least = at_least.offset if at_least is not None else 0
        if is_live:
            least = max(least, self._end_of_twin(fd, size))
        else:
            if size == 0 or self._is_copy_of_live(fd, size):
                return None
            read_to = self._twin_read_to(fd, size, candidate.identity, -1 if at_least is None else least)
            if read_to is not None:  # where the other one is not read yet, this one may still be needed
                return size if read_to >= size else None
        place = self.recall.find(fd, size, is_live=is_live)
        if place is not None and place.offset > least:
            self.recall.go_on(place, candidate.identity)
            return place.offset
        if is_live:
            return least
        if self.recall.is_beginning(fd, size):
            return size
        if any(looks_cut(file) for file in self.files):  # since this look began: then it may be a copy after all
            self.wants_look = True
            return None
        is_wanted = candidate.is_named or candidate.identity == self._live or at_least is not None
        return least if is_wanted or not self.recall.is_old(status) else size

    def _end_of_twin(self, fd: int, size: int) -> int:
        """Return up to where a live file only repeats another: it was replaced by a copy of itself."""
        for file in self.files:
            length = os.fstat(file.opened()).st_size
            if LEAST_COPY <= length <= size and alike(fd, file.opened(), length):
                return length
        return 0

    def _is_copy_of_live(self, fd: int, size: int) -> bool:
        live = [file for file in self.files if file.is_live]
        return any(os.fstat(file.opened()).st_size >= size and alike(fd, file.opened(), size) for file in live)

    def _twin_read_to(self, fd: int, size: int, identity: Identity, offset: int) -> int | None:
        """Return up to where another rotated file was read that holds all of this one; None where there is none.

        Of two that were not read to the end, only one is the other's twin: the one that was read less far, or is new
        (`offset` is -1 then).
        """
        found: list[int] = []
        for file in self.files:
            if not file.is_live and os.fstat(file.opened()).st_size >= size and alike(fd, file.opened(), size):
                found.append(file.offset)
        for other, candidate in self._there.items():
            place = self.recall.places.get(other)
            if place is None or other == identity or candidate.status.st_size < size:
                continue
            if place.offset < size and (place.offset, other) < (offset, identity):
                continue
            with suppress(OSError), self._opened(candidate) as (twin, status):
                if status.st_size >= size and alike(fd, twin, size):
                    found.append(place.offset)
        return max(found, default=None)

    def _is_read(self, place: Position) -> bool:
        """Return whether a file that holds what was read up to a place is being read, or was, further than that."""
        with suppress(OSError):
            if any(file.offset >= place.offset > 0 and holds(file.opened(), place) for file in self.files):
                return True
        for identity, candidate in self._there.items():
            known = self.recall.places.get(identity)
            if known is not None and known.offset >= place.offset > 0:
                with suppress(OSError), self._opened(candidate) as (fd, _):
                    if holds(fd, place):
                        return True
        return False

    @contextmanager
    def _opened(self, candidate: Candidate) -> Iterator[tuple[int, os.stat_result]]:
        fd, status = self._descriptors.open(candidate.path)
        try:
            if Identity.of(status) != candidate.identity:
                raise FileNotFoundError(errno.ENOENT, "another file stands there now")
            yield fd, status
        finally:
            os.close(fd)

    # --- reading

    def is_at_rest(self) -> bool:
        """Return whether `read` would find nothing to do; what most logs are, most of the time."""
        is_idle = not self._waiting and self._unpacking is None
        return is_idle and len(self.files) == 1 and self.files[0].is_at_rest()

    def read(self, now_s: float, wall_s: float) -> list[Piece]:
        """Return the next block of the log, with what was lost or let go on the way."""
        if self._unpacking is not None and (done := next(self._unpacking, 0)):
            self.taken_bytes = done
            return [Piece(self.name, b"", None, unpacked_bytes=done)]
        pieces, self._waiting, self._is_fresh = self._waiting, [], False
        self._trouble = ""
        self.taken_bytes = 0
        for file in list(self.files):
            if self.wants_look:
                break
            try:
                turn = file.look(now_s)
                before = file.read_to
                turn, chunk = file.read(now_s) if turn is Turn.READ else (turn, None)
                self.taken_bytes = min(BLOCK, file.read_to - before)
                if turn is Turn.CUT:
                    self._cut(file, wall_s)
            except OSError as error:
                self._failed(file, error, wall_s)
                break
            if chunk is not None:
                pieces.append(self._piece(file, chunk, wall_s))
            if turn is not Turn.RESTING:
                break
            if not file.is_live and file.quiet_since_s is not None and now_s - file.quiet_since_s >= DRAIN_S:
                pieces.append(self._let_go(file, wall_s))
        return pieces

    def _piece(self, file: Followed, chunk: Chunk, wall_s: float, *, done: bool = False) -> Piece:
        gaps = [Gap(self.name, None, Loss.TOO_LONG, chunk.cut_lines)] if chunk.cut_lines else []
        position = file.position(self.name, wall_s, done=done)
        return Piece(self.name, chunk.data, position, gaps, chunk.partial, file.mtime_s)

    def _cut(self, file: Followed, wall_s: float) -> None:
        """Begin anew with a file that was truncated."""
        self.recall.lose(file.position(self.name, wall_s), Loss.TRUNCATED, file.behind_bytes or None)
        self.files[self.files.index(file)] = file.anew(_file_id(file.identity, wall_s))
        self.wants_look = True

    def _let_go(self, file: Followed, wall_s: float) -> Piece:
        """End a file that will not grow any more: its last line may lack the newline."""
        chunk = file.rest() or Chunk(file.offset, b"", file.offset)
        piece = self._piece(file, chunk, wall_s, done=True)
        file.close()
        self.files.remove(file)
        if piece.position is not None and file.has_name:
            self.recall.places[file.identity] = piece.position
        elif piece.position is not None:  # another file may get its inode at once
            self.recall.lose(piece.position, Loss.GONE)
        if file.stamp is not None:
            self._settled[file.identity] = file.stamp
        return piece

    def _failed(self, file: Followed, error: OSError, wall_s: float) -> None:
        """Note why a file cannot be read; one that is gone is given up."""
        file.close()
        self._trouble = reason(error)
        if error.errno in (errno.ENOENT, errno.ESTALE):
            self.wants_look = True
        if error.errno == errno.ENOENT and not file.has_name:
            self.files.remove(file)
            self.recall.lose(file.position(self.name, wall_s), Loss.GONE, file.behind_bytes or None)

    def health(self) -> Health:
        """Return how the log fares."""
        behind = sum(file.behind_bytes for file in self.files)
        if self._trouble:
            return Health(self.name, "unreadable", behind, self._trouble)
        return Health(self.name, "reading" if self.files else "waiting", behind)

    def close(self) -> None:
        """Let go of all files."""
        self._stop_unpacking()
        for file in self.files:
            file.close()


def _file_id(identity: Identity, wall_s: float) -> str:
    """Return a name for a file that no other has had: inodes are used again."""
    return f"{identity.device}-{identity.inode}-{int(wall_s * 1e6)}-{next(_serial)}"
