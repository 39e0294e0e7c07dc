"""`threshold`: a signal is above or below a value, now or on average over a span."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, model_validator

from kvlogd.fields import AnyQuantity, Duration, SignalName, in_unit_of, is_duration
from kvlogd.gauge import GPU_SIGNALS, HOST_SIGNALS, GpuWindow, HostWindow
from kvlogd.model import Abstained, Clear, Finding, Judgement, NoEvidence, Per, Stats
from kvlogd.rest import Resting
from kvlogd.window import SIGNALS, SOURCE_SIGNALS, SourceWindow, Window

NAME = "threshold"
SCOPES = frozenset({Per.ENGINE, Per.SOURCE, Per.GPU, Per.HOST})


STALE_S, STALE_INTERVALS = 60.0, 3.0
"""The last record says nothing of the present once it is older than both."""
UNREAD_S = 86_400.0
"""What comes of /metrics rests so long where it is not read: the first scrape ends all rests."""


class Of(StrEnum):
    """Which number of a span is held against the value."""

    MEAN = "mean"
    MIN = "min"
    MAX = "max"


class Params(BaseModel):
    """Which signal, and the value that it must pass."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    signal: SignalName
    above: AnyQuantity | None = None
    below: AnyQuantity | None = None
    over: Duration | None = None
    """The span that is looked at; without it, the latest value."""
    of: Of = Of.MEAN

    @model_validator(mode="after")
    def _one_bound(self) -> "Params":
        if (self.above is None) == (self.below is None):
            raise ValueError("give one of above and below")
        in_unit_of(self.signal, self.above if self.above is not None else self.below)
        if self.over is not None and (self.signal not in SIGNALS or SIGNALS[self.signal].column is None):
            raise ValueError(f"{self.signal} has no history to look over: leave out `over`")
        return self

    @property
    def bound(self) -> float:
        """The value, in the signal's own unit."""
        return in_unit_of(self.signal, self.above if self.above is not None else self.below)


def make(params: Params) -> "Threshold":
    """Return an evaluator for one run, source, GPU or server."""
    return Threshold(params)


class Threshold(Resting):
    """Holds one signal against its value."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._bound = params.bound
        self._is_above = params.above is not None
        self._is_duration = is_duration(params.signal)
        # what must have lasted for minutes is not sought twice a minute
        self._calm_s = 60.0 if self._is_above and self._is_duration and self._bound >= 120.0 else 0.0
        self.rest_s = self._calm_s
        signal = SIGNALS.get(params.signal)
        self._index = Stats._fields.index(signal.column) if signal and signal.column else None

    def judge(self, window: Window, at_s: float) -> Judgement:
        """Return whether the signal of a run is past its value."""
        signal = SIGNALS.get(self._params.signal)
        if signal is None or (window.last is None and window.eyes.last is None):
            return NoEvidence()
        if self._params.over is not None:
            return self._over_span(window, at_s, self._params.over)
        if self._index is not None and window.silent_s(at_s) > max(
            STALE_S, STALE_INTERVALS * (window.interval_s or 0.0)
        ):
            return NoEvidence()
        if signal.of_scrapes and self._calm_s and window.eyes.last is None:
            self.rest_s = UNREAD_S
            return CLEAR
        value = signal.read(window, at_s)
        if value is None and signal.of_records and self._calm_s:
            self.rest_s, self.least = self._bound - window.silent_s(at_s), window.count + 1
            return CLEAR
        # a column that this log does not give is unknown; anything else is None where it does not apply
        return NoEvidence() if value is None and self._index is not None else self._hold(value, at_s)

    def judge_source(self, source: SourceWindow, at_s: float) -> Judgement:
        """Return whether the signal of a source is past its value."""
        signal = SOURCE_SIGNALS.get(self._params.signal)
        return NoEvidence() if signal is None else self._hold(signal.read(source, at_s), at_s)

    def judge_gpu(self, window: GpuWindow, at_s: float) -> Judgement:
        """Return whether the signal of a GPU is past its value."""
        signal = GPU_SIGNALS.get(self._params.signal)
        if signal is None or window.is_stale(at_s):
            return NoEvidence()
        value = signal.read(window, at_s)
        return NoEvidence() if value is None and not self._is_duration else self._hold(value, at_s)

    def judge_host(self, window: HostWindow, at_s: float) -> Judgement:
        """Return whether the signal of a server's memory is past its value."""
        signal = HOST_SIGNALS.get(self._params.signal)
        value = None if signal is None or window.is_stale(at_s) else signal.read(window, at_s)
        return NoEvidence() if value is None else self._hold(value, at_s)

    def _over_span(self, window: Window, at_s: float, over_s: float) -> Judgement:
        records = window.since(at_s - over_s)
        values = [record[self._index or 0] for record in records]
        known = [float(value) for value in values if isinstance(value, int | float)]
        if not known:
            return NoEvidence()
        if window.recent[0].ts_s > at_s - 0.8 * over_s:
            is_young = window.count == len(window.recent)
            return Abstained("the span is not full yet" if is_young else "the span is longer than what is remembered")
        if self._params.signal == "kv_free_share":
            known = [1.0 - usage for usage in known]
        pick = {Of.MEAN: sum(known) / len(known), Of.MIN: min(known), Of.MAX: max(known)}
        return self._hold(pick[self._params.of], records[0].ts_s)

    def _hold(self, value: float | None, since_s: float) -> Judgement:
        past = value is not None and (value > self._bound if self._is_above else value < self._bound)
        self.rest_s, self.least = 0.0 if past else self._calm_s, 0
        if value is None or not past:
            return CLEAR
        if self._is_duration:  # it began as long ago as it says
            since_s -= value
        return Finding(since_s, value, {self._params.signal: value, "bound": self._bound})


CLEAR = Clear()
