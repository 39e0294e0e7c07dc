"""The daemon's eyes beside the logs: asks for the GPUs, looks at the servers' memory, and has both judged.

Never blocks. What it sees goes into the same batches as what the logs say; when those are thrown away, so is what it
knows, and it begins again from the store. The child that reads the GPUs lives on meanwhile.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from kvlogd.alerts import Standing
from kvlogd.config import Enabled
from kvlogd.errors import KvlogdError
from kvlogd.gpus import MENDS, Found, Gpus, News
from kvlogd.kin import Kin, Writer
from kvlogd.model import AlertState, Judgement, Per
from kvlogd.pipeline import Pipeline
from kvlogd.procfs import ProcFs
from kvlogd.quantity import duration_text
from kvlogd.reading import (
    GPU_SOURCE,
    HOST,
    HOST_SOURCE,
    DriverFault,
    Gpu,
    GpuProcess,
    GpuSample,
    GpuState,
    HostSample,
)
from kvlogd.rows import Batch
from kvlogd.rules import Rule, shipped_folder
from kvlogd.setup import Setup
from kvlogd.sideline import REMEMBERS_S, Sideline, gpu_scope
from kvlogd.status import GpuStatus, RuleState, RuleStatus
from kvlogd.voice import Level, Voice
from kvlogd.work import FRESH_S

BEHIND_S = 15.0
"""Rules look at the time so long ago: by then what was read of it has come."""
EXPECTED_S = 86_400.0
"""A GPU that the driver does not list and that was not read for so long was taken out: it is expected no more."""
AGAIN_S = 600.0
"""How often what does not change is written all the same."""
CHECK_S = 30.0
"""How often it is looked for what is gone for good."""
IDLE_S = 86_400.0
"""A rule that has had nothing to look at for so long is told of."""
LEAST_CHANGE_MIB = 64.0
MOST_RELEASE_S = 86_400.0
JUMP_S = 30.0
"""The host's clock was set where it went so far beside the monotonic one."""


MISSING = frozenset({GpuState.ABSENT, GpuState.UNKNOWN})
"""States of a GPU that may be gone for good; of any other the driver still speaks."""


class Past(Protocol):
    """What is asked of the store."""

    def gpus(self) -> list[Gpu]:
        """Return the GPUs that were read."""
        ...

    def readings(self, since_s: float) -> Iterator[GpuSample | HostSample]:
        """Yield the readings from a time on, in order of time."""
        ...

    def standings(self) -> list[Standing]:
        """Return the alerts that are pending or firing."""
        ...


