"""Everything that a simulated server needs to know before it runs, as records."""

from collections.abc import Sequence
from enum import Enum, StrEnum, auto
from typing import NamedTuple

from bench.traces.labels import TraceId

BLOCK_TOKENS = 16


class Profile(StrEnum):
    """How requests arrive over the day."""

    CONSTANT = "constant"
    IDLE_NIGHTS = "idle_nights"
    DIURNAL = "diurnal"
    BURSTY = "bursty"
    BATCH = "batch"
    SPARSE = "sparse"
    CLOSED = "closed"
    SESSIONS = "sessions"


class Lengths(NamedTuple):
    """Log-normal prompt and output lengths in tokens."""

    prompt_mu: float
    prompt_sigma: float
    prompt_max: float
    output_mu: float
    output_sigma: float
    output_max: float


class Kind(NamedTuple):
    """Requests of one kind and how many of them come, per second, in each minute."""

    lengths: Lengths
    per_s: Sequence[float]
    by_tenant: bool = False


class Speed(NamedTuple):
    """What a step takes: at all, per decoding request, per token of context, per token of prefill."""

    step_s: float
    request_s: float
    context_s: float
    prefill_s: float


class Tenants(NamedTuple):
    """System prompts that requests share, in blocks: one per tenant, a row of them from each of `from_s` on."""

    from_s: Sequence[float]
    blocks: Sequence[Sequence[int]]
    weights: Sequence[float]


class Sessions(NamedTuple):
    """Agents that take turns, each with a context that grows from turn to turn."""

    agents: int
    system_tokens: float
    new_mu: float
    new_sigma: float
    output_mu: float
    output_sigma: float
    think_s: float
    turns: float
    max_context: float
    activity: Sequence[float]
    """By minute: at 0.5 the pauses are twice as long."""


class Delay(NamedTuple):
    """Blocks of finished requests that are held for a while: a prefill/decode pair hands them over."""

    share: float
    mean_s: float


class LeakMode(Enum):
    """What loses blocks."""

    ABORT = auto()
    REQUEST = auto()
    CONCURRENCY = auto()
    BURST = auto()


class Burst(NamedTuple):
    """Blocks that are lost at once."""

    at_s: float
    blocks: int


class Leak(NamedTuple):
    """How blocks are lost. `blocks` is per event; None: all that the request had."""

    mode: LeakMode
    from_s: float
    cap_share: float
    probability: float = 0.0
    blocks: int | None = None
    above_running: int = 0
    bursts: Sequence[Burst] = ()


class Creep(NamedTuple):
    """How much longer steps take with the age of the process."""

    per_h: float
    from_s: float
    cap: float


class Recovery(NamedTuple):
    """When somebody restarts the server: so long after it has been this bad for ten minutes."""

    leaked_share: float | None
    creep: float | None
    delay_s: float


class Hang(NamedTuple):
    """When the engine stops stepping, and how long until it is restarted."""

    at_s: float
    until_restart_s: float


class Plan(NamedTuple):
    """One server."""

    trace: TraceId
    profile: Profile
    duration_s: int
    pool_blocks: int
    max_num_seqs: int
    token_budget: int
    speed: Speed
    kinds: Sequence[Kind]
    closed_loop: Sequence[int] | None
    """Requests kept in flight, by minute."""
    refills_at_once: bool
    tenants: Tenants | None
    sessions: Sessions | None
    prompt_scale: Sequence[float]
    """By hour."""
    output_scale: Sequence[float]
    noise: Sequence[float]
    """Factor of the step time, by minute."""
    abort_share: float
    queue_timeout_s: float
    delay: Delay | None
    leak: Leak | None
    creep: Creep | None
    recovery: Recovery | None
    hang: Hang | None
    restarts_s: Sequence[float]
    down_s: float
    missing_share: float
    engines: int
    leaking_engine: int | None
    """None: each of them, where there is a leak."""
    tells_pool: bool
    keeps_pid: bool
