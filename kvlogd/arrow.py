"""Turns columns of Python values into Arrow arrays, so that DuckDB takes them without numpy, pyarrow or copies.

Promises well under a microsecond a row. Knows Arrow and the tables' types, and no database.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import nanoarrow as na

from kvlogd.table import Table

_SLICE = 512
_KNOWN = "nullif({0}, 'nan'::DOUBLE)"
_AS = {"DOUBLE": _KNOWN, "TIMESTAMPTZ": f"make_timestamptz(({_KNOWN} * 1e6)::BIGINT)"}


def transposed(records: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Return the columns of equally long records, in slices that fit the CPU's cache (3 times faster than one zip)."""
    columns: list[list[Any]] = [[] for _ in records[0]]
    for start in range(0, len(records), _SLICE):
        for column, part in zip(columns, zip(*records[start : start + _SLICE], strict=True), strict=True):
            column.extend(part)
    return columns


def columns_of(table: Table, records: Sequence[tuple[Any, ...]]) -> dict[str, list[Any]]:
    """Return the columns by name of records that have the order of the table's columns."""
    return dict(zip((column.name for column in table.columns), transposed(records), strict=True))


def incoming(table: Table, columns: Mapping[str, Sequence[Any]]) -> tuple[na.Array, dict[str, str]]:
    """Return the columns as one Arrow struct, and for each the SQL that makes it what `table` holds.

    Leaves out columns that are all None. Raises ValueError or OverflowError for a value that does not fit.
    """
    children, fields, expressions = [], {}, {}
    length = len(columns[table.columns[0].name])
    for column in table.columns:
        found = _child(column.type, columns[column.name])
        if found:
            fields[column.name], child, sql = found
            children.append(child)
            expressions[column.name] = sql.format(column.name)
    struct = na.c_array_from_buffers(na.struct(fields), length, [None], children=children)
    return na.Array(struct), expressions


def _child(sql_type: str, values: Sequence[Any]) -> tuple[Any, Any, str] | None:
    """Return a column's Arrow type, its Arrow array and the SQL that makes it `sql_type`; None for nothing but None."""
    # The first value tells most empty columns for the price of none.
    if values[0] is None and values.count(None) == len(values):
        return None
    if sql_type == "VARCHAR":
        return na.string(), na.c_array(values, na.string()), "{0}"
    if sql_type in _AS:
        return _floats(values, _AS[sql_type])
    try:
        return na.int64(), na.c_array_from_buffers(na.int64(), len(values), [None, array("q", values)]), "{0}"
    except TypeError:
        return _floats(values, _KNOWN)


def _floats(values: Sequence[Any], sql: str) -> tuple[Any, Any, str]:
    # NaN stands for NULL on the way: cheaper than a validity bitmap, and so no NaN gets into the store.
    try:
        numbers = array("d", values)
    except TypeError:
        numbers = array("d", [math.nan if value is None else value for value in values])
    return na.float64(), na.c_array_from_buffers(na.float64(), len(values), [None, numbers]), sql
