"""Tests of rules, in YAML: series of stats records or a log, and when the rule must or must not fire.

A series is written as values and how often: `8 x720`, `0.30+0.0005 x720` (a step a record), `_ x30` (silence);
parts follow each other. What is not given is what an engine at that number running does. `metrics` are series of the
same kind for what /metrics tells beside the log, with `itl` for the mean time between two tokens, in seconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvlogd.alerts import LOUDNESS
from kvlogd.engines import Ids
from kvlogd.errors import ConfigError
from kvlogd.fields import Count, Duration, Points
from kvlogd.harvest import Harvest
from kvlogd.model import AlertEvent, AlertState, Event, EventKind, Latency, Scrape, Severity, Spread, Stats
from kvlogd.pipeline import Pipeline
from kvlogd.quantity import duration_text, series
from kvlogd.reading import GpuSample, GpuState, HostSample
from kvlogd.rows import Batch
from kvlogd.rules import Rule
from kvlogd.sideline import Sideline, in_order
from kvlogd.yamlfile import checked, load

START_S = 1_767_225_600.0
"""2026-01-01 00:00 UTC: the time of the first record of a series."""
COUNTS = frozenset({"limit_reasons", "ecc_corrected", "ecc_uncorrected", "xid", "processes", "other_pid"})
PROMPT_TPS_EACH, GENERATION_TPS_EACH = 120.0, 30.0


_LAST_SCRAPED = Scrape._fields.index("aborted") + 1


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineCase(_Frozen):
    """The engine that the series belongs to."""

    blocks: Count = 4096
    block_size: Count = 16
    interval: Duration = 10.0
    connector: bool | None = None
    max_model_len: Count | None = None


class EventCase(_Frozen):
    """Something else that the log says, at a time since the first record."""

    at: Duration
    kind: EventKind


class Expect(_Frozen):
    """What must come of a case."""

    fires: bool
    after: Duration = 0.0
    before: Duration | None = None
    before_share_lost: Points | None = None
    resolves: bool | None = None
    severity: Severity | None = None
    """How loud: it must fire so, and no louder."""


class Case(_Frozen):
    """One case: series or a log."""

    name: str
    engine: EngineCase = EngineCase()
    series: dict[str, str] | None = None
    metrics: dict[str, str] = Field(default_factory=dict)
    """What /metrics tells beside the series: a scrape right after each record."""
    siblings: tuple[dict[str, str], ...] = ()
    """The series of other engines of the same server; what is expected is of the first."""
    events: tuple[EventCase, ...] = ()
    gpus: tuple[dict[str, str], ...] = ()
    """The readings of the GPUs of a host (`lost: 1` is one that is lost); what is expected is of the first.

    Beside series they are the GPUs of that engine.
    """
    host: dict[str, str] | None = None
    """The readings of a server's memory."""
    every: Duration = 30.0
    """How often GPUs and host are read."""
    log: str | None = None
    year: int = 2026
    expect: tuple[Expect, ...]

    @model_validator(mode="after")
    def _one_input(self) -> "Case":
        are_alone = bool(self.gpus) and self.series is None
        if sum([self.series is not None, self.log is not None, are_alone, self.host is not None]) != 1:
            raise ValueError("give one of series, log, gpus and host; gpus may stand beside series")
        for readings, known in ((self.gpus, GpuSample._fields), ((self.host or {},), HostSample._fields)):
            for name, text in [pair for one in readings for pair in one.items()]:
                if name not in (*known[2:], "lost"):
                    raise ValueError(f"no reading of that name: {name}")
                series(text)
        for columns in (self.series or {}, *self.siblings):
            for name, text in columns.items():
                if name not in Stats._fields[4:]:
                    raise ValueError(f"no column of that name: {name}")
                series(text)
        for name, text in self.metrics.items():
            if name not in (*Scrape._fields[3:_LAST_SCRAPED], "itl"):
                raise ValueError(f"no number of that name in /metrics: {name}")
            series(text)
        return self


