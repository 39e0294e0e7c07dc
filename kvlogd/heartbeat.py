"""A URL that is fetched as long as all goes well: whoever expects it calls people when it stays away.

Promises that a server which hangs holds up nothing, that a few requests at most are under way, and that the URL, which
is a secret, is said nowhere. Does not care what is answered.
"""

import threading
from collections.abc import Callable
from contextlib import suppress

PATIENCE_S = 10.0
MOST_HANGING = 3
"""Requests that a server may hold open before none is added."""


class Heartbeat:
    """Beats every so often while all is well."""

    def __init__(self) -> None:
        self._url: str | None = None
        self._every_s = 0.0
        self._beaten_s = float("-inf")
        self._threads: list[threading.Thread] = []
        self._reached: bool | None = None

    @property
    def is_reached(self) -> bool | None:
        """Whether the last request was answered; None where none has ended yet."""
        return self._reached

    def aim(self, url: str | None, every_s: float) -> None:
        """Fetch this URL so often from now on, or none."""
        self._url, self._every_s = url, every_s

    def beat(self, now_s: float, is_well: Callable[[], bool]) -> None:
        """Fetch the URL, where it is time and all is well; `now_s` is monotonic."""
        if self._url is None or now_s - self._beaten_s < self._every_s or not is_well():
            return
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) >= MOST_HANGING:
            return
        self._beaten_s = now_s
        thread = threading.Thread(target=self._fetch, args=[self._url], name="heartbeat", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _fetch(self, url: str) -> None:
        # 7 MiB that only a daemon with a heartbeat needs
        import http.client
        import urllib.request

        reached = False
        # whatever is wrong with the URL or behind it, the next beat tries again
        with suppress(OSError, ValueError, http.client.HTTPException):
            request = urllib.request.Request(url, headers={"User-Agent": "kvlogd"})  # noqa: S310 - checked before
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310
                reached = answer.status < 400
        self._reached = reached
