"""How the answer of a query looks: a table for people, CSV and JSON for scripts, and plain values on a socket. Pure.

Promises that the three are the same whether the answer comes from the file or over the socket, and that nothing in a
table can move a terminal's cursor. Does not hold an answer in memory, but for a table, whose widths need all of it.
"""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from enum import StrEnum
from typing import Any, TextIO

from kvlogd.errors import StoreError
from kvlogd.rows import Answer

_NUMBER = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL\(.*\)")

_AS_IT_IS = (str, int, type(None))


class Format(StrEnum):
    """How an answer is written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


MOST_ROWS = 10_000_000
MAX_ROWS = {Format.TABLE: 100_000, Format.CSV: MOST_ROWS, Format.JSON: MOST_ROWS}
"""A table is held in memory for its widths; the other two stream."""


def write(found: Answer, form: Format, out: TextIO, *, max_rows: int | None = None, plan: bool = False) -> None:
    """Write the rows to `out`; a `plan` keeps its line breaks in a table. Raises StoreError at a row too many."""
    limit = MAX_ROWS[form] if max_rows is None else max_rows
    shown = found._replace(rows=limited(found.rows, limit))
    if form is Format.CSV:
        _write_csv(shown, out)
    elif form is Format.JSON:
        _write_json(shown, out)
    elif plan:
        _write_plan(shown, out)
    else:
        _write_table(shown, out)


def limited(rows: Iterable[tuple[Any, ...]], limit: int) -> Iterator[tuple[Any, ...]]:
    """Yield the rows; raises StoreError where there are more."""
    for count, row in enumerate(rows):
        if count == limit:
            raise StoreError(f"the answer has more than {limit} rows", mend="add a LIMIT or aggregate")
        yield row


def sent(row: Sequence[Any]) -> list[object]:
    """Return the values of a row as JSON can say them; `received` needs the columns' types to undo it."""
    return [value if isinstance(value, _AS_IT_IS) else _sent(value) for value in row]


def _sent(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    # lists and structs are JSON in all three forms
    return _plain(value) if isinstance(value, list | tuple | dict) else _text(value)


def received(row: Sequence[Any], types: Sequence[str]) -> tuple[Any, ...]:
    """Return the row that was sent."""
    return tuple(
        _received(value, kind) if isinstance(value, str) else value for value, kind in zip(row, types, strict=True)
    )


def _received(value: str, kind: str) -> object:
    if kind.startswith("DECIMAL("):
        return Decimal(value)
    return float(value) if kind in ("DOUBLE", "FLOAT") else value


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
