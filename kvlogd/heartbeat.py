"""A URL that is fetched as long as all goes well: whoever expects it calls people when it stays away.

Promises that a server which hangs holds up nothing, that a few requests at most are under way, and that the URL, which
is a secret, is said nowhere. Does not care what is answered.
"""

import http.client
import threading
import urllib.error
import urllib.request
from contextlib import suppress

PATIENCE_S = 10.0
MOST_HANGING = 3
"""Requests that a server may hold open before none is added."""


class Heartbeat:
    """Beats every so often while it is told that all is well."""

    def __init__(self, url: str, every_s: float) -> None:
        self._url = url
        self._every_s = every_s
        self._beaten_s = float("-inf")
        self._threads: list[threading.Thread] = []
        self._reached: bool | None = None

    @property
    def is_reached(self) -> bool | None:
        """Whether the last request was answered; None where none has ended yet."""
        return self._reached

    def beat(self, now_s: float, *, is_well: bool) -> None:
        """Fetch the URL, where it is time and all is well; `now_s` is monotonic."""
        if not is_well or now_s - self._beaten_s < self._every_s:
            return
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) >= MOST_HANGING:
            return
        self._beaten_s = now_s
        thread = threading.Thread(target=self._fetch, name="heartbeat", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _fetch(self) -> None:
        reached = False
        # whatever is wrong with the URL or behind it, the next beat tries again
        with suppress(OSError, ValueError, http.client.HTTPException):
            request = urllib.request.Request(self._url, headers={"User-Agent": "kvlogd"})  # noqa: S310 - checked before
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310
                reached = answer.status < 400
        self._reached = reached
