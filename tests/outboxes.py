"""An outbox whose channels and clock a test steers: its rows, what the channels took, and what a crash forgets."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kvlogd.model import AlertEvent, AlertKey, AlertState, Fault, NoticeKind, Outcome, Severity
from kvlogd.outbox import Case, CaseKey, Notice, NoticeState, Silence
from kvlogd.plan import Ledger, Plan, Policy, Sending

BEGIN_S = 1_800_000_000.0
FINE = Outcome(None)
DOWN = Outcome(Fault.UNREACHABLE)
REFUSED = Outcome(Fault.REFUSED, 403)
ALL = frozenset(Severity)


def policy(name: str = "mail", *, severities: Iterable[Severity] = ALL, repeat_every_s: float = 14_400.0) -> Policy:
    return Policy(name, frozenset(severities), repeat_every_s)


def alert(
    at_s: float,
    *,
    rule: str = "kv-leak",
    scope: str = "chat/0",
    severity: Severity = Severity.CRITICAL,
    over: bool = False,
    reason: str = "",
    source: str = "chat",
) -> AlertEvent:
    state = AlertState.RESOLVED if over else AlertState.FIRING
    key = AlertKey(rule, scope, 1)
    return AlertEvent(key, state, rule, severity, source, 0, BEGIN_S + at_s, BEGIN_S, -0.02, {"lost": 0.5}, reason)


class Taken(NamedTuple):
    """A message that a channel took."""

    at_s: float
    channel: str
    kind: NoticeKind
    cases: tuple[Case, ...]
    more: int

    @property
    def scopes(self) -> list[str]:
        return sorted(case.event.key.scope for case in self.cases)


class Outbox:
    """A plan, the rows behind it, and channels that do what `answers` says (fine where it says nothing)."""

    def __init__(self, *policies: Policy, notify: Mapping[str, Sequence[str]] | None = None) -> None:
        self.policies = policies or (policy(),)
        self.notify = notify or {}
        self.answers: dict[str, Outcome] = {}
        self.at_s = 0.0
        self.taken: list[Taken] = []
        self.tries: list[tuple[float, str]] = []
        self.cases: dict[CaseKey, Case] = {}
        self.notices: dict[int, Notice] = {}
        self.silences: list[Silence] = []
        self.plan = self._planned()

    def _planned(self) -> Plan:
        waiting = [notice for notice in self.notices.values() if notice.state is NoticeState.WAITING]
        ledger = Ledger(list(self.cases.values()), waiting, self.silences, max(self.notices, default=0))
        return Plan(self.policies, self.notify, ledger, BEGIN_S + self.at_s)

    def store(self) -> None:
        """Commit."""
        cases, closed, notices = self.plan.harvest()
        for key in closed:
            self.cases.pop(key, None)
        self.cases |= {case.key: case for case in cases}
        self.notices |= {notice.notice_id: notice for notice in notices}

    def crash(self) -> None:
        """Forget what was not committed, and begin again."""
        self.plan = self._planned()

    def see(self, *events: AlertEvent) -> None:
        self.plan.see(events, BEGIN_S + self.at_s)
        self.store()

    def turn(self, *, dies: bool = False) -> None:
        """Send what is due; with `dies` the process ends between a send and its record."""
        begun = self.plan.ready(BEGIN_S + self.at_s, lambda _: True)
        self.store()
        for sending in begun:
            outcome = self._sent(sending)
            if dies:
                self.crash()
                return
            self.plan.settle(sending, outcome, BEGIN_S + self.at_s)
            self.store()

    def _sent(self, sending: Sending) -> Outcome:
        channel = sending.notice.channel
        outcome = self.answers.get(channel, FINE)
        self.tries.append((self.at_s, channel))
        if outcome.fault is None:
            self.taken.append(Taken(self.at_s, channel, sending.notice.kind, sending.cases, sending.more))
        return outcome

    def go(self, seconds: float, step_s: float = 1.0) -> list[Taken]:
        """Let time pass; return what the channels took meanwhile."""
        before, end_s = len(self.taken), self.at_s + seconds
        while self.at_s < end_s:
            self.at_s += step_s
            self.turn()
        return self.taken[before:]

    def kinds(self, channel: str = "mail") -> list[NoticeKind]:
        return [taken.kind for taken in self.taken if taken.channel == channel]