class Lookout:
    """What is seen of GPUs and servers."""

    def __init__(self, setup: Setup, voice: Voice, procfs: ProcFs | None = None) -> None:
        self._config, self._rules = setup.config, setup.rules
        self._voice = voice
        self._kin = Kin(procfs or ProcFs())
        self._gpus: Gpus | None = None
        self._sideline: Sideline | None = None
        self._now_s = 0.0
        self._offset_s: float | None = None
        """The host's clock less the monotonic one."""
        self._looked_s = self._checked_s = float("-inf")
        self._sourced_s: dict[Per, float] = {}
        """When GPUs, and servers, were looked at last, or it was begun to look for them."""
        self._met: set[Per] = set()
        self._work: dict[int, float] = {}
        """How busy the busiest GPU of an engine was, by engine_id, until the engine has been told."""
        self._fault: DriverFault | None = None
        self._noted: set[str] = set()
        self._holders: dict[str, str] = {}
        self._last: dict[str, GpuSample] = {}
        self._written: dict[str, tuple[float, Gpu, tuple[GpuProcess, ...]]] = {}
        """When a GPU and its processes were written last, and as what."""
        self._batch = Batch()

    def change(self, setup: Setup) -> None:
        """Go by another config from the next `begin` on."""
        if setup.config.gpu != self._config.gpu:
            self.close()
            self._gpus = None
        self._config, self._rules = setup.config, setup.rules

    def begin(self, store: Past, wall_s: float) -> None:
        """Stand where the store says. Raises StoreError."""
        standings = [one for one in store.standings() if one.source in (GPU_SOURCE, HOST_SOURCE)]
        alarming = {one.key.scope for one in standings}
        known = [g for g in store.gpus() if g.seen_s >= wall_s - EXPECTED_S or gpu_scope(g.gpu) in alarming]
        sideline = Sideline(self._rules)
        sideline.recall(store.readings(wall_s - REMEMBERS_S), standings)
        if self._config.gpu.enabled is Enabled.NO:
            sideline.forget(sideline.scopes(GPU_SOURCE), wall_s)
        else:
            sideline.forget(sideline.scopes(GPU_SOURCE) - {gpu_scope(gpu.gpu) for gpu in known}, wall_s)
            self._gpus = self._gpus or Gpus(self._config.gpu.every, known)
        is_off = self._config.host.enabled is Enabled.NO
        # of what was not read for days nobody knows whether it is the same server
        gone = sideline.scopes(HOST_SOURCE) if is_off else sideline.scopes(HOST_SOURCE) & sideline.unmet()
        sideline.forget(gone, wall_s)
        self._sideline = sideline

    def forget(self) -> None:
        """Throw away what is not stored."""
        self._sideline, self._batch = None, Batch()
        self._written = {}

    def close(self) -> None:
        """End the child."""
        if self._gpus is not None:
            self._gpus.close()

    def poll(self, now_s: float, wall_s: float, pipelines: Sequence[Pipeline]) -> None:
        """Look at what is due."""
        self._now_s = now_s
        self._follow_clock(wall_s - now_s)
        if self._sideline is None:
            return
        samples: list[GpuSample | HostSample] = []
        if self._config.host.enabled is not Enabled.NO and now_s - self._looked_s >= self._config.host.every:
            self._look(now_s, pipelines)
            samples += self._kin.memory(wall_s)
        if self._gpus is not None:
            news = self._gpus.poll(now_s, wall_s)
            self._tell(self._gpus, news, now_s, wall_s)
            if news.found and now_s - self._looked_s >= self._config.gpu.every / 2:
                self._look(now_s, pipelines)
            samples += [self._taken(found) for found in news.found]
            self._show_work(pipelines, wall_s)
        self._sideline.take(samples)
        if now_s - self._checked_s >= CHECK_S:
            self._checked_s = now_s
            self._end_what_is_gone(self._sideline, wall_s, {pipeline.source for pipeline in pipelines})
        self._sideline.advance(wall_s - BEHIND_S)
        self._add(
            gpu_samples=[sample for sample in samples if isinstance(sample, GpuSample)],
            host_samples=[sample for sample in samples if isinstance(sample, HostSample)],
        )

    def _follow_clock(self, offset_s: float) -> None:
        """Let no jump of the host's clock make a GPU one that was not read for a day."""
        by_s = 0.0 if self._offset_s is None else offset_s - self._offset_s
        if abs(by_s) > JUMP_S and self._gpus is not None:
            self._gpus.shift(by_s)
        self._offset_s = offset_s

    def _end_what_is_gone(self, sideline: Sideline, wall_s: float, logs: set[str]) -> None:
        """End the alerts about GPUs that were taken out, servers that have ended, and logs that are read no more."""
        listed = {} if self._gpus is None else self._gpus.gpus
        missing = [gpu for gpu in listed.values() if gpu.state in MISSING and wall_s - gpu.seen_s >= EXPECTED_S]
        absent = [gpu.gpu for gpu in missing if gpu.state == GpuState.ABSENT]
        for gpu in absent:
            self._voice.forget(_place(listed[gpu]))
            self._voice.say(Level.NOTICE, f"{_place(listed[gpu])}: not listed for a day: expected no more")
        if self._gpus is not None:
            self._gpus.drop(absent)
        gone = {gpu_scope(gpu.gpu) for gpu in missing} & sideline.scopes(GPU_SOURCE)
        gone |= sideline.scopes(HOST_SOURCE) - logs - {HOST}
        sideline.forget(gone, wall_s)
        sideline.end([log for log, pid in sideline.roots().items() if self._kin.has_ended(pid)], wall_s)

    def has_news(self) -> bool:
        """Tell whether an alert waits to be stored."""
        return self._sideline is not None and self._sideline.has_news()

    def served(self) -> set[str]:
        """Return the logs whose servers were seen to run."""
        return {tree.writer.source for tree in self._kin.trees}

    def joined(self, batch: Batch) -> Batch:
        """Return a batch with what came since the last one."""
        if self._sideline is None:
            return batch
        found = self._sideline.harvest()
        self._add(alert_events=found.alert_events, standings=found.standings, over=found.over)
        mine, self._batch = self._batch, Batch()
        return batch._replace(**{name: [*getattr(batch, name), *rows] for name, rows in mine._asdict().items() if rows})

    def _add(self, **rows: Sequence[object]) -> None:
        more = {name: [*getattr(self._batch, name), *new] for name, new in rows.items() if new}
        if more:
            self._batch = self._batch._replace(**more)

    # --- what others ask

    def release(self, now_s: float, for_s: float) -> Mapping[str, object]:
        """Let go of the GPUs for so long. Raises KvlogdError where none are read."""
        if self._gpus is None:
            raise KvlogdError("no GPU is read", mend="write gpu: {enabled: auto} into the config")
        if not 0 <= for_s <= MOST_RELEASE_S:
            raise KvlogdError("GPUs can be let go of for a day at most", mend="name a time like 10m")
        self._gpus.release(now_s, for_s)
        self._voice.say(Level.NOTICE, f"gpu: released for {duration_text(for_s)}" if for_s else "gpu: taken up again")
        return {"released_s": for_s, "gpus": len(self._gpus.gpus), "is_stuck": self._gpus.is_stuck()}

    def gpus(self) -> Iterator[GpuStatus]:
        """Yield how each GPU is; what is not known now is None."""
        gpus = [] if self._gpus is None else list(self._gpus.gpus.values())
        for gpu in sorted(gpus, key=lambda one: (one.device_index is None, one.device_index)):
            last = self._last.get(gpu.gpu)
            facts = (gpu.gpu, str(gpu.state), gpu.device_index, gpu.name, gpu.seen_s)
            if last is None or gpu.state != GpuState.OK:
                yield GpuStatus(*facts, memory_total_mib=gpu.memory_total_mib)
                continue
            numbers = (last.util, last.memory_used_mib, last.memory_total_mib, last.temperature_c, last.power_w)
            yield GpuStatus(*facts, *numbers, self._holders.get(gpu.gpu, ""))

    def note(self) -> str:
        """Return why no GPU is read; nothing where all is well."""
        if self._gpus is None:
            return ""
        left_s = self._gpus.released_for_s(self._now_s)
        if left_s is not None:
            return f"let go of for another {duration_text(left_s)}"
        return ": ".join(MENDS[self._gpus.fault]) if self._gpus.fault is not None else ""

    def at_work(self) -> Iterator[tuple[Rule, str, Judgement, Standing | None]]:
        """Yield each rule at work with its scope, its last word and its alert."""
        return iter(()) if self._sideline is None else self._sideline.at_work()

    def firing(self) -> int:
        """Return how many alerts fire."""
        standings = [standing for _, _, _, standing in self.at_work() if standing is not None]
        return sum(standing.state is AlertState.FIRING for standing in standings)

    def without_source(self) -> Iterator[RuleStatus]:
        """Yield the rules that have no GPU, or no server's memory, to look at."""
        scopes = {rule.per for rule, _, _, _ in self.at_work()}
        for rule in self._rules:
            if rule.per in (Per.GPU, Per.HOST) and rule.per not in scopes:
                yield RuleStatus(rule.id, rule.per.value, RuleState.NO_SOURCE, rule.severity)

    def without_evidence(self) -> list[tuple[str, str]]:
        """Return the rules, each with `gpu` or `host`, that have had none to look at for a day, where that is odd.

        A host without GPUs is in order, and so is to switch them off: then only rules of a user's own are named.
        """
        scopes = {rule.per for rule, _, _, _ in self.at_work()}
        for per in (Per.GPU, Per.HOST):
            if per in scopes:
                self._met.add(per)
            if per in scopes or per not in self._sourced_s:
                self._sourced_s[per] = self._now_s
        missing = {per for per, since_s in self._sourced_s.items() if self._now_s - since_s >= IDLE_S}
        wanted = {Per.GPU: self._config.gpu.enabled, Per.HOST: self._config.host.enabled}
        odd = {
            per for per in missing if wanted[per] is Enabled.YES or (wanted[per] is Enabled.AUTO and per in self._met)
        }
        return [
            (rule.id, rule.per.value)
            for rule in self._rules
            if rule.per in missing and (rule.per in odd or rule.path.parent != shipped_folder())
        ]

    # --- what is read

    def _look(self, now_s: float, pipelines: Iterable[Pipeline]) -> None:
        self._looked_s = now_s
        roots = None if self._sideline is None else self._sideline.root_of
        self._kin.look(writer for pipeline in pipelines for writer in _writers(pipeline, roots))

    def _taken(self, found: Found) -> GpuSample:
        """Return a reading with whose memory it is, and keep what is to be written of it."""
        sample, processes = found.sample, self._owned(found)
        if found.processes is not None:
            others = [one for one in processes if one.source is None]
            largest = max(others, key=lambda one: one.memory_mib or 0.0, default=None)
            sample = sample._replace(
                engines_mib=_total([one.memory_mib for one in processes if one.source is not None]),
                others_mib=_total([one.memory_mib for one in others]),
                processes=len(processes),
                other_pid=None if largest is None else largest.pid,
            )
        self._last[sample.gpu] = sample
        for engine_id in {one.engine_id for one in processes if one.engine_id is not None and sample.util is not None}:
            self._work[engine_id] = max(sample.util or 0.0, self._work.get(engine_id, 0.0))
        self._holders[sample.gpu] = ", ".join(map(_holder, processes))
        at_s, gpu, old = self._written.get(sample.gpu, (float("-inf"), None, ()))
        is_due = not 0 <= sample.ts_s - at_s < AGAIN_S
        is_changed = gpu is None or gpu != found.gpu._replace(seen_s=gpu.seen_s)
        has_moved = _has_moved(old, processes)
        if is_due or is_changed or has_moved:
            self._written[sample.gpu] = sample.ts_s, found.gpu, processes
            self._add(gpus=[found.gpu], gpu_processes=processes if is_due or has_moved else ())
        return sample

    def _show_work(self, pipelines: Iterable[Pipeline], wall_s: float) -> None:
        """Let the rules about engines see how busy their GPUs were; of what a log behind tells, that says nothing."""
        work, self._work = self._work, {}
        for pipeline in pipelines if work else ():
            if pipeline.now_s is None or wall_s - pipeline.now_s > FRESH_S:
                continue
            for track in pipeline.tracks():
                util = work.get(track.life.engine.engine_id)
                if util is not None:
                    track.window.eyes.work.observe(pipeline.now_s, util)

    def _owned(self, found: Found) -> tuple[GpuProcess, ...]:
        rows = []
        for held in found.processes or ():
            owner = self._kin.owner(held.pid)
            whose = (None, None) if owner is None else owner
            name = self._kin.name(held.pid)
            rows.append(GpuProcess(found.sample.ts_s, found.gpu.gpu, held.pid, name, held.memory_mib, *whose))
        return tuple(rows)

    def _tell(self, gpus: Gpus, news: News, now_s: float, wall_s: float) -> None:
        """Say what is wrong, once, and that it is over."""
        if gpus.fault is not self._fault:
            was, self._fault = self._fault, gpus.fault
            is_wanted = self._config.gpu.enabled is Enabled.YES or bool(gpus.gpus)
            if gpus.fault is None and was is DriverFault.NO_LIBRARY and not self._voice.has("gpu"):
                self._voice.say(Level.NOTICE, "gpu: there is a driver now")
            elif gpus.fault is None:
                self._voice.relent("gpu")
            elif gpus.fault is DriverFault.NO_LIBRARY and not is_wanted:  # a host without GPUs is in order
                self._voice.say(Level.NOTICE, f"gpu: {': '.join(MENDS[gpus.fault])}")
            else:
                level = Level.WARNING if is_wanted else Level.NOTICE
                self._voice.complain("gpu", ": ".join(MENDS[gpus.fault]), now_s, wall_s, level)
        for field, error in news.notes:
            if field not in self._noted:
                self._noted.add(field)
                self._voice.say(Level.INFO, f"gpu: {field} cannot be read (NVML error {error}): it stays unknown")
        for found in news.found:
            where = _place(found.gpu)
            if found.gpu.state in (GpuState.OK, GpuState.RELEASED):
                self._voice.relent(where)
            elif found.gpu.state != GpuState.UNKNOWN:  # that is a fault of the driver, which is told already
                what = f"{found.gpu.state}: see dmesg for Xid, and nvidia-smi -q -i {found.gpu.gpu}"
                self._voice.complain(where, what, now_s, wall_s)


