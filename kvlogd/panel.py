"""What a chart of one engine, GPU or server shows, made of what was read, and the same in a line of text. Pure.

Promises few points however long the time is, with the lowest and the highest usage of neighbouring samples among them,
and holes where nothing was read. The fitted line is the finding's, see `chart.fit_of`.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from kvlogd import chart
from kvlogd.block import median
from kvlogd.model import AlertEvent, AlertState, MemorySight, Occupancy, Panel, Sight
from kvlogd.reading import GPU_SOURCE, HOST_SOURCE

MOST_CELLS = 200
"""Parts that the time is cut into; each gives two points at most."""
BEFORE_S, BEFORE_SHARE = 1800.0, 0.3
"""How much is shown of the time before it began, at least: in all, and of the time since."""
SILENT_STEPS = 3.0
"""A silence of more steps between two samples is a hole."""
SPARK_CELLS = 32
WHOLE_FROM = 0.4
"""Movement of the free share from which on bars show the whole pool."""
LIMIT_NEAR = 2.0
"""The limit of a memory is shown where it is no further off than so many times what was seen of growth."""
LEAST_ZOOM = 0.04
"""Share of the memory there is that a chart shows at least."""
LEAST_CELL_S = 90.0
"""Memory is read every half minute or minute: a shorter part of the time would be empty now and then."""
MIB_A_GIB = 1024.0
_CLOCK = "own_clock_mhz"
_BARS = "▁▂▃▄▅▆▇█"


class Seen(Protocol):
    """What is needed of a store."""

    def sights(self, label: str, start_s: float, end_s: float, cells: int) -> list[Sight]:
        """Return what was seen of an engine, two moments in each part of the time at most."""

    def memory_sights(self, scope: str, start_s: float, end_s: float, cell_s: float) -> list[MemorySight]:
        """Return the memory of a GPU or a server in each part of the time, and the usage of the pools beside it."""

    def starts(self, scope: str, start_s: float, end_s: float) -> list[float]:
        """Return when lives of the engines began in that time, but for the first."""


def read_panel(store: Seen, event: AlertEvent, at_s: float, fired_s: float | None = None) -> Panel | None:
    """Return what the chart of an alert shows at a time; None where it has no engine, or no sample.

    `fired_s` is when it fired first, where the event is a later one. Raises StoreError.
    """
    start_s = event.since_s - max(BEFORE_S, BEFORE_SHARE * (at_s - event.since_s))
    if event.source in (GPU_SOURCE, HOST_SOURCE):
        return _read_memory(store, event, start_s, at_s, fired_s)
    sights = store.sights(event.key.scope, start_s, at_s, MOST_CELLS)
    if not sights:
        return None
    panel = drawn(event, sights, store.starts(event.key.scope, start_s, at_s), (at_s - start_s) / MOST_CELLS)
    return panel if fired_s is None else panel._replace(firing_s=fired_s)


def drawn(event: AlertEvent, sights: Sequence[Sight], starts_s: Sequence[float], step_s: float) -> Panel:
    """Return the panel of some moments (at least one) that lie `step_s` apart where they were summed up."""
    shown = list(_with_holes(sights, step_s))
    is_over = event.state is AlertState.RESOLVED
    ended_s = min((at_s for at_s in starts_s if at_s > event.at_s), default=None)
    fit = None if is_over else _fit(event, sights, ended_s)
    full_in_s = event.evidence.get("full_in_s", math.inf)
    return Panel(
        event.key.scope,
        tuple(sight.at_s for sight in shown),
        tuple(None if sight.usage is None else min(1.0, max(0.0, 1.0 - sight.usage)) for sight in shown),
        tuple(sight.running for sight in shown),
        tuple(sight.waiting for sight in shown),
        event.since_s,
        event.at_s,
        tuple(starts_s),
        None if fit is None else ((fit.start_s, fit.start_free), (fit.end_s, fit.end_free)),
        event.at_s + full_in_s if fit is not None and math.isfinite(full_in_s) else None,
        event.at_s if is_over else None,
    )


def _read_memory(store: Seen, event: AlertEvent, start_s: float, at_s: float, fired_s: float | None) -> Panel | None:
    if _CLOCK in event.evidence:  # its memory has no part in it
        return None
    cell_s = max(LEAST_CELL_S, (at_s - start_s) / MOST_CELLS)
    sights = store.memory_sights(event.key.scope, start_s, at_s, cell_s)
    if all(sight.used_mib is None for sight in sights):
        return None
    panel = memory_drawn(event, sights, store.starts(event.key.scope, start_s, at_s))
    return panel if fired_s is None else panel._replace(firing_s=fired_s)


def memory_drawn(event: AlertEvent, sights: Sequence[MemorySight], starts_s: Sequence[float]) -> Panel:
    """Return the panel of the memory of a GPU or a server: it stands above, the free share of the pools below."""
    known = [sight.limit_mib for sight in sights if sight.limit_mib is not None]
    is_over = event.state is AlertState.RESOLVED
    trend = None if is_over else _memory_trend(event)
    full_in_s = event.evidence.get("full_in_s", math.inf)
    nothing: tuple[float | None, ...] = (None,) * len(sights)
    used_gib = tuple(None if sight.used_mib is None else sight.used_mib / MIB_A_GIB for sight in sights)
    limit_gib = max(known) / MIB_A_GIB if known else None
    return Panel(
        event.key.scope,
        tuple(sight.at_s for sight in sights),
        tuple(None if sight.usage is None else min(1.0, max(0.0, 1.0 - sight.usage)) for sight in sights),
        nothing,
        nothing,
        event.since_s,
        event.at_s,
        tuple(starts_s),
        trend,
        event.at_s + full_in_s if trend is not None and math.isfinite(full_in_s) else None,
        event.at_s if is_over else None,
        Occupancy(used_gib, limit_gib, event.source == GPU_SOURCE),
    )


def _memory_trend(event: AlertEvent) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Return the line of a finding of growth, from its beginning to the full memory, or to the finding."""
    facts = event.evidence
    if not {"grown_mib_per_h", "used_mib", "compared_s"} <= facts.keys():
        return None
    per_s = facts["grown_mib_per_h"] / MIB_A_GIB / 3600
    used_gib, before_s, after_s = facts["used_mib"] / MIB_A_GIB, facts["compared_s"], facts.get("full_in_s", 0.0)
    if not all(map(math.isfinite, (per_s, used_gib, before_s, after_s))):
        return None
    begin = event.at_s - before_s, max(0.0, used_gib - per_s * before_s)
    return begin, (event.at_s + after_s, used_gib + per_s * after_s)


