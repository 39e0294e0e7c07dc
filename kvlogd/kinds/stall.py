"""`stall`: requests run or wait and nothing moves, or the engine core is dead.

vLLM prints one record without throughput and then nothing, idle or hung alike: the last record decides. With
nothing running, waiting requests and no throughput it is a jam; with something running it may be one long
prefill, whose tokens are counted when the first one comes out (up to 180 s were seen on healthy engines).
Where /metrics is read, patience begins anew with each scrape that shows work: a prefill takes blocks before it counts
a token. Where it is known which GPUs are the engine's, no prefill is taken for one while they compute nothing: less
patience will do then. That they are busy proves nothing, and is only told: a kernel may wait for ever.
Cannot see: a hang that began while the engine was idle, for then there is no record at all.
"""

from collections.abc import Sequence
from math import inf

from pydantic import BaseModel, ConfigDict

from kvlogd.fields import Duration
from kvlogd.model import Clear, Finding, Judgement, NoEvidence, Per, Stats
from kvlogd.rest import CALM_S, Resting
from kvlogd.window import Window

NAME = "stall"
SCOPES = frozenset({Per.ENGINE})

LESS = 0.9998
"""The most that ran counts so much less with each record: one burst does not set the yardstick for ever."""


class Params(BaseModel):
    """How long without progress is too long."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    running: Duration = 200.0
    """While requests run: longer than the longest healthy prefill."""
    gpu_idle: Duration = 120.0
    """While requests run and the engine's GPUs compute nothing: kernels may be compiled meanwhile."""
    waiting: Duration = 60.0
    """While requests wait and none runs."""
    starved: Duration = 300.0
    """While a queue grows beside a pool with room and few run: the scheduler does not admit."""


def make(params: Params) -> "Stall":
    """Return an evaluator for one run."""
    return Stall(params)


class Stall(Resting):
    """Judges the standstill of one run."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._most_running = 0.0
        self._starved_since_s: float | None = None
        self._taken = 0
        self._patience_s = min(params.running, params.gpu_idle, params.waiting, params.starved)

    def judge(self, window: Window, at_s: float) -> Judgement:
        """Return whether the engine stands still at a time."""
        last = window.last
        self.rest_s, self.least, self.calm_s = 0.0, 0, -inf
        if window.crashed_s is not None:
            return Finding(window.crashed_s, at_s - window.crashed_s, {"crashed": 1.0})
        if last is None or window.stopped or window.paused:
            return NoEvidence()
        self._take(window.fresh(self._taken))
        self._taken = window.count
        if window.zero_since_s is None and self._starved_since_s is None:
            # whatever begins now must last for longer, and begins with a record that shows strain
            self.rest_s, self.least, self.calm_s = self._patience_s, self._taken + 1, CALM_S
            return CLEAR
        if window.zero_since_s is not None:
            patience_s = self._params.running if last.running else self._params.waiting
            since_s = max(window.zero_since_s, window.eyes.moved_s or window.zero_since_s)
            idle_s = window.eyes.work.idle_since_s(at_s) if last.running else None
            idle_from_s = None if idle_s is None else max(since_s, idle_s)
            is_idle = idle_from_s is not None and at_s - idle_from_s >= self._params.gpu_idle
            if is_idle or at_s - since_s >= patience_s:
                # what it still did before it fell idle says nothing of why this is found
                work = window.eyes.work.since(idle_from_s if is_idle and idle_from_s else since_s, at_s)
                seen = {} if work is None or not last.running else {"gpu_work": work}
                return Finding(since_s, at_s - since_s, _evidence(window, last, at_s) | seen)
        if self._starved_since_s is not None and last.ts_s - self._starved_since_s >= self._params.starved:
            return Finding(self._starved_since_s, at_s - self._starved_since_s, _evidence(window, last, at_s))
        return CLEAR

    def _take(self, records: Sequence[Stats]) -> None:
        if sum([record.waiting for record in records]):
            for record in records:
                self._starving(record)
        elif records:  # nothing starves where nothing waits
            most = max([record.running for record in records])
            self._most_running = max(float(most), self._most_running * LESS ** len(records))
            self._starved_since_s = None

    def _starving(self, last: Stats) -> None:
        """Note since when a queue has stood beside a pool with room, with far fewer running than usual."""
        self._most_running = max(float(last.running), self._most_running * LESS)
        queues = last.waiting > last.running and last.kv_usage < 0.5
        if not queues or last.running > max(1.0, 0.5 * self._most_running):
            self._starved_since_s = None
        elif self._starved_since_s is None:
            self._starved_since_s = last.ts_s


CLEAR = Clear()


def _evidence(window: Window, last: Stats, at_s: float) -> dict[str, float]:
    return {
        "running": float(last.running),
        "waiting": float(last.waiting),
        "usage_now": last.kv_usage,
        "silent_s": window.silent_s(at_s),
        "generation_tps": last.generation_tps,
    }
