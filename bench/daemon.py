"""Measures `kvlogd run` on this host: CPU, memory, fsyncs and the age of a row, at rest and under a loud log.

`python bench/daemon.py [--minutes 5]`. Sixteen engines write a record each 10 s, then each 2 s (for 5 minutes at most),
beside eight GPUs, whose driver is the tests' stand-in where there is a C compiler; then one log brings 20,000 lines a
second. Beside each number stands the limit that the project set itself. It takes 30 minutes to see how memory grows.
"""

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kvlogd import ask, procfs
from kvlogd.procfs import ProcFs
from tests.nvml.driver import Driver

ENGINES = 16
GPUS = 8
LONGEST_AT_2_S_MIN = 5.0
SETTLED_MIN = 6.0
"""From then on memory is that of a daemon at rest: its first upkeep comes after five minutes."""
LOOK_S = 30.0
LOUD_LINES = 20_000
RECORD = (
    "(APIServer pid={pid}) INFO {stamp} [loggers.py:257] Engine 000: Avg prompt throughput: {number}.0 tokens/s, "
    "Avg generation throughput: 90.0 tokens/s, Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage: 31.4%, "
    "Prefix cache hit rate: 12.0%\n"
)
CHATTER = '(APIServer pid={pid}) INFO:     10.0.0.7:51234 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
NO_MEMORY = procfs.Memory(0.0, 0.0)
TICKS = os.sysconf("SC_CLK_TCK")


class Row(NamedTuple):
    """One measurement."""

    what: str
    value: str
    limit: str
    is_kept: bool | None
    """None where there is no limit."""


class Writers:
    """Engines that log a record every interval, as long as the block lasts."""

    def __init__(self, folder: Path, interval_s: float, engines: int) -> None:
        self._folder = folder
        self._interval_s = interval_s
        self._engines = engines
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self.number = 0

    def __enter__(self) -> "Writers":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _write(self) -> None:
        while not self._over.wait(self._interval_s / self._engines):
            self.number += 1
            engine = self.number % self._engines
            write(self._folder / f"engine-{engine}.log", record(1000 + engine, self.number))


def record(pid: int, number: int) -> str:
    """Return a record of the present moment."""
    return RECORD.format(pid=pid, stamp=time.strftime("%m-%d %H:%M:%S", time.gmtime()), number=number)


def write(log: Path, text: str) -> None:
    """Append to a log."""
    with log.open("a") as out:
        out.write(text)


class Memory:
    """How much memory a process has, looked at again and again; `per_hour_mb` is how fast it grows once it settled."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._begun_s = time.monotonic()
        self._seen: list[tuple[float, float]] = []
        """(minutes, MB)"""

    def watch(self, minutes: float) -> None:
        """Look for so long."""
        end_s = time.monotonic() + 60 * minutes
        while (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(LOOK_S, left_s))
            self._seen.append(((time.monotonic() - self._begun_s) / 60, rss_mb(self._pid)))

    def per_hour_mb(self) -> float | None:
        """Return None where it was not watched for long enough."""
        settled = [seen for seen in self._seen if seen[0] >= SETTLED_MIN]
        if len(settled) < 10:
            return None
        return 60 * statistics.linear_regression(*zip(*settled, strict=True)).slope


@contextmanager
def daemon(folder: Path, gpus: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """Run a daemon on the logs of a folder, and on so many GPUs."""
    config = folder / "kvlogd.yaml"
    config.write_text(
        f"sources: [{{name: bench, files: ['{folder}/*.log'], timezone: UTC}}]\n"
        f"store: {{path: {folder}/store.duckdb}}\n"
    )
    environment = Driver(folder, gpus).environment if gpus else os.environ
    process = subprocess.Popen([sys.executable, "-m", "kvlogd", "run", "--config", str(config)], env=environment)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mb(pid: int) -> float:
    """Return the resident memory of a process, MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def fsyncs_per_minute(pid: int, seconds: float) -> float | None:
    """Return how often a process syncs a file, by strace; None where there is none that may look."""
    if shutil.which("strace") is None:
        return None
    with tempfile.NamedTemporaryFile() as out:
        watch = ["strace", "-f", "-q", "-e", "trace=fsync,fdatasync", "-o", out.name, "-p", str(pid)]
        tracer = subprocess.Popen(watch, stderr=subprocess.DEVNULL)
        with suppress(subprocess.TimeoutExpired):
            tracer.wait(seconds)
            return None  # it may not look
        tracer.send_signal(signal.SIGINT)
        tracer.wait(10)
        calls = [line for line in Path(out.name).read_text().splitlines() if "sync(" in line and "resumed" not in line]
    return len(calls) * 60 / seconds


