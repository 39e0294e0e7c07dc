"""The requests that decode, as sums: a step moves all of them on, so none of them is looked at until it ends.

Each request counts as generated the steps since its start. How many blocks they hold together follows from their
number and from how many of them stand at each of the 16 places of a block.
"""

import heapq
from collections.abc import Iterator

from bench.traces.plan import BLOCK_TOKENS


class Request:
    """One request from its arrival to its end."""

    __slots__ = (
        "aborted",
        "arrived_s",
        "ends",
        "hit",
        "made",
        "prompt",
        "reserved",
        "session",
        "started",
        "stop",
        "tenant",
        "to_prefill",
    )

    def __init__(self, arrived_s: float, prompt: int, stop: int, aborted: bool) -> None:
        self.arrived_s = arrived_s
        self.prompt = prompt
        self.stop = stop
        """Tokens after which it ends, or is aborted."""
        self.aborted = aborted
        self.hit = 0
        """Tokens of its prompt that were in the prefix cache."""
        self.session: int | None = None
        self.tenant: tuple[int, int] | None = None
        """Version and number of the system prompt that it shares."""
        self.made = 0
        """Tokens generated before it was preempted; while it decodes, see `Decoders.made`."""
        self.to_prefill = 0
        self.reserved = 0
        """Blocks of its own that it holds while it is prefilled."""
        self.started = 0
        self.ends = -1
        """The step count at which it ends; -1 while it does not decode."""


def blocks_for(tokens: int, shared: int) -> int:
    """Return the blocks of its own that a request of so many tokens holds when its next token has a place."""
    return (tokens + BLOCK_TOKENS) // BLOCK_TOKENS - shared


class Decoders:
    """All requests of an engine that decode."""

    def __init__(self) -> None:
        self.steps = 0
        self.count = 0
        self._tokens = 0
        self._whole = 0
        self._places = [0] * BLOCK_TOKENS
        self._ends: list[tuple[int, int, Request]] = []
        self._numbers = 0

    @property
    def context(self) -> int:
        """Return the tokens that all of them hold."""
        return self._tokens + self.count * self.steps

    @property
    def blocks(self) -> int:
        """Return the blocks of their own that all of them hold."""
        whole, place = divmod(self.steps, BLOCK_TOKENS)
        return self._whole + self.count * whole + sum(self._places[BLOCK_TOKENS - place :] if place else ())

    def made(self, request: Request) -> int:
        """Return the tokens that a request has generated."""
        return min(self.steps - request.started, request.stop)

    def add(self, request: Request, at_step: int, shared: int) -> None:
        """Take over a request whose prefill ended in a step, which gives its first token."""
        request.started = at_step - 1 - request.made
        request.ends = request.started + request.stop
        self._numbers += 1
        heapq.heappush(self._ends, (request.ends, self._numbers, request))
        self._count(request, shared, 1)

    def remove(self, request: Request, shared: int) -> None:
        """Let go of a request, ended or not."""
        request.made = self.made(request)
        request.ends = -1
        self._count(request, shared, -1)

    def next_end(self) -> int | None:
        """Return the step count at which the next request ends."""
        ends = self._ends
        while ends and ends[0][0] != ends[0][2].ends:
            heapq.heappop(ends)
        return ends[0][0] if ends else None

    def ended(self) -> Iterator[Request]:
        """Yield those that have all their tokens; the caller removes each."""
        while (first := self.next_end()) is not None and first <= self.steps:
            yield heapq.heappop(self._ends)[2]

    def _count(self, request: Request, shared: int, sign: int) -> None:
        tokens = request.prompt - request.started
        whole, place = divmod(tokens + BLOCK_TOKENS - shared * BLOCK_TOKENS, BLOCK_TOKENS)
        self.count += sign
        self._tokens += sign * tokens
        self._whole += sign * whole
        self._places[place] += sign
