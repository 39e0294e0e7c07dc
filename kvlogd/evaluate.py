"""Rules at work: the conditions of each rule on one run, source, GPU or server, and the alert that comes of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, Protocol

from kvlogd import alerts
from kvlogd.alerts import Standing
from kvlogd.engines import Life
from kvlogd.gauge import GpuWindow, HostWindow
from kvlogd.kinds import KINDS, every_s, is_lasting, looks_at_idle
from kvlogd.model import (
    Abstained,
    AlertEvent,
    AlertKey,
    AlertState,
    Broken,
    Clear,
    Finding,
    Judgement,
    NoData,
    NoEvidence,
    Per,
)
from kvlogd.quantity import count_text
from kvlogd.rules import AllOf, Condition, Leaf, Rule
from kvlogd.window import SourceWindow, Window

CLEAR = Clear()
METHODS = {Per.ENGINE: "judge", Per.SOURCE: "judge_source", Per.GPU: "judge_gpu", Per.HOST: "judge_host"}
"""What an evaluator judges each scope by."""
Judged = Window | SourceWindow | GpuWindow | HostWindow
DAY_S = 86_400.0
FAULTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a fault in a condition raises. It must cost neither the other rules nor the alert's state."""


class Judge(Protocol):
    """Judges a window (of a run, or of a source) at a time. Holds plain state only: it is kept in the store."""

    def judge(self, window: Any, at_s: float, /) -> Judgement: ...  # noqa: D102


class _One:
    """One condition at work."""

    def __init__(self, evaluator: Any, method: str) -> None:
        self._evaluator = evaluator
        self._method = method

    def judge(self, window: Any, at_s: float) -> Judgement:
        """Return what it says."""
        judgement: Judgement = getattr(self._evaluator, self._method)(window, at_s)
        return judgement


class _Several:
    """Several conditions at work, of which all or any must hold."""

    def __init__(self, need_all: bool, parts: Sequence[Judge]) -> None:
        self._need_all = need_all
        self._parts = parts

    def judge(self, window: Any, at_s: float) -> Judgement:
        """Return what they say together."""
        seen = [part.judge(window, at_s) for part in self._parts]
        return combined(self._need_all, seen)


def judge_of(condition: Condition, method: str, shared: dict[tuple[str, Any], Judge]) -> Judge:
    """Return the evaluators of a condition, combined; `method` is what they judge by: a run or a source.

    Rules of one scope share the evaluators of equal conditions: asked twice at one time, they look once.
    """
    if isinstance(condition, Leaf):
        key = (condition.kind, condition.params)
        if key not in shared:
            shared[key] = _One(KINDS[condition.kind].make(condition.params), method)
        return shared[key]
    return _Several(isinstance(condition, AllOf), [judge_of(part, method, shared) for part in condition.parts])


def combined(need_all: bool, seen: Sequence[Judgement]) -> Judgement:
    """Return what conditions say together: a finding where all (or any) find, else the most that is known."""
    if set(map(type, seen)) == {Clear}:  # as nearly always
        return CLEAR
    found = [one for one in seen if isinstance(one, Finding)]
    if found and (not need_all or len(found) == len(seen)):
        return found[0] if len(found) == 1 or not need_all else _merged(found)
    if need_all and any(isinstance(one, Clear) for one in seen):
        return CLEAR
    return next((one for one in seen if isinstance(one, Abstained)), None) or next(
        (one for one in seen if isinstance(one, NoEvidence)), CLEAR
    )


def excused(judgement: Judgement, excuses: Iterable[Judgement]) -> Judgement:
    """Return a judgement, or that all is clear where it is a finding and one of its excuses holds for certain."""
    if isinstance(judgement, Finding) and any(isinstance(excuse, Finding) for excuse in excuses):
        return CLEAR
    return judgement


def _merged(found: Sequence[Finding]) -> Finding:
    evidence: dict[str, float] = {}
    for one in reversed(found):
        evidence |= one.evidence
    return found[0]._replace(since_s=max(one.since_s for one in found), evidence=evidence)


def outlives_runs(rule: Rule) -> bool:
    """Return whether a rule judges several lives of an engine: its alert goes on through a restart."""
    return any(is_lasting(kind) for kind in rule.kinds())


