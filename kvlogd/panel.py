"""What a chart of one engine shows, made of its samples, and the same in one line of text. Pure.

Promises few points however long the time is (the lowest and the highest of neighbouring samples are kept), and holes
where nothing was read.
"""

from kvlogd.model import Panel

SPARK_CELLS = 32
_BARS = "▁▂▃▄▅▆▇█"


def spark(panel: Panel, cells: int = SPARK_CELLS) -> list[str]:
    """Return the free share as bars, of the least in each part of the time, and what marks stand below it."""
    start_s, end_s = panel.ts_s[0], panel.ts_s[-1]
    width_s = max(1e-9, (end_s - start_s) / cells)

    def cell(at_s: float) -> int:
        return min(cells - 1, max(0, int((at_s - start_s) / width_s)))

    lowest: list[float | None] = [None] * cells
    for at_s, share in zip(panel.ts_s, panel.free_share, strict=True):
        if share is not None:
            known = lowest[cell(at_s)]
            lowest[cell(at_s)] = share if known is None else min(known, share)
    bars = "".join(" " if share is None else _bar(share) for share in lowest)
    marks = [" "] * cells
    for at_s in panel.restarts_s:
        if start_s < at_s <= end_s:
            marks[cell(at_s)] = "R"
    if start_s <= panel.firing_s <= end_s:
        marks[cell(panel.firing_s)] = "^"
    legend = "^ alert" + (", R restart" if "R" in marks else "")
    return [bars, f"{''.join(marks).rstrip()}  ({legend})" if any(mark != " " for mark in marks) else ""]


def _bar(share: float) -> str:
    return _BARS[min(len(_BARS) - 1, max(0, round(share * (len(_BARS) - 1))))]
