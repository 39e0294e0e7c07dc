"""One engine of a vLLM V1: FCFS admission, chunked prefill, decoding in steps, preemption of the last admitted.

Runs in slices of a second, longer where nothing happens. Within a slice the batch is constant; blocks are counted at
its end. Promises: blocks in use never exceed the pool, at most `max_num_seqs` run, and each block is held by somebody.
"""

from collections import deque
from random import Random

from bench.traces.arrivals import Arrivals
from bench.traces.decoding import Decoders, Request, blocks_for
from bench.traces.labels import TICK_S
from bench.traces.plan import BLOCK_TOKENS, LeakMode, Plan
from bench.traces.pool import Pool

SLICE_S = 1.0
SMALLEST_CHUNK = 256
LONGEST_QUEUE = 3000
HIT_RATE_REQUESTS = 1000
LEASE_S = 480.0
"""A prefill/decode pair gives up a transfer after this long."""
LEASES_THAT_EXPIRE = 0.01
CACHE_USE = 0.95
STEP_JITTER = 0.01


class Counts:
    """What an engine counts between two stats lines."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.preemptions = 0
        self.finished = 0
        self.aborted = 0
        self.token_s = 0.0
        self.tokens = 0
        self.hit_tokens = self.asked_tokens = 0
        self.finished_prompt_tokens = 0
        """Tokens of the prompts that ended, without those that the prefix cache had."""
        self.finished_generation_tokens = 0


class Engine:
    """The scheduler, the pool and the step clock of one process."""

    def __init__(self, plan: Plan, arrivals: Arrivals, rng: Random, *, leaks: bool) -> None:
        self.counts = Counts()
        self.pool = Pool(plan.pool_blocks, plan.tenants)
        self.decoders = Decoders()
        self.running: dict[Request, None] = {}
        """In order of admission."""
        self.waiting: deque[Request] = deque()
        self.hung = False
        self.moved = True
        """Whether any request got on in the last interval."""
        self.creep_factor = 1.0
        self._plan = plan
        self._arrivals = arrivals
        self._rng = rng
        self._leak = plan.leak if leaks else None
        self._bursts = deque(plan.leak.bursts) if plan.leak and leaks else deque()
        self._prefilling: deque[Request] = deque()
        self._to_prefill = 0
        self._prefill_blocks = 0
        self._step_part = 0.0
        self._noise = 1.0
        self._recent: deque[tuple[int, int]] = deque()
        self._asked = self._hit = 0

    @property
    def used(self) -> int:
        """Return the blocks in use."""
        return self.pool.set_aside + self._prefill_blocks + self.decoders.blocks

    @property
    def hit_rate(self) -> float | None:
        """Return the share of prompt tokens of the last 1000 requests that were cached; None before the first."""
        return self._hit / self._asked if self._asked else None

    def tick(self, start_s: float) -> None:
        """Run for one interval between two stats lines."""
        self.moved = False
        self._noise = self._plan.noise[int(start_s // 60)] * (1 + STEP_JITTER * self._rng.gauss(0.0, 1.0))
        at_s, end_s = start_s, start_s + TICK_S
        arrivals, clients = self._arrivals, self._plan.closed_loop
        while at_s < end_s:
            if clients or arrivals.next_s() <= at_s:
                self._arrive(at_s)
            if not self.hung:
                self._schedule(at_s)
            if self.hung or not self.running:
                at_s = self._quiet_until(at_s, end_s)
                continue
            slice_s = self._slice_s(at_s, end_s)
            self._step(at_s, slice_s)
            at_s += slice_s
            if (end := self.decoders.next_end()) is not None and end <= self.decoders.steps:
                self._end_requests(at_s)
            self._fit()
        if not self.running and not self.waiting:
            self.pool.release(end_s)

    def stop(self, at_s: float) -> None:
        """Give up all requests: the process ends."""
        for request in (*self.running, *self.waiting):
            self._fail(request, at_s)
        if self._arrivals.agents:
            self._arrivals.agents.forget_caches()

    def _quiet_until(self, at_s: float, end_s: float) -> float:
        """Return how far time may jump while no request runs."""
        if self.waiting and not self.hung:
            return at_s + SLICE_S
        return min(end_s, max(at_s + SLICE_S, self._arrivals.next_s()))

    def _slice_s(self, at_s: float, end_s: float) -> float:
        """Return how long the batch stays as it is: a second at least."""
        if self.waiting or self._prefilling:
            return min(SLICE_S, end_s - at_s)
        slice_s = min(end_s, self._arrivals.next_s()) - at_s
        end = self.decoders.next_end()
        if end is not None:
            slice_s = min(slice_s, (end - self.decoders.steps) * self._step_s())
        return min(max(SLICE_S, slice_s), end_s - at_s)

    def _arrive(self, at_s: float) -> None:
        for request in self._arrivals.until(at_s):
            if len(self.waiting) < LONGEST_QUEUE:
                self.waiting.append(request)
            else:
                self._fail(request, at_s)
        self._refill(at_s)

    def _refill(self, at_s: float) -> None:
        """Send what the clients of a closed loop have missing."""
        clients = self._plan.closed_loop
        if clients:
            for _ in range(clients[int(at_s // 60)] - len(self.running) - len(self.waiting)):
                self.waiting.append(self._arrivals.one_more(at_s))

    def _schedule(self, at_s: float) -> None:
        self.pool.release(at_s)
        while self._bursts and self._bursts[0].at_s <= at_s:
            self._burst(self._bursts.popleft().blocks)
        waiting = self.waiting
        while waiting and at_s - waiting[0].arrived_s > self._plan.queue_timeout_s and not waiting[0].made:
            self.counts.aborted += 1
            self._fail(waiting.popleft(), at_s)
        if waiting:
            self._admit()

    def _burst(self, blocks: int) -> None:
        leak = self._leak
        lost = min(blocks, self._plan.pool_blocks - self.used - 1)
        if leak and lost > 0 and self.pool.leaked + lost <= leak.cap_share * self._plan.pool_blocks:
            self.pool.lose(lost)

    def _admit(self) -> None:
        plan, pool, waiting = self._plan, self.pool, self.waiting
        free = plan.pool_blocks - self.used
        while waiting and len(self.running) < plan.max_num_seqs:
            request = waiting[0]
            need = blocks_for(request.prompt + request.made, pool.size_of(request.tenant))
            extra = pool.price_of(request.tenant)
            if need + extra > free:
                return
            waiting.popleft()
            if not request.made:
                self._look_up(request)
            free -= need + extra
            pool.use(request.tenant)
            pool.handed_out += need + extra - (request.hit // BLOCK_TOKENS if request.session is not None else 0)
            request.reserved = need
            request.to_prefill = max(1, request.prompt + request.made - request.hit)
            self.running[request] = None
            self._prefilling.append(request)
            self._to_prefill += request.to_prefill
            self._prefill_blocks += need

    def _look_up(self, request: Request) -> None:
        """Find how much of a prompt is cached, and count it as vLLM does for its hit rate."""
        hit = 0
        if request.tenant is not None:
            hit = self.pool.size_of(request.tenant) * BLOCK_TOKENS if self.pool.is_cached(request.tenant) else 0
        elif request.session is not None and self._arrivals.agents:
            agents, free = self._arrivals.agents, self._plan.pool_blocks - self.used
            if self.pool.handed_out - agents.cached_at[request.session] < free * CACHE_USE:
                hit = max(0, agents.context(request.session) - BLOCK_TOKENS) // BLOCK_TOKENS * BLOCK_TOKENS
        request.hit = min(hit, request.prompt - 1)
        self._recent.append((request.prompt, request.hit))
        self._asked += request.prompt
        self._hit += request.hit
        self.counts.asked_tokens += request.prompt
        self.counts.hit_tokens += request.hit
        if len(self._recent) > HIT_RATE_REQUESTS:
            prompt, hit = self._recent.popleft()
            self._asked -= prompt
            self._hit -= hit

    def _step_s(self) -> float:
        speed, decoders = self._plan.speed, self.decoders
        step_s = speed.step_s + speed.request_s * decoders.count + speed.context_s * decoders.context
        return step_s * self._noise * self.creep_factor

    def _step(self, at_s: float, slice_s: float) -> None:
        """Run the batch for a slice: prefill first, all that decode step along."""
        decoders, step_s = self.decoders, self._step_s()
        mixed = prefilled = 0.0
        left_s = slice_s
        if self._to_prefill:
            chunk = max(SMALLEST_CHUNK, self._plan.token_budget - decoders.count)
            mixed_s = step_s + self._plan.speed.prefill_s * chunk * self.creep_factor
            mixed = min(self._to_prefill / chunk, slice_s / mixed_s)
            prefilled = mixed * chunk
            left_s -= mixed * mixed_s
        steps = mixed + max(0.0, left_s) / step_s + self._step_part
        whole = int(steps)
        self._step_part = steps - whole
        before = decoders.steps
        self.counts.generation_tokens += decoders.count * whole
        self.counts.tokens += decoders.count * whole
        self.counts.token_s += decoders.count * slice_s
        self.pool.handed_out += decoders.count * whole // BLOCK_TOKENS
        decoders.steps += whole
        self.moved = self.moved or bool(whole and decoders.count) or prefilled >= 1
        if self._to_prefill:
            self._prefill(before, mixed, prefilled)

    def _prefill(self, before: int, steps: float, tokens: float) -> None:
        """Give the prefilled tokens to the requests in their order; those that are through begin to decode."""
        decoders, pool, given = self.decoders, self.pool, 0.0
        while self._prefilling and given < tokens:
            request = self._prefilling[0]
            if request.to_prefill > tokens - given + 1e-6:
                part = int(tokens - given)
                request.to_prefill -= part
                self._to_prefill -= part
                return
            given += request.to_prefill
            self._prefilling.popleft()
            self._to_prefill -= request.to_prefill
            self._prefill_blocks -= request.reserved
            request.to_prefill = request.reserved = 0
            at_step = min(decoders.steps, before + 1 + int(steps * given / tokens))
            if not request.made:
                self.counts.prompt_tokens += request.prompt - request.hit
            made = request.made
            decoders.add(request, at_step, pool.size_of(request.tenant))
            self.counts.generation_tokens += decoders.steps - request.started - made

    def _end_requests(self, at_s: float) -> None:
        decoders, counts, pool, agents = self.decoders, self.counts, self.pool, self._arrivals.agents
        for request in decoders.ended():
            counts.generation_tokens -= decoders.steps - request.ends
            shared = pool.size_of(request.tenant)
            decoders.remove(request, shared)
            # a slice may end more requests than the pool could hold at once: none of that can stay behind
            blocks = min(blocks_for(request.prompt + request.made, shared), pool.blocks - pool.set_aside)
            lost = self._lost_by(request, blocks, at_s)
            pool.lose(lost)
            self._free(blocks - lost, at_s)
            pool.leave(request.tenant)
            del self.running[request]
            counts.finished += 1
            counts.aborted += request.aborted
            counts.finished_prompt_tokens += request.prompt - request.hit
            counts.finished_generation_tokens += request.made
            if agents:
                agents.answered(request, request.made, at_s, pool.handed_out)
        if self._plan.refills_at_once:
            self._refill(at_s)
            if self.waiting:
                self._admit()

    def _free(self, blocks: int, at_s: float) -> None:
        delay, rng = self._plan.delay, self._rng
        if delay and rng.random() < delay.share:
            expires = rng.random() < LEASES_THAT_EXPIRE
            self.pool.hold(blocks, at_s + (LEASE_S if expires else rng.expovariate(1 / delay.mean_s)))

    def _lost_by(self, request: Request, blocks: int, at_s: float) -> int:
        """Return how many blocks of a request that ended are never freed."""
        leak = self._leak
        if leak is None or at_s < leak.from_s or leak.mode is LeakMode.BURST:
            return 0
        most = int(leak.cap_share * self._plan.pool_blocks) - self.pool.leaked
        if most <= 0:
            return 0
        if leak.mode is LeakMode.ABORT and not request.aborted:
            return 0
        if leak.mode is LeakMode.CONCURRENCY and len(self.running) <= leak.above_running:
            return 0
        if self._rng.random() >= leak.probability:
            return 0
        return min(blocks if leak.blocks is None else leak.blocks, blocks, most)

    def _fit(self) -> None:
        """Preempt the last admitted until the blocks of those that decode fit into the pool."""
        over = self.used - self._plan.pool_blocks
        while over > 0 and self.running:
            request, _ = self.running.popitem()
            shared = self.pool.size_of(request.tenant)
            if request.ends >= 0:
                self.decoders.remove(request, shared)
            else:
                self._prefilling.remove(request)
                self._to_prefill -= request.to_prefill
                self._prefill_blocks -= request.reserved
                request.reserved = request.to_prefill = 0
            self.pool.leave(request.tenant)
            self.waiting.appendleft(request)
            self.counts.preemptions += 1
            over = self.used - self._plan.pool_blocks

    def _fail(self, request: Request, at_s: float) -> None:
        if self._arrivals.agents:
            self._arrivals.agents.failed(request, at_s)
