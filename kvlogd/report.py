"""Writes a replay's findings as one HTML page with charts that needs nothing else: no script, font or link from afar.

Promises that the page is there whole or not at all, and stays small however long the logs are: what is drawn is summed
up in the store. Every text is escaped; from outside come only numbers, times and cleaned labels.
Does not promise to draw what is narrower than a point: with 30 days on a page, that is an hour.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from kvlogd import notice
from kvlogd.chart import STYLE, Axis, Fit, Level, Mark, Point, Span, chart, clock, escaped, fit_of
from kvlogd.errors import ConfigError
from kvlogd.model import AlertEvent, Engine, Run, Severity
from kvlogd.outcome import Episode, Outcome, SourceReport, episodes_in
from kvlogd.proof import sql_for
from kvlogd.quantity import count_text, duration_text
from kvlogd.rules import Rule
from kvlogd.store import Store

MOST_POINTS = 600
"""Points of one engine's chart."""
MOST_POINTS_IN_ALL = 9600
MOST_FINDINGS, MOST_ROWS, MOST_SPANS, MOST_MARKS, MOST_LONG_LABELS = 100, 200, 40, 100, 3
SILENT_INTERVALS = 3
"""A silence of more intervals between two records is shown as a gap."""
LONGEST_OUTLOOK = 0.4
"""How far beyond the last record a chart looks for the time when the pool is full, as a share of the time read."""
_EACH_S = 1e-3
"""Narrower than the time between two records: each is a point of its own."""
LIMIT_S = 60.0
_ORDER = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}

_EXTENT = """SELECT count(*), epoch(min(ts)), epoch(max(ts)), count(DISTINCT run_id),
  median(CASE WHEN step > 0 THEN step END)
FROM (
  SELECT ts, run_id, epoch(ts) - lag(epoch(ts)) OVER (PARTITION BY run_id ORDER BY ts) AS step
  FROM samples WHERE engine_id = {engine} AND isfinite(kv_usage)
)"""
_POINTS = """WITH record AS (
  SELECT epoch(ts) AS t, run_id, greatest(0, least(1, 1 - kv_usage)) AS free, running, waiting
  FROM samples WHERE engine_id = {engine} AND isfinite(kv_usage)
), cut AS (
  SELECT *, coalesce(t - lag(t) OVER past > {silence}, true)
    OR ({cut_runs} AND run_id <> lag(run_id) OVER past) AS anew
  FROM record WINDOW past AS (ORDER BY t, run_id)
), stretch AS (
  SELECT *, sum(anew::INTEGER) OVER (ORDER BY t, run_id ROWS UNBOUNDED PRECEDING) AS stretch FROM cut
)
SELECT avg(t), avg(free), min(free), max(free), avg(running), min(running), max(running),
  avg(waiting), min(waiting), max(waiting), stretch
FROM stretch GROUP BY stretch, floor((t - {first}) / {width}) ORDER BY stretch, 1 LIMIT {limit}"""

