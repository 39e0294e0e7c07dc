"""`capacity`: the pool is too small for what is asked of it: full with a queue that grows or stands, or prompts
larger than the whole pool; without such a queue it is only busy (severity info).

Full is a pool at 95 %, or with less room than one more request like those running would take. Requests that wait
for something else (deferred) are no queue, nor are those that wait for a seat (max_num_seqs). The queue must stand
without a break for two minutes before a full pool (ten where only the room for one more is missing) and be half as
long as what runs, or grow all the while; one that shrinks, or is gone for a record, is a burst that drains. Where
the pool's size is known, the wait that the queue means (Little: queue to running, times how long tokens stay) must
be half a minute; elsewhere the queue must grow steadily, or stand for five minutes. With nothing running, requests
waiting and room in the pool, the prompt at the head of the queue does not fit if requests may be as long as the pool.
Cannot see: why the requests hold so much; whether a leak filled the pool (that is `trend`'s and `floor`'s to say).
"""

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from kvlogd.fields import Duration, Points
from kvlogd.model import Abstained, Clear, EventKind, Finding, Judgement, NoEvidence, Per, Run, Severity, Stats
from kvlogd.rest import CALM_S, Resting
from kvlogd.window import CROWDED, Window

NAME = "capacity"
SCOPES = frozenset({Per.ENGINE})

NEARLY = 0.9
"""Usage from which on a queue may stand because the next request is larger than most."""
LEAST_RECORDS = 6
BREAK_S = 60.0
"""A queue that did not wait for blocks for so long, and for three records, is another one when it does again."""
LONG_WAIT_S = 30.0
"""A shorter wait in the queue is nobody's trouble."""
STEADY = 0.5
UNSURE = 2.5
"""Where the pool's size is not known, a queue that goes up and down may be over in seconds: it must have risen by this
share of its ups and downs, or stand that much longer."""
HEAVY = 0.5
"""Requests wait half as long as they run (Little: waiting to running), and longer."""
GROWS = 1.5
"""By what factor the second half of the queue's time must pass the first for it to count as growing."""
DRAINS = 0.8
"""A second half below this share of the first is a burst that drains."""
PREFILLING = 10.0
"""Prompt tokens to generated ones from which on a queue may wait for its turn in the batch, not for blocks."""
AS_LONG = 0.95
"""Requests that may be as long as this share of the pool may not fit: other groups and the null block take some."""
BUSY_HALF_S = 900.0
"""After so long, time spent full counts half."""
KEPT = 120
MOST_REST_S = 60.0
"""It is asked as often at least while nothing is full and nothing waits."""


