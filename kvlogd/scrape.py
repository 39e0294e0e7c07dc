"""Asks one vLLM for its /metrics every 10 s, in a thread of its own, and keeps what was told until the loop takes it.

Promises: the loop never waits for it; a request ends within 5 s, whatever the other side does; no more than 8 MiB are
read; no other host than the named one is asked, no proxy is used, and nothing is sent but the path. What fails is a
state with its mend, and is tried again for ever; nothing is told of the time in between.
Does not promise to end a look-up of a host's name that hangs: nothing is told until it ends.
"""

import io
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urljoin, urlsplit

from kvlogd.clock import Clock
from kvlogd.errors import SourceError
from kvlogd.exposition import Page, read
from kvlogd.interval import scrapes
from kvlogd.model import Scrape
from kvlogd.piece import Health

if TYPE_CHECKING:
    from http.client import HTTPResponse

EVERY_S = 10.0
CONNECT_S, WHOLE_S = 2.0, 5.0
"""How long a connection and the whole request may take."""
MOST_BYTES = 8 << 20
PATIENCE = 3
"""Failures in a row until it is called a trouble: a server that restarts is away for a while."""
KEPT_PAGES = 60
"""Pages that wait for the loop, and for the log to be read to its end; older ones are dropped."""
_REDIRECTS = (301, 302, 303, 307, 308)
_BLOCK = 1 << 16

AWAY = "nothing answers there: is the server up, and is this its address and port?"
UNTRUSTED = "the server speaks no TLS that this host trusts: name its http:// address on this host"
SLOW = f"the server does not answer within {WHOLE_S:.0f} s: is it overloaded, or is this another service?"
REFUSED = "the server asks for a key, and kvlogd has none to give: leave /metrics open to this host"
ELSEWHERE = "the server sends kvlogd elsewhere, and it does not follow to other hosts: write the address itself"
MISSING = "the server has no such page: is the path right? vLLM's is /metrics"
FAILED = "the server fails to make the page: see its log"
TOO_LARGE = f"the page is larger than {MOST_BYTES >> 20} MiB: is this vLLM's /metrics?"
BROKEN = "the answer is no HTTP, or cut short: is this vLLM's /metrics?"
NO_THREAD = "the system has no thread to spare: raise TasksMax= of the unit"
NO_SERIES = "the page has no series of vLLM: is this its /metrics, and are its statistics on?"


class State(NamedTuple):
    """How it fares; put in place of the one before as a whole, for two threads look at it."""

    pages: int = 0
    """Pages that were read."""
    failed: int = 0
    """Failures since the last of them."""
    mend: str = ""
    faults: int = 0
    """Errors in kvlogd itself."""
    unread: int = 0
    """Lines of ours that could not be read, of the last page."""
    last_s: float | None = None


