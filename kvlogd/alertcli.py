"""`kvlogd alerts` and `kvlogd silence`: through the daemon's socket, or on the store itself where no daemon runs."""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvlogd.clock import Clock
from kvlogd.errors import ConfigError

if TYPE_CHECKING:
    from kvlogd.outbox import Silence
    from kvlogd.plan import Policy

_FINE, _FOUND = 0, 1


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the two to the parser."""
    listing = commands.add_parser(
        "alerts",
        help="the alerts that fire, and who was told of them",
        description="Shows each alert that fires: since when, what was found, which channels took a message about it, "
        "which did not or not yet, what holds the message until when, and whether it is silenced.",
        epilog="exit status: 0 nothing fires, 1 something does, 2 wrong usage, or nothing could be asked",
    )
    listing.add_argument("--all", action="store_true", help="those that are over too, the latest last")
    listing.set_defaults(run=_alerts)
    silence = commands.add_parser(
        "silence",
        help="tell nobody of some alerts for a time",
        description="Tells nobody of the alerts of a rule, or of one engine's, for a time: kvlogd silence "
        "'kv-leak@chat/*' 2h. What still fires at its end is told then. * stands for anything.",
    )
    silence.add_argument("target", nargs="?", metavar="RULE[@ENGINE]")
    silence.add_argument("duration", nargs="?", metavar="DURATION", help="how long, like 2h or 3d")
    silence.add_argument("--comment", default="", metavar="TEXT", help="why, for those who look later")
    silence.add_argument("--list", action="store_true", help="show the silences that are in force")
    silence.add_argument("--end", type=int, metavar="ID", help="end one now")
    silence.set_defaults(run=_silence)
    for command in (listing, silence):
        command.add_argument("--json", action="store_true", help="one JSON object a line")
        command.add_argument("--db", type=Path, metavar="FILE", help="the store, where it is not the config's")
        command.add_argument("--config", type=Path, metavar="FILE")


def _alerts(arguments: argparse.Namespace) -> int:
    from kvlogd import ask, board
    from kvlogd.live import places_of, unheld
    from kvlogd.store import Store

    path, places = places_of(arguments)
    at_s = Clock().wall_s()
    try:
        found = board.from_plain(ask.alerts(places, path, also_over=arguments.all))
    except ask.AbsentError as absent:
        with unheld(absent), Store.open(path, read_only=True) as store:
            found = board.entries(store, at_s, every=arguments.all, policies=_policies(arguments))
    if arguments.json:
        for line in board.to_json(found):
            print(json.dumps(line, ensure_ascii=False))
    else:
        print(board.text(found, at_s, colour=_colour()))
    return _FOUND if any(entry.is_firing for entry in found) else _FINE


def _policies(arguments: argparse.Namespace) -> "list[Policy]":
    """Return what the channels of the config take; of a store alone, or a wrong config, it is not known."""
    from kvlogd.config import load_config
    from kvlogd.dispatch import policy_of

    if arguments.db is not None and arguments.config is None:
        return []
    with contextlib.suppress(ConfigError):  # `places_of` has told it
        return [policy_of(channel) for channel in load_config(arguments.config).channels]
    return []


def _silence(arguments: argparse.Namespace) -> int:
    from kvlogd import silencing

    request = _request(arguments)
    at_s = Clock().wall_s()
    found = _asked(arguments, request, at_s)
    if arguments.json:
        for one in silencing.to_json(found):
            print(json.dumps(one, ensure_ascii=False))
        return _FINE
    verb = "ended" if "end" in request else "silenced" if "rule" in request else ""
    for line in _lines(found, verb):
        print(line)
    return _FINE


def _request(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what is asked. Raises ConfigError."""
    from kvlogd.quantity import seconds

    wanted = [arguments.list, arguments.end is not None, arguments.target is not None]
    if sum(wanted) != 1 or (arguments.target is None) != (arguments.duration is None):
        mend = "kvlogd silence kv-leak 2h, kvlogd silence --list, or kvlogd silence --end ID"
        raise ConfigError("what is to be done?", where="silence", mend=mend)
    if arguments.list:
        return {}
    if arguments.end is not None:
        return {"end": arguments.end}
    rule, _, scope = arguments.target.partition("@")
    try:
        for_s = seconds(arguments.duration)
    except ValueError as error:
        raise ConfigError(str(error), where="silence") from error
    _refuse_unknown(rule, arguments)
    return {"rule": rule, "scope": scope or "*", "for_s": for_s, "comment": arguments.comment}


def _refuse_unknown(rule: str, arguments: argparse.Namespace) -> None:
    """Raise ConfigError for a rule that is not there; of a store alone it is not known which rules write to it."""
    from kvlogd.quantity import nearest

    if "*" in rule or (arguments.db is not None and arguments.config is None):
        return
    names, is_all = _known_rules(arguments)
    if rule in names:
        return
    if is_all:
        raise ConfigError("no rule of that name", where=rule, mend=nearest(rule, names))
    what = "no shipped rule has this name, and your own cannot be read now (`kvlogd check` tells why)"
    print(f"kvlogd: {rule}: {what}: {nearest(rule, names)}", file=sys.stderr)


def _known_rules(arguments: argparse.Namespace) -> tuple[list[str], bool]:
    """Return the names of the rules, and whether those are all: else only the shipped ones could be read."""
    from kvlogd.config import load_config
    from kvlogd.rules import load_rules, shipped_folder

    try:
        found = load_rules([shipped_folder(), *load_config(arguments.config).rules.folders])
        return [rule.id for rule in found], True
    except ConfigError:
        return [rule.id for rule in load_rules([shipped_folder()])], False


def _asked(arguments: argparse.Namespace, request: dict[str, Any], at_s: float) -> "list[Silence]":
    from kvlogd import ask, disk, silencing
    from kvlogd.live import places_of, unheld
    from kvlogd.store import Store

    path, places = places_of(arguments)
    try:
        return silencing.from_json(ask.silence(places, path, request))
    except ask.AbsentError as absent:
        with unheld(absent):
            disk.refuse_absent(path)
            with Store.open(path) as store:
                return silencing.obey(store, request, at_s)


def _lines(found: "Sequence[Silence]", verb: str) -> list[str]:
    from kvlogd.notice import clock_text
    from kvlogd.status import aligned

    if verb:
        return [f"{verb}: {_named(one)}, until {clock_text(one.until_s)}" for one in found]
    if not found:
        return ["nothing is silenced"]
    rows = [[str(o.silence_id), o.rule, o.scope, clock_text(o.until_s)[:16] + " UTC", o.comment] for o in found]
    return aligned(["number", "rule", "about", "until", "comment"], rows, right={0})


def _named(silence: "Silence") -> str:
    from kvlogd.notice import label_text

    return f"{label_text(silence.rule)} on {label_text(silence.scope)}, number {silence.silence_id}"


def _colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
