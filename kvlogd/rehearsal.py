"""`kvlogd replay --notify`: sends what a daemon would have sent while the log was written, marked as a replay.

The daemon's own plan decides, at the log's times; messages go out one after the other, as fast as they are taken. What
goes on for months is not repeated for months: who reads all of it at once is told that it began, and that it is over or
how it stands at the end. A channel that does not take one is given no other: a replay has no tomorrow. Nothing of it is
stored.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from kvlogd import page
from kvlogd.channel import Secret
from kvlogd.channel import urls as channel_urls
from kvlogd.clock import Clock, Waker
from kvlogd.config import ChannelConfig, load_config
from kvlogd.dispatch import policy_of
from kvlogd.errors import ConfigError
from kvlogd.model import AlertEvent, Fault, Letter, Panel
from kvlogd.model import Outcome as Fate
from kvlogd.outcome import Outcome
from kvlogd.page import Known
from kvlogd.plan import GROUP_S, Ledger, Plan, Sending
from kvlogd.postman import Postman
from kvlogd.rules import Rule
from kvlogd.setup import routes

STEP_S = 60.0
"""How finely the time between two events is gone through, for what is waited for."""
_LOOK_S = 0.5
UNWRITTEN = Fate(Fault.FAILED)


class Sent(NamedTuple):
    """One message, and what became of it."""

    channel: str
    at_s: float
    """When a daemon would have sent it."""
    subject: str
    fate: Fate


class Addresses(NamedTuple):
    """The channels of a config, their URLs, and the tags that it gives to rules."""

    channels: Sequence[ChannelConfig]
    urls: Mapping[str, Secret]
    tags: Mapping[str, tuple[str, ...]] = MappingProxyType({})


def addresses(config: Path | None) -> Addresses:
    """Return where a replay sends to. Raises ConfigError, also where there is no channel."""
    found = load_config(config)
    if not found.channels:
        raise ConfigError("there are no channels", where="channels", mend="add one: see config/kvlogd.yaml")
    tags = {rule: over.tags for rule, over in found.rules.override.items() if over.tags is not None}
    return Addresses(found.channels, channel_urls(found.channels, os.environ), tags)


def rehearsed(
    outcome: Outcome, known: Iterable[AlertEvent], store: Known, rules: Sequence[Rule], to: Addresses
) -> Iterator[Sent]:
    """Send what a replay found, but for the events that an earlier one of the same store had found."""
    before = {(event.key, event.state, event.at_s) for event in known}
    events = [event for event in outcome.alerts if (event.key, event.state, event.at_s) not in before]
    lasts = [source.last_s for source in outcome.sources if source.last_s is not None]
    return rehearse(events, store, rules, to, host=os.uname().nodename, until_s=max(lasts, default=0.0))


def rehearse(
    events: Sequence[AlertEvent],
    store: Known,
    rules: Sequence[Rule],
    to: Addresses,
    *,
    host: str,
    until_s: float,
) -> Iterator[Sent]:
    """Send what follows from some events in order of time, yielding each message when it is out or refused."""
    by_id = {rule.id: rule for rule in rules}
    begin_s = events[0].at_s if events else until_s
    tagged = [rule._replace(tags=to.tags.get(rule.id, rule.tags)) for rule in rules]
    plan = Plan(map(policy_of, to.channels), routes(to.channels, tagged), Ledger(), begin_s)
    with _Counter() as counter:
        for sending, at_s, settle in course(plan, events, until_s):
            channel = sending.notice.channel
            try:
                letter, panel = page.written(sending, store, by_id, host, at_s, is_replay=True)
            except page.FAULTS:
                settle(Fate(None))  # no other try would make it better
                yield Sent(channel, at_s, f"{sending.notice.rule}: cannot be written", UNWRITTEN)
                continue
            fate = counter.sent(channel, to.urls[channel].reveal(), letter, panel)
            settle(fate)
            yield Sent(channel, at_s, letter.subject, fate)


def course(
    plan: Plan, events: Sequence[AlertEvent], until_s: float
) -> Iterator[tuple[Sending, float, Callable[[Fate], None]]]:
    """Yield each message that is due between the first event and `until_s`, and what takes in what became of it.

    What still fires is repeated once, at the end.
    """
    dead: set[str] = set()
    taken = 0
    asked = plan.policies
    plan.policies = {name: policy._replace(repeat_every_s=math.inf) for name, policy in asked.items()}
    for at_s in _moments(events, until_s):
        begun = taken
        if at_s >= _end_s(events, until_s):
            plan.policies = asked
        while taken < len(events) and events[taken].at_s <= at_s:
            taken += 1
        plan.see(events[begun:taken], at_s)
        while due := plan.ready(at_s, lambda name: name not in dead):
            for sending in due:

                def settle(fate: Fate, sending: Sending = sending, at_s: float = at_s) -> None:
                    plan.settle(sending, fate, at_s)
                    if fate.fault is not None:
                        dead.add(sending.notice.channel)

                yield sending, at_s, settle


def _moments(events: Sequence[AlertEvent], until_s: float) -> Iterator[float]:
    """Yield the times at which something may be due, each later than the one before."""
    if not events:
        return
    end_s = _end_s(events, until_s)
    marks = sorted({event.at_s + wait_s for event in events for wait_s in (0.0, GROUP_S)})
    now_s = events[0].at_s
    for mark_s in [*marks, end_s, end_s + GROUP_S]:
        while now_s + STEP_S < mark_s:
            now_s += STEP_S
            yield now_s
        now_s = max(now_s, mark_s)
        yield now_s


def _end_s(events: Sequence[AlertEvent], until_s: float) -> float:
    return max(until_s, events[-1].at_s) + 2 * GROUP_S


class _Counter:
    """Hands in one message and waits for what becomes of it."""

    def __init__(self) -> None:
        self._clock, self._waker = Clock(), Waker()
        self._postman = Postman(self._waker.wake)

    def __enter__(self) -> "_Counter":
        return self

    def __exit__(self, *_: object) -> None:
        self._postman.close()
        self._waker.close()

    def sent(self, channel: str, url: str, letter: Letter, panel: Panel | None) -> Fate:
        while not self._postman.is_free(channel):  # its last child is on its way out
            self._postman.poll(self._clock.monotonic_s())
            self._waker.wait(_LOOK_S)
        self._postman.send(0, channel, url, letter, panel, self._clock.monotonic_s())
        while True:
            for _, fate in self._postman.poll(self._clock.monotonic_s()):
                return fate
            self._waker.wait(_LOOK_S)
