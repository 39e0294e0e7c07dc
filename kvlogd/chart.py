"""One engine's chart as inline SVG: free blocks above, requests below, on one time axis. Pure: values in, text out.

The data lie in nested drawings that stretch with the page, everything else in per cent and pixels, so that letters and
lines keep their size from a phone to a printed page. Colours are classes of the page's style sheet. Promises that only
finite numbers and escaped labels get in. Does not promise to show each record: the caller sums records up to points.
"""

import html
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

from kvlogd.model import AlertEvent

X_UNITS, Y_UNITS = 2000, 1000
FREE_PX, REQUESTS_PX, BETWEEN_PX, AXIS_PX, LANE_PX, TITLE_PX = 150, 90, 44, 22, 17, 20
NARROW_PX, LETTER_PX, MARGIN_PX = 236.0, 6.3, 72.0
"""Width of the plot on a phone, of a letter, and of the margin to the right: what labels are laid out for."""
MOST_LANES, MOST_TICKS, LABEL_PX = 6, 8, 14
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)
_DAY_S = 86400
_STEPS_DAYS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)

STYLE = """
:root{color-scheme:light dark;--page:#f5f6f7;--card:#fff;--ink:#1b2126;--quiet:#5a646e;--rule:#dfe3e7;--free:#0063a8;
--running:#00765a;--waiting:#a6397f;--critical:#b93a0a;--warning:#8f6200;--info:#3b6ea5}
@media screen and (prefers-color-scheme:dark){:root{--page:#121518;--card:#1b2024;--ink:#e7eaed;--quiet:#9ba6b0;
--rule:#343b42;--free:#62b6f2;--running:#41cda2;--waiting:#ea9fd0;--critical:#ff8f62;--warning:#e9b949;--info:#8fbbe8}}
.critical{--tone:var(--critical)}.warning{--tone:var(--warning)}.info{--tone:var(--info)}
.free{--tone:var(--free)}.running{--tone:var(--running)}.waiting{--tone:var(--waiting)}
.plot{padding:6px 72px 0 44px}
.chart{display:block;overflow:visible;font-size:12px}
.chart text{fill:var(--quiet)}
.chart .line{fill:none;stroke:var(--tone);stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
.chart .line,.chart .band{vector-effect:non-scaling-stroke}
.chart .band{fill:var(--tone);opacity:.2}
.chart .grid{stroke:var(--rule)}.chart .tick{stroke:var(--quiet)}
.chart .value{text-anchor:end}.chart .at{text-anchor:middle}
.chart .title{fill:var(--ink);font-weight:600;paint-order:stroke;stroke:var(--card);stroke-width:4px}
.chart .name,.chart .flag{fill:var(--tone);font-weight:600;paint-order:stroke;stroke:var(--card);stroke-width:3px}
.chart .span{fill:var(--tone);opacity:.11}
.chart .start{stroke:var(--tone);stroke-width:1.5}
.chart line.run{stroke:var(--quiet);stroke-width:1}
.chart text.run{fill:var(--quiet)}
.chart line.fit{stroke:var(--ink);stroke-width:1.6;stroke-dasharray:6 4}
.chart circle.full{fill:var(--ink)}
.chart text.fit{fill:var(--ink);paint-order:stroke;stroke:var(--card);stroke-width:3px}
@media(max-width:640px){.chart .spare{display:none}}
"""
"""Colours and lines. Blue, green and purple that colour-blind people tell apart; `--tone` is the colour of a class."""


class Level(NamedTuple):
    """A quantity over the records that a point sums up."""

    mean: float
    low: float
    high: float


class Point(NamedTuple):
    """Some records next to each other; a line never joins points of different stretches."""

    at_s: float
    free: Level
    """Share of the blocks, 0..1."""
    running: Level
    waiting: Level
    stretch: int


class Mark(NamedTuple):
    """Where a run begins."""

    at_s: float
    label: str


class Span(NamedTuple):
    """From when until when something was wrong."""

    start_s: float
    end_s: float
    tone: str
    """Name of a class of the style sheet."""
    label: str
    title: str


