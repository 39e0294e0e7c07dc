"""Silences in a store: begun, ended early, listed. What is asked comes from a person, through the socket or not.

Promises that a silence has an end, and that what is asked is checked before anything is stored.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from kvlogd.errors import ConfigError, KvlogdError
from kvlogd.outbox import Silence
from kvlogd.rows import Batch

LONGEST_S = 366 * 86400.0
MOST_CHARS = 300


class Kept(Protocol):
    """What is needed of a store."""

    def silences(self) -> list[Silence]:
        """Return all silences."""

    def commit(self, batch: Batch) -> None:
        """Write a batch."""


def obey(store: Kept, request: Mapping[str, Any], at_s: float) -> list[Silence]:
    """Do what is asked and return the silences that it concerns, or those in force where nothing is to be done.

    `rule`, `scope`, `for_s` and `comment` begin one; `end` names one that is to end. Raises KvlogdError, StoreError.
    """
    if "end" in request:
        return [_ended(store, request["end"], at_s)]
    if "rule" in request:
        return [_begun(store, request, at_s)]
    return in_force(store.silences(), at_s)


def in_force(silences: Sequence[Silence], at_s: float) -> list[Silence]:
    """Return the silences that have not ended."""
    return [silence for silence in silences if at_s < silence.until_s]


def _begun(store: Kept, request: Mapping[str, Any], at_s: float) -> Silence:
    rule, scope, comment = (_text(request, name) for name in ("rule", "scope", "comment"))
    for_s = request.get("for_s")
    if isinstance(for_s, bool) or not isinstance(for_s, int | float) or not 0 < for_s <= LONGEST_S:
        raise ConfigError("must end within a year", where="silence", mend="give a duration like 2h or 3d")
    if not rule or not scope:
        raise ConfigError("names no rule", where="silence", mend="write it like kv-leak, kv-leak@chat/0 or '*@chat/*'")
    number = max((silence.silence_id for silence in store.silences()), default=0) + 1
    silence = Silence(number, rule, scope, at_s, at_s + for_s, comment)
    store.commit(Batch(silences=[silence]))
    return silence


def _text(request: Mapping[str, Any], name: str) -> str:
    text = request.get(name, "")
    if not isinstance(text, str) or len(text) > MOST_CHARS:
        raise ConfigError(f"the {name} is longer than {MOST_CHARS} characters", where="silence", mend="shorten it")
    return "".join(char if char.isprintable() else "?" for char in text)


def _ended(store: Kept, number: object, at_s: float) -> Silence:
    found = [silence for silence in in_force(store.silences(), at_s) if silence.silence_id == number]
    if not found:
        raise KvlogdError("no such silence is in force", where=f"silence {number}", mend="kvlogd silence --list")
    ended = found[0]._replace(until_s=at_s)
    store.commit(Batch(silences=[ended]))
    return ended


def to_json(silences: Sequence[Silence]) -> Iterator[dict[str, Any]]:
    """Yield silences as plain values."""
    yield from (silence._asdict() for silence in silences)


def from_json(items: Sequence[Mapping[str, Any]]) -> list[Silence]:
    """Return the silences of plain values."""
    return [Silence(*(item[name] for name in Silence._fields)) for item in items]
