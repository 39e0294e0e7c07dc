"""`kvlogd notify test`: a test message through each channel of the config, with what became of it.

Promises that one channel keeps no other waiting, and that it ends. Needs no daemon and touches no store.
"""

import argparse
import json
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kvlogd.config import ChannelConfig
    from kvlogd.model import Outcome

_FINE, _FAILED = 0, 1
_LOOK_S = 0.5


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `notify` and its verbs."""
    notify = commands.add_parser("notify", help="try the channels")
    verbs = notify.add_subparsers(title="commands", metavar="COMMAND", required=True)
    test = verbs.add_parser(
        "test",
        help="send a test message through each channel, and tell what became of it",
        description="Sends a message that says that nothing is wrong through each channel of the config, or one.",
        epilog="exit status: 0 every message was taken, 1 one was not, 2 wrong usage or config",
    )
    test.add_argument("channel", nargs="?", metavar="CHANNEL")
    test.add_argument("--config", type=Path, metavar="FILE")
    test.add_argument("--json", action="store_true", help="one JSON object a channel")
    test.set_defaults(run=_test)


class Trial(NamedTuple):
    """What became of one channel's test."""

    channel: str
    outcome: "Outcome"
    took_s: float
    mend: str


def _test(arguments: argparse.Namespace) -> int:
    from kvlogd.advice import told

    channels = _chosen(arguments.config, arguments.channel)
    width = max(len(channel.name) for channel in channels)
    is_fine = True
    for trial in trials(channels):
        is_fine = is_fine and trial.outcome.fault is None
        if arguments.json:
            line = json.dumps(_plain(trial))
        else:
            mend = f": {trial.mend}" if trial.mend else ""
            line = f"{trial.channel:<{width}}  {told(trial.outcome)}, {trial.took_s:.1f} s{mend}"
        print(line, flush=True)
    return _FINE if is_fine else _FAILED


def _plain(trial: Trial) -> dict[str, object]:
    return {"channel": trial.channel, **trial.outcome._asdict(), "took_s": round(trial.took_s, 3), "mend": trial.mend}


def _chosen(config: Path | None, name: str | None) -> "Sequence[ChannelConfig]":
    from kvlogd.config import load_config
    from kvlogd.errors import ConfigError
    from kvlogd.quantity import nearest

    channels = load_config(config).channels
    if not channels:
        raise ConfigError("there are no channels", where="channels", mend="add one: see config/kvlogd.yaml")
    if name is None:
        return channels
    chosen = [channel for channel in channels if channel.name == name]
    if not chosen:
        raise ConfigError("no channel of that name", where=name, mend=nearest(name, [c.name for c in channels]))
    return chosen


def trials(channels: "Sequence[ChannelConfig]") -> Iterator[Trial]:
    """Yield what became of each channel's test message, the quickest first."""
    from kvlogd import bulletin
    from kvlogd.advice import advice
    from kvlogd.channel import url
    from kvlogd.clock import Clock, Waker
    from kvlogd.errors import ConfigError
    from kvlogd.model import Fault, Outcome
    from kvlogd.postman import Postman

    clock, waker = Clock(), Waker()
    postman = Postman(waker.wake)
    began_s = clock.monotonic_s()
    waiting: dict[int, str] = {}
    try:
        for ticket, channel in enumerate(channels):
            try:
                secret = url(channel, os.environ)
            except ConfigError as fault:
                place = str(fault).removeprefix(f"channel {channel.name}: ")
                yield Trial(channel.name, Outcome(Fault.UNUSABLE), 0.0, place)
                continue
            letter = bulletin.trial(channel.name, host=socket.gethostname(), at_s=clock.wall_s())
            postman.send(ticket, channel.name, secret.reveal(), letter, None, began_s)
            waiting[ticket] = channel.name
        while waiting:
            waker.wait(_LOOK_S)
            now_s = clock.monotonic_s()
            for ticket, outcome in postman.poll(now_s):
                yield Trial(waiting.pop(ticket), outcome, now_s - began_s, advice(outcome))
    finally:
        postman.close()
        waker.close()