def _with_holes(sights: Sequence[Sight], step_s: float) -> Iterator[Sight]:
    steps = sorted(later.at_s - earlier.at_s for earlier, later in pairwise(sights))
    # the two moments of a part may lie at its ends, so that neighbours are up to two parts apart
    longest_s = max(SILENT_STEPS * median(steps), 2.5 * step_s) if steps else math.inf
    yield sights[0]
    for earlier, later in pairwise(sights):
        if later.at_s - earlier.at_s > longest_s:
            yield Sight((earlier.at_s + later.at_s) / 2, None, None, None)
        yield later


def _fit(event: AlertEvent, sights: Sequence[Sight], ended_s: float | None) -> chart.Fit | None:
    points = [
        chart.Point(s.at_s, chart.Level(1 - s.usage, 1 - s.usage, 1 - s.usage), _NONE, _NONE, 0)
        for s in sights
        if s.usage is not None
    ]
    # the line between idle spells goes through them, that at equal load through the samples
    for name, among in (("usage_now", points), ("idle_usage", ())):
        if name in event.evidence:
            return chart.fit_of(event, event.evidence[name], among, ended_s)
    return None


_NONE = chart.Level(0.0, 0.0, 0.0)


class Spark(NamedTuple):
    """A line of bars: the least free share, or the most memory, in each part of the time; `·` where none was read."""

    bars: str
    marks: str
    """What happened when, to stand below the bars; empty where there is nothing to mark."""
    bottom: float
    """The free share, or the GiB, that the lowest bar stands for."""
    top: float


def spark(panel: Panel) -> Spark:
    """Return the free share as a line of text; of a GPU or a server its memory."""
    memory = panel.memory
    series = panel.free_share if memory is None else memory.used_gib
    # where there are few samples, bars without one would look like holes
    cells = min(SPARK_CELLS, max(8, sum(value is not None for value in series) // 3))
    start_s, end_s = panel.ts_s[0], panel.ts_s[-1]
    width_s = max(1e-9, (end_s - start_s) / cells)

    def cell(at_s: float) -> int:
        return min(cells - 1, max(0, int((at_s - start_s) / width_s)))

    worst: list[float | None] = [None] * cells
    for at_s, value in zip(panel.ts_s, series, strict=True):
        if value is not None:
            known = worst[cell(at_s)]
            worst[cell(at_s)] = value if known is None else (min if memory is None else max)(known, value)
    marks = ["·"] * cells
    for at_s in panel.restarts_s:
        if start_s < at_s <= end_s:
            marks[cell(at_s)] = "R"
    if start_s <= panel.firing_s < end_s - width_s:  # at the right edge it says nothing
        marks[cell(panel.firing_s)] = "^"
    legend = [words for mark, words in (("^", "^ alert"), ("R", "R restart")) if mark in marks]
    seen = [value for value in worst if value is not None]
    bottom, top = _scale(seen) if memory is None else zoom(seen, memory.limit_gib)
    bars = "".join("·" if value is None else _bar((value - bottom) / (top - bottom)) for value in worst)
    return Spark(bars, f"{''.join(marks)} {', '.join(legend)}" if legend else "", bottom, top)


def _scale(shares: Sequence[float]) -> tuple[float, float]:
    """Return from where to where the bars reach: the whole pool, or the tenths around what hardly moves in it."""
    if not shares or max(shares) - min(shares) >= WHOLE_FROM:
        return 0.0, 1.0
    bottom = min(0.9, math.floor(10 * min(shares)) / 10)
    return bottom, max(bottom + 0.1, math.ceil(10 * max(shares)) / 10)


def zoom(used_gib: Sequence[float], limit_gib: float | None) -> tuple[float, float]:
    """Return from where to where memory is shown: around what it was, never so near that what is flat looks steep.

    Up to the limit where that is not far.
    """
    low, high = min(used_gib, default=0.0), max(used_gib, default=0.0)
    if limit_gib is not None and high < limit_gib <= high + LIMIT_NEAR * (high - low):
        return max(0.0, low - 0.1 * (limit_gib - low)), limit_gib
    room = max(1.2 * (high - low), LEAST_ZOOM * (limit_gib or high), 0.1)
    bottom = max(0.0, (low + high - room) / 2)
    return bottom, bottom + room


def _bar(height: float) -> str:
    return _BARS[min(len(_BARS) - 1, max(0, round(height * (len(_BARS) - 1))))]
