"""What a table and a view are, and the SQL that makes one, comments included. Pure."""

from collections.abc import Iterator
from typing import NamedTuple


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


def _comments(kind: str, what: Table | View) -> Iterator[str]:
    yield f"COMMENT ON {kind} {what.name} IS {quoted(what.comment)}"
    for column in what.columns:
        yield f"COMMENT ON COLUMN {what.name}.{column.name} IS {quoted(column.comment)}"


def quoted(text: str) -> str:
    """Return the text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
