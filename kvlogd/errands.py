"""Work that other threads want done in the main loop, because what it touches belongs to the loop alone.

Promises that an errand is run once or not at all, and that nobody waits longer than they said.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from kvlogd.errors import KvlogdError, StoreError

Result = TypeVar("Result")


class _Errand:
    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.done = threading.Event()
        self.result: Any = None
        self.error: KvlogdError | None = None


class Errands:
    """The errands that wait; `wake` makes the loop look."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: deque[_Errand] = deque()

    def ask(self, work: Callable[[], Result], patience_s: float) -> Result:
        """Have `work` done in the loop and return what it returns. Raises StoreError where the loop has no time."""
        errand = _Errand(work)
        self._waiting.append(errand)
        self._wake()
        if not errand.done.wait(patience_s):
            raise StoreError("the daemon is busy", mend="try again")
        if errand.error is not None:
            raise errand.error
        result: Result = errand.result
        return result

    def run(self) -> None:
        """Do what waits; called by the loop."""
        while self._waiting:
            errand = self._waiting.popleft()
            try:
                errand.result = errand.work()
            except KvlogdError as error:
                errand.error = error
            except OSError as error:
                errand.error = StoreError(f"cannot be told now: {error.strerror}", mend="try again")
            errand.done.set()
