"""What goes through the pipes between the daemon and a sending child: one line of JSON a message, one an outcome.

Pure. The URL is a secret: it goes this way only, never by argument or environment, and never comes back.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from kvlogd.model import Fault, Letter, Occupancy, Outcome, Panel, Severity


class Flaw(StrEnum):
    """What is wrong with a channel's URL, as far as can be told without sending."""

    SCHEMA = "schema"
    """Nothing is known that sends to URLs which begin like this."""
    URL = "url"
    """It begins rightly, and cannot be understood."""


class Parcel(NamedTuple):
    """One message on its way."""

    url: str
    letter: Letter
    panel: Panel | None = None
    reached: tuple[int, ...] = ()
    """Which of the URL's recipients, counted from 0, have it from an earlier attempt."""


class Warm(NamedTuple):
    """A message is on its way soon: whatever takes long may be done now."""

    url: str


class Word(NamedTuple):
    """What the child says of a message."""

    outcome: Outcome
    reached: tuple[int, ...] = ()
    """Which of the recipients have it now, where there are several."""


def pack(parcel: Parcel) -> bytes:
    """Return a message as a line."""
    return _line(parcel._asdict())


def pack_urls(urls: Mapping[str, str]) -> bytes:
    """Return the question whether these URLs, by the names of their channels, can be used at all."""
    return _line({"urls": dict(urls)})


def pack_warm(warm: Warm) -> bytes:
    """Return the word that a message to this URL comes soon."""
    return _line({"warm": warm.url})


def unpack(line: bytes) -> Parcel | Warm | dict[str, str]:
    """Return what a line of `pack`, `pack_warm` or `pack_urls` says. Raises ValueError."""
    given = _read(line)
    try:
        if "warm" in given:
            return Warm(str(given["warm"]))
        if "urls" in given:
            return {str(name): str(url) for name, url in given["urls"].items()}
        panel = None if given["panel"] is None else _panel(given["panel"])
        return Parcel(str(given["url"]), _letter(given["letter"]), panel, tuple(given["reached"]))
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError("no parcel") from error


def _letter(given: list[Any]) -> Letter:
    subject, text, html, severity = given
    return Letter(str(subject), str(text), str(html), None if severity is None else Severity(severity))


def _panel(given: list[Any]) -> Panel:
    # JSON makes lists of tuples
    panel = Panel(*(_tuples(value) for value in given))
    return panel if panel.memory is None else panel._replace(memory=Occupancy(*panel.memory))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value


def pack_word(word: Word) -> bytes:
    """Return what became of a message as a line."""
    return _line(word._asdict())


def unpack_word(line: bytes) -> Word:
    """Return what a line says; one that cannot be understood means that sending failed."""
    try:
        given = _read(line)
        fault, status, retry_after_s = given["outcome"]
        outcome = Outcome(None if fault is None else Fault(fault), status, retry_after_s)
        return Word(outcome, tuple(given["reached"]))
    except (LookupError, TypeError, ValueError):
        return Word(Outcome(Fault.FAILED))


def pack_flaws(flaws: Mapping[str, Flaw]) -> bytes:
    """Return the answer to `pack_urls`: the channels whose URLs are of no use."""
    return _line({"flaws": dict(flaws)})


def unpack_flaws(line: bytes) -> dict[str, Flaw] | None:
    """Return the answer that a line tells; None where it tells none."""
    try:
        return {str(name): Flaw(flaw) for name, flaw in _read(line)["flaws"].items()}
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def _line(content: Mapping[str, object]) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _read(line: bytes) -> dict[str, Any]:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError("no JSON") from error
    if not isinstance(given, dict):
        raise ValueError("no object")
    return given
