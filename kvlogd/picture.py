"""Draws the chart of an alert as a PNG: the free share of the pool with the fitted loss, and below it the load; of a
GPU or a server its memory with the fitted growth, and below it the free share of the pools beside it.

The only module that names matplotlib, the extra `charts`; it is loaded when the first picture is drawn, in the child
that sends it and never in the daemon. Without it there is no picture and `letter` shows a chart of text instead.
Promises to be legible on a phone, in colours that colour-blind people tell apart (Okabe and Ito), on any background.
"""

import io
import math
import os
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kvlogd.chart import Axis, ticks
from kvlogd.model import Occupancy, Panel
from kvlogd.notice import label_text
from kvlogd.panel import zoom
from kvlogd.quantity import about_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE_IN, DPI = (6.4, 5.6), 150
LETTER_PT, SMALL_PT = 14.0, 12.5
"""On a phone the picture is shown at about 40 % of its size."""
LONGEST_OUTLOOK = 0.5
"""How far beyond the last sample the time is shown when the pool will be full, as a share of the time shown."""
MOST_LABEL, MOST_TICKS = 34, 5
BLUE, GREEN, PURPLE, RED, INK, GREY, PAPER = "#0072B2", "#009E73", "#B0568A", "#D55E00", "#1b2126", "#6b747d", "#fcfcfb"


def prepare() -> None:
    """Load matplotlib. Raises ImportError where it is not installed."""
    if (folder := os.environ.get("CACHE_DIRECTORY")) is not None:
        # a service has no home: without a place to keep it, each child would look for all fonts anew, for seconds
        os.environ.setdefault("MPLCONFIGDIR", folder.partition(":")[0])
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401 - for whoever draws


def png(panel: Panel) -> bytes | None:
    """Return the picture; None where matplotlib is not installed, or there is nothing to draw."""
    series = panel.free_share if panel.memory is None else panel.memory.used_gib
    if all(value is None for value in series):
        return None
    try:
        prepare()
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=SIZE_IN, dpi=DPI, facecolor=PAPER)
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 2], "hspace": 0.32})
    if panel.memory is None:
        _draw_free(above, panel, "free KV-cache blocks, % of the pool")
        _draw_load(below, panel)
    else:
        _draw_memory(above, panel, panel.memory)
        _draw_free(below, panel, "free KV-cache blocks beside it, %")
    _draw_fit(above, panel)
    _draw_time(above, below, panel)
    figure.subplots_adjust(left=0.115, right=0.965, top=0.875, bottom=0.095)
    title = label_text(panel.engine)
    shown = title if len(title) <= MOST_LABEL else "…" + title[1 - MOST_LABEL :]
    figure.text(0.02, 0.955, shown, fontsize=LETTER_PT + 1, fontweight="bold", color=INK, parse_math=False)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a label may be in any script
        figure.savefig(buffer, format="png", facecolor=PAPER)
    return buffer.getvalue()


def _days(times_s: Sequence[float]) -> list[float]:
    """Return times as matplotlib counts them."""
    return [at_s / 86400 for at_s in times_s]


def _values(series: Sequence[float | None], factor: float = 1.0) -> list[float]:
    return [math.nan if value is None else factor * value for value in series]


def _draw_free(axes: "Axes", panel: Panel, title: str) -> None:
    x, y = _days(panel.ts_s), _values(panel.free_share, 100)
    axes.fill_between(x, y, 0, color=BLUE, alpha=0.13, linewidth=0)
    axes.plot(x, y, color=BLUE, linewidth=2.2, solid_capstyle="round")
    axes.set_ylim(0, 104)
    axes.set_yticks([0, 50, 100])
    _title(axes, title, BLUE)


def _draw_memory(axes: "Axes", panel: Panel, memory: Occupancy) -> None:
    x, y = _days(panel.ts_s), _values(memory.used_gib)
    bottom, top = zoom([gib for gib in memory.used_gib if gib is not None], memory.limit_gib)
    axes.fill_between(x, y, bottom, color=PURPLE, alpha=0.13, linewidth=0)
    axes.plot(x, y, color=PURPLE, linewidth=2.2, solid_capstyle="round")
    axes.set_ylim(bottom, top)
    axes.locator_params(axis="y", nbins=4)
    what = "device memory in use" if memory.is_device else "memory of the server"
    of = "" if memory.limit_gib is None else f" of {memory.limit_gib:.0f}"
    _title(axes, f"{what}, GiB{of}", PURPLE)


