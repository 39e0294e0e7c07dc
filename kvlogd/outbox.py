"""What channels are owed and were told: the records of the outbox, and the few rules that need one record alone. Pure.

A case is one alert as one channel knows it; a notice is one message to one channel; a silence keeps alerts from people.
Promises that a case alone tells what its channel is still owed, so that no notice is needed to remember it.
"""

import hashlib
import json
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from kvlogd.alerts import LOUDNESS
from kvlogd.model import AlertEvent, AlertKey, AlertState, Fault, NoticeKind, Severity

MOST_BOUTS = 20

Bout = tuple[float, float | None]
"""When an alert began to fire, and when it was over."""


class CaseKey(NamedTuple):
    """What makes a case the same case."""

    channel: str
    topic: NoticeKind
    alert: AlertKey


class Case(NamedTuple):
    """One alert as one channel knows it. Lives until the alert is over and the channel is owed nothing more."""

    channel: str
    topic: NoticeKind
    """FIRING for alerts; BROKEN, NO_DATA and CHANNEL for what kvlogd tells of itself."""
    event: AlertEvent
    """The last change of the alert."""
    seen_s: float
    """When that change was learnt, by the host's clock."""
    bouts: tuple[Bout, ...]
    """Each time that it fired since the channel was told last; the first of them is the one that was told, if any."""
    told: Severity | None = None
    """How severe it fires as far as the channel knows; None where the channel does not know that it fires."""
    told_s: float | None = None
    """When the channel took a message about it last."""
    tried: bool = False
    """A message was on its way since then, and may have arrived."""

    @property
    def key(self) -> CaseKey:
        """Return what makes it the same case."""
        return CaseKey(self.channel, self.topic, self.event.key)

    @property
    def is_firing(self) -> bool:
        """Tell whether the alert fires."""
        return self.event.state is AlertState.FIRING

    @property
    def alert_id(self) -> str:
        """Return the stable id of this bout of the alert."""
        return alert_id(self.event.key, self.bouts[-1][0])


class NoticeState(StrEnum):
    """Where a notice stands."""

    WAITING = "waiting"
    SENT = "sent"
    DROPPED = "dropped"


class Notice(NamedTuple):
    """One message to one channel. What it says is made from the cases when it goes out."""

    notice_id: int
    channel: str
    kind: NoticeKind
    rule: str
    """The rule whose alerts it tells; empty for a summary of all that the channel is owed."""
    state: NoticeState
    planned_s: float
    due_s: float
    """Not to be sent before."""
    expires_s: float
    attempts: int = 0
    fault: Fault | None = None
    """Why the last attempt failed."""
    status: int | None = None
    """HTTP's or SMTP's number of it."""
    sent_s: float | None = None
    why: str = ""
    """Why it was dropped; our own words."""
    alerts: str = "[]"
    """What it told, or tries to: a JSON list of objects with id, rule, scope and run."""
    failed: int = 0
    """How many attempts failed; one that ended with kvlogd itself did not."""


class Silence(NamedTuple):
    """Alerts of some rules about some scopes that nobody is told of, until it ends."""

    silence_id: int
    rule: str
    """A rule's id, in which * stands for anything."""
    scope: str
    """An engine's label, a source's name or host, in which * stands for anything."""
    since_s: float
    until_s: float
    comment: str = ""

    def covers(self, key: AlertKey, at_s: float) -> bool:
        """Tell whether an alert is silenced at a time."""
        return at_s < self.until_s and _matches(self.rule, key.rule) and _matches(self.scope, key.scope)


def _matches(pattern: str, text: str) -> bool:
    """Tell whether a text is as a pattern says; many stars make a regular expression take years."""
    first, *others = pattern.split("*")
    if not others:
        return pattern == text
    *parts, last = others
    at, end = len(first), len(text) - len(last)
    if at > end or not text.startswith(first) or not text.endswith(last):
        return False
    for part in parts:  # the first place will do: it leaves the most for those behind it
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def alert_id(key: AlertKey, firing_s: float) -> str:
    """Return an id that is the same whenever and wherever this bout of this alert is told."""
    text = json.dumps([*key, round(firing_s * 1000)])
    return hashlib.blake2s(text.encode(), digest_size=4).hexdigest()


def opened(channel: str, topic: NoticeKind, event: AlertEvent, at_s: float) -> Case:
    """Return the case of an alert that has begun to fire."""
    return Case(channel, topic, event, at_s, ((event.at_s, None),))


def changed(case: Case | None, channel: str, event: AlertEvent, at_s: float) -> Case | None:
    """Return what becomes of a case with the next change of its alert; None where nothing is left to tell."""
    if event.state is AlertState.FIRING:
        if case is None:
            return opened(channel, NoticeKind.FIRING, event, at_s)
        bouts = case.bouts if case.is_firing else _capped((*case.bouts, (event.at_s, None)))
        return case._replace(event=event, seen_s=at_s, bouts=bouts)
    if case is None or not case.is_firing:
        return case
    over = case._replace(event=event, seen_s=at_s, bouts=(*case.bouts[:-1], (case.bouts[-1][0], event.at_s)))
    return over if over.told is not None or over.tried else None


def _capped(bouts: tuple[Bout, ...]) -> tuple[Bout, ...]:
    return bouts if len(bouts) <= MOST_BOUTS else (bouts[0], *bouts[2:])


def owed(case: Case, repeat_every_s: float, at_s: float) -> NoticeKind | None:
    """Return which message the channel is owed about a case, were nothing in its way."""
    if not case.is_firing:
        return NoticeKind.RESOLVED if case.told is not None else NoticeKind.SUMMARY
    if case.told is None or len(case.bouts) > 1:
        return case.topic
    if case.topic is not NoticeKind.FIRING:
        return None
    if LOUDNESS.index(case.event.severity) > LOUDNESS.index(case.told):
        return NoticeKind.RAISED
    is_due = case.told_s is not None and at_s - case.told_s >= repeat_every_s
    return NoticeKind.REPEAT if is_due else None


def taken(now: Case, told: Case, at_s: float) -> Case | None:
    """Return what becomes of a case once the channel took a message that told it as it stood in `told`.

    None where the alert is over and everything is told.
    """
    last_s = told.bouts[-1][0]
    if told.is_firing:
        rest = tuple(bout for bout in now.bouts if bout[0] >= last_s) or now.bouts[-1:]
        return now._replace(bouts=rest, told=told.event.severity, told_s=at_s, tried=False)
    rest = tuple(bout for bout in now.bouts if bout[0] > last_s)
    return now._replace(bouts=rest, told=None, told_s=at_s, tried=False) if rest else None


def named(cases: Sequence[Case]) -> str:
    """Return which alerts a notice tells, as JSON of labels and ids."""
    found = [{"id": case.alert_id, **case.event.key._asdict()} for case in cases]
    return json.dumps(found, separators=(",", ":"))
