"""Measure `kvlogd replay` on a big log that is made for it, in CPU-seconds and against grep on the same file.

Run it as `python bench/replay.py`, in an environment that has kvlogd. Exit status 1 means that a limit was missed.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO, NamedTuple

ROOT = Path(__file__).parent.parent
MARK = "Avg prompt throughput: "
YEAR = 2026
SEED = 20260301

PARSE_SHARE = 0.40  # of grep's rate per CPU-second
REPLAY_SHARE = 0.20
PEAK_MB = 200
MONTH_RECORDS = 260_000  # 30 days at one record every 10 s
MONTH_CPU_S = 15
HELP_CPU_S = 0.15

PHRASE = "please summarise the following text for a reader in a hurry INFO cache usage running engine tokens 42"
BIG_PROMPT = 100_000  # bytes
BIG_PROMPT_ONE_IN = 300
ACCESS_LINES = 6  # for each stats line; together with REQUEST_LINES that makes one line in ten a stats line
REQUEST_LINES = 3
LIVES = 3


def parse_command(log: Path) -> list[str]:
    """Return the command that runs kvlogd's parser over a file, without store and rules."""
    return [sys.executable, str(Path(__file__).with_name("parse_only.py")), str(log), str(YEAR)]


def replay_command(log: Path, store: Path) -> list[str]:
    """Return the command that replays a file whole, into a new store."""
    return [
        *(sys.executable, "-m", "kvlogd", "replay", str(log)),
        *("--db", str(store), "--year", str(YEAR), "--timezone", "UTC", "--json"),
    ]


class Maker:
    """Makes the lines of one healthy vLLM 0.28, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = datetime(YEAR, 3, 1)  # naive, as vLLM's own stamps are
        self.life = 0
        self.running = 8
        self.hit_rate = 40.0
        self.text = " ".join(self.random.choices(PHRASE.split(), k=BIG_PROMPT // 4)).encode()
        self.access = [self._access() for _ in range(1000)]

    @property
    def head(self) -> str:
        """Return the prefix of the API server's lines, up to the source file."""
        return f"(APIServer pid={4000 + self.life}) INFO {self.now:%m-%d %H:%M:%S}"

    def start(self) -> bytes:
        """Return the lines of a start; each start is a new process."""
        self.life += 1
        self.now += timedelta(seconds=60)
        core = f"(EngineCore pid={5000 + self.life}) INFO {self.now:%m-%d %H:%M:%S}"
        lines = [
            f"{self.head} [utils.py:299]   █▄█▀ █     █     █     █  version 0.28.0",
            f"{self.head} [utils.py:233] non-default args: {{'model': 'bench/model', 'max_model_len': 32768}}",
            f"{core} [core.py:105] Initializing a V1 LLM engine (v0.28.0) with config: model='bench/model'",
            f"{core} [kv_cache_utils.py:1319] GPU KV cache size: 812,416 tokens",
            f"{core} [kv_cache_utils.py:1324] Maximum concurrency for 32,768 tokens per request: 24.79x",
            f"{core} [core.py:259] init engine (profile, create kv cache, warmup model) took 41.20 s",
            f"{self.head} [api_server.py:1020] Starting vLLM server on http://0.0.0.0:8000",
            f"(APIServer pid={4000 + self.life}) INFO:     Application startup complete.",
        ]
        return "".join(f"{line}\n" for line in lines).encode()

    def stop(self) -> bytes:
        """Return the line with which a server begins to stop."""
        return f"{self.head} [launcher.py:110] [shutdown] API server: shutdown triggered\n".encode()

    def stats(self) -> bytes:
        """Return the next stats record, 10 s after the one before."""
        draw = self.random.random
        self.now += timedelta(seconds=10)
        self.running = min(24, max(1, self.running + self.random.randint(-2, 2)))
        self.hit_rate = min(80.0, max(5.0, self.hit_rate + draw() - 0.5))
        deferred = "Deferred: 1 reqs, " if draw() < 0.02 else ""
        line = (
            f"{self.head} [loggers.py:271] Engine 000: {MARK}{self.running * (100 + 50 * draw()):.1f} tokens/s, "
            f"Avg generation throughput: {self.running * (27 + 2 * draw()):.1f} tokens/s, "
            f"Running: {self.running} reqs, Waiting: {1 if deferred else 0} reqs, {deferred}"
            f"GPU KV cache usage: {self.running * (1.4 + 0.3 * draw()):.1f}%, "
            f"Prefix cache hit rate: {self.hit_rate:.1f}%\n"
        )
        return line.encode()

    def traffic(self) -> Iterator[bytes]:
        """Yield what stands between two stats records: access lines, and requests with their prompts."""
        yield from self.random.choices(self.access, k=ACCESS_LINES)
        for _ in range(REQUEST_LINES):
            big = self.random.randrange(BIG_PROMPT_ONE_IN) == 0
            yield self._request(BIG_PROMPT if big else self.random.randint(50, 900))

    def _access(self) -> bytes:
        host, port = self.random.randrange(1, 255), self.random.randrange(1024, 65535)
        return f'INFO:     10.1.0.{host}:{port} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'.encode()

    def _request(self, prompt_bytes: int) -> bytes:
        at = self.random.randrange(max(1, len(self.text) - prompt_bytes))
        name = f"chatcmpl-{self.random.getrandbits(128):032x}"
        return b"".join(
            [
                f"{self.head} [logger.py:43] Received request {name}: prompt: '".encode(),
                self.text[at : at + prompt_bytes],
                b"', params: SamplingParams(n=1, presence_penalty=0.0, temperature=0.7, top_p=1.0, max_tokens=512), "
                b"prompt_token_ids: None, lora_request: None.\n",
            ]
        )


