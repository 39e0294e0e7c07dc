"""Waits for what another thread or process does."""

import time
from collections.abc import Callable

DEADLINE_S = 30.0


def until(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Return once a condition holds; fail if it does not in time."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
