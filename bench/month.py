"""Drives the daemon's own reading, rules and store through 30 days of 16 engines, to see what a month costs.

`python bench/month.py [--days 30] [--engines 16]`. The logs are of `bench.traces`: the weeks of four servers, again and
again, each for four engines that are some days apart; a record each 10 s where something runs, rotated each night. Time
is simulated.
On the first day and the last one it is read and committed as often as the daemon does; on the others each
ten minutes, so that a run takes a quarter of an hour of CPU. Upkeep comes each half hour. Beside the size of the store
stands the limit that the project set itself.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple, cast

from bench.traces.classes import draw
from bench.traces.labels import Stream, Tick, TraceClass, TraceId
from bench.traces.logline import START_S, lines
from bench.traces.server import run
from kvlogd import disk
from kvlogd.config import Config, Enabled, SamplerConfig, SourceConfig, StoreConfig
from kvlogd.daemon import COMMIT_S, TEND_S
from kvlogd.intake import BUDGET_BYTES, Intake
from kvlogd.retention import Keep, tend
from kvlogd.rules import load_rules, shipped_folder
from kvlogd.setup import Setup
from kvlogd.store import Store

DAY_S, WEEK_S, RECORD_S, TICK_S = 86_400, 7 * 86_400, 10.0, 30.0
SEED = 2026
KINDS = (TraceClass.NORMAL, TraceClass.AGENTS, TraceClass.DEPLOY, TraceClass.BATCH)
COARSE_S = 600.0
MOST_MB = 100.0


class Day(NamedTuple):
    """What one day took."""

    number: int
    is_fine: bool
    """It was read and committed as often as the daemon does."""
    records: int
    read_s: float
    """CPU seconds of reading the logs and judging them."""
    commits: int
    commit_s: float
    tend_s: float
    store_mb: float


class Log:
    """One engine's log, written as time goes on."""

    def __init__(self, path: Path, stream: Stream, days_apart: int) -> None:
        self.path = path
        self._lines = _timed(stream, days_apart * DAY_S)
        self._next: tuple[float, str] | None = next(self._lines, None)
        self.records = 0

    def write(self, until_s: float) -> None:
        """Append what was logged until then."""
        due: list[str] = []
        while self._next is not None and self._next[0] <= until_s:
            due.append(self._next[1])
            self._next = next(self._lines, None)
        self.records += sum("GPU KV cache usage" in line for line in due)
        if due:
            with self.path.open("a") as out:
                out.write("".join(f"{line}\n" for line in due))
            os.utime(self.path, (START_S + until_s, START_S + until_s))

    def rotate(self) -> None:
        """Begin a new file, as logrotate does."""
        if self.path.exists():
            self.path.rename(f"{self.path}.1")


class Cpu:
    """CPU seconds of this process in the blocks that it is used around."""

    def __init__(self) -> None:
        self.s = self._begun = 0.0

    def __enter__(self) -> None:
        self._begun = time.process_time()

    def __exit__(self, *_: object) -> None:
        self.s += time.process_time() - self._begun


class Watch:
    """The daemon's loop in simulated time."""

    def __init__(self, folder: Path, logs: Sequence[Log], store: Store) -> None:
        source = SourceConfig(name="month", files=(f"{folder}/*.log",), timezone="UTC")
        off = SamplerConfig(enabled=Enabled.NO)
        config = Config(sources=(source,), store=StoreConfig(path=store.path), gpu=off, host=off)
        self._logs, self._store, self._keep = logs, store, Keep(config.store.keep_raw, config.store.keep_minutes)
        self._intake = Intake(Setup(config, load_rules([shipped_folder()])), store, 0.0)
        self._tended_s = 0.0

    def day(self, number: int, *, is_fine: bool) -> Day:
        """Let one day pass."""
        step_s, begun = COMMIT_S if is_fine else COARSE_S, sum(log.records for log in self._logs)
        reading, committing, tending = Cpu(), Cpu(), Cpu()
        commits = round(DAY_S / step_s)
        for step in range(1, commits + 1):
            at_s = (number - 1) * DAY_S + step * step_s
            for log in self._logs:
                log.write(at_s)
            with reading:
                self._read(at_s)
            with committing:
                self._store.commit(self._intake.batch(at_s))
            if at_s - self._tended_s >= TEND_S:
                self._tended_s = at_s
                with tending:
                    self._tend(at_s)
        for log in self._logs:
            log.rotate()
        records = sum(log.records for log in self._logs) - begun
        size_mb = (disk.size_of(self._store.path) + disk.size_of(disk.wal_of(self._store.path))) / 1e6
        return Day(number, is_fine, records, reading.s, commits, committing.s, tending.s, size_mb)

    def _read(self, at_s: float) -> None:
        self._intake.hint()
        while self._intake.poll(at_s, START_S + at_s) >= BUDGET_BYTES // 2:
            pass
        self._intake.poll(at_s, START_S + at_s)

    def _tend(self, at_s: float) -> None:
        if tend(self._store, START_S + at_s, self._keep):
            self._store.renew()


def _timed(stream: Stream, apart_s: float) -> Iterator[tuple[float, str]]:
    """Yield the lines of a stream that begins some days later in its trace, each with when it is written."""
    first, at_s = round(apart_s / RECORD_S), 0.0

    def ticks() -> Iterator[Tick]:
        nonlocal at_s
        for number, tick in enumerate(islice(cycle(stream.ticks), first, None), 1):
            at_s = number * RECORD_S
            yield tick._replace(at_s=at_s)

    for line in lines(stream._replace(ticks=cast("Sequence[Tick]", ticks()))):
        yield at_s, line


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--engines", type=int, default=16)
    asked = parser.parse_args()
    weeks = [run(draw(TraceId(SEED, kind, 0), WEEK_S))[0] for kind in KINDS]
    with tempfile.TemporaryDirectory(prefix="kvlogd-month-") as name, Store.open(Path(name) / "month.duckdb") as store:
        folder = Path(name)
        logs = [Log(folder / f"engine-{n}.log", weeks[n % len(KINDS)], n // len(KINDS)) for n in range(asked.engines)]
        watch = Watch(folder, logs, store)
        print(f"{'day':>4} {'records':>8} {'read+rules':>12} {'commit':>8} {'upkeep':>8} {'store':>9}")
        for number in range(1, asked.days + 1):
            show(watch.day(number, is_fine=number in (1, asked.days)))


def show(day: Day) -> None:
    """Print one day; the cost of a tick is that of all engines, their records since the last one among it."""
    per_tick_ms, per_commit_ms = 1000 * day.read_s / (DAY_S / TICK_S), 1000 * day.commit_s / day.commits
    mark = "" if day.is_fine else "  (read each 10 min)"
    verdict = "" if day.store_mb <= MOST_MB else f"  MISSED: {MOST_MB:g} MB"
    print(
        f"{day.number:>4} {day.records:>8} {per_tick_ms:>9.2f} ms {per_commit_ms:>5.0f} ms {day.tend_s:>6.1f} s "
        f"{day.store_mb:>6.1f} MB{mark}{verdict}",
        flush=True,
    )


if __name__ == "__main__":
    main()
