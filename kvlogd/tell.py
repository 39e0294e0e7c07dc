"""What a replay says: blocks for people, one JSON object a line for scripts. Pure."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote

from kvlogd import notice
from kvlogd.model import AlertEvent, AlertState, Run, Severity
from kvlogd.outcome import Outcome, SourceReport, episodes_in
from kvlogd.proof import sql_for
from kvlogd.quantity import count_text, duration_text
from kvlogd.rules import Rule

_COLOURS = {Severity.CRITICAL: "\x1b[1;31m", Severity.WARNING: "\x1b[1;33m", Severity.INFO: "\x1b[1;36m"}
_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"

MOST_SUMMED = 8
"""Findings that are named once more at the end."""


def json_lines(outcome: Outcome) -> Iterator[str]:
    """Yield one JSON object an alert in order of time, and the summary last."""
    numbers = {run.run_id: run.number for run in outcome.runs}
    for event in outcome.alerts:
        yield json.dumps(_alert(event, numbers), ensure_ascii=False)
    yield json.dumps(_summary(outcome.sources), ensure_ascii=False)


def _alert(event: AlertEvent, numbers: Mapping[int, int]) -> dict[str, object]:
    value = event.value
    alert: dict[str, object] = {
        "type": "alert",
        "state": event.state.value,
        "rule": event.key.rule,
        "verdict": event.verdict,
        "severity": event.severity.value,
        "source": event.source,
        "engine": event.key.scope,
        "engine_index": event.engine_index,
        "run": numbers.get(event.key.run) if event.key.run is not None else None,
        "at": notice.when_text(event.at_s),
        "since": notice.when_text(event.since_s),
        "value": value if value is not None and math.isfinite(value) else None,
        "summary": notice.subject(event),
        "evidence": notice.finite(event.evidence),
    }
    if event.reason:
        alert["reason"] = event.reason
    return alert


def _summary(sources: Sequence[SourceReport]) -> dict[str, object]:
    firsts = [s.first_s for s in sources if s.first_s is not None]
    lasts = [s.last_s for s in sources if s.last_s is not None]
    return {
        "type": "summary",
        "stats_lines": sum(s.stats_lines for s in sources),
        "lines": sum(s.lines for s in sources),
        "unparsed_stats_lines": sum(s.unparsed_stats_lines for s in sources),
        "duplicates": sum(s.duplicates for s in sources),
        "engines": sum(s.engines for s in sources),
        "runs": sum(s.runs for s in sources),
        "first": notice.when_text(min(firsts)) if firsts else None,
        "last": notice.when_text(max(lasts)) if lasts else None,
        "gaps": [{"source": g.source, "reason": g.reason, "count": g.lines} for s in sources for g in s.gaps],
        "abstained": [{"rule": r, "engine": e, "why": why} for s in sources for r, e, why in s.abstained],
        "blind": [{"source": s.source, "why": s.blind} for s in sources if s.blind],
    }


def text_blocks(outcome: Outcome, rules: Sequence[Rule], db: Path | None, colour: bool) -> Iterator[str]:
    """Yield the lines of a report for people: a block a finding, then what was read and where rules abstained."""
    by_id = {rule.id: rule for rule in rules}
    told: set[str] = set()
    episodes = episodes_in(outcome.alerts)
    for fired, resolved in episodes:
        yield from _block(fired, resolved, by_id.get(fired.key.rule), outcome.runs, db, colour, told)
        yield ""
    yield from _read(outcome, bool(episodes))
    yield from _summed(episodes)


def _block(
    fired: AlertEvent,
    resolved: AlertEvent | None,
    rule: Rule | None,
    runs: Sequence[Run],
    db: Path | None,
    colour: bool,
    told: set[str],
) -> Iterator[str]:
    paint = _COLOURS[fired.severity] if colour else ""
    plain = _PLAIN if colour else ""
    yield f"{paint}{fired.severity.upper():<8}{plain} {_BOLD if colour else ''}{notice.subject(fired)}{plain}"
    number = next((run.number for run in runs if run.run_id == fired.key.run), None)
    life = f", run {number} of this engine" if number is not None else ""
    yield f"    since {notice.clock_text(fired.since_s)}; found {notice.clock_text(fired.at_s)}{life}"
    if resolved is not None:
        lasted = duration_text(resolved.at_s - fired.since_s)
        yield f"    over  {notice.clock_text(resolved.at_s)}, after {lasted} ({resolved.reason})"
    for line in notice.evidence_lines(fired.evidence):
        yield f"      {line}"
    if rule is not None and rule.id not in told:
        told.add(rule.id)
        yield "    what to do"
        for step in rule.do:
            yield f"      - {step}"
    if db is not None:
        query = notice.double_quoted(sql_for(fired, rule))
        yield f"    {_DIM if colour else ''}kvlogd sql --db {quote(str(db))} {query}{plain}"


def _read(outcome: Outcome, found: bool) -> Iterator[str]:
    if not found:
        yield "Nothing found." if any(s.stats_lines for s in outcome.sources) else "Nothing to judge."
    for source in outcome.sources:
        span = ""
        if source.first_s is not None and source.last_s is not None:
            first, last = notice.clock_text(source.first_s), notice.clock_text(source.last_s)
            span = f", {first} to {last} ({duration_text(source.last_s - source.first_s)})"
        yield (
            f"Read {notice.label_text(source.source)}: {count_text(source.stats_lines, 'stats record')} in "
            f"{count_text(source.lines, 'line')}, {count_text(source.engines, 'engine')}, "
            f"{count_text(source.runs, 'run')}{span}"
        )
        if source.blind:
            yield f"  no stats record: {source.blind}"
        if source.unparsed_stats_lines:
            yield f"  {source.unparsed_stats_lines:,} stats-like lines of a shape that kvlogd does not know"
        if source.duplicates:
            yield f"  {count_text(source.duplicates, 'record')} stood there twice: counted once"
        for gap in source.gaps:
            yield f"  {gap.reason}: {gap.lines:,}"
        for rule, engine, why in source.abstained:
            yield f"  could not judge {rule} on {notice.label_text(engine)}: {why}"


def _summed(episodes: Sequence[tuple[AlertEvent, AlertEvent | None]]) -> Iterator[str]:
    """Yield what was found in short, and what of it still stands: the end of a long report is what a terminal shows."""
    if not episodes:
        return
    loudest = sorted(Severity, key=list(Severity).index, reverse=True)
    counts = Counter(fired.severity for fired, _ in episodes)
    yield f"Found: {', '.join(f'{counts[severity]} {severity}' for severity in loudest if counts[severity])}"
    standing = [fired for fired, resolved in episodes if resolved is None]
    standing.sort(key=lambda fired: loudest.index(fired.severity))
    if not standing:
        yield "  all of it was over before the log ends"
    for fired in standing[:MOST_SUMMED]:
        yield f"  still there where the log ends: {notice.subject(fired)}"
    if len(standing) > MOST_SUMMED:
        yield f"  and {len(standing) - MOST_SUMMED} more"


def status_of(outcome: Outcome) -> int:
    """Return the exit status: 2 where something could not be read, 1 where a page was found, else 0."""
    if outcome.errors:
        return 2
    pages = any(e.state is AlertState.FIRING and e.severity is not Severity.INFO for e in outcome.alerts)
    return 1 if pages or any(source.blind for source in outcome.sources) else 0