class TestFile(_Frozen):
    """A file of cases for one rule."""

    __test__ = False

    rule: str
    cases: tuple[Case, ...] = Field(min_length=1)


class Result(NamedTuple):
    """What became of one case."""

    path: Path
    rule: str
    case: str
    faults: Sequence[str]
    skipped: str
    chart: str


def run_file(path: Path, rules: Mapping[str, Rule]) -> Iterator[Result]:
    """Run the cases of a file; yield what became of each. Raises ConfigError where the file is wrong."""
    document = load(path)
    if isinstance(document.value, dict) and "when" in document.value and "cases" not in document.value:
        mend = "a test is a file with `rule:` (the id) and `cases:`; the shipped ones stand in rules/tests"
        raise ConfigError("is a rule, not the test of one", where=str(path), mend=mend)
    file = checked(document, document.value, (), TestFile)
    rule = rules.get(file.rule)
    if rule is None:
        raise ConfigError(f"no rule is called {file.rule}", where=document.where(("rule",)), mend="name the rule's id")
    for case in file.cases:
        if case.log is not None and not (path.parent / case.log).exists():
            yield Result(path, rule.id, case.name, (), "its log is not there", "")
            continue
        if case.series is None and (case.gpus or case.host is not None):
            faults = [fault for expect in case.expect for fault in _faults(expect, _run_readings(rule, case), START_S)]
            yield Result(path, rule.id, case.name, faults, "", "")
            continue
        if case.log is None:
            records = list(records_of(case, case.series or {}, 0))
            events = _run_series(rule, case, records)
        else:
            records, events = _run_log(rule, case, path.parent)
        first_s = records[0].ts_s if records else None
        faults = [fault for expect in case.expect for fault in _faults(expect, events, first_s)]
        yield Result(path, rule.id, case.name, faults, "", _chart(records, events) if faults else "")


def records_of(case: Case, texts: Mapping[str, str], index: int) -> Iterator[Stats]:
    """Yield the records that the series of one engine say."""
    columns = {name: series(text) for name, text in texts.items()}
    for i, row in enumerate(zip_longest(*columns.values())):
        values: dict[str, Any] = {name: value for name, value in zip(columns, row, strict=True) if value is not None}
        if "running" not in values or "kv_usage" not in values:
            continue  # silence
        running = values["running"] = int(values["running"])
        values.setdefault("prompt_tps", running * PROMPT_TPS_EACH)
        values.setdefault("generation_tps", running * GENERATION_TPS_EACH)
        values["waiting"] = int(values.get("waiting", 0))
        # vLLM prints the usage with one decimal of a per cent
        values["kv_usage"] = round(min(1.0, max(0.0, values["kv_usage"])), 3)
        yield Stats(START_S + i * case.engine.interval, 1, index, None, **values)


def _scrapes(case: Case) -> Iterator[Scrape]:
    """Yield what /metrics tells, a second after the record of the same place."""
    columns = {name: series(text) for name, text in case.metrics.items()}
    every_s, before_s = case.engine.interval, None
    for i, row in enumerate(zip_longest(*columns.values())):
        values: dict[str, Any] = {name: value for name, value in zip(columns, row, strict=True) if value is not None}
        if "running" not in values or "kv_usage" not in values:
            continue  # nothing was read
        running = values["running"] = int(values["running"])
        values["waiting"] = int(values.get("waiting", 0))
        values.setdefault("prompt_tokens", running * PROMPT_TPS_EACH * every_s)
        tokens = values.setdefault("generation_tokens", running * GENERATION_TPS_EACH * every_s)
        itl_s = values.pop("itl", None)
        spreads = () if itl_s is None else (Spread(Latency.ITL, tokens, tokens * itl_s, itl_s, itl_s, itl_s),)
        at_s = START_S + i * every_s + 1.0
        yield Scrape(at_s, 0, before_s, latencies=spreads, **values)
        before_s = at_s


