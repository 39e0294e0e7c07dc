"""What `kvlogd sql` may run.

Promises that only a single reading statement over the store's own tables passes: no write, no file, no environment.
The store adds its own fences (read-only transaction, no external access, locked settings); this gate also keeps out
what those let through, such as reading the store's own file, which would drop DuckDB's lock on it.
Does not promise that a query is cheap; a time limit and a row limit end it.
"""

import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol, TextIO

from kvlogd import sheet
from kvlogd.errors import StoreError
from kvlogd.functions import FUNCTIONS, TABLE_FUNCTIONS
from kvlogd.rows import Answer
from kvlogd.sheet import Format, escaped

LIMIT_S = 30.0
MAX_SQL_CHARS = 65_536
_MEND = "`kvlogd sql` runs one SELECT over the tables that docs/schema.md names"

_SCHEMAS = frozenset({"", "main", "information_schema", "pg_catalog"})
_FILE_ENDINGS = frozenset({"csv", "tsv", "txt", "json", "jsonl", "ndjson", "parquet", "db", "duckdb", "ddb"})
_QUERY_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "CTE_NODE", "RECURSIVE_CTE_NODE"})
_NAME = re.compile(r'"?[A-Za-z_][A-Za-z0-9_]*"?', re.ASCII)
_EXPLAIN = re.compile(r"\s*EXPLAIN(\s+ANALYZE)?\s+", re.IGNORECASE)


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
        sheet.write(found, form, out, max_rows=max_rows, plan=is_plan(sql))


def is_plan(sql: str) -> bool:
    """Tell an EXPLAIN, whose answer is a drawing."""
    return _EXPLAIN.match(sql) is not None


def check(sql: str, store: Queryable) -> None:
    """Raise StoreError unless the text is one statement that only reads the store's own tables."""
    if len(sql) > MAX_SQL_CHARS or "\0" in sql:
        raise _refused(f"more than {MAX_SQL_CHARS} characters, or a NUL")
    if any("\ud800" <= char <= "\udfff" for char in sql):
        raise _refused("it is no UTF-8 text")
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
            stack.extend(value for key, value in node.items() if not _is_table_function(node, key))
            if node.get("type") == "TABLE_FUNCTION":
                stack.extend(node["function"].get("children", ()))
        elif isinstance(node, list):
            stack.extend(node)


def _is_table_function(node: dict[str, Any], key: str) -> bool:
    # judged by another list than the functions that stand in expressions
    return key == "function" and node.get("type") == "TABLE_FUNCTION"


def _check_node(node: dict[str, Any]) -> None:
    kind = node.get("type")
    if isinstance(kind, str) and kind.endswith("_NODE") and kind not in _QUERY_NODES:
        raise _refused(f"{kind} does more than read")
    if kind == "TABLE_FUNCTION":
        function = str(node.get("function", {}).get("function_name")).lower()
        if function not in TABLE_FUNCTIONS:
            raise _refused(f"the table function {function} is not allowed")
    if kind in ("BASE_TABLE", "SHOW_REF"):
        _check_table(node)
    function = str(node.get("function_name") or "").lower()
    if function and function not in FUNCTIONS:
        raise _refused(
            f"the function {function} is not allowed" + (" but in FROM" if function in TABLE_FUNCTIONS else "")
        )


def _check_table(node: dict[str, Any]) -> None:
    """Refuse what DuckDB might take for a file: `FROM kv.duckdb` is one, whether in quotes or not."""
    table = node.get("table_name") or ""
    if table and not _NAME.fullmatch(table):
        raise _refused(f"{table} is no name of a table")
    for part in (node.get("catalog_name") or "", node.get("schema_name") or ""):
        if part not in _SCHEMAS:
            raise _refused(f"{part} is no schema of the store")
    if node.get("schema_name") and table.lower() in _FILE_ENDINGS:
        raise _refused(f"{table} is no name of a table")