class Scraper:
    """The thread that asks one URL, and what it was told."""

    def __init__(self, name: str, url: str, clock: Clock) -> None:
        self.name = f"{name} /metrics"
        self.state = State()
        self._url = url
        self._clock = clock
        self._pages: deque[list[Scrape]] = deque(maxlen=KEPT_PAGES)
        self._before: tuple[Page, float] | None = None
        self._closing = threading.Event()
        self._start_at_s: float | None = float("-inf")
        """When the thread is to be started; None once it was."""
        self._start()

    def taken(self) -> list[Scrape]:
        """Return what was told since the last call, oldest first."""
        found: list[Scrape] = []
        while self._pages:
            found += self._pages.popleft()
        return found

    def is_waiting(self) -> bool:
        """Return whether something was told since the last `taken`."""
        if self._start_at_s is not None:
            self._start()
        return bool(self._pages)

    def health(self) -> Health:
        """Return how it fares."""
        state = self.state
        if state.failed >= PATIENCE:
            return Health(self.name, "unreadable", None, state.mend)
        return Health(self.name, "reading" if state.pages and not state.failed else "waiting", None, state.mend)

    def close(self) -> None:
        """Have the thread end by itself: at once, or when the request that is under way ends."""
        self._closing.set()

    def _start(self) -> None:
        """Start the thread, where it is time; a system that has none to spare is asked again later."""
        now_s = self._clock.monotonic_s()
        if self._start_at_s is None or now_s < self._start_at_s:
            return
        self._thread = threading.Thread(target=self._serve, name=self.name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self.state = self.state._replace(failed=self.state.failed + 1, mend=NO_THREAD)
            self._start_at_s = now_s + EVERY_S
        else:
            self._start_at_s = None

    def _serve(self) -> None:
        while not self._closing.is_set():
            began_s = self._clock.monotonic_s()
            try:
                self._round(began_s)
            except Exception as error:  # noqa: BLE001  # a fault in here must not end the service
                mend = f"kvlogd failed: {type(error).__name__}; please report it"
                self.state = self.state._replace(failed=self.state.failed + 1, mend=mend, faults=self.state.faults + 1)
            self._closing.wait(max(0.1 * EVERY_S, EVERY_S - (self._clock.monotonic_s() - began_s)))

    def _round(self, began_s: float) -> None:
        """Ask once, and keep what was told."""
        state = self.state
        try:
            text, at_s = self._get(began_s + WHOLE_S)
            page = read(text)
            if not page.readings:
                raise SourceError("no series of vLLM", mend=NO_SERIES)
        except SourceError as error:
            self.state = state._replace(failed=state.failed + 1, mend=error.mend or "")
            return
        before, since_s = self._before or (None, None)
        if since_s is not None and at_s <= since_s:
            before = since_s = None  # the host's clock was set back: nothing lies between the two
        self._before = page, at_s
        self._pages.append(scrapes(before, since_s, page, at_s))
        self.state = State(state.pages + 1, 0, "", state.faults, page.unread, at_s)

    def _get(self, end_s: float) -> tuple[bytes, float]:
        """Return a page and the time of it. Raises SourceError."""
        url = self._url
        for _ in range(2):
            found = _ask(url, self._clock, end_s)
            if isinstance(found, bytes):
                return found, self._clock.wall_s()
            url = _same_host(url, found.location)
        raise SourceError("redirected twice", mend=ELSEWHERE)


class _Moved(NamedTuple):
    """The answer is somewhere else."""

    location: str


def _same_host(url: str, location: str) -> str:
    """Return where a redirect leads to. Raises SourceError where that is another server."""
    target = urljoin(url, location)
    old, new = urlsplit(url), urlsplit(target)
    if (old.scheme, old.netloc) != (new.scheme, new.netloc):
        raise SourceError("redirected to another host", mend=ELSEWHERE)
    return target


def _ask(url: str, clock: Clock, end_s: float) -> bytes | _Moved:
    """Return the body of the answer to a GET. Raises SourceError for all that can go wrong."""
    from http.client import HTTPException  # 7 MiB with all that it needs: only for those who ask for /metrics

    try:
        with _connected(url) as sock:
            sock.settimeout(CONNECT_S)
            sock.sendall(_request(url))
            return _body(sock, clock, end_s)
    except TimeoutError as error:
        raise SourceError("too slow", mend=SLOW) from error
    except HTTPException as error:
        raise SourceError("no HTTP", mend=BROKEN) from error
    except OSError as error:
        raise SourceError("not reached", mend=UNTRUSTED if type(error).__name__.startswith("SSL") else AWAY) from error
    except ValueError as error:  # what servers may write into a header or the size of a chunk
        raise SourceError("no HTTP", mend=BROKEN) from error


def _connected(url: str) -> socket.socket:
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    sock = socket.create_connection((parts.hostname or "", parts.port or (443 if is_tls else 80)), CONNECT_S)
    if not is_tls:
        return sock
    import ssl

    try:
        return ssl.create_default_context().wrap_socket(sock, server_hostname=parts.hostname)
    except OSError:
        sock.close()
        raise


def _request(url: str) -> bytes:
    parts = urlsplit(url)
    path = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
    head = (f"GET {path} HTTP/1.1", f"Host: {parts.netloc}", "Accept: text/plain", "Accept-Encoding: identity")
    return "\r\n".join([*head, "User-Agent: kvlogd", "Connection: close", "", ""]).encode("ascii", "replace")


def _body(sock: socket.socket, clock: Clock, end_s: float) -> bytes | _Moved:
    from http.client import HTTPResponse

    response = HTTPResponse(_Timed(sock, clock, end_s), method="GET")  # type: ignore[arg-type]
    try:
        response.begin()
        if response.status in _REDIRECTS:
            return _Moved(response.getheader("Location") or "")
        if response.status != 200:
            raise SourceError(f"status {response.status}", mend=_mend_of(response.status))
        return b"".join(_blocks(response))
    finally:
        response.close()


def _blocks(response: "HTTPResponse") -> Sequence[bytes]:
    blocks, size = [], 0
    while block := response.read1(_BLOCK):
        blocks.append(block)
        size += len(block)
        if size > MOST_BYTES:
            raise SourceError("too large", mend=TOO_LARGE)
    if response.length:  # it promised more
        raise SourceError("cut short", mend=BROKEN)
    return blocks


def _mend_of(status: int) -> str:
    if status in (401, 403):
        return REFUSED
    return MISSING if status in (404, 405, 410) else FAILED


class _Timed(io.RawIOBase):
    """What a socket has to say, until a time: one that drips bytes must not hold the thread for ever."""

    def __init__(self, sock: socket.socket, clock: Clock, end_s: float) -> None:
        self._sock = sock
        self._clock = clock
        self._end_s = end_s

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return itself as the file that http.client reads."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        """Read some bytes; raises TimeoutError where the time is up."""
        left_s = self._end_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError
        self._sock.settimeout(left_s)
        return self._sock.recv_into(buffer)
