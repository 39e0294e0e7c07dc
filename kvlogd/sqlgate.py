"""What `kvlogd sql` may run, and how its answer looks.

Promises that only a single reading statement over the store's own tables passes: no write, no file, no environment.
The store adds its own fences (read-only transaction, no external access, locked settings); this gate also keeps out
what those let through, such as reading the store's own file, which would drop DuckDB's lock on it.
Does not promise that a query is cheap; a time limit and a row limit end it.
"""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import date, datetime, time
from decimal import Decimal
from enum import StrEnum
from typing import Any, Protocol, TextIO

from kvlogd.errors import StoreError
from kvlogd.rows import Answer

LIMIT_S = 30.0
MAX_SQL_CHARS = 65_536
_MEND = "`kvlogd sql` runs one SELECT over the tables that docs/schema.md names"

TABLE_FUNCTIONS = frozenset({
    "duckdb_columns", "duckdb_constraints", "duckdb_tables", "duckdb_types", "duckdb_views", "generate_series",
    "json_each", "json_tree", "pragma_table_info", "range", "repeat", "unnest",
})  # fmt: skip
FORBIDDEN_FUNCTIONS = frozenset({
    "copy", "current_setting", "currval", "getenv", "glob", "json_execute_serialized_sql", "nextval", "query",
    "query_table", "setseed", "setval", "sleep_ms", "write_log",
})  # fmt: skip
_QUERY_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "CTE_NODE", "RECURSIVE_CTE_NODE"})
_NAME = re.compile(r'"?[A-Za-z_][A-Za-z0-9_]*"?', re.ASCII)
_EXPLAIN = re.compile(r"\s*EXPLAIN(\s+ANALYZE)?\s+", re.IGNORECASE)
_NUMBER = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL\(.*\)")


class Format(StrEnum):
    """How an answer is written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


MAX_ROWS = {Format.TABLE: 100_000, Format.CSV: 10_000_000, Format.JSON: 10_000_000}
"""A table is held in memory for its widths; the other two stream."""


class Queryable(Protocol):
    """What the gate needs of a store."""

    def statement_types(self, sql: str) -> list[str]:
        """Return the type of each statement."""

    def syntax_tree(self, sql: str) -> str:
        """Return the syntax tree of one SELECT as JSON."""

    def query(self, sql: str, *, limit_s: float) -> AbstractContextManager[Answer]:
        """Run a checked statement, read-only."""


def answer(
    store: Queryable, sql: str, form: Format, out: TextIO, *, limit_s: float = LIMIT_S, max_rows: int | None = None
) -> None:
    """Check the statement, run it and write its rows to `out`; raises StoreError, before the first byte if refused."""
    check(sql, store)
    with store.query(sql, limit_s=limit_s) as found:
        limit = MAX_ROWS[form] if max_rows is None else max_rows
        shown = found._replace(rows=_limited(found.rows, limit))
        if form is Format.CSV:
            _write_csv(shown, out)
        elif form is Format.JSON:
            _write_json(shown, out)
        elif _EXPLAIN.match(sql):
            _write_plan(shown, out)
        else:
            _write_table(shown, out)


def check(sql: str, store: Queryable) -> None:
    """Raise StoreError unless the text is one statement that only reads the store's own tables."""
    if len(sql) > MAX_SQL_CHARS or "\0" in sql:
        raise _refused(f"more than {MAX_SQL_CHARS} characters, or a NUL")
    types = store.statement_types(sql)
    if len(types) != 1 or types[0] == "MULTI":
        raise _refused("more than one statement, or a PIVOT without IN" if types else "no statement")
    if types[0] not in ("SELECT", "EXPLAIN"):
        raise _refused(f"{types[0]} is no reading statement")
    explained = _EXPLAIN.match(sql)
    body = sql[explained.end() :] if explained else sql
    try:
        tree = json.loads(store.syntax_tree(body))
    except RecursionError as error:
        raise _refused("it is nested too deeply") from error
    if tree.get("error_type") in ("not implemented", "serialization"):
        raise _refused("only a SELECT may stand there, and its WITH may not change data")
    if tree.get("error") or len(tree.get("statements", ())) != 1:
        raise _refused(str(tree.get("error_message", "it cannot be examined")))
    for node in _nodes(tree["statements"]):
        _check_node(node)


def _refused(why: str) -> StoreError:
    return StoreError(f"refused: {escaped(why)}", mend=_MEND)


def _nodes(tree: object) -> Iterator[dict[str, Any]]:
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            yield node
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)


def _check_node(node: dict[str, Any]) -> None:
    kind = node.get("type")
    if isinstance(kind, str) and kind.endswith("_NODE") and kind not in _QUERY_NODES:
        raise _refused(f"{kind} does more than read")
    if kind == "TABLE_FUNCTION":
        function = str(node.get("function", {}).get("function_name")).lower()
        if function not in TABLE_FUNCTIONS:
            raise _refused(f"the table function {function} is not allowed")
    if kind in ("BASE_TABLE", "SHOW_REF"):
        for part in ("catalog_name", "schema_name", "table_name"):
            if node.get(part) and not _NAME.fullmatch(node[part]):
                raise _refused(f"{node[part]} is no name of a table")
    function = str(node.get("function_name", "")).lower()
    if function in FORBIDDEN_FUNCTIONS or function.startswith("read_"):
        raise _refused(f"the function {function} is not allowed")


def _limited(rows: Iterable[tuple[Any, ...]], limit: int) -> Iterator[tuple[Any, ...]]:
    for count, row in enumerate(rows):
        if count == limit:
            raise StoreError(f"the answer has more than {limit} rows", mend="add a LIMIT or aggregate")
        yield row


def escaped(text: str) -> str:
    """Return the text with whatever a terminal might obey, or that would break a line, written as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case bytes():
            return value.hex()
        case list() | tuple() | dict():
            return json.dumps(_plain(value), allow_nan=False)
        case datetime() | date() | time():
            return value.isoformat()
    return str(value)


def _plain(value: object) -> object:
    """Return the value as JSON can say it: unknown and not-a-number are null."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return float(value)
        case list() | tuple():
            return [_plain(item) for item in value]
        case dict():
            return {_text(key): _plain(item) for key, item in value.items()}
    return _text(value)


def _unique(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        number, unique = 1, name
        while unique in found:
            number, unique = number + 1, f"{name}_{number + 1}"
        found.append(unique)
    return found


def _write_csv(found: Answer, out: TextIO) -> None:
    writer = csv.writer(out)  # RFC 4180: CRLF, quotes where needed
    writer.writerow(found.columns)
    writer.writerows([_text(value) for value in row] for row in found.rows)


def _write_json(found: Answer, out: TextIO) -> None:
    names = _unique(found.columns)
    before = "["
    for row in found.rows:
        fields = {name: _plain(value) for name, value in zip(names, row, strict=True)}
        out.write(before + json.dumps(fields, allow_nan=False))
        before = ",\n"
    out.write("]\n" if before != "[" else "[]\n")


def _write_plan(found: Answer, out: TextIO) -> None:
    for row in found.rows:
        out.writelines(f"{escaped(line)}\n" for line in str(row[-1]).splitlines())


def _write_table(found: Answer, out: TextIO) -> None:
    cells = [["NULL" if value is None else escaped(_text(value)) for value in row] for row in found.rows]
    head = [escaped(name) for name in found.columns]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    right = [_NUMBER.fullmatch(kind) is not None for kind in found.types]
    for line in (head, ["-" * width for width in widths], *cells):
        padded = (
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(line, widths, right, strict=True)
        )
        out.write("  ".join(padded).rstrip() + "\n")
