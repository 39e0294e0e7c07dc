"""`sql`: a query of your own, for what no other kind expresses.

It is asked every few minutes of the log's own time, read-only and for two seconds at most, and returns one row for
each engine (or source) that is affected: its label as `engine` (or `source`), if you like `value` and `since`; its
other numbers are the evidence. `$now` stands for the time that is asked about: look at nothing later, so that a
replay finds what the daemon would have found. Stands alone under `when`.
It cannot see what is not in the store yet, and nothing between two times that it is asked about.
"""

import re
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, field_validator

from kvlogd.fields import Duration
from kvlogd.model import Judgement, NoEvidence, Per
from kvlogd.rest import Resting
from kvlogd.window import SourceWindow, Window

NAME = "sql"
SCOPES = frozenset({Per.ENGINE, Per.SOURCE})
LASTING = True
ALONE = True
LEAST_EVERY_S = 60.0

_NOW = re.compile(r"\$now\b")


class Params(BaseModel):
    """The query, and how often it is asked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    query: str
    every: Duration = 300.0

    @field_validator("query")
    @classmethod
    def _has_now(cls, query: str) -> str:
        if not _NOW.search(query):
            raise ValueError(
                "must look at nothing later than $now, such as `WHERE ts BETWEEN $now - INTERVAL 1 HOUR …`"
            )
        return query

    @field_validator("every")
    @classmethod
    def _not_too_often(cls, every_s: float) -> float:
        if every_s < LEAST_EVERY_S:
            raise ValueError("must be 1m or longer")
        return every_s

    def at(self, now_s: float) -> str:
        """Return the query for a time (Unix seconds)."""
        now = datetime.fromtimestamp(now_s, UTC).isoformat()
        return _NOW.sub(f"TIMESTAMPTZ '{now}'", self.query)


def make(_params: Params) -> "Sql":
    """Return the evaluator."""
    return Sql()


class Sql(Resting):
    """Is judged when its answer is there, not when the others are: see `kvlogd.inquiry`."""

    def judge(self, window: Window, at_s: float) -> Judgement:
        """Return that there is nothing to look at in a window."""
        return NoEvidence()

    def judge_source(self, source: SourceWindow, at_s: float) -> Judgement:
        """Return that there is nothing to look at in a window."""
        return NoEvidence()