class Fit(NamedTuple):
    """A straight loss of free blocks, from where it began to where it ends."""

    start_s: float
    start_free: float
    end_s: float
    end_free: float
    full_s: float
    """When the pool would be full; later than the end where the run ends before."""


class Axis(NamedTuple):
    """The time axis."""

    start_s: float
    end_s: float

    def share(self, at_s: float) -> float:
        """Return where a time lies, 0..1; times outside lie on the edge."""
        return min(1.0, max(0.0, (at_s - self.start_s) / (self.end_s - self.start_s)))

    def percent(self, at_s: float) -> str:
        """Return where a time lies, as SVG writes it."""
        return f"{number(100 * self.share(at_s))}%"


def fit_of(fired: AlertEvent, usage: float, points: Sequence[Point], ended_s: float | None) -> Fit | None:
    """Return the loss that a finding fitted, until the pool is full or the run ends; None where it fitted none.

    Its slope is the finding's; its height that of the points between its beginning and the finding, for the usage in
    the evidence is a mean over a stretch whose middle is not told. Without points it goes through that usage.
    """
    rate, full_in_s = fired.evidence.get("lost_per_h", 0.0) / 3600, fired.evidence.get("full_in_s", math.inf)
    if not (math.isfinite(rate) and math.isfinite(full_in_s) and math.isfinite(usage) and rate > 0):
        return None
    at_s, level = fired.at_s, 1 - usage
    if near := [point for point in points if fired.since_s <= point.at_s <= fired.at_s]:
        at_s = sum(point.at_s for point in near) / len(near)
        level = sum(point.free.mean for point in near) / len(near)
    full = max(0.0, 1 - usage - rate * full_in_s)
    full_s = at_s + max(0.0, level - full) / rate
    start_s, end_s = max(fired.since_s, at_s - (1 - level) / rate), min(full_s, ended_s or full_s)

    def free(when_s: float) -> float:
        return min(1.0, max(0.0, level - rate * (when_s - at_s)))

    return Fit(start_s, free(start_s), end_s, free(end_s), full_s) if end_s > start_s else None


class Place(NamedTuple):
    """Where a label stands: its row, and whether it is written towards the left."""

    lane: int
    leftwards: bool


def escaped(label: str) -> str:
    """Return a label as HTML text, also fit for an attribute; what cannot be printed becomes a question mark."""
    return html.escape("".join(char if char.isprintable() else "?" for char in label), quote=True)


def number(value: float) -> str:
    """Return a coordinate with at most two decimals. Raises ValueError where it is not finite."""
    if not math.isfinite(value):
        raise ValueError("a coordinate must be finite")
    return f"{round(value, 2) + 0.0:.6g}"


def chart(
    points: Sequence[Point], axis: Axis, marks: Sequence[Mark], spans: Sequence[Span], fits: Sequence[Fit], about: str
) -> str:
    """Return the drawing of one engine; `about` is what a screen reader says. Needs one point at least."""
    top = TITLE_PX + LANE_PX * _lanes(axis, marks, spans)
    second = top + FREE_PX + BETWEEN_PX
    bottom = second + REQUESTS_PX
    ceiling = nice_ceiling(max(max(p.running.high, p.waiting.high) for p in points))
    parts = [
        f'<svg class="chart" role="img" aria-label="{escaped(about)}" width="100%" height="{bottom + AXIS_PX}">',
        *_spans(spans, axis, top, bottom),
        *_grid(axis, top, second, ceiling),
        *_marks(marks, axis, bottom),
        *_free_panel(points, axis, fits, top),
        *_requests_panel(points, axis, second, ceiling),
        *_labels(axis, marks, spans, fits, top),
        "</svg>",
    ]
    return "\n".join(parts)


def nice_ceiling(value: float) -> int:
    """Return the least round number that is no smaller, 1 at least."""
    decade = 1
    while True:
        for step in (1, 2, 4, 6, 8):
            if step * decade >= value:
                return step * decade
        decade *= 10