class Params(BaseModel):
    """When a pool is full, and for how long a queue must stand."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    full: Points = 0.95
    queue: Duration = 120.0
    """How long a queue must stand or grow before a full pool."""
    blocked: Duration = 600.0
    """The same where the pool is not full, but has no room for one more like those running."""
    busy: Duration = 60.0
    """How long the pool must have been full of late, without such a queue, to be called busy."""
    too_long: Duration = 60.0
    """How long requests must wait beside an empty pool with nothing running."""


class Moment(NamedTuple):
    """One record of a queue."""

    at_s: float
    queued: int
    running: int
    full: bool
    usage: float
    tokens: float
    """Prompt and generated tokens a second."""


def make(params: Params) -> "Capacity":
    """Return an evaluator for one run."""
    return Capacity(params)


class Capacity(Resting):
    """Judges the queue before the pool of one run."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._taken = 0
        self._queue: list[Moment] = []
        self._stride = 1
        """Only each so-many-th record of a long queue is kept."""
        self._skipped = 0
        self._blocked_s = 0.0
        """When requests were last seen waiting for blocks."""
        self._since_blocked = 0
        self._full_s = 0.0
        """Time spent full, older time counting less."""
        self._full_since_s: float | None = None
        self._last_s = 0.0
        self._patience_s = min(params.queue, params.busy, params.too_long, MOST_REST_S)
        # what is full for this rule must be strained for the window too
        self._calm_s = CALM_S if params.full >= CROWDED else -inf

    def judge(self, window: Window, at_s: float) -> Judgement:
        """Return whether the pool is too small for what is asked at a time."""
        last = window.last
        self.rest_s, self.least, self.calm_s = 0.0, 0, -inf
        if last is None or window.crashed_s is not None or window.stopped or window.paused:
            return NoEvidence()
        fresh = window.count - self._taken
        if fresh:
            records = window.fresh(self._taken)
            self._taken = window.count
            for stats in records:
                # the most usual record has nothing to note
                if stats.kv_usage >= 0.5 or self._queue or self._full_since_s is not None:
                    self._observe(stats, window)
        if not self._queue and self._full_since_s is None and window.zero_since_s is None:
            # whatever begins now must last for longer, and begins with a record that shows strain
            self.rest_s, self.least, self.calm_s = self._patience_s, self._taken + 1, self._calm_s
            return CLEAR
        if not last.running and not self._queue:
            return self._nothing_runs(window, last, at_s)
        if not self._queue and self._full_s < self._params.busy:
            return CLEAR
        return self._look(window, last)

    def _observe(self, stats: Stats, window: Window) -> None:
        usage, full_at = stats.kv_usage, self._params.full
        if not (stats.prompt_tps or stats.generation_tps) and (stats.running or stats.waiting):
            return  # a record that may be frozen proves no queue
        if usage >= full_at or self._full_since_s is not None:
            self._note_full(stats.ts_s, 3 * (window.interval_s or 10.0), usage >= full_at)
        queued = stats.waiting - (stats.deferred or 0)
        if queued > 0 and short_of_blocks(stats, window.run, full_at):
            self._blocked_s, self._since_blocked = stats.ts_s, 0
        else:
            self._since_blocked += 1
            if queued <= 0 or (stats.ts_s - self._blocked_s > BREAK_S and self._since_blocked >= 3):
                self._queue, self._stride = [], 1
                return
        tokens = stats.prompt_tps + stats.generation_tps
        self._keep(Moment(stats.ts_s, queued, stats.running, usage >= full_at, usage, tokens))

    def _keep(self, moment: Moment) -> None:
        self._skipped += 1
        if self._queue and self._skipped < self._stride:
            return
        self._skipped = 0
        self._queue.append(moment)
        if len(self._queue) > KEPT:
            self._queue, self._stride = self._queue[::2], 2 * self._stride

    def _note_full(self, at_s: float, longest_s: float, full: bool) -> None:
        """Add up the time spent full, silences left out; what is older counts less."""
        gap_s = at_s - self._last_s if self._full_since_s is not None else 0.0
        self._full_s *= 0.5 ** (gap_s / BUSY_HALF_S)
        if full and gap_s <= longest_s:
            self._full_s += gap_s
        if self._full_since_s is None:
            self._full_since_s = at_s
        elif not full and self._full_s < 1.0:
            self._full_s, self._full_since_s = 0.0, None
        self._last_s = at_s

    def _look(self, window: Window, last: Stats) -> Judgement:
        found = self._stands(window, last)
        if found is not None:
            return found
        if self._full_s >= self._params.busy:
            evidence = _evidence(window, last, self._full_s) | {"full_for": self._full_s}
            return Finding(self._full_since_s or last.ts_s, last.kv_usage, evidence, Severity.INFO)
        return CLEAR

    def _stands(self, window: Window, last: Stats) -> Finding | None:
        """Return a finding where the queue stands or grows, and has for long enough."""
        queue, n = self._queue, len(self._queue)
        if n < LEAST_RECORDS or queue[-1].at_s - queue[0].at_s < self._params.queue:
            return None
        lasted_s = queue[-1].at_s - queue[0].at_s
        if 2 * sum([moment.full for moment in queue]) < n and lasted_s < self._params.blocked:
            return None
        first, second = queue[: n // 2], queue[-(n // 2) :]
        early, late = mean_queued(first), mean_queued(second)
        running = max(1.0, sum([moment.running for moment in second]) / len(second))
        grows = late >= GROWS * early and late >= max(2.0, HEAVY / 2 * running)
        if late < DRAINS * early or not (grows or late >= HEAVY * running):
            return None
        evidence = _evidence(window, last, lasted_s)
        evidence |= {"queued": late, "beside": running, "queue_per_h": (late - early) / lasted_s * 7200}
        pool = window.pool_tokens()
        if pool:
            stay_s = sum([m.usage for m in second]) * pool / max(1.0, sum([m.tokens for m in second]))
            evidence["wait_s"] = late / running * stay_s
            if evidence["wait_s"] < LONG_WAIT_S:
                return None
        elif lasted_s < UNSURE * self._params.queue and not steady(queue):
            return None
        return Finding(queue[0].at_s, late, evidence)

    def _nothing_runs(self, window: Window, last: Stats, at_s: float) -> Judgement:
        """Judge a queue with nothing running: the prompt at its head may be larger than the pool."""
        refused = window.events.get(EventKind.PRESSURE)
        if not (last.waiting - (last.deferred or 0) > 0 and window.zero_since_s is not None and last.kv_usage < 0.5):
            return CLEAR
        if at_s - window.zero_since_s < self._params.too_long:
            return CLEAR
        pool, longest = window.pool_tokens(), window.run.max_model_len
        if not refused and (not pool or not longest):
            return Abstained("requests wait beside an empty pool; its size and that of requests are not in the log")
        if not refused and (longest or 0) < AS_LONG * (pool or 0):
            return CLEAR
        evidence = _evidence(window, last, at_s - window.zero_since_s) | {"queued": float(last.waiting)}
        if longest:
            evidence["longest_tokens"] = float(longest)
        return Finding(window.zero_since_s, float(last.waiting), evidence)


CLEAR = Clear()


def mean_queued(moments: Sequence[Moment]) -> float:
    """Return the mean number of requests in the queue."""
    return sum([moment.queued for moment in moments]) / len(moments)


def steady(moments: Sequence[Moment]) -> bool:
    """Return whether a queue grows from record to record: what waits in it is not served within seconds."""
    ways = sum([abs(b.queued - a.queued) for a, b in pairwise(moments)])
    return moments[-1].queued - moments[0].queued >= STEADY * max(1, ways)


def short_of_blocks(stats: Stats, run: Run, full: float) -> bool:
    """Return whether the requests that wait in a record wait for blocks."""
    usage, running = stats.kv_usage, stats.running
    if usage >= full:
        return True
    if run.max_num_seqs and running >= run.max_num_seqs:
        return False
    if usage >= NEARLY:
        return True
    no_room = running > 0 and usage * (1 + 1 / running) >= 1.0
    return no_room and stats.prompt_tps <= PREFILLING * stats.generation_tps


def _evidence(window: Window, last: Stats, lasted_s: float) -> dict[str, float]:
    evidence = {
        "usage_now": last.kv_usage,
        "running": float(last.running),
        "waiting": float(last.waiting),
        "lasted_s": lasted_s,
    }
    pool = window.pool_tokens()
    if pool:
        evidence["pool_tokens"] = float(pool)
        if last.running:
            evidence["tokens_each"] = float(round(last.kv_usage * pool / last.running))
    return evidence
