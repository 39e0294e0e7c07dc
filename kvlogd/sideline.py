"""The way of readings of GPUs and hosts to alerts, beside the pipelines of the logs; `replay` and the daemon drive it.

Pure: time is that of the readings. A tick falls on each half minute of it and sees all readings up to it, so that the
same readings give the same alerts however they come. Promises that alerts stand as they are restored.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kvlogd import alerts
from kvlogd.alerts import Standing
from kvlogd.evaluate import Bench
from kvlogd.gauge import BACK_S, SPANS_S, GpuWindow, HostWindow
from kvlogd.model import AlertEvent, AlertKey, Judgement, Per
from kvlogd.reading import GPU_SOURCE, HOST, HOST_SOURCE, GpuSample, HostSample
from kvlogd.rules import Rule

TICK_S = 30.0
LONGEST_SILENCE_S = 86400.0
REMEMBERS_S = SPANS_S[-1]
"""How far back readings count."""


class SideHarvest(NamedTuple):
    """What came of the readings since the last harvest."""

    alert_events: Sequence[AlertEvent]
    standings: Sequence[Standing]
    """Alerts that began or changed."""
    over: Sequence[AlertKey]
    """Alerts that are neither pending nor firing any more."""


class Watched(NamedTuple):
    """One GPU or server under watch."""

    window: GpuWindow | HostWindow
    bench: Bench


def gpu_scope(gpu: str) -> str:
    """Return what messages call a GPU."""
    return f"gpu/{gpu}"


class Sideline:
    """The GPUs and servers of one host."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)
        self.gpus: dict[str, GpuWindow] = {}
        self.now_s: float | None = None
        self._watched: dict[str, Watched] = {}
        self._next_tick_s = 0.0
        self._alert_events: list[AlertEvent] = []
        self._standings: dict[AlertKey, Standing] = {}
        """As they were harvested last."""
        self._restored: dict[AlertKey, Standing] = {}
        """Alerts of the store whose GPU or server has not been met yet."""
        self._ended: set[str] = set()
        """Servers whose processes have ended: there is nothing to judge until others write the same log."""

    def take(self, samples: Iterable[GpuSample | HostSample]) -> None:
        """Take in the next readings, in order of time."""
        for sample in samples:
            self._reach(sample.ts_s)
            self._end_former(sample)
            self._observe(sample)

    def recall(self, samples: Iterable[GpuSample | HostSample], standings: Iterable[Standing] = ()) -> None:
        """Take in readings of the past: what came of them is known, and stands as given."""
        self._restored = {standing.key: standing for standing in standings}
        self._standings = dict(self._restored)
        for sample in samples:
            self._observe(sample)
            if self.now_s is None or sample.ts_s > self.now_s:
                self._set_clock(sample.ts_s)

    def advance(self, to_s: float) -> None:
        """Let time pass up to and with `to_s`: all readings until then have been taken."""
        if self.now_s is not None and to_s >= self._next_tick_s:
            self._reach(to_s)
            if self._next_tick_s <= to_s:
                self._tick(self._next_tick_s)
                self._next_tick_s += TICK_S

    def forget(self, scopes: Iterable[str], at_s: float) -> None:
        """End the watch over what is gone for good, and its alerts."""
        for scope in scopes:
            gone = self._watched.pop(scope, None)
            self._ended.discard(scope)
            self.gpus = {name: window for name, window in self.gpus.items() if gpu_scope(name) != scope}
            left = [] if gone is None else gone.bench.standings()
            left += [self._restored.pop(key) for key in list(self._restored) if key.scope == scope]
            self._alert_events += [event for one in left for event in alerts.end(one, at_s, "source removed")]
        for watched in self._watched.values():
            if isinstance(watched.window, GpuWindow):
                watched.window.peers = self.gpus

    def end(self, scopes: Iterable[str], at_s: float) -> None:
        """End the alerts about servers whose processes have ended; what the kernel killed is still told afterwards."""
        for scope in scopes:
            self._ended.add(scope)
            self._end_alerts(scope, at_s, "server ended")

    def roots(self) -> dict[str, int]:
        """Return the topmost process of each server that was read, as far as it is not known to have ended."""
        watched = {scope: one.window.last for scope, one in self._watched.items() if scope not in self._ended}
        return {
            scope: last.pid for scope, last in watched.items() if isinstance(last, HostSample) and last.pid is not None
        }

    def scopes(self, source: str) -> set[str]:
        """Return what is watched, or has an alert, of the GPUs or of the servers."""
        per = {GPU_SOURCE: GpuWindow, HOST_SOURCE: HostWindow}[source]
        found = {scope for scope, one in self._watched.items() if isinstance(one.window, per)}
        return found | {key.scope for key, one in self._restored.items() if one.source == source}

    def root_of(self, log: str) -> int | None:
        """Return the topmost process of the server that writes a log, as it was read last."""
        watched = self._watched.get(log)
        last = None if watched is None else watched.window.last
        return last.pid if isinstance(last, HostSample) else None

    def unmet(self) -> set[str]:
        """Return the scopes of restored alerts of which nothing has been read yet."""
        return {key.scope for key in self._restored}

    def harvest(self) -> SideHarvest:
        """Return what came since the last call and forget it."""
        now = {standing.key: standing for watched in self._watched.values() for standing in watched.bench.standings()}
        now |= self._restored
        before, self._standings = self._standings, now
        changed = [standing for key, standing in now.items() if before.get(key) != standing]
        events, self._alert_events = self._alert_events, []
        return SideHarvest(events, changed, [key for key in before if key not in now])

    def at_work(self) -> Iterator[tuple[Rule, str, Judgement, Standing | None]]:
        """Yield each rule at work with its scope, its last word and its alert."""
        for scope, watched in self._watched.items():
            if scope not in self._ended:
                yield from watched.bench.at_work()

    def has_news(self) -> bool:
        """Tell whether something that people may see waits to be harvested."""
        return bool(self._alert_events)

    def _end_former(self, sample: GpuSample | HostSample) -> None:
        """End the alerts about a server in whose place another one runs."""
        if isinstance(sample, GpuSample):
            return
        scope = sample.source or HOST
        watched = self._watched.get(scope)
        if watched is not None and isinstance(watched.window, HostWindow) and watched.window.is_new(sample):
            self._end_alerts(scope, sample.ts_s, "restart")

    def _end_alerts(self, scope: str, at_s: float, reason: str) -> None:
        watched = self._watched.get(scope)
        if watched is not None:
            for standing in watched.bench.standings():
                self._alert_events += alerts.end(standing, at_s, reason)
            watched.bench.restore({})

    def _observe(self, sample: GpuSample | HostSample) -> None:
        if isinstance(sample, GpuSample):
            watched = self._watched.get(gpu_scope(sample.gpu)) or self._meet_gpu(sample.gpu)
            if isinstance(watched.window, GpuWindow):
                watched.window.observe(sample)
            return
        watched = self._watched.get(sample.source or HOST) or self._meet_host(sample.source or HOST)
        if isinstance(watched.window, HostWindow):
            watched.window.observe(sample)
            self._ended.discard(sample.source or HOST)

    def _meet_gpu(self, gpu: str) -> Watched:
        window = self.gpus[gpu] = GpuWindow(gpu, self.gpus)
        return self._meet(
            Watched(window, Bench.of_reading(self._rules, Per.GPU, gpu_scope(gpu), GPU_SOURCE)), gpu_scope(gpu)
        )

    def _meet_host(self, scope: str) -> Watched:
        return self._meet(Watched(HostWindow(), Bench.of_reading(self._rules, Per.HOST, scope, HOST_SOURCE)), scope)

    def _meet(self, watched: Watched, scope: str) -> Watched:
        mine = {key: standing for key, standing in self._restored.items() if key.scope == scope}
        watched.bench.restore(mine)
        known = {standing.key for standing in watched.bench.standings()}
        for key, standing in mine.items():
            del self._restored[key]
            if key not in known:
                self._alert_events += alerts.end(standing, self.now_s or standing.seen_s, "rule removed")
        self._watched[scope] = watched
        return watched

    # --- time

    def _set_clock(self, at_s: float) -> None:
        self.now_s = at_s
        self._next_tick_s = at_s - at_s % TICK_S + TICK_S

    def _reach(self, to_s: float) -> None:
        """Judge at each tick before `to_s`."""
        if self.now_s is None or to_s < self.now_s - BACK_S:
            self._set_clock(to_s)
            return
        end_s = min(to_s, self._next_tick_s + LONGEST_SILENCE_S)
        while self._next_tick_s < end_s:
            self._tick(self._next_tick_s)
            self._next_tick_s += TICK_S
        if self._next_tick_s < to_s:
            self._set_clock(to_s)
        self.now_s = max(to_s, self.now_s)

    def _tick(self, at_s: float) -> None:
        for scope, watched in self._watched.items():
            if scope not in self._ended:
                self._alert_events += watched.bench.judge(watched.window, at_s)


def in_order(*feeds: Iterable[GpuSample | HostSample]) -> list[GpuSample | HostSample]:
    """Return the readings of several feeds in order of time."""
    return sorted((sample for feed in feeds for sample in feed), key=lambda sample: sample.ts_s)


def restored(standings: Iterable[Standing]) -> Mapping[AlertKey, Standing]:
    """Return those alerts that are about GPUs and hosts."""
    return {one.key: one for one in standings if one.source in (GPU_SOURCE, HOST_SOURCE)}
