"""The records that cross module borders. Who knows this file can guess the rest.

Times are Unix seconds in UTC (`_s`), shares are 0..1, rates are per second. Unknown is None, never 0.
No record holds text from a log line but for the allow-listed labels: version, model name, source name.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple


class Severity(StrEnum):
    """How loud a finding is; warning and critical page somebody."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class AlertState(StrEnum):
    """Where an alert stands."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


class NoData(StrEnum):
    """What a rule does with an alert while there is nothing to judge."""

    HOLD = "hold"
    OK = "ok"
    ALERT = "alert"


class Per(StrEnum):
    """What a rule gives one verdict for."""

    ENGINE = "engine"
    GPU = "gpu"
    SOURCE = "source"
    HOST = "host"


class EventKind(StrEnum):
    """What a log line that is no stats record tells. The values are those of the store's `events.kind`."""

    BANNER = "banner"
    ARGS = "args"
    ENGINE_START = "engine_start"
    ENGINE_READY = "engine_ready"
    SERVER_START = "server_start"
    SERVER_READY = "server_ready"
    STOP = "stop"
    CRASH = "crash"
    CRASH_DUMP = "crash_dump"
    OOM = "oom"
    KILLED = "killed"
    HANG_HINT = "hang_hint"
    SLEEP = "sleep"
    WAKE = "wake"
    PAUSE = "pause"
    RESET_REQUESTED = "reset_requested"
    RESET_OK = "reset_ok"
    RESET_FAILED = "reset_failed"
    KV_EXPIRED = "kv_expired"
    KV_LOAD_FAILURE = "kv_load_failure"
    PREEMPTION = "preempt_v0"
    PRESSURE = "pressure"
    STATS_DISABLED = "stats_disabled"
    BLOCKS = "capacity"
    KV_TOKENS = "capacity_tokens"
    CONCURRENCY = "concurrency"
    KV_MEMORY = "kv_memory"
    PREFIX_HIT_V0 = "prefix_hit_v0"
    SPEC_V0 = "spec_v0"
    SPEC_V1 = "spec_v1"
    DIFFUSION = "diffusion"
    KV_TRANSFER = "kv_transfer"
    EC_TRANSFER = "ec_transfer"
    MFU = "mfu"
    ITERATION = "iteration"
    REQUEST = "request"
    ALIVE = "alive"
    CLOCK_BACK = "clock_back"


class Stats(NamedTuple):
    """One stats record of a log, as its numbers stand there, shares as 0..1."""

    ts_s: float
    pid: int | None
    engine_index: int | None
    """vLLM's data-parallel rank; None where the line gives none."""
    engines: int | None
    """How many engines an aggregated line sums up (0: it does not say); None for a line of one engine."""
    prompt_tps: float
    generation_tps: float
    running: int
    waiting: int
    kv_usage: float
    deferred: int | None = None
    swapped: int | None = None
    preemptions: int | None = None
    corrupted: int | None = None
    cpu_swap_usage: float | None = None
    prefix_hit_rate: float | None = None
    external_prefix_hit_rate: float | None = None
    mm_hit_rate: float | None = None
    kv_fetch_waiting: int | None = None
    kv_fetch_in_progress: int | None = None
    kv_fetch_completed: int | None = None


class Event(NamedTuple):
    """Any other line that counts: its kind, its numbers under allow-listed names, and at most two labels."""

    ts_s: float | None
    """None for lines without a stamp of their own or of an envelope (uvicorn's)."""
    kind: EventKind
    pid: int | None = None
    engine_index: int | None = None
    numbers: Mapping[str, float] = MappingProxyType({})
    version: str | None = None
    model: str | None = None


class Latency(StrEnum):
    """Which of vLLM's times a histogram holds. The values are those of the store's `latency.metric`."""

    TTFT = "ttft"
    ITL = "itl"
    E2E = "e2e"
    QUEUE = "queue"
    PREFILL = "prefill"


class Spread(NamedTuple):
    """One latency between two scrapes. Percentiles are interpolated in vLLM's buckets, as Prometheus does it."""

    metric: Latency
    times: float
    """How many were timed."""
    sum_s: float
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None


class Scrape(NamedTuple):
    """What one engine's /metrics told: gauges as they stand, counters since the scrape before."""

    ts_s: float
    engine_index: int
    since_s: float | None
    """Time of the scrape before; None for the first one, whose counters tell nothing yet."""
    kv_usage: float | None = None
    running: int | None = None
    waiting: int | None = None
    waiting_capacity: int | None = None
    waiting_deferred: int | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    preemptions: float | None = None
    prefix_queries: float | None = None
    """Tokens looked up in the prefix cache, and those found there."""
    prefix_hits: float | None = None
    finished: float | None = None
    """Requests that ended, those that their clients gave up among them."""
    aborted: float | None = None
    restarted: bool = False
    """The process is another one than at the scrape before: counters count from its start."""
    blocks: int | None = None
    block_size: int | None = None
    is_alone: bool = True
    """No other engine stood on the page."""
    latencies: tuple[Spread, ...] = ()


class Engine(NamedTuple):
    """One engine: the thing that owns a KV-cache pool."""

    engine_id: int
    source: str
    engine_index: int | None
    label: str
    """What messages call it: `SOURCE/INDEX`."""


