"""The lines that are no stats record and still count: starts, sizes, stops, crashes, what comes along with records.

Pure. What leaves here are numbers under the names of `grammar`, a version and a model name, cleaned.
"""

import re
from collections.abc import Iterable

from kvlogd import grammar
from kvlogd.grammar import Line
from kvlogd.model import Event, EventKind

_NUMBER = re.compile(rb"-?\d{1,15}(?:\.\d{1,20})?")
_LABEL = re.compile(r"[^A-Za-z0-9._+-]")


def clean_label(text: bytes | None) -> str | None:
    """Return a name fit for a store and a terminal: its last path component, 64 harmless characters; None for none."""
    last = (text or b"").decode("utf-8", "replace").rstrip("/").rsplit("/", 1)[-1]
    return _LABEL.sub("_", last)[:64] or None


def engine_index(body: bytes) -> tuple[int | None, bytes]:
    """Return the engine that a body names and the body without it."""
    engine = grammar.ENGINE.match(body)
    if engine is None:
        return None, body
    return int(engine["index"]) if engine["index"] else None, body[engine.end() :]


def event_of(body: bytes, ts_s: float | None, pid: int | None) -> Event | None:
    """Return what a message of vLLM's logger says, or None where it is chatter."""
    index, body = engine_index(body)
    found = first_of(grammar.LINES, body, ts_s, pid, index)
    if found is not None:
        return found
    art = grammar.ART_VERSION.match(body[:400])
    if art is not None:
        return Event(ts_s, EventKind.BANNER, pid, index, {}, clean_label(art["version"]))
    art = grammar.ART_MODEL.match(body[:400])
    if art is not None:
        return Event(ts_s, EventKind.BANNER, pid, index, {}, None, clean_label(art["model"]))
    return None


def first_of(
    lines: Iterable[Line], body: bytes, ts_s: float | None, pid: int | None, index: int | None = None
) -> Event | None:
    """Return the event of the first of some lines that a body begins like."""
    for line in lines:
        match = line.pattern.match(body)
        if match is not None:
            named = match.groupdict()
            numbers = _numbers(line, match)
            model = grammar.CONFIG_MODEL.search(named.get("config") or b"")
            return Event(
                ts_s,
                line.kind,
                pid,
                index,
                numbers,
                clean_label(named.get("version")),
                clean_label(model[1]) if model else None,
            )
    return None


def _numbers(line: Line, match: re.Match[bytes]) -> dict[str, float]:
    """Return the numbers of an event line under their allow-listed names."""
    named = set(match.re.groupindex.values())
    plain = [match[i] for i in range(1, match.re.groups + 1) if i not in named]
    groups = match.groupdict()
    found = [(name, _number(text)) for name, text in zip(line.names, plain, strict=False)]
    if groups.get("rate"):
        found.append(("acceptance_pct", _number(groups["rate"])))
    found += [(f"per_pos_{i}", _number(text)) for i, text in enumerate((groups.get("list") or b"").split(b", "))]
    numbers = {name: number for name, number in found if number is not None}
    if groups.get("config"):
        numbers |= _config_numbers(groups["config"])
        if line.kind is EventKind.ARGS and groups["config"].endswith(b"}"):
            # all arguments are there: a connector that is not named is not there
            numbers.setdefault("kv_connector", 0.0)
    if groups.get("pairs"):
        numbers |= _transfer_numbers(groups["pairs"])
    return numbers


def _number(text: bytes | None) -> float | None:
    """Return a number of a line, thousands commas left out; None where it only looks like one."""
    digits = (text or b"").replace(b",", b"")
    return float(digits) if _NUMBER.fullmatch(digits) else None


def _config_numbers(config: bytes) -> dict[str, float]:
    """Return the allow-listed numbers of a start-up line; its text may hold keys and paths and is dropped."""
    numbers: dict[str, float] = {}
    for key, value in grammar.CONFIG_PAIR.findall(config):
        numbers.setdefault(grammar.CONFIG_NUMBERS[key], float(value))
    if grammar.KV_CONNECTOR.search(config):
        numbers["kv_connector"] = 1.0
    if grammar.STATS_OFF.search(config):
        numbers["disable_log_stats"] = 1.0
    return numbers


def _transfer_numbers(pairs: bytes) -> dict[str, float]:
    numbers = {}
    for pair in pairs.split(b", "):
        key, _, text = pair.partition(b"=")
        value = _number(text) if key in grammar.TRANSFER_KEYS else None
        if value is not None:
            numbers[key.decode()] = value
    return numbers
