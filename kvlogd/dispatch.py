"""The outbox at work in the daemon: plans with each batch, sends what is due, stores what became of it.

Promises: what is to be sent was stored before it is sent, and what became of it after; so a crash loses no message and
repeats one at most for each channel. Nothing here waits for another side. Without channels it does nothing at all.
Thrown away and taken up anew from the store whenever a commit failed, as everything that reads is; what is on its way
then is not begun twice.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import tzinfo
from typing import NamedTuple, Protocol

from kvlogd import page
from kvlogd.alerts import Standing
from kvlogd.config import ChannelConfig
from kvlogd.intake import Intake
from kvlogd.line import Line
from kvlogd.model import (
    AlertEvent,
    AlertKey,
    AlertState,
    Broken,
    Fault,
    Judgement,
    NoticeKind,
    Outcome,
    Severity,
)  # fmt: skip
from kvlogd.outbox import NoticeState, Silence
from kvlogd.plan import Ledger, Plan, Policy, Quiet, Sending
from kvlogd.postman import Postman
from kvlogd.rows import Batch
from kvlogd.rules import Rule
from kvlogd.setup import Setup, routes
from kvlogd.stamp import HOST_ZONE, zone
from kvlogd.store import Store
from kvlogd.voice import Level, Voice

LOOK_S = 0.5
"""How often it is looked for what is due."""
SELF_S = 10.0
"""How often it is looked for what kvlogd has to tell of itself."""
BROKEN_S = 900.0
"""A rule that fails for so long is told of."""
SURE_S = 2 * BROKEN_S
"""What was told of a rule is not taken for over sooner after a start: it must fail anew first."""
JUMP_S = 30.0
"""The host's clock was set where it went so far beside the monotonic one."""


_AtWork = Iterator[tuple[Rule, str, Judgement, Standing | None]]


class ChannelHealth(NamedTuple):
    """How one channel fares, for `kvlogd status`."""

    name: str
    line: Line
    waiting: int


class Beside(Protocol):
    """What is asked of those who look at GPUs and hosts."""

    def at_work(self) -> _AtWork:
        """Yield each rule at work with its scope, its last word and its alert."""
        ...

    def without_evidence(self) -> list[tuple[str, str]]:
        """Return the rules that have had nothing to look at for a day."""
        ...


