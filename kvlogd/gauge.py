"""What is remembered of one GPU, and of the memory of one server, within a bound; the signals that rules may name.

A memory is looked at over eight spans, from half an hour to some days, each cut into twelve parts of which the lowest
reading counts: a rush of requests is no growth. A sudden change begins it anew, for then something started or ended.
Reads no clock. Does not promise: to see growth of less than half an hour, or one that comes in few large steps.
"""

import itertools
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median
from typing import NamedTuple

from kvlogd.quantity import Unit
from kvlogd.reading import BLIND, GpuSample, GpuState, HostSample

PARTS = 12
SPANS_S = tuple(1800.0 * 2**power for power in range(8))
SETTLES_S = 600.0
"""After a start caches and graphs fill for a while: that is not looked at."""
STEP = 0.03
"""A change from one reading to the next by this share of the device's memory is no growth: something came or went."""
HOST_DROP = 0.3
"""A server that is smaller by this share than it was a reading ago is another one."""
BACK_S = 60.0
"""A reading further behind than this says that the clock was set back."""
RECENT = 240
STALE_S, STALE_INTERVALS = 90.0, 3.0
"""The last reading says nothing of the present once it is older than both."""
MOST_ROOTS = 8
KILLED_FOR_S = 600.0
"""For so long an out-of-memory kill is news."""


class Growth(NamedTuple):
    """A memory that rose all through a span."""

    since_s: float
    span_s: float
    began: float
    """How much it was at first, in the first third's middle."""
    grown: float
    """Over the whole span."""
    aside_grown: float | None
    """What of it is due to others."""

    @property
    def per_s(self) -> float:
        """How fast it grows."""
        return self.grown / self.span_s


class _Part(NamedTuple):
    slot: int
    low: float
    aside: float | None
    idle: bool


