"""`recompute`: requests are evicted from a full pool and computed again, so that work is lost.

Where evictions are counted (V0 warns of each fiftieth, some front ends print `Preemptions`), what they cost is held
against all work: the tokens that the evicted requests held (usage, pool size and number running tell how many)
against the prompt and generated tokens of the same time. Most versions count nothing; there it is inferred: near a
full pool, requests go from running to waiting, and the engine generates less than half of what it did at this
load in calmer blocks of the same run, while the prompts computed do not explain it. A pool that is full but flows
keeps its speed. The value is the share of the engine's work that is lost.
Cannot see: evictions that cost little; anything on a run that was in the storm from its first record on.
"""

from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from kvlogd.block import load_bin, median
from kvlogd.fields import Points
from kvlogd.model import Abstained, Clear, EventKind, Finding, Judgement, NoEvidence, Per, Stats
from kvlogd.rest import Resting
from kvlogd.window import CROWDED, Window

NAME = "recompute"
SCOPES = frozenset({Per.ENGINE})

BLOCK_RECORDS, BLOCK_S = 5, 60.0
"""A block is at least so many records and so long."""
SPAN = 5
"""Blocks over which counted evictions are summed."""
V0_STEP = 50
"""V0 warns of every fiftieth preemption only."""
LEAST_COUNTED = 5
EACH_ONCE = 1.0
"""Without the pool's size: as many evictions as requests run, within the span."""
QUEUED = 0.25
"""Mean number waiting from which on a block is not calm."""
CALM_KEPT = 12
CALM_EVERY = 5
"""Of the blocks with room in the pool, at a load that is known, each so-many-th is learned from."""
LEAST_CALM = 3
MORE_PROMPTS = 1.2
"""Prompt work beyond this factor of that of calm blocks explains a slower generation."""


