"""`skew`: one data-parallel engine differs from its siblings while the requests are spread evenly.

Siblings are the engines of one server process that print their own records. Over some minutes, each is held against
the median of the others: it is slow where each of its requests gets far fewer tokens a second, and holds too much
where each holds far more of the pool. Both count only where the engine has as many requests running as its siblings
or computes as many tokens, with the same mix of prompts and generated tokens and the same hit rate: a router that
pins sessions gives other work to each engine, and that is its right. The value is the engine's number as a share
of its siblings'.
Cannot see: servers of one engine each, records that sum all engines up, stages of a pipeline (they print no record).
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from kvlogd.block import median
from kvlogd.fields import Duration, Points
from kvlogd.model import Abstained, Clear, Finding, Judgement, NoEvidence, Per
from kvlogd.rest import Resting
from kvlogd.window import Window

NAME = "skew"
SCOPES = frozenset({Per.ENGINE})

LEAST_RECORDS = 12
BUSY = 2.0
"""Mean number running below which single requests, not the engine, make the numbers."""
EVEN = 1.33
"""Factor within which two engines have the same load."""
SAME_HITS = 0.1
APART = 4.0
"""How many median deviations of the siblings the engine must lie from their median."""
HELD_MORE = 0.1
"""Least difference of usage for holding too much, as a share of the pool."""


class Params(BaseModel):
    """Over which span, and how far apart."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    over: Duration = 600.0
    slower: Points = 0.65
    """The pace of a slow engine, as a share of its siblings'."""
    holds: Points = 0.65
    """What the siblings hold for each request, as a share of what the engine does."""


class Summary(NamedTuple):
    """One engine over the span."""

    running: float
    generation: float
    prompt: float
    usage: float
    hit_rate: float | None

    @property
    def pace(self) -> float:
        """Tokens a second that each request gets."""
        return self.generation / self.running

    @property
    def held(self) -> float:
        """Share of the pool that each request holds."""
        return self.usage / self.running

    @property
    def mix(self) -> float:
        """Prompt tokens for each generated one."""
        return self.prompt / max(1e-9, self.generation)


class How(StrEnum):
    """In what an engine may differ."""

    PACE = "pace"
    HELD = "held"


def make(params: Params) -> "Skew":
    """Return an evaluator for one run."""
    return Skew(params)


class Skew(Resting):
    """Holds one engine against its siblings, once a span."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._slot: float | None = None
        self._judgement: Judgement = NoEvidence()

    def judge(self, window: Window, at_s: float) -> Judgement:
        """Return whether this engine differs from its siblings."""
        slot = at_s // self._params.over
        if slot != self._slot:
            # the first slot may have begun before the engine did
            self._judgement = NO_SIBLINGS if self._slot is None else self._look(window, slot * self._params.over)
            self._slot = slot
        has_siblings = len(window.peers) > 1
        # a finding ends with its siblings; else nothing changes within a slot
        self.rest_s = 0.0 if isinstance(self._judgement, Finding) else (slot + 1) * self._params.over - at_s
        return self._judgement if has_siblings else NO_SIBLINGS

    def _look(self, window: Window, end_s: float) -> Judgement:
        siblings = [peer for peer in window.peers.values() if is_sibling(window, peer)]
        if not siblings:
            return NO_SIBLINGS
        start_s = end_s - self._params.over
        own = summary_of(window, start_s, end_s)
        others = [one for peer in siblings if (one := summary_of(peer, start_s, end_s)) is not None]
        if own is None or not others:
            return Abstained("the engine or its siblings had too little to do to be compared")
        for how in How:
            found = self._compare(how, own, others, start_s)
            if found is not None:
                return found
        return Clear()

    def _compare(self, how: How, own: Summary, others: Sequence[Summary], start_s: float) -> Finding | None:
        mine, theirs = getattr(own, how), sorted([getattr(one, how) for one in others])
        usual = median(theirs)
        if not usual:
            return None
        bad = mine <= self._params.slower * usual if how is How.PACE else usual <= self._params.holds * mine
        spread = median(sorted([abs(value - usual) for value in theirs]))
        if not bad or abs(mine - usual) < APART * spread or not evenly(how, own, others):
            return None
        if how is How.HELD and own.usage - median(sorted([one.usage for one in others])) < HELD_MORE:
            return None
        names = ("own_pace", "siblings_pace") if how is How.PACE else ("own_held", "siblings_held")
        evidence = {
            names[0]: mine,
            names[1]: usual,
            "siblings": float(len(others)),
            "running": own.running,
            "siblings_running": median(sorted([one.running for one in others])),
            "usage_now": own.usage,
            "generation_tps": own.generation,
            "lasted_s": self._params.over,
        }
        return Finding(start_s, mine / usual, evidence)


def is_sibling(window: Window, peer: Window) -> bool:
    """Return whether another engine of the source belongs to the same server process."""
    if peer is window or peer.last is None or window.last is None:
        return False
    own, other = window.last, peer.last
    apart = own.engine_index is not None and other.engine_index not in (None, own.engine_index)
    return apart and own.pid == other.pid


def summary_of(window: Window, start_s: float, end_s: float) -> Summary | None:
    """Return an engine's means over a span; None where it had too little to do."""
    records = [record for record in window.since(start_s) if record.ts_s < end_s]
    n = len(records)
    if n < LEAST_RECORDS or records[-1].ts_s - records[0].ts_s < 0.7 * (end_s - start_s):
        return None
    running = sum([record.running for record in records]) / n
    if running < BUSY:
        return None
    return Summary(
        running,
        sum([record.generation_tps for record in records]) / n,
        sum([record.prompt_tps for record in records]) / n,
        sum([record.kv_usage for record in records]) / n,
        records[-1].prefix_hit_rate,
    )


def evenly(how: How, own: Summary, others: Sequence[Summary]) -> bool:
    """Return whether the engine has the same work as its siblings, as far as the log tells."""

    def near(name: str) -> bool:
        mine, usual = float(getattr(own, name)), median(sorted([getattr(one, name) for one in others]))
        return usual <= EVEN * mine and mine <= EVEN * usual

    rates = sorted([one.hit_rate for one in others if one.hit_rate is not None])
    if own.hit_rate is not None and rates and abs(own.hit_rate - median(rates)) > SAME_HITS:
        return False
    flows = near("generation") and near("prompt")
    if how is How.HELD:
        return near("running") and flows
    return near("mix") and (near("running") or flows)


NO_SIBLINGS = NoEvidence()
