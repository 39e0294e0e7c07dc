"""What was read of one log's files that are not followed now: those at rest, and those that are gone.

A file that turns up is known by its identity, and else by content: a copy that was made before the log was
truncated, a file that came back, or was unpacked again. `head` and `marker` of a position are the evidence.
Promises: a position that no file goes on from is told as a gap, once.
Does not promise: to tell apart files that are the same up to where one of them was read; or, after a restart, a
copy shorter than 1 KiB from another file that begins alike: while a loss is open that file is passed over, as part
of the gap. Files older than the log's last reading that nothing is known of are not read.
"""

import os
import re
from collections.abc import Callable, Container, Iterable
from enum import StrEnum
from typing import NamedTuple

from kvlogd.followed import HEAD, Identity, begins, holds
from kvlogd.model import Gap
from kvlogd.piece import Piece
from kvlogd.rows import Position

LEAST_COPY = 512
"""Bytes that must agree before a new live file goes on where another one ended: banners are alike."""
SLACK_S = 5.0
"""By how much a rotated file may be older than the last reading and still be new."""
MOST_GONE = 64
"""Files that are gone of which the content is remembered."""

_FILE_ID = re.compile(r"(\d+)-(\d+)-(\d+)-(\d+)")


class Loss(StrEnum):
    """Why lines were not read; values of `gaps.reason`."""

    GONE = "rotated away before it was read"
    TRUNCATED = "truncated before it was read"
    COPIED = "perhaps written after it was copied"
    TOO_LONG = "line too long"


class _Lost(NamedTuple):
    loss: Loss
    lost_bytes: int | None


class Recall:
    """Positions of one log. `places` are those in the store."""

    def __init__(self, log: str, places: Iterable[Position]) -> None:
        self._log = log
        self.places: dict[Identity, Position] = {}
        """Up to where the files were read that stand in the folder."""
        self._gone: list[Position] = []
        self._lost: dict[Position, _Lost] = {}
        """Positions from which nothing goes on yet."""
        self._went_on: list[Piece] = []
        for place in sorted((place for place in places if _FILE_ID.fullmatch(place.file_id)), key=_age):
            identity = _identity_of(place)
            if identity in self.places:
                self.lose(self.places[identity], Loss.TRUNCATED)
            self.places[identity] = place
        seen = [place.seen_s for place in self.places.values() if place.seen_s is not None]
        self.since_s = max(seen, default=None)
        """The host's clock when the log was last read; None before anything was."""

    @property
    def is_open(self) -> bool:
        """Return whether something was lost that a file might go on from."""
        return bool(self._lost)

    def lost(self) -> list[Position]:
        """Return the positions from which nothing goes on yet."""
        return list(self._lost)

    def remembered(self) -> list[Position]:
        """Return all positions, to begin with them again."""
        return [*self._gone, *self.places.values()]

    def miss(self, there: Container[Identity]) -> None:
        """Note that only some of the files are there."""
        for identity in [identity for identity in self.places if identity not in there]:
            self.lose(self.places.pop(identity), Loss.GONE)

    def drop(self, identity: Identity) -> None:
        """Forget a place that was of another file after all."""
        place = self.places.pop(identity)
        if not place.done:
            self._went_on.append(Piece(self._log, b"", place._replace(done=True)))

    def lose(self, place: Position, loss: Loss, lost_bytes: int | None = None) -> None:
        """Note that a file does not hold any more what was read of it."""
        self._gone = [*self._gone, place][-MOST_GONE:]
        if not place.done:
            self._lost[place] = _Lost(loss, lost_bytes)

    def find(self, fd: int, size: int, *, is_live: bool) -> Position | None:
        """Return the furthest place from which a file goes on, by its content. Raises OSError.

        A file that may be the beginning of what was read further does not go on from less than a head.
        """
        least = LEAST_COPY if is_live else 1
        furthest = sorted(self._gone, key=lambda place: place.offset, reverse=True)
        best = next((place for place in furthest if least <= place.offset <= size and holds(fd, place)), None)
        if best is not None and best.offset < min(size, HEAD) and not is_live and self.is_beginning(fd, size):
            return None
        return best

    def go_on(self, place: Position, identity: Identity) -> None:
        """Note that a file goes on from there; another file is a copy, and may lack what was written after it."""
        if self._lost.pop(place, None) is not None:
            gaps = [Gap(self._log, None, Loss.COPIED, 0)] if identity != _identity_of(place) else []
            self._went_on.append(Piece(self._log, b"", place._replace(done=True), gaps))

    def is_beginning(self, fd: int, size: int) -> bool:
        """Return whether a file is shorter than what was read of another that it is a copy of. Raises OSError."""
        for place in self._gone:
            if place.offset > size:
                told = begins(fd, size, place)
                if told or (told is None and place in self._lost):
                    return True
        return False

    def is_old(self, status: os.stat_result) -> bool:
        """Return whether a file was last written before the log was last read."""
        return self.since_s is None or status.st_mtime < self.since_s - SLACK_S

    def told(self, is_read_elsewhere: Callable[[Position], bool]) -> list[Piece]:
        """Return the positions that are over, with a gap for each that no file goes on from."""
        pieces, self._went_on = self._went_on, []
        for place, lost in self._lost.items():
            gap = Gap(self._log, None, lost.loss, 0, lost.lost_bytes)
            if is_read_elsewhere(place):
                gap = Gap(self._log, None, Loss.COPIED, 0)
            pieces.append(Piece(self._log, b"", place._replace(done=True), [gap]))
        self._lost = {}
        return pieces


def _age(place: Position) -> tuple[float, int, int]:
    """Return what tells which of two positions in one file is the later."""
    at_us, serial = place.file_id.split("-")[2:]
    return place.seen_s or 0.0, int(at_us), int(serial)


def _identity_of(place: Position) -> Identity:
    device, inode = place.file_id.split("-")[:2]
    return Identity(int(device), int(inode))