class _AtWork:
    """One rule on one run or source."""

    def __init__(
        self, rule: Rule, key: AlertKey, source: str, engine_index: int | None, shared: dict[tuple[str, Any], Judge]
    ) -> None:
        self.rule = rule
        self.key = key
        self.source = source
        self.engine_index = engine_index
        method = METHODS[rule.per]
        self.when = judge_of(rule.when, method, shared)
        self.every_s = min([every_s(leaf.params) for leaf in rule.leaves()], default=0.0)
        self.due_s = -inf
        """Not before this is it asked again, as long as nothing was found."""
        self.unless = [judge_of(condition, method, shared) for condition in rule.unless]
        self.needs_data = rule.no_data is NoData.ALERT
        self.standing: Standing | None = None
        self.last: Judgement = NoEvidence()
        self.failures = 0
        """How often it has failed in a row."""
        self.idle_since_s: float | None = None
        """When it was asked first, as long as it never had anything to judge."""
        self.has_judged = False

    def judged(self, window: Judged, at_s: float) -> Judgement:
        """Return what the rule says; where it fails, that is no verdict, and the other rules go on."""
        self.due_s = at_s + self.every_s if self.standing is None else at_s
        try:
            judgement = self.when.judge(window, at_s)
            if self.unless:
                judgement = excused(judgement, (excuse.judge(window, at_s) for excuse in self.unless))
        except FAULTS as error:
            self.failures += 1
            return Broken(f"the rule failed, {count_text(self.failures, 'time')} so far: {type(error).__name__}")
        self.failures = 0
        if not self.has_judged:
            self.has_judged = not isinstance(judgement, NoEvidence)
            self.idle_since_s = at_s if self.idle_since_s is None else self.idle_since_s
        return judgement

    def step(self, judgement: Judgement, at_s: float) -> tuple[AlertEvent, ...]:
        self.last = judgement
        if self.standing is None:
            if self.needs_data and isinstance(judgement, Abstained | NoEvidence):
                judgement = Finding(at_s, None, {})
            if not isinstance(judgement, Finding):
                return ()
            self.standing = alerts.start(self.rule, self.key, self.source, self.engine_index, judgement, at_s)
        self.standing, events = alerts.step(self.rule, self.standing, judgement, at_s)
        return events