class _Span:
    """The lowest readings of the last parts of one span."""

    def __init__(self, span_s: float) -> None:
        self.span_s = span_s
        self._part_s = span_s / PARTS
        self._parts: deque[_Part] = deque(maxlen=PARTS + 1)
        """The last one is not complete."""

    def observe(self, at_s: float, value: float, aside: float | None, is_idle: bool) -> None:
        slot = int(at_s // self._part_s)
        last = self._parts[-1] if self._parts else None
        if last is None or last.slot < slot:
            self._parts.append(_Part(slot, value, aside, is_idle))
        elif value < last.low:
            self._parts[-1] = _Part(last.slot, value, aside, last.idle and is_idle)
        elif not is_idle and last.idle:
            self._parts[-1] = last._replace(idle=False)

    def growth(self) -> Growth | None:
        """Return how it rose over the span; None where it did not, or where too much of the span is unknown."""
        if not self._parts:
            return None
        first = self._parts[-1].slot - PARTS
        parts = [part for part in self._parts if first <= part.slot < first + PARTS]
        thirds = [[part for part in parts if (part.slot - first) * 3 // PARTS == third] for third in range(3)]
        if min(map(len, thirds)) < 3 or not _rises([part.low for part in parts]):
            return None
        if 2 * sum(part.idle for part in parts) > len(parts):
            return None
        begin, middle, end = (median(part.low for part in third) for third in thirds)
        rise = end - begin
        # one that slackens has found its size
        if middle - begin < 0.25 * rise or end - middle < 0.35 * rise:
            return None
        asides = [[part.aside for part in third if part.aside is not None] for third in (thirds[0], thirds[2])]
        aside = 1.5 * (median(asides[1]) - median(asides[0])) if all(asides) else None
        return Growth(parts[0].slot * self._part_s, self.span_s, begin, 1.5 * rise, aside)


def _rises(lows: list[float]) -> bool:
    """Return whether values rise all along: most pairs, more than half of the steps, and no step makes up most."""
    steps = [later - earlier for earlier, later in itertools.pairwise(lows)]
    pairs = [(b > a) - (b < a) for i, a in enumerate(lows) for b in lows[i + 1 :]]
    rise = lows[-1] - lows[0]
    up = sum(step > 0 for step in steps)
    return rise > 0 and sum(pairs) >= 0.7 * len(pairs) and 2 * up > len(steps) and max(steps) <= 0.5 * rise


class Gauge:
    """A memory since it began."""

    def __init__(self) -> None:
        self.began_s: float | None = None
        self._spans: list[_Span] = []

    def begin(self, at_s: float) -> None:
        """Forget what was."""
        self.began_s = at_s
        self._spans = [_Span(span_s) for span_s in SPANS_S]

    def observe(self, at_s: float, value: float, aside: float | None = None, *, is_idle: bool = False) -> None:
        """Take in the next reading; what grows while a device computes nothing is being loaded."""
        if self.began_s is None:
            self.begin(at_s)
        elif at_s >= self.began_s + SETTLES_S:
            for span in self._spans:
                span.observe(at_s, value, aside, is_idle)

    def growths(self) -> list[Growth]:
        """Return the spans over which it rose, the longest first."""
        found = [span.growth() for span in reversed(self._spans)]
        return [growth for growth in found if growth is not None]


class _Readings:
    """When readings came, and how far apart they usually are."""

    def __init__(self) -> None:
        self.last_s: float | None = None
        self.interval_s: float | None = None

    def came(self, at_s: float) -> None:
        if self.last_s is not None and at_s > self.last_s:
            gap_s = at_s - self.last_s
            self.interval_s = gap_s if self.interval_s is None else min(gap_s, 1.5 * self.interval_s)
        self.last_s = at_s

    def is_back(self, at_s: float) -> bool:
        return self.last_s is not None and at_s < self.last_s - BACK_S

    def is_stale(self, at_s: float) -> bool:
        if self.last_s is None:
            return True
        return at_s - self.last_s > max(STALE_S, STALE_INTERVALS * (self.interval_s or 0.0))


class GpuWindow:
    """The memory of one GPU. `peers` are the windows of all GPUs of the host, this one among them: shared."""

    def __init__(self, gpu: str, peers: "dict[str, GpuWindow]") -> None:
        self.gpu = gpu
        self.peers = peers
        self.last: GpuSample | None = None
        self.memory = Gauge()
        self.recent: deque[GpuSample] = deque(maxlen=RECENT)
        self.lost_since_s: float | None = None
        self._readings = _Readings()

    def observe(self, sample: GpuSample) -> None:
        """Take in the next reading."""
        if self._readings.is_back(sample.ts_s):
            self.recent.clear()
            self.memory = Gauge()
            self.last = None
        self._readings.came(sample.ts_s)
        if sample.state in BLIND:
            return
        if sample.state != GpuState.OK:
            self.lost_since_s = sample.ts_s if self.lost_since_s is None else self.lost_since_s
            self.last = None
            return
        self.lost_since_s = None
        self.recent.append(sample)
        self._memory(sample)
        self.last = sample

    def _memory(self, sample: GpuSample) -> None:
        used, last = sample.memory_used_mib, self.last
        if used is None:
            return
        before = None if last is None else last.memory_used_mib
        if before is None or abs(used - before) >= STEP * (sample.memory_total_mib or used):
            self.memory.begin(sample.ts_s)
        self.memory.observe(sample.ts_s, used, sample.others_mib, is_idle=sample.util == 0.0)

    def is_stale(self, at_s: float) -> bool:
        """Return whether the last reading is too old to say anything."""
        return self._readings.is_stale(at_s)

    def over(self, since_s: float) -> list[GpuSample]:
        """Return the kept readings from a time on, oldest first."""
        return [sample for sample in self.recent if sample.ts_s >= since_s]


class HostWindow:
    """The memory of the processes of one server."""

    def __init__(self) -> None:
        self.last: HostSample | None = None
        self.memory = Gauge()
        self.killed_s: float | None = None
        """When processes were last seen to have been killed for want of memory."""
        self.killed = 0
        self._roots: list[int | None] = []
        """The topmost processes of the servers that were seen last."""
        self._readings = _Readings()

    def observe(self, sample: HostSample) -> None:
        """Take in the next reading."""
        last = self.last
        back = self._readings.is_back(sample.ts_s)
        self._readings.came(sample.ts_s)
        if last is None or back or sample.pid != last.pid or sample.rss_mib < (1 - HOST_DROP) * last.rss_mib:
            self.memory.begin(sample.ts_s)
        if self.is_new(sample):
            self.killed_s = None  # told already, where there was something to tell
        others = [pid for pid in self._roots if pid != sample.pid]
        self._roots = [*others[1 - MOST_ROOTS :], sample.pid]
        self.memory.observe(sample.ts_s, sample.rss_mib)
        if last is not None and (sample.oom_kills or 0) > (last.oom_kills or 0) and last.oom_kills is not None:
            self.killed_s, self.killed = sample.ts_s, (sample.oom_kills or 0) - last.oom_kills
        self.last = sample

    def is_new(self, sample: HostSample) -> bool:
        """Return whether a reading is of a server that was not seen before; two may write one log by turns."""
        return bool(self._roots) and sample.pid not in self._roots

    def is_stale(self, at_s: float) -> bool:
        """Return whether the last reading is too old to say anything."""
        return self._readings.is_stale(at_s)

    def oom_kills(self, at_s: float) -> float | None:
        """Return how many processes were killed for want of memory of late."""
        if self.last is None or self.last.oom_kills is None:
            return None
        is_news = self.killed_s is not None and at_s - self.killed_s <= KILLED_FOR_S
        return float(self.killed) if is_news else 0.0


class GpuSignal(NamedTuple):
    """A number about a GPU that rules may name."""

    unit: Unit
    what: str
    read: Callable[[GpuWindow, float], float | None]


class HostSignal(NamedTuple):
    """A number about a server's memory that rules may name."""

    unit: Unit
    what: str
    read: Callable[[HostWindow, float], float | None]


def _lost_for(window: GpuWindow, at_s: float) -> float | None:
    return None if window.lost_since_s is None else at_s - window.lost_since_s


def _memory_share(window: GpuWindow, _at_s: float) -> float | None:
    last = window.last
    if last is None or last.memory_used_mib is None or not last.memory_total_mib:
        return None
    return last.memory_used_mib / last.memory_total_mib


def _host_share(window: HostWindow, _at_s: float) -> float | None:
    last = window.last
    return None if last is None or not last.limit_mib else last.rss_mib / last.limit_mib


GPU_SIGNALS: Mapping[str, GpuSignal] = {
    "lost_for": GpuSignal(Unit.SECONDS, "for how long the GPU could not be read", _lost_for),
    "gpu_util": GpuSignal(
        Unit.SHARE, "share of the time in which a kernel ran", lambda window, _: window.last and window.last.util
    ),
    "gpu_memory": GpuSignal(Unit.SHARE, "share of the device memory in use", _memory_share),
}
HOST_SIGNALS: Mapping[str, HostSignal] = {
    "oom_kills": HostSignal(Unit.COUNT, "processes killed for want of memory of late", HostWindow.oom_kills),
    "host_memory": HostSignal(Unit.SHARE, "resident memory as a share of its limit", _host_share),
}
