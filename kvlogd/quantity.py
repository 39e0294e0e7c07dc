"""Quantities as people write them: `2h`, `3 points`, `10%`, `5/min`; parsed to floats and written back. Pure.

A share is 0..1; a percentage point is a hundredth of it. Rates are per second.
"""

import difflib
import re
from enum import StrEnum


class Unit(StrEnum):
    """What a number counts."""

    SECONDS = "seconds"
    SHARE = "share"
    COUNT = "count"
    TOKENS_PER_SECOND = "tokens/s"


_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:s|min|m|h|d|w) ?)+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(s|min|m|h|d|w)")
_NUMBER = r"(\d+(?:\.\d+)?)"
_SHARE = re.compile(_NUMBER + r" ?(%|points?)")
_PER_TIME = re.compile(_NUMBER + r" ?(%|points?)? ?/ ?(s|min|m|h|d)")
_TOKENS = re.compile(_NUMBER + r" ?tokens/s")
_COUNT = re.compile(_NUMBER)


def seconds(text: str) -> float:
    """Return the seconds of a duration: `90s`, `5m`, `2h`, `1h30m`, `30d`. Raises ValueError."""
    if not _DURATION.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is no duration: write it like 90s, 5m, 2h or 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(text))


def share(text: str) -> float:
    """Return the share of `10%` or `3 points`. Raises ValueError."""
    match = _SHARE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no share: write it like 10% or 3 points")
    return float(match[1]) / 100


def per_second(text: str) -> float:
    """Return how often a second: `5/min`, or which share a second: `0.5 points/h`. Raises ValueError."""
    match = _PER_TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no rate: write it like 5/min or 0.5 points/h")
    return float(match[1]) / (100 if match[2] else 1) / _SECONDS[match[3]]


def in_unit(text: str, unit: Unit) -> float:
    """Return the number of a text that must be in a unit. Raises ValueError that shows how to write it."""
    if unit is Unit.SECONDS:
        return seconds(text)
    if unit is Unit.SHARE:
        return share(text)
    pattern, example = (_TOKENS, "5 tokens/s") if unit is Unit.TOKENS_PER_SECOND else (_COUNT, "8")
    match = pattern.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not in {unit}: write it like {example}")
    return float(match[1])


def duration_text(duration_s: float) -> str:
    """Return a duration for people, in its two largest units: `1 h 20 min`, `45 s`, `3 d 4 h`."""
    left = round(abs(duration_s))
    sign = "-" if duration_s < 0 and left else ""
    if left < 60:
        return f"{sign}{left} s"
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    parts: list[tuple[int, str]] = []
    for name, size in units:
        if left >= size or parts:
            parts.append((left // size, name))
            left %= size
    return sign + " ".join(f"{n} {name}" for n, name in parts[:2] if n)


def about_text(duration_s: float) -> str:
    """Return an estimated duration for people, no finer than it can be known: `7 h`, `50 min`, `3 d`."""
    for name, size, step, least in (("d", 86400, 1, 2), ("h", 3600, 1, 2), ("min", 60, 5, 10), ("min", 60, 1, 1)):
        n = round(duration_s / size / step) * step
        if n >= least:
            return f"{n} {name}"
    return "seconds"


def share_text(value: float) -> str:
    """Return a share as per cent with one decimal, as vLLM prints it."""
    return f"{100 * value:.1f} %"


def nearest(name: str, names: list[str]) -> str:
    """Return a hint: the nearest valid name, or all of them."""
    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
