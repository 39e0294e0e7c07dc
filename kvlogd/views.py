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
