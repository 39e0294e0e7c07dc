"""Many vLLM servers that log at once, with chatter, restarts and rotations, for measurements that last.

Deterministic in its seed but for the times. Each server's records are counted, so that a reader can be held to them.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path

INTERVAL_S = 10.0
"""vLLM's own."""
MEAN_LIFE_S = 7200.0
LEAK_ONE_IN = 50
TWO_ENGINES_ONE_IN = 5
"""So many servers have two data-parallel engines."""


class Server:
    """One vLLM server and its log, which it holds open, as vLLM's own redirection does."""

    def __init__(self, log: Path, number: int, born_s: float) -> None:
        self.log = log
        self.records = 0
        self.lines = 0
        self._random = random.Random(number)
        self._number = number
        self._leaks = number % LEAK_ONE_IN == 7
        self._engines = 2 if number % TWO_ENGINES_ONE_IN == 0 else 1
        self._out = log.open("a")
        self._start(born_s)

    def write(self, lines: int, now_s: float) -> None:
        """Log so many lines: the records that are due among them, the others what requests leave."""
        if now_s >= self._ends_s:
            self._start(now_s)
        due = list(self._due(now_s))
        chatter = [self._chatter() for _ in range(lines - len(due))]
        half = len(chatter) // 2
        self._put([*chatter[:half], *due, *chatter[half:]])

    def rotate(self) -> None:
        """Do as logrotate with `rotate 1` and a server that opens its log anew."""
        self.log.replace(self.log.with_name(f"{self.log.name}.1"))
        self._put([self._chatter()])  # what is written before the server is told
        self._out.close()
        self._out = self.log.open("a")

    def close(self) -> None:
        """Let go of the log."""
        self._out.close()

    def _put(self, lines: list[str]) -> None:
        self._out.write("".join(lines))
        self._out.flush()
        self.lines += len(lines)

    def _start(self, now_s: float) -> None:
        self._pid = 1000 + self._random.randrange(60_000)
        self._running = [self._random.randint(0, 12) for _ in range(self._engines)]
        self._hit_rate = 40.0
        self._lost = 0.0
        self._began_s, self._ends_s = now_s, now_s + self._random.expovariate(1 / MEAN_LIFE_S) + 600.0
        self._next_s = now_s + self._random.random() * INTERVAL_S
        self._put([f"{line}\n" for line in self._banner(now_s)])

    def _head(self, now_s: float) -> str:
        return f"(APIServer pid={self._pid}) INFO {time.strftime('%m-%d %H:%M:%S', time.gmtime(now_s))}"

    def _banner(self, now_s: float) -> Iterator[str]:
        head = self._head(now_s)
        core = f"(EngineCore pid={self._pid + 1}) INFO {head.rsplit('INFO ', 1)[1]}"
        yield f"{head} [utils.py:299]   version 0.28.0"
        yield f"{core} [core.py:105] Initializing a V1 LLM engine (v0.28.0) with config: model='bench/model'"
        yield f"{core} [kv_cache_utils.py:1319] GPU KV cache size: 812,416 tokens"
        yield f"(APIServer pid={self._pid}) INFO:     Application startup complete."

    def _due(self, now_s: float) -> Iterator[str]:
        while self._next_s <= now_s:
            at_s = self._next_s
            self._next_s += INTERVAL_S
            for engine in range(self._engines):
                yield self._record(engine, at_s)
                self.records += 1

    def _record(self, engine: int, at_s: float) -> str:
        draw = self._random.random
        running = min(24, max(0, self._running[engine] + self._random.randint(-2, 2)))
        self._running[engine] = running
        self._hit_rate = min(80.0, max(5.0, self._hit_rate + draw() - 0.5))
        self._lost += 0.05 if self._leaks else 0.0
        usage = min(99.9, running * (1.4 + 0.3 * draw()) + self._lost)
        return (
            f"{self._head(at_s)} [loggers.py:271] Engine {engine:03d}: "
            f"Avg prompt throughput: {running * (100 + 50 * draw()):.1f} tokens/s, "
            f"Avg generation throughput: {running * (27 + 2 * draw()):.1f} tokens/s, "
            f"Running: {running} reqs, Waiting: {int(draw() * 1.1)} reqs, "
            f"GPU KV cache usage: {usage:.1f}%, Prefix cache hit rate: {self._hit_rate:.1f}%\n"
        )

    def _chatter(self) -> str:
        host, port = self._random.randrange(1, 255), self._random.randrange(1024, 65535)
        asked = f'10.1.0.{host}:{port} - "POST /v1/chat/completions HTTP/1.1"'
        return f"(APIServer pid={self._pid}) INFO:     {asked} 200 OK\n"


class Fleet:
    """All servers of a host, each with a log of its own in a folder."""

    def __init__(self, folder: Path, count: int, past_s: float, now_s: float) -> None:
        """Begin with what was logged in the last `past_s`: records, and hardly anything else."""
        self.servers = [
            Server(folder / f"server-{number:03d}.log", number, now_s - past_s - 1.0) for number in range(count)
        ]
        for server in self.servers:
            for ago in range(int(past_s // 60), 0, -1):
                server.write(8, now_s - 60.0 * ago)
        self._next = self._rotated = 0

    def write(self, lines_per_s: float, for_s: float, now_s: float) -> None:
        """Write what is logged within `for_s`, by those whose turn it is: each has one a second."""
        count = len(self.servers)
        turns = max(1, round(count * for_s))
        for _ in range(turns):
            self.servers[self._next].write(round(lines_per_s / count), now_s)
            self._next = (self._next + 1) % count

    def rotate(self) -> None:
        """Rotate the log whose turn it is."""
        self.servers[self._rotated].rotate()
        self._rotated = (self._rotated + 1) % len(self.servers)

    def records(self) -> int:
        """Return how many stats records stand in the logs."""
        return sum(server.records for server in self.servers)

    def lines(self) -> int:
        """Return how many lines were written."""
        return sum(server.lines for server in self.servers)

    def close(self) -> None:
        """Let go of all logs."""
        for server in self.servers:
            server.close()
