"""A row keeps its values on the socket; how an answer looks is tested with what asks for it, in test_sqlgate."""

import io
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from kvlogd import sheet
from kvlogd.rows import Answer
from kvlogd.sheet import Format


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "DOUBLE"), (True, "BOOLEAN"), (2**100, "HUGEINT"), ("1.5", "VARCHAR"), ("nan", "VARCHAR"),
        (1.5, "DOUBLE"), (math.inf, "FLOAT"), (Decimal("12.50"), "DECIMAL(9,2)"), ([1, None], "INTEGER[]"),
        ({"k": 0.5}, "STRUCT(k DOUBLE)"),
    ],
)  # fmt: skip
def test_a_value_comes_back(value: object, kind: str) -> None:
    (sent,) = sheet.sent([value])
    assert sheet.received([sent], [kind]) == (value,)


def test_no_number_comes_back_as_no_number() -> None:
    (back,) = sheet.received(sheet.sent([math.nan]), ["DOUBLE"])
    assert math.isnan(back)


@pytest.mark.parametrize("form", list(Format))
@pytest.mark.parametrize(
    "value", [b"\x00\xff", datetime(2026, 1, 1, tzinfo=UTC), [Decimal("1.5"), math.nan], {1: b"x"}]
)
def test_what_json_cannot_say_looks_the_same(value: object, form: Format) -> None:
    def shown(row: tuple[Any, ...]) -> str:
        out = io.StringIO()
        sheet.write(Answer(("a",), ("ANY",), iter([row])), form, out)
        return out.getvalue()

    assert shown(sheet.received(sheet.sent([value]), ["ANY"])) == shown((value,))
