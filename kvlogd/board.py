"""The alerts and who was told of them: the records behind `kvlogd alerts`, as JSON and as text for people. Pure.

Holds numbers, times and labels only. Ages count from a time that is given.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from textwrap import wrap
from typing import Any, NamedTuple, Protocol

from kvlogd import alerts, notice
from kvlogd.alerts import LOUDNESS, Standing
from kvlogd.model import AlertEvent, AlertKey, AlertState, NoticeKind
from kvlogd.outbox import Case, Notice, NoticeState, Silence, alert_id
from kvlogd.plan import Policy
from kvlogd.quantity import count_text, duration_text
from kvlogd.status import COLOURS, PLAIN, WIDTH, aligned

_INDENT: dict[str, Any] = {"initial_indent": "  ", "subsequent_indent": "    "}


class Holder(StrEnum):
    """What keeps a first message about an alert from a channel that is to have it."""

    SILENCE = "silence"
    QUIET = "quiet hours"
    GROUPING = "grouping"
    """More alerts of its rule may come within seconds."""
    NOTHING = "nothing"
    """It goes out as soon as the channel takes it."""


_HELD = {Holder.QUIET: "its quiet hours", Holder.GROUPING: "the wait for more of this rule"}
"""What is told of a silence stands in a line of its own."""


class Hold(NamedTuple):
    """A channel that is to hear of an alert and has not yet."""

    channel: str
    by: Holder
    until_s: float | None = None


class Entry(NamedTuple):
    """One alert that fires, or one time that it fired."""

    rule: str
    scope: str
    run: int | None
    alert: str
    """The id that messages call it by."""
    severity: str
    is_firing: bool
    since_s: float
    """When the thing that was found began."""
    fired_s: float
    over_s: float | None
    headline: str
    told: tuple[str, ...] = ()
    """Channels that took a message about it."""
    failing: tuple[str, ...] = ()
    """Channels that would not take one, each with why."""
    silenced_until_s: float | None = None
    held: tuple[Hold, ...] = ()
    """Channels that are yet to be told of it."""


class Known(Protocol):
    """What is needed of a store."""

    def standings(self) -> list[Standing]:
        """Return the alerts that are pending or firing."""

    def alert_events(self, source: str | None = None) -> list[AlertEvent]:
        """Return the alert events, oldest first."""

    def cases(self) -> list[Case]:
        """Return what each channel knows of each alert."""

    def notices(self, state: NoticeState | None = None) -> list[Notice]:
        """Return the notices."""

    def silences(self) -> list[Silence]:
        """Return all silences."""


def entries(store: Known, at_s: float, *, every: bool, policies: Iterable[Policy] = ()) -> list[Entry]:
    """Return the alerts that fire, the most severe first; with `every`, each time that one fired, the latest last.

    `policies` are those of the channels: of others it is not known what they are yet to be told. Raises StoreError.
    """
    found = _every(store.alert_events()) if every else _firing(store.standings())
    told, silences, failing = _told(store), store.silences(), _failing(store)
    held = _held(store, {policy.name: policy for policy in policies}, silences, at_s)
    return [
        entry._replace(
            told=tuple(sorted(told.get(entry.alert, ()))),
            failing=tuple(sorted(failing.get(AlertKey(entry.rule, entry.scope, entry.run), ()))) * entry.is_firing,
            silenced_until_s=_silenced(entry, silences, at_s),
            held=tuple(sorted(held.get(AlertKey(entry.rule, entry.scope, entry.run), ()))) * entry.is_firing,
        )
        for entry in found
    ]


def _firing(standings: Iterable[Standing]) -> list[Entry]:
    events = [
        alerts.event(standing, AlertState.FIRING, standing.entered_s)
        for standing in standings
        if standing.state is AlertState.FIRING
    ]
    events.sort(key=lambda event: (-LOUDNESS.index(event.severity), event.since_s))
    return [_entry(event, event.at_s, None) for event in events]


def _every(events: Iterable[AlertEvent]) -> list[Entry]:
    found: list[Entry] = []
    at: dict[AlertKey, int] = {}
    for event in events:
        if event.state is AlertState.FIRING and event.key in at:  # only its severity changed
            number = at[event.key]
            found[number] = _entry(event, found[number].fired_s, None)
        elif event.state is AlertState.FIRING:
            at[event.key] = len(found)
            found.append(_entry(event, event.at_s, None))
        elif event.key in at:
            number = at.pop(event.key)
            found[number] = found[number]._replace(is_firing=False, over_s=event.at_s)
    return found


def _entry(event: AlertEvent, fired_s: float, over_s: float | None) -> Entry:
    key = event.key
    headline = notice.subject(event).removeprefix(f"{key.rule} {notice.label_text(key.scope)}: ")
    ids = (key.rule, key.scope, key.run, alert_id(key, fired_s))
    return Entry(*ids, event.severity.value, over_s is None, event.since_s, fired_s, over_s, headline)


def _told(store: Known) -> dict[str, set[str]]:
    """Return for each alert, by its id, the channels that took a message about it."""
    found: dict[str, set[str]] = {}
    for one in store.notices(NoticeState.SENT):
        for alert in json.loads(one.alerts):
            found.setdefault(alert["id"], set()).add(one.channel)
    for case in store.cases():  # they outlive the notices
        if case.told is not None:
            found.setdefault(alert_id(case.event.key, case.bouts[0][0]), set()).add(case.channel)
    return found


def _failing(store: Known) -> dict[AlertKey, set[str]]:
    """Return for each alert the channels that were tried in vain, with why."""
    why = {
        (one.channel, one.rule): f"{one.channel} ({one.fault.value}, {count_text(one.failed, 'try', 'tries')})"
        for one in store.notices(NoticeState.WAITING)
        if one.fault is not None
    }
    found: dict[AlertKey, set[str]] = {}
    for case in store.cases():
        if case.topic is NoticeKind.FIRING and case.tried:
            words = why.get((case.channel, case.event.key.rule)) or why.get((case.channel, ""))
            if words is not None:
                found.setdefault(case.event.key, set()).add(words)
    return found


def _held(
    store: Known, policies: Mapping[str, Policy], silences: Sequence[Silence], at_s: float
) -> dict[AlertKey, list[Hold]]:
    """Return for each alert the channels that are yet to be told of it, and what keeps them."""
    waiting = store.notices(NoticeState.WAITING)
    due = {(one.channel, one.rule): one.due_s for one in waiting if one.kind is NoticeKind.FIRING and not one.attempts}
    found: dict[AlertKey, list[Hold]] = {}
    for case in store.cases():
        policy = policies.get(case.channel)
        is_untold = case.topic is NoticeKind.FIRING and case.is_firing and case.told is None
        if is_untold and policy is not None and case.event.severity in policy.severities:
            hold = _hold(case, policy, silences, at_s)
            due_s = due.get((case.channel, case.event.key.rule), at_s)
            if hold.by is Holder.NOTHING and due_s > at_s:
                hold = Hold(case.channel, Holder.GROUPING, due_s)
            found.setdefault(case.event.key, []).append(hold)
    return found


def _hold(case: Case, policy: Policy, silences: Sequence[Silence], at_s: float) -> Hold:
    """Return what holds a case the longest: quiet hours may begin before a silence ends, and the other way round."""
    key, severity, quiet = case.event.key, case.event.severity, policy.quiet
    hold = Hold(case.channel, Holder.NOTHING)
    while True:
        from_s = at_s if hold.until_s is None else hold.until_s
        holds = [Hold(case.channel, Holder.SILENCE, one.until_s) for one in silences if one.covers(key, from_s)]
        if quiet is not None and quiet.holds(severity, from_s):
            holds.append(Hold(case.channel, Holder.QUIET, quiet.ends_s(from_s)))
        if not holds:
            return hold
        hold = max(holds, key=lambda one: one.until_s or 0.0)


def _silenced(entry: Entry, silences: Iterable[Silence], at_s: float) -> float | None:
    if not entry.is_firing:
        return None
    key = AlertKey(entry.rule, entry.scope, entry.run)
    return max((silence.until_s for silence in silences if silence.covers(key, at_s)), default=None)


def to_json(found: Iterable[Entry]) -> Iterator[dict[str, Any]]:
    """Yield the entries as plain values, times as RFC 3339."""
    for entry in found:
        times = {name: _when(getattr(entry, f"{name}_s")) for name in ("since", "fired", "over", "silenced_until")}
        plain = {name: value for name, value in entry._asdict().items() if not name.endswith("_s")}
        held = [{"channel": one.channel, "by": one.by, "until": _when(one.until_s)} for one in entry.held]
        yield {**plain, **times, "held": held}


def _when(at_s: float | None) -> str | None:
    return None if at_s is None else notice.when_text(at_s)


def from_plain(items: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """Return the entries of what `Entry._asdict` gave and a socket carried."""
    return [
        Entry(**{**item, "told": tuple(item["told"]), "failing": tuple(item["failing"]), "held": _holds(item["held"])})
        for item in ({name: one[name] for name in Entry._fields} for one in items)
    ]


def _holds(items: Iterable[Sequence[Any]]) -> tuple[Hold, ...]:
    return tuple(Hold(channel, Holder(by), until_s) for channel, by, until_s in items)


def text(found: Sequence[Entry], at_s: float, *, colour: bool = False) -> str:
    """Return the alerts for people: a row each and its headline below it, 80 columns."""
    if not found:
        return "no alert fires"
    head = ["severity", "rule", "about", "since", "alert", "told"]
    cells = [
        [entry.severity if entry.is_firing else "over", entry.rule, entry.scope, _age(entry, at_s), entry.alert]
        for entry in found
    ]
    rows = [[*row, _hearers(entry)] for row, entry in zip(cells, found, strict=True)]
    title, *lines = aligned(head, rows, right=set(), names={1, 2})
    told = [title]
    for line, entry in zip(lines, found, strict=True):
        tint = COLOURS[entry.severity] if colour and entry.is_firing else ""
        told.append(f"{tint}{line}{PLAIN}" if tint else line)
        told += [line for part in _remarks(entry) for line in wrap(part, WIDTH, **_INDENT)]
    return "\n".join(told)


def _hearers(entry: Entry) -> str:
    return ", ".join(entry.told) or ("nobody yet" if entry.held or entry.failing else "nobody")


def _age(entry: Entry, at_s: float) -> str:
    if entry.over_s is None:
        return duration_text(max(0.0, at_s - entry.since_s))
    return f"{notice.clock_text(entry.fired_s)[5:16]}, {duration_text(max(0.0, entry.over_s - entry.fired_s))}"


def _remarks(entry: Entry) -> Iterator[str]:
    yield entry.headline
    if entry.silenced_until_s is not None:
        yield f"silenced until {notice.clock_text(entry.silenced_until_s)}"
    for hold in entry.held:
        if hold.by in _HELD and hold.until_s is not None:
            yield f"{hold.channel} is told at {notice.clock_text(hold.until_s)}: held by {_HELD[hold.by]}"
    if entry.failing:
        yield f"not delivered: {', '.join(entry.failing)}"
