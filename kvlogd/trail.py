"""The trail of one log: the file that vLLM writes to, and those it was rotated to, as far as they are not read.

Rename rotation, copytruncate, truncation and growth past the old place, deletion, used-again inodes: all are told by
identity and content (`kvlogd.followed`), never by events. Files are read oldest first.
Promises: each line once; what was lost for good is a gap with its reason, and its bytes where they are known.
Does not promise: lines written to a deleted file after it was silent for `DRAIN_S`.
"""

import errno
import os
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import NamedTuple

from kvlogd.cutter import Chunk
from kvlogd.followed import Followed, Identity, Turn, has_head, holds, open_regular
from kvlogd.model import Gap
from kvlogd.piece import Health, Piece
from kvlogd.rows import Position
from kvlogd.source import Rotation

DRAIN_S = 5.0
"""How long a renamed or deleted file must be silent before it is let go: writers change over within seconds."""
SLACK_S = 5.0
"""By how much a rotated file may be older than the last look before a restart and still be new."""
LEAST_COPY = 512
"""Bytes that must agree before a file is taken for the copy of another."""

_serial = count()
_FILE_ID = re.compile(r"\d+-\d+-")


class Loss(StrEnum):
    """Why lines were not read; values of `gaps.reason`."""

    GONE = "rotated away before it was read"
    TRUNCATED = "truncated before it was read"
    TOO_LONG = "line too long"


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