def ticks(axis: Axis) -> list[tuple[float, str]]:
    """Return round times of the axis, eight at most, with what stands below them."""
    span_s = axis.end_s - axis.start_s
    steps = (*_STEPS_S, *(_DAY_S * days for days in _STEPS_DAYS))
    step = next((step for step in steps if span_s / step <= MOST_TICKS), steps[-1])
    first = math.ceil(axis.start_s / step)
    times = [float(i * step) for i in range(first, math.floor(axis.end_s / step) + 1)]
    return [(at_s, _tick_text(at_s, step)) for at_s in times]


def clock(at_s: float, axis: Axis) -> str:
    """Return a time as short as it can be on that axis."""
    form = "%H:%M" if axis.end_s - axis.start_s <= _DAY_S else "%b %d %H:%M"
    return datetime.fromtimestamp(at_s, UTC).strftime(form)


def _tick_text(at_s: float, step: int) -> str:
    when = datetime.fromtimestamp(at_s, UTC)
    if at_s % _DAY_S == 0:
        return when.strftime("%b %d")
    return when.strftime("%H:%M:%S" if step < 60 else "%H:%M")


def stretches(points: Sequence[Point]) -> list[list[Point]]:
    """Return the points cut where nothing was read in between, or another run begins."""
    cut: list[list[Point]] = []
    for point in points:
        if cut and cut[-1][-1].stretch == point.stretch:
            cut[-1].append(point)
        else:
            cut.append([point])
    return cut


def line_path(places: Sequence[tuple[int, int]]) -> str:
    """Return a line through some places, relative to save room; one place alone is a dot."""
    (x, y), *_ = places
    if len(places) == 1:
        return f"M{x} {y}h0"
    moves = (f"{bx - ax} {by - ay}" for (ax, ay), (bx, by) in pairwise(places))
    return f"M{x} {y}l{' '.join(moves)}".replace(" -", "-")


def _line(points: Sequence[Point], axis: Axis, series: str, ceiling: float) -> str:
    paths = (line_path([_place(p, axis, getattr(p, series).mean, ceiling) for p in run]) for run in stretches(points))
    return f'<path class="line {series}" d="{"".join(paths)}"/>'


def _band(points: Sequence[Point], axis: Axis, series: str, ceiling: float) -> str:
    paths = []
    for stretch in stretches(points):
        levels = [getattr(p, series) for p in stretch]
        if len(stretch) > 1 and any(level.high > level.low for level in levels):
            above = [_place(p, axis, level.high, ceiling) for p, level in zip(stretch, levels, strict=True)]
            below = [_place(p, axis, level.low, ceiling) for p, level in zip(stretch, levels, strict=True)]
            paths.append(line_path([*above, *reversed(below)]) + "z")
    return f'<path class="band {series}" d="{"".join(paths)}"/>' if paths else ""


def _place(point: Point, axis: Axis, value: float, ceiling: float) -> tuple[int, int]:
    return round(X_UNITS * axis.share(point.at_s)), round(Y_UNITS * (1 - min(1.0, max(0.0, value / ceiling))))


def _drawing(y: int, height: int, content: str) -> str:
    box = f'viewBox="0 0 {X_UNITS} {Y_UNITS}" preserveAspectRatio="none" overflow="visible"'
    return f'<svg x="0" y="{y}" width="100%" height="{height}" {box}>{content}</svg>'


def _free_panel(points: Sequence[Point], axis: Axis, fits: Sequence[Fit], top: int) -> Iterator[str]:
    content = _band(points, axis, "free", 1.0) + _line(points, axis, "free", 1.0)
    yield _drawing(top, FREE_PX, content)
    for fit in fits:
        end_s, end_free = cut_off(fit, axis)
        y1, y2 = (number(top + FREE_PX * (1 - free)) for free in (fit.start_free, end_free))
        ends = f'x1="{axis.percent(fit.start_s)}" y1="{y1}" x2="{axis.percent(end_s)}" y2="{y2}"'
        yield f'<line class="fit" {ends}/>'
        if end_s == fit.full_s:
            yield f'<circle class="full" cx="{axis.percent(end_s)}" cy="{y2}" r="3.5"/>'
    last = points[-1]
    y = top + FREE_PX * (1 - last.free.mean)
    if any(fit.start_s <= last.at_s < fit.end_s for fit in fits):
        y += LABEL_PX + 2 if last.free.mean > 0.9 else 2 - LABEL_PX
    yield _direct(axis, last, y, "free", f"free {100 * last.free.mean:.0f} %")


