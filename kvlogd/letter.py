"""The message about alerts: what an on-call engineer needs in ten seconds comes first, the same as text and as HTML.

Pure. Promises a subject of one line that names the culprit and its yardstick, numbers from the evidence only and
cleaned labels. Does not decide who is told what, nor draw the picture.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from shlex import quote
from typing import NamedTuple

from kvlogd import notice
from kvlogd.layout import Chart, Code, Facts, Part, Steps, Words, as_html, as_text, one_line, shortened
from kvlogd.model import AlertEvent, AlertState, Letter, NoticeKind, Occupancy, Panel, Per, Run, Severity
from kvlogd.panel import spark
from kvlogd.proof import sql_for
from kvlogd.quantity import about_text, count_text, duration_text, share_text
from kvlogd.rules import Rule

MOST_SUBJECT, MOST_SCOPE = 150, 48
MOST_LISTED, MOST_BOUTS, MOST_SILENCES = 8, 6, 3
MOST_TYPED = 200
FLAT_SHARE = 0.005
"""Device memory that moves by less of its total counts as flat."""
DAY_S = 86400.0
_LOUD = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)
_ENDINGS = {
    "cleared": "it is not found any more",
    "restart": "the engine restarted: that ends it, its cause may still be there",
    "server ended": "the server's processes have ended: that ends it, its cause may still be there",
    "rule removed": "its rule was removed",
    "rule changed": "its rule was changed",
    "source removed": "what it is about is not there any more, or not read",
}
_NOUNS = {Per.ENGINE: "engine", Per.SOURCE: "log", Per.GPU: "GPU", Per.HOST: "server"}
_SAID = {
    "shift", "shift_error", "lost_per_h", "running_low", "running_high", "blocks_lost", "tokens_lost", "blocks_held",
    "tokens_held", "running_spread", "compared_s",
}  # fmt: skip
"""Evidence that has words of its own here."""


class Device(NamedTuple):
    """The memory of a GPU beside a finding, in GiB, over the time since it began."""

    low_gib: float
    high_gib: float
    total_gib: float


class Item(NamedTuple):
    """One alert of a message, as it stands now."""

    event: AlertEvent
    alert_id: str
    bouts: tuple[tuple[float, float | None], ...] = ()
    """From when until when it fired while nobody could be told; None while it still does."""
    device: Device | None = None
    run: Run | None = None


def compose(
    kind: NoticeKind,
    items: Sequence[Item],
    *,
    rule: Rule | None,
    host: str,
    at_s: float,
    more: int = 0,
    is_replay: bool = False,
    panel: Panel | None = None,
) -> Letter:
    """Return the message about some alerts (at least one); `panel` is of the first after sorting, see `foremost`."""
    ordered = sorted(items, key=_urgency)
    first = ordered[0]
    severity = _severity(ordered)
    headline = _headline(kind, ordered, more, "engine" if rule is None else _NOUNS[rule.per])
    parts = [
        *_remarks(kind, is_replay),
        *([Words(tuple(_listed(ordered, more)))] if len(ordered) > 1 or more else []),
        *([Words((f"First of them: {_was(first.event)}",))] if len(ordered) > 1 else []),
        Facts(tuple(_facts(first, at_s))),
        *([_drawing(panel)] if panel is not None else []),
        *([Steps("Check next", rule.do)] if rule is not None and _fires(first) else []),
        *_commands(ordered, rule, is_replay),
    ]
    last = f"alert {first.alert_id} from kvlogd" + (f" on {one_line(host)}" if host else "")
    subject = shortened(f"[{_prefix(kind, severity, host, is_replay)}] {headline}", MOST_SUBJECT)
    return Letter(subject, as_text(headline, parts, last), as_html(headline, parts, last, severity), severity)


def foremost(items: Sequence[Item]) -> Item:
    """Return the alert whose details a message about some gives: the gravest, then the first to be full."""
    return min(items, key=_urgency)


def _urgency(item: Item) -> tuple[bool, int, float, float]:
    event = item.event
    full_in_s = notice.finite(event.evidence).get("full_in_s", math.inf)
    return (not _fires(item), _LOUD.index(event.severity), full_in_s, event.since_s)


def _fires(item: Item) -> bool:
    return item.event.state is not AlertState.RESOLVED


def _severity(items: Sequence[Item]) -> Severity | None:
    """Return how loud the message is; None for good news."""
    return min((item.event.severity for item in items if _fires(item)), key=_LOUD.index, default=None)


def _prefix(kind: NoticeKind, severity: Severity | None, host: str, is_replay: bool) -> str:
    state = severity.value if severity is not None else "resolved"
    words = {NoticeKind.REPEAT: f"still {state}", NoticeKind.RAISED: f"now {state}"}.get(kind, state)
    return f"{'replay: ' if is_replay else ''}{words}" + (f" {one_line(host)}" if host else "")


def _headline(kind: NoticeKind, items: Sequence[Item], more: int, noun: str) -> str:
    event = _short(items[0].event)
    if kind is NoticeKind.SUMMARY or len({item.event.key.rule for item in items}) > 1:
        if len(items) + more > 1:
            return f"{_counted(items, more)}; first {notice.subject(event)}"
        return f"{notice.subject(event)}{_times(items[0])}"
    if len(items) + more == 1:
        return notice.subject(event)
    places = count_text(len(items) + more, noun)
    said = notice.subject(event).removeprefix(f"{event.key.rule} ")
    return f"{event.key.rule} on {places}, first {said}"


def _short(event: AlertEvent) -> AlertEvent:
    """Return an alert that makes a short subject: the range of its time until full is told further down."""
    evidence = {
        name: value for name, value in event.evidence.items() if name not in ("full_in_low_s", "full_in_high_s")
    }
    return event._replace(key=event.key._replace(scope=short_scope(event.key.scope)), evidence=evidence)


def _counted(items: Sequence[Item], more: int) -> str:
    firing = sum(map(_fires, items))
    over = len(items) - firing
    named = [f"{n:,} {words}" for n, words in ((firing, "firing"), (over, "over"), (more, "more")) if n]
    return f"{count_text(len(items) + more, 'alert')}: {', '.join(named)}"


def _times(item: Item) -> str:
    return f", {len(item.bouts)} times since {clock_time(item.bouts[0][0])}" if len(item.bouts) > 1 else ""


def short_scope(scope: str) -> str:
    """Return an engine's label short enough for a subject: its end tells which one it is."""
    clean = notice.label_text(scope)
    return clean if len(clean) <= MOST_SCOPE else "…" + clean[1 - MOST_SCOPE :]


