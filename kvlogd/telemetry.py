"""The tables of what engines, GPUs and hosts told: said once for the DDL, the comments and docs/schema.md. Pure."""

from kvlogd.table import Column, Table

TS = Column("ts", "TIMESTAMPTZ", "time of the log record", required=True)
ENGINE = Column("engine_id", "UINTEGER", "engine, see engines", required=True)
RUN = Column("run_id", "UINTEGER", "life of the engine, see runs", required=True)
_STATS = (
    Column("prompt_tps", "DOUBLE", "prompt tokens processed, tokens/s"),
    Column("generation_tps", "DOUBLE", "tokens generated, tokens/s"),
    Column("running", "BIGINT", "requests that run"),
    Column("waiting", "BIGINT", "requests that wait to be scheduled"),
    Column("kv_usage", "DOUBLE", "share of the KV-cache blocks in use, 0..1"),
    Column("engines", "BIGINT", "engines that an aggregated record sums up (0: it does not say); NULL for one engine"),
    Column("deferred", "BIGINT", "waiting requests that are deferred"),
    Column("swapped", "BIGINT", "requests swapped out to the CPU (V0)"),
    Column("preemptions", "BIGINT", "preemptions since the record before"),
    Column("corrupted", "BIGINT", "corrupted requests since the record before"),
    Column("cpu_swap_usage", "DOUBLE", "share of the CPU swap space in use, 0..1 (V0)"),
    Column(
        "prefix_hit_rate", "DOUBLE", "share of the queried tokens found in the prefix cache, 0..1, vLLM's rolling mean"
    ),
    Column("external_prefix_hit_rate", "DOUBLE", "the same for an external (connector's) cache, 0..1"),
    Column("mm_hit_rate", "DOUBLE", "share of the multi-modal inputs found in their cache, 0..1"),
    Column("kv_fetch_waiting", "BIGINT", "requests that wait for a KV transfer"),
    Column("kv_fetch_in_progress", "BIGINT", "KV transfers under way"),
    Column("kv_fetch_completed", "BIGINT", "KV transfers completed since the record before"),
)