def _place(gpu: Gpu) -> str:
    return f"gpu {gpu.gpu if gpu.device_index is None else gpu.device_index}"


def _writers(pipeline: Pipeline, root_of: Callable[[str], int | None] | None) -> Iterator[Writer]:
    """Yield the processes that write a log, each with its engines.

    After a restart of ours no record has named one yet: then it is the process that was read last.
    """
    engines: dict[int, dict[int | None, int]] = {}
    for track in pipeline.tracks():
        pid = None if track.window.last is None else track.window.last.pid
        if pid is None and root_of is not None:
            pid = root_of(pipeline.source)
        if pid is not None:
            engines.setdefault(pid, {})[track.life.engine.engine_index] = track.life.engine.engine_id
    for pid, found in engines.items():
        yield Writer(pipeline.source, pid, found)


def _total(sizes: Sequence[float | None]) -> float | None:
    """Return the sum; None where one of them is not known."""
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _holder(one: GpuProcess) -> str:
    who = f"{one.name or 'process'}[{one.pid}]" if one.source is None else one.source
    return who if one.memory_mib is None else f"{who} {one.memory_mib / 1024:.1f}"


def _has_moved(old: Sequence[GpuProcess], new: Sequence[GpuProcess]) -> bool:
    before = {(one.pid, one.source, one.engine_id): one.memory_mib for one in old}
    after = {(one.pid, one.source, one.engine_id): one.memory_mib for one in new}
    if before.keys() != after.keys():
        return True
    return any(abs((before[key] or 0.0) - (size or 0.0)) >= LEAST_CHANGE_MIB for key, size in after.items())
