"""What the daemon is doing now: the record behind `kvlogd status`, to JSON and back, and as text for people. Pure.

The daemon fills the record, the socket carries it as JSON, and the command writes it. All ages count from
`Status.at_s`, the daemon's own clock, so that the reader needs none. The keys of the JSON are the fields below: a field
may be added, none is renamed. Holds numbers, times and labels only, never a line of a log.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from textwrap import wrap
from typing import Any, NamedTuple

from kvlogd.errors import KvlogdError
from kvlogd.model import Severity
from kvlogd.quantity import about_text, count_text, duration_text, share_text, size_text, sources_text

WIDTH = 80
MOST_REASONS = 8
"""Rules that cannot judge yet are told one by one up to so many: a host with many engines has hundreds."""
COLOURS = {"critical": "\x1b[1;31m", "warning": "\x1b[1;33m", "info": "\x1b[1;36m"}
_BOLD, _DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_GAP = "  "
_BARS = "▁▂▃▄▅▆▇█"


class Mode(StrEnum):
    """How the daemon learns that a log has grown."""

    EVENTS = "events"
    POLLING = "polling"


class SourceState(StrEnum):
    """Whether a source can be read."""

    FOLLOWING = "following"
    CATCHING_UP = "catching up"
    """It reads what was there before it started, or what it missed."""
    WAITING = "waiting"
    """There is nothing to read yet: no file, no unit, no container of that name."""
    UNREADABLE = "unreadable"
    SKIPPED = "skipped"
    """A wildcard matches it, and it is no log that grows: a packed one, a folder."""


class RuleState(StrEnum):
    """What a rule thinks of one scope."""

    FINE = "fine"
    ABSTAINS = "abstains"
    PENDING = "pending"
    FIRING = "firing"
    BROKEN = "broken"
    """It raised an error, and is tried again."""
    NO_SOURCE = "no source"
    """There is nothing of its kind to look at: no GPU, no server process."""


class SourceStatus(NamedTuple):
    """One log of a source, or its /metrics."""

    name: str
    state: SourceState
    records: int
    """Stats records read from it since the daemon started."""
    files: int | None = None
    """Files held open; None for a journal or a container."""
    last_s: float | None = None
    """Time of its newest record."""
    lag_bytes: int | None = None
    """Bytes that are there and not yet read."""
    lost_bytes: int = 0
    unparsed: int = 0
    """Stats lines that were not understood."""
    is_page: bool = False
    """It is the /metrics of a source; its records are the pages read."""


class EngineStatus(NamedTuple):
    """One engine and its last record."""

    label: str
    life: int
    """1 for the first life that kvlogd saw."""
    last_s: float | None = None
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    model: str | None = None
    vllm_version: str | None = None
    course: tuple[float | None, ...] = ()
    """Its usage in the parts of the hour before `Status.at_s`, oldest first; None where there was no record."""
    full_s: float | None = None
    """When its pool will be full, where an alert stands that can tell."""


class RuleStatus(NamedTuple):
    """One rule about one engine, source, GPU or host."""

    rule: str
    scope: str
    state: RuleState
    severity: Severity
    since_s: float | None = None
    why: str = ""
    """Why it abstains or is broken; kvlogd's own words."""


class ChannelState(StrEnum):
    """Whether a channel takes messages."""

    FINE = "fine"
    FAILING = "failing"
    OUT_OF_ORDER = "out of order"


class ChannelStatus(NamedTuple):
    """One channel."""

    name: str
    state: ChannelState
    waiting: int = 0
    """Messages that wait for it."""
    sent_s: float | None = None
    """When it last took one since the daemon started."""
    why: str = ""


class GpuStatus(NamedTuple):
    """One GPU and its last reading."""

    gpu: str
    """Its UUID."""
    state: str
    device_index: int | None = None
    name: str | None = None
    last_s: float | None = None
    """When it was read last."""
    util: float | None = None
    memory_used_mib: float | None = None
    memory_total_mib: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    holders: str = ""
    """Who holds its memory: engines by their log, strangers by executable and PID."""


class Trouble(NamedTuple):
    """Something that went wrong inside kvlogd, and how often."""

    at_s: float
    """When it last did."""
    where: str
    what: str
    times: int = 1


