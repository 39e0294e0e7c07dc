"""How busy the GPUs of an engine were of late, as far as it is known which are its. Pure.

Times are those of its log when a reading came. A GPU that is busy proves nothing: a kernel that waits for another GPU
for ever is busy, too. One that computes nothing for minutes while requests run is sure.
"""

from collections import deque

KEPT = 40
FRESH_S = 90.0
"""A reading is of the present for so long."""
IDLE = 0.02
"""Share of the time in which kernels run below which a GPU does no work; other processes look at it, too."""


class Work:
    """The readings of one engine's GPUs."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque(maxlen=KEPT)
        self._idle_since_s: float | None = None

    def observe(self, at_s: float, util: float) -> None:
        """Take in how busy the busiest of them was. What they did where nobody looked for long is not known."""
        if not self._is_known(at_s):
            self._recent.clear()
            self._idle_since_s = None
        if util >= IDLE:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = at_s
        self._recent.append((at_s, util))

    def idle_since_s(self, at_s: float) -> float | None:
        """Return since when they have done no work; None where they do, or where it is not known."""
        return self._idle_since_s if self._is_known(at_s) else None

    def since(self, since_s: float, at_s: float) -> float | None:
        """Return how busy they have been since a time, 0..1; None where it is not known."""
        seen = [util for one_s, util in self._recent if since_s <= one_s <= at_s]
        return sum(seen) / len(seen) if seen and self._is_known(at_s) else None

    def _is_known(self, at_s: float) -> bool:
        return bool(self._recent) and at_s - self._recent[-1][0] <= FRESH_S