def clock_time(at_s: float) -> str:
    """Return a time without its date, for what is of the same day or nearly."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M UTC")


def _remarks(kind: NoticeKind, is_replay: bool) -> list[Part]:
    lines = []
    if is_replay:
        lines.append("This is a replay of a log: it happened in the past, and a daemon would have told it then.")
    if kind is NoticeKind.SUMMARY:
        lines.append("What happened while messages could not be sent, or were too many, and how it stands now.")
    return [Words(tuple(lines))] if lines else []


def _listed(items: Sequence[Item], more: int) -> list[str]:
    """Return a line for each alert; what all of them share stands in the headline already."""
    is_one_rule = len({item.event.key.rule for item in items}) == 1
    loud = {item.event.severity for item in items if _fires(item)}
    lines = []
    for item in items[:MOST_LISTED]:
        event = _short(item.event)
        said = notice.subject(event).removeprefix(f"{event.key.rule} " if is_one_rule else "")
        mark = f"[{event.severity.value}] " if _fires(item) and len(loud) > 1 else ""
        lines.append(f"{mark}{said} ({item.alert_id})")
    unlisted = max(0, len(items) - MOST_LISTED) + more
    return [*lines, *([f"and {unlisted:,} more"] if unlisted else [])]


# --- what is known


def _facts(item: Item, at_s: float) -> list[tuple[str, str]]:
    event = item.event
    evidence = notice.finite(event.evidence)
    facts = [*_times_of(event), *_bouts(item)]
    if not _fires(item):
        return [*facts, *_load(evidence), *_loss(evidence), *_engine(item.run, at_s)]
    facts += [*_until_full(event, evidence), *_speed(evidence), *_load(evidence), *_loss(evidence)]
    if item.device is not None:
        facts.append(("device memory", device_text(item.device, is_pool="lost_per_h" in evidence)))
    facts += _engine(item.run, at_s)
    left = {name: value for name, value in evidence.items() if name not in _SAID}
    for line in notice.evidence_lines(left):
        words, _, number = line.rpartition("  ")  # notice pads the words with blanks
        facts.append((words.strip(), number))
    return facts


def _was(event: AlertEvent) -> str:
    """Return what is found, or was found while it fired; when the pool would be full matters no more then."""
    if event.state is not AlertState.RESOLVED:
        return notice.subject(event)
    evidence = {name: value for name, value in event.evidence.items() if not name.startswith(("full_in", "next_in"))}
    return notice.subject(event._replace(state=AlertState.FIRING, evidence=evidence))


def _times_of(event: AlertEvent) -> list[tuple[str, str]]:
    if event.state is AlertState.RESOLVED:
        lasted = duration_text(event.at_s - event.since_s)
        return [
            ("over", f"{notice.clock_text(event.at_s)}, after {lasted}"),
            ("why", _ENDINGS.get(event.reason, event.reason or "it is not found any more")),
            ("it was", _was(event)),
            ("since", notice.clock_text(event.since_s)),
        ]
    since, found = notice.clock_text(event.since_s), notice.clock_text(event.at_s)
    day, _, time = found.partition(" ")
    return [("since", since), ("found", time if since.startswith(day) else found)]


def _bouts(item: Item) -> list[tuple[str, str]]:
    if not item.bouts:
        return []
    told = [
        f"{clock_time(start).removesuffix(' UTC')} to {clock_time(end)} ({duration_text(end - start)})"
        if end is not None
        else f"{clock_time(start)} until now"
        for start, end in item.bouts[-MOST_BOUTS:]
    ]
    more = len(item.bouts) - len(told)
    return [("it fired", ", ".join([*([f"{count_text(more, 'time')} before"] if more else []), *told]))]


def _until_full(event: AlertEvent, evidence: Mapping[str, float]) -> list[tuple[str, str]]:
    full_in_s = evidence.get("full_in_s")
    if full_in_s is None:
        return []
    text = f"in about {about_text(full_in_s)}"
    if {"full_in_low_s", "full_in_high_s"} <= evidence.keys():
        low, high = about_text(evidence["full_in_low_s"]), about_text(evidence["full_in_high_s"])
        text += f" ({low} to {high})" if low != high else ""
    if 0 <= full_in_s < 1000 * DAY_S:
        full_s = event.at_s + full_in_s
        day = datetime.fromtimestamp(full_s, UTC).strftime("%Y-%m-%d")
        text += f", {clock_time(full_s)}" if full_in_s < 2 * DAY_S else f", {day}"
    return [("full", text)]


def _speed(evidence: Mapping[str, float]) -> list[tuple[str, str]]:
    lost_per_h = evidence.get("lost_per_h", 0.0)
    if lost_per_h <= 0:
        return []
    text = f"{notice.points_per_hour(-lost_per_h)} of the pool"
    for unit in ("blocks", "tokens"):
        pool = _pool(evidence, unit)
        if pool:
            text += f", {round_number(pool * lost_per_h):,.0f} {unit}/h"
    return [("speed", text)]


def round_number(value: float) -> float:
    """Return an estimate with three digits: it is known no better."""
    return float(f"{value:.3g}")


def _pool(evidence: Mapping[str, float], unit: str) -> float | None:
    """Return how many blocks or tokens the pool has, from what was lost and which share that is."""
    floor = evidence.get("busy_usage", evidence.get("lowest_idle_usage", 0.0))
    share = evidence.get("shift") or evidence.get("idle_usage", 0.0) - floor
    lost = evidence.get(f"{unit}_lost", evidence.get(f"{unit}_held"))
    return lost / share if lost and share > 0 else None


def _load(evidence: Mapping[str, float]) -> list[tuple[str, str]]:
    if not {"running_low", "running_high"} <= evidence.keys():
        return []
    low, high = evidence["running_low"], evidence["running_high"]
    if high < 0.5:
        return [("load", "compared with nothing running")]
    load = f"{low:.0f}" if high - low < 1 else f"{low:.0f} to {high:.0f}"
    if not {"stretch_s", "apart_s"} <= evidence.keys():
        return [("load", f"compared at {load} requests running")]
    latest, earlier = duration_text(evidence["stretch_s"]), duration_text(evidence["apart_s"])
    return [("load", f"compared at {load} requests running: the latest {latest} with those {earlier} before")]


def _loss(evidence: Mapping[str, float]) -> list[tuple[str, str]]:
    parts = [
        count_text(round(lost), unit[:-1])
        for unit in ("blocks", "tokens")
        if (lost := evidence.get(f"{unit}_lost", evidence.get(f"{unit}_held"))) is not None
    ]
    if "shift" in evidence:
        error = f" ± {100 * evidence['shift_error']:.1f}" if "shift_error" in evidence else ""
        parts.insert(0, f"{100 * evidence['shift']:.1f}{error} % of the pool")
    return [("lost so far", ", ".join(parts))] if parts else []


def device_text(device: Device, *, is_pool: bool) -> str:
    """Return what the GPU's own memory says; where the pool is lost inside it, that it cannot tell."""
    of = f" of {device.total_gib:.0f} GiB"
    if device.high_gib - device.low_gib <= FLAT_SHARE * device.total_gib:
        flat = f"flat at {device.high_gib:.1f}{of}"
        return f"{flat}: nvidia-smi cannot see this" if is_pool else flat
    return f"{device.low_gib:.1f} to {device.high_gib:.1f}{of} meanwhile"