class Run(NamedTuple):
    """One life of an engine, with what its start-up lines said."""

    run_id: int
    engine_id: int
    number: int
    """1 for the first life of this engine that kvlogd saw."""
    started_s: float
    seen_from_start: bool
    """False when the log begins in mid-life, so that an older leak cannot be told."""
    ended_s: float | None = None
    end_reason: str | None = None
    vllm_version: str | None = None
    model: str | None = None
    kv_tokens: int | None = None
    blocks: int | None = None
    block_size: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    kv_connector: bool | None = None
    """A KV connector is configured or at work, so that blocks may be pinned by leases; None: not known."""


class Gap(NamedTuple):
    """Something that kvlogd could not read, counted instead of passed over in silence."""

    source: str
    ts_s: float | None
    reason: str
    lines: int
    """How many lines were lost; 0 where that is not known."""
    lost_bytes: int | None = None
    """How many bytes were lost, where that is what is known."""
    until_s: float | None = None
    """When reading went on, where the gap is one of time."""


class Finding(NamedTuple):
    """What a rule found at one moment. `evidence` holds numbers only; text is made from it by `notice`."""

    since_s: float
    """When the thing that was found began, not when it was found."""
    value: float | None
    """The headline number, in the unit that the rule's kind documents."""
    evidence: Mapping[str, float]
    severity: Severity | None = None
    """Set where the evidence asks for another severity than the rule's own."""


class Abstained(NamedTuple):
    """A rule had too little evidence to say either yes or no, and what would settle it."""

    why: str


class Clear(NamedTuple):
    """A rule looked at enough evidence and found nothing."""


class NoEvidence(NamedTuple):
    """There was nothing to look at: the engine is silent for a reason that the rule cannot judge."""


class Broken(NamedTuple):
    """The rule itself failed: its alert stays as it is."""

    why: str


Judgement = Finding | Abstained | Clear | NoEvidence | Broken


class AlertKey(NamedTuple):
    """What makes an alert the same alert: never its value or its text."""

    rule: str
    scope: str
    """The engine's label, the source's name, or `host`."""
    run: int | None


class AlertEvent(NamedTuple):
    """One change of an alert that people may see."""

    key: AlertKey
    state: AlertState
    verdict: str
    severity: Severity
    source: str
    engine_index: int | None
    at_s: float
    since_s: float
    value: float | None
    evidence: Mapping[str, float]
    reason: str = ""
    """Why it resolved: `cleared`, `restart`, `server ended`, `rule removed`, `rule changed`, `source removed`; `the log
    went on` where a replay takes back what it told at the end of a log that has grown."""


class NoticeKind(StrEnum):
    """Why somebody is told. The values are those of the store's `notices.kind`."""

    FIRING = "firing"
    RAISED = "raised"
    """It fires already, and now more severely than was told."""
    REPEAT = "repeat"
    RESOLVED = "resolved"
    SUMMARY = "summary"
    """What happened while a channel was out of order, or the rest of a storm."""
    NO_DATA = "no_data"
    BROKEN = "broken"
    """A rule of its own fails, so that it can find nothing."""
    CHANNEL = "channel"
    """Another channel takes no messages."""
    TEST = "test"


class Letter(NamedTuple):
    """One message, ready to be sent: the same content as plain text and as HTML."""

    subject: str
    """One line."""
    text: str
    html: str
    severity: Severity | None
    """None for good news and for tests."""


class Sight(NamedTuple):
    """What was seen of an engine at one moment; all is None where nothing was."""

    at_s: float
    usage: float | None
    running: float | None
    waiting: float | None


class MemorySight(NamedTuple):
    """The memory of a GPU or a server in one part of a time, and the usage of the pools beside it."""

    at_s: float
    used_mib: float | None
    limit_mib: float | None
    usage: float | None


class Occupancy(NamedTuple):
    """The memory that a chart shows in the place of the load."""

    used_gib: tuple[float | None, ...]
    limit_gib: float | None
    is_device: bool
    """A GPU's; else a server's."""


class Panel(NamedTuple):
    """What a chart of one engine shows, on one time axis. All series are as long as `ts_s`; None is a hole."""

    engine: str
    """Or the GPU or server that the alert is about."""
    ts_s: tuple[float, ...]
    free_share: tuple[float | None, ...]
    running: tuple[float | None, ...]
    waiting: tuple[float | None, ...]
    since_s: float
    """When the thing that was found began."""
    firing_s: float
    restarts_s: tuple[float, ...] = ()
    trend: tuple[tuple[float, float], tuple[float, float]] | None = None
    """Two points (time, free share or GiB) of the line that was fitted."""
    full_s: float | None = None
    """When the pool, or the memory, will be full, as the finding says."""
    over_s: float | None = None
    """When the alert ended."""
    memory: Occupancy | None = None
    """Set where the alert is about memory: then `trend` and `full_s` are, too."""


class Fault(StrEnum):
    """Why a message did not get out."""

    REFUSED = "refused"
    """401, 403, 404, 410, or a mail server's lasting no: it will not be otherwise by itself."""
    BUSY = "busy"
    """429, or a mail server's no for now."""
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    UNUSABLE = "unusable"
    """The channel's URL is missing or cannot be understood."""
    FAILED = "failed"
    """Anything else, 5xx among it."""


class Outcome(NamedTuple):
    """What became of one attempt to send."""

    fault: Fault | None
    """None where it was taken."""
    status: int | None = None
    """HTTP's or SMTP's number, where it was seen."""
    retry_after_s: float | None = None
    """How long the other side wants to be left alone, where it was seen."""
