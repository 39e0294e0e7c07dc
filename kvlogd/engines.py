"""Tells which engine and which of its lives a record belongs to: by source, server process and engine index.

A new process, or start-up lines after records, begin a run. Two processes whose records interleave are two
servers in one file; the second is called `SOURCE~2`.
Does not promise: to see a restart that prints nothing, keeps its process id and takes under a stats interval.
"""

from collections.abc import Iterable, Mapping
from itertools import chain, count

from kvlogd.model import Engine, Event, EventKind, Run, Scrape, Stats

STARTS = frozenset({EventKind.BANNER, EventKind.ARGS, EventKind.ENGINE_START, EventKind.SERVER_START})
ENDINGS = {EventKind.CRASH: "crash", EventKind.STOP: "stop", EventKind.KILLED: "killed"}
CONCURRENT_S = 60.0
"""A process whose last record is younger than this when another's first one comes is taken to be alive still."""

_FACTS = {
    "num_gpu_blocks": "blocks",
    "tokens": "kv_tokens",
    "max_len": "max_model_len",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "block_size": "block_size",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "tp": "tp",
    "pp": "pp",
    "dp": "dp",
}
_FACT_KINDS = STARTS | {EventKind.BLOCKS, EventKind.KV_TOKENS, EventKind.CONCURRENCY}


class Ids:
    """Hands out engine and run numbers; those that the store has already are found again by their label."""

    def __init__(self, engines: Iterable[Engine] = (), runs: Iterable[Run] = ()) -> None:
        self._engines = {engine.label: engine for engine in engines}
        self._lives: dict[int, int] = {}
        last_run = 0
        for run in runs:
            last_run = max(last_run, run.run_id)
            self._lives[run.engine_id] = max(self._lives.get(run.engine_id, 0), run.number)
        self._next_engine = count(1 + max((e.engine_id for e in self._engines.values()), default=0))
        self._next_run = count(1 + last_run)

    def engine(self, source: str, label: str, index: int | None) -> Engine:
        """Return the engine of that label, a new one if need be."""
        if label not in self._engines:
            self._engines[label] = Engine(next(self._next_engine), source, index, label)
        return self._engines[label]

    def run(self, engine: Engine, started_s: float, seen_from_start: bool) -> Run:
        """Return a new life of the engine."""
        number = self._lives[engine.engine_id] = self._lives.get(engine.engine_id, 0) + 1
        return Run(next(self._next_run), engine.engine_id, number, started_s, seen_from_start)


class Life:
    """One run of one engine: its rows, and what has been learned of it so far."""

    def __init__(self, engine: Engine, run: Run) -> None:
        self.engine = engine
        self.run = run
        self.is_scraped = False
        """/metrics told of it."""


class Server:
    """One server process of a source, through its restarts."""

    def __init__(self, name: str, pid: int | None) -> None:
        self.name = name
        self.pid = pid
        self.lives: dict[int | None, Life] = {}
        self.facts: dict[str, float | str] = {}
        self.has_connector: bool | None = None
        self.starting_s: float | None = None
        """When the first start-up line of this life stood in the log; None for a life seen from its middle."""
        self.starting_pid: int | None = None
        """Which process wrote it: most often the one that will write the records."""
        self.has_front = False
        """Its start-up lines come from another process than its records."""
        self.before: tuple[dict[str, float | str], bool | None] = ({}, None)
        """Facts and connector of the life before, in case it has not ended."""
        self.ending: str | None = None
        """Why the present life ends, if its log says so."""
        self.last_s = float("-inf")
        self.has_spoken = False
        """A record of the present lives stood in the log; else only /metrics told of them."""


