"""The store's tables and views, said once: the DDL, the comments in the database and docs/schema.md come from here.

Promises names, types and units to people who write SQL. Imports no database; `python -m kvlogd.schema` prints the page.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kvlogd import minutes

SCHEMA_VERSION = 2


class Column(NamedTuple):
    """One column; the comment states the unit."""

    name: str
    type: str
    comment: str
    required: bool = False


class Table(NamedTuple):
    """One table. `key` names the columns that make a row the same row, for tables that are updated in place."""

    name: str
    comment: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()


class View(NamedTuple):
    """One view; its columns have no constraint, and their types follow from the query."""

    name: str
    comment: str
    columns: tuple[Column, ...]
    query: str


_TS = Column("ts", "TIMESTAMPTZ", "time of the log record", required=True)
_ENGINE = Column("engine_id", "UINTEGER", "engine, see engines", required=True)
_RUN = Column("run_id", "UINTEGER", "life of the engine, see runs", required=True)
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
_ALERT_KEY = (
    Column("rule", "VARCHAR", "id of the rule", required=True),
    Column("scope", "VARCHAR", "label of the engine, name of the source, or host", required=True),
    Column("run_id", "UINTEGER", "life of the engine; NULL where the alert outlives it"),
)
_ALERT_FACTS = (
    Column("verdict", "VARCHAR", "what was found"),
    Column("severity", "VARCHAR", "info, warning or critical"),
    Column("source", "VARCHAR", "name of the source"),
    Column("engine_index", "INTEGER", "vLLM's data-parallel rank"),
    Column("since", "TIMESTAMPTZ", "when the thing that was found began"),
    Column("value", "DOUBLE", "headline number, in the unit that the rule's kind documents"),
    Column("evidence", "VARCHAR", "JSON object of numbers by name"),
)

ENGINES = Table(
    "engines",
    "One engine: the thing that owns a KV-cache pool.",
    (
        _ENGINE,
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
        _RUN,
        _ENGINE,
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
    ),
    key=("run_id",),
)
SAMPLES = Table(
    "samples", "One stats record of a log. Unknown is NULL, shares are 0..1.", (_TS, _ENGINE, _RUN, *_STATS)
)
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
    ),
)
HOST_SAMPLES = Table(
    "host_samples",
    "One reading of a server's process tree.",
    (
        Column("ts", "TIMESTAMPTZ", "time of the reading", required=True),
        Column("source", "VARCHAR", "name of the source whose server it is"),
        Column("rss_mib", "DOUBLE", "resident memory of the process tree, MiB"),
    ),
)
ALERTS = Table(
    "alerts",
    "The alerts that are pending or firing, each as it stands now.",
    (
        *_ALERT_KEY,
        Column("state", "VARCHAR", "pending or firing", required=True),
        Column("entered", "TIMESTAMPTZ", "when it entered this state", required=True),
        Column("since", "TIMESTAMPTZ", "when the thing that was found began", required=True),
        Column("seen", "TIMESTAMPTZ", "when it was judged last", required=True),
        Column("true_for_s", "DOUBLE", "for how long it has been found without a break, s", required=True),
        Column("clear_since", "TIMESTAMPTZ", "since when it has not been found any more; NULL while it is"),
        Column("verdict", "VARCHAR", "what was found", required=True),
        Column("severity", "VARCHAR", "info, warning or critical", required=True),
        Column("source", "VARCHAR", "name of the source", required=True),
        Column("engine_index", "INTEGER", "vLLM's data-parallel rank"),
        Column("value", "DOUBLE", "headline number, in the unit that the rule's kind documents"),
        Column("evidence", "VARCHAR", "JSON object of numbers by name"),
    ),
    key=("rule", "scope", "run_id"),
)
ALERT_EVENTS = Table(
    "alert_events",
    "One change of an alert that people may see.",
    (
        Column("ts", "TIMESTAMPTZ", "when it changed, in record time", required=True),
        *_ALERT_KEY,
        Column("state", "VARCHAR", "the state that it entered: firing or resolved", required=True),
        *_ALERT_FACTS,
        Column("reason", "VARCHAR", "why it resolved: cleared, restart, rule removed"),
    ),
)
POSITIONS = Table(
    "positions",
    "How far each file has been read; commits together with the rows read from it.",
    (
        Column("source", "VARCHAR", "name of the source", required=True),
        Column("file_id", "VARCHAR", "signature of the file, the same after a rename; or `journal`", required=True),
        Column("byte_offset", "BIGINT", "bytes read and stored", required=True),
        Column("head", "VARCHAR", "`N:HEX`: hash of the first N bytes of a file that is tailed"),
        Column("marker", "VARCHAR", "`N:HEX`: hash of the N bytes before byte_offset"),
        Column("cursor", "VARCHAR", "journald's cursor of the last entry that was read"),
        Column("done", "BOOLEAN", "true for a file that was read to its end and will not grow any more"),
        Column("seen", "TIMESTAMPTZ", "when the position was last moved, by the host's clock"),
    ),
    key=("source", "file_id"),
)
MEMORIES = Table(
    "memories",
    "What the rules of one source remember, so that a restart need not read its whole history again.",
    (
        Column("source", "VARCHAR", "name of the source", required=True),
        Column("code", "VARCHAR", "which kvlogd and which rules wrote it; no other can read it", required=True),
        Column("memory", "BLOB", "the state, compressed", required=True),
    ),
    key=("source",),
)
GAPS = Table(
    "gaps",
    "What kvlogd could not read, counted instead of passed over in silence.",
    (
        Column("source", "VARCHAR", "name of the source", required=True),
        Column("ts", "TIMESTAMPTZ", "time of the last record before the gap"),
        Column("reason", "VARCHAR", "why it could not be read", required=True),
        Column("lines", "BIGINT", "how many lines or records were lost; 0 where that is not known"),
        Column("lost_bytes", "BIGINT", "how many bytes were lost, where that is what is known"),
        Column("until", "TIMESTAMPTZ", "when reading went on, where the gap is one of time"),
    ),
)
MINUTES = Table(
    "minutes",
    "One row an engine, life and minute, made of the samples and kept longer than they are.",
    (
        Column("minute", "TIMESTAMPTZ", "start of the minute", required=True),
        _ENGINE,
        _RUN,
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
EXPORTS = Table(
    "exports",
    "Which day of which table lies in the export folder as a Parquet file.",
    (
        Column("name", "VARCHAR", "name of the table", required=True),
        Column("day", "DATE", "day of the rows' ts, UTC", required=True),
        Column("n", "BIGINT", "rows in the file", required=True),
    ),
)
META = Table(
    "meta",
    "Facts about the store itself.",
    (
        Column(
            "key",
            "VARCHAR",
            "name of the fact: schema_version, raw_from (Unix seconds; older samples are in minutes alone)",
            required=True,
        ),
        Column("value", "VARCHAR", "its value"),
    ),
    key=("key",),
)
TABLES = (
    ENGINES, RUNS, SAMPLES, EVENTS, GPU_SAMPLES, HOST_SAMPLES, ALERTS, ALERT_EVENTS, POSITIONS, MEMORIES, GAPS,
    MINUTES, EXPORTS, META,
)  # fmt: skip
RAW = (SAMPLES, EVENTS, GPU_SAMPLES, HOST_SAMPLES)
"""What is kept for `keep_raw` only."""
EXPORTED = (*RAW, ALERT_EVENTS)
"""What is written to a Parquet file each day."""

_KV = View(
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
_ENGINE_MINUTES = View(
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
_ALERT_HISTORY = View(
    "alert_history",
    "Each time that an alert fired, and when it ended.",
    (
        *_ALERT_KEY,
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
VIEWS = (_KV, _ENGINE_MINUTES, _ALERT_HISTORY)


def create(table: Table) -> Iterator[str]:
    """Yield the statements that make one empty table, comments included."""
    columns = ", ".join(f"{c.name} {c.type}{' NOT NULL' if c.required else ''}" for c in table.columns)
    yield f"CREATE TABLE {table.name} ({columns})"
    yield from _comments("TABLE", table)


def show(view: View) -> Iterator[str]:
    """Yield the statements that make one view, comments included."""
    yield f"CREATE VIEW {view.name} AS {view.query}"
    yield from _comments("VIEW", view)


def extend(table: Table, *names: str) -> Iterator[str]:
    """Yield the statements that add the named columns to a table that is there."""
    for column in table.columns:
        if column.name in names:
            yield f"ALTER TABLE {table.name} ADD COLUMN {column.name} {column.type}"
            yield f"COMMENT ON COLUMN {table.name}.{column.name} IS {quoted(column.comment)}"


def ddl() -> Iterator[str]:
    """Yield the statements that make an empty database a store, comments included."""
    for table in TABLES:
        yield from create(table)
    for view in VIEWS:
        yield from show(view)


def migrations() -> Mapping[int, Sequence[str]]:
    """Return for each older version the statements that lift a store to the next one.

    Never edit an entry once released.
    """
    return {
        1: (
            "DROP TABLE alerts",  # no kvlogd of that version wrote a row into it
            *create(ALERTS),
            *extend(POSITIONS, "head", "marker", "cursor", "done", "seen"),
            *extend(GAPS, "lost_bytes", "until"),
            *create(MEMORIES),
            *create(MINUTES),
            *create(EXPORTS),
            "DROP VIEW engine_minutes",
            *show(_ENGINE_MINUTES),
        )
    }


def upgrade(found: int, migrations: Mapping[int, Sequence[str]]) -> list[str]:
    """Return the statements that lift a store of version `found` to SCHEMA_VERSION; raises KeyError where one lacks."""
    return [statement for version in range(found, SCHEMA_VERSION) for statement in migrations[version]]


def markdown() -> str:
    """Return docs/schema.md."""
    parts = [
        "# The store: tables and views\n",
        "Generated by `python -m kvlogd.schema`; do not edit. "
        f"Schema version {SCHEMA_VERSION}. Times are shown in UTC. Unknown is NULL, never 0.\n",
        *(_section("table", table) for table in TABLES),
        *(_section("view", view) for view in VIEWS),
    ]
    return "\n".join(parts)


def _comments(kind: str, what: Table | View) -> Iterator[str]:
    yield f"COMMENT ON {kind} {what.name} IS {quoted(what.comment)}"
    for column in what.columns:
        yield f"COMMENT ON COLUMN {what.name}.{column.name} IS {quoted(column.comment)}"


def quoted(text: str) -> str:
    """Return the text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def _section(kind: str, what: Table | View) -> str:
    rows = "".join(f"| `{c.name}` | {c.type} | {c.comment} |\n" for c in what.columns)
    return f"## {kind} `{what.name}`\n\n{what.comment}\n\n| column | type | meaning |\n|---|---|---|\n{rows}"


if __name__ == "__main__":
    print(markdown(), end="")