def cut_off(fit: Fit, axis: Axis) -> tuple[float, float]:
    """Return where a fitted line leaves the chart, or ends."""
    if fit.end_s <= axis.end_s:
        return fit.end_s, fit.end_free
    slope = (fit.end_free - fit.start_free) / (fit.end_s - fit.start_s)
    return axis.end_s, fit.start_free + slope * (axis.end_s - fit.start_s)


def _requests_panel(points: Sequence[Point], axis: Axis, top: int, ceiling: int) -> Iterator[str]:
    series = ("running", "waiting")
    bands = [_band(points, axis, name, ceiling) for name in series]
    yield _drawing(top, REQUESTS_PX, "".join([*bands, *(_line(points, axis, name, ceiling) for name in series)]))
    last = points[-1]
    heights = [top + REQUESTS_PX * (1 - getattr(last, name).mean / ceiling) for name in series]
    for name, y in zip(series, apart(heights, top, top + REQUESTS_PX), strict=True):
        yield _direct(axis, last, y, name, f"{name} {getattr(last, name).mean:.0f}")


def apart(heights: Sequence[float], top: float, bottom: float) -> list[float]:
    """Return two heights moved apart until a label fits at each, the upper one still above; both stay inside."""
    first, second = heights
    sign = 1.0 if second >= first else -1.0
    missing = max(0.0, LABEL_PX - sign * (second - first))
    first, second = first - sign * missing / 2, second + sign * missing / 2
    shift = max(0.0, top - min(first, second)) - max(0.0, max(first, second) - bottom)
    return [first + shift, second + shift]


def _direct(axis: Axis, last: Point, y: float, series: str, label: str) -> str:
    where = f'x="{axis.percent(last.at_s)}" y="{number(y)}" dx="7" dy="4"'
    return f'<text class="name {series}" {where}>{escaped(label)}</text>'


