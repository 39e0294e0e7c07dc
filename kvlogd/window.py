"""What is remembered of one run while it lives: enough for every rule, never more than a bound.

Fed with records in order of their own time; reads no clock. Memory and the cost of a record do not grow with age.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kvlogd.course import LEAST_PARTS, Course, PastLife, newest
from kvlogd.eyes import Eyes, as_record
from kvlogd.model import Event, EventKind, Run, Scrape, Stats
from kvlogd.quantity import Unit
from kvlogd.spells import Spells

CROWDED = 0.8
"""A pool that is less full has not evicted a request lately."""
RECENT = 720
"""Records that are kept whole: 2 hours at vLLM's default interval of 10 s."""
HANGS_S = 180.0
"""A life that ends with requests and, for this long, no throughput has failed."""


MUTE_S = 120.0
"""A log without a record of its life, while tokens are counted for so long, has its records switched off."""


class Window:
    """The memory of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.recent: deque[Stats] = deque(maxlen=RECENT)
        self.last: Stats | None = None
        self.first_s = run.started_s
        self.count = 0
        self.idled = 0
        """Number of the latest record with nothing running or waiting, counted from 1; 0: there was none."""
        self.crowded = 0
        """The same of the latest record with a pool as full as `CROWDED`."""
        self.strained = 0
        """The same of the latest record with such a pool, with a queue, or with work and no throughput."""
        self.interval_s: float | None = None
        """The usual time between two records: the smallest gap that came twice running."""
        self.zero_since_s: float | None = None
        """Time of the first of the latest records that have work (running or waiting) and no throughput at all."""
        self.frozen_since_s: float | None = None
        """Time of the first of the latest records that repeat each other bit by bit, with work and no throughput."""
        self.events: dict[EventKind, deque[float]] = {}
        self.course = Course()
        self.spells = Spells()
        self.past: tuple[PastLife, ...] = ()
        """The engine's lives before this one, the latest last."""
        self.killed = False
        """The system killed its process for want of memory."""
        self.crashed_s: float | None = None
        self.stopped = False
        self.paused = False
        """Put to sleep or paused on purpose: requests wait and nothing moves, and that is no stall."""
        self.peers: dict[int, Window] = {}
        """The windows of all present runs of the source by run, this one among them: shared, for rules that compare."""
        self.eyes = Eyes()
        """What /metrics told of it; nothing where it is not read."""
        self.is_logged = False
        """The log has a record of this life."""
        self.is_stood_in_for = False
        """It has none, and tokens are counted: each scrape is taken for one."""
        self._gap_s = 0.0
        self._fresh: dict[int, list[Stats]] = {}
        """By how many were taken; the list of each is there for all who ask."""
        self._fresh_of = 0

    @property
    def has_connector(self) -> bool | None:
        """Whether a KV connector may lease blocks; None: not known."""
        return self.run.kv_connector

    def fresh(self, taken: int) -> list[Stats]:
        """Return the records after the first `taken` ones, as far as they are remembered: one list for all who ask."""
        if self._fresh_of != self.count:
            self._fresh, self._fresh_of = {}, self.count
        if taken not in self._fresh:
            self._fresh[taken] = newest(self.recent, self.count - taken)
        return self._fresh[taken]

    def scraped(self, scrape: Scrape, at_s: float) -> None:
        """Take in what /metrics told at a time of the log; where the log tells nothing, it stands in for it."""
        self.eyes.observe(scrape, at_s)
        if not self.is_logged and (self.eyes.unlogged_for_s(at_s) or 0.0) >= MUTE_S:
            self.is_stood_in_for = True
        if self.is_stood_in_for and (stats := as_record(scrape)) is not None:
            self._take(stats)

    def observe(self, stats: Stats) -> None:
        """Take in the next record of the log."""
        self.is_logged, self.is_stood_in_for = True, False
        if stats.generation_tps or stats.prompt_tps:
            self.eyes.logged(stats.ts_s)
        self._take(stats)

    def _take(self, stats: Stats) -> None:
        last = self.last
        if last is not None:
            gap_s = stats.ts_s - last.ts_s
            if gap_s == self._gap_s:
                if gap_s > 0.0 and (self.interval_s is None or gap_s < self.interval_s):
                    self.interval_s = gap_s
            else:
                self._gap_s = gap_s
        self.last = stats
        self.count += 1
        if stats.kv_usage >= CROWDED:
            self.crowded = self.strained = self.count
        elif stats.waiting:
            self.strained = self.count
        self.recent.append(stats)
        self.course.observe(stats)
        if stats.running or stats.waiting:
            if stats.prompt_tps or stats.generation_tps:
                self.zero_since_s = self.frozen_since_s = None
                self.paused = self.stopped = False
                self.crashed_s = None
            else:
                self._standstill(stats, last)
        else:
            self.zero_since_s = self.frozen_since_s = None
            self.spells.observe(stats, self.interval_s, worked=self.idled != self.count - 1)
            self.idled = self.count

    def _standstill(self, stats: Stats, last: Stats | None) -> None:
        self.strained = self.count
        if self.zero_since_s is None:
            self.zero_since_s = stats.ts_s
        if last is None or last[4:] != stats[4:]:
            self.frozen_since_s = None
        elif self.frozen_since_s is None:
            self.frozen_since_s = last.ts_s

    def event(self, event: Event, at_s: float) -> None:
        """Take in an event of this run; `at_s` is its time, or that of the last stamped line before it."""
        times = self.events.setdefault(event.kind, deque(maxlen=1000))
        times.append(at_s)
        if event.kind is EventKind.CRASH and self.crashed_s is None and not self.stopped:
            self.crashed_s = at_s
        elif event.kind is EventKind.STOP:
            self.stopped = True
        elif event.kind is EventKind.KILLED:
            self.killed = True
        elif event.kind in (EventKind.SLEEP, EventKind.PAUSE):
            self.paused = True
        elif event.kind is EventKind.WAKE:
            self.paused = False
            # patience begins anew: what waited while it slept was not the engine's fault
            self.zero_since_s = at_s if self.zero_since_s is not None else None

    def ended(self, at_s: float) -> PastLife | None:
        """Return what is kept of this life now that it is over; None where it was too short to be one."""
        course, last = self.course, self.last
        if last is None or len(course.parts) < LEAST_PARTS:
            return None
        dead = self.killed or self.crashed_s is not None
        failed = dead or (self.zero_since_s is not None and not self.paused and at_s - self.zero_since_s >= HANGS_S)
        run = self.run
        return PastLife(
            run.run_id, run.started_s, last.ts_s, course.records, course.beginning(), course.ending(), failed
        )

    def since(self, start_s: float) -> list[Stats]:
        """Return the kept records from `start_s` on, oldest first."""
        found = []
        for stats in reversed(self.recent):
            if stats.ts_s < start_s:
                break
            found.append(stats)
        found.reverse()
        return found

    def pool_tokens(self) -> int | None:
        """Return how many tokens the pool holds; None where the start-up lines do not say."""
        run = self.run
        return run.kv_tokens or (run.blocks * (run.block_size or 16) if run.blocks else None)

    def silent_s(self, at_s: float) -> float:
        """Return the seconds since the last record."""
        return at_s - self.last.ts_s if self.last is not None else at_s - self.first_s


