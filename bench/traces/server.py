"""A simulated server: its engines, its lives, and what each of them would print every ten seconds."""

from random import Random

from bench.traces.arrivals import LONGEST_TURN, Arrivals
from bench.traces.labels import TICK_S, Stream, Tick
from bench.traces.plan import BLOCK_TOKENS, Plan
from bench.traces.scheduler import Counts, Engine

BAD_FOR_S = 600.0
LONGEST_OUTAGE_TICKS = 2000


def run(plan: Plan) -> list[Stream]:
    """Return the whole trace of each engine of a server."""
    server = Server(plan)
    for start_s in range(0, plan.duration_s, TICK_S):
        server.tick(float(start_s))
    return [_stream(plan, one.number, one.ticks) for one in server.seats]


class Seat:
    """The place of one engine in a server: each life puts another process into it."""

    def __init__(self, plan: Plan, number: int) -> None:
        self.number = number
        self.ticks: list[Tick] = []
        self._plan = plan
        self._rng = Random(f"{plan.trace.name}/engine {number}")
        self._arrivals = Arrivals(plan, self._rng)
        self._moving = False
        """Whether the last interval had any throughput: vLLM prints one more record after it."""
        self._frozen: tuple[int, int, int] | None = None
        """Running, waiting and blocks as the engine core last told them before it hung."""
        self.engine = self._new()

    def start(self, at_s: float) -> None:
        """Begin a new life."""
        self._arrivals.skip_to(at_s)
        self.engine = self._new()
        self._moving, self._frozen = False, None

    def tick(self, start_s: float, life: int) -> None:
        """Run for an interval and note what is printed at its end."""
        engine = self.engine
        before = engine.counts = Counts()
        engine.tick(start_s)
        told = len(engine.running), len(engine.waiting), engine.used
        if engine.hung:
            told = self._frozen = self._frozen or told
        moving = before.prompt_tokens > 0 or before.generation_tokens > 0
        self.ticks.append(
            Tick(
                start_s + TICK_S,
                life,
                True,
                moving or self._moving,
                before.prompt_tokens / TICK_S,
                before.generation_tokens / TICK_S,
                told[0],
                told[1],
                before.preemptions,
                told[2] / self._plan.pool_blocks,
                engine.hit_rate,
                engine.pool.leaked,
                engine.creep_factor,
                not engine.moved and bool(engine.running or engine.waiting),
                engine.hung,
                before.token_s,
                before.tokens,
                before.finished,
                before.hit_tokens,
                before.asked_tokens,
            )
        )
        self._moving = moving

    def down(self, start_s: float, life: int) -> None:
        """Note an interval without a process."""
        self.ticks.append(
            Tick(start_s + TICK_S, life, False, False, 0.0, 0.0, 0, 0, 0, 0.0, None, 0, 1.0, False, False)
        )

    def _new(self) -> Engine:
        bad = self._plan.leaking_engine
        return Engine(self._plan, self._arrivals, self._rng, leaks=bad is None or bad == self.number)


