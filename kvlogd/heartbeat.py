"""A URL that is fetched as long as all goes well: whoever expects it calls people when it stays away.

Promises that a server which hangs or answers a letter at a time holds up nothing and is left after a while, that a few
requests at most are under way, and that the URL, which is a secret, is said nowhere. Does not care what is answered.
"""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from urllib.request import OpenerDirector

PATIENCE_S = 10.0
"""How long a server may say nothing."""
MOST_S = 20.0
"""How long a whole answer may take."""
MOST_HANGING = 3
"""Requests that may be under way: also the name of a server can take long to be found."""


class Heartbeat:
    """Beats every so often while all is well."""

    def __init__(self) -> None:
        self._url: str | None = None
        self._every_s = 0.0
        self._beaten_s = float("-inf")
        self._attempts: list[_Attempt] = []
        self._reached: bool | None = None

    @property
    def is_reached(self) -> bool | None:
        """Whether the last request that has ended was answered; None where none has."""
        return self._reached

    def aim(self, url: str | None, every_s: float) -> None:
        """Fetch this URL so often from now on, or none."""
        self._url, self._every_s = url, every_s

    def under_way(self) -> int:
        """Return how many requests have not ended."""
        return sum(attempt.is_alive() for attempt in self._attempts)

    def beat(self, now_s: float, is_well: Callable[[], bool]) -> None:
        """Fetch the URL, where it is time and all is well; `now_s` is monotonic."""
        self._attempts = [attempt for attempt in self._attempts if attempt.is_alive()]
        for attempt in self._attempts:
            if now_s - attempt.begun_s >= MOST_S:
                attempt.cut()
        if self._url is None or now_s - self._beaten_s < self._every_s or not is_well():
            return
        if len(self._attempts) >= MOST_HANGING:
            return
        self._beaten_s = now_s
        try:
            self._attempts.append(_Attempt(self._url, now_s, self._ended))
        except RuntimeError:  # the system has no thread to spare
            self._ended(reached=False)

    def _ended(self, reached: bool) -> None:
        self._reached = reached


class _Attempt:
    """One request, in a thread of its own."""

    def __init__(self, url: str, begun_s: float, ended: Callable[[bool], None]) -> None:
        self.begun_s = begun_s
        self._url = url
        self._ended = ended
        self._sockets: list[socket.socket] = []
        self._is_cut = False
        self._thread = threading.Thread(target=self._fetch, name="heartbeat", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def cut(self) -> None:
        """Break off: who waits for an answer sees the end of it, and half an answer is none."""
        self._is_cut = True
        for one in list(self._sockets):
            with suppress(OSError):  # closed meanwhile
                one.shutdown(socket.SHUT_RDWR)

    def _fetch(self) -> None:
        # 7 MiB that only a daemon with a heartbeat needs
        import http.client
        import urllib.request

        reached = False
        # whatever is wrong with the URL or behind it, the next beat tries again
        with suppress(OSError, ValueError, http.client.HTTPException):
            request = urllib.request.Request(self._url, headers={"User-Agent": "kvlogd"})  # noqa: S310 - checked before
            with self._opener().open(request, timeout=PATIENCE_S) as answer:
                reached = answer.status < 400
        self._ended(reached and not self._is_cut)

    def _opener(self) -> "OpenerDirector":
        """Return what opens URLs as usual, and lets us know its sockets.

        A connection forgets its own as soon as the head of an answer is there; the body of a redirect is read after.
        """
        from http.client import HTTPConnection, HTTPSConnection
        from urllib.request import HTTPHandler, HTTPSHandler, build_opener

        sockets = self._sockets

        class Known:
            def __setattr__(self, name: str, value: object) -> None:
                if isinstance(value, socket.socket):
                    sockets.append(value)
                super().__setattr__(name, value)

        class PlainConnection(Known, HTTPConnection): ...

        class SecureConnection(Known, HTTPSConnection): ...

        class Plain(HTTPHandler):
            def http_open(self, req: Any) -> Any:
                return self.do_open(PlainConnection, req)

        class Secure(HTTPSHandler):
            def https_open(self, req: Any) -> Any:
                return self.do_open(SecureConnection, req)

        return build_opener(Plain, Secure)