class SourceWindow:
    """What is remembered of a whole source: whether kvlogd can see at all."""

    def __init__(self) -> None:
        self.stats_lines = 0
        self.unparsed = 0
        self.impossible = 0
        self._counted = (0, 0)
        """Lines that were read, and that were not, when counting began."""
        self.stats_off_s: float | None = None
        """When the log said that statistics are switched off, for the present life."""
        self.ready_s: float | None = None
        self.requests_unseen = 0
        """Requests answered since the server was ready, or since the last stats record."""
        self.engines: dict[int, Window] = {}
        """The windows of the present runs, by run."""

    def is_suspect(self) -> bool:
        """Return whether there is anything to judge: no record since the server was ready, or lines not understood."""
        return self.stats_off_s is not None or self.ready_s is not None or bool(self.unparsed or self.impossible)

    def blind_for_s(self, at_s: float) -> float | None:
        """Return for how long requests have been served, or statistics been off, without any record; None if not."""
        if self.stats_off_s is not None:
            return at_s - self.stats_off_s
        if self.ready_s is not None and self.requests_unseen >= 20:
            return at_s - self.ready_s
        return None

    def count_anew(self) -> None:
        """Begin the share of unread lines anew: months of good lines must not hide that a new vLLM writes others."""
        self._counted = self.stats_lines, self.unparsed + self.impossible

    def unread_share(self) -> float | None:
        """Return the share of stats-like lines that could not be read; None below twenty lines."""
        read, unread = self._counted
        bad = self.unparsed + self.impossible - unread
        seen = self.stats_lines - read + bad
        return bad / seen if seen >= 20 else None