class Server:
    """All engines of a server; a restart is one of all of them."""

    def __init__(self, plan: Plan) -> None:
        self.seats = [Seat(plan, number) for number in range(plan.engines)]
        self._plan = plan
        self._rng = Random(f"{plan.trace.name}/server")
        self._planned = list(plan.restarts_s)
        self._life = 0
        self._since_s = 0.0
        self._back_s: float | None = None
        """When the process is up again; None while it is."""
        self._bad_since_s: float | None = None
        self._restart_s: float | None = None
        """When somebody restarts it because it is bad."""
        self._has_hung = False

    def tick(self, start_s: float) -> None:
        """Run for an interval between two stats lines."""
        if self._back_s is not None and start_s >= self._back_s:
            self._start(start_s)
        elif self._back_s is None and self._ends(start_s):
            self._stop(start_s)
        for seat in self.seats:
            if self._back_s is not None:
                seat.down(start_s, self._life)
                continue
            seat.engine.creep_factor = self._creep(start_s)
            seat.tick(start_s, self._life)
        self._watch(start_s)

    def _ends(self, at_s: float) -> bool:
        hang = self._plan.hang
        if hang and not self._has_hung and at_s >= hang.at_s:
            self._has_hung = True
            self._restart_s = at_s + hang.until_restart_s
            for seat in self.seats:
                seat.engine.hung = True
        if self._planned and at_s >= self._planned[0]:
            self._planned.pop(0)
            return True
        return self._restart_s is not None and at_s >= self._restart_s

    def _stop(self, at_s: float) -> None:
        self._back_s = at_s + self._plan.down_s * self._rng.uniform(0.7, 1.3)
        self._restart_s = self._bad_since_s = None
        for seat in self.seats:
            seat.engine.stop(at_s)

    def _start(self, at_s: float) -> None:
        self._back_s = None
        self._life += 1
        self._since_s = at_s
        for seat in self.seats:
            seat.start(at_s)

    def _creep(self, at_s: float) -> float:
        creep = self._plan.creep
        if creep is None or at_s < creep.from_s:
            return 1.0
        return 1.0 + min(creep.cap, creep.per_h * (at_s - max(self._since_s, creep.from_s)) / 3600)

    def _watch(self, at_s: float) -> None:
        """Have the server restarted some time after it became bad, if anybody looks after it."""
        recovery = self._plan.recovery
        if recovery is None or self._back_s is not None or self._restart_s is not None:
            return
        if not self._is_bad():
            self._bad_since_s = None
        elif self._bad_since_s is None:
            self._bad_since_s = at_s
        elif at_s - self._bad_since_s > BAD_FOR_S:
            self._restart_s = at_s + recovery.delay_s * self._rng.uniform(0.5, 1.5)

    def _is_bad(self) -> bool:
        recovery = self._plan.recovery
        if recovery is None:
            return False
        last = [seat.ticks[-1] for seat in self.seats]
        return any(
            (tick.waiting > 0 and tick.running == 0)
            or (
                recovery.leaked_share is not None
                and tick.leaked_blocks > recovery.leaked_share * self._plan.pool_blocks
            )
            or (recovery.creep is not None and tick.creep_factor >= 1 + recovery.creep)
            for tick in last
        )


def _stream(plan: Plan, number: int, ticks: list[Tick]) -> Stream:
    return Stream(
        plan.trace,
        number,
        plan.profile,
        plan.pool_blocks,
        plan.tells_pool,
        plan.keeps_pid,
        plan.delay is not None,
        _longest_tokens(plan),
        _with_gaps(plan, number, ticks),
    )


def _longest_tokens(plan: Plan) -> int:
    """Return the longest request that may come; vLLM does not start with a pool that could not hold it."""
    longest = max((kind.lengths.prompt_max + kind.lengths.output_max for kind in plan.kinds), default=0.0)
    if plan.sessions:
        longest = max(longest, plan.sessions.max_context + LONGEST_TURN)
    shared = max((max(blocks) for blocks in plan.tenants.blocks), default=0) if plan.tenants else 0
    return min(plan.pool_blocks * BLOCK_TOKENS, int(longest) + shared * BLOCK_TOKENS)


def _with_gaps(plan: Plan, number: int, ticks: list[Tick]) -> list[Tick]:
    """Lose some lines, one by one and in outages of whoever collects the log."""
    if not plan.missing_share:
        return ticks
    rng = Random(f"{plan.trace.name}/gaps {number}")
    lost = [rng.random() < plan.missing_share for _ in ticks]
    for _ in range(rng.randrange(4)):
        start, length = rng.randrange(len(ticks)), rng.randint(30, LONGEST_OUTAGE_TICKS)
        lost[start : start + length] = [True] * len(lost[start : start + length])
    return [tick._replace(printed=False) if gone else tick for tick, gone in zip(ticks, lost, strict=True)]