def _draw_fit(axes: "Axes", panel: Panel) -> None:
    factor = 100 if panel.memory is None else 1
    if panel.trend is not None:
        (start_s, start), (end_s, end) = panel.trend
        axes.plot(_days([start_s, end_s]), [factor * start, factor * end], color=INK, linewidth=2, dashes=(4, 2.5))
        if end_s <= span_of(panel)[1] and panel.memory is None:
            axes.plot(_days([end_s]), [factor * end], "o", color=INK, markersize=7, clip_on=False, zorder=5)
    if panel.full_s is not None:
        when = datetime.fromtimestamp(panel.full_s, UTC)
        in_text = about_text(panel.full_s - panel.firing_s)
        text = (
            f"full in about {in_text}, {when:%H:%M}" if in_text[-1] != "d" else f"full in about {in_text}, {when:%b %d}"
        )
        _tell_full(axes, text, "left" if panel.memory is None else "right")


def _tell_full(axes: "Axes", text: str, side: str) -> None:
    """Write where the line is not: what falls leaves room to the left, what rises to the right."""
    box = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 1.5}
    place = 0.015 if side == "left" else 0.985
    axes.text(place, 0.06, text, ha=side, transform=axes.transAxes, fontsize=LETTER_PT, color=INK, bbox=box)


def _draw_load(axes: "Axes", panel: Panel) -> None:
    x = _days(panel.ts_s)
    running, waiting = _values(panel.running), _values(panel.waiting)
    axes.plot(x, running, color=GREEN, linewidth=2)
    axes.plot(x, waiting, color=PURPLE, linewidth=2, linestyle=(0, (1.5, 1)))
    most = max((value for value in (*running, *waiting) if not math.isnan(value)), default=1.0)
    axes.set_ylim(0, max(1.0, 1.12 * most))
    axes.locator_params(axis="y", nbins=3, integer=True)
    _title(axes, "requests running", GREEN)
    axes.text(0.42, 1.05, "··· waiting", transform=axes.transAxes, fontsize=LETTER_PT, color=PURPLE, fontweight="bold")


def _title(axes: "Axes", text: str, colour: str) -> None:
    axes.text(0, 1.05, text, transform=axes.transAxes, fontsize=LETTER_PT, color=colour, fontweight="bold")


def span_of(panel: Panel) -> tuple[float, float]:
    """Return from when until when is shown: all samples, and the time when the pool is full if that is not far."""
    start_s, end_s = panel.ts_s[0], max(panel.ts_s[-1], panel.firing_s, panel.ts_s[0] + 60)
    if panel.over_s is not None:
        end_s = max(end_s, panel.over_s)
    if panel.trend is None:
        return start_s, end_s
    return start_s, max(end_s, min(panel.trend[1][0], end_s + LONGEST_OUTLOOK * (end_s - start_s)))


def _draw_time(above: "Axes", below: "Axes", panel: Panel) -> None:
    start_s, end_s = span_of(panel)
    for axes in (above, below):
        axes.set_facecolor(PAPER)
        ill_s = panel.over_s or max(panel.ts_s[-1], panel.firing_s)
        axes.axvspan(*_days([max(start_s, panel.since_s), ill_s]), color=RED, alpha=0.07)
        for at_s in panel.restarts_s:
            axes.axvline(at_s / 86400, color=GREY, linewidth=1.6, linestyle=(0, (1, 1.5)))
        axes.axvline(panel.firing_s / 86400, color=RED, linewidth=2)
        if panel.over_s is not None:
            axes.axvline(panel.over_s / 86400, color=GREEN, linewidth=2)
        axes.grid(axis="y", color="#d5dade", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=SMALL_PT, colors=GREY, length=3)
        for side, spine in axes.spines.items():
            spine.set_visible(side == "bottom")
            spine.set_color(GREY)
    above.set_xlim(*_days([start_s, end_s]))
    span = (start_s, end_s)
    _flag(above, panel.firing_s, f"alert {datetime.fromtimestamp(panel.firing_s, UTC):%H:%M}", RED, span)
    for at_s in panel.restarts_s[-1:]:
        _flag(below, at_s, "restart", GREY, span)
    if panel.over_s is not None:
        _flag(above, panel.over_s, f"over {datetime.fromtimestamp(panel.over_s, UTC):%H:%M}", GREEN, span, low=True)
    marks = ticks(Axis(start_s, end_s))
    shown = marks[:: 1 + len(marks) // (MOST_TICKS + 1)]
    below.set_xticks(_days([at_s for at_s, _ in shown]), [text for _, text in shown])
    below.text(1.0, -0.34, "UTC", transform=below.transAxes, fontsize=SMALL_PT, color=GREY, ha="right", va="bottom")


def _flag(axes: "Axes", at_s: float, text: str, colour: str, span: tuple[float, float], *, low: bool = False) -> None:
    """Write beside a vertical line what it is, on the side where there is room."""
    share = (at_s - span[0]) / (span[1] - span[0])
    place, side = (4, "left") if share < 0.7 else (-4, "right")
    axes.annotate(
        text, (at_s / 86400, 0.8 if low else 0.97), xycoords=("data", "axes fraction"),
        xytext=(place, 0), textcoords="offset points", ha=side, va="top",
        fontsize=LETTER_PT, color=colour, fontweight="bold",
        bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.75, "pad": 1},
    )  # fmt: skip
