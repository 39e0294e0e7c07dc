"""What `kvlogd doctor` says: one item a link of the chain, with its mend; as text for people and as JSON. Pure.

Promises that no item holds text of a log: numbers, paths, names from the config and our own words.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple


class Mark(StrEnum):
    """How a link of the chain is."""

    OK = "ok"
    WARN = "warn"
    """It works, or may; somebody should look."""
    FAIL = "fail"
    """kvlogd is blind here, or cannot work."""


class Item(NamedTuple):
    """One link of the chain."""

    link: str
    """What was looked at: `config`, `chat: records`, `store`."""
    mark: Mark
    what: str
    mend: str = ""
    """What to do about it; empty where it is in order."""


_COLOURS = {Mark.OK: "\x1b[1;32m", Mark.WARN: "\x1b[1;33m", Mark.FAIL: "\x1b[1;31m"}
_PLAIN = "\x1b[0m"


def text_lines(items: Sequence[Item], verdict: Sequence[str], *, colour: bool) -> Iterator[str]:
    """Yield the lines for people: an item a line, its mend below it, then the verdict on the logs as they are."""
    for item in items:
        begun, ended = (_COLOURS[item.mark], _PLAIN) if colour else ("", "")
        yield f"{begun}{item.mark.upper():<4}{ended}  {_clean(item.link)}: {_clean(item.what)}"
        if item.mend:
            yield f"      {_clean(item.mend)}"
    yield ""
    yield from map(_clean, verdict)


def as_json(items: Sequence[Item], verdict: Sequence[str]) -> dict[str, object]:
    """Return all of it as plain values; `worst` is the mark that counts."""
    return {"worst": worst(items).value, "items": [item._asdict() for item in items], "verdict": list(verdict)}


def worst(items: Sequence[Item]) -> Mark:
    """Return the mark of the item that fares worst."""
    return max((item.mark for item in items), key=list(Mark).index, default=Mark.OK)


def _clean(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