class Dispatch:
    """The outbox of a daemon. `host` is how messages call this one, `beside` looks at GPUs and hosts."""

    def __init__(self, postman: Postman, voice: Voice, host: str, beside: Beside | None = None) -> None:
        self._postman = postman
        self._voice = voice
        self._host = host
        self._beside = beside
        self._setup: Setup | None = None
        self._store: Store | None = None
        self._plan: Plan | None = None
        self._flying: dict[int, Sending] = {}
        self._mended: set[str] = set()
        """The channels whose URL was changed, until it is stored that they are tried at once."""
        self._complained: set[str] = set()
        """The channels of which was said in our own log that they fail."""
        self._unrecorded: list[tuple[Sending, Outcome]] = []
        """What became of messages, until it is stored."""
        self._offset_s: float | None = None
        """The host's clock less the monotonic one."""
        self._looked_s = self._told_self_s = float("-inf")
        self._broken: dict[tuple[str, str], tuple[float, str]] = {}
        """The rules that fail, each with its scope: since when, and why."""
        self._begun_s = float("inf")
        """When it was begun to read, by the monotonic clock."""

    # --- beginning and ending

    def take_up(self, setup: Setup, store: Store, wall_s: float) -> None:
        """Begin where the store says. Raises StoreError."""
        before = {} if self._setup is None else self._setup.urls
        self._mended |= {name for name, url in setup.urls.items() if name in before and before[name] != url}
        self._setup, self._store, self._plan = setup, store, None
        self._begun_s = float("inf")
        gone = self._complained - {channel.name for channel in setup.config.channels}
        for name in gone:
            self._voice.forget(f"channel {name}")
        self._complained -= gone
        last_id = store.last_notice_id()
        ledger = Ledger(store.cases(), store.notices(NoticeState.WAITING), store.silences(), last_id)
        if not setup.config.channels and not ledger.cases and not ledger.waiting:
            return
        channels = setup.config.channels
        notify = routes(channels, setup.rules)
        plan = Plan(map(policy_of, channels), notify, ledger, wall_s, self._flying.values(), self._mended)
        plan.stand(store.standings(), wall_s)
        self._plan, self._offset_s = plan, None

    def let_go(self) -> None:
        """Forget what was planned: the store knows it."""
        self._plan = None

    def is_flying(self) -> bool:
        """Tell whether a message is on its way."""
        return bool(self._flying)

    def close(self) -> None:
        """End all sending."""
        self._postman.close()

    # --- the daemon's turns

    def planned(self, batch: Batch, now_s: float, wall_s: float) -> Batch:
        """Return the batch with what follows from its alerts, to be committed with it."""
        if self._plan is None:
            return batch
        self._follow_clock(self._plan, now_s, wall_s)  # what is planned now must not be moved by it
        self._plan.see(batch.alert_events, wall_s)
        cases, closed, notices = self._plan.harvest()
        return batch._replace(cases=cases, closed=closed, notices=notices)

    def turn(self, intake: Intake | None, now_s: float, wall_s: float, *, is_last: bool = False) -> None:
        """Take in what became of messages, and begin those that are due. Raises StoreError."""
        for ticket, outcome in self._postman.poll(now_s):
            self._unrecorded.append((self._flying.pop(ticket), outcome))
        plan, store = self._plan, self._store
        if intake is not None and not is_last and now_s - self._told_self_s >= SELF_S:
            self._told_self_s = now_s
            self._look_at_rules(intake, now_s, wall_s)
        if plan is None or store is None or (not self._unrecorded and now_s - self._looked_s < LOOK_S):
            return
        self._looked_s = now_s
        self._follow_clock(plan, now_s, wall_s)
        for sending, outcome in self._unrecorded:
            plan.settle(sending, outcome, wall_s)
        begun: list[Sending] = []
        if intake is not None and not is_last:
            plan.behind = intake.behind() if plan.holds_old(wall_s) else frozenset()
            begun = plan.ready(wall_s, self._postman.is_free)
        self._commit(plan, store)
        self._say(plan, now_s, wall_s)
        for sending in begun:
            self._send(sending, plan, store, now_s, wall_s)
        if self._setup is not None and not is_last:
            for channel in plan.soon(wall_s):
                self._postman.warm(channel, self._setup.urls[channel].reveal(), now_s)

    def due_in_s(self, now_s: float, wall_s: float) -> float:
        """Return when it should be looked again, at the latest, for the next message to be in time."""
        soon = {} if self._plan is None else self._plan.soon(wall_s)
        return max(min(soon.values(), default=math.inf), LOOK_S - (now_s - self._looked_s))

    def _commit(self, plan: Plan, store: Store) -> None:
        cases, closed, notices = plan.harvest()
        if cases or closed or notices:
            store.commit(Batch(cases=cases, closed=closed, notices=notices))
        self._unrecorded, self._mended = [], set()

    def _follow_clock(self, plan: Plan, now_s: float, wall_s: float) -> None:
        """Let no jump of the host's clock make messages early or late."""
        offset_s = wall_s - now_s
        if self._offset_s is not None and abs(offset_s - self._offset_s) > JUMP_S:
            plan.shift(offset_s - self._offset_s)
        self._offset_s = offset_s

    def _send(self, sending: Sending, plan: Plan, store: Store, now_s: float, wall_s: float) -> None:
        if self._setup is None:
            return
        channel, number = sending.notice.channel, sending.notice.notice_id
        rules = {rule.id: rule for rule in self._setup.rules}
        kept = plan.waiting(sending.cases[0].event.key.scope)
        try:
            letter, panel = page.written(sending, store, rules, self._host, wall_s, kept)
        except page.FAULTS as error:  # one message must not end the watch
            what = f"cannot be written: {type(error).__name__}"
            self._voice.complain(f"message {number}", what, now_s, wall_s, Level.ERROR)
            self._unrecorded.append((sending, Outcome(Fault.FAILED)))
            return
        self._flying[number] = sending
        url = self._setup.urls[channel].reveal()
        self._postman.send(number, channel, url, letter, panel, now_s)

    def _say(self, plan: Plan, now_s: float, wall_s: float) -> None:
        """Tell in our own log which channels fail, and which work again."""
        for name, line in plan.lines.items():
            place = f"channel {name}"
            if line.fault is None:
                self._voice.relent(place)
            elif line.is_bad or line.failures == 1:
                status = "" if line.status is None else f" ({line.status})"
                words = "is out of order" if line.is_bad else "did not take a message"
                level = Level.ERROR if line.is_bad else Level.WARNING
                self._complained.add(name)
                self._voice.complain(place, f"{words}: {line.fault.value}{status}", now_s, wall_s, level)

    # --- what kvlogd tells of itself

    def _look_at_rules(self, intake: Intake, now_s: float, wall_s: float) -> None:
        """See which rules fail or have nothing to judge, and plan what is to be told of it."""
        self._begun_s = min(self._begun_s, now_s)
        beside = [] if self._beside is None else [self._beside.at_work()]
        found = _failing([*(stream.pipeline.at_work() for stream in intake.streams()), *beside])
        self._broken = {pair: (self._broken.get(pair, (now_s, why))[0], why) for pair, why in found}
        if self._plan is None:
            return
        broken = [
            _of_itself(*pair, Severity.WARNING, wall_s - (now_s - since_s), wall_s, why)
            for pair, (since_s, why) in self._broken.items()
            if now_s - since_s >= BROKEN_S
        ]
        lacking = [*intake.without_evidence(), *([] if self._beside is None else self._beside.without_evidence())]
        idle = [_of_itself(*pair, Severity.INFO, wall_s - 86400.0, wall_s) for pair in lacking]
        is_all = now_s - self._begun_s >= SURE_S
        self._plan.report(NoticeKind.BROKEN, broken, wall_s, is_all=is_all)
        self._plan.report(NoticeKind.NO_DATA, idle, wall_s, is_all=is_all)

    # --- what others ask

    def channels(self) -> list[ChannelHealth]:
        """Return how the channels fare."""
        plan = self._plan
        return [] if plan is None else [ChannelHealth(n, line, plan.waiting(n)) for n, line in plan.lines.items()]

    def is_well(self, wall_s: float) -> bool:
        """Tell whether rules are judged and messages get out, as far as there are any."""
        if self._plan is None and (self._setup is None or self._setup.config.channels):
            return False
        lines = {} if self._plan is None else self._plan.lines
        return not self._broken and not any(line.is_stuck(wall_s) for line in lines.values())

    def silence(self, silences: Iterable[Silence]) -> None:
        """Let these silences, which are stored, be in force."""
        if self._plan is not None:
            self._plan.silences = list(silences)


def policy_of(channel: ChannelConfig) -> Policy:
    """Return what a channel takes, as its config says."""
    quiet = None
    if channel.quiet is not None:
        in_zone: tzinfo = HOST_ZONE if channel.quiet.timezone is None else zone(channel.quiet.timezone)
        quiet = Quiet(channel.quiet.from_min, channel.quiet.to_min, in_zone, channel.quiet.below)
    return Policy(channel.name, frozenset(channel.severities), channel.repeat_every, channel.burst, quiet)


def _failing(benches: Iterable[_AtWork]) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the rules that fail, each with its scope, and why."""
    for bench in benches:
        for rule, scope, last, _ in bench:
            if isinstance(last, Broken):
                yield (rule.id, scope), last.why


def _of_itself(rule: str, scope: str, severity: Severity, since_s: float, wall_s: float, why: str = "") -> AlertEvent:
    """Return what stands for something that is no alert of a rule."""
    key = AlertKey(rule, scope, None)
    no_numbers: Mapping[str, float] = {}
    return AlertEvent(key, AlertState.FIRING, "", severity, "", None, wall_s, since_s, None, no_numbers, why)