class Status(NamedTuple):
    """Everything that `kvlogd status` shows."""

    version: str
    pid: int
    at_s: float
    started_s: float
    mode: Mode
    store: str
    """Path of the store."""
    store_bytes: int | None = None
    memory_bytes: int | None = None
    """Resident memory of the daemon."""
    uncommitted: int = 0
    """Records read and not yet in the store."""
    sources: tuple[SourceStatus, ...] = ()
    engines: tuple[EngineStatus, ...] = ()
    rules: tuple[RuleStatus, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    channels: tuple[ChannelStatus, ...] = ()
    gpus: tuple[GpuStatus, ...] = ()
    gpus_note: str = ""
    """Why no GPU is read, or until when they are let go of; kvlogd's own words."""
    catch_up_s: float | None = None
    """How long it takes until all that is behind is read; None where little is, or nobody knows."""
    config_sources: int | None = None
    """Sources that the config names: each may have many logs, or none yet, and a /metrics beside them."""


_LISTS: dict[str, type[Any]] = {
    "sources": SourceStatus,
    "engines": EngineStatus,
    "gpus": GpuStatus,
    "rules": RuleStatus,
    "troubles": Trouble,
    "channels": ChannelStatus,
}
_ENUMS: dict[tuple[type[Any], str], type[StrEnum]] = {
    (Status, "mode"): Mode,
    (SourceStatus, "state"): SourceState,
    (RuleStatus, "state"): RuleState,
    (RuleStatus, "severity"): Severity,
    (ChannelStatus, "state"): ChannelState,
}


def to_json(status: Status) -> dict[str, Any]:
    """Return the status as an object of plain values."""
    lists = {name: [item._asdict() for item in getattr(status, name)] for name in _LISTS}
    return {**status._asdict(), **lists}


def from_json(fields: Mapping[str, Any]) -> Status:
    """Return the status of an object, without keys that are not known here. Raises KvlogdError where one is missing."""
    try:
        lists = {name: tuple(_record(kind, item) for item in fields.get(name, ())) for name, kind in _LISTS.items()}
        status: Status = _record(Status, {**fields, **lists})
    except (TypeError, ValueError, AttributeError) as error:
        mend = "restart the daemon, so that both are of one version"
        raise KvlogdError("the daemon's status is not understood", mend=mend) from error
    return status


def _record(kind: type[Any], fields: Mapping[str, Any]) -> Any:
    known = {name: fields[name] for name in kind._fields if name in fields}
    known = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
    enums = {name: enum(known[name]) for (owner, name), enum in _ENUMS.items() if owner is kind and name in known}
    return kind(**{**known, **enums})


def status_text(status: Status, *, colour: bool = False, sparks: bool = False) -> str:
    """Return the status for people: what is wrong first, aligned, 80 columns but for troubles that need more.

    Colour and a small chart an engine are there where they are wanted.
    """
    parts = [
        _head(status),
        _alerts(status, colour),
        _troubles(status),
        _engines(status, sparks),
        _sources(status),
        _gpus(status),
        _channels(status),
        _undecided(status, colour),
    ]
    lines = [line for part in parts if part for line in ["", *part]][1:]
    if not colour:
        return "\n".join(lines)
    titles = {part[0] for part in parts if part}
    return "\n".join(f"{_BOLD}{line}{PLAIN}" if line in titles else line for line in lines)


def _head(status: Status) -> list[str]:
    firing = sum(rule.state is RuleState.FIRING for rule in status.rules)
    pages = sum(source.is_page for source in status.sources)
    logs = len(status.sources) - pages
    counted = [
        *([] if status.config_sources is None else [sources_text(status.config_sources, pages)]),
        count_text(logs, "log"), count_text(len(status.engines), "engine"), f"{count_text(firing, 'alert')} firing",
    ]  # fmt: skip
    up = duration_text(max(status.at_s - status.started_s, 0))
    catches_up = "" if status.catch_up_s is None else f"catches up in {about_text(status.catch_up_s)}"
    memory = _size(status.memory_bytes, "of memory")
    running = [f"process {status.pid}", f"up {up}", memory, f"mode {status.mode}", catches_up]
    waiting = f"{count_text(status.uncommitted, 'record')} not yet committed" if status.uncommitted else ""
    kept = [_size(status.store_bytes, "in the store"), waiting]
    return [
        f"kvlogd {_clean(status.version)}: {', '.join(counted)}",
        ", ".join(filter(None, running)),
        ", ".join(filter(None, [_clean(status.store), *kept])),
    ]


def _sources(status: Status) -> list[str]:
    rows = [
        [
            source.name, source.state.value, str(source.records), _ago(status, source.last_s),
            "" if source.lag_bytes is None else size_text(source.lag_bytes), size_text(source.lost_bytes),
            str(source.unparsed),
        ]
        for source in status.sources
    ]  # fmt: skip
    return aligned(
        ["read from", "state", "records", "last", "behind", "lost", "unparsed"], rows, right={2, 3, 4, 5, 6}, names={0}
    )


def _engines(status: Status, sparks: bool) -> list[str]:
    rows = [
        [
            engine.label, str(engine.life), _ago(status, engine.last_s), _number(engine.running),
            _number(engine.waiting), "" if engine.kv_usage is None else share_text(engine.kv_usage),
            # what an old alert foretold of a time that is past says nothing of now
            "" if engine.full_s is None or engine.full_s < status.at_s else about_text(engine.full_s - status.at_s),
            *([_spark(engine.course)] if sparks else []), engine.model or "",
        ]
        for engine in status.engines
    ]  # fmt: skip
    head = ["engine", "life", "last", "run", "wait", "KV", "full in", *(["last hour"] if sparks else []), "model"]
    return aligned(head, rows, right=set(range(1, len(head) - 1)), names={0})


def _spark(course: Sequence[float | None]) -> str:
    """Return shares as bars: an empty pool is the lowest, a full one the highest, a hole a blank."""
    top = len(_BARS) - 1
    return "".join(" " if share is None else _BARS[round(min(max(share, 0.0), 1.0) * top)] for share in course)


def _gpus(status: Status) -> list[str]:
    rows = [
        [
            _number(gpu.device_index), gpu.state, _ago(status, gpu.last_s),
            "" if gpu.util is None else share_text(gpu.util), _memory(gpu),
            "" if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} C", gpu.holders,
        ]
        for gpu in status.gpus
    ]  # fmt: skip
    table = aligned(["gpu", "state", "last", "busy", "memory", "heat", "GiB held by"], rows, right={0, 2, 3, 4, 5})
    note = wrap(f"GPUs: {_clean(status.gpus_note)}", WIDTH, subsequent_indent="  ") if status.gpus_note else []
    return [*table, *note]


