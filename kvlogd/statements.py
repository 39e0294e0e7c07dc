"""The SQL that reads and writes the rows of a table, made from its columns."""

from collections.abc import Mapping

from kvlogd.table import Column, Table


def select(table: Table) -> str:
    """Return the query for all rows of a table, times as Unix seconds."""
    columns = (f"epoch({c.name})" if c.type == "TIMESTAMPTZ" else c.name for c in table.columns)
    return f"SELECT {', '.join(columns)} FROM {table.name}"  # noqa: S608


def insert(table: Table, values: Mapping[str, str], source: str) -> str:
    """Return the statement that adds what `source` holds; `values` gives the SQL for each column that it has."""
    return f"INSERT INTO {table.name} ({', '.join(values)}) SELECT {', '.join(values.values())} FROM {source}"  # noqa: S608


def update(table: Table, count: int) -> str:
    """Return the statement that replaces rows by their key; its parameters are the columns of each, times in s."""
    values = ", ".join(f"{column.name} = i.{column.name}" for column in table.columns)
    return f"UPDATE {table.name} AS t SET {values} FROM {_given(table, count)} WHERE {_same(table)}"  # noqa: S608


def add(table: Table, count: int) -> str:
    """Return the statement that adds those of the rows whose key is not there; its parameters are as in `update`."""
    there = f"SELECT 1 FROM {table.name} AS t WHERE {_same(table)}"  # noqa: S608
    return f"INSERT INTO {table.name} SELECT i.* FROM {_given(table, count)} WHERE NOT EXISTS ({there})"  # noqa: S608


def _given(table: Table, count: int) -> str:
    row = f"({', '.join(map(_parameter, table.columns))})"
    return f"(VALUES {', '.join([row] * count)}) AS i({', '.join(column.name for column in table.columns)})"


def _same(table: Table) -> str:
    return " AND ".join(f"t.{name} IS NOT DISTINCT FROM i.{name}" for name in table.key)


def _parameter(column: Column) -> str:
    return "to_timestamp(?::DOUBLE)" if column.type == "TIMESTAMPTZ" else f"?::{column.type}"