class Params(BaseModel):
    """How much work must be lost, and how full the pool must be."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    full: Points = 0.85
    """Usage near which evictions happen; it falls by a request each time."""
    lost: Points = 0.15
    """Share of all work that counted evictions must cost."""
    left: Points = 0.45
    """Share of the usual generation that is left when evictions are inferred."""


class Block(NamedTuple):
    """Some consecutive records."""

    start_s: float
    end_s: float
    running: float
    generation: float
    prompt: float
    usage: float
    queued: float
    seen: int
    """Requests that went from running to waiting between two records: fewer than were evicted."""
    counted: int


class Usual(NamedTuple):
    """The medians of the calm blocks at one load."""

    running: float
    generation: float
    prompt: float


def make(params: Params) -> "Recompute":
    """Return an evaluator for one run."""
    return Recompute(params)


class Recompute(Resting):
    """Judges the evictions of one run."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._taken = 0
        self._start_s = 0.0
        self._before: Stats | None = None
        self._warned = 0
        """V0's warnings that were counted."""
        self._latest: deque[Block] = deque(maxlen=SPAN)
        self._calm: dict[int, list[Block]] = {}
        self._usual: dict[int, Usual] = {}
        self._unlearned = CALM_EVERY
        """Blocks since one with room in the pool was last learned from."""
        self.least = BLOCK_RECORDS
        self._judgement: Judgement = NoEvidence()

    def judge(self, window: Window, at_s: float) -> Judgement:
        """Return whether evictions cost the engine its work; it changes only when a block is complete."""
        last, fresh = window.last, window.count - self._taken
        if last is not None and fresh >= BLOCK_RECORDS and last.ts_s - self._start_s >= BLOCK_S:
            if window.crowded <= self._taken and self._params.full >= CROWDED and self._knows(last.running):
                self._pass_by(last)
                self._taken = window.count
            else:
                self._take(window.fresh(self._taken), window)
        self.rest_s, self.least = max(0.0, self._start_s + BLOCK_S - at_s), self._taken + BLOCK_RECORDS
        return self._judgement

    def _take(self, records: Sequence[Stats], window: Window) -> None:
        """Take in the blocks that some records complete; each ends with an idle record, or with the last one."""
        ends = [len(records)]
        if window.idled > self._taken:
            # what an idle engine did before is not averaged with what it does next
            ends = [end for end, one in enumerate(records, 1) if not (one.running or one.waiting)] + ends
        begin = 0
        for end in ends:
            last = records[end - 1]
            if end - begin >= BLOCK_RECORDS and last.ts_s - self._start_s >= BLOCK_S:
                self._close(records[begin:end], last, window)
                begin = end
        self._taken = window.count - len(records) + begin

    def _knows(self, running: int) -> bool:
        """Return whether nothing need be learned of a load for now."""
        return self._unlearned < CALM_EVERY and len(self._calm.get(load_bin(running), ())) >= LEAST_CALM

    def _pass_by(self, last: Stats) -> None:
        """Take in a block with room in the pool that ends with a record: it tells nothing."""
        self._unlearned += 1
        self._latest.clear()
        self._judgement = CLEAR
        self._start_s, self._before = last.ts_s, last

    def _close(self, records: Sequence[Stats], last: Stats, window: Window) -> None:
        if max([record.kv_usage for record in records]) < self._params.full and self._knows(last.running):
            self._pass_by(last)
            return
        block = self._block(records, window)
        if block.prompt or block.generation:
            self._latest.append(block)
            self._judgement = self._look(window, block)
        self._start_s, self._before = last.ts_s, last

    def _block(self, records: Sequence[Stats], window: Window) -> Block:
        n = len(records)
        usage = sum([record.kv_usage for record in records]) / n
        seen = self._evicted(records) if usage >= self._params.full else 0
        counted = self._warnings(window)
        if records[-1].preemptions is not None or records[0].preemptions is not None:
            counted += sum([record.preemptions or 0 for record in records])
        return Block(
            records[0].ts_s if self._before is None else max(self._before.ts_s, records[0].ts_s - 120.0),
            records[-1].ts_s,
            sum([record.running for record in records]) / n,
            sum([record.generation_tps for record in records]) / n,
            sum([record.prompt_tps for record in records]) / n,
            usage,
            sum([record.waiting - (record.deferred or 0) for record in records]) / n,
            seen,
            counted,
        )

    def _evicted(self, records: Sequence[Stats]) -> int:
        """Return how many requests went back to the queue: a running one less and a waiting one more at once."""
        evicted, before = 0, self._before
        for record in records:
            if before is not None:
                left = before.running - record.running
                came = record.waiting - before.waiting - (record.deferred or 0) + (before.deferred or 0)
                evicted += max(0, min(left, came))
            before = record
        return evicted

    def _warnings(self, window: Window) -> int:
        times = window.events.get(EventKind.PREEMPTION)
        if not times:
            return 0
        warned = len([at_s for at_s in times if at_s > self._start_s])
        first = warned > 0 and not self._warned
        self._warned += warned
        return V0_STEP * warned - (V0_STEP - 1 if first else 0)

    def _look(self, window: Window, block: Block) -> Judgement:
        if block.usage < self._params.full:
            self._learn(block)
            return CLEAR
        found = self._by_count(window) or self._by_pace(block)
        if not isinstance(found, Finding):
            self._learn(block)
        return found

    def _learn(self, block: Block) -> None:
        """Keep a calm block as a yardstick for its load."""
        if block.seen or block.counted or block.queued >= QUEUED or block.running < 1 or not block.generation:
            return
        self._unlearned = 0
        load = load_bin(round(block.running))
        kept = self._calm.setdefault(load, [])
        kept.append(block)
        if len(kept) > CALM_KEPT:
            del kept[0]
        self._usual.pop(load, None)

    def _known(self) -> Collection[Usual]:
        """Return what is usual at each load of which enough is known: near a full pool only it is asked for."""
        for load, kept in self._calm.items():
            if len(kept) >= LEAST_CALM and load not in self._usual:
                self._usual[load] = Usual(
                    median(sorted([one.running for one in kept])),
                    median(sorted([one.generation for one in kept])),
                    median(sorted([one.prompt for one in kept])),
                )
        return self._usual.values()

    def _by_count(self, window: Window) -> Finding | None:
        """Return a finding where counted evictions cost a good part of the work."""
        blocks = list(self._latest)
        while blocks and not blocks[0].counted:
            del blocks[0]
        evicted = sum([block.counted for block in blocks])
        if evicted < LEAST_COUNTED or sum([block.counted > 0 for block in blocks]) < 2:
            return None
        span_s = max(1.0, blocks[-1].end_s - blocks[0].start_s)
        running = max(1.0, sum([block.running for block in blocks]) / len(blocks))
        evidence = {"evictions": float(evicted), "evictions_per_min": evicted / span_s * 60}
        pool = window.pool_tokens()
        if pool:
            usage = sum([block.usage for block in blocks]) / len(blocks)
            work = sum([block.prompt + block.generation for block in blocks]) / len(blocks) * span_s
            again = evicted * usage * pool / running
            lost = again / max(1.0, again + work)
            if lost < self._params.lost:
                return None
            evidence |= {"lost_work": lost, "tokens_each": float(round(usage * pool / running))}
        elif evicted < EACH_ONCE * running:
            return None
        return self._finding(blocks[0].start_s, evidence.get("lost_work"), evidence)

    def _by_pace(self, block: Block) -> Judgement:
        """Judge by what two blocks generate where nothing counts the evictions."""
        if len(self._latest) < 2 or not block.seen or block.queued < QUEUED:
            return CLEAR
        shares = [self._left(each) for each in (self._latest[-2], block)]
        if None in shares:
            return Abstained("the pool is full and requests go back to the queue; no calm stretch tells its usual pace")
        left = max([share for share in shares if share is not None])
        if left > self._params.left:
            return CLEAR
        evidence = {"evictions_seen": float(self._latest[-2].seen + block.seen), "lost_work": 1.0 - left}
        evidence |= {"generation_tps": block.generation, "usual_tps": block.generation / max(1e-9, left)}
        return self._finding(self._latest[-2].start_s, 1.0 - left, evidence)

    def _left(self, block: Block) -> float | None:
        """Return what a block generates as a share of what it should; None where nothing is known of its load.

        An engine with more running generates no less than with fewer, and each of fewer no less than each of more.
        """
        if not block.seen or block.queued < QUEUED or block.usage < self._params.full:
            return 1.0
        known = self._known()
        if not known:
            return None
        usual = max([one.generation * min(1.0, block.running / one.running) for one in known])
        prompts = max([one.prompt for one in known])
        return 1.0 if block.prompt > MORE_PROMPTS * prompts + 1.0 else block.generation / usual

    def _finding(self, since_s: float, value: float | None, evidence: dict[str, float]) -> Finding:
        block = self._latest[-1]
        evidence |= {"usage_now": block.usage, "running": block.running, "waiting": block.queued}
        return Finding(since_s, value, evidence)


CLEAR = Clear()
