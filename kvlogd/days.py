"""Days in UTC as the store counts them, and up to when the records can be trusted to tell the time."""

import math
from collections.abc import Sequence
from datetime import date

DAY_S = 86400
EPOCH = date(1970, 1, 1).toordinal()
_HOLE_DAYS = 2
_PROOF_DAYS = 2


def of(time_s: float) -> int:
    """Return the day of a time: days since 1970-01-01."""
    return math.floor(time_s / DAY_S)


def sql(column: str) -> str:
    """Return the SQL for the day of a column of times."""
    return f"(epoch_us({column}) // {DAY_S * 1_000_000})"


def name(day: int) -> str:
    """Return a day as 2026-11-29."""
    return date.fromordinal(EPOCH + day).isoformat()


def trusted_s(days: Sequence[int], wall_s: float) -> float | None:
    """Return the time up to which things may be called old; `days` are those with records, in order.

    Never more than a day ahead of the records. Where they jump ahead, as when a clock was set wrong, those behind the
    jump count only once they span days.
    """
    if not days:
        return None
    starts = [0, *(i for i in range(1, len(days)) if days[i] - days[i - 1] > _HOLE_DAYS)]
    if len(starts) > 1 and days[-1] - days[starts[-1]] < _PROOF_DAYS:
        days = days[: starts[-1]]
    return min(wall_s, (days[-1] + 1) * DAY_S)