def write_busy(out: BinaryIO, size: int) -> int:
    """Write a log of about `size` bytes with all its traffic and some restarts; return its number of stats lines."""
    maker, written, records = Maker(SEED), 0, 0
    while written < size:
        if written >= maker.life * size / LIVES:
            written += out.write((maker.stop() if maker.life else b"") + maker.start())
        written += out.write(maker.stats() + b"".join(maker.traffic()))
        records += 1
    return records


def write_month(out: BinaryIO) -> int:
    """Write 30 days of one engine, stats lines only but for its start; return their number."""
    maker = Maker(SEED)
    out.write(maker.start())
    for _ in range(MONTH_RECORDS):
        out.write(maker.stats())
    return MONTH_RECORDS


class Cost(NamedTuple):
    """What a command took: the least of its runs, but the highest peak."""

    cpu_s: float
    """User and system time together."""
    wall_s: float
    peak_mb: float
    """Of resident memory, in 10^6 bytes. The kernel counts the fork too, so it is never below this process's own."""
    status: int
    said: str
    """The last line of its stderr; empty if it was silent."""
    records: int | None
    """How many stats records it says that it read; None where it says nothing of the kind."""


def run_once(command: Sequence[str], folder: Path, locale: str | None) -> Cost:
    """Run a command to its end and return what it took, its own children included."""
    environment = os.environ | ({"LC_ALL": locale} if locale else {})
    began_s = time.perf_counter()
    # grep stops at its first match when it writes to /dev/null, so the output goes to a file.
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=ROOT, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    lines = (folder / "stderr").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return Cost(
        cpu_s=usage.ru_utime + usage.ru_stime,
        wall_s=time.perf_counter() - began_s,
        peak_mb=usage.ru_maxrss * 1024 / 1e6,
        status=child.returncode,
        said=lines[-1] if lines else "",
        records=records_in((folder / "stdout").read_text(encoding="utf-8", errors="replace")),
    )


def records_in(output: str) -> int | None:
    """Return the number of stats records that `replay --json`'s summary, or the parser run alone, reports."""
    found = re.search(r"""["']stats(?:_lines)?["']: ?(\d+)""", output)
    return int(found[1]) if found else None


def best(costs: Sequence[Cost]) -> Cost:
    """Return the cheapest run of several, with the highest peak and the worst exit status among them."""
    cheapest = min(costs, key=lambda cost: cost.cpu_s)
    return cheapest._replace(
        peak_mb=max(cost.peak_mb for cost in costs),
        status=max((cost.status for cost in costs), key=abs),
    )


class Row(NamedTuple):
    """One line of the report. `share` is of grep's rate per CPU-second; None where that says nothing."""

    name: str
    cost: Cost
    share: float | None
    limits: dict[str, bool]
    """Each limit in words, and whether it was kept."""

    @property
    def kept(self) -> bool:
        """Return whether the command worked and kept every limit. A finding (1) in these healthy logs is a fault."""
        return self.cost.status == 0 and all(self.limits.values())


class Log(NamedTuple):
    """A log that was made, and how many stats records are in it."""

    path: Path
    records: int