class Bench:
    """The rules of one scope, each with the state of its alert."""

    def __init__(self, works: Iterable[_AtWork]) -> None:
        self._works = list(works)
        self._judged = [work for work in self._works if work.rule.query is None]
        """Those that look at records, and do not ask the store."""
        self._at_idle = [work for work in self._works if any(map(looks_at_idle, work.rule.kinds()))]
        """Those that look at each idle moment."""

    @classmethod
    def of_engine(cls, rules: Iterable[Rule], life: Life, going_on: Iterable[Standing] = ()) -> "Bench":
        """Return the rules that judge each engine, for one run; `going_on` are alerts that outlived the run before."""
        engine, standings = life.engine, {standing.key: standing for standing in going_on}
        shared: dict[tuple[str, Any], Judge] = {}
        works = []
        for rule in rules:
            if rule.per is Per.ENGINE:
                run_id = None if outlives_runs(rule) else life.run.run_id
                key = AlertKey(rule.id, engine.label, run_id)
                work = _AtWork(rule, key, engine.source, engine.engine_index, shared)
                work.standing = standings.get(work.key)
                works.append(work)
        return cls(works)

    @classmethod
    def of_source(cls, rules: Iterable[Rule], source: str) -> "Bench":
        """Return the rules that judge a whole source."""
        shared: dict[tuple[str, Any], Judge] = {}
        return cls(
            _AtWork(rule, AlertKey(rule.id, source, None), source, None, shared)
            for rule in rules
            if rule.per is Per.SOURCE
        )

    @classmethod
    def of_reading(cls, rules: Iterable[Rule], per: Per, scope: str, source: str) -> "Bench":
        """Return the rules that judge a GPU, or a server's memory."""
        shared: dict[tuple[str, Any], Judge] = {}
        return cls(
            _AtWork(rule, AlertKey(rule.id, scope, None), source, None, shared) for rule in rules if rule.per is per
        )

    def renewed(self) -> "Bench":
        """Return the same rules and alerts with evaluators that know nothing yet: after the clock went back."""
        shared: dict[tuple[str, Any], Judge] = {}
        fresh = Bench(_AtWork(work.rule, work.key, work.source, work.engine_index, shared) for work in self._works)
        for new, old in zip(fresh._works, self._works, strict=True):
            new.standing = old.standing
        return fresh

    def _due(self, at_s: float, *, is_idle: bool) -> list[_AtWork]:
        if is_idle:
            return self._at_idle
        # a clock that went back keeps none from being asked
        return [work for work in self._judged if not at_s < work.due_s <= at_s + work.every_s]

    def judge(self, window: Judged, at_s: float, *, is_idle: bool = False) -> list[AlertEvent]:
        """Evaluate the rules on this scope at a time, or those that look at idle moments; return what changed."""
        events: list[AlertEvent] = []
        for work in self._due(at_s, is_idle=is_idle):
            judgement = work.judged(window, at_s)
            if work.standing is None and type(judgement) is not Finding and not work.needs_data:
                work.last = judgement
            else:
                events += work.step(judgement, at_s)
        return events

    def answer(self, rule: Rule, found: Mapping[str, Finding] | Broken, at_s: float) -> list[AlertEvent]:
        """Judge a rule by the answer to its query, as of a time; one that was judged later is left as it is."""
        events: list[AlertEvent] = []
        for work in self._works:
            if work.rule.id == rule.id and (work.standing is None or work.standing.seen_s < at_s):
                judgement = found if isinstance(found, Broken) else found.get(work.key.scope, CLEAR)
                events += work.step(judgement, at_s)
        return events

    def recall(self, window: Window | SourceWindow, at_s: float, *, is_idle: bool = False) -> None:
        """Let the evaluators see a moment of the past again: what came of it is known."""
        for work in self._due(at_s, is_idle=is_idle):
            work.last = work.judged(window, at_s)

    def restore(self, standings: Mapping[AlertKey, Standing]) -> None:
        """Take up the alerts where the store has them."""
        for work in self._works:
            work.standing = standings.get(work.key)

    def ask_for_more(self) -> list[Standing]:
        """Take back to pending what has not lasted as long as its rule, which was changed, asks for; return it."""
        too_short = [
            work
            for work in self._works
            if work.standing is not None
            and work.standing.state is AlertState.FIRING
            and work.standing.true_for_s < work.rule.for_s
        ]
        before = [work.standing for work in too_short if work.standing is not None]
        for work, standing in zip(too_short, before, strict=True):
            work.standing = standing._replace(state=AlertState.PENDING)
        return before

    def end(self, at_s: float, reason: str) -> list[AlertEvent]:
        """End the alerts of a run that is over; those about the engine, whatever its run, stand on."""
        events: list[AlertEvent] = []
        for work in self._works:
            if work.standing is not None and work.key.run is not None:
                events += alerts.end(work.standing, at_s, reason)
                work.standing = None
        return events

    def abstained(self, *, ended: bool = False) -> list[tuple[str, str]]:
        """Return the rules whose last word was that the evidence is too thin, and what they lacked.

        Of a run that has `ended` only those that judge it by itself.
        """
        last = [(work, work.last) for work in self._works if work.key.run is not None or not ended]
        return [(work.rule.id, word.why) for work, word in last if isinstance(word, Abstained)]

    def without_evidence(self, at_s: float) -> list[tuple[str, str]]:
        """Return the rules, each with its scope, that have had nothing to judge for a day: they may never fire."""
        idle = [work for work in self._works if not work.has_judged and work.idle_since_s is not None]
        return [(work.rule.id, work.key.scope) for work in idle if at_s - (work.idle_since_s or at_s) >= DAY_S]

    def at_work(self) -> Iterator[tuple[Rule, str, Judgement, Standing | None]]:
        """Yield each rule with its scope, its last word and its alert."""
        for work in self._works:
            yield work.rule, work.key.scope, work.last, work.standing

    def standings(self) -> list[Standing]:
        """Return the alerts that are pending or firing."""
        return [work.standing for work in self._works if work.standing is not None]
