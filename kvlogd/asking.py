"""Starts a user's statement on a cursor, so that times with a zone leave as RFC 3339 text in UTC.

Knows no database: a cursor is what a DuckDB cursor can do.
"""

from typing import Any

_RFC3339 = "replace(strftime({0} AT TIME ZONE 'UTC', '%Y-%m-%dT%H:%M:%S.%f'), '.000000', '') || '+00:00'"
_WITH_ZONE = "TIMESTAMP WITH TIME ZONE"


def start(cursor: Any, sql: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Start the statement; return its columns' names and types."""
    if sql.lstrip()[:7].upper() == "EXPLAIN":
        plan = cursor.execute(sql).description
        return tuple(column[0] for column in plan), tuple(str(column[1]) for column in plan)
    body = sql.rstrip("; \t\r\n")
    relation = cursor.sql(body)
    types = tuple(str(kind) for kind in relation.types)
    names = [f"c{i}" for i in range(len(types))]
    shown = [_shown(name, kind) for name, kind in zip(names, types, strict=True)]
    if shown != names:
        body = f"SELECT {', '.join(shown)} FROM (\n{body}\n) AS q({', '.join(names)})"  # noqa: S608
    columns = tuple(relation.columns)
    cursor.execute(body)
    return columns, types


def _shown(name: str, kind: str) -> str:
    # DuckDB 1.5 needs pytz to hand out such values, so they leave as text.
    if kind == _WITH_ZONE:
        return _RFC3339.format(name)
    return f"CAST({name} AS VARCHAR)" if _WITH_ZONE in kind else name