ENGINES = Table(
    "engines",
    "One engine: the thing that owns a KV-cache pool.",
    (
        ENGINE,
        Column("source", "VARCHAR", "name of the source that it logs to", required=True),
        Column("engine_index", "INTEGER", "vLLM's data-parallel rank; NULL for an aggregated record"),
        Column("label", "VARCHAR", "what messages call it", required=True),
    ),
    key=("engine_id",),
)
RUNS = Table(
    "runs",
    "One life of an engine, with what its start-up lines said.",
    (
        RUN,
        ENGINE,
        Column("number", "UINTEGER", "1 for the first life that kvlogd saw"),
        Column("started", "TIMESTAMPTZ", "when it started, or was first seen", required=True),
        Column("seen_from_start", "BOOLEAN", "false where the log begins in mid-life"),
        Column("ended", "TIMESTAMPTZ", "when it ended; NULL while it lives"),
        Column("end_reason", "VARCHAR", "why it ended"),
        Column("vllm_version", "VARCHAR", "version that the banner names"),
        Column("model", "VARCHAR", "model that the start-up lines name"),
        Column("kv_tokens", "BIGINT", "size of the KV cache, tokens"),
        Column("blocks", "BIGINT", "size of the KV cache, blocks"),
        Column("block_size", "BIGINT", "tokens a block holds"),
        Column("max_model_len", "BIGINT", "longest request, tokens"),
        Column("max_num_seqs", "BIGINT", "most requests that may run at once"),
        Column("gpu_memory_utilization", "DOUBLE", "share of the device memory that vLLM may take, 0..1"),
        Column("tp", "BIGINT", "tensor-parallel size"),
        Column("pp", "BIGINT", "pipeline-parallel size"),
        Column("dp", "BIGINT", "data-parallel size"),
        Column("kv_connector", "BOOLEAN", "whether a KV connector may lease blocks"),
    ),
    key=("run_id",),
)
SAMPLES = Table("samples", "One stats record of a log. Unknown is NULL, shares are 0..1.", (TS, ENGINE, RUN, *_STATS))
EVENTS = Table(
    "events",
    "Any other line that counts: start, ready, stop, crash, reset, capacity, ...",
    (
        Column("ts", "TIMESTAMPTZ", "time of the log record; NULL for a line without a stamp"),
        Column("engine_id", "UINTEGER", "engine, see engines; NULL where the line names none"),
        Column("run_id", "UINTEGER", "life of the engine, see runs"),
        Column("kind", "VARCHAR", "what the line tells", required=True),
        Column("pid", "BIGINT", "process that wrote the line"),
        Column("engine_index", "INTEGER", "vLLM's data-parallel rank, where the line gives it"),
        Column("numbers", "VARCHAR", "JSON object of the line's numbers by name"),
        Column("version", "VARCHAR", "vLLM version, where the line names it"),
        Column("model", "VARCHAR", "model, where the line names it"),
    ),
)
GPU_SAMPLES = Table(
    "gpu_samples",
    "One reading of one GPU.",
    (
        Column("ts", "TIMESTAMPTZ", "time of the reading", required=True),
        Column("gpu", "VARCHAR", "UUID or index of the device", required=True),
        Column("util_share", "DOUBLE", "share of the time in which a kernel ran, 0..1"),
        Column("memory_used_mib", "DOUBLE", "device memory in use, MiB"),
        Column("memory_total_mib", "DOUBLE", "device memory there is, MiB"),
        Column("temperature_c", "DOUBLE", "temperature, degrees Celsius"),
        Column("power_w", "DOUBLE", "power drawn, W"),
        Column("sm_clock_mhz", "DOUBLE", "clock of the multiprocessors, MHz"),
        Column("state", "VARCHAR", "ok, lost, reset required, no permission, failing, absent, unknown or released"),
        Column(
            "memory_reserved_mib", "DOUBLE", "device memory that the driver keeps for itself, MiB; not counted as used"
        ),
        Column("memory_free_mib", "DOUBLE", "device memory that is free, MiB"),
        Column("memory_util_share", "DOUBLE", "share of the time in which device memory was read or written, 0..1"),
        Column("memory_clock_mhz", "DOUBLE", "clock of the memory, MHz"),
        Column("power_limit_w", "DOUBLE", "power that it may draw, W"),
        Column("limit_reasons", "BIGINT", "NVML's bits for what holds the clocks down"),
        Column("ecc_corrected", "BIGINT", "memory errors corrected since the driver was loaded"),
        Column("ecc_uncorrected", "BIGINT", "memory errors not corrected since the driver was loaded"),
        Column("xid", "BIGINT", "last Xid since the reading before"),
        Column("engines_mib", "DOUBLE", "device memory of processes of followed engines, MiB"),
        Column("others_mib", "DOUBLE", "device memory of all other processes, MiB"),
        Column("processes", "BIGINT", "processes that hold device memory"),
        Column("other_pid", "BIGINT", "the process that holds most of others_mib"),
    ),
)
GPUS = Table(
    "gpus",
    "One GPU of this host, as it was read last.",
    (
        Column("gpu", "VARCHAR", "UUID of the device", required=True),
        Column("device_index", "BIGINT", "its number, as nvidia-smi shows it; may change with a restart"),
        Column("name", "VARCHAR", "product name"),
        Column("memory_total_mib", "DOUBLE", "device memory there is, MiB"),
        Column("driver", "VARCHAR", "version of the driver"),
        Column("mig", "BOOLEAN", "whether it is cut into MIG instances"),
        Column("state", "VARCHAR", "as in gpu_samples", required=True),
        Column("seen", "TIMESTAMPTZ", "when it was read last"),
    ),
    key=("gpu",),
)
GPU_PROCESSES = Table(
    "gpu_processes",
    "A process that holds memory of a GPU: a row when that changes, and every ten minutes.",
    (
        Column("ts", "TIMESTAMPTZ", "time of the reading", required=True),
        Column("gpu", "VARCHAR", "UUID of the device", required=True),
        Column("pid", "BIGINT", "process", required=True),
        Column("name", "VARCHAR", "name of its executable, never its arguments"),
        Column("memory_mib", "DOUBLE", "device memory that it holds, MiB"),
        Column("source", "VARCHAR", "source whose engine it belongs to; NULL for a stranger"),
        Column("engine_id", "UINTEGER", "engine, see engines"),
    ),
)
HOST_SAMPLES = Table(
    "host_samples",
    "One reading of a server's process tree.",
    (
        Column("ts", "TIMESTAMPTZ", "time of the reading", required=True),
        Column("source", "VARCHAR", "name of the source whose server it is"),
        Column("rss_mib", "DOUBLE", "resident memory of the process tree, page cache left out, MiB"),
        Column("limit_mib", "DOUBLE", "memory that it may have: its cgroup's limit, or all of the host's, MiB"),
        Column("oom_kills", "BIGINT", "processes of its cgroup killed for want of memory since the cgroup was made"),
        Column("processes", "BIGINT", "processes in the tree"),
        Column("pid", "BIGINT", "process at the top of the tree"),
    ),
)
MINUTES = Table(
    "minutes",
    "One row an engine, life and minute, made of the samples and kept longer than they are.",
    (
        Column("minute", "TIMESTAMPTZ", "start of the minute", required=True),
        ENGINE,
        RUN,
        Column("n", "BIGINT", "records in the minute", required=True),
        Column("kv_usage_min", "DOUBLE", "smallest share of blocks in use, 0..1"),
        Column("kv_usage_avg", "DOUBLE", "mean share of blocks in use, 0..1"),
        Column("kv_usage_max", "DOUBLE", "largest share of blocks in use, 0..1"),
        Column("running_min", "BIGINT", "smallest number of running requests"),
        Column("running_avg", "DOUBLE", "mean number of running requests"),
        Column("running_max", "BIGINT", "largest number of running requests"),
        Column("waiting_min", "BIGINT", "smallest number of waiting requests"),
        Column("waiting_avg", "DOUBLE", "mean number of waiting requests"),
        Column("waiting_max", "BIGINT", "largest number of waiting requests"),
        Column("prompt_tps_avg", "DOUBLE", "mean prompt throughput, tokens/s"),
        Column("generation_tps_avg", "DOUBLE", "mean generation throughput, tokens/s"),
        Column("preemptions", "BIGINT", "preemptions in the minute"),
        Column("prefix_hit_rate_avg", "DOUBLE", "mean of prefix_hit_rate, 0..1"),
    ),
)
_SCRAPED = Column("ts", "TIMESTAMPTZ", "time of the scrape, by the host's clock", required=True)
SCRAPES = Table(
    "scrapes",
    "One reading of one engine's /metrics: gauges as they stood, counters since the reading before.",
    (
        _SCRAPED,
        ENGINE,
        RUN,
        Column("since", "TIMESTAMPTZ", "time of the scrape before; NULL for a first one, which counts nothing yet"),
        Column("kv_usage", "DOUBLE", "share of the KV-cache blocks in use, 0..1, exact"),
        Column("running", "BIGINT", "requests that run"),
        Column("waiting", "BIGINT", "requests that wait to be scheduled"),
        Column("waiting_capacity", "BIGINT", "of these, those that wait for room"),
        Column("waiting_deferred", "BIGINT", "of these, those that may not be scheduled yet"),
        Column("prompt_tokens", "DOUBLE", "prompt tokens processed since then"),
        Column("generation_tokens", "DOUBLE", "tokens generated since then"),
        Column("preemptions", "DOUBLE", "preemptions since then"),
        Column("prefix_queries", "DOUBLE", "tokens looked up in the prefix cache since then"),
        Column("prefix_hits", "DOUBLE", "of these, tokens found"),
        Column("finished", "DOUBLE", "requests that ended since then, aborted ones among them"),
        Column("aborted", "DOUBLE", "requests that their clients gave up since then"),
    ),
)
LATENCY = Table(
    "latency",
    "One of vLLM's latency histograms between two scrapes; percentiles as Prometheus interpolates them in its buckets.",
    (
        _SCRAPED,
        ENGINE,
        RUN,
        Column("metric", "VARCHAR", "ttft, itl (between two tokens), e2e, queue or prefill", required=True),
        Column("count", "DOUBLE", "times measured since the scrape before"),
        Column("sum", "DOUBLE", "their sum, s"),
        Column("p50", "DOUBLE", "median, s"),
        Column("p95", "DOUBLE", "95th percentile, s"),
        Column("p99", "DOUBLE", "99th percentile, s"),
    ),
)
RAW = (SAMPLES, EVENTS, GPU_SAMPLES, GPU_PROCESSES, HOST_SAMPLES, SCRAPES, LATENCY)
"""What is kept for `keep_raw` only."""
