"""The words of vLLM's log, versions 0.2 to 0.33 and its Rust front end, as data.

Only what stands here can leave a log line: numbers under the names below, a version, a model name.
"""

import re
from typing import NamedTuple

from kvlogd.model import EventKind as Kind

STATS_NEEDLE = b"Avg prompt t"
"""In every stats record (`throughput`; the Rust front end writes `tput`) and in no other vLLM line."""

STATS_FILES = frozenset({b"loggers.py", b"metrics.py", b"llm_engine.py", b"log_stats.rs"})
STATS_LOGGERS = frozenset({"vllm.v1.metrics.loggers", "vllm.engine.metrics", "vllm.engine.llm_engine"})

LEVELS = rb"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)"

# VLLM_LOGGING_PREFIX is any text of the site's; only shapes that no exception text has are taken for one.
_SITE_PREFIX = rb"(?:\[[\w.@:/-]{1,40}\] ?|[\w.@-]{1,40} ?[|>#] ?)?"

# fmt: off  (a pattern a line reads better than a word a line)
HEAD = re.compile(
    _SITE_PREFIX + rb"(?:\((?P<proc>[A-Za-z_][\w =-]{0,60}?) pid=(?P<pid>\d{1,10})(?:, ip=[\d.]+)?\) )?"
    rb"(?P<level>" + LEVELS + rb") (?P<stamp>\d\d-\d\d \d\d:\d\d:\d\d) \[?(?P<file>[\w./-]{1,120}):\d{1,6}\] "
)
"""The logger's own prefix, at the very start of a line (groups proc, pid, level, stamp, file)."""

CUSTOM_HEAD = re.compile(
    rb"(?P<stamp>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)(?P<zone>Z|[+-]\d\d:?\d\d)?[ \-|:\[\]()]{1,5}"
    rb"(?:(?P<level1>"
    + LEVELS
    + rb")[ \-|:\[\]()]{1,5})?(?P<name>vllm(?:\.\w{1,40}){1,6})(?::\d{1,6})?[ \-|:\[\]()]{1,5}"
    rb"(?:" + LEVELS + rb"[ \-|:\[\]()]{1,5})?"
)
"""The usual custom formats: a full date, then level and logger name in either order."""

UVICORN = re.compile(rb"(?:\([A-Za-z_][\w =-]{0,60}? pid=(?P<pid>\d{1,10})\) )?(?P<level>INFO|WARNING|ERROR): {1,5}")


class Field(NamedTuple):
    """One `key: value` pair of a stats record: which number it is, and its unit (share: printed as per cent)."""

    name: str
    unit: bytes
    share: bool = False
    whole: bool = False


FIELDS = {
    b"Avg prompt throughput": Field("prompt_tps", b" tokens/s"),
    b"Avg prompt tput": Field("prompt_tps", b" toks/s"),
    b"Avg generation throughput": Field("generation_tps", b" tokens/s"),
    b"Avg generation tput": Field("generation_tps", b" toks/s"),
    b"Running": Field("running", b" reqs", whole=True),
    b"Reqs Running": Field("running", b"", whole=True),
    b"Waiting": Field("waiting", b" reqs", whole=True),
    b"Pending": Field("waiting", b" reqs", whole=True),
    b"Swapped": Field("swapped", b" reqs", whole=True),
    b"Deferred": Field("deferred", b" reqs", whole=True),
    b"Preemptions": Field("preemptions", b"", whole=True),
    b"Corrupted": Field("corrupted", b" reqs", whole=True),
    b"KV cache usage": Field("kv_usage", b"%", share=True),
    b"KV cache used": Field("kv_usage", b"%", share=True),
    b"Prefix cache hit rate": Field("prefix_hit_rate", b"%", share=True),
    b"External prefix cache hit rate": Field("external_prefix_hit_rate", b"%", share=True),
    b"MM cache hit rate": Field("mm_hit_rate", b"%", share=True),
}
"""The device word before `KV cache us…` is cut off first: `GPU` up to 0.29, any device from 0.30 on."""

KV_FETCH = re.compile(rb"KV fetch: (\d+) waiting to start, (\d+) in progress, (\d+) completed waiting")
KV_FETCH_NAMES = ("kv_fetch_waiting", "kv_fetch_in_progress", "kv_fetch_completed")

