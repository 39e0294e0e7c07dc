"""What a trace is called and what is true of it: the classes, one record per interval, and the stream of one engine."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

TICK_S = 10
"""vLLM's own interval between two stats lines."""


class TraceClass(StrEnum):
    """What happens in a trace, faults first."""

    LEAK_ABORT = "leak_abort"
    LEAK_REQUEST = "leak_request"
    LEAK_CONCURRENCY = "leak_concurrency"
    LEAK_BOUNDED = "leak_bounded"
    LEAK_BURST = "leak_burst"
    LEAK_CYCLE = "leak_cycle"
    CREEP = "creep"
    CREEP_CYCLE = "creep_cycle"
    HANG = "hang"
    CAPACITY = "capacity"
    NORMAL = "normal"
    GROWTH = "growth"
    LENGTH_DRIFT = "length_drift"
    LONG_CONTEXT = "long_context"
    AGENTS = "agents"
    DAY_NIGHT_MIX = "day_night_mix"
    DEPLOY = "deploy"
    MISSING_LINES = "missing_lines"
    DELAYED_FREE = "delayed_free"
    THERMAL = "thermal"
    BATCH = "batch"
    RAMP = "ramp"
    TENANTS = "tenants"
    SYSTEM_PROMPT = "system_prompt"


LEAKS = frozenset(one for one in TraceClass if one.startswith("leak_"))
CREEPS = frozenset({TraceClass.CREEP, TraceClass.CREEP_CYCLE})

MIX = {
    TraceClass.LEAK_ABORT: 34,
    TraceClass.LEAK_REQUEST: 34,
    TraceClass.LEAK_CONCURRENCY: 22,
    TraceClass.LEAK_BOUNDED: 22,
    TraceClass.LEAK_BURST: 22,
    TraceClass.LEAK_CYCLE: 30,
    TraceClass.CREEP: 24,
    TraceClass.CREEP_CYCLE: 24,
    TraceClass.HANG: 8,
    TraceClass.CAPACITY: 16,
    TraceClass.NORMAL: 36,
    TraceClass.GROWTH: 20,
    TraceClass.LENGTH_DRIFT: 24,
    TraceClass.LONG_CONTEXT: 16,
    TraceClass.AGENTS: 16,
    TraceClass.DAY_NIGHT_MIX: 16,
    TraceClass.DEPLOY: 20,
    TraceClass.MISSING_LINES: 10,
    TraceClass.DELAYED_FREE: 12,
    TraceClass.THERMAL: 12,
    TraceClass.BATCH: 12,
    TraceClass.RAMP: 10,
    TraceClass.TENANTS: 16,
    TraceClass.SYSTEM_PROMPT: 14,
}
"""How often each class stands in a mixed set."""


class TraceId(NamedTuple):
    """What a trace is a function of."""

    seed: int
    trace_class: TraceClass
    number: int

    @property
    def name(self) -> str:
        """Return what tables and files call it."""
        return f"{self.trace_class}-{self.seed}-{self.number:03d}"


def mixed(seed: int, traces: int) -> list[TraceId]:
    """Return about so many traces in the usual mix, one of each class at least."""
    whole = sum(MIX.values())
    return [
        TraceId(seed, trace_class, number)
        for trace_class, weight in MIX.items()
        for number in range(max(1, round(traces * weight / whole)))
    ]


class Tick(NamedTuple):
    """One interval of one engine as it ended: what its stats line has, and the truth beside it."""

    at_s: float
    """Since the start of the trace."""
    life: int
    """0 for the first life of the process."""
    up: bool
    printed: bool
    """Whether the log has a line of it: an idle engine prints none, and some lines are lost."""
    prompt_tps: float
    generation_tps: float
    running: int
    waiting: int
    preemptions: int
    kv_usage: float
    """Exact, as a scraper of /metrics would see it."""
    hit_rate: float | None
    leaked_blocks: int
    """Lost in this life of the process so far."""
    creep_factor: float
    """By which each step takes longer than it should."""
    stuck: bool
    """Requests were there and nothing moved: a hang, or a pool that holds no request any more."""
    hung: bool
    token_s: float = 0.0
    """Sum of the times between two tokens, and how many there were: what vLLM's histogram has of the interval."""
    tokens: int = 0
    finished: int = 0
    hit_tokens: int = 0
    """Prompt tokens that the prefix cache had, of those looked up."""
    asked_tokens: int = 0


class Stream(NamedTuple):
    """One engine's whole trace."""

    trace: TraceId
    engine_index: int
    profile: str
    pool_blocks: int
    tells_pool: bool
    """Whether the start-up lines give the size of the pool."""
    keeps_pid: bool
    """In a container each life of the process is pid 1."""
    kv_connector: bool
    longest_tokens: int
    """As vLLM is told: of one request, its prompt and its answer."""
    ticks: Sequence[Tick]

    @property
    def name(self) -> str:
        """Return what tables and files call it."""
        return f"{self.trace.name}-{self.engine_index}"
