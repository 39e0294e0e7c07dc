"""The text of vLLM's /metrics to the few series that kvlogd reads, by engine: old and new names by one table. Pure.

A line counts only where its name stands in the table; of its labels only those named here are kept: `model_name` and
the names of adapters never leave this module. Understands Prometheus' text format and OpenMetrics'.
Promises linear time and bounded memory whatever the page holds; what looks like ours and cannot be read is counted.
"""

import math
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from kvlogd.model import Latency

MOST_LINE_BYTES = 16 * 1024
MOST_LINES = 50_000
"""Of ours: some hundred an engine are usual."""
MOST_ENGINES = 256
MOST_BUCKETS = 200

_VALUES: Mapping[str, tuple[str, ...]] = {
    # ours: theirs, the best first; a suffix after `|` is a label that must have that value
    "kv_usage": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "running": ("num_requests_running",),
    "waiting": ("num_requests_waiting",),
    "waiting_capacity": ("num_requests_waiting_by_reason|reason=capacity",),
    "waiting_deferred": ("num_requests_waiting_by_reason|reason=deferred",),
    "preemptions": ("num_preemptions_total",),
    "prompt_tokens": ("prompt_tokens_total",),
    "generation_tokens": ("generation_tokens_total",),
    "prefix_queries": ("prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
    "prefix_hits": ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total"),
}
GAUGES = ("kv_usage", "running", "waiting", "waiting_capacity", "waiting_deferred")
COUNTERS = (*(name for name in _VALUES if name not in GAUGES), "finished", "aborted")
_HISTOGRAMS: Mapping[Latency, tuple[str, ...]] = {
    Latency.TTFT: ("time_to_first_token_seconds",),
    Latency.ITL: ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    Latency.E2E: ("e2e_request_latency_seconds",),
    Latency.QUEUE: ("request_queue_time_seconds",),
    Latency.PREFILL: ("request_prefill_time_seconds",),
}
_FINISHED, _INFO = b"request_success_total", b"cache_config_info"
_INFO_LABELS = {b"num_gpu_blocks": "blocks", b"block_size": "block_size"}
_KEPT = frozenset({b"engine", b"le", b"reason", b"finished_reason", *_INFO_LABELS})
_PREFIX = b"vllm:"
_PROCESS_START = b"process_start_time_seconds"
_LABEL = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"\s*(,|\})\s*')


class Histogram(NamedTuple):
    """One histogram as it stands: how many took no longer than each bound, the last one being infinite."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum_s: float


class Reading(NamedTuple):
    """What a page says of one engine, under our names."""

    engine_index: int
    values: Mapping[str, float]
    histograms: Mapping[Latency, Histogram]


class Page(NamedTuple):
    """What a page says."""

    readings: tuple[Reading, ...]
    """By engine; an old vLLM names none, and has one."""
    process_start_s: float | None
    unread: int
    """Lines and histograms of ours that could not be read."""


class _Place(NamedTuple):
    """Where the value of a line belongs: a name of ours, and how good its source is (the least is the best)."""

    name: str
    rank: int
    metric: Latency | None = None


def _places() -> dict[bytes, _Place]:
    places = {
        theirs.partition("|")[0].encode(): _Place("" if "|" in theirs else ours, rank)
        for ours, names in _VALUES.items()
        for rank, theirs in enumerate(names)
    }
    for metric, names in _HISTOGRAMS.items():
        for rank, theirs in enumerate(names):
            for suffix in ("bucket", "sum", "count"):
                places[f"{theirs}_{suffix}".encode()] = _Place(suffix, rank, metric)
    places[_FINISHED] = _Place("finished", 0)
    places[_INFO] = _Place("", 0)
    return places


_PLACES = _places()
_BY_REASON = {
    (name.encode(), reason.encode()): ours
    for ours, names in _VALUES.items()
    for theirs in names
    if "|" in theirs
    for name, _, reason in [theirs.replace("|reason=", "|").partition("|")]
}


class _Gathered:
    """One engine's series while the page is read."""

    def __init__(self) -> None:
        self.values: dict[str, tuple[int, float]] = {}
        self.buckets: dict[tuple[Latency, int], dict[float, float]] = {}
        self.sums: dict[tuple[Latency, int], float] = {}

    def put(self, name: str, rank: int, value: float) -> None:
        known = self.values.get(name)
        if known is None or rank < known[0]:
            self.values[name] = (rank, value)


class _Reader:
    """Gathers the lines of one page."""

    def __init__(self) -> None:
        self.engines: dict[int, _Gathered] = {}
        self.unread = 0

    def line(self, name: bytes, rest: bytes) -> None:
        """Take in a line of one of our series: its name and what follows it."""
        place = _PLACES[name]
        found = _labels(rest) if rest[:1] == b"{" else ({}, rest)
        if found is None or len(rest) > MOST_LINE_BYTES:
            self.unread += 1
            return
        labels, text = found
        value, engine = _number(text), self._engine(labels.get(b"engine", b"0"))
        if engine is None or value is None:
            self.unread += engine is None or not _is_unknown(text)
        elif name == _INFO:
            self._info(engine, labels)
        elif name == _FINISHED:
            self._finished(engine, labels.get(b"finished_reason", b""), value)
        elif place.metric is not None:
            self._histogram(engine, place, labels.get(b"le", b""), value)
        elif (ours := _BY_REASON.get((name, labels.get(b"reason", b"")))) is not None:
            engine.put(ours, 0, value)
        elif place.name and b"reason" not in labels:
            engine.put(place.name, place.rank, value)

    def _engine(self, label: bytes) -> _Gathered | None:
        if not label.isdigit() or len(label) > 5:
            return None
        index = int(label)
        if index not in self.engines and len(self.engines) >= MOST_ENGINES:
            return None
        return self.engines.setdefault(index, _Gathered())

    def _info(self, engine: _Gathered, labels: Mapping[bytes, bytes]) -> None:
        for label, ours in _INFO_LABELS.items():
            text = labels.get(label, b"")
            if text.isdigit() and 0 < len(text) < 10:  # "None" until the engine has said so
                engine.put(ours, 0, float(text))

    def _finished(self, engine: _Gathered, reason: bytes, value: float) -> None:
        ours = ["finished", "aborted"] if reason == b"abort" else ["finished"]
        for name in ours:
            engine.values[name] = (0, engine.values.get(name, (0, 0.0))[1] + value)

    def _histogram(self, engine: _Gathered, place: _Place, le: bytes, value: float) -> None:
        assert place.metric is not None  # noqa: S101  # by the caller
        key = (place.metric, place.rank)
        if place.name == "sum":
            engine.sums.setdefault(key, value)
        elif place.name == "bucket":
            bound = _number(le, infinite=True)
            buckets = engine.buckets.setdefault(key, {})
            if bound is None or len(buckets) >= MOST_BUCKETS:
                self.unread += 1
            else:
                buckets.setdefault(bound, value)

    def reading(self, index: int) -> Reading:
        """Return what was gathered of one engine."""
        engine = self.engines[index]
        values = {name: value for name, (_, value) in engine.values.items() if _is_possible(name, value)}
        self.unread += len(engine.values) - len(values)
        histograms: dict[Latency, Histogram] = {}
        for (metric, rank), buckets in sorted(engine.buckets.items(), key=lambda item: item[0][1]):
            histogram = _whole(buckets, engine.sums.get((metric, rank)))
            if histogram is None:
                self.unread += 1
            else:
                histograms.setdefault(metric, histogram)
        return Reading(index, values, histograms)


def read(text: bytes) -> Page:
    """Return what a page says."""
    reader, start_s = _Reader(), None
    for number, (name, rest) in enumerate(_ours(text)):
        if number >= MOST_LINES:
            reader.unread += 1
            break
        if name == _PROCESS_START:
            start_s = _number(rest) if start_s is None else start_s
        else:
            reader.line(name, rest)
    readings = tuple(reader.reading(index) for index in sorted(reader.engines))
    return Page(tuple(one for one in readings if one.values or one.histograms), start_s, reader.unread)


def _ours(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield name and rest of the lines whose name is in the table: the others cost a comparison each."""
    known, cut = _PLACES, len(_PREFIX)
    for line in text.split(b"\n"):
        if line.startswith(_PREFIX):
            brace = line.find(b"{")
            end = brace if brace >= 0 else line.find(b" ")
            name = line[cut:end]
            if name in known:
                yield name, line[end:]
        elif line.startswith(_PROCESS_START):
            yield _PROCESS_START, line[len(_PROCESS_START) :]


def _labels(rest: bytes) -> tuple[dict[bytes, bytes], bytes] | None:
    """Return the labels that are kept of `{...} value`, and what follows; None where they are not well formed."""
    kept: dict[bytes, bytes] = {}
    at = 1
    if rest[1:2] == b"}":
        return kept, rest[2:]
    while match := _LABEL.match(rest, at):
        name, value, end = match.groups()
        if name in _KEPT:
            kept.setdefault(name, value)
        at = match.end()
        if end == b"}":
            return kept, rest[at:]
        if rest[at : at + 1] == b"}":  # a comma may stand behind the last one
            return kept, rest[at + 1 :]
    return None


def _number(text: bytes, *, infinite: bool = False) -> float | None:
    """Return the number that a text begins with, a stamp or an exemplar behind it left out; None where it is none."""
    words = text.split(None, 1)
    try:
        value = float(words[0]) if words else math.nan
    except ValueError:
        return None
    return None if math.isnan(value) or (math.isinf(value) and not (infinite and value > 0)) else value


def _is_unknown(text: bytes) -> bool:
    """Return whether a value says that there is none, as vLLM itself writes it."""
    return text.split(None, 1)[:1] in ([b"NaN"], [b"nan"], [b"+Inf"], [b"-Inf"])


def _is_possible(name: str, value: float) -> bool:
    return 0.0 <= value <= (1.0 if name == "kv_usage" else 1e18)


def _whole(buckets: Mapping[float, float], sum_s: float | None) -> Histogram | None:
    """Return a histogram; None where it has no last bucket or falls from one to the next."""
    bounds = tuple(sorted(buckets))
    counts = tuple(buckets[bound] for bound in bounds)
    is_rising = all(a <= b for a, b in pairwise(counts))
    if sum_s is None or sum_s < 0 or not bounds or not math.isinf(bounds[-1]) or not is_rising or counts[0] < 0:
        return None
    return Histogram(bounds, counts, sum_s)