PAIR = re.compile(
    rb"(?:(?P<device>[A-Z]{2,8}) (?=KV cache us))?(?P<key>[A-Z][A-Za-z ]{1,60}): (?P<value>-?\d{1,15}(?:\.\d{1,6})?|-?nan|-?inf)"
    rb"(?P<unit>%| [a-z]{1,8}(?:/s)?)?"
)
ENGINE = re.compile(rb"Engine (?P<index>\d{3,5}): |(?P<count>\d{1,5}) Engines? Aggregated: ")

REQUIRED = frozenset({"prompt_tps", "generation_tps", "running", "waiting", "kv_usage"})

TRANSFER_KEYS = frozenset(
    {
        b"num_successful_transfers",
        b"Num successful transfers",
        b"Avg xfer time (ms)",
        b"P90 xfer time (ms)",
        b"Avg post time (ms)",
        b"P90 post time (ms)",
        b"Avg MB per transfer",
        b"Throughput (MB/s)",
        b"Avg number of descriptors",
        b"Num failed transfers",
        b"Num KV expired reqs",
        b"Num notifs after expiry",
        b"Num loads",
        b"Avg load time (ms)",
        b"Num saves",
        b"Avg save time (ms)",
    }
)
"""Connectors choose their keys; only these are known, others are counted."""

CONFIG_NUMBERS = {
    b"max_seq_len": "max_model_len",
    b"max_model_len": "max_model_len",
    b"max_num_seqs": "max_num_seqs",
    b"block_size": "block_size",
    b"gpu_memory_utilization": "gpu_memory_utilization",
    b"tensor_parallel_size": "tp",
    b"pipeline_parallel_size": "pp",
    b"data_parallel_size": "dp",
}
CONFIG_PAIR = re.compile(rb"'?\b(" + b"|".join(CONFIG_NUMBERS) + rb")'?[=:] ?(\d{1,9}(?:\.\d{1,6})?)")
CONFIG_MODEL = re.compile(rb"(?:\bmodel=|'model': )'([^']{1,300})'")
KV_CONNECTOR = re.compile(
    rb"kv_transfer_config'?[=:](?! ?None)|kv_connector'?[=:] ?'|kv_offloading_size'?[=:](?! ?(?:None|0(?:\.0)?[,}\s)]))"
)


class Line(NamedTuple):
    """A line that counts: how its text begins, what it is, and the names of the numbers in its groups."""

    kind: Kind
    pattern: re.Pattern[bytes]
    names: tuple[str, ...] = ()


def _line(kind: Kind, pattern: bytes, *names: str) -> Line:
    return Line(kind, re.compile(pattern), names)


_N = rb"(\d{1,15}(?:\.\d{1,6})?)"
_WORD_BLOCKS = rb"# (?:[A-Za-z]{2,8}) blocks: (\d{1,12})"