def age_of_a_row_s(folder: Path) -> float:
    """Return how long after its line was written a row can be asked for."""
    number = time.time_ns() % 1_000_000 + 1_000_000
    write(folder / "engine-0.log", record(1000, number))
    begun = time.monotonic()
    sql = f"SELECT 1 FROM samples WHERE prompt_tps = {number}"  # noqa: S608
    while True:
        with ask.sql([folder / "kvlogd.sock"], folder / "store.duckdb", sql, 10) as found:
            if list(found.rows):
                return time.monotonic() - begun


def at_rest(folder: Path, interval_s: float, minutes: float, gpus: int) -> Iterator[Row]:
    """Measure with sixteen engines that log every `interval_s`."""
    with daemon(folder, gpus) as process, Writers(folder, interval_s, ENGINES):
        memory = Memory(process.pid)
        time.sleep(20)
        children = {one.pid: cpu_s(one.pid) for one in ProcFs().processes().values() if one.parent == process.pid}
        cpu, begun = cpu_s(process.pid), time.monotonic()
        memory.watch(minutes)
        span_s = time.monotonic() - begun
        share = (cpu_s(process.pid) - cpu) / span_s
        rest = f"16 engines at {interval_s:g} s"
        yield Row(f"{rest}: CPU", f"{100 * share:.2f} % of a core", "0.3 %", share <= 0.003)
        yield from memory_rows(rest, memory, process.pid, minutes)
        for pid, before in children.items():
            share = (cpu_s(pid) - before) / span_s
            yield Row(f"{rest}: child for {gpus} GPUs", f"{100 * share:.2f} %, {rss_mb(pid):.0f} MB", "", None)
        ages = sorted(age_of_a_row_s(folder) for _ in range(20))
        yield Row(f"{rest}: line to row", f"{ages[10]:.2f} s median, {ages[-1]:.2f} s most", "1 s", ages[-1] < 1)
        syncs = fsyncs_per_minute(process.pid, 120)
        if syncs is not None:
            yield Row(f"{rest}: fsyncs", f"{syncs:.1f} a minute", "", None)


def memory_rows(rest: str, memory: Memory, pid: int, minutes: float) -> Iterator[Row]:
    """Yield what memory was taken, and how it grew."""
    resident = rss_mb(pid)
    yield Row(f"{rest}: memory", f"{resident:.1f} MB after {minutes:g} min", "90 MB", resident <= 90)
    own = (ProcFs().memory(pid) or NO_MEMORY).own_mib * 2**20 / 1e6
    yield Row(f"{rest}: of that its own", f"{own:.1f} MB, the rest is libraries", "", None)
    grows = memory.per_hour_mb()
    if grows is not None:
        yield Row(f"{rest}: it grows by", f"{grows:+.1f} MB an hour", "", None)


def loud(folder: Path, seconds: float = 30.0) -> Iterator[Row]:
    """Measure with one log of 20,000 lines a second, a record every second among them."""
    chatter = CHATTER.format(pid=1) * (LOUD_LINES // 10)
    with daemon(folder) as process:
        time.sleep(10)
        cpu, begun = cpu_s(process.pid), time.monotonic()
        for step in range(int(seconds * 10)):
            write(folder / "loud.log", chatter + (record(1, step) if step % 10 == 0 else ""))
            time.sleep(max(0.0, begun + (step + 1) / 10 - time.monotonic()))
        size = (folder / "loud.log").stat().st_size
        share = (cpu_s(process.pid) - cpu) / (time.monotonic() - begun)
        with ask.sql(
            [folder / "kvlogd.sock"], folder / "store.duckdb", "SELECT max(byte_offset) FROM positions", 10
        ) as found:
            behind = size - (next(iter(found.rows))[0] or 0)
        yield Row("20,000 lines/s: CPU", f"{100 * share:.1f} % of a core", "", None)
        yield Row("20,000 lines/s: lag", f"{behind / 1e6:.1f} MB behind of {size / 1e6:.0f}", "2 s of it", None)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long each rest is measured")
    minutes = parser.parse_args().minutes
    gpus = GPUS if shutil.which("gcc") or shutil.which("cc") else 0
    rests = ((10.0, minutes), (2.0, min(minutes, LONGEST_AT_2_S_MIN)))
    measures: list[Callable[[Path], Iterator[Row]]] = [
        *(partial(at_rest, interval_s=every, minutes=long, gpus=gpus) for every, long in rests),
        loud,
    ]
    for measure in measures:
        with tempfile.TemporaryDirectory(prefix="kvlogd-bench-") as folder:
            for row in measure(Path(folder)):
                verdict = {True: "kept", False: "MISSED", None: ""}[row.is_kept]
                print(f"{row.what:<38} {row.value:<34} {row.limit:<10} {verdict}", flush=True)


if __name__ == "__main__":
    main()
