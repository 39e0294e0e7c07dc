"""Puts together what `kvlogd status` shows, from the parts of the daemon."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from kvlogd import __version__
from kvlogd.alerts import Standing
from kvlogd.intake import Intake
from kvlogd.model import Abstained, AlertState, Broken
from kvlogd.piece import Health
from kvlogd.pipeline import Pipeline
from kvlogd.status import EngineStatus, Mode, RuleState, RuleStatus, SourceState, SourceStatus, Status, Trouble
from kvlogd.stream import Stream
from kvlogd.voice import Complaint

_PAGE = os.sysconf("SC_PAGE_SIZE")


def status_of(
    intake: Intake | None, store: Path, complaints: Iterable[Complaint], mode: Mode, started_s: float, at_s: float
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
        engines=tuple(engine for stream in streams for engine in _engines(stream.pipeline)),
        rules=tuple(rule for stream in streams for rule in _rules(stream.pipeline)),
        troubles=tuple(Trouble(one.last_s, one.where, one.what, one.times) for one in complaints),
    )


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
    """Yield the /metrics that are asked for, each as a source beside its log; its records are the pages read."""
    for feed in [] if intake is None else intake.feeds:
        if (fares := feed.eye()) is not None and feed.scraper is not None:
            state = feed.scraper.state
            yield SourceStatus(fares.log, _state(fares), state.pages, last_s=state.last_s, unparsed=state.unread)


def _state(health: Health | None) -> SourceState:
    if health is None:
        return SourceState.WAITING
    if health.state == "reading":
        return SourceState.CATCHING_UP if (health.behind_bytes or 0) > 1 << 20 else SourceState.FOLLOWING
    return SourceState.WAITING if health.state == "waiting" else SourceState.UNREADABLE


def _newest_s(pipeline: Pipeline) -> float | None:
    lasts = [track.window.last.ts_s for track in pipeline.tracks() if track.window.last is not None]
    return max(lasts, default=None)


def _engines(pipeline: Pipeline) -> Iterator[EngineStatus]:
    for track in pipeline.tracks():
        run, last = track.life.run, track.window.last
        label, number = track.life.engine.label, run.number
        if last is None:
            yield EngineStatus(label, number, model=run.model, vllm_version=run.vllm_version)
        else:
            numbers = (last.ts_s, last.running, last.waiting, last.kv_usage)
            yield EngineStatus(label, number, *numbers, run.model, run.vllm_version)


def _rules(pipeline: Pipeline) -> Iterator[RuleStatus]:
    for rule, scope, last, standing in pipeline.at_work():
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