def _run_series(rule: Rule, case: Case, records: Sequence[Stats]) -> list[AlertEvent]:
    pipeline = played(rule, case, records)
    harvest = pipeline.harvest()
    events = [*harvest.alert_events, *(_asked(pipeline, harvest) if rule.query is not None else ())]
    return [event for event in events if not event.engine_index]


def played(rule: Rule, case: Case, records: Sequence[Stats]) -> Pipeline:
    """Return a pipeline that has taken the records of a case, those of its siblings and its events."""
    engine = case.engine
    pipeline = Pipeline("case", Ids(), [rule])
    numbers = {"num_gpu_blocks": float(engine.blocks), "block_size": float(engine.block_size)}
    if engine.connector is not None:
        numbers["kv_connector"] = float(engine.connector)
    if engine.max_model_len is not None:
        numbers["max_model_len"] = float(engine.max_model_len)
    tokens = {"tokens": float(engine.blocks * engine.block_size)}
    pipeline.take([Event(START_S - 60, EventKind.BANNER, 1)])
    pipeline.take([Event(START_S - 50, EventKind.BLOCKS, 1, None, numbers)])
    pipeline.take([Event(START_S - 50, EventKind.KV_TOKENS, 1, None, tokens)])
    others = [Event(START_S + event.at, event.kind, 1) for event in case.events]
    siblings = [one for i, texts in enumerate(case.siblings, 1) for one in records_of(case, texts, i)]
    lines: list[Stats | Event | Scrape | GpuSample] = [*records, *siblings, *others, *_scrapes(case)]
    lines += _busiest(case)
    lines.sort(key=lambda line: line.ts_s or 0.0)
    for line in lines:
        if isinstance(line, Scrape):
            pipeline.advance(line.ts_s)  # a log that is silent has a clock, too
            pipeline.scraped(line)
        elif isinstance(line, GpuSample):
            pipeline.advance(line.ts_s)
            for track in pipeline.tracks():
                track.window.eyes.work.observe(line.ts_s, line.util or 0.0)
        else:
            pipeline.take([line])
    columns = [*(case.series or {}).values(), *case.metrics.values()]
    length = max((len(series(text)) for text in columns), default=1)
    pipeline.advance(START_S + length * engine.interval)
    return pipeline


def _asked(pipeline: Pipeline, harvest: Harvest) -> Sequence[AlertEvent]:
    """Return what a rule with a query of its own finds, once its records are in a store."""
    from kvlogd.inquiry import inquire
    from kvlogd.replay import opened_store

    with opened_store(None) as store:
        store.commit(Batch(*harvest[:5]))
        inquire(pipeline, store)
    return pipeline.harvest().alert_events


def readings_of(case: Case) -> list[GpuSample | HostSample]:
    """Return the readings of GPUs and of the host that a case says, in order of time."""
    feeds: list[list[GpuSample | HostSample]] = [
        [GpuSample(at_s, str(i), *_gpu_values(row)) for at_s, row in _rows(case, texts)]
        for i, texts in enumerate(case.gpus)
    ]
    if case.host is not None:
        feeds.append([HostSample(at_s, None, **row) for at_s, row in _rows(case, case.host)])
    return in_order(*feeds)


def _busiest(case: Case) -> list[GpuSample]:
    """Return the readings of the busiest of an engine's GPUs."""
    found: dict[float, GpuSample] = {}
    for one in readings_of(case):
        if isinstance(one, GpuSample) and one.util is not None:
            found[one.ts_s] = max(one, found.get(one.ts_s, one), key=lambda sample: sample.util or 0.0)
    return list(found.values())


def _run_readings(rule: Rule, case: Case) -> list[AlertEvent]:
    sideline, samples = Sideline([rule]), readings_of(case)
    sideline.take(samples)
    sideline.advance(samples[-1].ts_s)
    return [event for event in sideline.harvest().alert_events if event.key.scope in ("gpu/0", "host")]