class Trail:
    """The files of one log. `places` are its positions in the store."""

    def __init__(self, name: str, places: Iterable[Position]) -> None:
        self.name = name
        self.files: list[Followed] = []
        """Oldest first."""
        self.wants_look = False
        """A file was truncated: what stands in the folder must be looked at before anything is read on."""
        self._places: dict[Identity, Position] = {}
        """Up to where the files were read that are not followed now."""
        for place in sorted(places, key=lambda place: place.seen_s or 0.0):
            if _FILE_ID.match(place.file_id):
                self._places[_identity_of(place)] = place
        self._seen_s = max((place.seen_s or 0.0 for place in self._places.values()), default=None)
        """The host's clock when the log was last read before this start; None for a log that is new."""
        self._is_first_look = True
        self._settled: dict[Identity, tuple[int, int]] = {}
        """Size and mtime (ns) of files with nothing to read: they need not be opened to see that."""
        self._lost: dict[Position, Loss] = {}
        """Where reading stood in files whose content is gone: a copy may hold what came behind."""
        self._waiting: list[Piece] = []
        """Positions and gaps without data, for the next turn."""
        self._trouble = ""

    # --- looking

    def reconcile(self, found: Sequence[Candidate], wall_s: float) -> dict[Path, str]:
        """Take up what stands in the folder now; return what cannot be read, with the reason."""
        troubles: dict[Path, str] = {}
        for file in [file for file in self.files if file.is_cut()]:
            self._cut(file, wall_s)
        ordered = sorted(found, key=lambda candidate: candidate.rotation)
        there = {candidate.identity: candidate for candidate in reversed(ordered)}
        followed = {file.identity for file in self.files}
        fresh = [candidate for identity, candidate in there.items() if identity not in followed]
        if self._is_first_look:
            self._lost = {self._places.pop(i): Loss.GONE for i in list(self._places) if i not in there}
        # those that were read before come first: only then is it known what is missing
        for candidate in sorted(fresh, key=lambda candidate: candidate.identity not in self._places):
            try:
                self._meet(candidate, wall_s, is_live=candidate is ordered[-1])
            except OSError as error:
                if error.errno != errno.ENOENT:
                    troubles[candidate.path] = reason(error)
        self._tell_lost()
        self._places = {identity: place for identity, place in self._places.items() if identity in there}
        self._arrange(there, ordered)
        self._is_first_look = self.wants_look = False
        return troubles

    def _meet(self, candidate: Candidate, wall_s: float, *, is_live: bool) -> None:
        """Begin to follow a file that is not followed, if there is something in it that was not read."""
        identity, status = candidate.identity, candidate.status
        stamp = (status.st_size, status.st_mtime_ns)
        if self._settled.get(identity) == stamp and not self._lost:
            return
        fd, status = open_regular(candidate.path)
        start = self._start_of(fd, status, identity, is_wanted=candidate.is_named or is_live)
        place = self._places.pop(identity, None)
        goes_on = place is not None and place.offset == start > 0
        file_id = place.file_id if place is not None and goes_on else _file_id(identity, wall_s)
        file = Followed(candidate.path, file_id, fd, status, start)
        if start < status.st_size or is_live:
            self.files.append(file)
        else:
            self._settle(file, stamp, wall_s)
        if not goes_on:
            self._waiting.append(Piece(self.name, b"", file.position(self.name, wall_s, done=file.fd is None)))

    def _settle(self, file: Followed, stamp: tuple[int, int], wall_s: float) -> None:
        """Leave a file alone until it grows."""
        file.close()
        self._settled[file.identity] = stamp
        self._places[file.identity] = file.position(self.name, wall_s, done=True)

    def _start_of(self, fd: int, status: os.stat_result, identity: Identity, *, is_wanted: bool) -> int:
        """Return from which byte on a file is to be read: its size, where nothing of it is."""
        place = self._places.get(identity)
        if place is not None:
            if status.st_size >= place.offset and holds(fd, place):
                return place.offset
            del self._places[identity]
            self._lost[place] = Loss.TRUNCATED
        for lost in self._lost:
            if lost.offset >= (LEAST_COPY if is_wanted else 1) and status.st_size >= lost.offset and holds(fd, lost):
                del self._lost[lost]
                self._waiting.append(Piece(self.name, b"", lost._replace(done=True)))
                return lost.offset
        if is_wanted:
            return 0
        is_old = self._is_first_look and not self._is_new(status)
        return status.st_size if is_old or self._is_copy(fd, status) else 0

    def _is_copy(self, fd: int, status: os.stat_result) -> bool:
        """Return whether a rotated file only repeats what was read, or is being read, elsewhere."""
        if any(lost.offset and has_head(fd, lost) for lost in self._lost):
            return True
        known = [*self._places.values(), *(file.position(self.name, 0.0) for file in self.files)]
        return any(p.offset >= LEAST_COPY and status.st_size >= p.offset and holds(fd, p) for p in known)

    def _is_new(self, status: os.stat_result) -> bool:
        """Return whether a rotated file that is not known was written since the log was last read."""
        return self._seen_s is not None and status.st_mtime >= self._seen_s - SLACK_S

    def _tell_lost(self) -> None:
        """Count what no file holds any more."""
        for place, loss in self._lost.items():
            gaps = [] if place.done else [Gap(self.name, None, loss, 0)]
            self._waiting.append(Piece(self.name, b"", place._replace(done=True), gaps))
        self._lost = {}

    def _arrange(self, there: dict[Identity, Candidate], ordered: Sequence[Candidate]) -> None:
        """Bring the files in order of age, and note which of them is the one that vLLM writes to."""
        live = ordered[-1].identity if ordered else None
        for file in self.files:
            if file.identity in there:
                file.path = there[file.identity].path
            file.is_live = file.identity == live
        # a file that has no name any more was rotated away long ago
        self.files.sort(key=lambda f: (1, there[f.identity].rotation) if f.identity in there else (0,))
        self._settled = {identity: stamp for identity, stamp in self._settled.items() if identity in there}

    # --- reading

    def read(self, now_s: float, wall_s: float) -> list[Piece]:
        """Return the next block of the log, with what was lost or let go on the way."""
        pieces, self._waiting = self._waiting, []
        self._trouble = ""
        for file in list(self.files):
            if self.wants_look:
                break
            try:
                turn, chunk = self._turn(file, now_s)
                if turn is Turn.CUT:
                    self._cut(file, wall_s)
            except OSError as error:
                pieces += self._failed(file, error, wall_s)
                break
            if chunk is not None:
                pieces.append(self._piece(file, chunk, wall_s))
            if turn is not Turn.RESTING:
                break
            if not file.is_live and file.quiet_since_s is not None and now_s - file.quiet_since_s >= DRAIN_S:
                pieces += self._let_go(file, wall_s)
        return pieces

    def _turn(self, file: Followed, now_s: float) -> tuple[Turn, Chunk | None]:
        turn = file.look(now_s)
        return file.read(now_s) if turn is Turn.READ else (turn, None)

    def _piece(self, file: Followed, chunk: Chunk, wall_s: float, *, done: bool = False) -> Piece:
        gaps = [Gap(self.name, None, Loss.TOO_LONG, chunk.cut_lines)] if chunk.cut_lines else []
        position = file.position(self.name, wall_s, done=done)
        return Piece(self.name, chunk.data, position, gaps, chunk.partial, file.mtime_s)

    def _cut(self, file: Followed, wall_s: float) -> None:
        """Begin anew with a file that was truncated."""
        self._lost[file.position(self.name, wall_s)] = Loss.TRUNCATED
        fd, status = file.handed_over()
        self.files[self.files.index(file)] = Followed(file.path, _file_id(file.identity, wall_s), fd, status)
        self.wants_look = True

    def _let_go(self, file: Followed, wall_s: float) -> list[Piece]:
        """End a file that will not grow any more: its last line may lack the newline."""
        chunk = file.rest() or Chunk(file.offset, b"", file.offset)
        piece = self._piece(file, chunk, wall_s, done=True)
        file.close()
        self.files.remove(file)
        if piece.position is not None:
            self._places[file.identity] = piece.position
        return [piece]

    def _failed(self, file: Followed, error: OSError, wall_s: float) -> list[Piece]:
        """Note why a file cannot be read; one that is gone is given up."""
        file.close()
        self._trouble = reason(error)
        if error.errno != errno.ENOENT or file.is_live:
            self.wants_look = True
            return []
        self.files.remove(file)
        gap = Gap(self.name, None, Loss.GONE, 0, file.behind_bytes or None)
        return [Piece(self.name, b"", file.position(self.name, wall_s, done=True), [gap])]

    def health(self) -> Health:
        """Return how the log fares."""
        behind = sum(file.behind_bytes for file in self.files)
        if self._trouble:
            return Health(self.name, "unreadable", behind, self._trouble)
        return Health(self.name, "reading" if self.files else "waiting", behind)

    def close(self) -> None:
        """Let go of all files."""
        for file in self.files:
            file.close()


def reason(error: OSError) -> str:
    """Return why a file cannot be read, and what to do about it, without its name."""
    mends = {
        errno.EACCES: "let kvlogd's user read it, e.g. through the group adm",
        errno.EISDIR: "only regular files are followed",
        errno.ELOOP: "its links lead in a circle",
        errno.EMFILE: "raise LimitNOFILE= of the unit",
    }
    return ": ".join(filter(None, (os.strerror(error.errno or 0), mends.get(error.errno or 0, ""))))


def _identity_of(place: Position) -> Identity:
    device, inode = place.file_id.split("-")[:2]
    return Identity(int(device), int(inode))


def _file_id(identity: Identity, wall_s: float) -> str:
    """Return a name for a file that no other has had: inodes are used again."""
    return f"{identity.device}-{identity.inode}-{int(wall_s * 1e6)}-{next(_serial)}"
