"""One source's way from parsed lines to rows, findings and alerts; `replay` and the daemon both drive it.

Pure: time is that of the records. A tick falls on each half minute of it, silent stretches included, and after a
crash. The same lines give the same alerts however they are cut.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter

from kvlogd import alerts
from kvlogd.agenda import Agenda
from kvlogd.alerts import Standing, refuted
from kvlogd.course import PastLife
from kvlogd.engines import Fleet, Ids, Life
from kvlogd.evaluate import Bench, outlives_runs
from kvlogd.harvest import Harvest
from kvlogd.leap import JITTER_S, Leaps, Line
from kvlogd.model import (
    AlertEvent,
    AlertKey,
    AlertState,
    Broken,
    Engine,
    Event,
    EventKind,
    Finding,
    Judgement,
    Run,
    Scrape,
    Stats,
)
from kvlogd.rules import Rule
from kvlogd.track import Past, Track, dated
from kvlogd.window import SourceWindow, Window

TICK_S = 30.0
LONGEST_SILENCE_S = 86400.0
"""Of a longer silence only the first day is looked at tick by tick: nothing more can come of it."""
QUIET_END_S = 195.0
"""How far the clock runs on at the end of a log that goes on with lines without a stamp: less than a long prefill
may take, so that the end of a log is never taken for a hang with requests running."""
RELIVED_AT_ONCE = 2_000
"""Records of the past that are read without a pause."""
UNSTORED = frozenset({EventKind.REQUEST, EventKind.ALIVE, EventKind.ITERATION, EventKind.MFU, EventKind.DIFFUSION})
"""Lines whose mere presence counts, or whose numbers nobody asks for yet."""
MOST_STOPS = 16
"""Stops without a stamp that wait for the next one; more are of the same servers."""
PAST_LIVES = 4
"""Lives of an engine that are remembered besides the present one."""
SOURCE_WIDE = frozenset({EventKind.REQUEST, EventKind.SERVER_READY, EventKind.STATS_DISABLED, EventKind.ARGS})


class Pipeline:
    """The state of one source."""

    def __init__(self, source: str, ids: Ids, rules: Iterable[Rule]) -> None:
        self.source = source
        self.fleet = Fleet(source, ids)
        self.window = SourceWindow()
        self.counts: Counter[str] = Counter()
        """`stats`, `duplicates`, `events`."""
        self.first_s: float | None = None
        self.now_s: float | None = None
        self.abstained: dict[tuple[str, str], str] = {}
        """(rule, engine) -> what was missing, for the runs that ended without a judgement."""
        self.runs_seen: set[tuple[int, int]] = set()
        """(engine_id, run_id)"""
        self.past: dict[int, tuple[PastLife, ...]] = {}
        """engine_id -> its latest lives that have ended."""
        self._going_on: dict[str, list[Standing]] = {}
        """Alerts that outlived the last run of an engine, by its label."""
        self._rules = tuple(rules)
        self._agenda = Agenda(self._rules)
        self.leaps = Leaps()
        self._source_bench = Bench.of_source(self._rules, source)
        self._tracks: dict[int, Track] = {}
        self.next_tick_s = 0.0
        self._alive_unstamped = False
        self._undated_stops: list[Event] = []
        self._samples: list[Stats] = []
        self._sample_runs: list[int] = []
        self._events: list[tuple[int | None, int | None, Event]] = []
        self._scrapes: list[tuple[int, int, Scrape]] = []
        self._alert_events: list[AlertEvent] = []
        self._standings: dict[AlertKey, Standing] = {}
        """As they were harvested last."""
        self._recalls = False
        """What is read happened before: its alerts were told then."""

    def take(self, found: Iterable[Stats | Event]) -> None:
        """Take in the next lines of the source; those whose stamps leap wait for the next ones."""
        for one in found:
            self._believe(self.leaps.weigh(one, self.now_s))

    def _believe(self, found: Iterable[Line]) -> None:
        for one in found:
            if isinstance(one, Stats):
                self._stats(one)
            else:
                self._event(one)

    def settle(self, latest_s: float | None = None) -> None:
        """Take in what waits, for nothing more is there; but for stamps later than `latest_s`, which cannot be."""
        self._believe(self.leaps.settle(latest_s))

    def scraped(self, scrape: Scrape) -> bool:
        """Take in what /metrics told of one engine; return whether it is known which.

        It moves no clock: what the rules make of it comes at a tick.
        """
        at_s = scrape.ts_s if self.now_s is None else self.now_s
        life = self.fleet.life_scraped(scrape, at_s)
        if self.fleet.ended:
            self._close_ended(at_s)
        if life is None:
            return False
        track = self._tracks.get(life.run.run_id) or self._open(life)
        track.window.run = life.run
        track.window.scraped(scrape, at_s)
        self._scrapes.append((life.engine.engine_id, life.run.run_id, scrape))
        return True

    def advance(self, to_s: float) -> None:
        """Let time pass: evaluate the rules at each tick up to `to_s`."""
        if self.now_s is None:
            self.first_s = to_s
            self.next_tick_s = to_s - to_s % TICK_S + TICK_S
        elif to_s >= self.next_tick_s:
            end_s = min(to_s, self.next_tick_s + LONGEST_SILENCE_S)
            while self.next_tick_s <= end_s:
                self._tick(self.next_tick_s)
                self.next_tick_s += TICK_S
            if self.next_tick_s <= to_s:
                self.next_tick_s = to_s - to_s % TICK_S + TICK_S
        elif to_s < self.now_s:
            return
        self.now_s = to_s
        self._alive_unstamped = False
        if self._undated_stops:
            stops, self._undated_stops = self._undated_stops, []
            for stop in stops:
                self._apply(stop, to_s)

    def _step_back(self, to_s: float) -> None:
        """Believe a record whose time lies behind: one stamp from the future must not stop the clock for good."""
        self.now_s = to_s
        self.next_tick_s = to_s - to_s % TICK_S + TICK_S

    def finish(self, *, unparsed: int = 0, impossible: int = 0) -> None:
        """Say that the log is at its end: lines without a stamp behind the last stamp tell that time went on.

        Records since the last tick are judged as the next one would, and dated by it; no condition rests.
        `unparsed` and `impossible` are the parser's counts: they hang on how a log was cut until it is read to its end.
        """
        self.settle()
        if self.now_s is not None:
            self.advance(self.now_s + (QUIET_END_S if self._alive_unstamped else 0.0))
            for track in self._tracks.values():
                self._alert_events += track.bench.judge_newest(track.window, self.next_tick_s)
        self.window.unparsed, self.window.impossible = unparsed, impossible
        if self.now_s is not None and (unparsed or impossible):
            self._judge(self._source_bench, self.window, self.now_s)
        for track in self._tracks.values():
            self._note_abstained(track)

    def close_unconfirmed(self, told: Iterable[AlertEvent]) -> None:
        """End the alerts that an earlier reading told of at its log's end and that what came since does not confirm.

        To be asked once this reading is at its own end.
        """
        standing = {one.key for track in self._tracks.values() for one in track.bench.standings()}
        standing |= {one.key for one in self._source_bench.standings()}
        # what is about several lives can be confirmed only by who has seen them
        lasting = {rule.id for rule in self._rules if outlives_runs(rule)}
        latest = {event.key: event for event in told if event.key.rule not in lasting}
        for key, event in latest.items():
            if event.state is AlertState.FIRING and key not in standing and self.next_tick_s >= event.at_s:
                self._alert_events.append(refuted(event, max(self.now_s or 0.0, event.at_s)))

    def questions(self) -> Iterator[tuple[Rule, float]]:
        """Yield the rules whose query is due, each with the time it asks about; ask once what is read is stored."""
        if self.now_s is not None and self.first_s is not None:
            yield from self._agenda.due(self.first_s, self.now_s)

    def answer(self, rule: Rule, at_s: float, found: Mapping[str, Finding] | Broken) -> None:
        """Take in what the query of a rule found as of a time, by engine or source."""
        for bench in self._benches():
            self._alert_events += bench.answer(rule, found, at_s)

    def pending(self) -> int:
        """Return how many records wait to be harvested."""
        return len(self._samples)

    def is_alerting(self) -> bool:
        """Tell whether an alert stands, as it was harvested last, or one waits to be."""
        return bool(self._standings or self._alert_events)

    def has_news(self) -> bool:
        """Tell whether something that people may see waits to be harvested."""
        return bool(self._alert_events)

    def resume(self, lives: Iterable[Past]) -> None:
        """Bring windows, rules and alerts to where they stood, from what is stored of the runs that had not ended.

        Of each run, records and events come in order of time.
        """
        for _ in self._relive(lives):
            pass
        self.harvest()

    def recall(self, lives: Iterable[Past], standings: Iterable[Standing]) -> Iterator[None]:
        """Bring windows and rules to where they stood, a little each time; alerts stand as they are given.

        Runs that are under watch go on from what they remember.
        """
        self._recalls = True
        yield from self._relive(lives)
        self._recalls = False
        # an answer that did not get into the store is not asked for again: the next one decides
        if self.now_s is not None:
            self._agenda.go_on_from(self.now_s)
        self.harvest()
        self._restore({standing.key: standing for standing in standings})

    def _relive(self, lives: Iterable[Past]) -> Iterator[None]:
        past = [(self._tracks.get(run.run_id) or self._adopt(engine, run), lines) for engine, run, lines in lives]
        merged = heapq.merge(*(dated(track, lines) for track, lines in past), key=itemgetter(0))
        for number, (at_s, track, line) in enumerate(merged):
            if isinstance(line, Scrape):
                if not track.window.eyes.remembers(line):
                    track.window.scraped(line, line.ts_s if self.now_s is None else self.now_s)
                continue
            self.advance(at_s)
            if isinstance(line, Stats):
                track.window.observe(line)
            else:
                self._witness(track, line, at_s)
            if number % RELIVED_AT_ONCE == 0:
                yield

    def _restore(self, standings: Mapping[AlertKey, Standing]) -> None:
        """Take up the alerts as the store has them; those that nothing judges any more are over."""
        self._standings = dict(standings)
        for bench in self._benches():
            bench.restore(standings)
            for standing in bench.ask_for_more():
                self._alert_events += alerts.end(standing, self.now_s or standing.seen_s, "rule changed")
        known = {standing.key for bench in self._benches() for standing in bench.standings()}
        rules = {rule.id for rule in self._rules}
        for key, standing in standings.items():
            if key not in known and key.rule in rules and key.run is None and key.scope != self.source:
                self._going_on.setdefault(key.scope, []).append(standing)
            elif key not in known:
                reason = "restart" if key.rule in rules else "rule removed"
                self._alert_events += alerts.end(standing, self.now_s or standing.seen_s, reason)

    def without_evidence(self) -> list[tuple[str, str]]:
        """Return the rules about engines, each with its scope, that have had nothing to judge for a day."""
        now_s = self.now_s or 0.0
        return [pair for track in self._tracks.values() for pair in track.bench.without_evidence(now_s)]

    def at_work(self) -> Iterator[tuple[Rule, str, Judgement, Standing | None]]:
        """Yield each rule at work with its scope, its last word and its alert."""
        for bench in self._benches():
            yield from bench.at_work()

    def _benches(self) -> list[Bench]:
        return [self._source_bench, *(track.bench for track in self._tracks.values())]

    def _judge(self, bench: Bench, window: Window | SourceWindow, at_s: float) -> None:
        if self._recalls:
            bench.recall(window, at_s)
        else:
            found = bench.judge(window, at_s)
            if found:
                self._alert_events += found

    def _adopt(self, engine: Engine, run: Run) -> Track:
        life = self.fleet.adopt(engine, run)
        return self._open(life)

    def harvest(self) -> Harvest:
        """Return what came in since the last call and forget it; nothing waits then."""
        self.settle()
        fleet = self.fleet
        harvest = Harvest(
            fleet.new_engines,
            list(fleet.changed_runs.values()),
            self._samples,
            self._sample_runs,
            self._events,
            self._alert_events,
            *self._changed_standings(),
            self._scrapes,
        )
        fleet.new_engines, fleet.changed_runs = [], {}
        self._samples, self._sample_runs, self._events = [], [], []
        self._alert_events, self._scrapes = [], []
        return harvest

    def _changed_standings(self) -> tuple[list[Standing], list[AlertKey]]:
        now = {standing.key: standing for bench in self._benches() for standing in bench.standings()}
        now |= {standing.key: standing for between in self._going_on.values() for standing in between}
        before, self._standings = self._standings, now
        changed = [standing for key, standing in now.items() if before.get(key) != standing]
        return changed, [key for key in before if key not in now]

    def tracks(self) -> list[Track]:
        """Return the runs under watch."""
        return list(self._tracks.values())

    # --- records

    def _stats(self, stats: Stats) -> None:
        at_s = self.leaps.last_s = stats.ts_s
        self.window.requests_unseen = 0  # those before it have no time of their own: no silence lies behind them
        if self.now_s is not None and at_s < self.now_s - JITTER_S:
            self._step_back(at_s)
        if self.now_s is None or at_s >= self.next_tick_s or self._undated_stops:
            self.advance(at_s)
        elif at_s > self.now_s:
            self.now_s = at_s
        self._alive_unstamped = False
        life = self.fleet.life_of(stats)
        if self.fleet.ended:
            self._close_ended(at_s)
        track = self._tracks.get(life.run.run_id)
        if track is None:
            track = self._open(life)
        last = track.window.last
        if last is not None and at_s <= last.ts_s:
            if not self._is_new(track, stats):
                return
            track = self._tracks[life.run.run_id]  # a new one where the clock went back
        track.window.run = life.run
        track.window.observe(stats)
        self._samples.append(stats)
        self._sample_runs.append(life.run.run_id)
        self.window.stats_lines += 1
        self.window.stats_off_s = self.window.ready_s = None  # the log is not blind

    def _is_new(self, track: Track, stats: Stats) -> bool:
        """Return whether a record that does not go forward in time is no repetition; if the clock went back, say so."""
        if stats in track.window.recent:
            self.counts["duplicates"] += 1
            return False
        last = track.window.last
        if last is not None and stats.ts_s < last.ts_s - 2.0:
            self.counts["clock_back"] += 1
            self._events.append(
                (track.life.engine.engine_id, track.life.run.run_id, Event(stats.ts_s, EventKind.CLOCK_BACK))
            )
            self._open(track.life)
        return True

    def _open(self, life: Life) -> Track:
        window = Window(life.run)
        window.peers = self.window.engines
        window.peers[life.run.run_id] = window
        old = self._tracks.get(life.run.run_id)
        engine_id = life.engine.engine_id
        window.past = self.past.get(engine_id, ())
        going_on = self._going_on.pop(life.engine.label, ())
        bench = old.bench.renewed() if old is not None else Bench.of_engine(self._rules, life, going_on)
        track = self._tracks[life.run.run_id] = Track(life, window, bench)
        self.runs_seen.add((life.engine.engine_id, life.run.run_id))
        return track

    def _close_ended(self, at_s: float) -> None:
        for life in self.fleet.ended:
            track = self._tracks.pop(life.run.run_id, None)
            self.window.engines.pop(life.run.run_id, None)
            if track is not None:
                self._note_abstained(track, ended=True)
                self._alert_events += track.bench.end(at_s, "restart")
                self._remember(track, at_s)
        self.fleet.ended = []

    def _remember(self, track: Track, at_s: float) -> None:
        engine_id = track.life.engine.engine_id
        self._going_on[track.life.engine.label] = track.bench.standings()
        ended = track.window.ended(at_s)
        if ended is not None:
            self.past[engine_id] = (*self.past.get(engine_id, ()), ended)[-PAST_LIVES:]

    def _note_abstained(self, track: Track, *, ended: bool = False) -> None:
        for rule, why in track.bench.abstained(ended=ended):
            self.abstained[rule, track.life.engine.label] = why

    # --- events

    def _event(self, event: Event) -> None:
        self.counts["events"] += 1
        if event.kind is EventKind.CRASH:
            self.counts["crash"] += 1
        if event.ts_s is not None:
            if self.now_s is None or event.ts_s >= self.now_s:
                self.advance(event.ts_s)
        elif event.kind is EventKind.STOP:
            # uvicorn does not say when: not before the last stamp, and the silence until the next one was before it
            if len(self._undated_stops) < MOST_STOPS:
                self._undated_stops.append(event)
            return
        else:
            self._alive_unstamped = True
        self._apply(event, self.now_s or 0.0)

    def _apply(self, event: Event, at_s: float) -> None:
        life = self.fleet.event(event)
        if self.fleet.ended:
            self._close_ended(at_s)
        if event.kind in SOURCE_WIDE:
            self._source_event(event, at_s)
        if event.kind in UNSTORED or self.now_s is None:
            return
        track = self._tracks.get(life.run.run_id) if life is not None else None
        if track is not None and life is not None:
            track.window.run = life.run
            self._witness(track, event, at_s)
        ids = (life.engine.engine_id, life.run.run_id) if life is not None else (None, None)
        self._events.append((*ids, event if event.ts_s is not None else event._replace(ts_s=at_s)))

    def _witness(self, track: Track, event: Event, at_s: float) -> None:
        window = track.window
        before = window.crashed_s, window.stopped, window.paused
        window.event(event, at_s)
        if (window.crashed_s, window.stopped, window.paused) != before:
            track.bench.wake()  # no record may tell of it
        if window.crashed_s != before[0]:
            self._judge(track.bench, window, at_s)

    def _source_event(self, event: Event, at_s: float) -> None:
        source = self.window
        if event.kind is EventKind.REQUEST:
            source.requests_unseen += 1
        elif event.kind is EventKind.SERVER_READY:
            source.ready_s = at_s
            source.requests_unseen = 0
        elif event.kind is EventKind.STATS_DISABLED or "disable_log_stats" in event.numbers:
            source.stats_off_s = at_s

    # --- time

    def _tick(self, at_s: float) -> None:
        for track in self._tracks.values():
            self._judge(track.bench, track.window, at_s)
        if self.window.is_suspect() or self._source_bench.is_alerted():
            self._judge(self._source_bench, self.window, at_s)
