"""The SQL that reads and writes the rows of a table, made from its columns."""

from collections.abc import Mapping

from kvlogd.schema import Column, Table


def select(table: Table) -> str:
    """Return the query for all rows of a table, times as Unix seconds."""
    columns = (f"epoch({c.name})" if c.type == "TIMESTAMPTZ" else c.name for c in table.columns)
    return f"SELECT {', '.join(columns)} FROM {table.name}"  # noqa: S608


def insert(table: Table, values: Mapping[str, str], source: str) -> str:
    """Return the statement that adds what `source` holds; `values` gives the SQL for each column that it has."""
    return f"INSERT INTO {table.name} ({', '.join(values)}) SELECT {', '.join(values.values())} FROM {source}"  # noqa: S608


def add(table: Table) -> str:
    """Return the statement that adds one row; its parameters are the columns, times as Unix seconds."""
    return f"INSERT INTO {table.name} VALUES ({', '.join(map(_parameter, table.columns))})"  # noqa: S608


def update(table: Table) -> str:
    """Return the statement that replaces the row with the same key; its parameters are the columns, then the key."""
    values = ", ".join(f"{column.name} = {_parameter(column)}" for column in table.columns)
    same = " AND ".join(f"{name} IS NOT DISTINCT FROM ?" for name in table.key)
    return f"UPDATE {table.name} SET {values} WHERE {same}"  # noqa: S608


def _parameter(column: Column) -> str:
    return "to_timestamp(?::DOUBLE)" if column.type == "TIMESTAMPTZ" else f"?::{column.type}"