def _engine(run: Run | None, at_s: float) -> list[tuple[str, str]]:
    if run is None:
        return []
    facts = [
        f"vLLM {notice.label_text(run.vllm_version)}" if run.vllm_version else "",
        notice.label_text(run.model) if run.model else "",
        f"up for {duration_text(at_s - run.started_s)}" if run.seen_from_start and run.ended_s is None else "",
    ]
    return [("engine", ", ".join(fact for fact in facts if fact))] if any(facts) else []


# --- what to do


def _drawing(panel: Panel) -> Part:
    line = spark(panel)
    start, end = clock_time(panel.ts_s[0]).removesuffix(" UTC"), clock_time(panel.ts_s[-1])
    known = [share for share in panel.free_share if share is not None]
    ends = f"{share_text(known[0])} to {share_text(known[-1])}" if known else "unknown"
    if panel.memory is not None:
        return _memory_drawing(panel, panel.memory, f"{start} to {end}", ends)
    title = f"Free blocks, {start} to {end}: {ends}; bars from {100 * line.bottom:.0f} to {100 * line.top:.0f} %"
    return Chart(title, (line.bars, *((line.marks,) if line.marks else ())))


def _typed(scope: str) -> str:
    """Return a scope as a silence may name it: what is not printed cannot be typed, and * stands for anything."""
    text = "".join(letter if letter.isprintable() else "*" for letter in scope)
    return text if len(text) <= MOST_TYPED else f"{text[:MOST_TYPED]}*"


