"""Asks the store what the rules with a query of their own want to know, and hands the answers to the pipeline.

Asked about the borders of a grid of record time, after what was read up to there is stored: so a replay and the
daemon get the same answers. A query that fails leaves its alert as it is, and costs the others nothing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from itertools import islice
from typing import Any, Protocol

from kvlogd import sqlgate
from kvlogd.errors import ConfigError, StoreError
from kvlogd.model import Broken, Finding
from kvlogd.pipeline import Pipeline
from kvlogd.rows import Answer
from kvlogd.rules import Rule

LIMIT_S = 2.0
"""Reading waits for the answer."""
MOST_ROWS = 1000
MOST_NUMBERS = 16


class Queryable(sqlgate.Queryable, Protocol):
    """What is asked."""

    def query(self, sql: str, *, limit_s: float) -> AbstractContextManager[Answer]:
        """Run a checked statement, read-only."""


def inquire(pipeline: Pipeline, store: Queryable, most: int | None = None) -> bool:
    """Ask what is due, no more than `most`, and have the pipeline judge it.

    Return whether anything was asked: then the next harvest tells, and more may be due.
    """
    asked = False
    for rule, at_s in islice(pipeline.questions(), most):
        pipeline.answer(rule, at_s, answered(rule, at_s, store))
        asked = True
    return asked


def answered(rule: Rule, at_s: float, store: Queryable) -> Mapping[str, Finding] | Broken:
    """Return what the rule's query finds at a time, by the label of the engine or the name of the source."""
    if rule.query is None:
        return {}
    sql = rule.query.at(at_s)
    try:
        sqlgate.check(sql, store)
        with store.query(sql, limit_s=LIMIT_S) as answer:
            return dict(_findings(rule.per.value, answer, at_s))
    except StoreError as error:
        return Broken(f"its query failed: {error.what}")


def faults(rules: Sequence[Rule], store: Queryable) -> Iterator[ConfigError]:
    """Yield what is wrong with the queries of rules, as an empty store tells."""
    for rule in rules:
        found = answered(rule, 0.0, store)
        if isinstance(found, Broken):
            yield ConfigError(found.why, where=str(rule.path), mend="try it with kvlogd sql, a time in place of $now")


def _findings(scope: str, answer: Answer, at_s: float) -> Iterator[tuple[str, Finding]]:
    if scope not in answer.columns:
        raise StoreError(f"it returns no column {scope}", mend=f"name the {scope} that each row is about")
    for number, row in enumerate(answer.rows):
        if number >= MOST_ROWS:
            raise StoreError(f"it returns more than {MOST_ROWS} rows", mend=f"return one row for each {scope}")
        values = dict(zip(answer.columns, row, strict=True))
        numbers = {name: float(value) for name, value in values.items() if _is_number(value) and name.isidentifier()}
        evidence = dict(list(numbers.items())[:MOST_NUMBERS])
        yield str(values[scope]), Finding(_since(values.get("since"), at_s), evidence.get("value"), evidence)


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, bool | str | bytes) and math.isfinite(value)
    except (TypeError, OverflowError):
        return False


def _since(value: object, at_s: float) -> float:
    """Return when a finding began: what the query says, in RFC 3339, or else the time that it was asked about."""
    try:
        return min(at_s, datetime.fromisoformat(str(value)).timestamp())
    except ValueError:
        return at_s