class Bench:
    """Makes the logs in one temporary folder and measures commands on them."""

    def __init__(self, folder: Path, repeat: int) -> None:
        self.folder = folder
        self.repeat = repeat

    def busy(self, size: int) -> Log:
        """Write the big log, of `size` bytes."""
        say(f"writing {size / 1e6:,.0f} MB ...")
        path = self.folder / "busy.log"
        with path.open("wb", buffering=1 << 20) as out:
            return Log(path, write_busy(out, size))

    def month(self) -> Log:
        """Write the log of 30 days."""
        say("writing 30 days of one engine ...")
        path = self.folder / "month.log"
        with path.open("wb", buffering=1 << 20) as out:
            return Log(path, write_month(out))

    def cost(self, command: Sequence[str], locale: str | None = None) -> Cost:
        """Run a command as often as asked for, and return its best run."""
        say(f"running {' '.join(command[:5])} ...")
        return best([run_once(command, self.folder, locale) for _ in range(self.repeat)])

    def replay(self, path: Path) -> Cost:
        """Replay a log as often as asked for, into a new store each time, and return the best run."""
        say(f"running kvlogd replay {path.name} ...")
        return best([self._replay_once(path) for _ in range(self.repeat)])

    def _replay_once(self, path: Path) -> Cost:
        store = self.folder / "store"
        store.mkdir()
        try:
            return run_once(replay_command(path, store / "bench.duckdb"), self.folder, None)
        finally:
            shutil.rmtree(store)

    def rows(self, busy: Log, month: Log) -> Iterator[Row]:
        """Measure everything, grep first."""
        fixed = self.cost(["grep", "-cF", MARK, str(busy.path)], locale="C")
        plain = self.cost(["grep", "-c", MARK, str(busy.path)])
        grep_s = min(fixed.cpu_s, plain.cpu_s)
        yield Row("LC_ALL=C grep -cF", fixed, grep_s / fixed.cpu_s, {})
        yield Row("grep -c", plain, grep_s / plain.cpu_s, {})
        parsed, replayed = self.cost(parse_command(busy.path)), self.replay(busy.path)
        yield big_row("parse only", parsed, grep_s, PARSE_SHARE, busy.records)
        yield big_row("whole replay", replayed, grep_s, REPLAY_SHARE, busy.records)
        days = self.replay(month.path)
        limits = at_most(days, MONTH_CPU_S) | small(days) | whole(days, month.records)
        yield Row("30 days of one engine", days, None, limits)
        asked = self.cost([sys.executable, "-m", "kvlogd", "--help"])
        yield Row("kvlogd --help", asked, None, at_most(asked, HELP_CPU_S))


def big_row(name: str, cost: Cost, grep_s: float, share: float, records: int) -> Row:
    """Return the row of a command that read the big log: held against grep's rate, and against the memory limit."""
    got = grep_s / cost.cpu_s
    limits = {f"rate >= {share:.0%} of grep": got >= share} | small(cost) | whole(cost, records)
    return Row(name, cost, got, limits)


def whole(cost: Cost, records: int) -> dict[str, bool]:
    """Return whether a command read every record, without which its speed says nothing."""
    return {f"{records:,} records": cost.records == records}


def small(cost: Cost) -> dict[str, bool]:
    """Return the memory limit and whether a command kept it."""
    return {f"memory <= {PEAK_MB} MB": cost.peak_mb <= PEAK_MB}


def at_most(cost: Cost, cpu_s: float) -> dict[str, bool]:
    """Return a limit of CPU-seconds and whether a command kept it."""
    return {f"CPU < {cpu_s} s": cost.cpu_s < cpu_s}


def table(rows: Sequence[Row]) -> str:
    """Return the report as aligned text."""
    lines = [f"{'':24}{'CPU s':>8}{'wall s':>8}{'peak MB':>9}{'of grep':>9}   limits"]
    for row in rows:
        share = "" if row.share is None else f"{row.share:.0%}"
        limits = "; ".join(f"{limit}: {'ok' if kept else 'MISSED'}" for limit, kept in row.limits.items())
        if row.cost.status:
            limits = f"FAILED with exit status {row.cost.status}: {row.cost.said or 'it found something'}"
        figures = f"{row.cost.cpu_s:8.2f}{row.cost.wall_s:8.2f}{row.cost.peak_mb:9.0f}{share:>9}"
        lines.append(f"{row.name:24}{figures}   {limits}".rstrip())
    return "\n".join(lines)


def as_json(rows: Sequence[Row], size: int) -> str:
    """Return the report as one JSON object."""
    measured = [
        {"name": row.name, **row.cost._asdict(), "share_of_grep": row.share, "limits": row.limits, "ok": row.kept}
        for row in rows
    ]
    return json.dumps({"bytes": size, "rows": measured})


def say(text: str) -> None:
    """Tell on stderr what happens."""
    print(text, file=sys.stderr, flush=True)


def size_of(text: str) -> int:
    """Return the bytes that a size such as `1GB` or `200MB` means. Raises ArgumentTypeError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([MG])B", text)
    if not found:
        raise argparse.ArgumentTypeError("must be like 200MB or 1GB")
    return int(float(found[1]) * {"M": 1_000_000, "G": 1_000_000_000}[found[2]])


def main() -> int:
    """Run the benchmark that the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(description="Measure `kvlogd replay` against grep on a log made for it.")
    parser.add_argument("--size", type=size_of, default="1GB", metavar="SIZE", help="of the log (default: 1GB)")
    parser.add_argument(
        "--repeat", type=int, default=3, metavar="N", help="runs of each command, of which the best counts"
    )
    parser.add_argument("--folder", type=Path, help="where the temporary folder goes (default: the system's)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvlogd-bench-", dir=options.folder) as folder:
        bench = Bench(Path(folder), max(1, options.repeat))
        rows = list(bench.rows(bench.busy(options.size), bench.month()))
    print(as_json(rows, options.size) if options.json else table(rows))
    return 0 if all(row.kept for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
