"""Where requests come from while a server runs: streams by the minute, clients that refill, agents that take turns."""

import heapq
import math
from collections.abc import Iterator
from random import Random

from bench.traces.decoding import Request
from bench.traces.plan import BLOCK_TOKENS, Kind, Lengths, Plan, Sessions

NEVER_S = math.inf
SHORTEST_PROMPT = 8
LONGEST_TURN = 4096


class Arrivals:
    """The requests of one engine, in order of time."""

    def __init__(self, plan: Plan, rng: Random) -> None:
        self._plan = plan
        self._rng = rng
        self._totals = [sum(rates) for rates in zip(*(kind.per_s for kind in plan.kinds), strict=True)]
        self._next_s = self._after(0.0)
        self.agents = Agents(plan.sessions, rng) if plan.sessions else None

    def next_s(self) -> float:
        """Return when the next request comes, of those that do not wait for another to end."""
        return min(self._next_s, self.agents.next_s() if self.agents else NEVER_S)

    def skip_to(self, at_s: float) -> None:
        """Forget what came while the server was down."""
        self._next_s = self._after(at_s)

    def until(self, at_s: float) -> Iterator[Request]:
        """Yield what has come by a time."""
        while self._next_s <= at_s:
            yield self._request(self._next_s, self._kind_at(self._next_s))
            self._next_s = self._after(self._next_s)
        if self.agents:
            for turn in self.agents.until(at_s, self._plan):
                yield self._bounded(turn)

    def one_more(self, at_s: float) -> Request:
        """Return the request that a client of a closed loop sends next."""
        return self._request(at_s, self._plan.kinds[0])

    def _after(self, at_s: float) -> float:
        totals = self._totals
        minute = int(at_s // 60)
        while minute < len(totals):
            rate = totals[minute]
            if rate > 0:
                then = at_s + self._rng.expovariate(rate)
                if then < (minute + 1) * 60:
                    return then
            minute += 1
            at_s = minute * 60.0
        return NEVER_S

    def _kind_at(self, at_s: float) -> Kind:
        kinds = self._plan.kinds
        if len(kinds) == 1:
            return kinds[0]
        minute = int(at_s // 60)
        left = self._rng.random() * self._totals[minute]
        for kind in kinds:
            left -= kind.per_s[minute]
            if left <= 0:
                return kind
        return kinds[0]

    def _request(self, at_s: float, kind: Kind) -> Request:
        rng, lengths, hour = self._rng, kind.lengths, int(at_s // 3600)
        prompt = drawn(rng, lengths.prompt_mu, lengths.prompt_sigma, lengths.prompt_max, self._plan.prompt_scale[hour])
        output = drawn(rng, lengths.output_mu, lengths.output_sigma, lengths.output_max, self._plan.output_scale[hour])
        request = Request(at_s, max(SHORTEST_PROMPT, int(prompt)), max(1, int(output)), False)
        tenants = self._plan.tenants
        if kind.by_tenant and tenants:
            version = sum(from_s <= at_s for from_s in tenants.from_s) - 1
            tenant = rng.choices(range(len(tenants.weights)), tenants.weights)[0] if len(tenants.weights) > 1 else 0
            request.tenant = version, tenant
            request.prompt += tenants.blocks[version][tenant] * BLOCK_TOKENS
        return self._bounded(request)

    def _bounded(self, request: Request) -> Request:
        """Keep a request within what the pool can hold, and decide whether its client gives up."""
        tokens = self._plan.pool_blocks * BLOCK_TOKENS
        request.prompt = min(request.prompt, tokens // 2)
        request.stop = max(1, min(request.stop, tokens * 6 // 10 - request.prompt))
        if self._plan.abort_share and self._rng.random() < self._plan.abort_share:
            request.aborted = True
            request.stop = max(1, int(request.stop * self._rng.random()))
        return request


def drawn(rng: Random, mu: float, sigma: float, most: float, scale: float) -> float:
    """Return a log-normal length, scaled, with its limit."""
    return min(math.exp(mu + sigma * rng.gauss(0.0, 1.0)) * scale, most)


def mean_length(mu: float, sigma: float) -> float:
    """Return the mean of a log-normal length."""
    return math.exp(mu + sigma * sigma / 2)


def mean_context(lengths: Lengths) -> float:
    """Return the tokens that a request holds on average while it decodes."""
    longest_first = math.exp(2 * lengths.output_mu + 2 * lengths.output_sigma**2)
    output = mean_length(lengths.output_mu, lengths.output_sigma)
    prompt = min(mean_length(lengths.prompt_mu, lengths.prompt_sigma), lengths.prompt_max)
    return prompt + longest_first / (2 * output)


class Agents:
    """Sessions, each of which sends its next turn some time after the answer to its last."""

    def __init__(self, sessions: Sessions, rng: Random) -> None:
        self._sessions = sessions
        self._rng = rng
        self._context = [sessions.system_tokens] * sessions.agents
        self._turns = [self._turns_of_one() for _ in range(sessions.agents)]
        self.cached_at = [-math.inf] * sessions.agents
        """How many blocks the engine had handed out when the context of a session was last in use."""
        self._due = [(rng.expovariate(1 / (3 * sessions.think_s + 1)), one) for one in range(sessions.agents)]
        heapq.heapify(self._due)

    def next_s(self) -> float:
        """Return when the next turn is due."""
        return self._due[0][0] if self._due else NEVER_S

    def until(self, at_s: float, plan: Plan) -> Iterator[Request]:
        """Yield the turns that are due."""
        while self._due and self._due[0][0] <= at_s:
            due_s, session = heapq.heappop(self._due)
            yield self._turn(due_s, session, plan.prompt_scale[int(due_s // 3600)])

    def context(self, session: int) -> int:
        """Return the tokens that a session's next prompt begins with."""
        return int(self._context[session])

    def answered(self, request: Request, made: int, at_s: float, handed_out: int) -> None:
        """Take note that a turn ended; the next one follows, or the session ends and another begins."""
        session, sessions = request.session, self._sessions
        if session is None:
            return
        self._context[session] = min(request.prompt + made, sessions.max_context)
        self.cached_at[session] = handed_out
        self._turns[session] -= 1
        pause = sessions.think_s
        if self._turns[session] <= 0 or self._context[session] >= 0.95 * sessions.max_context:
            self._turns[session] = self._turns_of_one()
            self._context[session] = sessions.system_tokens
            self.cached_at[session] = -math.inf
            pause = 4 * sessions.think_s
        self._put(session, at_s, pause)

    def failed(self, request: Request, at_s: float) -> None:
        """Take note that a turn got no answer."""
        if request.session is not None:
            self._put(request.session, at_s, self._sessions.think_s)

    def forget_caches(self) -> None:
        """Take note that the process is a new one: nothing is cached."""
        self.cached_at = [-math.inf] * len(self.cached_at)

    def _put(self, session: int, at_s: float, pause_s: float) -> None:
        activity = self._sessions.activity[int(at_s // 60)]
        wait_s = 0.5 + self._rng.expovariate(activity / pause_s)
        heapq.heappush(self._due, (at_s + wait_s, session))

    def _turn(self, at_s: float, session: int, scale: float) -> Request:
        sessions, rng = self._sessions, self._rng
        new = math.exp(sessions.new_mu + sessions.new_sigma * rng.gauss(0.0, 1.0)) * scale
        prompt = min(self._context[session] + new, sessions.max_context)
        output = min(math.exp(sessions.output_mu + sessions.output_sigma * rng.gauss(0.0, 1.0)), LONGEST_TURN)
        request = Request(at_s, int(prompt), max(1, int(output)), False)
        request.session = session
        return request

    def _turns_of_one(self) -> int:
        return 1 + int(self._rng.expovariate(1 / self._sessions.turns))
