"""Who is told what, when: from the changes of alerts, and what was told before, to the messages that are due. Pure.

Works by what stands, not by what came: a message says how its alerts are when it goes out. So an outage ends in one
message for each alert, and nothing is told twice because it had to be tried twice.
Promises that no end is told of an alert whose beginning cannot have been; that what still fires is told in the end; and
that `harvest` returns all that a restart must know, to be committed before anything of it is sent.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import NamedTuple

from kvlogd import alerts, outbox
from kvlogd.alerts import LOUDNESS, Standing
from kvlogd.line import BAD_WAIT_S, Line, wait_s
from kvlogd.model import AlertEvent, AlertKey, AlertState, NoticeKind, Outcome, Severity
from kvlogd.outbox import Case, CaseKey, Notice, NoticeState, Silence

GROUP_S = 3.0
"""How long a message waits for more alerts of its rule: what ails one engine often ails its neighbours."""
MOST_ITEMS = 12
"""Alerts that one message shows; the others are counted."""
LATE_S = 600.0
"""What happened so long ago waits until its log is read to the end: it may be over."""
TTL_S = 86400.0
"""What ended so long ago is told to nobody."""


class Quiet(NamedTuple):
    """The hours in which a channel takes only what is severe."""

    from_min: int
    """Minutes since midnight."""
    to_min: int
    zone: tzinfo
    below: Severity
    """What is less severe waits for the end."""

    def holds(self, severity: Severity, at_s: float) -> bool:
        """Tell whether something so severe must wait."""
        if LOUDNESS.index(severity) >= LOUDNESS.index(self.below):
            return False
        clock = datetime.fromtimestamp(at_s, self.zone)
        minute = clock.hour * 60 + clock.minute
        if self.from_min <= self.to_min:
            return self.from_min <= minute < self.to_min
        return minute >= self.from_min or minute < self.to_min

    def ends_s(self, at_s: float) -> float:
        """Return when the hours that hold at a time are over."""
        clock = datetime.fromtimestamp(at_s, self.zone)
        end = clock.replace(hour=self.to_min // 60, minute=self.to_min % 60, second=0, microsecond=0)
        return (end if end > clock else end + timedelta(days=1)).timestamp()


class Policy(NamedTuple):
    """What one channel takes."""

    name: str
    severities: frozenset[Severity]
    repeat_every_s: float
    burst: int = 10
    """Messages a minute."""
    quiet: Quiet | None = None


class Ledger(NamedTuple):
    """What the store knows of the outbox."""

    cases: Sequence[Case] = ()
    waiting: Sequence[Notice] = ()
    silences: Sequence[Silence] = ()
    last_notice_id: int = 0


class Sending(NamedTuple):
    """A message that is to be sent now."""

    notice: Notice
    cases: tuple[Case, ...]
    """All that it tells, the most severe first, as they stand now."""

    @property
    def shown(self) -> tuple[Case, ...]:
        """Return those that the message has room for."""
        return self.cases[:MOST_ITEMS]

    @property
    def more(self) -> int:
        """Return how many are only counted."""
        return len(self.cases) - len(self.shown)


class Changes(NamedTuple):
    """What must be stored."""

    cases: list[Case]
    closed: list[CaseKey]
    notices: list[Notice]


class Plan:
    """The outbox of all channels. `notify` says which channels are told of a rule, all where it is not named.

    `flying` is what is on its way, `mended` names the channels whose URL was changed: they are tried at once.
    """

    def __init__(
        self,
        policies: Iterable[Policy],
        notify: Mapping[str, Sequence[str]],
        ledger: Ledger,
        at_s: float,
        flying: Iterable[Sending] = (),
        mended: Collection[str] = (),
    ) -> None:
        self.policies = {policy.name: policy for policy in policies}
        self.silences = list(ledger.silences)
        self.behind: frozenset[str] = frozenset()
        """Sources of which much is still to be read."""
        self._notify = notify
        self._cases = {case.key: case for case in ledger.cases}
        self._waiting = {notice.notice_id: notice for notice in ledger.waiting}
        self._flying = {sending.notice.notice_id: sending for sending in flying}
        self._last_id = max([ledger.last_notice_id, *self._flying])
        self._dirty: dict[CaseKey, Case | None] = {}
        self._written: dict[int, Notice] = {}
        self._forget_strangers()
        self._forget_the_future(at_s)
        for notice in [one for one in self._waiting.values() if one.channel in mended]:
            self._write(notice._replace(due_s=min(notice.due_s, at_s), fault=None, status=None, failed=0))
        bad = {case.event.key.scope for case in ledger.cases if case.topic is NoticeKind.CHANNEL}
        self.lines = {
            name: Line.restored(policy.burst, self._of(name), at_s, was_bad=name in bad)
            for name, policy in self.policies.items()
        }
        self._report_lines(at_s)

    def _forget_strangers(self) -> None:
        """Close what concerns channels that are no more."""
        for key in [key for key in self._cases if key.channel not in self.policies]:
            self._put(key, None)
        for notice in [one for one in self._waiting.values() if one.channel not in self.policies]:
            self._drop(notice, "the channel was removed")

    def _forget_the_future(self, at_s: float) -> None:
        """Let nothing wait for a time that the host's clock showed before it was set back, while nobody looked."""
        for notice in [one for one in self._waiting.values() if one.planned_s > at_s]:
            by_s = at_s - notice.planned_s
            due_s, expires_s = notice.due_s + by_s, notice.expires_s + by_s
            self._write(notice._replace(planned_s=at_s, due_s=due_s, expires_s=expires_s))
        for case in list(self._cases.values()):
            told_s = None if case.told_s is None else min(case.told_s, at_s)
            if told_s != case.told_s or case.seen_s > at_s:
                self._put(case.key, case._replace(told_s=told_s, seen_s=min(case.seen_s, at_s)))

    def _of(self, channel: str) -> list[Notice]:
        return [notice for notice in self._waiting.values() if notice.channel == channel]

    # --- what happens

    def stand(self, standings: Iterable[Standing], at_s: float) -> None:
        """Take up the alerts that fire and that a channel has never heard of: it is new, or the outbox is.

        Forgets those that do not stand: their end was lost with a damaged store.
        """
        events = [
            alerts.event(standing, AlertState.FIRING, standing.entered_s)
            for standing in standings
            if standing.state is AlertState.FIRING
        ]
        found = {CaseKey(name, NoticeKind.FIRING, one.key): one for one in events for name in self._hearers(one)}
        for key in found.keys() - self._cases.keys():
            self._put(key, outbox.opened(key.channel, NoticeKind.FIRING, found[key], at_s))
        for key, case in list(self._cases.items()):
            if key.topic is NoticeKind.FIRING and case.is_firing and key not in found:
                self._put(key, None)

    def see(self, events: Iterable[AlertEvent], at_s: float) -> None:
        """Take in changes of alerts, in the order in which they came, and plan what follows from them."""
        for event in events:
            for channel in self._hearers(event):
                key = CaseKey(channel, NoticeKind.FIRING, event.key)
                case = outbox.changed(self._cases.get(key), channel, event, at_s)
                is_stale = case is not None and not case.is_firing and at_s - event.at_s > TTL_S
                self._put(key, None if is_stale else case)
        self._plan(at_s)

    def report(self, topic: NoticeKind, found: Iterable[AlertEvent], at_s: float, *, is_all: bool = True) -> None:
        """Say what kvlogd has to tell of itself on one topic; where that is all, what is not among it is over."""
        stands = {event.key: event for event in found}
        for key in [key for key in self._cases if is_all and key.topic is topic and key.alert not in stands]:
            self._put(key, None)
        for event in stands.values():
            # that a rule is of no use is told to whom it would tell, and where none of them takes that to all
            asked = () if topic is NoticeKind.CHANNEL else self._channels_of(event)
            mine = [name for name in asked if event.severity in self.policies[name].severities]
            for channel in mine or self.policies:
                key = CaseKey(channel, topic, event.key)
                if key not in self._cases and (topic is not NoticeKind.CHANNEL or channel != event.key.scope):
                    self._put(key, outbox.opened(channel, topic, event, at_s))

    def _channels_of(self, event: AlertEvent) -> Iterator[str]:
        wanted = self._notify.get(event.key.rule, self.policies)
        return (name for name in wanted if name in self.policies)

    def _hearers(self, event: AlertEvent) -> list[str]:
        """Return who is told of an alert, and who was before a reload said otherwise: they hear that it is over."""
        mine = list(self._channels_of(event))
        others = [name for name in self.policies if name not in mine]
        cases = [self._cases.get(CaseKey(name, NoticeKind.FIRING, event.key)) for name in others]
        return mine + [case.channel for case in cases if case is not None and (case.told is not None or case.tried)]

    def shift(self, by_s: float) -> None:
        """Move what counts from moments of the host's clock, where that was set."""
        for line in self.lines.values():
            line.shift(by_s)
        for case in self._cases.values():
            told_s = None if case.told_s is None else case.told_s + by_s
            self._put(case.key, case._replace(told_s=told_s, seen_s=case.seen_s + by_s))
        for notice in self._waiting.values():
            self._write(notice._replace(due_s=notice.due_s + by_s, expires_s=notice.expires_s + by_s))

    # --- what is due

    def ready(self, at_s: float, is_free: Callable[[str], bool]) -> list[Sending]:
        """Return what is to be sent now, one message a channel at most; store `harvest` before it is sent."""
        self._plan(at_s)
        self._expire(at_s)
        return [found for name in self.policies if is_free(name) and (found := self._next(name, at_s)) is not None]

    def soon(self, at_s: float) -> dict[str, float]:
        """Return the channels that are to be sent something within seconds, and in how many."""
        found: dict[str, float] = {}
        for notice in self._waiting.values():
            in_s = notice.due_s - at_s
            if 0 < in_s <= GROUP_S and self.lines[notice.channel].may_start(at_s) > 0:
                found[notice.channel] = min(in_s, found.get(notice.channel, in_s))
        return found

    def _plan(self, at_s: float) -> None:
        """See to it that a notice waits for all that is owed."""
        covered = {(notice.channel, notice.rule, notice.kind) for notice in self._waiting.values()}
        for case in self._cases.values():
            kind = self._owed(case, at_s)
            if kind is None or (_is_alert(case) and (case.channel, "", NoticeKind.SUMMARY) in covered):
                continue
            place = (case.channel, case.event.key.rule, kind)
            if place not in covered:
                covered.add(place)
                self._write(self._notice(case.channel, kind, case.event.key.rule, at_s))

    def _notice(self, channel: str, kind: NoticeKind, rule: str, at_s: float) -> Notice:
        self._last_id += 1
        expires_s = at_s + TTL_S
        return Notice(self._last_id, channel, kind, rule, NoticeState.WAITING, at_s, at_s + GROUP_S, expires_s)

    def _owed(self, case: Case, at_s: float) -> NoticeKind | None:
        """Return which message a channel is owed about a case now."""
        policy = self.policies[case.channel]
        severity = case.event.severity
        kind = outbox.owed(case, policy.repeat_every_s, at_s)
        if kind is None or (policy.quiet is not None and policy.quiet.holds(severity, at_s)):
            return None
        if kind in (NoticeKind.RESOLVED, NoticeKind.SUMMARY):
            return kind  # what was told is ended, whoever is to be silent
        if case.topic is NoticeKind.FIRING and case.channel not in self._channels_of(case.event):
            return None
        if case.topic is not NoticeKind.CHANNEL and severity not in policy.severities:
            # who may have been told of an earlier time, more severe than this one, hears how it went on
            is_known = len(case.bouts) > 1 and (case.told is not None or case.tried)
            return NoticeKind.SUMMARY if is_known else None
        if case.topic is NoticeKind.FIRING and self._is_withheld(case.event, at_s):
            return None
        return kind

    def _is_withheld(self, event: AlertEvent, at_s: float) -> bool:
        if event.source in self.behind and at_s - event.at_s > LATE_S:
            return True
        return any(silence.covers(event.key, at_s) for silence in self.silences)

    def _expire(self, at_s: float) -> None:
        for case in [case for case in self._cases.values() if not case.is_firing and at_s - case.seen_s > TTL_S]:
            self._put(case.key, None)
        for notice in [one for one in self._waiting.values() if at_s > one.expires_s]:
            if notice.notice_id not in self._flying:
                self._drop(notice, "it was too old")

    def _next(self, channel: str, at_s: float) -> Sending | None:
        room = self.lines[channel].may_start(at_s)
        if room <= 0:
            return None
        due: list[Sending] = []
        owing = self._owing(channel, at_s)
        for notice in [notice for notice in self._of(channel) if notice.due_s <= at_s]:
            cases = self._told_by(notice, owing, at_s)
            if cases:
                due.append(Sending(notice, cases))
            else:
                self._drop(notice, "nothing of it was left to tell")
        if not due:
            return None
        first = min(due, key=_urgency)
        crowd = [one for one in due if _is_alert(one.cases[0])]
        if room == 1 and len(crowd) > 1 and first in crowd:
            first = self._summary(channel, crowd, at_s)
        return self._begin(first, at_s)

    def _summary(self, channel: str, due: Sequence[Sending], at_s: float) -> Sending:
        """Sum up what the channel has no room for one by one."""
        cases = sorted((case for one in due for case in one.cases), key=_loudest)
        for one in due:
            self._drop(one.notice, "it was summed up with others")
        return Sending(self._notice(channel, NoticeKind.SUMMARY, "", at_s), tuple(cases))

    def _owing(self, channel: str, at_s: float) -> dict[tuple[str, NoticeKind], list[Case]]:
        """Return what a channel is owed, by rule and kind."""
        found: dict[tuple[str, NoticeKind], list[Case]] = {}
        for case in self._cases.values():
            if case.channel == channel and (kind := self._owed(case, at_s)) is not None:
                found.setdefault((case.event.key.rule, kind), []).append(case)
        return found

    def _told_by(
        self, notice: Notice, owing: Mapping[tuple[str, NoticeKind], list[Case]], at_s: float
    ) -> tuple[Case, ...]:
        if not notice.rule:
            found = [case for cases in owing.values() for case in cases if _is_alert(case)]
        else:
            found = owing.get((notice.rule, notice.kind), [])
        if found and notice.kind is NoticeKind.REPEAT:
            mine = [case for key, case in self._cases.items() if key.channel == notice.channel]
            found = [case for case in mine if case.event.key.rule == notice.rule and self._may_repeat(case, at_s)]
        return tuple(sorted(found, key=_loudest))

    def _may_repeat(self, case: Case, at_s: float) -> bool:
        """Tell whether a case is repeated with another of its rule that is due: half of its time must be over."""
        half_s = self.policies[case.channel].repeat_every_s / 2
        is_plain = case.topic is NoticeKind.FIRING and case.is_firing and len(case.bouts) == 1
        is_known = case.told is case.event.severity and case.told_s is not None and at_s - case.told_s >= half_s
        return is_plain and is_known and not self._is_withheld(case.event, at_s)

    def _begin(self, sending: Sending, at_s: float) -> Sending:
        notice = sending.notice._replace(
            attempts=sending.notice.attempts + 1, alerts=outbox.named(sending.cases), due_s=at_s
        )
        self._write(notice)
        for case in sending.cases:
            self._put(case.key, case._replace(tried=True))
        self.lines[notice.channel].started(at_s)
        begun = Sending(notice, sending.cases)
        self._flying[notice.notice_id] = begun
        return begun

    # --- what became of it

    def settle(self, sending: Sending, outcome: Outcome, at_s: float) -> None:
        """Take in what became of a message. One that is not waited for any more changes nothing."""
        self._flying.pop(sending.notice.notice_id, None)
        notice = self._waiting.get(sending.notice.notice_id)
        if notice is None:
            return
        line = self.lines[notice.channel]
        line.ended(outcome, notice.notice_id, at_s)
        if outcome.fault is None:
            self._write(notice._replace(state=NoticeState.SENT, sent_s=at_s, fault=None, status=None))
            for told in sending.cases:
                now = self._cases.get(told.key)
                if now is not None:
                    self._put(told.key, outbox.taken(now, told, at_s))
        else:
            failed = notice.failed + 1
            pause_s = max(wait_s(failed, notice.notice_id), outcome.retry_after_s or 0.0)
            due_s = at_s + min(pause_s, BAD_WAIT_S)
            self._write(notice._replace(due_s=due_s, fault=outcome.fault, status=outcome.status, failed=failed))
        self._report_lines(at_s)

    def _report_lines(self, at_s: float) -> None:
        bad = [_out_of_order(name, line, at_s) for name, line in self.lines.items() if line.is_bad]
        self.report(NoticeKind.CHANNEL, bad, at_s)

    # --- what must be stored, and what can be asked

    def harvest(self) -> Changes:
        """Return what has changed since the last time."""
        cases = [case for case in self._dirty.values() if case is not None]
        closed = [key for key, case in self._dirty.items() if case is None]
        changes = Changes(cases, closed, list(self._written.values()))
        self._dirty, self._written = {}, {}
        return changes

    def waiting(self, channel: str) -> int:
        """Return how many notices of a channel wait."""
        return len(self._of(channel))

    def holds_old(self, at_s: float) -> bool:
        """Tell whether something untold happened so long ago that it matters which logs are behind."""
        return any(case.told is None and at_s - case.event.at_s > LATE_S for case in self._cases.values())

    def _put(self, key: CaseKey, case: Case | None) -> None:
        if case is not None:
            self._cases[key] = self._dirty[key] = case
        elif self._cases.pop(key, None) is not None:
            self._dirty[key] = None

    def _write(self, notice: Notice) -> None:
        self._written[notice.notice_id] = notice
        if notice.state is NoticeState.WAITING:
            self._waiting[notice.notice_id] = notice
        else:
            self._waiting.pop(notice.notice_id, None)

    def _drop(self, notice: Notice, why: str) -> None:
        self._write(notice._replace(state=NoticeState.DROPPED, why=why))


def _is_alert(case: Case) -> bool:
    """Tell an alert from what kvlogd has to tell of itself, which has messages of its own."""
    return case.topic is NoticeKind.FIRING


def _loudest(case: Case) -> tuple[int, float, AlertKey]:
    key = case.event.key
    return -LOUDNESS.index(case.event.severity), case.event.since_s, key._replace(run=key.run or 0)


def _urgency(sending: Sending) -> tuple[int, int, float, int]:
    """Order what waits: what has not been tried yet, then the severe, then the old."""
    notice = sending.notice
    return notice.attempts, -LOUDNESS.index(sending.cases[0].event.severity), notice.planned_s, notice.notice_id


def _out_of_order(name: str, line: Line, at_s: float) -> AlertEvent:
    """Return what is told through other channels of one that takes no messages."""
    since_s = at_s if line.failing_since_s is None else line.failing_since_s
    evidence = {"attempts": float(line.failures)}
    if line.status is not None:
        evidence["status"] = float(line.status)
    key = AlertKey("channel", name, None)
    reason = line.fault.value if line.fault is not None else ""
    return AlertEvent(
        key, AlertState.FIRING, "channel", Severity.WARNING, "", None, at_s, since_s, None, evidence, reason
    )