def _memory(gpu: GpuStatus) -> str:
    used, total = gpu.memory_used_mib, gpu.memory_total_mib
    if used is None or total is None:
        return ""
    return f"{used / 1024:.1f} of {total / 1024:.1f} GiB"


def _alerts(status: Status, colour: bool) -> list[str]:
    """Return what fires, is about to, or cannot be judged for a fault of the rule."""
    order = [RuleState.FIRING, RuleState.BROKEN, RuleState.PENDING]
    loud = [rule for rule in status.rules if rule.state in order]
    severities = list(Severity)
    loud.sort(key=lambda rule: (order.index(rule.state), -severities.index(rule.severity)))
    is_broken = any(rule.state is RuleState.BROKEN for rule in loud)
    head = ["severity", "rule", "about", "state", "for", *(["why"] if is_broken else [])]
    rows = [[r.severity.value, r.rule, r.scope, r.state.value, _since(status, r), _why(r)][: len(head)] for r in loud]
    table = aligned(head, rows, right={4}, names={1, 2})
    if colour:
        table[1:] = [_tinted(line, rule) for line, rule in zip(table[1:], loud, strict=True)]
    firing = any(rule.state is RuleState.FIRING for rule in loud)
    return [*table, *(["`kvlogd alerts` tells what was found, and who was told"] if firing else [])]


