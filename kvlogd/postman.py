"""Sends messages from the daemon: one child a channel, started when needed, ended when idle, killed when it hangs.

Promises: nothing here waits, whatever the other side does; each message has one outcome, after the deadline at the
latest; a channel that hangs holds up no other; the URL goes through a pipe, never by argument or environment; children
end with this process, however that ends, and none is left as a zombie. Apprise is loaded in the children alone.
Does not promise that a message which failed was not delivered: a child that was killed cannot say.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import IO

from kvlogd.model import Fault, Letter, Outcome, Panel, Severity
from kvlogd.parcel import Flaw, Parcel, Warm, Word, pack, pack_urls, pack_warm, unpack_flaws, unpack_word

DEADLINE_S = 30.0
"""How long a message may take, the start of its child included."""
IDLE_S = 30.0
"""How long a child is kept for the next message; a start costs a second."""
FAREWELL_S = 1.0
VERIFY_S = 20.0
MOST_REACHED = 200
WARMING = -1
"""The ticket of no message: the child gets ready for one."""
_COMMAND = (sys.executable, "-P", "-m", "kvlogd.sender")
_PASSED_ON = frozenset({
    "PATH", "HOME", "LANG", "TZ", "TMPDIR", "CACHE_DIRECTORY", "XDG_CACHE_HOME", "MPLCONFIGDIR", "PYTHONPATH",
    "PYTHONHOME", "LD_LIBRARY_PATH", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR",
})  # fmt: skip
"""The variables that a child gets; `url_env` puts secrets into the others."""
_FEW_THREADS = {"OPENBLAS_NUM_THREADS": "1"}
"""What draws the charts would start a thread for each core, and the unit may have 128 of them."""


_Key = tuple[int, str, int, Severity | None]


class Postman:
    """The children of one process; `wake` is called from another thread when there is something to `poll` for."""

    def __init__(self, wake: Callable[[], None], *, deadline_s: float = DEADLINE_S, idle_s: float = IDLE_S) -> None:
        self._wake = wake
        self._deadline_s = deadline_s
        self._idle_s = idle_s
        self._children: dict[str, _Child] = {}
        self._failed: list[tuple[int, Outcome]] = []
        self._reached: dict[_Key, tuple[int, ...]] = {}
        """Who has a message already that others of the same channel have not."""
        self._keys: dict[int, _Key] = {}

    def is_free(self, channel: str) -> bool:
        """Tell whether a channel can take a message: one at a time, and none while its last child is dying."""
        child = self._children.get(channel)
        return child is None or child.is_idle

    def warm(self, channel: str, url: str, now_s: float) -> None:
        """Start the child of a channel that is to be sent something soon, unless it has one; `url` is where to."""
        if channel in self._children:
            return
        with suppress(OSError):  # then the message itself will tell
            child = self._children[channel] = _Child(self._wake)
            child.take(WARMING, pack_warm(Warm(url)), now_s)

    def send(self, ticket: int, channel: str, url: str, letter: Letter, panel: Panel | None, now_s: float) -> None:
        """Begin to send a message; `poll` returns its outcome under the ticket. The channel must be free.

        Who sends it again does so under the same ticket: then those who have it do not get it twice.
        """
        if not self.is_free(channel):
            raise ValueError(f"channel {channel} has a message in hand")
        child = self._children.get(channel)
        if child is None or not child.is_alive:
            self._dismiss(channel)
            try:
                child = self._children[channel] = _Child(self._wake)
            except OSError:  # no memory, no processes
                self._failed.append((ticket, Outcome(Fault.FAILED)))
                return
        # a ticket may come to mean something else: that it is over, or has become worse
        key = self._keys[ticket] = (ticket, channel, hash(url), letter.severity)
        child.take(ticket, pack(Parcel(url, letter, panel, self._reached.get(key, ()))), now_s)

    def poll(self, now_s: float) -> list[tuple[int, Outcome]]:
        """Return the outcomes that are there now, each once; ends children that hang or have nothing to do."""
        outcomes, self._failed = self._failed, []
        for channel, child in list(self._children.items()):
            words = [(ticket, word) for ticket, word in child.words(now_s, self._deadline_s) if ticket != WARMING]
            outcomes += [(ticket, self._noted(ticket, word)) for ticket, word in words]
            if child.is_idle and now_s - child.since_s >= self._idle_s:
                child.end()
            if not child.is_alive:
                self._dismiss(channel)
        return outcomes

    def _noted(self, ticket: int, word: Word) -> Outcome:
        """Remember who has a message that others still wait for."""
        key = self._keys.pop(ticket)
        known = {*self._reached.pop(key, ()), *word.reached}
        if word.outcome.fault is not None and known:
            self._reached[key] = tuple(sorted(known))
        while len(self._reached) > MOST_REACHED:
            del self._reached[next(iter(self._reached))]
        return word.outcome

    def _dismiss(self, channel: str) -> None:
        """Take leave of a child that has ended."""
        child = self._children.get(channel)
        if child is not None and child.is_over:
            child.close()
            del self._children[channel]

    def close(self) -> None:
        """End all children at once; what they had in hand has no outcome."""
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.wait(FAREWELL_S)
            child.close()
        self._children.clear()


class _Child:
    """One sending process, and the message that it has in hand."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._process = _started()
        self._ticket: int | None = None
        self.reply: bytes | None = None
        """What it said: nothing where it died, None where it has not answered yet."""
        self._carrier: threading.Thread | None = None
        self._is_ending = False
        self.since_s = 0.0
        """Since when it is at its message, or idle."""

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing in hand and may be given something."""
        return self._ticket is None and not self._is_ending

    @property
    def is_alive(self) -> bool:
        """Whether the process runs; asking takes leave of one that does not."""
        return self._process.poll() is None

    @property
    def is_over(self) -> bool:
        """Whether the process has ended and all that it said was heard."""
        return not self.is_alive and self._ticket is None and not (self._carrier and self._carrier.is_alive())

    def take(self, ticket: int, line: bytes, now_s: float) -> None:
        """Begin with a message."""
        self._ticket, self.reply, self.since_s = ticket, None, now_s
        self._carrier = threading.Thread(target=self._carry, args=(line,), name="carrier", daemon=True)
        try:
            self._carrier.start()
        except RuntimeError:  # no more threads
            self._carrier, self.reply = None, b""

    def _carry(self, line: bytes) -> None:
        """Bring the message to the child and wait for its word: in a thread of its own, for both may block."""
        reply = b""
        with suppress(OSError):  # it died: its ends of the pipes are closed
            while line:
                line = line[os.write(_pipe(self._process.stdin).fileno(), line) :]
            while not reply.endswith(b"\n") and (more := os.read(_pipe(self._process.stdout).fileno(), 4096)):
                reply += more
        self.reply = reply
        self._wake()

    def words(self, now_s: float, deadline_s: float) -> Iterator[tuple[int, Word]]:
        """Yield what became of the message in hand once it is known, or too late."""
        if self._ticket is None:
            return
        ticket = self._ticket
        if self.reply is not None:
            self._ticket, self.since_s = None, now_s
            if not self.reply:
                self.kill()  # it closed its output: it is gone, or will be
            yield ticket, unpack_word(self.reply)
        elif now_s - self.since_s >= deadline_s:
            self.kill()
            self._ticket = None
            yield ticket, Word(Outcome(Fault.TIMEOUT))

    def end(self) -> None:
        """Let it go: it ends when its input does."""
        self._is_ending = True
        with suppress(OSError):
            _pipe(self._process.stdin).close()

    def kill(self) -> None:
        """End it, and whatever it may have started, now."""
        self._is_ending = True
        if self.is_alive:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, longest_s: float) -> None:
        """Give it time to end."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(longest_s)
        if self._carrier is not None:
            self._carrier.join(longest_s)

    def close(self) -> None:
        """Let go of the pipes."""
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                _pipe(stream).close()


def _started() -> "subprocess.Popen[bytes]":
    """Start a child. A session of its own keeps signals to our group, as ^C sends them, from ending a send halfway."""
    return subprocess.Popen(
        _COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,  # a pipe with a buffer cannot be closed while another thread reads it
        start_new_session=True,
        env=_environment(os.environ),
    )


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    passed = {name: value for name, value in ours.items() if name.upper() in _PASSED_ON or name.startswith("LC_")}
    return passed | _FEW_THREADS


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise OSError("no pipe")
    return stream


def flaws(urls: Mapping[str, str], longest_s: float = VERIFY_S) -> dict[str, Flaw] | None:
    """Return the channels whose URLs are of no use, by one child that is asked and ended; waits for it.

    None where it does not answer in time: then nothing is known.
    """
    if not urls:
        return {}
    answered = threading.Event()
    try:
        child = _Child(answered.set)
    except OSError:
        return None
    try:
        child.take(0, pack_urls(urls), 0.0)
        answered.wait(longest_s)
        return unpack_flaws(child.reply or b"")
    finally:
        child.kill()
        child.wait(FAREWELL_S)
        child.close()