def _memory_drawing(panel: Panel, memory: Occupancy, when: str, free: str) -> Part:
    line, pool = spark(panel), spark(panel._replace(memory=None))
    used = [gib for gib in memory.used_gib if gib is not None]
    what = "Device memory" if memory.is_device else "Memory of the server"
    of = "" if memory.limit_gib is None else f" of {memory.limit_gib:.0f}"
    scale = f"bars from {line.bottom:.1f} to {line.top:.1f} GiB"
    title = f"{what}, {when}: {used[0]:.1f} to {used[-1]:.1f}{of} GiB; {scale}"
    beside = (f"{pool.bars} free KV-cache blocks beside it: {free}",) if free != "unknown" else ()
    return Chart(title, (line.bars, *((line.marks,) if line.marks else ()), *beside))


def _commands(items: Sequence[Item], rule: Rule | None, is_replay: bool) -> list[Part]:
    # the shipped unit's daemon answers root and its own group alone
    asking = "kvlogd sql --db STORE" if is_replay else "sudo kvlogd sql"
    sql = Code("Its numbers, in SQL", (f"{asking} {notice.double_quoted(sql_for(items[0].event, rule))}",))
    if is_replay:
        return [sql]
    firing = [item.event.key for item in items if _fires(item)]
    places = [f"{key.rule}@{_typed(key.scope)}" for key in firing]
    if len(places) > MOST_SILENCES and len({key.rule for key in firing}) == 1:
        places = [firing[0].rule]  # on all engines
    silences = [f"sudo kvlogd silence {quote(place)} 2h" for place in places[:MOST_SILENCES]]
    return [Code("Commands", ("sudo kvlogd alerts", *silences)), sql]