LINES = (
    _line(Kind.BANNER, rb"vLLM API server version (?P<version>[\w.+-]{1,40})"),
    _line(Kind.ARGS, rb"non-default args: (?P<config>\{.{0,8000})"),
    _line(
        Kind.ENGINE_START,
        rb"Initializing an? (?:V[01] )?LLM engine(?: \(v(?P<version>[\w.+-]{1,40})\))? with config: (?P<config>.{0,8000})",
    ),
    _line(Kind.ENGINE_READY, rb"init engine \(profile, create kv cache, warmup model\) took " + _N + rb" s", "seconds"),
    _line(Kind.SERVER_START, rb"Starting vLLM (?:API )?server "),
    _line(Kind.STOP, rb"\[shutdown\] (?:API server|EngineCore): "),
    _line(Kind.STOP, rb"Shutting down FastAPI HTTP server\.|Shutdown initiated \(timeout=|Shutting down\.$"),
    _line(Kind.CRASH, rb"\[shutdown\] MPClient: engine core exited unexpectedly"),
    _line(Kind.CRASH, rb"EngineCore (?:encountered a fatal error|failed to start|hit an exception)"),
    _line(Kind.CRASH, rb"AsyncLLM output_handler failed\.|Engine iteration timed out\. This should never happen!"),
    _line(Kind.CRASH, rb"(?:[\w.]{1,80}\.)?EngineDeadError: EngineCore encountered an issue\."),
    _line(Kind.CRASH, rb"Engine core proc \S{1,60} died unexpectedly|Engine core initialization failed\."),
    _line(Kind.CRASH, rb"Worker proc \S{1,60} died unexpectedly|Worker \S{1,60} pid \d+ died, exit code:"),
    _line(Kind.CRASH_DUMP, rb"Dumping (?:input data for V1 LLM engine|scheduler output for|scheduler stats)"),
    _line(Kind.OOM, rb"torch\.(?:cuda\.)?OutOfMemoryError: |(?:ValueError: )?No available memory for the cache blocks"),
    _line(Kind.HANG_HINT, rb"No available shared memory broadcast block found in " + _N + rb" seconds", "seconds"),
    _line(Kind.HANG_HINT, rb"\[Watchdog\]Dumped stack to "),
    _line(Kind.RESET_REQUESTED, rb"Resetting prefix cache\.\.\."),
    _line(Kind.RESET_OK, rb"Successfully reset prefix cache"),
    _line(Kind.RESET_FAILED, rb"Failed to reset prefix cache because some blocks \((\d{1,12})\)", "blocks_held"),
    _line(Kind.SLEEP, rb"It took " + _N + rb" seconds to fall asleep\.", "seconds"),
    _line(Kind.WAKE, rb"It took " + _N + rb" seconds to wake up tags ", "seconds"),
    _line(Kind.PAUSE, rb"setting pause state to PAUSED_(?:NEW|ALL)"),
    _line(Kind.WAKE, rb"setting pause state to UNPAUSED"),
    _line(
        Kind.KV_EXPIRED,
        rb"Releasing expired KV blocks for request .{0,300}? which were retrieved by (\d{1,6}) (?:decode|remote) worker",
        "retrieved_by",
    ),
    _line(Kind.KV_LOAD_FAILURE, rb"Recovered from KV load failure: (\d{1,9}) request", "requests"),
    _line(Kind.KV_LOAD_FAILURE, rb"Failing (\d{1,9}) request\(s\) due to KV load failure", "requests"),
    _line(
        Kind.STATS_DISABLED, rb"AsyncLLM created with api_server_count more than 1; disabling stats logging to avoid"
    ),
    _line(
        Kind.PREEMPTION,
        rb"Sequence group .{0,300}? is preempted by PreemptionMode\.(?:RECOMPUTE|SWAP) mode because .{0,400}"
        rb"total_num_cumulative_preemption=(\d{1,12})$",
        "cumulative",
    ),
    _line(Kind.PRESSURE, rb"Input prompt \((\d{1,9}) tokens\)", "tokens"),
    _line(Kind.PRESSURE, rb"Failing the request .{0,300}? because there's not enough kv cache blocks"),
    _line(Kind.BLOCKS, _WORD_BLOCKS + rb", # CPU blocks: (\d{1,12})$", "num_gpu_blocks", "num_cpu_blocks"),
    _line(Kind.BLOCKS, _WORD_BLOCKS + rb"$", "num_gpu_blocks"),
    _line(
        Kind.BLOCKS,
        rb"Overriding num_gpu_blocks=\d{1,12} with num_gpu_blocks_override=(\d{1,12})$",
        "num_gpu_blocks",
    ),
    _line(
        Kind.BLOCKS,
        rb"vllm cache_config_info with initialization after num_gpu_blocks is: (\d{1,12})$",
        "num_gpu_blocks",
    ),
    _line(
        Kind.KV_TOKENS,
        rb"[A-Z]{2,8} KV cache size: ([\d,]{1,18}) tokens, Maximum concurrency for ([\d,]{1,18}) tokens per request: "
        + _N
        + rb"x$",
        "tokens",
        "max_len",
        "max_concurrency",
    ),
    _line(Kind.KV_TOKENS, rb"[A-Z]{2,8} KV cache size: ([\d,]{1,18}) tokens$", "tokens"),
    _line(
        Kind.CONCURRENCY,
        rb"Maximum concurrency for ([\d,]{1,18}) tokens per request: " + _N + rb"x$",
        "max_len",
        "max_concurrency",
    ),
    _line(Kind.KV_MEMORY, rb"Available KV cache memory: " + _N + rb" GiB$", "gib"),
    _line(
        Kind.PREFIX_HIT_V0,
        rb"Prefix cache hit rate: GPU: " + _N + rb"%, CPU: " + _N + rb"%$",
        "gpu_hit_pct",
        "cpu_hit_pct",
    ),
    _line(
        Kind.SPEC_V0,
        rb"Speculative metrics: Draft acceptance rate: "
        + _N
        + rb", System efficiency: "
        + _N
        + rb", Number of speculative tokens: (\d+), Number of accepted tokens: (\d+), Number of draft tokens(?: tokens)?: (\d+), "
        rb"Number of emitted tokens(?: tokens)?: (\d+)\.$",
        "draft_acceptance",
        "efficiency",
        "k",
        "accepted",
        "drafted",
        "emitted",
    ),
    _line(
        Kind.SPEC_V1,
        rb"SpecDecoding metrics: Draft acceptance rate: "
        + _N
        + rb"%, Mean acceptance length: "
        + _N
        + rb", Accepted: (\d+) tokens, Drafted: (\d+) tokens, Per-position acceptance rate: (?P<list>[\d., ]{0,400})$",
        "acceptance_pct",
        "mean_len",
        "accepted",
        "drafted",
    ),
    _line(
        Kind.SPEC_V1,
        rb"SpecDecoding metrics: Mean acceptance length: "
        + _N
        + rb", Accepted throughput: "
        + _N
        + rb" tokens/s, Drafted throughput: "
        + _N
        + rb" tokens/s, Accepted: (\d+) tokens, Drafted: (\d+) tokens, "
        rb"Per-position acceptance rate: (?P<list>[\d., ]{0,400}), Avg Draft acceptance rate: (?:nan|(?P<rate>[\d.]{1,8}))%?$",
        "mean_len",
        "accepted_tps",
        "drafted_tps",
        "accepted",
        "drafted",
    ),
    _line(
        Kind.DIFFUSION,
        rb"DiffusionDecoding metrics: Committed token throughput: "
        + _N
        + rb" tokens/s, Mean denoising steps per canvas: "
        rb"[\d.]+, Mean tokens committed per denoising step: [\d.]+, Committed: (\d+) tokens, Denoising steps: (\d+), "
        rb"Canvas positions evaluated: (\d+)$",
        "committed_tps",
        "committed",
        "steps",
        "canvas",
    ),
    _line(Kind.KV_TRANSFER, rb"KV Transfer metrics: (?P<pairs>.{1,2000})$"),
    _line(Kind.EC_TRANSFER, rb"EC Transfer metrics: (?P<pairs>.{1,2000})$"),
    _line(Kind.MFU, rb"MFU: " + _N + rb" TF/s/(?:GPU|device) " + _N + rb" GB/s/(?:GPU|device)$", "tflops", "gbps"),
    _line(
        Kind.ITERATION,
        rb"Iteration\((\d{1,15})\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests, "
        rb"(\d+) generation tokens, iteration elapsed time: "
        + _N
        + rb" ms(?: \(dummy\))?, [A-Z]{2,8} KV cache usage: "
        + _N
        + rb"%",
        "iteration",
        "ctx_reqs",
        "ctx_tokens",
        "gen_reqs",
        "gen_tokens",
        "elapsed_ms",
        "kv_pct",
    ),
)
"""Every body that counts, anchored at its start; `Engine 000: ` is cut off first."""

