"""What a replay comes to: the records that `tell` and `report` make words and pictures of."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvlogd.errors import KvlogdError
from kvlogd.model import AlertEvent, AlertState, Engine, Gap, Run


class SourceReport(NamedTuple):
    """What was read of one source."""

    source: str
    stats_lines: int
    lines: int
    unparsed_stats_lines: int
    duplicates: int
    engines: int
    runs: int
    first_s: float | None
    last_s: float | None
    gaps: Sequence[Gap]
    abstained: Sequence[tuple[str, str, str]]
    """(rule, engine, what was missing)"""
    blind: str | None
    """Why there is no stats record, in words; None where there are some."""
    is_vllm: bool


class Outcome(NamedTuple):
    """What a replay found."""

    alerts: Sequence[AlertEvent]
    engines: Sequence[Engine]
    runs: Sequence[Run]
    sources: Sequence[SourceReport]
    errors: Sequence[KvlogdError]


class Episode(NamedTuple):
    """A finding from its first alert to what ended it; None while it goes on at the log's end."""

    fired: AlertEvent
    over: AlertEvent | None


def episodes_in(alerts: Iterable[AlertEvent]) -> list[Episode]:
    """Return each firing with what ended it, in order of time."""
    going_on: dict[object, int] = {}
    found: list[Episode] = []
    for event in alerts:
        if event.state is AlertState.FIRING and event.key not in going_on:
            going_on[event.key] = len(found)
            found.append(Episode(event, None))
        elif event.state is AlertState.RESOLVED and event.key in going_on:
            at = going_on.pop(event.key)
            found[at] = found[at]._replace(over=event)
    return found