def _undecided(status: Status, colour: bool) -> list[str]:
    """Return which rules cannot judge yet: each with its reason where they are few, else how many of each."""
    waiting = [rule for rule in status.rules if rule.state is RuleState.ABSTAINS]
    absent = sum(rule.state is RuleState.NO_SOURCE for rule in status.rules)
    fine = sum(rule.state is RuleState.FINE for rule in status.rules)
    if len(waiting) <= MOST_REASONS:
        rows = [[rule.rule, rule.scope, rule.why] for rule in waiting]
        table = aligned(["cannot judge yet", "about", "why"], rows, right=set(), names={1})
    else:
        counts = Counter(rule.rule for rule in waiting)
        rows = [[rule, str(count)] for rule, count in counts.most_common()]
        table = aligned(["cannot judge yet", "times"], rows, right={1})
        table.append("`kvlogd status --json` has the reason of each")
    if colour:
        table[1:] = [f"{_DIM}{line}{PLAIN}" for line in table[1:]]
    rest = [(fine, "looked and found nothing"), (absent, "have nothing of their kind to look at")]
    counted = ", ".join(f"{count} {words}" for count, words in rest if count)
    return [*table, *([f"rules: {counted}"] if counted else [])]


def _why(rule: RuleStatus) -> str:
    return rule.why if rule.state is RuleState.BROKEN else ""


def _tinted(line: str, rule: RuleStatus) -> str:
    return f"{COLOURS[rule.severity.value] if rule.state is RuleState.FIRING else _DIM}{line}{PLAIN}"


def _channels(status: Status) -> list[str]:
    rows = [
        [c.name, c.state.value, str(c.waiting), "" if c.sent_s is None else _ago(status, c.sent_s), c.why]
        for c in status.channels
    ]
    return aligned(["channel", "state", "waiting", "sent", "why"], rows, right={2, 3})


def _troubles(status: Status) -> list[str]:
    """Return what went wrong, whole: a file with its line, or a mend, is of no use when it is cut."""
    head, right = ["trouble", "times", "where", "what"], {0, 1}
    rows = [[_ago(status, t.at_s), f"{t.times}x", t.where] for t in status.troubles]
    left = WIDTH - len(_GAP) - max(map(len, aligned(head[:3], rows, right=right)), default=0)
    below = [[] if len(t.what) <= left else t.what.splitlines() for t in status.troubles]
    whats = ["" if more else t.what for t, more in zip(status.troubles, below, strict=True)]
    table = aligned(head, [[*row, what] for row, what in zip(rows, whats, strict=True)], right=right)
    told = zip(table[1:], below, strict=True)
    return [*table[:1], *(line for row, more in told for line in [row, *(f"  {_clean(text)}" for text in more)])]


def aligned(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: set[int], names: Collection[int] = ()
) -> list[str]:
    """Return aligned lines that fit the width: the widest text column is cut until they do, names in their middle.

    Names that differ stay different, where need be beyond the width.
    """
    if not rows:
        return []
    cells = [[_clean(cell) for cell in row] for row in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    texts = [i for i in range(len(head)) if i not in right]
    while sum(widths) + len(_GAP) * (len(widths) - 1) > WIDTH:
        able = [i for i in texts if widths[i] > 6 and (i not in names or _stay_apart(cells, i, widths[i] - 1))]
        if not able:
            break
        widths[max(able, key=lambda i: widths[i])] -= 1
    return [_GAP.join(_fit(c, widths[i], i in right, i in names) for i, c in enumerate(row)).rstrip() for row in cells]


def _stay_apart(cells: Sequence[Sequence[str]], column: int, width: int) -> bool:
    whole = {row[column] for row in cells}
    return len({_fit(cell, width, False, True) for cell in whole}) == len(whole)


def _fit(cell: str, width: int, right: bool, is_name: bool) -> str:
    if len(cell) > width:
        tail = (width - 1) // 2 if is_name else 0  # an engine's number stands at the end of its name
        cell = cell[: width - 1 - tail] + "…" + (cell[-tail:] if tail else "")
    return cell.rjust(width) if right else cell.ljust(width)


def _clean(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)


def _ago(status: Status, at_s: float | None) -> str:
    return "never" if at_s is None else f"{duration_text(max(status.at_s - at_s, 0))} ago"


def _since(status: Status, rule: RuleStatus) -> str:
    return "" if rule.since_s is None else duration_text(max(status.at_s - rule.since_s, 0))


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _size(value: int | None, words: str) -> str:
    return "" if value is None else f"{size_text(value)} {words}"
