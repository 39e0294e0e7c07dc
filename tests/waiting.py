"""Waits for what another thread or process does."""

import time
from collections.abc import Callable

DEADLINE_S = 30.0


def until(condition: Callable[[], object]) -> None:
    """Return once a condition holds; fail if it never does."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
