"""A postman at work, for the tests of sending, and what can be seen of its children."""

import os
import threading
from pathlib import Path

from kvlogd.model import Letter, Outcome, Panel, Severity
from kvlogd.postman import Postman
from tests.waiting import until

LETTER = Letter("kv-leak chat/0", "free blocks fall\n- look at /metrics", "<p>free blocks fall</p>", Severity.CRITICAL)
TAKEN = Outcome(None, 200)


class Office:
    """A postman, and what became of the messages that were given to it."""

    def __init__(self, deadline_s: float = 30.0, idle_s: float = 30.0) -> None:
        self.woken = threading.Event()
        self.postman = Postman(self.woken.set, deadline_s=deadline_s, idle_s=idle_s)
        self.outcomes: dict[int, Outcome] = {}
        self.now_s = 1000.0
        """The time that the postman is told; it goes on when a test says so."""

    def send(self, ticket: int, url: str, channel: str = "oncall", letter: Letter = LETTER) -> None:
        self.postman.send(ticket, channel, url, letter, None, self.now_s)

    def sent(self, url: str, letter: Letter = LETTER, panel: Panel | None = None, channel: str = "oncall") -> Outcome:
        """Send a message and return what became of it."""
        ticket = 1_000_000 + len(self.outcomes)
        self.postman.send(ticket, channel, url, letter, panel, self.now_s)
        return self.outcome(ticket)

    def poll(self) -> bool:
        """Let the postman look; return True, for conditions that are waited for."""
        for ticket, outcome in self.postman.poll(self.now_s):
            assert ticket not in self.outcomes
            self.outcomes[ticket] = outcome
        return True

    def outcome(self, ticket: int) -> Outcome:
        until(lambda: self.poll() and ticket in self.outcomes)
        return self.outcomes[ticket]


def children(of: int | None = None) -> set[int]:
    """Return the processes that a process, this one if none is named, has as children; zombies too."""
    pid = os.getpid() if of is None else of
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return {int(word) for task in tasks for word in task.read_text().split()}


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
