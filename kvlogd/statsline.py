"""The body of a stats record: `key: value` pairs, any optional field in any position, understood to the end.

Pure. A line that has been understood once gives a pattern for its likes, so that they cost one match.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from kvlogd import grammar
from kvlogd.model import Stats

_NAMES = Stats._fields


Make = Callable[[float, tuple[bytes, ...]], Stats]


class Shape(NamedTuple):
    """A stats line whose words have been understood once: later ones differ in their numbers only."""

    pattern: re.Pattern[bytes]
    """Matches a whole such line, to its newline or the end; group 1 is the stamp, the others are numbers."""
    make: Make
    """Builds the record of its time and the groups."""


class _Known(dict[bytes, float]):
    """A bounded memory of converted numbers: most of a log's are few, and looking up is faster than converting."""

    def __init__(self, convert: Callable[[bytes], float]) -> None:
        super().__init__()
        self._convert = convert

    def __missing__(self, text: bytes) -> float:
        if len(self) > 20_000:
            self.clear()
        value = self[text] = self._convert(text)
        return value


SHARES = _Known(lambda text: float(text + b"e-2"))
"""Per cent as printed -> share, without the error of a division."""
WHOLE = _Known(int)


class Pairs(NamedTuple):
    """A stats body, read: its numbers by name, whose they are, and how many keys were not known."""

    numbers: dict[str, float | int]
    spans: tuple[tuple[str, int, int], ...]
    """Where in the body each number stands: (name, start, end); name `engine_index`, `engines` included."""
    engine_index: int | None
    engines: int | None
    unknown: int


def read_pairs(body: bytes) -> Pairs | str:
    """Return the `key: value` pairs of a stats body, or which count it belongs to: `unparsed`, `impossible`."""
    numbers: dict[str, float | int] = {}
    spans: list[tuple[str, int, int]] = []
    unknown, index, engines, at = 0, None, None, 0
    engine = grammar.ENGINE.match(body)
    if engine is not None:
        name = "engine_index" if engine["index"] else "engines"
        group = "index" if engine["index"] else "count"
        spans.append((name, *engine.span(group)))
        index = int(engine["index"]) if engine["index"] else None
        engines = int(engine["count"]) if engine["count"] else None
        at = engine.end()
    while True:
        found = _pair(body, at)
        if found is None:
            return "unparsed"
        values, at = found
        for name, text, start in values:
            if not name:
                unknown += 1
            elif name in numbers:
                return "unparsed"
            else:
                number = _number(name, text)
                if number is None:
                    return "impossible"
                numbers[name] = number
                spans.append((name, start, start + len(text)))
        if body[at : at + 2] != b", ":
            break
        at += 2
    if body[at:] not in (b"", b".") or grammar.REQUIRED - numbers.keys():
        return "unparsed"
    if b"tput: " in body[:20]:
        engines = 0  # the Rust front end sums up all its engines and does not say how many
    return Pairs(numbers, tuple(spans), index, engines, unknown)


def _pair(body: bytes, at: int) -> tuple[list[tuple[str, bytes, int]], int] | None:
    """Return the (name, number, start) of the pair at `at` and where it ends; name `` where the key is not known."""
    fetch = grammar.KV_FETCH.match(body, at)
    if fetch is not None:
        named = enumerate(grammar.KV_FETCH_NAMES, 1)
        return [(name, fetch[i], fetch.start(i)) for i, name in named], fetch.end()
    match = grammar.PAIR.match(body, at)
    if match is None:
        return None
    field = grammar.FIELDS.get(match["key"])
    if field is None:
        return [("", match["value"], match.start("value"))], match.end()
    if (match["unit"] or b"") != field.unit and not (field.whole and (match["unit"] or b" reqs") == b" reqs"):
        return None
    name = field.name
    if match["device"] == b"CPU" and b"GPU KV cache us" in body[:at]:
        name = "cpu_swap_usage"  # V0 prints both; from 0.30 on a lone CPU is the device itself
    return [(name, match["value"], match.start("value"))], match.end()


_SHARES = {field.name for field in grammar.FIELDS.values() if field.share} | {"cpu_swap_usage"}
_WHOLE = {field.name for field in grammar.FIELDS.values() if field.whole} | {
    *grammar.KV_FETCH_NAMES,
    "engine_index",
    "engines",
}


def _number(name: str, text: bytes) -> float | int | None:
    """Return the number in the unit of `Stats`, or None where it is none that vLLM can mean."""
    if not text[:1].isdigit() or (name in _WHOLE and not text.isdigit()):
        return None
    value = SHARES[text] if name in _SHARES else WHOLE[text] if name in _WHOLE else float(text)
    return value if value <= (1.0 if name in _SHARES else 1e12) else None


_SHARE = rb"(\d{1,2}\.\d{1,6}|100\.0{1,6})"


def build(pairs: Pairs, ts_s: float, pid: int | None) -> Stats:
    """Return the record of some pairs."""
    return Stats(ts_s, pid, pairs.engine_index, pairs.engines, **pairs.numbers)  # type: ignore[arg-type]


def shape_of(text: bytes, body_at: int, pairs: Pairs) -> Shape | None:
    """Return the pattern of this very line with its stamp and numbers left open."""
    stamp = grammar.HEAD.match(text)
    if stamp is None or pairs.engines == 0:
        return None
    parts, at, names = [re.escape(text[: stamp.start("stamp")]), rb"(\d\d-\d\d \d\d:\d\d:\d\d)"], stamp.end("stamp"), []
    for name, start, end in pairs.spans:
        # a number too large for its kind matches no shape: reading it in full refuses and counts it
        number = _SHARE if name in _SHARES else rb"(\d{1,9})" if name in _WHOLE else rb"(\d{1,12}\.\d{1,6})"
        parts += [re.escape(text[at : body_at + start]), number]
        at = body_at + end
        names.append(name)
    parts.append(re.escape(text[at:]) + rb"\r?(?:\n|\Z)")
    return Shape(re.compile(b"".join(parts)), _maker(names, int(stamp["pid"]) if stamp["pid"] else None))


def _maker(names: list[str], pid: int | None) -> Make:
    """Return a function that builds a record of a shape, written out as `namedtuple` does.

    A loop over the fields costs three times as much.
    """
    where = {name: i for i, name in enumerate(names, 1)}
    fields = []
    for name in _NAMES:
        if name == "ts_s":
            fields.append("ts_s")
        elif name == "pid":
            fields.append(repr(pid))
        elif name not in where:
            fields.append("None")
        else:
            group = f"groups[{where[name]}]"
            by = "shares" if name in _SHARES else "whole" if name in _WHOLE else ""
            fields.append(f"{by}[{group}]" if by else f"float({group})")
    # nothing of the line is in this text: only field names of ours and a number
    source = f"lambda ts_s, groups: new(Stats, ({', '.join(fields)},))"
    scope = {"new": tuple.__new__, "Stats": Stats, "shares": SHARES, "whole": WHOLE, "float": float}
    make: Make = eval(source, scope)  # noqa: S307
    return make
