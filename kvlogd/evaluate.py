"""Rules at work: the conditions of each rule on one run, source, GPU or server, and the alert that comes of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, Protocol

from kvlogd import alerts
from kvlogd.alerts import Standing
from kvlogd.engines import Life
from kvlogd.gauge import GpuWindow, HostWindow
from kvlogd.kinds import KINDS, is_lasting
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
UNASKED = Abstained("it has not been asked yet")
METHODS = {Per.ENGINE: "judge", Per.SOURCE: "judge_source", Per.GPU: "judge_gpu", Per.HOST: "judge_host"}
"""What an evaluator judges each scope by."""
Judged = Window | SourceWindow | GpuWindow | HostWindow
DAY_S = 86_400.0
TOGETHER_S = 60.0
"""Conditions that rest are asked at multiples of this, all that are due by then together ..."""
SETTLED = 720
"""... once the run has so many records: in its first hours everything may happen within minutes."""
FAULTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a fault in a condition raises. It must cost neither the other rules nor the alert's state."""


class Judge(Protocol):
    """What a condition last said. Holds plain state only: it is kept in the store."""

    def ones(self) -> Iterable["_One"]: ...  # noqa: D102
    def said(self) -> Judgement: ...  # noqa: D102


class _One:
    """One condition at work. What it said stands until it may have something else to say."""

    def __init__(self, evaluator: Any, method: str) -> None:
        self._evaluator = evaluator
        self._method = method
        self.due_s = -inf
        self.least = 0
        """Due or not, it has nothing to say until the run has so many records ..."""
        self.late_s = -inf
        """... nor before this time, unless one of them is strained."""
        self.ripe = inf
        """Before it is due it is asked once the run has so many records."""
        self._said: Judgement = UNASKED
        self.failures = 0
        """How often it has failed in a row."""

    def ones(self) -> Iterable["_One"]:
        """Return itself."""
        return (self,)

    def said(self) -> Judgement:
        """Return what it said when it was asked last."""
        return self._said

    def ask(self, window: Any, at_s: float) -> bool:
        """Ask it; return whether it says something else than before."""
        evaluator, before = self._evaluator, self._said
        try:
            said: Judgement = getattr(evaluator, self._method)(window, at_s)
        except FAULTS as error:
            self.failures += 1
            times = count_text(self.failures, "time")
            said = Broken(f"the rule failed, {times} so far: {type(error).__name__}")
        self.due_s, self.late_s = at_s + evaluator.rest_s, at_s + evaluator.calm_s
        self.least, self.ripe = evaluator.least, evaluator.ripe
        if said is before:
            return False
        self._said = said
        if type(said) is not Broken:
            self.failures = 0
        return type(said) is not type(before) or said != before


class _Several:
    """Several conditions at work, of which all or any must hold."""

    def __init__(self, need_all: bool, parts: Sequence[Judge]) -> None:
        self._need_all = need_all
        self._parts = parts

    def ones(self) -> Iterable[_One]:
        """Return each of them."""
        return [one for part in self._parts for one in part.ones()]

    def said(self) -> Judgement:
        """Return what they say together."""
        return combined(self._need_all, [part.said() for part in self._parts])


Shared = dict[tuple[str, Any], _One]
"""Rules of one scope share the evaluators of equal conditions, by kind and parameters."""


def judge_of(condition: Condition, method: str, shared: Shared) -> Judge:
    """Return the evaluators of a condition, combined; `method` is what they judge by: a run or a source."""
    if isinstance(condition, Leaf):
        kind, params = condition.kind, condition.params
        if (kind, params) not in shared:
            shared[kind, params] = _One(KINDS[kind].make(params), method)
        return shared[kind, params]
    return _Several(isinstance(condition, AllOf), [judge_of(part, method, shared) for part in condition.parts])


