"""`growth`: memory that should stay as it is grows: of a device, or of a server's processes.

Eight spans from half an hour to some days are looked at, each by the lowest readings of its twelve parts. It must
rise all along: one step is a process that came, and what slackens has found its size. On a device it must grow by a
share of the device's memory. A server's memory must grow by a share of its own size and reach its limit soon enough:
within `full_within` where it is seen for hours only, within thirty times that where it is seen for six hours or longer.
Where no limit is known, it must be seen as long, or have grown by half.
The value is MiB an hour.
Cannot see: growth of less than half an hour, growth of a device that computes nothing (it is being
loaded), or what goes on in the first ten minutes after a start.
"""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from kvlogd.fields import Duration, Points
from kvlogd.gauge import GpuWindow, Growth, HostWindow
from kvlogd.model import Abstained, Clear, Finding, Judgement, NoEvidence, Per
from kvlogd.rest import Resting

NAME = "growth"
SCOPES = frozenset({Per.GPU, Per.HOST})

LONG_S = 6 * 3600.0
LONG_WITHIN = 30.0
AT_ONCE = 0.5
"""Without a known limit and a long span, growth by this share of its size counts all the same."""
YOUNG = Abstained("it has not been seen for half an hour yet since it began")


class Params(BaseModel):
    """By how much."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    by_at_least: Points
    """Share of the device's memory; of a server, share of its own size."""
    full_within: Duration = 86400.0
    """Of a server: how soon the limit must be reached."""


def make(params: Params) -> "GrowthOf":
    """Return an evaluator for one GPU or one server."""
    return GrowthOf(params)


class GrowthOf(Resting):
    """Judges how memory went."""

    def __init__(self, params: Params) -> None:
        self._params = params

    def judge_gpu(self, window: GpuWindow, at_s: float) -> Judgement:
        """Return whether the memory in use of a device grows."""
        last = window.last
        if last is None or last.memory_used_mib is None or window.is_stale(at_s):
            return NoEvidence()
        total_mib = last.memory_total_mib
        least_mib = self._params.by_at_least * (total_mib or last.memory_used_mib)
        found = [growth for growth in window.memory.growths() if growth.grown >= least_mib]
        if not found:
            return _nothing(window.memory.began_s, at_s)
        growth = found[0]
        room_mib = None if total_mib is None else total_mib - last.memory_used_mib - (last.memory_reserved_mib or 0.0)
        evidence = _evidence(growth, last.memory_used_mib, room_mib)
        if total_mib is not None:
            evidence["total_mib"] = total_mib
        if growth.aside_grown is not None:
            evidence["others_grown_mib"] = growth.aside_grown
            if last.other_pid is not None and growth.aside_grown >= 0.5 * growth.grown:
                evidence["other_pid"] = float(last.other_pid)
        return Finding(growth.since_s, growth.per_s * 3600, evidence)

    def judge_host(self, window: HostWindow, at_s: float) -> Judgement:
        """Return whether the memory of a server's processes grows towards its limit."""
        last = window.last
        if last is None or window.is_stale(at_s):
            return NoEvidence()
        room_mib = None if last.limit_mib is None else max(0.0, last.limit_mib - last.rss_mib)
        growth = self._towards(window.memory.growths(), room_mib)
        if growth is None:
            return _nothing(window.memory.began_s, at_s)
        evidence = _evidence(growth, last.rss_mib, room_mib)
        if last.limit_mib is not None:
            evidence["limit_mib"] = last.limit_mib
        return Finding(growth.since_s, growth.per_s * 3600, evidence)

    def _towards(self, growths: Sequence[Growth], room_mib: float | None) -> Growth | None:
        for growth in growths:
            share = growth.grown / growth.began if growth.began else 0.0
            is_long = growth.span_s >= LONG_S
            if room_mib is None:
                is_soon = is_long or share >= AT_ONCE
            else:
                within_s = self._params.full_within * (LONG_WITHIN if is_long else 1.0)
                is_soon = room_mib <= growth.per_s * within_s
            if share >= self._params.by_at_least and is_soon:
                return growth
        return None


def _nothing(began_s: float | None, at_s: float) -> Judgement:
    return YOUNG if began_s is None or at_s - began_s < 2400.0 else Clear()


def _evidence(growth: Growth, used_mib: float, room_mib: float | None) -> dict[str, float]:
    evidence = {
        "grown_mib": growth.grown,
        "grown_mib_per_h": growth.per_s * 3600,
        "used_mib": used_mib,
        "compared_s": growth.span_s,
    }
    if room_mib is not None:
        evidence["full_in_s"] = room_mib / growth.per_s
    return evidence
