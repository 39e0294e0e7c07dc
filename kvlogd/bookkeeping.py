"""The tables in which kvlogd keeps its own books: how far it read, what it lost, what lies where. Pure."""

from kvlogd.table import Column, Table

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
