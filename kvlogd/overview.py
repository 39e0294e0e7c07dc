"""Puts together what `kvlogd status` shows, from the parts of the daemon."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from kvlogd import __version__
from kvlogd.alerts import Standing
from kvlogd.dispatch import ChannelHealth
from kvlogd.intake import Intake
from kvlogd.lookout import Lookout
from kvlogd.model import Abstained, AlertState, Broken, Judgement, Stats
from kvlogd.piece import Health
from kvlogd.pipeline import Pipeline
from kvlogd.quantity import count_text
from kvlogd.rules import Rule
from kvlogd.status import (
    ChannelState,
    ChannelStatus,
    EngineStatus,
    Mode,
    RuleState,
    RuleStatus,
    SourceState,
    SourceStatus,
    Status,
    Trouble,
)
from kvlogd.stream import Stream
from kvlogd.voice import Complaint

COURSE_S, COURSE_PARTS = 3600.0, 12
_PAGE = os.sysconf("SC_PAGE_SIZE")


def status_of(
    intake: Intake | None,
    store: Path,
    complaints: Iterable[Complaint],
    mode: Mode,
    started_s: float,
    at_s: float,
    lookout: Lookout | None = None,
    channels: Iterable[ChannelHealth] = (),
) -> Status:
    """Return the state of the daemon; without an intake, which is so while the store fails, little is known."""
    streams = [] if intake is None else intake.streams()
    health = {} if intake is None else {one.log: one for one in intake.health()}
    return Status(
        version=__version__,
        pid=os.getpid(),
        at_s=at_s,
        started_s=started_s,
        mode=mode,
        store=str(store),
        store_bytes=store.stat().st_size if store.exists() else None,
        memory_bytes=resident_bytes(),
        uncommitted=0 if intake is None else intake.pending(),
        sources=(*_sources({stream.log: stream for stream in streams}, health), *_pages(intake)),
        engines=tuple(engine for stream in streams for engine in _engines(stream.pipeline, at_s)),
        rules=(
            *(rule for stream in streams for rule in _rules(stream.pipeline.at_work())),
            *([] if lookout is None else [*_rules(lookout.at_work()), *lookout.without_source()]),
        ),
        gpus=() if lookout is None else tuple(lookout.gpus()),
        gpus_note="" if lookout is None else lookout.note(),
        troubles=tuple(Trouble(one.last_s, one.where, one.what, one.times) for one in complaints),
        channels=tuple(_channel(health) for health in channels),
    )


def _channel(health: ChannelHealth) -> ChannelStatus:
    line = health.line
    state = ChannelState.FINE if line.fault is None else ChannelState.FAILING
    status = "" if line.status is None else f" ({line.status})"
    why = "" if line.fault is None else f"{line.fault.value}{status}, {count_text(line.failures, 'time')} in a row"
    state = ChannelState.OUT_OF_ORDER if line.is_bad else state
    return ChannelStatus(health.name, state, health.waiting, line.sent_s, why)


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE


def _sources(streams: dict[str, Stream], health: dict[str, Health]) -> Iterator[SourceStatus]:
    for log in sorted({*streams, *health}):
        stream, fares = streams.get(log), health.get(log)
        window = stream.pipeline.window if stream is not None else None
        yield SourceStatus(
            log,
            _state(fares),
            window.stats_lines if window is not None else 0,
            last_s=_newest_s(stream.pipeline) if stream is not None else None,
            lag_bytes=fares.behind_bytes if fares is not None else None,
            unparsed=sum(stream.unread()) if stream is not None else 0,
        )


def _pages(intake: Intake | None) -> Iterator[SourceStatus]:
    """Yield the /metrics that are asked for, each beside the logs of its source."""
    for feed in [] if intake is None else intake.feeds:
        if (fares := feed.eye()) is not None and feed.scraper is not None:
            state = feed.scraper.state
            page = SourceStatus(fares.log, _state(fares), state.pages, last_s=state.last_s, unparsed=state.unread)
            yield page._replace(is_page=True)


def _state(health: Health | None) -> SourceState:
    if health is None:
        return SourceState.WAITING
    if health.state == "reading":
        return SourceState.CATCHING_UP if (health.behind_bytes or 0) > 1 << 20 else SourceState.FOLLOWING
    known = {"waiting": SourceState.WAITING, "skipped": SourceState.SKIPPED}
    return known.get(health.state, SourceState.UNREADABLE)


def _newest_s(pipeline: Pipeline) -> float | None:
    lasts = [track.window.last.ts_s for track in pipeline.tracks() if track.window.last is not None]
    return max(lasts, default=None)


def _engines(pipeline: Pipeline, at_s: float) -> Iterator[EngineStatus]:
    full = _full(pipeline)
    for track in pipeline.tracks():
        run, last = track.life.run, track.window.last
        label, number = track.life.engine.label, run.number
        known = EngineStatus(label, number, model=run.model, vllm_version=run.vllm_version, full_s=full.get(label))
        if last is not None:
            known = known._replace(
                last_s=last.ts_s,
                running=last.running,
                waiting=last.waiting,
                kv_usage=last.kv_usage,
                course=_course(track.window.since(at_s - COURSE_S), at_s),
            )
        yield known


def _course(records: Iterable[Stats], at_s: float) -> tuple[float | None, ...]:
    """Return the mean usage in each part of the last hour; None where there was no record."""
    parts: list[list[float]] = [[] for _ in range(COURSE_PARTS)]
    for record in records:
        part = int((record.ts_s - (at_s - COURSE_S)) / COURSE_S * COURSE_PARTS)
        if 0 <= part < COURSE_PARTS:
            parts[part].append(record.kv_usage)
    return tuple(sum(part) / len(part) if part else None for part in parts)


def _full(pipeline: Pipeline) -> dict[str, float]:
    """Return when the pools of engines will be full, as the alerts that stand tell: the soonest."""
    found: dict[str, float] = {}
    for _, scope, _, standing in pipeline.at_work():
        if isinstance(standing, Standing) and "full_in_s" in standing.evidence:
            full_s = standing.seen_s + standing.evidence["full_in_s"]
            found[scope] = min(full_s, found.get(scope, full_s))
    return found


def _rules(at_work: Iterable[tuple[Rule, str, Judgement, Standing | None]]) -> Iterator[RuleStatus]:
    for rule, scope, last, standing in at_work:
        state, since_s = RuleState.FINE, None
        if isinstance(standing, Standing):
            state = RuleState.FIRING if standing.state is AlertState.FIRING else RuleState.PENDING
            since_s = standing.since_s
        elif isinstance(last, Abstained):
            state = RuleState.ABSTAINS
        if isinstance(last, Broken):
            state = RuleState.BROKEN
        severity = rule.severity if standing is None else standing.severity
        why = last.why if isinstance(last, Abstained | Broken) else ""
        yield RuleStatus(rule.id, scope, state, severity, since_s, why)