_STYLE = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif;overflow-wrap:break-word}
h3,dd,pre,td,li{overflow-wrap:anywhere}.n,thead th{white-space:nowrap}
main{max-width:1080px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;margin:0}h2{font-size:19px;margin:36px 0 12px}h3{font-size:16px;margin:0 0 8px}
h4{font-size:13px;margin:14px 0 4px;color:var(--quiet);font-weight:600}
.lead{font-size:17px;margin:8px 0 0}.muted,figcaption{color:var(--quiet);margin:0}
a{color:var(--free)}.to{font-weight:400;font-size:14px;white-space:nowrap}
article,figure{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:18px 20px;margin:0 0 16px}
article{border-left:5px solid var(--tone)}
.pill{display:inline-block;background:var(--tone);color:var(--card);border-radius:99px;padding:0 9px;font-size:12.5px;
font-weight:600;line-height:20px;vertical-align:1.5px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 14px;margin:0}dt{color:var(--quiet)}dd{margin:0}
.two{display:grid;align-items:start;grid-template-columns:minmax(0,5fr) minmax(0,6fr);gap:0 36px}
ol{margin:4px 0 0;padding-left:20px}.do{margin-top:0}p.do{margin-top:14px}
pre{margin:0;padding:9px 12px;background:var(--page);border-radius:6px;font-size:12.5px;line-height:1.45;
white-space:pre-wrap}
table{border-collapse:collapse;width:100%;font-size:14px}
caption{text-align:left;font-size:13px;font-weight:600;color:var(--quiet);padding:14px 0 4px}
th,td{text-align:left;padding:5px 14px 5px 0;border-bottom:1px solid var(--rule);vertical-align:top;font-weight:400}
thead th{color:var(--quiet);font-size:13px}td{font-variant-numeric:tabular-nums}
.evidence td{text-align:right;padding-right:0;white-space:nowrap}
figcaption{font-size:13px;margin-top:6px}
@media(max-width:640px){main{padding:18px 10px 40px}article,figure{padding:14px 12px}.two{display:block}
thead{display:none}.list tr{display:block;padding:8px 0;border-bottom:1px solid var(--rule)}
td[data-head]{display:block;border:0;padding:1px 0}td[data-head]:empty{display:none}
td[data-head]::before{content:attr(data-head) ": ";color:var(--quiet)}}
@media print{main{max-width:none;padding:0}body{font-size:12px;background:none}table{font-size:12px}
article,figure,tr{break-inside:avoid}h2,h3{break-after:avoid}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}.to{display:none}}
"""
_HEAD = f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>kvlogd report</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<style>{STYLE}{_STYLE}</style></head><body><main>"""


