"""How one channel fares: when the next attempt may be made, and when people must hear that it is out of order. Pure.

Time is an argument; chance is derived from what is sent, so that the same course of events takes the same times.
"""

import hashlib
from collections import deque
from collections.abc import Iterable

from kvlogd.model import Fault, Outcome
from kvlogd.outbox import Notice

FIRST_WAIT_S, LONGEST_WAIT_S = 10.0, 600.0
BAD_WAIT_S = 3600.0
"""How often a channel that refuses is tried again: it may have been mended."""
BAD_AFTER = 3
"""Refusals in a row after which a channel is out of order."""
BAD_AFTER_S = 1800.0
"""How long a channel may fail otherwise before it is out of order."""
STUCK_S = 600.0
RATE_S = 60.0
_LASTING = (Fault.REFUSED, Fault.UNUSABLE)


def wait_s(attempts: int, seed: int) -> float:
    """Return how long to wait after so many failures: twice as long each time, three quarters to five of it."""
    whole = min(FIRST_WAIT_S * 2.0 ** min(attempts - 1, 20), LONGEST_WAIT_S)
    digest = hashlib.blake2s(f"{seed} {attempts}".encode(), digest_size=2).digest()
    return whole * (0.75 + int.from_bytes(digest, "big") / 0x1_0000 / 2)


class Line:
    """The state of one channel."""

    def __init__(self, burst: int) -> None:
        self.failures = 0
        self.fault: Fault | None = None
        self.status: int | None = None
        self.failing_since_s: float | None = None
        self.sent_s: float | None = None
        self.is_bad = False
        """It is out of order, which is told through the others."""
        self._refusals = 0
        self._rest_until_s = float("-inf")
        self._starts: deque[float] = deque(maxlen=burst)

    @classmethod
    def restored(cls, burst: int, waiting: Iterable[Notice], at_s: float, *, was_bad: bool = False) -> "Line":
        """Return a channel as it stood when its waiting notices were last tried; `was_bad` where others know of it."""
        line = cls(burst)
        for notice in waiting:
            if notice.fault is not None and notice.failed > line.failures:
                line.failures, line.fault, line.status = notice.failed, notice.fault, notice.status
                line._rest_until_s = min(notice.due_s, at_s + LONGEST_WAIT_S)
                line.failing_since_s = min(notice.planned_s, at_s)
        if line.fault in _LASTING:
            # not all of them need have been refusals: one more must show that it is out of order
            line._refusals = min(line.failures, BAD_AFTER - 1)
        line.is_bad = line.is_bad or (was_bad and line.fault is not None)
        return line

    def may_start(self, at_s: float) -> int:
        """Return how many messages may be begun now, counting the one that begins."""
        if at_s < self._rest_until_s:
            return 0
        burst = self._starts.maxlen or 0
        return burst - sum(at_s - start_s < RATE_S for start_s in self._starts)

    def started(self, at_s: float) -> None:
        """Say that an attempt begins."""
        self._starts.append(at_s)

    def ended(self, outcome: Outcome, seed: int, at_s: float) -> None:
        """Say what became of an attempt."""
        if outcome.fault is None:
            self.failures, self._refusals, self.fault, self.status = 0, 0, None, None
            self.failing_since_s, self.is_bad, self.sent_s = None, False, at_s
            self._rest_until_s = float("-inf")
            return
        self.failures += 1
        self.fault, self.status = outcome.fault, outcome.status
        if self.failing_since_s is None:
            self.failing_since_s = at_s
        self._refusals = self._refusals + 1 if outcome.fault in _LASTING else 0
        self.is_bad = (
            self.is_bad
            or outcome.fault is Fault.UNUSABLE
            or self._refusals >= BAD_AFTER
            or at_s - self.failing_since_s >= BAD_AFTER_S
        )
        pause_s = BAD_WAIT_S if outcome.fault in _LASTING and self.is_bad else wait_s(self.failures, seed)
        self._rest_until_s = at_s + max(pause_s, outcome.retry_after_s or 0.0)

    def is_stuck(self, at_s: float) -> bool:
        """Tell whether nothing has got out for so long that somebody should look."""
        return self.is_bad or (self.failing_since_s is not None and at_s - self.failing_since_s >= STUCK_S)

    def shift(self, by_s: float) -> None:
        """Move all times, where the host's clock was set."""
        self._rest_until_s += by_s
        self._starts = deque((start_s + by_s for start_s in self._starts), self._starts.maxlen)
        if self.failing_since_s is not None:
            self.failing_since_s += by_s
        if self.sent_s is not None:
            self.sent_s += by_s
