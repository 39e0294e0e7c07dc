"""A message that is due, with what the store knows of its alerts: from the plan's cases to a letter and its picture.

Promises that a letter comes out whatever the store can tell: what cannot be read now is left out. Reads, never writes.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from kvlogd import bulletin
from kvlogd.errors import StoreError
from kvlogd.letter import Device, Item, compose, foremost
from kvlogd.model import Fault, Letter, NoticeKind, Panel, Run
from kvlogd.outbox import Case
from kvlogd.panel import Seen, read_panel
from kvlogd.plan import Sending
from kvlogd.rules import Rule

FAULTS = (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError)
"""What a message that cannot be written may raise: odd numbers, times after the last year."""
AFTER_S = 600.0
"""How much a picture shows of the time after the end of an alert."""


class Known(Seen, Protocol):
    """What is needed of a store."""

    def runs(self) -> list[Run]:
        """Return all runs."""

    def device_memory(self, label: str, since_s: float, until_s: float) -> tuple[float, float, float] | None:
        """Return the least and the most device memory in use beside an engine, and how much there is, in MiB."""


class Page(NamedTuple):
    """What is sent."""

    letter: Letter
    panel: Panel | None


def written(
    sending: Sending,
    store: Known,
    rules: Mapping[str, Rule],
    host: str,
    at_s: float,
    waiting: int = 0,
    *,
    is_replay: bool = False,
) -> Page:
    """Return the message that a sending stands for; `waiting` are kept for a channel that it may be about."""
    kind, first = sending.notice.kind, sending.cases[0]
    if kind in (NoticeKind.CHANNEL, NoticeKind.BROKEN, NoticeKind.NO_DATA):
        return Page(_bulletin(kind, first, sending.cases, host, at_s, waiting), None)
    items = _items(sending, store)
    top = foremost(items)
    panel = _panel(next(case for case in sending.cases if case.event == top.event), store, at_s)
    items = [item._replace(device=_device(item, store, at_s)) if item is top else item for item in items]
    rule = rules.get(sending.notice.rule)
    letter = compose(kind, items, rule=rule, host=host, at_s=at_s, more=sending.more, is_replay=is_replay, panel=panel)
    return Page(letter, panel)


def _bulletin(kind: NoticeKind, first: Case, cases: Sequence[Case], host: str, at_s: float, waiting: int) -> Letter:
    event = first.event
    scopes = [case.event.key.scope for case in cases]
    if kind is NoticeKind.CHANNEL:
        fault = Fault(event.reason) if event.reason in set(Fault) else Fault.FAILED
        number = event.evidence.get("status")
        status = None if number is None else int(number)
        scope, since_s = event.key.scope, event.since_s
        return bulletin.channel_down(scope, fault, since_s, host=host, at_s=at_s, status=status, waiting=waiting)
    if kind is NoticeKind.BROKEN:
        return bulletin.rule_broken(event.key.rule, scopes, event.reason, event.since_s, host=host, at_s=at_s)
    return bulletin.no_data(event.key.rule, scopes, event.since_s, host=host, at_s=at_s)


def _items(sending: Sending, store: Known) -> list[Item]:
    runs: dict[int, Run] = {}
    with contextlib.suppress(StoreError):
        runs = {run.run_id: run for run in store.runs()}
    return [
        Item(
            case.event,
            case.alert_id,
            case.bouts if len(case.bouts) > 1 else (),
            run=runs.get(case.event.key.run) if case.event.key.run is not None else None,
        )
        for case in sending.shown
    ]


def _panel(case: Case, store: Known, at_s: float) -> Panel | None:
    until_s = at_s if case.is_firing else min(at_s, case.event.at_s + AFTER_S)
    with contextlib.suppress(StoreError):
        return read_panel(store, case.event, max(until_s, case.event.at_s), case.bouts[-1][0])
    return None


def _device(item: Item, store: Known, at_s: float) -> Device | None:
    """Return the memory of the GPUs since it began."""
    with contextlib.suppress(StoreError):
        found = store.device_memory(item.event.key.scope, item.event.since_s, max(at_s, item.event.at_s))
        return None if found is None else Device(*(mib / 1024 for mib in found))
    return None
