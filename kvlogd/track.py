"""A run under watch, and what is read back of one that had not ended. Pure."""

from collections.abc import Iterable, Iterator
from math import inf
from typing import NamedTuple

from kvlogd.engines import Life
from kvlogd.evaluate import Bench
from kvlogd.model import Engine, Event, Run, Scrape, Stats
from kvlogd.window import Window

Past = tuple[Engine, Run, Iterable[Stats | Event | Scrape]]
"""A run that had not ended, with what is stored of it."""


class Track(NamedTuple):
    """A run under watch."""

    life: Life
    window: Window
    bench: Bench


def dated(
    track: Track, lines: Iterable[Stats | Event | Scrape]
) -> Iterator[tuple[float, Track, Stats | Event | Scrape]]:
    """Yield the lines of a run with their time and its track, but for events that its memory has counted already."""
    counted_s = {kind: times[-1] for kind, times in track.window.events.items()}
    for line in lines:
        at_s = line.ts_s or 0.0
        if not (isinstance(line, Event) and at_s <= counted_s.get(line.kind, -inf)):
            yield at_s, track, line
