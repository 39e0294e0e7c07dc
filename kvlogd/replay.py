"""Replays logs that are already there: reads them in order, stores what they say and tells what the rules find.

The same parser, rules, alert state and store as the daemon, with the logs' own clock. Nothing is sent here.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import tzinfo
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from kvlogd.alerts import refuted
from kvlogd.cutter import Chunk
from kvlogd.engines import Ids
from kvlogd.envelope import Envelope, Unwrapper, sniff
from kvlogd.errors import ConfigError, KvlogdError, SourceError
from kvlogd.inquiry import inquire
from kvlogd.model import AlertEvent, AlertState, Gap
from kvlogd.outcome import Outcome, SourceReport
from kvlogd.parse import Parser
from kvlogd.pipeline import Pipeline
from kvlogd.reading import GPU_SOURCE, HOST_SOURCE
from kvlogd.rows import Batch, Position
from kvlogd.rules import Rule
from kvlogd.scan import Scanner
from kvlogd.sidecar import read_gpu, read_host
from kvlogd.sideline import TICK_S, Sideline, in_order
from kvlogd.source import LogFile, chunks, expand
from kvlogd.stamp import Stamper
from kvlogd.store import Store

LONGEST_REST_S = 660.0
"""What is found at a log's end, where no condition rests, is found again within that, or is not there: `skew` rests for
its ten minutes, and for up to a minute more until all are asked together."""
COMMIT_RECORDS = 20_000
"""Records that are committed together: a commit costs about 12 ms however small it is."""

Progress = Callable[[int, int], None]
"""Told the bytes read so far and in all."""


class Options(NamedTuple):
    """What `kvlogd replay` was asked."""

    zone: tzinfo
    year: int | None = None
    db: Path | None = None
    gpu_csv: Path | None = None
    host_csv: Path | None = None
    last_bytes: int | None = None
    """Of each file, which must not be packed, only so much of its end is read."""


@contextmanager
def opened_store(db: Path | None) -> Iterator[Store]:
    """Open the store of a replay: the one named, or one that is gone afterwards."""
    if db is not None:
        with Store.open(db) as store:
            yield store
        return
    with tempfile.TemporaryDirectory(prefix="kvlogd-replay-") as folder, Store.open(Path(folder) / "store") as store:
        yield store


def replay(
    paths: Sequence[Path], rules: Sequence[Rule], store: Store, options: Options, progress: Progress | None = None
) -> Outcome:
    """Read the logs into the store and return what was found. Raises StoreError; what cannot be read is in `errors`."""
    expanded = expand(paths)
    errors: list[KvlogdError] = list(expanded.errors)
    ids = Ids(store.engines(), store.runs())
    bytes_in_all = sum(file.size for file in expanded.files)
    done = 0
    reports = []
    for source, files in groupby(expanded.files, key=lambda file: file.source):
        reader = SourceReader(source, store, ids, rules, options)
        for file in files:
            for reached in reader.read(file):
                if progress is not None:
                    progress(done + reached, bytes_in_all)
            done += file.size
        errors += reader.errors
        reports.append(reader.finish())
        if not reports[-1].is_vllm and not reader.errors:
            errors.append(SourceError("has no line that vLLM wrote", where=source, mend="give the log of vLLM itself"))
    errors += _sidecars(store, rules, options)
    sources = {GPU_SOURCE, HOST_SOURCE, *(report.source for report in reports)}
    alerts = sorted((e for e in store.alert_events() if e.source in sources), key=lambda e: e.at_s)
    return Outcome(alerts, store.engines(), store.runs(), reports, errors)


class SourceReader:
    """Reads the files of one source, oldest first, through one pipeline."""

    def __init__(self, source: str, store: Store, ids: Ids, rules: Sequence[Rule], options: Options) -> None:
        self.errors: list[SourceError] = []
        self._source = source
        self._store = store
        self._options = options
        self._stamper = Stamper(year=options.year, zone=options.zone, mtime_s=None)
        self._parser = Parser(self._stamper)
        self._unwrapper = Unwrapper()
        self._scanner = Scanner(self._parser, self._unwrapper)
        self._pipeline = Pipeline(source, ids, rules)
        self._positions = store.positions(source)
        told = store.alert_events(source)
        self._told = {(event.key, event.state, event.at_s) for event in told}
        """What an earlier replay has stored already: its clock may have run on past the end of the log."""
        last = {event.key: event for event in told}
        self._firing = {key: event for key, event in last.items() if event.state is AlertState.FIRING}
        """Alerts that it left standing: at its end no condition rested, so that this one may find them later."""
        self._lines = 0
        self._waiting: list[Position] = []
        self._gaps: list[Gap] = []
        self._lost: list[Gap] = []
        """Gaps that are committed already."""
        self._resumed = False

    def read(self, file: LogFile) -> Iterator[int]:
        """Read one file from where it was left, committing as it goes; yield the bytes read so far."""
        start = self._positions.get(file.head_signature, 0)
        if start:
            self._resume()
        if self._options.last_bytes is not None:
            start = max(start, file.size - self._options.last_bytes)
        self._stamper.mtime_s = file.mtime_s
        first = True
        for chunk in chunks(file, start=start):
            if first:
                self._scanner.plain = sniff(chunk.data[: 64 * 1024]) is Envelope.PLAIN
                first = False
            self._take(file, chunk)
            if chunk.error is not None:
                self.errors.append(chunk.error)
                self._gaps.append(Gap(self._source, self._pipeline.now_s, "cut short", max(1, chunk.cut_lines)))
            yield min(chunk.end_offset, file.size)
        self._pipeline.take(self._scanner.finish())
        self._commit()

    def finish(self) -> SourceReport:
        """End the source: let its clock run out, commit, and report."""
        last = self._unwrapper.finish()
        if last is not None:
            found = self._parser.line(last.text, envelope_s=last.ts_s, envelope_pid=last.pid)
            self._pipeline.take([] if found is None else [found])
        newest_s = self._parser.newest_s
        self._pipeline.settle(self._stamper.latest_s())
        now_s = self._pipeline.now_s
        if newest_s is not None and now_s is not None and now_s < newest_s <= self._stamper.latest_s():
            self._pipeline.advance(newest_s)
        counts = self._parser.counts
        self._pipeline.finish(unparsed=counts["unparsed"], impossible=counts["impossible"])
        if self._resumed:
            self._commit()
            self._pipeline.close_unconfirmed(self._store.alert_events(self._source))
        lost = {**self._scanner.losses(), **self._pipeline.leaps.losses()}.items()
        self._gaps += [Gap(self._source, self._pipeline.now_s, reason, count) for reason, count in lost if count]
        self._commit()
        self._commit()  # what the rules' own queries found
        return self._report(self._lost)

    def _take(self, file: LogFile, chunk: Chunk) -> None:
        self._lines += chunk.data.count(b"\n") + chunk.partial
        if chunk.partial:
            self._pipeline.take(self._scanner.finish())
        found = self._scanner.last(chunk.data) if chunk.partial else self._scanner.feed(chunk.data)
        self._pipeline.take(found)
        if not chunk.partial or found:  # what may still grow is read again next time
            self._waiting = [Position(self._source, file.head_signature, chunk.end_offset)]
        if chunk.cut_lines and chunk.error is None:
            self._gaps.append(Gap(self._source, self._pipeline.now_s, "line too long", chunk.cut_lines))
        if self._pipeline.pending() >= COMMIT_RECORDS:
            self._commit()

    def _commit(self) -> None:
        self._pipeline.settle(self._stamper.latest_s())
        harvest = self._pipeline.harvest()
        self._store.commit(
            Batch(
                engines=harvest.engines,
                runs=harvest.runs,
                samples=harvest.samples,
                sample_runs=harvest.sample_runs,
                events=harvest.events,
                alert_events=[news for event in harvest.alert_events for news in self._news(event)],
                gaps=self._gaps,
                positions=self._waiting,
            )
        )
        self._lost += self._gaps
        self._waiting, self._gaps = [], []
        inquire(self._pipeline, self._store)

    def _news(self, event: AlertEvent) -> tuple[AlertEvent, ...]:
        """Return what an earlier replay has not told yet; to be asked of each event once, in their order."""
        if (event.key, event.state, event.at_s) in self._told:
            return ()
        before = self._firing.get(event.key)
        if before is None or event.at_s < before.at_s:
            return (event,)
        del self._firing[event.key]
        if event.state is not AlertState.FIRING or event.reason:
            return (event,)
        latest_s = before.at_s + LONGEST_REST_S
        is_the_same = before.key.run is None or event.at_s <= latest_s
        return () if is_the_same else (refuted(before, latest_s), event)

    def _resume(self) -> None:
        """Bring the pipeline to where it stood, from the store, once."""
        if self._resumed:
            return
        self._resumed = True
        engines = {e.engine_id: e for e in self._store.engines() if e.source == self._source}
        runs = [run for run in self._store.runs() if run.engine_id in engines and run.ended_s is None]
        self._pipeline.resume((engines[run.engine_id], run, self._store.lines_of(run.run_id)) for run in runs)

    def _report(self, gaps: Sequence[Gap]) -> SourceReport:
        pipeline, parser = self._pipeline, self._parser
        runs = pipeline.runs_seen
        stats_lines = pipeline.window.stats_lines
        return SourceReport(
            self._source,
            stats_lines,
            self._lines,
            parser.counts["unparsed"],
            pipeline.counts["duplicates"],
            len({engine_id for engine_id, _ in runs}),
            len(runs),
            pipeline.first_s,
            pipeline.now_s,
            gaps,
            [(rule, engine, why) for (rule, engine), why in sorted(pipeline.abstained.items())],
            None if stats_lines or self._resumed else self._why_blind(),
            bool(stats_lines or pipeline.counts["events"] or self._resumed or parser.counts["unparsed"]),
        )

    def _why_blind(self) -> str:
        """Return which of the known reasons for a log without stats records fits this one."""
        window = self._pipeline.window
        if window.stats_off_s is not None:
            return (
                "vLLM says that its statistics are off: start it without --disable-log-stats, "
                "and where it has several API servers, with --api-server-count 1"
            )
        if self._pipeline.counts["crash"]:
            return "the engine core died before it served anything: see the error above its traceback"
        if self._parser.counts["unparsed"]:
            return f"{self._parser.counts['unparsed']} stats-like lines have a shape that kvlogd does not know"
        if window.requests_unseen:
            return (
                "requests were served: statistics are off (--disable-log-stats, or --api-server-count above 1), "
                "or the log level is above INFO (VLLM_LOGGING_LEVEL)"
            )
        if self._pipeline.counts["events"]:
            return "vLLM has started, but no request came"
        return "no line of it was written by vLLM"


def _sidecars(store: Store, rules: Sequence[Rule], options: Options) -> list[ConfigError]:
    """Store the samples of the CSV files beside the log, and what the rules find in them."""
    errors: list[ConfigError] = []
    gpus = [] if options.gpu_csv is None else list(read_gpu(options.gpu_csv, options.zone, errors.append))
    hosts = [] if options.host_csv is None else list(read_host(options.host_csv, options.zone, errors.append))
    if not gpus and not hosts:
        return errors
    sideline = Sideline(rules)
    samples = in_order(gpus, hosts)
    sideline.take(samples)
    sideline.advance(samples[-1].ts_s + TICK_S)
    told = {(event.key, event.state, event.at_s) for event in store.alert_events()}
    found = [event for event in sideline.harvest().alert_events if (event.key, event.state, event.at_s) not in told]
    store.commit(Batch(gpu_samples=gpus, host_samples=hosts, alert_events=found))
    return errors
