"""What goes into the store and comes back beside the records of `model`, and how they lie in the tables' columns.

Pure: knows the order of the columns in `schema`, and no database.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from kvlogd.alerts import Standing
from kvlogd.model import (
    AlertEvent,
    AlertKey,
    AlertState,
    Engine,
    Event,
    EventKind,
    Fault,
    Gap,
    Latency,
    NoticeKind,
    Run,
    Scrape,
    Severity,
    Spread,
    Stats,
)
from kvlogd.outbox import Case, CaseKey, Notice, NoticeState, Silence
from kvlogd.reading import Gpu, GpuProcess, GpuSample, HostSample


class Position(NamedTuple):
    """How far one file (or the journal) of one source has been read; `file_id` survives a rename."""

    source: str
    file_id: str
    offset: int
    head: str | None = None
    marker: str | None = None
    cursor: str | None = None
    done: bool = False
    seen_s: float | None = None


class Memory(NamedTuple):
    """What the rules of a source remember; `code` says who can read it."""

    source: str
    code: str
    memory: bytes


class Batch(NamedTuple):
    """Everything that commits together. `sample_runs` holds the run_id of each sample."""

    engines: Sequence[Engine] = ()
    runs: Sequence[Run] = ()
    samples: Sequence[Stats] = ()
    sample_runs: Sequence[int] = ()
    events: Sequence[tuple[int | None, int | None, Event]] = ()
    """(engine_id, run_id, event)"""
    alert_events: Sequence[AlertEvent] = ()
    standings: Sequence[Standing] = ()
    """Alerts that began or changed."""
    over: Sequence[AlertKey] = ()
    """Alerts that are neither pending nor firing any more."""
    gaps: Sequence[Gap] = ()
    positions: Sequence[Position] = ()
    memories: Sequence[Memory] = ()
    cases: Sequence[Case] = ()
    """Cases that began or changed."""
    closed: Sequence[CaseKey] = ()
    """Cases in which nothing is left to tell."""
    notices: Sequence[Notice] = ()
    silences: Sequence[Silence] = ()
    gpu_samples: Sequence[GpuSample] = ()
    host_samples: Sequence[HostSample] = ()
    gpus: Sequence[Gpu] = ()
    gpu_processes: Sequence[GpuProcess] = ()
    scrapes: Sequence[tuple[int, int, Scrape]] = ()
    """(engine_id, run_id, scrape)"""


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


_COUNTED = tuple(Scrape._fields[3 : Scrape._fields.index("aborted") + 1])


def scrape_values(engine_id: int, run_id: int, s: Scrape) -> tuple[Any, ...]:
    """Return the values of one row of `scrapes`, in the order of its columns."""
    return (s.ts_s, engine_id, run_id, s.since_s, *(getattr(s, name) for name in _COUNTED))


def latency_values(engine_id: int, run_id: int, s: Scrape) -> list[tuple[Any, ...]]:
    """Return the values of the rows of `latency` of one scrape, in the order of its columns."""
    return [(s.ts_s, engine_id, run_id, one.metric.value, *one[1:]) for one in s.latencies]


def scrape(row: Sequence[Any], latencies: Sequence[Sequence[Any]]) -> Scrape:
    """Return the scrape of a row of `scrapes` and its rows of `latency`, both without engine_id and run_id."""
    ts_s, since_s, *numbers = row
    spreads = tuple(Spread(Latency(metric), *rest) for _, metric, *rest in latencies)
    return Scrape(ts_s, 0, since_s, latencies=spreads, **dict(zip(_COUNTED, numbers, strict=True)))


def alert_event_values(e: AlertEvent) -> tuple[Any, ...]:
    """Return the values of one row of `alert_events`, in the order of its columns."""
    facts = (e.verdict, e.severity.value, e.source, e.engine_index, e.since_s, e.value, _numbers(e.evidence))
    return (e.at_s, *e.key, e.state.value, *facts, e.reason)


def standing_values(standing: Standing) -> tuple[Any, ...]:
    """Return the values of one row of `alerts`, in the order of its columns."""
    return (*standing.key, standing.state.value, *standing[2:7], standing.verdict, standing.severity.value,
            standing.source, standing.engine_index, standing.value, _numbers(standing.evidence))  # fmt: skip


def alert_event(row: Sequence[Any]) -> AlertEvent:
    """Return the record of one row of `alert_events`, times as Unix seconds."""
    at_s, rule, scope, run, state, verdict, severity, source, index, since_s, value, evidence, reason = row
    facts = (AlertState(state), verdict, Severity(severity), source, index, at_s, since_s, value)
    return AlertEvent(AlertKey(rule, scope, run), *facts, json.loads(evidence), reason)


def standing(row: Sequence[Any]) -> Standing:
    """Return the record of one row of `alerts`, times as Unix seconds."""
    rule, scope, run, state, entered_s, since_s, seen_s, true_for_s, clear_since_s, verdict, severity, *rest = row
    source, index, value, evidence = rest
    times = (entered_s, since_s, seen_s, true_for_s, clear_since_s)
    facts = (verdict, Severity(severity), source, index, value, json.loads(evidence))
    return Standing(AlertKey(rule, scope, run), AlertState(state), *times, *facts)


def case_values(case: Case) -> tuple[Any, ...]:
    """Return the values of one row of `cases`, in the order of its columns."""
    e = case.event
    facts = (e.verdict, e.severity.value, e.source, e.engine_index, e.since_s, e.value, _numbers(e.evidence), e.reason)
    told = (None if case.told is None else case.told.value, case.told_s, case.tried)
    bouts = json.dumps(case.bouts, separators=(",", ":"))
    return (case.channel, case.topic.value, *e.key, e.state.value, e.at_s, *facts, case.seen_s, bouts, *told)


def case(row: Sequence[Any]) -> Case:
    """Return the record of one row of `cases`, times as Unix seconds."""
    channel, topic, rule, scope, run, state, at_s, *rest = row
    verdict, severity, source, index, since_s, value, evidence, reason, seen_s, bouts, told, told_s, tried = rest
    facts = (AlertState(state), verdict, Severity(severity), source, index, at_s, since_s, value)
    event = AlertEvent(AlertKey(rule, scope, run), *facts, json.loads(evidence), reason)
    times = tuple((begin_s, end_s) for begin_s, end_s in json.loads(bouts))
    told = None if told is None else Severity(told)
    return Case(channel, NoticeKind(topic), event, seen_s, times, told, told_s, tried)


def notice_values(notice: Notice) -> tuple[Any, ...]:
    """Return the values of one row of `notices`, in the order of its columns."""
    return tuple(str(value) if isinstance(value, StrEnum) else value for value in notice)


def notice(row: Sequence[Any]) -> Notice:
    """Return the record of one row of `notices`, times as Unix seconds."""
    number, channel, kind, rule, state, *times, attempts, fault, status, sent_s, why, told, failed = row
    planned_s, due_s, expires_s = times
    return Notice(
        number,
        channel,
        NoticeKind(kind),
        rule,
        NoticeState(state),
        planned_s,
        due_s,
        expires_s,
        attempts,
        None if fault is None else Fault(fault),
        status,
        sent_s,
        why,
        told,
        failed or 0,
    )


def _numbers(numbers: Mapping[str, float]) -> str:
    return json.dumps({name: value for name, value in numbers.items() if math.isfinite(value)}, separators=(",", ":"))