class Fleet:
    """The servers and engines of one source. `changed` holds the rows that the store has not seen yet."""

    def __init__(self, source: str, ids: Ids) -> None:
        self.source = source
        self._ids = ids
        self._servers: list[Server] = []
        self._by_pid: dict[int | None, Server] = {}
        self.new_engines: list[Engine] = []
        self.changed_runs: dict[int, Run] = {}
        self.ended: list[Life] = []
        """Lives that ended since the caller last emptied this list."""

    def lives(self) -> list[Life]:
        """Return the present life of each engine."""
        return [life for server in self._servers for life in server.lives.values()]

    def life_of(self, stats: Stats) -> Life:
        """Return the life that a stats record belongs to, beginning one where the process is new."""
        server = self._by_pid.get(stats.pid)
        if server is None:
            server = self._meet(stats.pid, stats.ts_s)
            server.has_front |= server.starting_pid not in (None, stats.pid)
        elif not server.has_spoken and not server.has_front and server.starting_pid not in (None, stats.pid):
            self._part(server)
        server.last_s = stats.ts_s
        server.has_spoken = True
        key = (stats.engine_index or 0) if stats.engines is None else None
        if key is None and (stats.engines or 0) < 2 and set(server.lives) == {0}:
            key = 0  # the sum of one engine, which /metrics has told of before
        life = server.lives.get(key)
        return life or self._begin(server, key, stats.ts_s)

    def life_scraped(self, scrape: Scrape, at_s: float) -> Life | None:
        """Return the life that a scrape belongs to at a time of the log, beginning one where the log told of none yet.

        None where the log is that of several servers, for nobody can say which of them /metrics is of.
        """
        alive = [server for server in self._servers if server.lives] or self._servers or [self._add(None)]
        if len(alive) > 1:
            return None
        server = alive[0]
        is_sum = scrape.is_alone and set(server.lives) == {None}
        index = None if is_sum else scrape.engine_index
        known = server.lives.get(index)
        if known is not None and known.is_scraped and scrape.restarted:
            # another process, and the log did not say so: else this life would be new to /metrics
            self._end(server, "restart", at_s)
            server.pid = known = None
        life = known or self._begin(server, index, at_s)
        life.is_scraped = True
        self._complete(life, scrape)
        return life

    def _complete(self, life: Life, scrape: Scrape) -> None:
        """Learn the size of the pool where the log does not give it; of several engines 0.9.0 tells the sum."""
        run = life.run
        if run.blocks is None and scrape.blocks and scrape.is_alone:
            life.run = run._replace(blocks=scrape.blocks, block_size=run.block_size or scrape.block_size)
            self.changed_runs[run.run_id] = life.run

    def adopt(self, engine: Engine, run: Run) -> Life:
        """Take up a life that the store knows and that goes on; its next record tells its process id."""
        name = engine.label.rsplit("/", 1)[0]
        server = next((s for s in self._servers if s.name == name), None) or self._add(None)
        server.name = name
        life = server.lives[engine.engine_index] = Life(engine, run)
        server.has_connector = run.kv_connector
        return life

    def event(self, event: Event) -> Life | None:
        """Take in what an event says of its server; return a life that it belongs to, if there is one."""
        server = self._server_of(event)
        if event.kind in STARTS:
            self._starting(server, event)
        if event.kind in ENDINGS and server.ending is None:
            server.ending = ENDINGS[event.kind]
        if event.kind in _FACT_KINDS:
            self._learn(server, event)
        connected = _connected(event)
        if connected is not None and not server.has_connector:
            server.has_connector = connected
            for life in server.lives.values():
                life.run = life.run._replace(kv_connector=connected)
                self.changed_runs[life.run.run_id] = life.run
        return server.lives.get(event.engine_index) or next(iter(server.lives.values()), None)

    def _server_of(self, event: Event) -> Server:
        known = self._by_pid.get(event.pid)
        if known is not None:
            return known
        for server in reversed(self._servers):
            if server.starting_s is not None and not server.has_spoken:
                return server
        if not self._servers:
            return self._add(None)
        return self._servers[-1] if len(self._servers) == 1 else self._servers[0]

    def _meet(self, pid: int | None, ts_s: float) -> Server:
        """Return the server of a process id not seen before: a restart of a known one, or another server."""
        for server in self._servers:
            unbound = not server.has_spoken or server.pid is None
            if unbound or ts_s - server.last_s > CONCURRENT_S or server.ending:
                if not unbound:
                    self._end(server, server.ending or "restart", ts_s)
                # a process taken for dead that speaks again is no part of its successor
                self._by_pid = {known: of for known, of in self._by_pid.items() if of is not server}
                self._by_pid[pid] = server
                server.pid = pid
                return server
        return self._add(pid)

    def _add(self, pid: int | None) -> Server:
        taken = {server.name for server in self._servers}
        names = chain([self.source], (f"{self.source}~{number}" for number in count(2)))
        server = Server(next(name for name in names if name not in taken), pid)
        self._servers.append(server)
        self._by_pid[pid] = server
        return server

    def _part(self, server: Server) -> None:
        """Give the start-up lines of another process to a server of its own: this one goes on beside it."""
        other = self._add(server.starting_pid)
        other.starting_s, other.facts, other.has_connector = server.starting_s, server.facts, server.has_connector
        server.starting_s = server.starting_pid = None
        server.facts, server.has_connector = server.before

    def _starting(self, server: Server, event: Event) -> None:
        if server.lives and not self._is_late(server, event):
            self._end(server, server.ending or "restart", event.ts_s)
        if server.starting_s is None:
            server.starting_s = event.ts_s
        if event.kind is not EventKind.ENGINE_START:  # the engine core has a process of its own
            server.starting_pid = event.pid

    def _is_late(self, server: Server, event: Event) -> bool:
        """Return whether a start-up line is that of the present life, which /metrics told of before it was read."""
        begun_s = min(life.run.started_s for life in server.lives.values())
        return not server.has_spoken and event.ts_s is not None and event.ts_s <= begun_s

    def _end(self, server: Server, reason: str, ts_s: float | None) -> None:
        """End the present life of a server's engines; its facts go with it."""
        for life in server.lives.values():
            ended_s = server.last_s if ts_s is None else ts_s
            life.run = life.run._replace(ended_s=ended_s, end_reason=reason)
            self.changed_runs[life.run.run_id] = life.run
            self.ended.append(life)
        server.before = server.facts, server.has_connector
        server.lives = {}
        server.facts = {}
        server.has_connector = None
        server.ending = None
        server.starting_s = server.starting_pid = None
        server.has_spoken = False

    def _begin(self, server: Server, index: int | None, at_s: float) -> Life:
        label = f"{server.name}/{'all' if index is None else index}"
        engine = self._ids.engine(self.source, label, index)
        started_s = at_s if server.starting_s is None else server.starting_s
        run = self._ids.run(engine, started_s, server.starting_s is not None)
        run = run._replace(**server.facts, kv_connector=server.has_connector)  # type: ignore[arg-type]
        life = server.lives[index] = Life(engine, run)
        self.new_engines.append(engine)
        self.changed_runs[run.run_id] = life.run
        return life

    def _learn(self, server: Server, event: Event) -> None:
        facts = _facts(event)
        server.facts |= facts
        for life in server.lives.values():
            life.run = life.run._replace(**facts)  # type: ignore[arg-type]
            self.changed_runs[life.run.run_id] = life.run


def _connected(event: Event) -> bool | None:
    """Return whether an event tells of a KV connector, or that there is none; None where it says neither."""
    if event.kind in (EventKind.KV_TRANSFER, EventKind.KV_EXPIRED):
        return True
    told = event.numbers.get("kv_connector")
    return None if told is None else told > 0


def _facts(event: Event) -> Mapping[str, float | str]:
    """Return what an event says of a run, under the names of `Run`."""
    facts: dict[str, float | str] = {}
    for name, value in event.numbers.items():
        if name in _FACTS:
            column = _FACTS[name]
            facts[column] = value if column == "gpu_memory_utilization" else int(value)
    if event.version:
        facts["vllm_version"] = event.version
    if event.model:
        facts["model"] = event.model
    return facts
