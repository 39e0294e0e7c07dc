"""`collapse`: the prefix cache's hit rate falls against its own past, with no more load than before.

vLLM prints a rolling mean over the latest 1,000 requests, so that a sudden fall shows as a ramp, and a start, or a
reset of the cache, as a climb from nothing or a fall from the few first requests. The run is compared with the
older two thirds of its own life: the rate must have lasted there, and must now lie a third below its median and
clearly below the lowest it ever was there (night traffic of another kind), the more so where it moves by itself,
and must not climb: then what lowered it is over.
More requests, more generation or a fuller pool are more load, which pushes prefixes out; few requests, or prompts
that got shorter for each generated token, are another kind of traffic. From 0.16 on (where the log says which it is)
prompt tokens are those computed, and must have become more for each generated one. The value is the hit rate now.
Cannot see: whether the prompts changed or the cache; a fall slower than a third of the run's life; V0's hit rates.
"""

import re
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from kvlogd.block import median
from kvlogd.fields import Count, Duration, Points
from kvlogd.model import Abstained, Clear, EventKind, Finding, Judgement, NoEvidence, Per, Stats
from kvlogd.rest import Resting
from kvlogd.window import Window

NAME = "collapse"
SCOPES = frozenset({Per.ENGINE})

BLOCK_RECORDS, BLOCK_S, LONG_BLOCK_S = 3, 60.0, 120.0
KEPT = 240
RECENT_SHARE = 1 / 3
"""The newest part of the run's life, which is no yardstick."""
LASTED = 0.9
"""The rate at the end of the yardstick, as a share of its median: below this it was never a level."""
MORE_TOKENS = 1.5
"""How far generation may rise for the load to be the same."""
MORE_RUNNING, LESS_RUNNING = 2.0, 0.6
"""How far the number running may move: requests that miss the cache run longer."""
SHORTER = 0.9
"""Prompt tokens to generated ones below this share of the usual are another kind of request: misses do not lower it."""
PUSHED, FULLER = 0.7, 1.3
"""A pool so full, and so much fuller than usual, pushes prefixes out: that is more load too."""
SPREAD, SPREADS = 0.75, 2.5
"""How far below the lowest it must fall on a run whose rate moves by itself, and in all, measured by that movement."""
CLIMBS = 0.02
"""A mean that rises so far meanwhile is on its way back: what lowered it is over."""
OVER = 0.85
"""The rate is back when it reaches this share of the yardstick."""
COMPUTED_ONLY = (0, 16)
"""From this version on, prompt tokens are those computed; before, those found in the cache count too."""
DEARER = 0.4
"""There, the share of the prompt work to be expected of the misses that must be seen."""