def write_report(path: Path, outcome: Outcome, store: Store, rules: Sequence[Rule]) -> None:
    """Write the page of a replay whose records are in the store. Raises ConfigError and StoreError."""
    sources = {source.source for source in outcome.sources}
    engines = [engine for engine in outcome.engines if engine.source in sources]
    most = max(40, min(MOST_POINTS, MOST_POINTS_IN_ALL // max(1, len(engines))))
    points = {engine.engine_id: read_points(store, engine.engine_id, most) for engine in engines}
    _write(path, page(outcome, rules, engines, points))


def read_points(store: Store, engine_id: int, most: int) -> list[Point]:
    """Return the records of an engine summed up to so many points at most. Raises StoreError."""
    [(count, first, last, runs, interval)] = _rows(store, _EXTENT.format(engine=engine_id))
    if not count:
        return []
    span = max(1.0, last - first)
    rows: list[tuple[float, ...]] = []
    # Each silence that counts is wider than a point, so a quarter of the points leaves room for all that cut the line.
    aims = (most * 14 // 15, most // 2, most // 4)
    for width in [_EACH_S] if count <= most else [span / aim for aim in aims]:
        silence = max(SILENT_INTERVALS * (interval or 0), width)
        sql = _POINTS.format(
            engine=engine_id,
            first=first,
            width=width,
            silence=silence,
            cut_runs=str(runs <= most // 4).lower(),
            limit=most + 1,
        )
        rows = _rows(store, sql)
        if len(rows) <= most:
            break
    return [Point(r[0], Level(*r[1:4]), Level(*r[4:7]), Level(*r[7:10]), int(r[10])) for r in rows]


def _rows(store: Store, sql: str) -> list[tuple[float, ...]]:
    with store.query(sql, limit_s=LIMIT_S) as answer:
        return list(answer.rows)


def _write(path: Path, text: str) -> None:
    """Put the text where `path` leads, at once."""
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            raise ConfigError("is no file", where=str(path), mend="name a file for --report, such as report.html")
        if not target.parent.is_dir():
            raise ConfigError("its folder is missing", where=str(path), mend="make the folder, or name another file")
        # not by tempfile: the page shall be as readable as any file that its owner makes
        draft = target.with_name(f".kvlogd-report-{os.getpid()}.part")
        try:
            with draft.open("x", encoding="utf-8", errors="replace") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(target)
        except OSError:
            with suppress(OSError):
                draft.unlink()
            raise
    except (OSError, RuntimeError) as error:
        what = f"cannot be written: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(what, where=str(path), mend="name another file for --report, or free disk space") from error


def page(
    outcome: Outcome, rules: Sequence[Rule], engines: Sequence[Engine], points: Mapping[int, Sequence[Point]]
) -> str:
    """Return the whole page."""
    episodes = episodes_of(outcome.alerts)
    ill = {episode.fired.key.scope for episode in episodes}
    parts = [
        _HEAD,
        f"<header><h1>kvlogd report</h1>{_lead(outcome, episodes)}</header>",
        _findings(outcome, rules, engines, episodes),
        '<section><h2 id="engines">Engines</h2>' if engines else "",
        *(
            _engine(engine, outcome.runs, points.get(engine.engine_id, ()), episodes)
            for engine in sorted(engines, key=lambda e: e.label not in ill)
        ),
        "</section>" if engines else "",
        _read(outcome),
        "</main></body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def episodes_of(alerts: Iterable[AlertEvent]) -> list[Episode]:
    """Return each firing with what ended it, the gravest first, then the oldest."""
    return sorted(episodes_in(alerts), key=lambda e: (_ORDER[e.fired.severity], e.fired.since_s))


def _lead(outcome: Outcome, episodes: Sequence[Episode]) -> str:
    seen = any(source.stats_lines for source in outcome.sources)
    said = "Nothing found." if seen else "Nothing to judge."
    if episodes:
        counts = groupby(episode.fired.severity for episode in episodes)
        pills = " ".join(f'<span class="pill {s.value}">{len(list(n))} {s.value}</span>' for s, n in counts)
        said = f"{_count(len(episodes), 'finding')} {pills}"
    firsts = [s.first_s for s in outcome.sources if s.first_s is not None]
    lasts = [s.last_s for s in outcome.sources if s.last_s is not None]
    span = ""
    if firsts and lasts:
        first, last = min(firsts), max(lasts)
        took = duration_text(last - first)
        span = f'<p class="muted">{notice.clock_text(first)} to {notice.clock_text(last)} ({took})</p>'
    return f'<p class="lead">{said}</p>{span}'


def _findings(outcome: Outcome, rules: Sequence[Rule], engines: Sequence[Engine], episodes: Sequence[Episode]) -> str:
    if not episodes:
        return ""
    by_id = {rule.id: rule for rule in rules}
    numbers = {run.run_id: run.number for run in outcome.runs}
    charts = {engine.label: engine.engine_id for engine in engines}
    told: set[str] = set()
    parts = ["<section><h2>What was found</h2>"]
    for episode in episodes[:MOST_FINDINGS]:
        key = episode.fired.key
        number = numbers.get(key.run) if key.run is not None else None
        rule = by_id.get(key.rule)
        advice = _advice(rule, key.rule in told)
        told.add(key.rule)
        parts.append(_finding(episode, number, charts.get(key.scope), advice, sql_for(episode.fired, rule)))
    if more := len(episodes) - MOST_FINDINGS:
        parts += [f'<p class="muted">and {more:,} more: see the view alert_history of the store</p>'] * (more > 0)
    return "\n".join([*parts, "</section>"])


def _finding(episode: Episode, number: int | None, chart_id: int | None, advice: str, sql: str) -> str:
    fired, over = episode
    times = [
        ("since", notice.clock_text(fired.since_s)),
        ("found", notice.clock_text(fired.at_s) + (f", in run {number} of this engine" if number else "")),
        ("over", "not by the end of the log"),
    ]
    if over is not None:
        lasted = duration_text(over.at_s - fired.since_s)
        times[2] = ("over", f"{notice.clock_text(over.at_s)}, after {lasted} ({over.reason})")
    when = "".join(f"<dt>{name}</dt><dd>{escaped(text)}</dd>" for name, text in times)
    known = {name: value for name, value in fired.evidence.items() if math.isfinite(value)}
    # notice pads the words with blanks; two of them part words and number
    pairs = [line.rsplit("  ", 1) for line in notice.evidence_lines(known)]
    evidence = "".join(f"<tr><th>{escaped(words.strip())}</th><td>{escaped(n)}</td></tr>" for words, n in pairs)
    table = f'<table class="evidence"><caption>Evidence</caption>{evidence}</table>' if evidence else ""
    link = f' <a class="to" href="#engine-{chart_id}">chart</a>' if chart_id is not None else ""
    return (
        f'<article class="{fired.severity.value}"><h3><span class="pill {fired.severity.value}">'
        f"{fired.severity.value}</span> {escaped(notice.subject(fired))}{link}</h3><dl>{when}</dl>"
        f'<div class="two">{table}{advice}</div>'
        f"<h4>Its numbers, in SQL</h4><pre>{escaped(sql)}</pre></article>"
    )


def _advice(rule: Rule | None, told: bool) -> str:
    if rule is None:
        return ""
    if told:
        return f'<p class="muted do">What to do: <a href="#do-{escaped(rule.id)}">as above</a></p>'
    steps = "".join(f"<li>{escaped(step)}</li>" for step in rule.do)
    return f'<div class="do" id="do-{escaped(rule.id)}"><h4>What to do</h4><ol>{steps}</ol></div>'


def _engine(engine: Engine, runs: Sequence[Run], points: Sequence[Point], episodes: Sequence[Episode]) -> str:
    lives = sorted((run for run in runs if run.engine_id == engine.engine_id), key=lambda run: run.started_s)
    head = f'<h3 id="engine-{engine.engine_id}">{escaped(engine.label)}</h3><p class="muted">{_facts(lives)}</p>'
    if not points:
        return f"<figure>{head}<p>No stats record of this engine was read.</p></figure>"
    own = [e for e in episodes if e.fired.key.scope in (engine.label, engine.source)]
    fits = _fits(points, own, lives)
    axis = axis_of(points, own, fits)
    end_s = _end_of(points, own)
    spans = sorted((_span(episode, axis, end_s) for episode in own[:MOST_SPANS]), key=lambda span: span.start_s)
    marks = _marks(lives, points[0].at_s)
    drawing = chart(points, axis, marks[:MOST_MARKS], spans, fits, _about(engine, points, own))
    first, last = notice.clock_text(axis.start_s), notice.clock_text(axis.end_s)
    notes = [f"Time in UTC, {first.removesuffix(' UTC')} to {last.removesuffix(' UTC')}."]
    if any(p.free.high > p.free.low for p in points):
        notes.append("Lines are means of neighbouring records, bands reach from the lowest to the highest.")
    if len(own) > MOST_SPANS or len(marks) > MOST_MARKS:
        notes.append(f"Of {len(own):,} findings and {len(marks):,} runs only the first are marked.")
    return (
        f'<figure>{head}<div class="plot">{drawing}</div><figcaption>{escaped(" ".join(notes))}</figcaption></figure>'
    )


def _facts(lives: Sequence[Run]) -> str:
    if not lives:
        return ""
    run = lives[-1]
    facts = [
        f"vLLM {run.vllm_version}" if run.vllm_version else "",
        f"model {run.model}" if run.model else "",
        f"{run.blocks:,} blocks" + (f" of {run.block_size:,} tokens" if run.block_size else "") if run.blocks else "",
        f"up to {run.max_num_seqs:,} requests at once" if run.max_num_seqs else "",
        _count(len(lives), "run"),
        "" if lives[0].seen_from_start else "the log begins in mid-life: an older leak cannot be told",
    ]
    return escaped(", ".join(fact for fact in facts if fact))


def axis_of(points: Sequence[Point], episodes: Sequence[Episode], fits: Sequence[Fit]) -> Axis:
    """Return the time axis: all records and findings, and the time when the pool is full where that is not far off."""
    start_s = points[0].at_s
    end_s = _end_of(points, episodes)
    outlook_s = end_s + LONGEST_OUTLOOK * (end_s - start_s)
    return Axis(start_s, max([end_s, *(min(fit.end_s, outlook_s) for fit in fits)]))


def _end_of(points: Sequence[Point], episodes: Sequence[Episode]) -> float:
    told = [event.at_s for episode in episodes for event in episode if event is not None]
    return max(points[-1].at_s, points[0].at_s + 60, *told)


def _span(episode: Episode, axis: Axis, end_s: float) -> Span:
    fired, over = episode
    title = f"{fired.severity.value}: {notice.subject(fired)}, since {notice.clock_text(fired.since_s)}"
    label = f"{fired.key.rule} {clock(fired.since_s, axis)}"
    return Span(fired.since_s, end_s if over is None else over.at_s, fired.severity.value, label, title)


def _marks(lives: Sequence[Run], first_s: float) -> list[Mark]:
    marks = []
    for i, run in enumerate(lives):
        if i + 1 < len(lives) and lives[i + 1].started_s <= first_s:
            continue
        why = lives[i - 1].end_reason if i else None
        how = (", restart after crash" if why == "crash" else ", restart") if i else ""
        marks.append(Mark(run.started_s, f"run {run.number}{how}"))
    if len(marks) > MOST_LONG_LABELS:
        marks = [mark._replace(label=mark.label.partition(",")[0]) for mark in marks]
    return marks if len(lives) > 1 else []


def _fits(points: Sequence[Point], episodes: Sequence[Episode], lives: Sequence[Run]) -> list[Fit]:
    """Return the fitted loss of each run: that at equal load where there is one, else that between idle spells."""
    ends = {run.run_id: run.ended_s for run in lives}
    fits: dict[int | None, Fit] = {}
    for name in ("usage_now", "idle_usage"):
        for fired, _ in sorted(episodes, key=lambda e: e.fired.at_s):
            run = fired.key.run
            if name in fired.evidence and run not in fits:
                among = points if name == "usage_now" else ()
                fit = fit_of(fired, fired.evidence[name], among, None if run is None else ends.get(run))
                if fit is not None:
                    fits[run] = fit
    return list(fits.values())


def _about(engine: Engine, points: Sequence[Point], episodes: Sequence[Episode]) -> str:
    lowest = min(point.free.low for point in points)
    return (
        f"{engine.label}: free KV-cache blocks and requests over time; the free share begins at "
        f"{100 * points[0].free.mean:.0f} %, ends at {100 * points[-1].free.mean:.0f} %, "
        f"its lowest is {100 * lowest:.0f} %; {_count(len(episodes), 'finding')}"
    )


def _read(outcome: Outcome) -> str:
    heads = ("source", "stats records", "lines", "engines", "runs", "first (UTC)", "last (UTC)", "remarks")
    read = _table(heads, [_source_row(source) for source in outcome.sources])
    unread = "".join(f"<li>{escaped(str(error))}</li>" for error in outcome.errors[:MOST_ROWS])
    abstained = [row for source in outcome.sources for row in source.abstained]
    gaps = [gap for source in outcome.sources for gap in source.gaps]
    lost = [(g.source, g.reason, f"{g.lines:,}" if g.lines else "", _time(g.ts_s)) for g in gaps]
    parts = [
        "<section><h2>What was read</h2>",
        read,
        f"<h3>What could not be read</h3><ul>{unread}</ul>" if unread else "",
        "<h2>What could not be judged</h2>",
        _table(("rule", "engine", "what is missing"), abstained)
        or '<p class="muted">No rule abstained for want of evidence.</p>',
        "<h2>Gaps</h2>",
        _table(("source", "what was lost", "lines", "by (UTC)"), lost)
        or '<p class="muted">No line was lost or unreadable.</p>',
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _source_row(source: SourceReport) -> tuple[str, ...]:
    remarks = [
        f"no stats record: {source.blind}" if source.blind else "",
        f"{source.unparsed_stats_lines:,} stats-like lines of an unknown shape" if source.unparsed_stats_lines else "",
        f"{count_text(source.duplicates, 'record')} stood there twice" if source.duplicates else "",
    ]
    counts = (source.stats_lines, source.lines, source.engines, source.runs)
    times = (_time(source.first_s), _time(source.last_s))
    return (source.source, *(f"{n:,}" for n in counts), *times, "; ".join(remark for remark in remarks if remark))


def _time(at_s: float | None) -> str:
    return "" if at_s is None else notice.clock_text(at_s).removesuffix(" UTC")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts, without the columns that are empty all the way down; empty where there is no row."""
    if not rows:
        return ""
    kept = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    head = "".join(f"<th>{escaped(heads[i])}</th>" for i in kept)
    body = "".join(f"<tr>{''.join(_cell(heads[i], row[i]) for i in kept)}</tr>" for row in rows[:MOST_ROWS])
    more = len(rows) - MOST_ROWS
    rest = f'<p class="muted">and {more:,} more</p>' if more > 0 else ""
    return f'<table class="list"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}'


def _cell(head: str, text: str) -> str:
    # the heading goes along for phones, where a row becomes a block
    style = "" if any(char.isalpha() for char in text) else ' class="n"'
    return f'<td data-head="{escaped(head)}"{style}>{escaped(text)}</td>'


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
