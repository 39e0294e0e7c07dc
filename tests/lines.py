"""Writes records and log lines as vLLM would, for the tests that need many of them."""

import math
import re
from datetime import UTC, datetime

from kvlogd.envelope import Unwrapper
from kvlogd.model import Event, EventKind, Run, Stats
from kvlogd.parse import Parser
from kvlogd.stamp import Stamper
from kvlogd.window import Window

START_S = datetime(2026, 11, 29, 14, 0, tzinfo=UTC).timestamp()
LABEL = re.compile(r"[A-Za-z0-9._+-]{1,64}")


def record(
    at_s: float = 0.0,
    *,
    running: int = 0,
    waiting: int = 0,
    prompt_tps: float = 0.0,
    generation_tps: float = 0.0,
    kv_usage: float = 0.0,
    pid: int | None = 1,
    index: int | None = 0,
    engines: int | None = None,
) -> Stats:
    """Return a record `at_s` seconds after the start of the tests' time."""
    return Stats(START_S + at_s, pid, index, engines, prompt_tps, generation_tps, running, waiting, kv_usage)


def stamp(ts_s: float) -> str:
    return datetime.fromtimestamp(ts_s, UTC).strftime("%m-%d %H:%M:%S")


def logged(
    text: str, at_s: float = 0.0, *, pid: int | None = 1, process: str = "APIServer", file: str = "x.py"
) -> bytes:
    """Return a line of vLLM's logger without its newline."""
    prefix = f"({process} pid={pid}) " if pid is not None else ""
    return f"{prefix}INFO {stamp(START_S + at_s)} [{file}:335] {text}".encode()


def line_of(stats: Stats) -> bytes:
    """Return the line, without its newline, that a record is read from."""
    head = f"{stats.engines} Engines Aggregated: " if stats.engines is not None else ""
    if stats.engine_index is not None:
        head = f"Engine {stats.engine_index:03d}: "
    body = (
        f"{head}Avg prompt throughput: {stats.prompt_tps:.1f} tokens/s, "
        f"Avg generation throughput: {stats.generation_tps:.1f} tokens/s, Running: {stats.running} reqs, "
        f"Waiting: {stats.waiting} reqs, GPU KV cache usage: {100 * stats.kv_usage:.1f}%"
    )
    return logged(body, stats.ts_s - START_S, pid=stats.pid, file="loggers.py")


def new_parser() -> Parser:
    return Parser(Stamper(year=2026, zone=UTC, mtime_s=None))


def run_of(run_id: int = 1, started_s: float = START_S) -> Run:
    return Run(run_id, 1, 1, started_s, True)


def window_of(*records: Stats) -> Window:
    window = Window(run_of())
    for stats in records:
        window.observe(stats)
    return window


def parsed(line: bytes, parser: Parser | None = None) -> Stats | Event | None:
    inner = Unwrapper().feed(line)
    if inner is None:
        return None
    return (parser or new_parser()).line(inner.text, envelope_s=inner.ts_s, envelope_pid=inner.pid)


def numbers_only(found: Stats | Event | None) -> bool:
    """Return whether nothing in it can be text of the line but for the allow-listed labels."""
    if found is None:
        return True
    if isinstance(found, Stats):
        return all(value is None or type(value) in (int, float) for value in found)
    labels = [label for label in (found.version, found.model) if label is not None]
    plain = (found.ts_s, found.pid, found.engine_index, *found.numbers.values())
    names = "".join(found.numbers)
    return (
        isinstance(found.kind, EventKind)
        and all(value is None or type(value) in (int, float) for value in plain)
        and all(LABEL.fullmatch(label) for label in labels)
        and all(math.isfinite(value) for value in found.numbers.values())
        and re.fullmatch(r"[A-Za-z0-9_ ()/]*", names) is not None
    )


GOOD = line_of(record(25, running=1, prompt_tps=5.0, generation_tps=6.0, kv_usage=0.075))
"""A record to change."""
