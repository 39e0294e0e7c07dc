"""What goes into the store and comes back beside the records of `model`, and how they lie in the tables' columns.

Pure: knows the order of the columns in `schema`, and no database.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kvlogd.model import AlertEvent, AlertKey, AlertState, Engine, Event, EventKind, Gap, Run, Severity, Stats

GpuRow = tuple[float, str, float | None, float | None, float | None, float | None, float | None, float | None]
"""`sidecar.GpuSample`: time, GPU, share of use, MiB used, MiB in all, degrees Celsius, W, MHz."""
HostRow = tuple[float, str | None, float | None]
"""`sidecar.HostSample`: time, source, MiB."""


class Position(NamedTuple):
    """How far one file of one source has been read, in bytes; `file_id` is a signature that survives a rename."""

    source: str
    file_id: str
    offset: int


class AlertRow(NamedTuple):
    """The state of one alert, so that it outlives a restart. `state` None takes the alert out of the store."""

    key: AlertKey
    state: AlertState | None
    entered_s: float
    """When it entered this state."""
    since_s: float | None
    keep_until_s: float | None
    value: float | None
    evidence: Mapping[str, float]
    severity: Severity
    verdict: str
    source: str
    engine_index: int | None


class Batch(NamedTuple):
    """Everything that commits together. `sample_runs` holds the run_id of each sample."""

    engines: Sequence[Engine] = ()
    runs: Sequence[Run] = ()
    samples: Sequence[Stats] = ()
    sample_runs: Sequence[int] = ()
    events: Sequence[tuple[int | None, int | None, Event]] = ()
    """(engine_id, run_id, event)"""
    alert_events: Sequence[AlertEvent] = ()
    alerts: Sequence[AlertRow] = ()
    gaps: Sequence[Gap] = ()
    positions: Sequence[Position] = ()
    gpu_samples: Sequence[GpuRow] = ()
    host_samples: Sequence[HostRow] = ()


class Answer(NamedTuple):
    """What a query returned. Times with a zone come as RFC 3339 text in UTC; `rows` can be read once."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]


def event_values(engine_id: int | None, run_id: int | None, e: Event) -> tuple[Any, ...]:
    """Return the values of one row of `events`, in the order of its columns."""
    return (
        e.ts_s, engine_id, run_id, e.kind.value, e.pid, e.engine_index, _numbers(e.numbers), e.version, e.model,
    )  # fmt: skip


def event(row: Sequence[Any]) -> Event:
    """Return the event of a row (time, kind, numbers as JSON)."""
    return Event(row[0], EventKind(row[1]), numbers=json.loads(row[2] or "{}"))


def alert_event_values(e: AlertEvent) -> tuple[Any, ...]:
    """Return the values of one row of `alert_events`, in the order of its columns."""
    facts = (e.verdict, e.severity.value, e.source, e.engine_index, e.since_s, e.value, _numbers(e.evidence))
    return (e.at_s, *e.key, e.state.value, *facts, e.reason)


def alert_values(row: AlertRow) -> tuple[Any, ...]:
    """Return the values of one row of `alerts`, in the order of its columns."""
    facts = (row.verdict, row.severity.value, row.source, row.engine_index, row.since_s, row.value)
    return (*row.key, str(row.state), *facts, _numbers(row.evidence), row.entered_s, row.keep_until_s)


def alert_event(row: Sequence[Any]) -> AlertEvent:
    """Return the record of one row of `alert_events`, times as Unix seconds."""
    at_s, rule, scope, run, state, verdict, severity, source, index, since_s, value, evidence, reason = row
    facts = (AlertState(state), verdict, Severity(severity), source, index, at_s, since_s, value)
    return AlertEvent(AlertKey(rule, scope, run), *facts, json.loads(evidence), reason)


def alert_row(row: Sequence[Any]) -> AlertRow:
    """Return the record of one row of `alerts`, times as Unix seconds."""
    rule, scope, run, state, verdict, severity, source, index, since_s, value, evidence, entered_s, keep_s = row
    facts = (AlertState(state), entered_s, since_s, keep_s, value, json.loads(evidence))
    return AlertRow(AlertKey(rule, scope, run), *facts, Severity(severity), verdict, source, index)


def _numbers(numbers: Mapping[str, float]) -> str:
    return json.dumps({name: value for name, value in numbers.items() if math.isfinite(value)}, separators=(",", ":"))
