"""Writes logs as vLLM would, from a description of what the engine goes through.

`python -m tests.logs` writes tests/data/cases anew; a test holds that they are what this file makes. Everything in
them is made up. Deterministic: the same course gives the same bytes.
"""

import gzip
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

CASES = Path(__file__).parent / "data" / "cases"
START = datetime(2026, 3, 2, 9, 0, 0, tzinfo=UTC)
POOL_TOKENS = 65_536


class Server:
    """One vLLM server and its log, in the words of 0.18 to 0.29; `now` goes on with what happens."""

    def __init__(self, pid: int = 4319, *, start: datetime = START, interval_s: float = 10.0, seed: int = 1) -> None:
        self.pid = pid
        self.now = start
        self.interval_s = interval_s
        self.version = "0.20.0"
        self.prefixed = True
        self.stats_file = "loggers.py:257"
        self.lines: list[tuple[datetime, str]] = []
        self.records = 0
        self._random = random.Random(seed)

    def text(self) -> bytes:
        """Return the log so far."""
        return "".join(f"{line}\n" for _, line in self.lines).encode()

    def log(self, file: str, message: str, *, level: str = "INFO", process: str = "APIServer", pid: int = 0) -> None:
        """Write a line of vLLM's own logger."""
        head = f"({process} pid={pid or self.pid}) " if self.prefixed else ""
        self.lines.append((self.now, f"{head}{level} {self.now:%m-%d %H:%M:%S} [{file}] {message}"))

    def uvicorn(self, message: str, *, level: str = "INFO") -> None:
        """Write a line of the web server: no stamp, and the wrapper's prefix."""
        head = f"(APIServer pid={self.pid}) " if self.prefixed else ""
        self.lines.append((self.now, f"{head}{level + ':':<9} {message}"))

    def post(self) -> None:
        """Write that a request came."""
        self.uvicorn('10.0.0.7:51234 - "POST /v1/chat/completions HTTP/1.1" 200 OK')

    def pause(self, seconds: float) -> None:
        """Let time pass in silence."""
        self.now += timedelta(seconds=seconds)

    def start(self, *, extra_args: str = "") -> None:
        """Write what a server writes until it is ready, in 40 s."""
        self.log("utils.py:297", f"  █   version {self.version}")
        self.log("utils.py:297", "  █   model   acme/chat-8b")
        self.log("utils.py:233", f"non-default args: {{'model': 'acme/chat-8b', 'max_model_len': 8192{extra_args}}}")
        self.pause(10)
        core = self.pid + 80
        config = f"Initializing a V1 LLM engine (v{self.version}) with config: model='acme/chat-8b', seed=0"
        self.log("core.py:105", config, process="EngineCore", pid=core)
        self.pause(20)
        sized = f"GPU KV cache size: {POOL_TOKENS:,} tokens"
        self.log("kv_cache_utils.py:1307", sized, process="EngineCore", pid=core)
        most = f"Maximum concurrency for 8,192 tokens per request: {POOL_TOKENS / 8192:.2f}x"
        self.log("kv_cache_utils.py:1312", most, process="EngineCore", pid=core)
        self.pause(8)
        took = "init engine (profile, create kv cache, warmup model) took 8.20 s"
        self.log("core.py:272", took, process="EngineCore", pid=core)
        self.pause(2)
        self.log("api_server.py:580", "Starting vLLM server on http://0.0.0.0:8000")
        self.uvicorn("Application startup complete.")

    def stop(self) -> None:
        """Write a graceful end."""
        self.log("launcher.py:110", "Shutting down FastAPI HTTP server.")
        self.uvicorn("Shutting down")
        self.uvicorn("Application shutdown complete.")

    def restart(self, *, after_s: float = 5.0) -> None:
        """Begin another life, in another process."""
        self.pause(after_s)
        self.pid += 1000
        self.start()

    def record(
        self,
        running: int,
        usage: float,
        *,
        waiting: int = 0,
        prompt: float | None = None,
        generation: float | None = None,
        extra: str = "",
        level: str = "INFO",
        engine: int = 0,
        step: bool = True,
    ) -> None:
        """Let an interval pass and write its record. Throughputs not given are those of a usual load."""
        if step:
            self.pause(self.interval_s)
        prompt = 200.0 * running * self.spread(0.1) if prompt is None else prompt
        generation = 30.0 * running * self.spread(0.05) if generation is None else generation
        usage = min(100.0, max(0.0, 100 * usage))
        self.records += 1
        self.log(
            self.stats_file,
            f"Engine {engine:03d}: Avg prompt throughput: {prompt:.1f} tokens/s, "
            f"Avg generation throughput: {generation:.1f} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, "
            f"{extra}GPU KV cache usage: {usage:.1f}%, Prefix cache hit rate: 21.4%",
            level=level,
        )

    def busy(self, records: int, running: int, usage: float, *, grows: float = 0.0, noise: float = 0.02) -> float:
        """Write the records of a usual load, blocks being lost at `grows` a record; return the last true usage."""
        for _ in range(records):
            usage += grows
            now = max(1, running + self._random.choice((-1, 0, 0, 1)))
            self.post()
            self.record(now, usage * (1 + noise * self._random.gauss(0, 1)) * (0.9 + 0.1 * now / running))
        return usage

    def settle(self, usage: float) -> None:
        """Write the one record that ends a busy spell."""
        self.record(0, usage, prompt=0.0, generation=0.0)

    def spread(self, by: float) -> float:
        """Return a factor near 1."""
        return 1 + by * self._random.uniform(-1, 1)


