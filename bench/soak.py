"""Watches `kvlogd run` for an hour under 200 logs with 2,000 lines a second and 8 stand-in GPUs: does it grow?

`python bench/soak.py [--minutes 70]`. Writes what it sees each 10 s into a CSV and says at the end how memory, file
descriptors, threads and CPU fared after the first ten minutes, and whether each record was stored once. The logs begin
with the last hours of each server, so that what rules remember is full from the start. DuckDB grows with each commit
until the store is renewed, which is every few minutes under such a load: so what counts is the least of each ten
minutes, and of that what is the daemon's own, for pages of libraries come and go.
"""

import argparse
import csv
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from statistics import linear_regression
from typing import NamedTuple

from bench.daemon import cpu_s
from bench.fleet import Fleet
from kvlogd import ask
from kvlogd.procfs import ProcFs
from tests.nvml.driver import Driver

LOGS, LINES_PER_S, GPUS = 200, 2000, 8
PAST_S = 8 * 3600.0
"""Rules keep 720 records whole, two hours at 10 s, and a life in parts that are joined after five hours."""
TICK_S, SAMPLE_S, ROTATE_S, SETTLE_S, FLOOR_S = 0.05, 10.0, 10.0, 600.0, 600.0
FIRST_ROTATE_S = 300.0
"""A log that is new to kvlogd is read from the file that is written now: it must have come to that one before."""
MOST_MIB_PER_H = 1.0


class Sight(NamedTuple):
    """What was seen at one moment; a row of the CSV."""

    at_s: float
    rss_mib: float
    anon_mib: float
    descriptors: int
    threads: int
    children: int
    children_rss_mib: float
    cpu_s: float
    children_cpu_s: float
    store_mib: float
    lines: int
    records: int


def status_of(pid: int) -> Mapping[str, int]:
    """Return the numbers in /proc/PID/status; memory in KiB."""
    pairs = (line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: int(value.split()[0]) for name, value in pairs if value.split() and value.split()[0].isdigit()}


def descendants(pid: int) -> set[int]:
    """Return the children of a process, and theirs."""
    processes, found = ProcFs().processes(), {pid}
    while more := {one.pid for one in processes.values() if one.parent in found} - found:
        found |= more
    return found - {pid}


def look(pid: int, folder: Path, fleet: Fleet, at_s: float) -> Sight:
    """Return what is to be seen now."""
    mine = status_of(pid)
    others = []
    for child in descendants(pid):
        try:
            others.append((status_of(child).get("VmRSS", 0), cpu_s(child)))
        except OSError:  # it ended meanwhile
            continue
    return Sight(
        round(at_s, 1),
        mine["VmRSS"] / 1024,
        mine["RssAnon"] / 1024,
        len(list(Path(f"/proc/{pid}/fd").iterdir())),
        mine["Threads"],
        len(others),
        sum(rss for rss, _ in others) / 1024,
        cpu_s(pid),
        sum(cpu for _, cpu in others),
        sum(file.stat().st_size for file in folder.glob("store.duckdb*")) / 2**20,
        fleet.lines(),
        fleet.records(),
    )


@contextmanager
def daemon(folder: Path, driver: Driver) -> Iterator[subprocess.Popen[bytes]]:
    """Run a daemon on the logs of a folder and on stand-in GPUs, with the shipped rules."""
    config = folder / "kvlogd.yaml"
    config.write_text(
        f"sources: [{{name: fleet, files: ['{folder}/logs/*.log'], timezone: UTC}}]\n"
        f"store: {{path: {folder}/store.duckdb}}\ngpu: {{enabled: yes}}\n"
    )
    with (folder / "said.txt").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "kvlogd", "run", "--config", str(config)], env=driver.environment, stderr=said
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def asked(folder: Path, sql: str) -> int:
    """Return the number that a query answers with."""
    with ask.sql([folder / "kvlogd.sock"], folder / "store.duckdb", sql, 30) as found:
        return int(next(iter(found.rows))[0])


def watch(pid: int, folder: Path, fleet: Fleet, driver: Driver, seconds: float) -> Iterator[Sight]:
    """Let the fleet log for so long, and yield what is to be seen each ten seconds."""
    begun = time.monotonic()
    sample_s = written_s = 0.0
    rotate_s = FIRST_ROTATE_S
    while (at_s := time.monotonic() - begun) < seconds:
        fleet.write(LINES_PER_S, at_s - written_s, time.time())
        written_s = at_s
        if at_s >= rotate_s:
            fleet.rotate()
            rotate_s += ROTATE_S
        if at_s >= sample_s:
            number = int(at_s / SAMPLE_S)
            driver.set(used=(60_000 + number % 97) << 20, power=400_000 + number % 89, temp=60 + number % 7)
            yield look(pid, folder, fleet, at_s)
            sample_s += SAMPLE_S
        time.sleep(TICK_S)


