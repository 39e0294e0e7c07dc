"""`device_skew`: one GPU runs at a far lower clock than its siblings, while all of them are as busy.

Siblings are GPUs of the same host with as much memory. Only GPUs that work are compared, over some minutes, and only
with siblings about as busy: a stage of a pipeline or a replica with less to do may have any clock. The value is the
GPU's clock as a share of its siblings'.
Cannot see: a GPU that is slow at full clock, or how two GPUs of different kinds compare.
"""

from collections.abc import Sequence
from statistics import fmean, median
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from kvlogd.fields import Duration, Points
from kvlogd.gauge import GpuWindow
from kvlogd.model import Abstained, Clear, Finding, Judgement, NoEvidence, Per
from kvlogd.reading import GpuSample
from kvlogd.rest import Resting

NAME = "device_skew"
SCOPES = frozenset({Per.GPU})

LEAST_READINGS = 6
BUSY, AS_BUSY = 0.5, 0.25
"""Share of the time in which kernels run, and how far it may differ between siblings."""
SAME_SIZE = 0.01
HELD_BACK = 0x8 | 0x20 | 0x40 | 0x80
"""NVML's bits for hardware slowdown, software and hardware thermal slowdown, and power brake."""


class Params(BaseModel):
    """Over which span, and how far apart."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    over: Duration = 600.0
    slower: Points = 0.8
    """The clock of a slow GPU, as a share of its siblings'."""


class Summary(NamedTuple):
    """One GPU over the span."""

    clock_mhz: float
    util: float
    temperature_c: float | None
    power_w: float | None


def make(params: Params) -> "DeviceSkew":
    """Return an evaluator for one GPU."""
    return DeviceSkew(params)


class DeviceSkew(Resting):
    """Holds one GPU against its siblings."""

    def __init__(self, params: Params) -> None:
        self._params = params

    def judge_gpu(self, window: GpuWindow, at_s: float) -> Judgement:
        """Return whether this GPU is slower than its siblings."""
        peers = [peer for peer in window.peers.values() if peer is not window and _is_alike(window, peer)]
        if window.last is None or window.is_stale(at_s) or not peers:
            return NoEvidence()
        since_s = at_s - self._params.over
        samples = window.over(since_s)
        own = summary_of(samples)
        if own is None or own.util < BUSY:
            return Abstained("the GPU had too little to do to be compared")
        known = [one for peer in peers if (one := summary_of(peer.over(since_s))) is not None]
        others = [one for one in known if one.util >= BUSY and abs(one.util - own.util) <= AS_BUSY]
        if not others:
            return Abstained("no sibling was as busy as this GPU")
        usual_mhz = median(one.clock_mhz for one in others)
        is_lowest = own.clock_mhz < min(one.clock_mhz for one in others)
        if not is_lowest or own.clock_mhz >= self._params.slower * usual_mhz:
            return Clear()
        evidence = _evidence(own, others, samples)
        return Finding(samples[0].ts_s, own.clock_mhz / usual_mhz, evidence)


def _is_alike(one: GpuWindow, other: GpuWindow) -> bool:
    if one.last is None or other.last is None:
        return False
    a, b = one.last.memory_total_mib, other.last.memory_total_mib
    return a is not None and b is not None and abs(a - b) <= SAME_SIZE * a


def summary_of(samples: Sequence[GpuSample]) -> Summary | None:
    """Return the means of some readings; None where there are too few with clock and utilisation."""
    whole = [(s.sm_clock_mhz, s.util) for s in samples if s.sm_clock_mhz is not None and s.util is not None]
    if len(whole) < LEAST_READINGS:
        return None
    temperatures = [s.temperature_c for s in samples if s.temperature_c is not None]
    powers = [s.power_w for s in samples if s.power_w is not None]
    return Summary(
        fmean(clock for clock, _ in whole),
        fmean(util for _, util in whole),
        fmean(temperatures) if temperatures else None,
        fmean(powers) if powers else None,
    )


def _evidence(own: Summary, others: Sequence[Summary], samples: Sequence[GpuSample]) -> dict[str, float]:
    evidence = {
        "own_clock_mhz": own.clock_mhz,
        "siblings_clock_mhz": median(one.clock_mhz for one in others),
        "siblings": float(len(others)),
        "util": own.util,
    }
    temperatures = [one.temperature_c for one in others if one.temperature_c is not None]
    if own.temperature_c is not None and temperatures:
        evidence |= {"temperature_c": own.temperature_c, "siblings_temperature_c": median(temperatures)}
    reasons = [sample.limit_reasons for sample in samples if sample.limit_reasons is not None]
    if reasons:
        evidence["held_back"] = sum(bool(reason & HELD_BACK) for reason in reasons) / len(reasons)
    return evidence