def healthy_log() -> bytes:
    """Return a short log of which nothing is to be told."""
    server = Server(seed=31)
    server.start()
    server.busy(30, 4, 0.2)
    server.settle(0.0)
    return server.text()


# --- the cases


def leak_at_constant_load() -> Server:
    """Eight run all the time; from the 120th record on every request loses a block."""
    server = Server(seed=2)
    server.start()
    usage = server.busy(120, 8, 0.30)
    server.busy(400, 8, usage, grows=0.0010)
    return server


def residue_ratchets() -> Server:
    """Bursts with idle spells between them; from the fourth on each burst leaves 1.6 % of the pool behind."""
    server = Server(seed=3)
    server.start()
    for _ in range(3):
        server.busy(6, 6, 0.25)
        server.settle(0.0)
        server.pause(90)
    for burst in range(12):
        server.pause(90)
        server.busy(6, 6, 0.25 + 0.016 * burst)
        server.settle(0.016 * (burst + 1))
    return server


def lease_that_ends() -> Server:
    """A prefill server holds what its peer has lost, twice, until the lease of 480 s ends."""
    server = Server(seed=4)
    connector = ", 'kv_transfer_config': KVTransferConfig(kv_connector='NixlConnector', kv_role='kv_producer')"
    server.start(extra_args=connector)
    for _ in range(2):
        for _ in range(12):
            server.busy(3, 4, 0.12)
            server.settle(0.001)
            server.pause(20)
        server.busy(3, 4, 0.44)
        server.settle(0.32)
        for _ in range(9):
            server.pause(22)
            server.busy(2, 4, 0.44)
            server.settle(0.32)
        server.pause(18)
        for request in range(8):
            server.log(
                "nixl_connector.py:1870",
                f"Releasing expired KV blocks for request cmpl-{request} which were retrieved by "
                "0 decode worker(s) within 480 seconds.",
                level="WARNING",
                process="EngineCore",
                pid=server.pid + 80,
            )
        server.busy(2, 4, 0.12)
        server.settle(0.001)
    return server


def hang_with_silence() -> Server:
    """The engine core stands still: one record without throughput, then only requests that come; a restart cures."""
    server = Server(seed=5)
    server.start()
    server.busy(90, 6, 0.28)
    server.record(6, 0.28, prompt=0.0, generation=0.0)
    for _ in range(40):
        server.pause(15)
        server.post()
    server.log("launcher.py:110", "Shutting down FastAPI HTTP server.")
    server.restart()
    server.busy(30, 6, 0.28)
    return server


def long_prefill() -> Server:
    """Prompts of half the pool: up to 150 s without a token, again and again."""
    server = Server(seed=6)
    server.start()
    for length in (60, 150, 30, 120, 150, 90):
        server.busy(20, 3, 0.2)
        server.record(2, 0.62, prompt=0.0, generation=0.0)
        server.pause(length - 10)
        server.record(2, 0.65, prompt=31_000.0 / 10, generation=22.0)
    server.busy(10, 3, 0.2)
    return server


