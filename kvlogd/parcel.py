"""What goes through the pipes between the daemon and a sending child: one line of JSON a message, one an outcome.

Pure. The URL is a secret: it goes this way only, never by argument or environment, and never comes back.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from kvlogd.model import Fault, Letter, Outcome, Panel, Severity


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


def pack(parcel: Parcel) -> bytes:
    """Return a message as a line."""
    return _line({"url": parcel.url, "letter": parcel.letter, "panel": parcel.panel})


def pack_urls(urls: Mapping[str, str]) -> bytes:
    """Return the question whether these URLs, by the names of their channels, can be used at all."""
    return _line({"urls": dict(urls)})


def unpack(line: bytes) -> Parcel | dict[str, str]:
    """Return what a line of `pack` or `pack_urls` says. Raises ValueError."""
    given = _read(line)
    try:
        if "urls" in given:
            return {str(name): str(url) for name, url in given["urls"].items()}
        panel = given["panel"]
        return Parcel(str(given["url"]), _letter(given["letter"]), None if panel is None else _panel(panel))
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError("no parcel") from error


def _letter(given: list[Any]) -> Letter:
    subject, text, html, severity = given
    return Letter(str(subject), str(text), str(html), None if severity is None else Severity(severity))


def _panel(given: list[Any]) -> Panel:
    # JSON makes lists of tuples
    return Panel(*(_tuples(value) for value in given))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value


def pack_outcome(outcome: Outcome) -> bytes:
    """Return an outcome as a line."""
    return _line({"outcome": outcome})


def unpack_outcome(line: bytes) -> Outcome:
    """Return the outcome that a line tells; one that says nothing understandable means that sending failed."""
    try:
        fault, status, retry_after_s = _read(line)["outcome"]
        return Outcome(None if fault is None else Fault(fault), status, retry_after_s)
    except (LookupError, TypeError, ValueError):
        return Outcome(Fault.FAILED)


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