def _rows(case: Case, texts: Mapping[str, str]) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield the time and the values of each reading; where all is unknown, there was none."""
    columns = {name: series(text) for name, text in texts.items()}
    for i, row in enumerate(zip_longest(*columns.values())):
        values = {name: value for name, value in zip(columns, row, strict=True) if value is not None}
        if values:
            yield START_S + i * case.every, values


def _gpu_values(row: Mapping[str, Any]) -> list[Any]:
    defaults = {**dict.fromkeys(GpuSample._fields[2:]), **GpuSample._field_defaults}
    if row.get("lost"):
        return list((defaults | {"state": GpuState.LOST}).values())
    # counts and bits are whole numbers
    found = {name: int(value) if name in COUNTS else value for name, value in row.items()}
    return [found.get(name, default) for name, default in defaults.items()]


def _run_log(rule: Rule, case: Case, folder: Path) -> tuple[list[Stats], list[AlertEvent]]:
    """Return the records of all engines of a log, in order of time, and what the rule says of it."""
    from datetime import UTC

    from kvlogd.replay import Options, opened_store, replay

    with opened_store(None) as store:
        outcome = replay([folder / str(case.log)], [rule], store, Options(UTC, case.year))
        records = [one for run in store.runs() for one in store.samples_of(run.run_id)]
    return sorted(records, key=lambda one: one.ts_s), list(outcome.alerts)


def _faults(expect: Expect, events: Sequence[AlertEvent], first_s: float | None) -> Iterator[str]:
    firing = [e for e in events if e.state is AlertState.FIRING]
    loud = expect.severity
    if loud is not None:
        louder = [e for e in firing if LOUDNESS.index(e.severity) > LOUDNESS.index(loud)]
        if louder:
            yield f"must be {loud} at most, and was {louder[0].severity} {_at(louder[0], first_s)}"
        firing = [e for e in firing if e.severity is loud]
    fired = next(iter(firing), None)
    if not expect.fires:
        if fired is not None:
            yield f"must not fire, and fired {_at(fired, first_s)}"
        return
    if fired is None:
        yield "never fired"
        return
    if first_s is not None:
        after_s = fired.at_s - first_s
        if after_s < expect.after:
            yield f"fired {_at(fired, first_s)}, expected after {duration_text(expect.after)}"
        if expect.before is not None and after_s > expect.before:
            yield f"fired {_at(fired, first_s)}, expected before {duration_text(expect.before)}"
    lost = fired.evidence.get("shift", fired.evidence.get("idle_usage"))
    if expect.before_share_lost is not None and lost is not None and lost > expect.before_share_lost:
        yield f"fired when {100 * lost:.1f} points were lost, expected before {100 * expect.before_share_lost:.1f}"
    resolved = any(e.state is AlertState.RESOLVED for e in events)
    if expect.resolves is not None and expect.resolves is not resolved:
        yield "never resolved" if expect.resolves else "resolved, and must not"


def _at(event: AlertEvent, first_s: float | None) -> str:
    return "" if first_s is None else f"after {duration_text(event.at_s - first_s)}"


BARS = " ▁▂▃▄▅▆▇█"


def _chart(records: Sequence[Stats], events: Sequence[AlertEvent], width: int = 60) -> str:
    """Return a small picture of the case: most usage and running over time, and where the rule fired."""
    if not records:
        return ""
    first_s, span_s = records[0].ts_s, max(1.0, records[-1].ts_s - records[0].ts_s)
    usage, running = [0.0] * width, [0.0] * width
    for record in records:
        at = min(width - 1, int((record.ts_s - first_s) / span_s * width))
        usage[at] = max(usage[at], record.kv_usage)
        running[at] = max(running[at], float(record.running))
    most = max([*running, 1.0])
    marks = [" "] * width
    for event in events:
        at = min(width - 1, max(0, int((event.at_s - first_s) / span_s * width)))
        marks[at] = "F" if event.state is AlertState.FIRING else "r"
    rows = (
        ("KV usage", "".join(BARS[round(8 * value)] for value in usage)),
        (f"running /{most:.0f}", "".join(BARS[round(8 * value / most)] for value in running)),
        ("fired", "".join(marks).rstrip()),
    )
    return "\n".join(f"{name:>12} │{text}" for name, text in rows)
