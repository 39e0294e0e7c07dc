"""Everything that reads: a feed for each source of the config, revived from the store, and the batches they fill.

Thrown away and built anew from the store whenever a commit failed: nobody knows then what of it became durable.
"""

import glob
import itertools
import os
from collections.abc import Callable, Container, Iterable
from datetime import tzinfo
from functools import partial
from pathlib import Path

from kvlogd import alerts, memory
from kvlogd.alerts import Standing
from kvlogd.clock import Clock
from kvlogd.config import SourceConfig
from kvlogd.container import ContainerTail
from kvlogd.feed import SILENT_S, Feed
from kvlogd.harvest import Harvest
from kvlogd.inquiry import inquire
from kvlogd.journal import Journal
from kvlogd.model import AlertEvent, AlertState
from kvlogd.piece import Health, Tailer
from kvlogd.reading import GPU_SOURCE, HOST_SOURCE
from kvlogd.revival import Revival
from kvlogd.rows import Batch, Memory, Position
from kvlogd.scrape import Scraper
from kvlogd.setup import Setup
from kvlogd.source import shown
from kvlogd.stamp import HOST_ZONE, zone
from kvlogd.store import Store
from kvlogd.stream import Reaped, Stream
from kvlogd.tail import Tail, globbed

BUDGET_BYTES = 1 << 20
"""Bytes that are read of one source before the others have their turn."""
MOST_QUESTIONS = 5
"""Queries of rules that are asked of a log before the others have their turn: a backlog brings hundreds."""
MEMORY_S = 1800.0
"""How often the memory of the rules is stored: what was read since is read again after a crash."""


class Intake:
    """The sources at work."""

    def __init__(self, setup: Setup, store: Store, now_s: float, clock: Clock | None = None) -> None:
        self._code = memory.code(setup.rules)
        revival = Revival(store, setup.rules, self._code)
        places = store.places()
        logs = revival.logs() | {place.source for place in places}
        gone = _gone(logs, places) - revival.alerting() - {source.name for source in setup.config.sources}
        revival.leave(gone)
        logs -= gone
        clock = clock or Clock()
        self.feeds = [_feed(source, revival, places, logs, clock) for source in setup.config.sources]
        self._left = revival.standings_without([GPU_SOURCE, HOST_SOURCE, *(stream.log for stream in self.streams())])
        """Alerts about logs that no source names any more; they end with the first batch."""
        self._remembered_s: dict[str, float] = {}
        self._began_s = now_s

    def streams(self) -> list[Stream]:
        """Return the logs of all sources."""
        return [stream for feed in self.feeds for stream in feed.streams.values()]

    def poll(self, now_s: float, wall_s: float) -> int:
        """Read what is new of each source; return the most bytes that one of them had."""
        return max((feed.poll(BUDGET_BYTES, now_s, wall_s) for feed in self.feeds), default=0)

    def pending(self) -> int:
        """Return how many records wait to be stored."""
        return sum(feed.pending() for feed in self.feeds)

    def has_news(self) -> bool:
        """Tell whether an alert waits to be stored."""
        return any(feed.has_news() for feed in self.feeds)

    def behind(self) -> frozenset[str]:
        """Return the logs of which much is still to be read."""
        return frozenset(log for feed in self.feeds for log in feed.behind())

    def batch(self, now_s: float, *, is_last: bool = False, alive: Container[str] = ()) -> Batch:
        """Return what came in since the last batch; the last one holds what the rules remember, too.

        Logs that have been silent for a day are let go with it, but for those whose servers are `alive`: they cost
        memory, and logs may come under ever new names.
        """
        reaped = [pair for feed in self.feeds for pair in feed.harvest()]
        leaving = {stream.log for feed in self.feeds for stream in feed.silent(now_s) if stream.log not in alive}
        memories = [
            self._memory(stream, now_s)
            for stream, got in reaped
            if is_last or stream.log in leaving or self._is_due(stream, got, now_s)
        ]
        self._let_go(leaving)
        left, self._left = self._left, []
        return _joined([got for _, got in reaped], memories, left)

    def _let_go(self, logs: Iterable[str]) -> None:
        for log in logs:
            self._remembered_s.pop(log, None)
            for feed in self.feeds:
                if log in feed.streams:
                    feed.let_go(log)

    def _is_due(self, stream: Stream, got: Reaped, now_s: float) -> bool:
        # a memory without a life that the store knows is of no use
        return bool(got.harvest.runs) or now_s - self._remembered_s.get(stream.log, self._began_s) >= MEMORY_S

    def _memory(self, stream: Stream, now_s: float) -> Memory:
        self._remembered_s[stream.log] = now_s
        return Memory(stream.log, self._code, memory.frozen(stream.pipeline))

    def inquire(self, store: Store) -> bool:
        """Ask what the rules with a query of their own want to know, now that what was read is stored.

        Return whether anything was asked: the next batch holds what came of it.
        """
        streams = [stream for feed in self.feeds if not feed.is_reviving for stream in feed.streams.values()]
        asked = [inquire(stream.pipeline, store, MOST_QUESTIONS) for stream in streams]
        return any(asked)

    def health(self) -> list[Health]:
        """Return how all logs fare."""
        return [health for feed in self.feeds for health in feed.health()]

    def eyes(self) -> list[Health]:
        """Return how asking for /metrics fares."""
        return [eye for feed in self.feeds if (eye := feed.eye()) is not None]

    def totals(self) -> tuple[int, int]:
        """Return how many engines are alive, and how many alerts fire."""
        pipelines = [stream.pipeline for stream in self.streams()]
        standings = [standing for pipeline in pipelines for _, _, _, standing in pipeline.at_work() if standing]
        firing = sum(standing.state is AlertState.FIRING for standing in standings)
        return sum(len(pipeline.tracks()) for pipeline in pipelines), firing

    def without_evidence(self) -> list[tuple[str, str]]:
        """Return the rules, each with its scope, that have had nothing to judge for a day."""
        return [pair for stream in self.streams() for pair in stream.pipeline.without_evidence()]

    def folders(self) -> set[Path]:
        """Return the folders in which logs may come and go."""
        return {folder for feed in self.feeds for folder in feed.folders()}

    def hint(self) -> None:
        """Say that something came or went in one of the folders."""
        for feed in self.feeds:
            feed.hint()

    def close(self) -> None:
        """Let go of all files and children."""
        for feed in self.feeds:
            feed.close()


