"""`rate`: something happens more often than so many times in a span: preemptions, expired leases, failed loads."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from kvlogd.fields import PerTime, Span
from kvlogd.model import Clear, EventKind, Finding, Judgement, Per
from kvlogd.rest import Resting
from kvlogd.window import Window

NAME = "rate"
SCOPES = frozenset({Per.ENGINE})


class Counted(StrEnum):
    """What can be counted from the log."""

    PREEMPTIONS = "preemptions"
    KV_EXPIRED = "kv_expired"
    KV_LOAD_FAILURES = "kv_load_failures"
    CRASHES = "crashes"


_KINDS = {
    Counted.PREEMPTIONS: EventKind.PREEMPTION,
    Counted.KV_EXPIRED: EventKind.KV_EXPIRED,
    Counted.KV_LOAD_FAILURES: EventKind.KV_LOAD_FAILURE,
    Counted.CRASHES: EventKind.CRASH,
}
V0_STEP = 50
"""V0 warns of every fiftieth preemption only."""


class Params(BaseModel):
    """What is counted, over which span, and how often is too often."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    of: Counted
    above: PerTime
    over: Span = 600.0


def make(params: Params) -> "Rate":
    """Return an evaluator for one run."""
    return Rate(params)


class Rate(Resting):
    """Counts one kind of event of a run."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._kind = _KINDS[params.of]
        self._weight = V0_STEP if params.of is Counted.PREEMPTIONS else 1

    def judge(self, window: Window, at_s: float) -> Judgement:
        """Return whether the events of the span before `at_s` are too many."""
        times = window.events.get(self._kind)
        if not times:
            return Clear()
        inside = [t for t in times if at_s - self._params.over < t <= at_s]
        rate = len(inside) * self._weight / self._params.over
        if rate <= self._params.above:
            return Clear()
        return Finding(inside[0], rate, {"events": float(len(inside) * self._weight), "per_s": rate})
