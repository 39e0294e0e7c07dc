"""Reads a journal into a store as the daemon does, and kills itself where it is told to.

`python -m tests.journal_reader STORE FOLDER|PROGRAM POINT COUNT`: POINT is `read` (after a poll, before its commit),
`commit` (right behind the commit), or `never`, with COUNT pieces before that; `never` ends once it has COUNT lines.
"""

import os
import signal
import sys
import time
from pathlib import Path

from kvlogd.envelope import Unwrapper
from kvlogd.journal import Journal
from kvlogd.model import Event, EventKind
from kvlogd.piece import Piece
from kvlogd.rows import Batch
from kvlogd.store import Store
from tests.journals import UNIT

BUDGET = 2500


def tailer(store: Store, place: Path) -> Journal:
    """Return the journal, from where the store says that it was left."""
    last = next((place for place in store.places() if place.file_id == "journal"), None)
    if place.is_dir():
        return Journal("chat", UNIT, last, directory=place)
    return Journal("chat", UNIT, last, program=str(place))


def batch(piece: Piece) -> Batch:
    """Return the rows of a piece: the N of each `seq=N`, and where reading goes on."""
    unwrapper = Unwrapper()
    inner = [unwrapper.feed(line) for line in piece.data.splitlines()]
    texts = [line.text for line in inner if line is not None]
    numbers = [float(text[4:]) for text in texts if text.startswith(b"seq=")]
    events = [(None, None, Event(1e9, EventKind.REQUEST, numbers={"seq": number})) for number in numbers]
    positions = [] if piece.position is None else [piece.position]
    return Batch(events=events, gaps=piece.gaps, positions=positions)


def main(path: Path, place: Path, point: str, count: int) -> None:
    """Read until the point comes."""
    with Store.open(path) as store:
        journal = tailer(store, place)
        pieces = lines = 0
        while True:
            got = journal.poll(BUDGET, time.monotonic(), time.time())
            for piece in got:
                pieces += 1
                if (point, pieces) == ("read", count):
                    os.kill(os.getpid(), signal.SIGKILL)
                store.commit(batch(piece))
                if (point, pieces) == ("commit", count):
                    os.kill(os.getpid(), signal.SIGKILL)
                lines += len(piece.data.splitlines())
            if point == "never" and lines >= count:
                break
            if not got:
                time.sleep(0.002)
        journal.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
