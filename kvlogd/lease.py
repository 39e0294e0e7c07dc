"""Cursors that one thread uses and another may end: a query runs while the writer commits, and must let it reopen.

Promises that a cursor is never closed while a call on it runs, and that who uses an ended one gets a StoreError that
says why. Knows threads, and no database: a cursor is what can interrupt and close.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from kvlogd.errors import StoreError

# An interrupt that comes before the query has begun is lost, so it is given again and again until the call returns.
_AGAIN_S = 0.01
_MOST_TIMES = 3000


class Cursor(Protocol):
    """What of a DuckDB cursor is used here."""

    def interrupt(self) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


Held = TypeVar("Held", bound=Cursor)


class Lease(Generic[Held]):
    """One cursor, lent to one thread at a time."""

    def __init__(self, cursor: Held) -> None:
        self.why: StoreError | None = None
        """Why it was ended, where it was not its user who did it."""
        self._cursor = cursor
        self._busy = threading.Lock()
        self._gate = threading.Lock()
        self._over = False

    @contextlib.contextmanager
    def use(self) -> Iterator[Held]:
        """Lend the cursor for one call; raises the reason where it has been ended."""
        with self._busy:
            if self.why is not None:
                raise self.why
            yield self._cursor

    def interrupt(self, why: StoreError) -> None:
        """Break off the call that runs on it, if one does, and refuse all later ones."""
        with self._gate:
            self.why = self.why or why
            if not self._over:
                self._cursor.interrupt()

    def close(self) -> None:
        """Close the cursor, once the call that runs on it is done."""
        with self._busy:
            self._close()

    def end(self, why: StoreError) -> bool:
        """Break off what runs and close the cursor; return False where the call on it does not return."""
        for _ in range(_MOST_TIMES):
            self.interrupt(why)
            if self._busy.acquire(timeout=_AGAIN_S):
                break
        else:
            return False
        try:
            self._close()
        finally:
            self._busy.release()
        return True

    def _close(self) -> None:
        # The gate keeps an interrupt away from a cursor that is going.
        with self._gate:
            if not self._over:
                self._over = True
                self._cursor.close()
