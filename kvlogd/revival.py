"""Brings the stream of a log to where it stood when kvlogd last stored anything of it.

From the memory that was stored with the rows, where this very kvlogd wrote it, and the rows since; else from all
stored rows of the lives that go on. Alerts stand as their rows say: none is told again, none is forgotten.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import tzinfo

from kvlogd import memory
from kvlogd.alerts import Standing
from kvlogd.engines import Ids
from kvlogd.model import Run
from kvlogd.pipeline import Pipeline
from kvlogd.rows import Memory
from kvlogd.rules import Rule
from kvlogd.store import Store
from kvlogd.stream import Stream
from kvlogd.track import Past


class Revival:
    """What the store holds of the past, read once at the start; `code` says which memories can be understood."""

    def __init__(self, store: Store, rules: Sequence[Rule], code: str) -> None:
        self.ids = Ids(store.engines(), store.runs())
        self._store = store
        self._rules = rules
        self._code = code
        self._revived: set[str] = set()
        """Logs of which the store is asked anew, should they speak again."""
        self._load(store.memories())

    def _load(self, memories: Iterable[Memory]) -> None:
        store = self._store
        self._engines = {engine.engine_id: engine for engine in store.engines()}
        self._open_runs = [run for run in store.runs() if run.ended_s is None]
        self._standings = store.standings()
        self._memories = {one.source: one.memory for one in memories if one.code == self._code}

    def logs(self) -> set[str]:
        """Return the logs of which something goes on."""
        return {self._engines[run.engine_id].source for run in self._open_runs} | self.alerting()

    def alerting(self) -> set[str]:
        """Return the logs about which an alert stands."""
        return {standing.source for standing in self._standings}

    def leave(self, logs: Iterable[str]) -> None:
        """Leave these as they are, unless they speak again."""
        for log in logs:
            self._revived.add(log)
            self._memories.pop(log, None)

    def standings_without(self, logs: Iterable[str]) -> list[Standing]:
        """Return the alerts about logs that are none of these: nobody will judge them any more."""
        followed = set(logs)
        return [standing for standing in self._standings if standing.source not in followed]

    def stream(self, log: str, zone: tzinfo) -> tuple[Stream, Iterator[None]]:
        """Return the stream of a log and the steps that bring it to where it stood.

        Of one that was let go since, and speaks again, the store is asked anew.
        """
        if log in self._revived:
            self._load(self._store.memories(log))
        self._revived.add(log)
        runs = [run for run in self._open_runs if self._engines[run.engine_id].source == log]
        pipeline = self._remembered(log, runs) or Pipeline(log, self.ids, self._rules)
        since_s = {track.life.run.run_id: track.window.last.ts_s for track in pipeline.tracks() if track.window.last}
        past: list[Past] = [
            (self._engines[run.engine_id], run, self._store.lines_of(run.run_id, since_s.get(run.run_id)))
            for run in runs
        ]
        standings = [standing for standing in self._standings if standing.source == log]
        stream = Stream(log, zone, pipeline)
        return stream, self._steps(stream, past, standings)

    def _steps(self, stream: Stream, past: Sequence[Past], standings: Sequence[Standing]) -> Iterator[None]:
        yield from stream.pipeline.recall(past, standings)
        stream.go_on()

    def _remembered(self, log: str, runs: Sequence[Run]) -> Pipeline | None:
        """Return the pipeline that was stored, where it watched the very lives that go on."""
        data = self._memories.pop(log, None)
        pipeline = memory.thawed(data, self._rules, self.ids) if data is not None else None
        if pipeline is None or {t.life.run.run_id for t in pipeline.tracks()} != {run.run_id for run in runs}:
            return None
        return pipeline