Read = Callable[[Window, float], float | None]


class Signal(NamedTuple):
    """A number that rules may name: its unit, what it is, and how to read it of a window at a time."""

    unit: Unit
    what: str
    read: Read
    column: str | None = None
    """The field of `Stats` it is, where it is one: those have a history that can be averaged."""
    of_scrapes: bool = False
    """Nothing can come of it before /metrics was read for as long as it asks for."""
    of_records: bool = False
    """It is a time that begins with a record of the log, and with none before the latest."""


def _column(unit: Unit, what: str, name: str) -> Signal:
    index = Stats._fields.index(name)

    def read(window: Window, _at_s: float) -> float | None:
        return None if window.last is None else window.last[index]

    return Signal(unit, what, read, name)


def _since(attribute: str) -> Read:
    def read(window: Window, at_s: float) -> float | None:
        since_s: float | None = getattr(window, attribute)
        return None if since_s is None else at_s - since_s

    return read


def _free_share(window: Window, _at_s: float) -> float | None:
    return None if window.last is None else 1.0 - window.last.kv_usage


def _load(window: Window, _at_s: float) -> float | None:
    return None if window.last is None else float(window.last.running + window.last.waiting)


SIGNALS: Mapping[str, Signal] = {
    "kv_usage": _column(Unit.SHARE, "share of the KV-cache blocks in use", "kv_usage"),
    "kv_free_share": Signal(Unit.SHARE, "share of the KV-cache blocks that are free", _free_share, "kv_usage"),
    "running": _column(Unit.COUNT, "requests running", "running"),
    "waiting": _column(Unit.COUNT, "requests waiting, deferred ones included", "waiting"),
    "deferred": _column(Unit.COUNT, "requests waiting that may not be scheduled yet", "deferred"),
    "swapped": _column(Unit.COUNT, "requests swapped out (V0)", "swapped"),
    "load": Signal(Unit.COUNT, "requests running and waiting", _load),
    "prompt_tps": _column(Unit.TOKENS_PER_SECOND, "prompt tokens a second", "prompt_tps"),
    "generation_tps": _column(Unit.TOKENS_PER_SECOND, "generated tokens a second", "generation_tps"),
    "prefix_hit_rate": _column(Unit.SHARE, "share of prompt tokens found in the prefix cache", "prefix_hit_rate"),
    "frozen_for": Signal(
        Unit.SECONDS,
        "for how long the records have repeated bit by bit, with requests in them and no throughput",
        _since("frozen_since_s"),
        of_records=True,
    ),
    "log_stopped_for": Signal(
        Unit.SECONDS,
        "for how long /metrics has counted tokens of which the log has no record",
        lambda window, at_s: window.eyes.unlogged_for_s(at_s),
        of_scrapes=True,
    ),
    "metrics_frozen_for": Signal(
        Unit.SECONDS,
        "for how long the log has told of tokens that /metrics does not count",
        lambda window, at_s: window.eyes.unscraped_for_s(at_s),
        of_scrapes=True,
    ),
    "standstill_for": Signal(
        Unit.SECONDS,
        "since when the records have requests in them and no throughput",
        _since("zero_since_s"),
        of_records=True,
    ),
}

SourceRead = Callable[[SourceWindow, float], float | None]


class SourceSignal(NamedTuple):
    """A number about a whole source that rules may name."""

    unit: Unit
    what: str
    read: SourceRead


SOURCE_SIGNALS: Mapping[str, SourceSignal] = {
    "blind_for": SourceSignal(
        Unit.SECONDS,
        "for how long requests were served, or statistics were switched off, without any stats record",
        SourceWindow.blind_for_s,
    ),
    "unread_share": SourceSignal(
        Unit.SHARE,
        "share of the stats-like lines that could not be read or held impossible values",
        lambda window, _at_s: window.unread_share(),
    ),
}