def slope_per_h(sights: Sequence[Sight], of: str) -> float:
    """Return by how much a column grows in an hour, by least squares."""
    return linear_regression([one.at_s / 3600 for one in sights], [float(getattr(one, of)) for one in sights]).slope


def floors(sights: Sequence[Sight], of: str) -> list[tuple[float, float]]:
    """Return the least of each stretch, with the hour at which it was seen."""
    parts = [list(part) for _, part in groupby(sights, key=lambda one: one.at_s // FLOOR_S)]
    lowest = [
        min(part, key=lambda one: float(getattr(one, of))) for part in parts if len(part) * SAMPLE_S > FLOOR_S / 2
    ]
    return [(one.at_s / 3600, float(getattr(one, of))) for one in lowest]


def grown_per_h(sights: Sequence[Sight], of: str) -> float:
    """Return by how much the least of each stretch grows in an hour, by least squares."""
    found = floors(sights, of)
    return linear_regression(*zip(*found, strict=True)).slope if len(found) > 1 else 0.0


def report(sights: Sequence[Sight]) -> Iterator[str]:
    """Yield what there is to say of memory, descriptors, threads and CPU."""
    settled = [one for one in sights if one.at_s >= min(SETTLE_S, sights[-1].at_s / 2)]
    first, last = settled[0], settled[-1]
    hours = (last.at_s - first.at_s) / 3600
    yield f"{len(settled)} looks from minute {first.at_s / 60:.0f} to {last.at_s / 60:.0f}"
    for of in ("rss_mib", "anon_mib", "children_rss_mib", "descriptors", "threads", "children"):
        values = [getattr(one, of) for one in settled]
        low, high = min(values), max(values)
        yield f"{of:<18} {low:.1f} to {high:.1f}, {slope_per_h(settled, of):+.2f} an hour by least squares"
    for of in ("rss_mib", "anon_mib"):
        held = ", ".join(f"{value:.1f}" for _, value in floors(settled, of))
        yield f"{of:<18} at least, of each ten minutes: {held}; {grown_per_h(settled, of):+.2f} an hour"
    share = (last.cpu_s - first.cpu_s) / (3600 * hours)
    others = (last.children_cpu_s - first.children_cpu_s) / (3600 * hours)
    yield f"CPU                {100 * share:.2f} % of a core, its child for the GPUs {100 * others:.2f} %"
    yield f"lines              {(last.lines - first.lines) / (3600 * hours):.0f} a second"


def stored_all(folder: Path, fleet: Fleet) -> Iterator[str]:
    """Wait until what was written is stored, and yield how many records there are of how many."""
    deadline = time.monotonic() + 60
    while (stored := asked(folder, "SELECT count(*) FROM samples")) < fleet.records() and time.monotonic() < deadline:
        time.sleep(1)
    gaps = asked(folder, "SELECT count(*) FROM gaps")
    readings = asked(folder, "SELECT count(*) FROM gpu_samples")
    verdict = "each once" if stored == fleet.records() and not gaps else "NOT THE SAME"
    yield f"records            {stored:,} stored of {fleet.records():,} written, {gaps} gaps: {verdict}"
    alerts = asked(folder, "SELECT count(*) FROM alerts")
    yield f"beside them        {readings:,} readings of GPUs, {alerts} alerts"


def main() -> None:
    """Watch, and say what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=70.0, help="how long it runs")
    parser.add_argument("--csv", type=Path, default=Path("soak.csv"), help="where the sights go")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvlogd-soak-") as name, options.csv.open("w", newline="") as out:
        folder = Path(name)
        (folder / "logs").mkdir()
        driver = Driver(folder, GPUS)
        fleet = Fleet(folder / "logs", LOGS, PAST_S, time.time())
        rows = csv.writer(out)
        rows.writerow(Sight._fields)
        sights = []
        with daemon(folder, driver) as process:
            for sight in watch(process.pid, folder, fleet, driver, 60 * options.minutes):
                sights.append(sight)
                rows.writerow([round(value, 2) for value in sight])
                out.flush()
            told = [*report(sights), *stored_all(folder, fleet)]
        fleet.close()
        print("\n".join(told))
        said = (folder / "said.txt").read_text().splitlines()
        print(f"its own log has {len(said)} lines; exit status {process.returncode}")
        print("\n".join([*said[:3], "…", *said[-10:]]))
        sys.exit(grown_per_h([one for one in sights if one.at_s >= SETTLE_S], "anon_mib") > MOST_MIB_PER_H)


if __name__ == "__main__":
    main()