def frozen_after_abort() -> Server:
    """All clients hang up at once, at log level DEBUG: the same record for ten minutes, until the next request."""
    server = Server(seed=7)
    server.stats_file = "v1/metrics/loggers.py:257"
    server.start()
    server.busy(60, 40, 0.55)
    for _ in range(60):
        server.record(38, 0.551, prompt=0.0, generation=0.0, level="DEBUG")
    server.busy(5, 2, 0.03)
    server.settle(0.0)
    return server


def statistics_off() -> Server:
    """Started with --disable-log-stats; requests are served for half an hour."""
    server = Server(seed=8)
    server.start(extra_args=", 'disable_log_stats': True")
    for _ in range(120):
        server.pause(15)
        server.post()
    server.log("api_router.py:39", "Resetting prefix cache...")
    return server


def two_servers() -> list[tuple[datetime, str, int]]:
    """Two servers of 0.6 under one unit: no process prefix, one nearly full, one nearly empty."""
    lines: list[tuple[datetime, str, int]] = []
    for pid, usage, shift in ((2211, 0.71, 0.0), (2290, 0.02, 2.0)):
        server = Server(pid, seed=pid, interval_s=5.0, start=START + timedelta(seconds=shift))
        server.prefixed = False
        server.busy(150, 6, usage, noise=0.01)
        lines += [(at, line, pid) for at, line in server.lines]
    return sorted(lines)


def journal_of_two() -> bytes:
    """Return the two servers as the journal's short form shows them."""
    return "".join(f"{at:%b %d %H:%M:%S} gpu01 vllm[{pid}]: {line}\n" for at, line, pid in two_servers()).encode()


def full_and_flowing() -> Server:
    """More requests than room: the pool is full and a few wait, and tokens flow as ever."""
    server = Server(seed=10)
    server.start()
    for running, usage in ((10, 0.4), (16, 0.62), (22, 0.85)):
        server.busy(6, running, usage)
    for i in range(300):
        server.post()
        server.record(26 + i % 3, 0.975 + 0.02 * ((i * 7) % 10) / 10, waiting=(i * 5) % 4)
    for running, usage in ((14, 0.55), (6, 0.22), (2, 0.06)):
        server.busy(6, running, usage)
    server.settle(0.0)
    return server


def endless_generation() -> Server:
    """One request that never ends: the pool fills with its own tokens, which pay for every block."""
    server = Server(seed=11)
    server.start()
    server.busy(40, 1, 0.04)
    tokens = 0.04 * POOL_TOKENS
    while tokens < 0.9 * POOL_TOKENS:
        rate = 31.0 * server.spread(0.03)
        tokens += 10 * rate
        server.record(1, tokens / POOL_TOKENS, prompt=0.0, generation=rate)
    server.settle(0.0)
    return server


def load_that_grows() -> Server:
    """Ever more users: what is in use grows with what runs, and only so."""
    server = Server(seed=12)
    server.start()
    for i in range(480):
        running = 3 + i // 20
        server.busy(1, running, 0.03 * running, noise=0.03)
    return server


def healthy_restarts() -> Server:
    """Six deploys of a healthy server, half an hour apart."""
    server = Server(seed=13)
    server.start()
    for _ in range(5):
        server.busy(150, 8, 0.30)
        server.stop()
        server.restart()
    server.busy(150, 8, 0.30)
    server.settle(0.0)
    return server


def made() -> dict[str, Callable[[], bytes]]:
    """Return the maker of each case's text, by the case's name."""
    servers = {
        "leak-at-constant-load": leak_at_constant_load,
        "residue-ratchets": residue_ratchets,
        "lease-that-ends": lease_that_ends,
        "hang-with-silence": hang_with_silence,
        "long-prefill": long_prefill,
        "frozen-after-abort": frozen_after_abort,
        "statistics-off": statistics_off,
        "full-and-flowing": full_and_flowing,
        "endless-generation": endless_generation,
        "load-that-grows": load_that_grows,
        "healthy-restarts": healthy_restarts,
    }
    makers: dict[str, Callable[[], bytes]] = {name: _text_of(make) for name, make in servers.items()}
    return makers | {"two-servers": journal_of_two}


def _text_of(make: Callable[[], Server]) -> Callable[[], bytes]:
    return lambda: make().text()


def main() -> None:
    """Write every case's log."""
    for name, make in made().items():
        (CASES / f"{name}.log.gz").write_bytes(gzip.compress(make(), mtime=0))


if __name__ == "__main__":
    main()