class Params(BaseModel):
    """How far the rate must fall."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    to: Points = 0.7
    """What is left of the usual rate."""
    by: Points = 0.15
    """The least fall."""
    below_low: Points = 0.08
    """How far below the lowest that the yardstick ever was."""
    lasts: Duration = 600.0
    """How long it must stay so low: sessions that come and go move the rate for minutes."""
    blocks: Count = 10
    """Blocks (of a minute and more) that a yardstick must have."""


class Block(NamedTuple):
    """Some consecutive records with requests in them."""

    at_s: float
    rate: float
    lowest: float
    """Lowest rate of the blocks that it stands for."""
    running: float
    deferred: float
    """Requests that wait for something else than room: load as well."""
    prompt: float
    generation: float
    usage: float


class Usual(NamedTuple):
    """The yardstick."""

    rate: float
    lowest: float
    spread: float
    """Between the lowest and the highest tenth."""
    last: float
    running: float
    prompts_each: float
    generation: float
    usage: float
    end_s: float


def make(params: Params) -> "Collapse":
    """Return an evaluator for one run."""
    return Collapse(params)


class Collapse(Resting):
    """Judges the hit rate of one run."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._taken = 0
        self._start_s = 0.0
        self._block_s = self.rest_s = BLOCK_S
        """How long a block is: twice as long once the run has too many."""
        self.least = BLOCK_RECORDS
        self._resets = 0
        self._blocks: list[Block] = []
        """Of the whole run, thinned out as it grows."""
        self._latest: list[Block] = []
        self._stride = 1
        self._skipped = 0
        self._lowest, self._highest = 1.0, 0.0
        self._usual: tuple[int, Usual] | None = None
        """The yardstick last made, and of how many blocks: it changes only when a block is kept."""
        self._fallen_from: Usual | None = None
        self._judgement: Judgement = NoEvidence()

    def judge(self, window: Window, at_s: float) -> Judgement:
        """Return whether the hit rate has collapsed; it changes only when a block is complete."""
        last, fresh = window.last, window.count - self._taken
        if last is None or fresh < BLOCK_RECORDS or last.ts_s - self._start_s < self._block_s:
            return self._judgement
        resets = len(window.events.get(EventKind.RESET_OK, ()))
        if resets != self._resets:
            self._resets = resets
            self._blocks, self._latest, self._stride, self._fallen_from = [], [], 1, None
            self._block_s = self.rest_s = BLOCK_S
            self._usual = None
            self._highest = 0.0
        rate = last.prefix_hit_rate
        if rate == 0.0 == self._highest:
            self._judgement = CLEAR  # there is no prefix cache, or nothing was ever found in it
        elif rate is not None and last.running:
            # most blocks only tell that the rate is as it was: what else they say is then not needed
            needed = self._skipped + 1 >= self._stride or rate <= self._params.to * self._highest
            self._keep(block_of(window.fresh(self._taken), rate) if needed else moment_of(last, rate))
            self._judgement = self._look(window)
        self._taken, self._start_s, self.least = window.count, last.ts_s, window.count + BLOCK_RECORDS
        return self._judgement

    def _keep(self, block: Block) -> None:
        start_s = block.at_s - self._params.lasts
        # one block before the span, so that those kept cover it
        while len(self._latest) > 1 and self._latest[1].at_s <= start_s:
            del self._latest[0]
        self._latest.append(block)
        self._skipped += 1
        self._highest = max(self._highest, block.rate)
        self._lowest = min(self._lowest, block.rate)
        if self._skipped < self._stride:
            return
        self._blocks.append(block._replace(lowest=self._lowest))
        self._skipped, self._lowest = 0, 1.0
        if len(self._blocks) > KEPT:
            # the blocks kept hold the lowest rate of those that go
            pairs = zip(self._blocks[::2], self._blocks[1::2], strict=False)
            self._blocks = [a._replace(lowest=min(a.lowest, b.lowest)) for a, b in pairs]
            self._stride *= 1 if self._block_s == BLOCK_S else 2
            self._block_s = self.rest_s = LONG_BLOCK_S
            self._usual = None

    def _look(self, window: Window) -> Judgement:
        now, usual = self._latest[-1], self._fallen_from
        if usual is not None:
            if now.rate >= OVER * usual.rate:
                self._fallen_from = None
                return CLEAR
            return _finding(usual, now)
        low = self._params.to * self._highest
        if now.rate > low or (least := max([block.rate for block in self._latest])) > low:
            return CLEAR if len(self._blocks) * (1 - RECENT_SHARE) >= self._params.blocks else YOUNG
        if now.at_s - self._latest[0].at_s < self._params.lasts:
            return YOUNG
        if now.rate > min([block.rate for block in self._latest]) + CLIMBS:
            return CLIMBING
        older = self._blocks[: int(len(self._blocks) * (1 - RECENT_SHARE))]
        if len(older) < self._params.blocks:
            return YOUNG
        # the second half of the older blocks is in any yardstick: where it was as low, none need be made
        if least > min([block.lowest for block in older[len(older) // 2 :]]) - self._params.below_low:
            return CLEAR
        if self._usual is None or self._usual[0] != len(older):
            self._usual = len(older), usual_of(older)
        usual = self._usual[1]
        if least > min(
            self._params.to * usual.rate, usual.rate - self._params.by, usual.lowest - self._params.below_low
        ):
            return CLEAR
        if usual.last < LASTED * usual.rate:
            return UNSTEADY
        if not same_load(usual, self._latest) or not dearer(usual, self._latest, window.run.vllm_version):
            return CLEAR
        self._fallen_from = usual
        return _finding(usual, now)


CLEAR = Clear()
YOUNG = Abstained("the run is young: its hit rate has no past to be compared with")
CLIMBING = Abstained("the hit rate climbs: other traffic had lowered it, or the cache fills")
UNSTEADY = Abstained("the hit rate of this run never lasted at one level")


def moment_of(last: Stats, rate: float) -> Block:
    """Return the block of one record."""
    deferred = last.deferred or 0
    return Block(last.ts_s, rate, rate, last.running, deferred, last.prompt_tps, last.generation_tps, last.kv_usage)


def block_of(records: list[Stats], rate: float) -> Block:
    """Return the block of some records."""
    n, last = len(records), records[-1]
    return Block(
        last.ts_s,
        rate,
        rate,
        sum([record.running for record in records]) / n,
        sum([record.deferred or 0 for record in records]) / n,
        sum([record.prompt_tps for record in records]) / n,
        sum([record.generation_tps for record in records]) / n,
        last.kv_usage,
    )


def usual_of(blocks: list[Block]) -> Usual:
    """Return the yardstick that some blocks make, from when their rate first came near its usual level on."""
    middle = median(sorted([block.rate for block in blocks]))
    warm = next(i for i, block in enumerate(blocks) if block.rate >= LASTED * middle)
    blocks = blocks[warm:]
    rates = sorted([block.rate for block in blocks])
    tenth = len(rates) // 10
    quarter = blocks[-max(1, len(blocks) // 4) :]
    return Usual(
        median(rates),
        min([block.lowest for block in blocks]),
        rates[-1 - tenth] - rates[tenth],
        median(sorted([block.rate for block in quarter])),
        median(sorted([block.running for block in blocks])),
        prompts_each(blocks),
        sum([block.generation for block in blocks]) / len(blocks),
        sum([block.usage for block in blocks]) / len(blocks),
        blocks[-1].at_s,
    )


def same_load(usual: Usual, blocks: list[Block]) -> bool:
    """Return whether the load is no more than usual, is not next to nothing, and is of the same kind."""
    generation = sum([block.generation for block in blocks]) / len(blocks)
    running = sum([block.running for block in blocks]) / len(blocks)
    if generation > MORE_TOKENS * usual.generation or running > MORE_RUNNING * usual.running:
        return False
    demand = running + sum([block.deferred for block in blocks]) / len(blocks)
    usage = sum([block.usage for block in blocks]) / len(blocks)
    if demand < LESS_RUNNING * usual.running or (usage >= PUSHED and usage >= FULLER * usual.usage):
        return False
    return prompts_each(blocks) >= SHORTER * usual.prompts_each


def dearer(usual: Usual, blocks: list[Block], version: str | None) -> bool:
    """Return whether the misses show in the prompt work, where this version's records would show it."""
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    if numbers is None or (int(numbers[1]), int(numbers[2])) < COMPUTED_ONLY or not usual.prompts_each:
        return True
    rate = sum([block.rate for block in blocks]) / len(blocks)
    expected = (1.0 - rate) / max(0.01, 1.0 - usual.rate) - 1.0
    return prompts_each(blocks) >= (1.0 + DEARER * expected) * usual.prompts_each


def prompts_each(blocks: list[Block]) -> float:
    """Return the prompt tokens for each generated one."""
    return sum([block.prompt for block in blocks]) / max(1.0, sum([block.generation for block in blocks]))


def _finding(usual: Usual, now: Block) -> Finding:
    evidence = {
        "hit_rate": now.rate,
        "usual_hit_rate": usual.rate,
        "running": now.running,
        "usual_running": usual.running,
        "prompts_each": now.prompt / max(1.0, now.generation),
        "usual_prompts_each": usual.prompts_each,
    }
    return Finding(usual.end_s, now.rate, evidence)
