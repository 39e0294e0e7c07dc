"""A run under watch, and what is read back of one that had not ended. Pure."""

from collections.abc import Iterable, Iterator
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
    """Yield the lines of a run with their time and its track."""
    for line in lines:
        yield line.ts_s or 0.0, track, line
