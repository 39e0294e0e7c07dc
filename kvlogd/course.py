"""The course of one life of an engine in a bounded number of equal parts, and what is kept of it when it has ended.

Parts hold sums, so that any of them can be added up. A life that goes on doubles the length of its parts now and then:
whether it lasts minutes or weeks, its beginning and its end are some parts each. Plain data: all of it can be pickled.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import itemgetter, mul
from typing import Any, NamedTuple, TypeVar

from kvlogd.model import Stats

PART_RECORDS = 10
MOST_PARTS = 192
KEPT_PARTS = 12
"""Parts that are kept of each end of a life that is over."""
LEAST_PARTS = 4
"""A life of fewer parts is no life to compare with."""
LATEST_PARTS = 72
"""Parts of the shortest length that are kept for all who look at what comes."""


Record = TypeVar("Record")
Columns = tuple[tuple[float, ...], tuple[float, ...], tuple[int, ...], tuple[int, ...], tuple[float, ...]]
_FIRST = Stats._fields.index("prompt_tps")
_pick = itemgetter(slice(_FIRST, _FIRST + 5))


def columns_of(records: Iterable[Stats]) -> Columns:
    """Return prompt and generation rates, numbers running and waiting, and usages of some records (at least one)."""
    found: Any = tuple(zip(*map(_pick, records), strict=True))  # they stand in a record one after the other
    columns: Columns = found
    return columns


def newest(records: Sequence[Record], count: int) -> list[Record]:
    """Return the last records of a sequence that is cheap to go through from its end, oldest first."""
    found = list(islice(reversed(records), count))
    found.reverse()
    return found


class Part(NamedTuple):
    """Sums over some consecutive records."""

    start_s: float
    end_s: float
    records: int
    running: int
    squares: int
    """Of the running number."""
    waiting: int
    prompt_tps: float
    generation_tps: float
    usage: float
    running_usage: float
    """Of usage times running."""
    least_usage: float
    most_usage: float
    halted: int
    """Records in which requests ran and no token came."""
    hit_rate: float
    """At the end."""
    idle_usage: float | None
    """The least with nothing running or waiting; None where that was never so."""


def part_of(records: Sequence[Stats]) -> Part:
    """Return the part that some consecutive records make (at least one)."""
    prompts, generated, counts, waiting, usages = columns_of(records)
    idle = [usage for usage, count, queued in zip(usages, counts, waiting, strict=True) if not (count or queued)]
    halted = generated.count(0.0)
    if halted:
        halted = sum([tps == 0.0 and count > 0 for tps, count in zip(generated, counts, strict=True)])
    return Part(
        records[0].ts_s,
        records[-1].ts_s,
        len(records),
        sum(counts),
        sum(map(mul, counts, counts)),
        sum(waiting),
        sum(prompts),
        sum(generated),
        sum(usages),
        sum(map(mul, counts, usages)),
        min(usages),
        max(usages),
        halted,
        records[-1].prefix_hit_rate or 0.0,
        min(idle, default=None),
    )


def joined(parts: Sequence[Part]) -> Part:
    """Return several consecutive parts as one."""
    columns = list(zip(*parts, strict=True))
    sums = [sum(column) for column in columns[2:10]]
    idle = min([usage for usage in columns[14] if usage is not None], default=None)
    ends = [min(columns[10]), max(columns[11]), sum(columns[12]), parts[-1].hit_rate, idle]
    return Part._make([parts[0].start_s, parts[-1].end_s, *sums, *ends])


def thinned(parts: Sequence[Part], most: int) -> tuple[Part, ...]:
    """Return at most so many parts, neighbours joined."""
    n = min(most, len(parts))
    return tuple(joined(parts[i * len(parts) // n : (i + 1) * len(parts) // n]) for i in range(n))


class Course:
    """The parts of a life so far."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.records = 0
        self._each = PART_RECORDS
        self.latest: deque[Part] = deque(maxlen=LATEST_PARTS)
        """The newest parts, of `PART_RECORDS` each."""
        self._pending: list[Stats] = []
        self._short: list[Part] = []
        """Parts of the shortest length that wait for enough others to make one of the present length."""

    def observe(self, stats: Stats) -> None:
        """Take in a record."""
        self._pending.append(stats)
        if len(self._pending) < PART_RECORDS:
            return
        self.records += PART_RECORDS
        part = part_of(self._pending)
        self.latest.append(part)
        self._short.append(part)
        self._pending = []
        if len(self._short) * PART_RECORDS >= self._each:
            self.parts.append(joined(self._short))
            self._short = []
            if len(self.parts) >= MOST_PARTS:
                self.parts = [joined(self.parts[i : i + 2]) for i in range(0, len(self.parts), 2)]
                self._each *= 2

    def beginning(self) -> tuple[Part, ...]:
        """Return the first quarter of the life, but for its very first part: caches fill, load ramps up."""
        quarter = max(LEAST_PARTS, len(self.parts) // 4)
        return thinned(self.parts[1 : 1 + quarter], KEPT_PARTS)

    def ending(self) -> tuple[Part, ...]:
        """Return the last quarter."""
        quarter = max(LEAST_PARTS, len(self.parts) // 4)
        return thinned(self.parts[-quarter:], KEPT_PARTS)


class PastLife(NamedTuple):
    """What is kept of a life that is over."""

    run_id: int
    started_s: float
    ended_s: float
    records: int
    fresh: tuple[Part, ...]
    """Its beginning."""
    stale: tuple[Part, ...]
    """Its end."""
    failed: bool
    """It died, or nothing moved any more."""