def combined(need_all: bool, seen: Sequence[Judgement]) -> Judgement:
    """Return what conditions say together: a finding where all (or any) find, else the most that is known."""
    broken = next((one for one in seen if isinstance(one, Broken)), None)
    if broken is not None:
        return broken
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
    if not isinstance(judgement, Finding):
        return judgement
    for excuse in excuses:
        if isinstance(excuse, Finding | Broken):
            return CLEAR if isinstance(excuse, Finding) else excuse
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

    def __init__(self, rule: Rule, key: AlertKey, source: str, engine_index: int | None, shared: Shared) -> None:
        self.rule = rule
        self.key = key
        self.source = source
        self.engine_index = engine_index
        method = METHODS[rule.per]
        self.when = judge_of(rule.when, method, shared)
        self.unless = [judge_of(condition, method, shared) for condition in rule.unless]
        self.needs_data = rule.no_data is NoData.ALERT
        self.standing: Standing | None = None
        self.last: Judgement = NoEvidence()
        self.idle_since_s: float | None = None
        """When it was asked first, as long as it never had anything to judge."""
        self.has_judged = False

    def judged(self, window: Judged, at_s: float) -> Judgement:
        """Return what the rule says by what its conditions said last; where it fails, that is no verdict."""
        judgement = self.when.said()
        if self.unless:
            judgement = excused(judgement, (self._excuse(excuse, window, at_s) for excuse in self.unless))
        if not self.has_judged and not isinstance(judgement, Broken):
            self.has_judged = not isinstance(judgement, NoEvidence)
            self.idle_since_s = at_s if self.idle_since_s is None else self.idle_since_s
        return judgement

    def _excuse(self, excuse: Judge, window: Judged, at_s: float) -> Judgement:
        for one in excuse.ones():
            one.ask(window, at_s)
        return excuse.said()

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
    """The rules of one scope, each with the state of its alert.

    A condition rests until it may have something else to say; and a rule is put together anew where one of its
    conditions has said something else, or its alert stands. So most ticks ask no condition and look at no rule.
    """

    def __init__(self, works: Iterable[_AtWork]) -> None:
        self._works = list(works)
        self._judged = [work for work in self._works if work.rule.query is None]
        """Those that look at records, and do not ask the store."""
        self._ones = list(dict.fromkeys(one for work in self._judged for one in work.when.ones()))
        self._has_excuses = any(work.unless for work in self._judged)
        """Some conditions are asked out of their turn."""
        self._asked_s = -inf
        self._is_quiet = False
        """No rule has an alert or a finding, as far as is known."""
        self._has_eyes = False
        """/metrics has been read: what waited for records only has more to look at since."""
        self._is_restless = True
        """Some condition is to be asked at each tick."""

    @classmethod
    def of_engine(cls, rules: Iterable[Rule], life: Life, going_on: Iterable[Standing] = ()) -> "Bench":
        """Return the rules that judge each engine, for one run; `going_on` are alerts that outlived the run before."""
        engine, standings = life.engine, {standing.key: standing for standing in going_on}
        shared: Shared = {}
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
        shared: Shared = {}
        return cls(
            _AtWork(rule, AlertKey(rule.id, source, None), source, None, shared)
            for rule in rules
            if rule.per is Per.SOURCE
        )

    @classmethod
    def of_reading(cls, rules: Iterable[Rule], per: Per, scope: str, source: str) -> "Bench":
        """Return the rules that judge a GPU, or a server's memory."""
        shared: Shared = {}
        return cls(
            _AtWork(rule, AlertKey(rule.id, scope, None), source, None, shared) for rule in rules if rule.per is per
        )

    def renewed(self) -> "Bench":
        """Return the same rules and alerts with evaluators that know nothing yet: after the clock went back."""
        shared: Shared = {}
        fresh = Bench(_AtWork(work.rule, work.key, work.source, work.engine_index, shared) for work in self._works)
        for new, old in zip(fresh._works, self._works, strict=True):
            new.standing = old.standing
        return fresh

    def _asked(self, window: Judged, at_s: float) -> list[_AtWork]:
        """Ask the conditions that are due; return the rules that may say something else now, or have an alert."""
        if at_s < self._asked_s:
            self.wake()  # a clock that went back keeps none from being asked
        self._asked_s = at_s
        count, strained = 0, 0
        if isinstance(window, Window):
            count, strained = window.count, window.strained
            if window.eyes.count and not self._has_eyes:
                self._has_eyes = True
                self.wake()
        changed = self._has_excuses
        if self._is_restless or count < SETTLED or not at_s % TOGETHER_S:
            changed |= self._ask(window, at_s, count, strained)
        stirred: list[_AtWork] = []
        if not self._is_quiet:
            stirred = [work for work in self._judged if work.standing is not None or type(work.last) is Finding]
        self._is_quiet = not (stirred or changed)
        return self._judged if changed else stirred

    def _ask(self, window: Judged, at_s: float, count: int, strained: int) -> bool:
        """Ask the conditions that are due; return whether one says something else than before."""
        changed, self._is_restless = False, self._has_excuses  # those are asked out of turn
        for one in self._ones:
            if at_s >= one.due_s:
                if count < one.least or (strained < one.least and at_s < one.late_s):
                    continue
            elif count < one.ripe:
                continue
            if one.ask(window, at_s):
                changed = True
            if one.due_s <= at_s:
                self._is_restless = True
        return changed

    def wake(self) -> None:
        """End the rest of all conditions: something has happened that none of them could wait for."""
        self._is_restless = True
        for one in self._ones:
            one.due_s, one.least, one.late_s = -inf, 0, -inf

    def judge(self, window: Judged, at_s: float) -> list[AlertEvent]:
        """Evaluate the rules on this scope at a time; return what changed."""
        events: list[AlertEvent] = []
        for work in self._asked(window, at_s):
            judgement = work.judged(window, at_s)
            if work.standing is None and type(judgement) is not Finding and not work.needs_data:
                work.last = judgement
            else:
                events += work.step(judgement, at_s)
        return events

    def judge_newest(self, window: Window, at_s: float) -> list[AlertEvent]:
        """Evaluate the rules a last time at a tick, if a record came since all were asked together; none rests."""
        if window.last is None or window.last.ts_s < at_s - (at_s % TOGETHER_S or TOGETHER_S):
            return []
        self.wake()
        return self.judge(window, at_s)

    def answer(self, rule: Rule, found: Mapping[str, Finding] | Broken, at_s: float) -> list[AlertEvent]:
        """Judge a rule by the answer to its query, as of a time; one that was judged later is left as it is."""
        events: list[AlertEvent] = []
        for work in self._works:
            if work.rule.id == rule.id and (work.standing is None or work.standing.seen_s < at_s):
                judgement = found if isinstance(found, Broken) else found.get(work.key.scope, CLEAR)
                events += work.step(judgement, at_s)
        return events

    def recall(self, window: Window | SourceWindow, at_s: float) -> None:
        """Let the evaluators see a moment of the past again: what came of it is known."""
        for work in self._asked(window, at_s):
            work.last = work.judged(window, at_s)

    def restore(self, standings: Mapping[AlertKey, Standing]) -> None:
        """Take up the alerts where the store has them."""
        self._is_quiet = False
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

    def is_alerted(self) -> bool:
        """Return whether there is an alert that is pending or firing."""
        return any(work.standing is not None for work in self._works)

    def standings(self) -> list[Standing]:
        """Return the alerts that are pending or firing."""
        return [work.standing for work in self._works if work.standing is not None]
