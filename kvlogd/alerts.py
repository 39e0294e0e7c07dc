"""What becomes of a rule's judgements: pending, firing, resolved. Pure; time is an argument.

An alert is the same alert by its key, never by its value. Time without data counts neither for nor against it.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from kvlogd.model import (
    Abstained,
    AlertEvent,
    AlertKey,
    AlertState,
    Broken,
    Clear,
    Finding,
    Judgement,
    NoData,
    NoEvidence,
    Severity,
)

LOUDNESS = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)


class Timing(Protocol):
    """What of a rule decides when its alert changes."""

    @property
    def verdict(self) -> str: ...  # noqa: D102
    @property
    def severity(self) -> Severity: ...  # noqa: D102
    @property
    def for_s(self) -> float: ...  # noqa: D102
    @property
    def keep_firing_for_s(self) -> float: ...  # noqa: D102
    @property
    def no_data(self) -> NoData: ...  # noqa: D102


class Standing(NamedTuple):
    """An alert that is pending or firing: flat, so that a row can hold it."""

    key: AlertKey
    state: AlertState
    entered_s: float
    since_s: float
    seen_s: float
    """Time of the last judgement, whatever it was."""
    true_for_s: float
    """For how long it has been found without a break, time without data left out."""
    clear_since_s: float | None
    verdict: str
    severity: Severity
    source: str
    engine_index: int | None
    value: float | None
    evidence: Mapping[str, float]


def start(
    rule: Timing, key: AlertKey, source: str, engine_index: int | None, finding: Finding, at_s: float
) -> Standing:
    """Return the standing of an alert found for the first time."""
    return Standing(
        key,
        AlertState.PENDING,
        at_s,
        finding.since_s,
        at_s,
        0.0,
        None,
        rule.verdict,
        finding.severity or rule.severity,
        source,
        engine_index,
        finding.value,
        finding.evidence,
    )


def step(
    rule: Timing, standing: Standing, judgement: Judgement, at_s: float
) -> tuple[Standing | None, tuple[AlertEvent, ...]]:
    """Given an alert and the next judgement, return what it is now and what people may see of the change."""
    if isinstance(judgement, Broken):
        return standing, ()
    if isinstance(judgement, Abstained | NoEvidence):
        if rule.no_data is NoData.HOLD:
            return _held(standing, at_s), ()
        judgement = (
            Clear() if rule.no_data is NoData.OK else Finding(standing.since_s, standing.value, standing.evidence)
        )
    if isinstance(judgement, Finding):
        return _found(rule, standing, judgement, at_s)
    return _cleared(rule, standing, at_s)


def _held(standing: Standing, at_s: float) -> Standing:
    """Let time pass that is nobody's: it counts neither as time of the fault nor as time since its end."""
    if standing.clear_since_s is None:
        return standing._replace(seen_s=at_s)
    silent_s = max(0.0, at_s - standing.seen_s)
    return standing._replace(seen_s=at_s, clear_since_s=standing.clear_since_s + silent_s)


def _found(
    rule: Timing, standing: Standing, finding: Finding, at_s: float
) -> tuple[Standing | None, tuple[AlertEvent, ...]]:
    severity = finding.severity or rule.severity
    if standing.state is AlertState.FIRING:
        severity = max(severity, standing.severity, key=LOUDNESS.index)  # who flaps between two is told once
    now = standing._replace(
        seen_s=at_s,
        true_for_s=standing.true_for_s + max(0.0, at_s - standing.seen_s),
        clear_since_s=None,
        value=finding.value,
        evidence=finding.evidence,
        severity=severity,
        since_s=min(standing.since_s, finding.since_s) if standing.state is AlertState.PENDING else standing.since_s,
    )
    if now.state is AlertState.PENDING:
        if now.true_for_s < rule.for_s:
            return now, ()
        now = now._replace(state=AlertState.FIRING, entered_s=at_s)
        return now, (event(now, AlertState.FIRING, at_s),)
    if severity is not standing.severity:
        return now, (event(now, AlertState.FIRING, at_s, "severity changed"),)
    return now, ()


def _cleared(rule: Timing, standing: Standing, at_s: float) -> tuple[Standing | None, tuple[AlertEvent, ...]]:
    if standing.state is AlertState.PENDING:
        return None, ()
    # where the clock has gone back, the time since the end begins anew
    clear_since_s = at_s if standing.clear_since_s is None else min(at_s, standing.clear_since_s)
    if at_s - clear_since_s < rule.keep_firing_for_s:
        return standing._replace(clear_since_s=clear_since_s, seen_s=at_s), ()
    return None, end(standing, at_s, "cleared")


def end(standing: Standing, at_s: float, reason: str) -> tuple[AlertEvent, ...]:
    """Return the event that ends an alert whatever its judgement: a restart, a rule that is gone."""
    if standing.state is not AlertState.FIRING:
        return ()
    return (event(standing, AlertState.RESOLVED, at_s, reason),)


def event(standing: Standing, state: AlertState, at_s: float, reason: str = "") -> AlertEvent:
    """Return the event that tells of an alert at a time."""
    return AlertEvent(
        standing.key,
        state,
        standing.verdict,
        standing.severity,
        standing.source,
        standing.engine_index,
        at_s,
        standing.since_s,
        standing.value,
        standing.evidence,
        reason,
    )


def refuted(event: AlertEvent, at_s: float) -> AlertEvent:
    """Return the end of an alert that was told of at a log's end, and that the log does not confirm as it goes on."""
    return event._replace(state=AlertState.RESOLVED, at_s=at_s, reason="the log went on")