def _grid(axis: Axis, top: int, second: int, ceiling: int) -> Iterator[str]:
    for y, label in ((0, "100 %"), (FREE_PX // 2, "50 %"), (FREE_PX, "0 %")):
        yield _rule(top + y, label)
    halves = (0, ceiling // 2, ceiling) if ceiling % 2 == 0 else (0, ceiling)
    for value in halves:
        yield _rule(second + REQUESTS_PX * (1 - value / ceiling), short_count(value))
    bottom = second + REQUESTS_PX
    for i, (at_s, label) in enumerate(ticks(axis)):
        x, spare = axis.percent(at_s), ' class="spare"' if i % 2 else ""
        yield f'<g{spare}><line class="tick" x1="{x}" x2="{x}" y1="{bottom}" y2="{bottom + 5}"/>'
        yield f'<text class="at" x="{x}" y="{bottom + 17}">{escaped(label)}</text></g>'


def _rule(y: float, label: str) -> str:
    height = number(y)
    line = f'<line class="grid" x1="0" x2="100%" y1="{height}" y2="{height}"/>'
    return f'{line}<text class="value" x="-7" y="{height}" dy="4">{label}</text>'


def short_count(value: int) -> str:
    """Return a round count in few letters: 800, 20k, 4M."""
    for size, letter in ((10**6, "M"), (10**4, "k")):
        if value >= size:
            return f"{value / (1000 if letter == 'k' else size):g}{letter}"
    return str(value)


def _spans(spans: Sequence[Span], axis: Axis, top: int, bottom: int) -> Iterator[str]:
    for span in spans:
        x, width = axis.percent(span.start_s), max(0.2, 100 * (axis.share(span.end_s) - axis.share(span.start_s)))
        box = f'x="{x}" y="{top}" width="{number(width)}%" height="{bottom - top}"'
        title = f"<title>{escaped(span.title)}</title>"
        yield f'<rect class="span {escaped(span.tone)}" {box}>{title}</rect>'


def _marks(marks: Sequence[Mark], axis: Axis, bottom: int) -> Iterator[str]:
    for mark in marks:
        if axis.share(mark.at_s) > 0:
            x = axis.percent(mark.at_s)
            yield f'<line class="run" x1="{x}" x2="{x}" y1="3" y2="{bottom}"/>'


def places(labels: Sequence[tuple[float, str]], most: int) -> list[Place | None]:
    """Return a row for each label at its share of the width, None where there is none left; laid out for a phone."""
    taken: list[list[tuple[float, float]]] = [[] for _ in range(most)]
    found: list[Place | None] = []
    for x, label in labels:
        at, width = NARROW_PX * x, LETTER_PX * len(label) + 8
        leftwards = at + width > NARROW_PX + MARGIN_PX
        low, high = (at - width, at) if leftwards else (at, at + width)
        lanes = [i for i, lane in enumerate(taken) if all(high <= a or low >= b for a, b in lane)]
        found.append(Place(lanes[0], leftwards) if lanes else None)
        if lanes:
            taken[lanes[0]].append((low, high))
    return found


def _placed(axis: Axis, marks: Sequence[Mark], spans: Sequence[Span]) -> tuple[list[Place | None], list[Place | None]]:
    runs = places([(axis.share(m.at_s), m.label) for m in marks], 1)
    alerts = places([(axis.share(s.start_s), s.label) for s in spans], MOST_LANES)
    return runs, [p and p._replace(lane=p.lane + bool(marks)) for p in alerts]


def _lanes(axis: Axis, marks: Sequence[Mark], spans: Sequence[Span]) -> int:
    runs, alerts = _placed(axis, marks, spans)
    return max((p.lane + 1 for p in (*runs, *alerts) if p), default=0)


def _labels(axis: Axis, marks: Sequence[Mark], spans: Sequence[Span], fits: Sequence[Fit], top: int) -> Iterator[str]:
    runs, alerts = _placed(axis, marks, spans)
    for mark, place in zip(marks, runs, strict=True):
        if place:
            yield _flag(axis.percent(mark.at_s), place, "run", mark.label)
    second = top + FREE_PX + BETWEEN_PX
    for span, place in zip(spans, alerts, strict=True):
        x, tone = axis.percent(span.start_s), escaped(span.tone)
        start = LANE_PX * place.lane + 3 if place else top
        yield f'<line class="start {tone}" x1="{x}" x2="{x}" y1="{start}" y2="{second + REQUESTS_PX}"/>'
        if place:
            yield _flag(x, place, tone, span.label)
    for y, title in ((top, "free KV-cache blocks, share of the pool (%)"), (second, "requests (count)")):
        yield f'<text class="title" x="0" y="{y - 8}">{title}</text>'
    yield from _fit_labels(fits, axis, top)


def _flag(x: str, place: Place, style: str, label: str) -> str:
    where = f'x="{x}" y="{LANE_PX * place.lane + 13}" dx="{-4 if place.leftwards else 4}"'
    towards = ' text-anchor="end"' if place.leftwards else ""
    return f'<text class="flag {style}" {where}{towards}>{escaped(label)}</text>'


def _fit_labels(fits: Sequence[Fit], axis: Axis, top: int) -> Iterator[str]:
    ends = [(*cut_off(fit, axis), _fit_text(fit, axis)) for fit in sorted(fits, key=lambda fit: -fit.end_s)]
    # all in one row, the newest first: what finds no room there would be written over another
    for (end_s, free, label), place in zip(ends, places([(axis.share(e[0]), e[2]) for e in ends], 1), strict=True):
        if place:
            y = number(top + FREE_PX * (1 - free) + LABEL_PX + 2)
            towards = 'dx="4" text-anchor="end"' if place.leftwards else 'dx="-4"'
            yield f'<text class="fit" x="{axis.percent(end_s)}" y="{y}" {towards}>{escaped(label)}</text>'


def _fit_text(fit: Fit, axis: Axis) -> str:
    when = clock(fit.full_s, axis._replace(end_s=max(axis.end_s, fit.full_s)))
    return f"at this rate full at {when}" + (" \N{RIGHTWARDS ARROW}" if fit.end_s > axis.end_s else "")
