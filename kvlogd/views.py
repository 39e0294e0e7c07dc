"""The views: what people ask first, as the SQL that answers it. Pure."""

from kvlogd import minutes
from kvlogd.alerting import ALERT_KEY
from kvlogd.table import Column, View
from kvlogd.telemetry import SAMPLES

KV = View(
    "kv",
    "The samples, with what the size of the pool makes of them.",
    (
        *SAMPLES.columns,
        Column("engine", "VARCHAR", "label of the engine"),
        Column("free_share", "DOUBLE", "share of the KV-cache blocks that are free, 0..1"),
        Column("free_blocks", "DOUBLE", "free KV-cache blocks"),
        Column("tokens_in_use", "DOUBLE", "tokens that the used blocks hold"),
        Column("load", "BIGINT", "requests that run"),
    ),
    f"""SELECT {", ".join(f"s.{column.name}" for column in SAMPLES.columns)}, e.label AS engine,
  1 - s.kv_usage AS free_share,
  (1 - s.kv_usage) * coalesce(r.blocks, r.kv_tokens // nullif(r.block_size, 0)) AS free_blocks,
  s.kv_usage * coalesce(r.kv_tokens, r.blocks * r.block_size) AS tokens_in_use,
  s.running AS load
FROM samples s LEFT JOIN runs r ON r.run_id = s.run_id LEFT JOIN engines e ON e.engine_id = s.engine_id""",  # noqa: S608
)
ENGINE_MINUTES = View(
    "engine_minutes",
    "The samples, one row an engine and minute; reaches further back than they do.",
    (
        Column("minute", "TIMESTAMPTZ", "start of the minute"),
        Column("engine_id", "UINTEGER", "engine, see engines"),
        Column("engine", "VARCHAR", "label of the engine"),
        Column("n", "BIGINT", "records in the minute"),
        Column("kv_usage_min", "DOUBLE", "smallest share of blocks in use, 0..1"),
        Column("kv_usage_avg", "DOUBLE", "mean share of blocks in use, 0..1"),
        Column("kv_usage_max", "DOUBLE", "largest share of blocks in use, 0..1"),
        Column("running_avg", "DOUBLE", "mean number of running requests"),
        Column("waiting_avg", "DOUBLE", "mean number of waiting requests"),
        Column("prompt_tps_avg", "DOUBLE", "mean prompt throughput, tokens/s"),
        Column("generation_tps_avg", "DOUBLE", "mean generation throughput, tokens/s"),
    ),
    f"""SELECT m.minute, m.engine_id, any_value(e.label) AS engine, sum(n)::BIGINT AS n,
  min(kv_usage_min) AS kv_usage_min, {minutes.mean("kv_usage")}, max(kv_usage_max) AS kv_usage_max,
  {minutes.mean("running")}, {minutes.mean("waiting")}, {minutes.mean("prompt_tps")}, {minutes.mean("generation_tps")}
FROM (
  SELECT * FROM minutes
  UNION ALL
  {minutes.of_samples("ts >= (SELECT coalesce(max(minute) + INTERVAL 1 MINUTE, '-infinity') FROM minutes)")}
) m LEFT JOIN engines e ON e.engine_id = m.engine_id
GROUP BY m.minute, m.engine_id""",  # noqa: S608
)
ALERT_HISTORY = View(
    "alert_history",
    "Each time that an alert fired, and when it ended.",
    (
        *ALERT_KEY,
        Column("verdict", "VARCHAR", "what was found"),
        Column("severity", "VARCHAR", "info, warning or critical, when it began to fire"),
        Column("since", "TIMESTAMPTZ", "when the thing that was found began"),
        Column("firing_at", "TIMESTAMPTZ", "when it began to fire"),
        Column("resolved_at", "TIMESTAMPTZ", "when it resolved; NULL while it fires"),
        Column("lasted", "INTERVAL", "from firing to resolved"),
        Column("value", "DOUBLE", "headline number when it began to fire"),
    ),
    """SELECT rule, scope, run_id, verdict, severity, since, ts AS firing_at,
  min(CASE WHEN state = 'resolved' THEN ts END) OVER later AS resolved_at,
  min(CASE WHEN state = 'resolved' THEN ts END) OVER later - ts AS lasted, value
FROM alert_events WHERE state IN ('firing', 'resolved')
WINDOW later AS (PARTITION BY rule, scope, run_id ORDER BY ts, state ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)
QUALIFY state = 'firing'
  AND lag(state) OVER (PARTITION BY rule, scope, run_id ORDER BY ts, state) IS DISTINCT FROM 'firing'""",
)
GPU_VS_KV = View(
    "gpu_vs_kv",
    "Device memory beside the KV cache, one row an engine, GPU and minute: nvidia-smi is flat while the pool shrinks. "
    "An engine of which no process was seen on a GPU stands beside all of them.",
    (
        Column("minute", "TIMESTAMPTZ", "start of the minute"),
        Column("engine", "VARCHAR", "label of the engine"),
        Column("gpu", "VARCHAR", "UUID or index of the device"),
        Column("free_share", "DOUBLE", "mean share of the KV-cache blocks that are free, 0..1"),
        Column("running_avg", "DOUBLE", "mean number of running requests"),
        Column("generation_tps_avg", "DOUBLE", "mean generation throughput, tokens/s"),
        Column("memory_used_mib", "DOUBLE", "mean device memory in use, MiB"),
        Column("memory_total_mib", "DOUBLE", "device memory there is, MiB"),
        Column("others_mib", "DOUBLE", "mean device memory of processes that are no followed engine's, MiB"),
        Column("util_share", "DOUBLE", "mean share of the time in which a kernel ran, 0..1"),
        Column("power_w", "DOUBLE", "mean power drawn, W"),
    ),
    """WITH pairs AS (SELECT DISTINCT engine_id, gpu FROM gpu_processes WHERE engine_id IS NOT NULL), readings AS (
  SELECT time_bucket(INTERVAL 1 MINUTE, ts) AS minute, gpu, avg(memory_used_mib) AS memory_used_mib,
    max(memory_total_mib) AS memory_total_mib, avg(others_mib) AS others_mib, avg(util_share) AS util_share,
    avg(power_w) AS power_w
  FROM gpu_samples GROUP BY ALL
)
SELECT m.minute, m.engine, r.gpu, 1 - m.kv_usage_avg AS free_share, m.running_avg, m.generation_tps_avg,
  r.memory_used_mib, r.memory_total_mib, r.others_mib, r.util_share, r.power_w
FROM engine_minutes m JOIN readings r ON r.minute = m.minute LEFT JOIN (
  SELECT engine_id, list(gpu) AS gpus FROM pairs GROUP BY engine_id
) p ON p.engine_id = m.engine_id
WHERE p.gpus IS NULL OR list_contains(p.gpus, r.gpu)""",
)