UVICORN_LINES = (
    _line(Kind.SERVER_READY, rb"Application startup complete\.$"),
    _line(Kind.STOP, rb"Shutting down$|Application shutdown complete\.$|Finished server process \["),
    _line(Kind.REQUEST, rb'[\d.a-fA-F:\[\]]{2,45}:\d{1,5} - "POST /(?:v\d+/|generate)'),
    _line(Kind.ALIVE, rb'[\d.a-fA-F:\[\]]{2,45}:\d{1,5} - "[A-Z]{3,7} /'),
)

ART_VERSION = re.compile(rb" *[^\x00-\x7f].*  version (?P<version>[\w.+-]{1,40})$")
ART_MODEL = re.compile(rb" *[^\x00-\x7f].*  model   (?P<model>\S{1,300})$")
"""The start-up picture (0.15 on): the only place where 0.18 and later name their version in the front end."""

CHATTER = (
    b"Received request ",
    b"Added request ",
    b"Finished request ",
    b"Aborted request",
    b"Generated response ",
    b"Route: ",
)
"""How the frequent lines begin that never count; they hold users' text and are looked at no further."""

STATS_OFF = re.compile(rb"'disable_log_stats': True")

OOM_RAW = re.compile(rb"torch\.(?:cuda\.)?OutOfMemoryError: ")
KILLED_RAW = re.compile(
    rb"[\w@.:-]{1,100}\.service: (?:Failed with result 'oom-kill'|A process of this unit has been killed by the OOM)"
)
"""What systemd writes into the unit's journal when the kernel has killed it for want of memory."""
# fmt: on
