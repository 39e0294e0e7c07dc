"""The main loop: read, store, judge, again; and what begins, reloads and ends it.

Everything that can be thrown away is: when the store fails, it is opened anew and reading begins where it says.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kvlogd import board, silencing, systemd, thrift, wire
from kvlogd.channel import Secret
from kvlogd.clock import Clock, Waker
from kvlogd.dispatch import Dispatch, policy_of
from kvlogd.endpoint import Endpoint, Hands
from kvlogd.errands import Errands
from kvlogd.errors import KvlogdError, StoreError
from kvlogd.heartbeat import Heartbeat
from kvlogd.herald import Backlog, Herald, status_line
from kvlogd.intake import BUDGET_BYTES, Intake
from kvlogd.lock import OutsiderError
from kvlogd.lookout import Lookout
from kvlogd.overview import status_of
from kvlogd.postman import Postman
from kvlogd.retention import Keep, tend
from kvlogd.setup import Setup, counts_text, homed, load_setup
from kvlogd.status import Mode, to_json
from kvlogd.store import Store
from kvlogd.systemd import Notifier
from kvlogd.voice import Complaint, Level, Voice
from kvlogd.watch import Watch

POLL_S = 4.0
"""How often files are looked at while nothing comes; a query makes it look at once."""
COMMIT_S, BUSY_S = 60.0, 10.0
COMMIT_RECORDS, BUSY_RECORDS = 20_000, 1_000
"""A commit costs about 40 ms of a host that does other things, however small it is: few at rest, more where much comes,
large ones for a backlog. A query has what was read stored at once, and so does an alert. What a crash takes of the logs
is read again; of GPUs and /metrics it takes what was read since."""
NEWS_S = 1.0
"""An alert does not wait for the next commit."""
FAREWELL_S = 3.0
"""How long messages that are on their way may take at the end."""
RETRY_S, LONGEST_RETRY_S = 1.0, 30.0
TEND_S, FIRST_TEND_S, TEND_AGAIN_S = 1800.0, 300.0, 30.0
"""How often old rows are looked after, how soon after a start, and how soon again where there is more to do."""
SWOLLEN_BYTES, SWOLLEN_S = 4 << 20, 60.0
"""What DuckDB holds in memory grows with its write-ahead log: from this size on it is looked after so soon."""
REPORT_S = 10.0
"""How often it is said how the logs fare."""
EXTEND_S = 30.0
FLUSH_S, STATUS_S = 3.0, 5.0
"""How long a query waits for what was read to be stored, and a status for the loop."""


class Daemon:
    """One running kvlogd. `wanted` names its config file; raises ConfigError where that is wrong."""

    def __init__(self, wanted: Path | None, clock: Clock, waker: Waker, notifier: Notifier, voice: Voice) -> None:
        self.setup: Setup = _loaded(wanted)
        self.store: Store | None = None
        self.intake: Intake | None = None
        self._wanted = wanted
        self._clock = clock
        self._waker = waker
        self._notifier = notifier
        self._voice = voice
        self._herald = Herald(voice)
        self._backlog = Backlog()
        self._watch = Watch(self._stirred)
        self._is_stirred = False
        self._endpoint: Endpoint | None = None
        self._committed_s = clock.monotonic_s()
        self._tend_at_s = self._committed_s + FIRST_TEND_S
        self._reported_s = float("-inf")
        self._retry_at_s, self._retry_s = float("-inf"), RETRY_S
        self._stop_wanted = self._reload_wanted = False
        self._errands = Errands(waker.wake)
        self._started_s = clock.wall_s()
        self._heartbeat = Heartbeat()
        self._aim()
        self._lookout = Lookout(self.setup, voice)
        self._dispatch = Dispatch(Postman(waker.wake), voice, os.uname().nodename, self._lookout)

    # --- what others may ask, from a signal handler or another thread

    def stop(self) -> None:
        """End the loop at its next turn."""
        self._stop_wanted = True
        self._waker.wake()

    def reload(self) -> None:
        """Read config and rules again at the next turn."""
        self._reload_wanted = True
        self._waker.wake()

    def _stirred(self) -> None:
        self._is_stirred = True
        self._waker.wake()

    def flush(self) -> None:
        """Have everything stored that was read, for a query; waits three seconds at most. Raises StoreError."""
        self._errands.ask(lambda: self._commit(self._clock.monotonic_s()), FLUSH_S)

    def status(self) -> Mapping[str, object]:
        """Return what `kvlogd status` shows. Raises StoreError where the loop has no time."""
        return self._errands.ask(self._status, STATUS_S)

    def silence(self, request: Mapping[str, Any]) -> list[Mapping[str, object]]:
        """Begin, end or list silences. Raises KvlogdError, StoreError."""
        return self._errands.ask(lambda: self._silence(request), STATUS_S)

    def release(self, for_s: float) -> Mapping[str, object]:
        """Let go of the GPUs for so long. Raises KvlogdError."""
        return self._errands.ask(lambda: self._lookout.release(self._clock.monotonic_s(), for_s), STATUS_S)

    # --- the loop

    def run(self) -> None:
        """Work until `stop`. Raises StoreError where the store cannot be opened at the start."""
        store = self._opened()
        if store is None:
            return
        with store as self.store, Endpoint(self._socket(store.path), self._hands(store)) as self._endpoint:
            try:
                self._turn()
                self._notifier.ready()
                thrift.give_back()
                while not self._stop_wanted:
                    if not self._turn():
                        due_s = self._dispatch.due_in_s(self._clock.monotonic_s(), self._clock.wall_s())
                        self._waker.wait(min(POLL_S, due_s))
                self._notifier.stopping()
                self._commit(self._clock.monotonic_s(), is_last=True)
                self._farewell()
            finally:
                self._dispatch.close()
                self._let_go()
                self._lookout.close()
                self._watch.close()

    def _opened(self) -> Store | None:
        """Open the store; where somebody else looks into it, wait until they are done. None where that is too late."""
        path, patience_s = self.setup.config.store.path, RETRY_S
        while not self._stop_wanted:
            wall_s = self._clock.wall_s()
            try:
                store, given_up = Store.open_or_recover(path, wall_s)
            except OutsiderError as error:
                self._voice.complain("store", str(error), self._clock.monotonic_s(), wall_s, Level.ERROR)
                self._notifier.status(f"waits for the store: {error.what}")
                self._notifier.extend(patience_s + EXTEND_S)
                self._waker.wait(patience_s)
                patience_s = min(2 * patience_s, LONGEST_RETRY_S)
                continue
            self._voice.relent("store")
            for one in given_up:
                what = f"its write-ahead log was damaged, {one.lost_bytes} bytes of it are lost"
                aside = ", ".join(str(file) for file in one.aside)
                self._voice.say(Level.ERROR, f"store: {what}; as it was it lies in {aside}")
            return store
        return None

    def _socket(self, store: Path) -> Path:
        return wire.place(store, self.setup.config.store.socket, os.environ)

    def _hands(self, store: Store) -> Hands:
        def alerts(every: bool) -> list[Mapping[str, object]]:
            policies = map(policy_of, self.setup.config.channels)
            found = board.entries(store, self._clock.wall_s(), every=every, policies=policies)
            return [entry._asdict() for entry in found]

        return Hands(store, self.flush, self.status, alerts, store.snapshot, self.silence, self.release)

    def _status(self) -> Mapping[str, object]:
        path, complaints = self.setup.config.store.path, self._voice.complaints()
        if self._endpoint is not None and self._endpoint.health().faults:
            fault = self._endpoint.health()
            wall_s = self._clock.wall_s()
            complaints.append(Complaint("socket", fault.last_fault or "", wall_s, wall_s, fault.faults, 0.0))
        times = (self._started_s, self._clock.wall_s())
        found = status_of(self.intake, path, complaints, self._mode(), *times, self._lookout, self._dispatch.channels())
        return to_json(found._replace(catch_up_s=self._backlog.left_s, config_sources=len(self.setup.config.sources)))

    def _silence(self, request: Mapping[str, Any]) -> list[Mapping[str, object]]:
        if self.store is None:
            raise StoreError("the store is not open", mend="try again")
        found = silencing.obey(self.store, request, self._clock.wall_s())
        self._dispatch.silence(self.store.silences())
        return list(silencing.to_json(found))

    def _turn(self) -> bool:
        """Do what is due; return whether there is more to do at once."""
        now_s, wall_s = self._clock.monotonic_s(), self._clock.wall_s()
        if self._reload_wanted:
            self._reload(now_s)
        if self.intake is None:
            self._begin(now_s)
        busy = self._read(now_s, wall_s)
        if self._is_commit_due(now_s, busy=busy):
            self._commit(now_s)
        self._tell(now_s, wall_s)
        if now_s >= self._tend_at_s:
            self._tend(now_s, wall_s)
        if now_s - self._reported_s >= REPORT_S:
            self._report(now_s, wall_s)
        self._errands.run()
        self._notifier.alive(now_s)
        return busy

    def _begin(self, now_s: float) -> None:
        """Take up reading where the store says, unless it failed a moment ago."""
        if now_s < self._retry_at_s or self.store is None:
            return
        try:
            self.intake = Intake(self.setup, self.store, now_s, self._clock)
            self._dispatch.take_up(self.setup, self.store, self._clock.wall_s())
            self._lookout.begin(self.store, self._clock.wall_s())
        except StoreError as error:
            self._store_failed(error, now_s)

    def _read(self, now_s: float, wall_s: float) -> bool:
        if self.intake is None:
            return False
        if self._is_stirred:
            self._is_stirred = False
            self.intake.hint()
        self._lookout.poll(now_s, wall_s, [stream.pipeline for stream in self.intake.streams()])
        try:
            return self.intake.poll(now_s, wall_s) >= BUDGET_BYTES // 2
        except StoreError as error:  # what rules had seen before the restart is read on the way
            self._store_failed(error, now_s)
            return False

    def _is_commit_due(self, now_s: float, *, busy: bool) -> bool:
        if self.intake is None:
            return False
        since_s = now_s - self._committed_s
        is_urgent = since_s >= NEWS_S and (self.intake.has_news() or self._lookout.has_news())
        if is_urgent or since_s >= COMMIT_S:
            return True
        if since_s >= BUSY_S:
            return busy or self.intake.pending() >= BUSY_RECORDS
        return self.intake.pending() >= COMMIT_RECORDS

    def _commit(self, now_s: float, *, is_last: bool = False) -> None:
        if self.intake is None or self.store is None:
            return
        alive = self._lookout.served()
        batch = self._lookout.joined(self.intake.batch(now_s, is_last=is_last, alive=alive))
        batch = self._dispatch.planned(batch, self._clock.monotonic_s(), self._clock.wall_s())
        try:
            if any(batch):
                self.store.commit(batch)
        except StoreError as error:
            self._store_failed(error, now_s)
            return
        self._herald.stored(batch, self._clock.wall_s())
        self._committed_s = now_s
        if self.store.log_bytes() >= SWOLLEN_BYTES:
            self._tend_at_s = min(self._tend_at_s, now_s + SWOLLEN_S)
        if any(batch):  # to store nothing proves nothing
            self._retry_s = RETRY_S
            self._voice.relent("store")
        if not is_last and self.intake.inquire(self.store):
            self._committed_s -= COMMIT_S  # what came of it is stored at once

    def _tell(self, now_s: float, wall_s: float, *, is_last: bool = False) -> None:
        """Send what is due, and take in what became of it."""
        try:
            self._dispatch.turn(self.intake, now_s, wall_s, is_last=is_last)
        except StoreError as error:
            self._store_failed(error, now_s)
        self._heartbeat.beat(now_s, lambda: self._is_well(now_s, wall_s))

    def _aim(self) -> None:
        """Let the heartbeat go where the config says."""
        config, url = self.setup.config.heartbeat, self.setup.heartbeat
        if config is not None and url is not None:
            self._heartbeat.aim(url.reveal(), config.every)
        else:
            self._heartbeat.aim(None, 0.0)

    def _is_well(self, now_s: float, wall_s: float) -> bool:
        """Tell whether logs, store, rules and channels all make progress."""
        if self.intake is None or now_s - self._committed_s > 2 * COMMIT_S:
            return False
        is_read = all(health.state != "unreadable" for health in self.intake.health())
        return is_read and self._dispatch.is_well(wall_s)

    def _farewell(self) -> None:
        """Wait a little for messages that are on their way, so that none is sent again at the next start."""
        end_s = self._clock.monotonic_s() + FAREWELL_S
        while self._dispatch.is_flying() and (now_s := self._clock.monotonic_s()) < end_s:
            self._waker.wait(end_s - now_s)
            self._tell(self._clock.monotonic_s(), self._clock.wall_s(), is_last=True)

    def _store_failed(self, error: StoreError, now_s: float) -> None:
        """Stop reading for a while: the logs keep what the store cannot take."""
        self._let_go()
        self._voice.complain("store", str(error), now_s, self._clock.wall_s(), Level.ERROR)
        self._retry_at_s = now_s + self._retry_s
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)

    def _tend(self, now_s: float, wall_s: float) -> None:
        """Look after what is old, and give back what is not used."""
        self._tend_at_s = now_s + TEND_S
        if self.store is None:
            return
        keeping = self.setup.config.store
        try:
            if tend(self.store, wall_s, Keep(keeping.keep_raw, keeping.keep_minutes)):
                self.store.renew()
            else:
                self._tend_at_s = now_s + TEND_AGAIN_S
        except StoreError as error:
            self._voice.complain("store upkeep", str(error), now_s, wall_s)
        else:
            self._voice.relent("store upkeep")
        thrift.give_back()

    def _report(self, now_s: float, wall_s: float) -> None:
        """Say how the logs fare, to systemd and where something is wrong."""
        self._reported_s = now_s
        if self.intake is None:
            self._notifier.status("the store fails: see the journal")
            return
        health = self.intake.health()
        self._herald.fares([*health, *self.intake.eyes()], now_s, wall_s)
        self._herald.idle([*self.intake.without_evidence(), *self._lookout.without_evidence()])
        self._watch.follow(self.intake.folders() if self.setup.config.watch else set(), now_s)
        behind = sum(one.behind_bytes or 0 for one in health)
        self._backlog.look(behind, now_s)
        engines, firing = self.intake.totals()
        firing += self._lookout.firing()
        line = status_line(engines, firing, len(health), behind, self._backlog.left_s, self._mode())
        bad = [channel.name for channel in self._dispatch.channels() if channel.line.is_bad]
        self._notifier.status(f"{line}, out of order: {', '.join(bad)}" if bad else line)

    def _mode(self) -> Mode:
        return Mode(self._watch.mode) if self.setup.config.watch else Mode.POLLING

    def _reload(self, now_s: float) -> None:
        """Take up a changed config and changed rules; the old ones live on where the new ones are wrong."""
        self._reload_wanted = False
        self._notifier.reloading(now_s)
        try:
            setup = _loaded(self._wanted, self.setup.urls.values())
        except KvlogdError as error:
            what = f"refused, so the old config and rules stay in force:\n{error}"
            self._voice.complain("reload", what, now_s, self._clock.wall_s(), Level.ERROR)
            self._notifier.ready("reload failed: the old config is in force")
            return
        self._voice.relent("reload")
        if setup.config.store != self.setup.config.store:
            self._voice.say(Level.WARNING, "reload: what changed under `store` counts from the next start on")
            kept = setup.config.model_copy(update={"store": self.setup.config.store})
            setup = setup._replace(config=kept)
        if setup != self.setup:
            self._commit(now_s, is_last=True)
            self._let_go()
            self.setup = setup
            self._aim()
            self._lookout.change(setup)
        self._voice.say(Level.NOTICE, f"reloaded: {counts_text(setup)}")
        self._notifier.ready()

    def _let_go(self) -> None:
        self._dispatch.let_go()
        if self.intake is not None:
            self.intake.close()
            self.intake = None
        self._lookout.forget()


def _loaded(wanted: Path | None, known: Iterable[Secret] = ()) -> Setup:
    return homed(load_setup(wanted, known=known), systemd.state_folder(os.environ))
