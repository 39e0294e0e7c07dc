"""What a chart of one engine shows, made of its samples, and the same in a line of text. Pure.

Promises few points however long the time is, with the lowest and the highest usage of neighbouring samples among them,
and holes where nothing was read. The fitted line is the finding's, see `chart.fit_of`.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from kvlogd import chart
from kvlogd.curve import median
from kvlogd.model import AlertEvent, AlertState, Panel, Sight

MOST_CELLS = 200
"""Parts that the time is cut into; each gives two points at most."""
BEFORE_S, BEFORE_SHARE = 1800.0, 0.3
"""How much is shown of the time before it began, at least: in all, and of the time since."""
SILENT_STEPS = 3.0
"""A silence of more steps between two samples is a hole."""
SPARK_CELLS = 32
WHOLE_FROM = 0.4
"""Movement of the free share from which on bars show the whole pool."""
_BARS = "▁▂▃▄▅▆▇█"


class Seen(Protocol):
    """What is needed of a store."""

    def sights(self, label: str, start_s: float, end_s: float, cells: int) -> list[Sight]:
        """Return what was seen of an engine, two moments in each part of the time at most."""

    def starts(self, label: str, start_s: float, end_s: float) -> list[float]:
        """Return when the engine's lives began in that time, but for its first."""


def read_panel(store: Seen, event: AlertEvent, at_s: float, fired_s: float | None = None) -> Panel | None:
    """Return what the chart of an alert shows at a time; None where it has no engine, or no sample.

    `fired_s` is when it fired first, where the event is a later one. Raises StoreError.
    """
    start_s = event.since_s - max(BEFORE_S, BEFORE_SHARE * (at_s - event.since_s))
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
    """A line of bars: the least free share in each part of the time; `·` where nothing was read."""

    bars: str
    marks: str
    """What happened when, to stand below the bars; empty where there is nothing to mark."""
    bottom: float
    """The free share that the lowest bar stands for."""
    top: float


def spark(panel: Panel) -> Spark:
    """Return the free share as a line of text."""
    # where there are few samples, bars without one would look like holes
    cells = min(SPARK_CELLS, max(8, sum(share is not None for share in panel.free_share) // 3))
    start_s, end_s = panel.ts_s[0], panel.ts_s[-1]
    width_s = max(1e-9, (end_s - start_s) / cells)

    def cell(at_s: float) -> int:
        return min(cells - 1, max(0, int((at_s - start_s) / width_s)))

    lowest: list[float | None] = [None] * cells
    for at_s, share in zip(panel.ts_s, panel.free_share, strict=True):
        if share is not None:
            known = lowest[cell(at_s)]
            lowest[cell(at_s)] = share if known is None else min(known, share)
    marks = ["·"] * cells
    for at_s in panel.restarts_s:
        if start_s < at_s <= end_s:
            marks[cell(at_s)] = "R"
    if start_s <= panel.firing_s < end_s - width_s:  # at the right edge it says nothing
        marks[cell(panel.firing_s)] = "^"
    legend = [words for mark, words in (("^", "^ alert"), ("R", "R restart")) if mark in marks]
    bottom, top = _scale([share for share in lowest if share is not None])
    bars = "".join("·" if share is None else _bar((share - bottom) / (top - bottom)) for share in lowest)
    return Spark(bars, f"{''.join(marks)} {', '.join(legend)}" if legend else "", bottom, top)


def _scale(shares: Sequence[float]) -> tuple[float, float]:
    """Return from where to where the bars reach: the whole pool, or the tenths around what hardly moves in it."""
    if not shares or max(shares) - min(shares) >= WHOLE_FROM:
        return 0.0, 1.0
    bottom = min(0.9, math.floor(10 * min(shares)) / 10)
    return bottom, max(bottom + 0.1, math.ceil(10 * max(shares)) / 10)


def _bar(height: float) -> str:
    return _BARS[min(len(_BARS) - 1, max(0, round(height * (len(_BARS) - 1))))]