def _feed(
    source: SourceConfig, revival: Revival, places: Iterable[Position], logs: Iterable[str], clock: Clock
) -> Feed:
    mine = [log for log in logs if _is_of(source, log)]
    kept = [place for place in places if _is_of(source, place.source)]
    in_zone: tzinfo = HOST_ZONE if source.timezone is None else zone(source.timezone)
    scraper = None if source.metrics is None else Scraper(source.name, source.metrics, clock)
    tailer, has_one_log = _tailer(source, kept), not source.files or _is_one_file(source)
    return Feed(source.name, tailer, partial(revival.stream, zone=in_zone), mine, scraper, has_one_log=has_one_log)


def _is_of(source: SourceConfig, log: str) -> bool:
    return log == source.name or log.startswith(f"{source.name}/")


def _gone(logs: Iterable[str], places: Iterable[Position]) -> set[str]:
    """Return the logs whose files are gone, read to their end, a day before anything was read last.

    Nothing comes of their silence any more, and names may come ever new: each costs time and memory to revive.
    """
    seen = {place: place.seen_s or 0.0 for place in places}
    newest_s = max(seen.values(), default=0.0)
    awaited = {place.source for place, seen_s in seen.items() if not place.done or seen_s > newest_s - SILENT_S}
    return set(logs) - awaited


def _is_one_file(source: SourceConfig) -> bool:
    return len(source.files) == 1 and not glob.has_magic(source.files[0])


def _tailer(source: SourceConfig, places: list[Position]) -> Tailer:
    if source.journal is not None:
        last = next((place for place in places if place.cursor is not None), None)
        return Journal(source.name, source.journal, last)
    if source.docker is not None:
        return ContainerTail(source.name, source.docker, places)
    plain = [path for path in source.files if not glob.has_magic(path)]
    roots = [_fixed_part(path) for path in source.files if glob.has_magic(path)]
    return Tail(source.name, globbed(source.files), _name_of(source), places, plain=plain, roots=roots)


def _name_of(source: SourceConfig) -> Callable[[Path], str]:
    """Return what names the logs of a source: one that is named by its path has the source's own name.

    Others are called by their path below what all patterns have in common: no two have the same, whatever comes later.
    """
    if _is_one_file(source):
        return lambda _base: source.name
    root = os.path.commonpath([_fixed_part(pattern) for pattern in source.files])
    return lambda base: f"{source.name}/{shown(os.path.relpath(base, root))}"


def _fixed_part(pattern: str) -> str:
    """Return the folder that a pattern names before its first wildcard."""
    parts = Path(os.path.abspath(pattern)).parts  # noqa: PTH100 - resolve() would follow links to other names
    fixed = list(itertools.takewhile(lambda part: not glob.has_magic(part), parts[:-1]))
    return str(Path(*fixed))


def _joined(reaped: list[Reaped], memories: list[Memory], left: list[Standing]) -> Batch:
    harvests: list[Harvest] = [got.harvest for got in reaped]
    alert_events: list[AlertEvent] = [event for h in harvests for event in h.alert_events]
    alert_events += [event for one in left for event in alerts.end(one, one.seen_s, "source removed")]
    return Batch(
        engines=[engine for h in harvests for engine in h.engines],
        runs=[run for h in harvests for run in h.runs],
        samples=[sample for h in harvests for sample in h.samples],
        sample_runs=[run_id for h in harvests for run_id in h.sample_runs],
        events=[event for h in harvests for event in h.events],
        alert_events=alert_events,
        standings=[standing for h in harvests for standing in h.standings],
        over=[*(key for h in harvests for key in h.over), *(standing.key for standing in left)],
        gaps=[gap for got in reaped for gap in got.gaps],
        positions=[position for got in reaped for position in got.positions],
        memories=memories,
        scrapes=[scrape for h in harvests for scrape in h.scrapes],
    )
