"""Quantities as people write them: `2h`, `3 points`, `10%`, `5/min`, `64MiB`, `2 runs`; parsed and written back. Pure.

A share is 0..1; a percentage point is a hundredth of it. Rates are per second.
"""

import difflib
import math
import re
from enum import StrEnum


class Unit(StrEnum):
    """What a number counts."""

    SECONDS = "seconds"
    SHARE = "share"
    COUNT = "count"
    TOKENS_PER_SECOND = "tokens/s"
    BYTES = "bytes"


_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_DURATION_PART = re.compile(_NUMBER + r" ?(s|min|m|h|d|w)")
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern} ?)+")
_SHARE = re.compile(_NUMBER + r" ?(%|points?)")
_PER_TIME = re.compile(_NUMBER + r" ?(%|points?)? ?/ ?(s|min|m|h|d)")
_TOKENS = re.compile(_NUMBER + r" ?tokens/s")
_COUNT = re.compile(_NUMBER)
_SIZE = re.compile(_NUMBER + r" ?(B|KiB|MiB|GiB|TiB)")
MINUS = "\N{MINUS SIGN}"


def seconds(text: str) -> float:
    """Return the seconds of a duration: `90s`, `5m`, `2h`, `1h30m`, `30d`. Raises ValueError."""
    if not _DURATION.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is no duration: write it like 90s, 5m, 2h or 1h30m")
    return _finite(sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(text)), text)


def share(text: str) -> float:
    """Return the share, 0..1, of `10%` or `3 points`. Raises ValueError."""
    match = _SHARE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no share: write it like 10% or 3 points")
    if float(match[1]) > 100:
        raise ValueError(f"{text!r} is more than all there is: a share is at most 100%")
    return float(match[1]) / 100


def per_second(text: str) -> float:
    """Return how often a second something happens: `5/min`. Raises ValueError."""
    match = _PER_TIME.fullmatch(text.strip())
    if match is None or match[2]:
        raise ValueError(f"{text!r} is no rate of events: write it like 5/min or 2/h")
    return _finite(float(match[1]) / _SECONDS[match[3]], text)


def share_per_second(text: str) -> float:
    """Return which share, 0..1, a second: `0.5 points/h`. Raises ValueError."""
    match = _PER_TIME.fullmatch(text.strip())
    if match is None or not match[2]:
        raise ValueError(f"{text!r} is no rate of a share: write it like 0.5 points/h")
    return _finite(float(match[1]) / 100 / _SECONDS[match[3]], text)


def size_bytes(text: str) -> float:
    """Return the bytes of a size: `64MiB`, `1.5 GiB`. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no size: write it like 64MiB or 1.5GiB")
    return _finite(float(match[1]) * _BYTES[match[2]], text)


def in_unit(text: str, unit: Unit) -> float:
    """Return the number of a text that must be in a unit. Raises ValueError that shows how to write it."""
    if unit is Unit.SECONDS:
        return seconds(text)
    if unit is Unit.SHARE:
        return share(text)
    if unit is Unit.BYTES:
        return size_bytes(text)
    pattern, example = (_TOKENS, "5 tokens/s") if unit is Unit.TOKENS_PER_SECOND else (_COUNT, "8")
    match = pattern.fullmatch(text.strip())
    if match is None:
        wanted = "a plain number" if unit is Unit.COUNT else f"in {unit}"
        raise ValueError(f"{text!r} is not {wanted}: write it like {example}")
    return _finite(float(match[1]), text)


def _finite(value: float, text: str) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]!r}... is too large")
    return value


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
    # chosen by what it is, not by what it is rounded to: 91 minutes are no 2 h, 8 no 10
    for name, size, step, least_s in (
        ("d", 86400, 1, 172800),
        ("h", 3600, 1, 7200),
        ("min", 60, 5, 600),
        ("min", 60, 1, 31),
    ):
        if duration_s >= least_s:
            return f"{round(duration_s / size / step) * step} {name}"
    return "seconds"


def share_text(value: float) -> str:
    """Return a share as per cent with one decimal, as vLLM prints it."""
    return f"{100 * value:.1f} %"


def size_text(value: float) -> str:
    """Return bytes in the largest unit that they fill: `1.5 GiB`, `64 MiB`."""
    name, size = next((one for one in reversed(_BYTES.items()) if value >= one[1]), ("B", 1))
    return f"{value / size:.1f}".removesuffix(".0") + f" {name}"


def count_text(number: int, noun: str, plural: str = "") -> str:
    """Return so many of something: `1 run`, `2 runs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or noun + 's'}"


def sources_text(sources: int, pages: int) -> str:
    """Return a count of sources, those with a /metrics among them: `3 sources (1 with /metrics)`."""
    return count_text(sources, "source") + (f" ({pages} with /metrics)" if pages else "")


def nearest(name: str, names: list[str]) -> str:
    """Return a hint: the nearest valid name, or all of them."""
    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"


_SERIES_PART = re.compile(r"(_|-?\d+(?:\.\d+)?)(?:([+-]\d+(?:\.\d+)?))? ?x(\d{1,6})")


def series(text: str) -> list[float | None]:
    """Return the values of `8 x720`, `0.30+0.0005 x720` or `_ x30` (nothing), one part after the other.

    Raises ValueError.
    """
    values: list[float | None] = []
    if not re.fullmatch(rf"(?:{_SERIES_PART.pattern}\s*)+", text.strip()):
        raise ValueError(f"{text!r} is no series: write it like 8 x720, 0.30+0.0005 x720 or _ x30")
    for start, step, times in _SERIES_PART.findall(text):
        n = int(times)
        values += [None] * n if start == "_" else [float(start) + i * float(step or 0) for i in range(n)]
    return values
