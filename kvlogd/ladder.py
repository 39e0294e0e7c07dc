"""The ladder of comparisons behind `trend … at_constant: load`: the newest stretch of a run against its first,
at several lengths at once, because a leak may take minutes or weeks.

After Machida (a trend test alone cries wolf) the shift must be large, sure, uniform over the loads, no larger
than the lowest usage seen, and gradual: a new system prompt or one huge request comes in one step.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from kvlogd.block import PRINT_STEP, Batch, Block, batch_of, block_of, median, merged
from kvlogd.curve import FLOOR, Shift, Stretch, compare, lift_of, stretch_of
from kvlogd.gates import (
    BEYOND,
    BEYOND_IN_SHORT,
    GRADUAL,
    LATE,
    SPREAD,
    Balance,
    balance_of,
    came_and_went,
    came_at_once,
    gradual,
    has_grown,
    is_light,
    last_below,
    paid,
    payers,
    replaced,
    settled,
    spread_of,
    sure,
    turnovers_at_least,
    turnovers_of,
    unchanged,
)
from kvlogd.grain import Grain, Growth, growth_between
from kvlogd.model import Stats
from kvlogd.room import Size, implied, prompt_of, told
from kvlogd.spells import NOISY_S, Spells, climbs

BATCH_RECORDS = 10


class Rung(NamedTuple):
    """One length of stretch to compare."""

    blocks: int
    least_rows: int
    """Blocks of a stretch that must have seen a load for it to count."""
    by: float
    """The shift that is enough, as a share of the pool: the longer the stretch, the less, but for a day's course."""
    young: int | None = None
    """Compared only while the run has at most this many blocks: later a short stretch is only the day's weather."""
    wary: int | None = None
    """Short enough for some huge requests to outlast it: their pace must not have fallen, and what came in one step is
    none. Once the run has more blocks than this, its records must show that the requests are as long as they were, and
    the shift must have come lately."""
    every: int = 1
    """Compared at each so-many-th block that tells: a stretch of many hours changes little in minutes."""


class Level(NamedTuple):
    """Blocks of one size and the stretches made of them."""

    batches: int
    """In a block, each of `BATCH_RECORDS`."""
    warm_up: int
    """First blocks of a run that are left out: caches fill, load ramps up."""
    rungs: tuple[Rung, ...]


LEVELS = (
    Level(1, 1, (Rung(3, 2, 0.08, 60), Rung(6, 2, 0.06, 60))),
    Level(3, 6, (Rung(9, 3, 0.04, wary=0), Rung(18, 4, 0.03, wary=0))),
    Level(
        6,
        3,
        (Rung(3, 2, 0.05, wary=48), Rung(6, 2, 0.035, wary=72), Rung(12, 3, 0.025), Rung(36, 4, 0.03, every=3)),
    ),
    Level(36, 1, (Rung(12, 3, 0.03), Rung(24, 4, 0.025), Rung(48, 6, 0.02, every=2))),
)
"""At 10 s a record: blocks of 100 s, 5 min, 10 min and 1 h, stretches from 5 min to 2 days.

Those of 45 and 90 minutes lie between others, in blocks of their own: what the end of one block cuts, another shows.
They must always know that the requests are as long as they were: the more is looked at, the more is found by chance.
"""

WARM_TURNOVERS = 2.0
"""Before that the first requests of a run still grow: usage climbs at the same number running."""
GAPS = 1.25
"""A short stretch whose blocks lie over more than so many times their length tells of hours, by the moments between."""
LATELY = 6.0
"""In an old run a short stretch tells only of what came within so many times its length."""
SHORTEST = 3
"""Blocks of the stretches that feel the weather most."""
WEATHER, WEATHER_OF_LONG = 0.5, 0.75
"""Had so large a part of a shift been there and gone again, it may go again: of the shortest stretches, of others."""
SHARED = 0.1
"""Hit rate of the prefix cache from which on much of the prompts is shared."""
LEFT = 0.5
"""A leak that was told stands as long as so large a part of its shift, and of one that is enough, is seen."""
LITTLE, LITTLE_IN_ALL = 0.25, 0.5
"""Shares of the shift that is enough: what its last block, or half of its blocks, is raised by less than need not be
compared."""
HISTORY = 400
"""Comparisons that a rung remembers."""
OUTLASTS_S = 6600.0
"""Hardly any request runs longer: where nothing tells of the pool's size, only a stretch that outlasts it tells."""


class Verdict(NamedTuple):
    """What one rung says."""

    at_s: float
    since_s: float
    stretch_s: float
    """How long the newest stretch is."""
    rung: Rung
    shift: Shift
    rate_per_s: float
    """Shares of the pool lost a second."""
    usage: float
    """Usage at the highest load that both stretches saw, now."""
    turnovers: float | None
    """How often the requests' tokens were replaced in the newest stretch; None for a pool of unknown size."""
    apart_s: float | None = None
    """How long before it the stretch ended that it is compared with; None between idle spells."""


class _RungState:
    def __init__(self, rung: Rung) -> None:
        self.rung = rung
        self.reference: Stretch | None = None
        self.history: list[tuple[float, float]] = []
        """When a comparison was made and the shift it saw: back to the first one, older ones thinned out."""
        self.came_gradually = False
        """A shift that was there at the first comparison has been seen to grow on."""
        self.lifts: deque[float | None] = deque(maxlen=rung.blocks // rung.every)
        """How far the last blocks, one by one, lay above the reference; None where they shared no load with it."""
        self.verdict: Verdict | None = None
        self.told = 0.0
        """The largest shift that passed all gates since the verdict began to stand."""

    def little(self, blocks: Sequence[Block], reference: Stretch) -> float | None:
        """Return how far a stretch is raised where that is too little to compare it for; None where it must be."""
        enough, lift = self.rung.by, lift_of(blocks[-1], reference)
        self.lifts.append(lift)
        if lift is not None and self.verdict is None:
            # by the median, as stretches are compared: a mean would make a slope of a step
            in_all = median(sorted([one for one in self.lifts if one is not None]))
            for raised, share in ((lift, LITTLE), (in_all, LITTLE_IN_ALL)):
                if raised < share * enough:
                    return max(0.0, raised)
        # a leak is in every record: it cannot be larger than the lowest usage seen
        at_most = min([block.least_usage for block in blocks]) / FLOOR
        return at_most if at_most < LITTLE * enough else None

    def remember(self, at_s: float, shift: float) -> None:
        """Add a comparison to the history."""
        self.history.append((at_s, shift))
        if len(self.history) > HISTORY:
            half = HISTORY // 2
            self.history = self.history[:half:2] + self.history[half:]


class _LevelState:
    def __init__(self, level: Level) -> None:
        self.level = level
        self.pending: list[Batch] = []
        self.missing = level.batches * BATCH_RECORDS
        """Records until the next block is complete."""
        self.longest = max(rung.blocks for rung in level.rungs)
        self.first: list[Block] = []
        self.last: deque[Block] = deque(maxlen=self.longest)
        self.balance: deque[Balance] = deque(maxlen=300)
        self.seen = 0
        self.kept = 0
        """Blocks that took part in comparisons: neither cold nor censored."""
        self.rungs = [_RungState(rung) for rung in level.rungs]

    def before(self, start_s: float) -> list[Grain]:
        """Return the grain of the first blocks, as far as they ended before a time: more than most rungs compare."""
        return [block.grain for block in self.first if block.end_s < start_s]

    def verdicts(self) -> list[Verdict]:
        """Return what the rungs that say leak say."""
        return [state.verdict for state in self.rungs if state.verdict is not None]


class Ladder:
    """The comparisons of one run. Feed it records; `verdicts` holds the rungs that say leak now."""

    def __init__(self, levels: Sequence[Level] = LEVELS) -> None:
        self._levels = [_LevelState(level) for level in levels]
        self._pending: list[Stats] = []
        self._batch_records = BATCH_RECORDS
        """As many as the smallest blocks are of: those of a young run end with it."""
        self._turnovers = 0.0
        """Of the run so far, as far as the smallest blocks tell."""
        self._idle: Verdict | None = None
        self.verdicts: list[Verdict] = []
        self.compared = False
        """Some stretch has been compared with its reference at a load that both saw."""

    def take(
        self, records: Sequence[Stats], interval_s: float | None, size: Size, spells: Spells, *, idled: bool
    ) -> bool:
        """Take in the next records; return whether `verdicts` may have changed: a block is complete, or it idled.

        `spells` are all of the run so far; `idled`: the engine was idle in one of the records.
        """
        changed = False
        if idled:
            before, self._idle = self._idle, judge_idle(spells)
            changed = before is not None or self._idle is not None
        self._pending += records
        while len(self._pending) >= self._batch_records:
            changed |= self._heap(batch_of(self._pending[: self._batch_records]), interval_s or 10.0, size)
            del self._pending[: self._batch_records]
        if changed:
            self._levels = [state for state in self._levels if not self._outgrown(state, size)]
            if self._levels and not self._levels[0].pending:
                self._batch_records = self._levels[0].level.batches * BATCH_RECORDS
            least_s = 0.0 if spells.last_drop is None else NOISY_S
            self.verdicts = [v for s in self._levels for v in s.verdicts() if v.stretch_s >= least_s]
            if self._idle is not None:
                self.verdicts.append(self._idle)
        return changed

    def missing(self) -> int:
        """Return how many records it takes to complete a batch."""
        return self._batch_records - len(self._pending)

    def _outgrown(self, state: _LevelState, size: Size) -> bool:
        """Return whether a level has nothing more to say: the run is too old for all of its rungs."""
        if any(r.rung.young is None or state.seen <= r.rung.young for r in state.rungs):
            return False
        return not size.kv_tokens or self._turnovers >= WARM_TURNOVERS

    def _heap(self, batch: Batch, interval_s: float, size: Size) -> bool:
        """Take in a batch; return whether it completed a block."""
        closed = False
        for state in self._levels:
            state.pending.append(batch)
            state.missing -= batch.records
            if not state.missing:
                block = block_of(merged(state.pending), interval_s, noisy=state.level.batches == 1)
                self._close(state, block, size)
                state.pending, state.missing = [], state.level.batches * BATCH_RECORDS
                closed = True
        return closed

    def _close(self, state: _LevelState, block: Block, size: Size) -> None:
        state.seen += 1
        state.balance.append(balance_of(block, state.level.batches * BATCH_RECORDS))
        if state is self._levels[0] and size.kv_tokens and self._turnovers < WARM_TURNOVERS:
            self._turnovers += block.fresh_tokens / max(1.0, block.mean_usage * size.kv_tokens)
        warm = state.seen > state.level.warm_up and (not size.kv_tokens or self._turnovers >= WARM_TURNOVERS)
        if not warm or block.censored:
            return
        state.last.append(block)
        state.kept += 1
        if len(state.first) < state.longest:
            state.first.append(block)
        for rung_state in state.rungs:
            self._climb(state, rung_state, size)

    def _climb(self, state: _LevelState, rung_state: _RungState, size: Size) -> None:
        rung = rung_state.rung
        if rung.young is not None and state.seen > rung.young:
            rung_state.verdict = None
            return
        if state.kept % rung.every:
            return
        if len(state.last) < rung.blocks or len(state.first) < rung.blocks:
            return
        if state.last[-rung.blocks].start_s <= state.first[rung.blocks - 1].end_s:
            return
        short = state.level.batches == 1
        if rung_state.reference is None:
            rung_state.reference = stretch_of(state.first[: rung.blocks], rung.least_rows, short)
        blocks = list(state.last)[-rung.blocks :]
        raised = rung_state.little(blocks, rung_state.reference)
        if raised is not None:
            self.compared = True
            rung_state.remember(blocks[-1].end_s, raised)
            rung_state.verdict = None
            return
        now = stretch_of(blocks, rung.least_rows, short, rung_state.reference.points.keys())
        shift = compare(now, rung_state.reference)
        if shift is None:
            rung_state.verdict = None
            return
        self.compared = True
        rung_state.remember(now.end_s, shift.seen)
        left = standing(rung_state, shift, now, state, size)
        verdict = judge(shift, now, rung_state, state, size)
        rung_state.verdict = verdict or left
        if verdict is not None:
            rung_state.told = max(verdict.shift.shift, rung_state.told if left is not None else 0.0)
        if verdict is not None and verdict.since_s <= rung_state.reference.end_s and not rung_state.came_gradually:
            # what was there at the first comparison came in one step, unless it is seen to grow on
            rung_state.came_gradually = rises(blocks, verdict, short)
            rung_state.verdict = verdict if rung_state.came_gradually else left


IDLE = Rung(6, 1, 0.02)
"""The comparison at load 0: so many idle spells must lie so far above the lowest."""
IDLE_HOLD_S = 660.0
"""Longer than a lease of 480 s."""


def judge_idle(spells: Spells) -> Verdict | None:
    """Return a verdict where the usage at load 0 climbs from idle spell to idle spell and has never come back."""
    raised = spells.above(IDLE.by).spells
    if len(raised) < IDLE.blocks or spells.last_drop is not None or spells.lowest is None or not climbs(raised):
        return None
    lasted_s = raised[-1].end_s - raised[0].start_s
    lost = raised[-1].usage - spells.lowest
    if lasted_s < IDLE_HOLD_S or lost < IDLE.by:
        return None
    # what the first of them was raised by was lost before it
    rate_per_s = (raised[-1].usage - raised[0].usage) / lasted_s
    shift = Shift(lost, lost, lost, PRINT_STEP, lost, PRINT_STEP, lost, 1, 0.0, 0.0, spells.lowest)
    return Verdict(raised[-1].end_s, raised[0].start_s, lasted_s, IDLE, shift, rate_per_s, raised[-1].usage, None)


def judge(shift: Shift, now: Stretch, state: _RungState, level: _LevelState, size: Size) -> Verdict | None:
    """Return a verdict where a shift passes all gates."""
    reference, rung = state.reference, state.rung
    if reference is None or shift.shift < rung.by:
        return None
    length_s, block = now.end_s - now.start_s, level.last[-1]
    if rung.wary == 0 and length_s > GAPS * rung.blocks * (block.end_s - block.start_s):
        return None
    short = level.level.batches == 1
    turnovers, spread = turnovers_of(now, reference, size.kv_tokens), spread_of(now, short=short)
    beyond = BEYOND_IN_SHORT if short else BEYOND
    if now.prompted < 0.2 or (turnovers is not None and not replaced(shift, turnovers, spread, beyond)):
        return None
    growth = growth_between(level.before(now.start_s), now.grains)
    if not sure(shift, reference, now, growth):
        return None
    is_old = rung.wary is not None and level.seen > rung.wary
    if rung.wary is not None and not is_light(shift, reference, now, growth, is_old=is_old):
        return None
    if came_and_went(state.history, shift.shift, WEATHER if rung.blocks == SHORTEST else WEATHER_OF_LONG):
        return None
    quarter_s = last_below(state.history, 0.25 * shift.shift)
    if is_old and (quarter_s is None or now.end_s - quarter_s > LATELY * length_s):
        return None  # what came slowly, long stretches tell better from longer requests
    if not (
        gradual(state.history, shift.shift, quarter_s, length_s, jumps=rung.blocks >= 9)
        or no_new_kind(shift, reference, now, growth, level, rung)
    ):
        return None
    since_s = quarter_s if quarter_s is not None else reference.end_s
    if may_be_held(shift, reference, now, since_s, level, size):
        return None
    return _verdict(shift, now, reference, rung, quarter_s, turnovers)


def _verdict(
    shift: Shift, now: Stretch, reference: Stretch, rung: Rung, quarter_s: float | None, turnovers: float | None
) -> Verdict:
    """Return the verdict of a shift a quarter of which was last missing at a time; None: it was there all along."""
    span_s = max(1.0, (now.start_s + now.end_s) / 2 - (reference.start_s + reference.end_s) / 2)
    if quarter_s is not None:
        span_s = max(1.0, min(span_s, (now.end_s - quarter_s) / 0.75))
    peak = max(now.points.keys() & reference.points.keys())
    return Verdict(
        now.end_s,
        quarter_s if quarter_s is not None else reference.end_s,
        now.end_s - now.start_s,
        rung,
        shift,
        shift.shift / span_s,
        now.points[peak].usage,
        turnovers,
        now.end_s - reference.end_s,
    )


def standing(state: _RungState, shift: Shift, now: Stretch, level: _LevelState, size: Size) -> Verdict | None:
    """Return what is left of a verdict where some gate fails: lost blocks stay lost, noise does not bring them back.

    Longer requests that are seen, and that may hold as much, end it.
    """
    verdict, reference = state.verdict, state.reference
    if verdict is None or reference is None or shift.shift < LEFT * max(state.told, state.rung.by):
        return None
    growth = growth_between(level.before(now.start_s), now.grains)
    if has_grown(shift, growth):
        return None
    turnovers = turnovers_of(now, reference, size.kv_tokens)
    return _verdict(shift, now, reference, state.rung, verdict.since_s, turnovers)


def no_new_kind(
    shift: Shift, reference: Stretch, now: Stretch, growth: Growth | None, level: _LevelState, rung: Rung
) -> bool:
    """Return whether a shift that came in one step, too, is none of new requests: it is known that they are the same.

    Over stretches below two hours nothing is known so well: few clients wander as far. Where much of the prompts is
    shared, another prefix of the same length would come in one step, too.
    """
    is_short = level.level.batches == 1 or rung.wary is not None
    if growth is None or is_short or (reference.hit_rate or 0.0) > SHARED:
        return False
    if not unchanged(shift, reference, now, growth):
        return False
    return settled(reference, list(level.last)[-rung.blocks :], shift.shift)


def may_be_held(shift: Shift, reference: Stretch, now: Stretch, since_s: float, level: _LevelState, size: Size) -> bool:
    """Return whether a shift may be what requests hold that have not ended, or were not replaced often enough."""
    length_s = now.end_s - now.start_s
    room = told(size)
    if room is None:
        if length_s >= OUTLASTS_S:
            return False
        before = [block for block in level.first if block.end_s < now.start_s]
        prompt_tokens = prompt_of(before)
        if prompt_tokens is None or level.level.batches == 1:
            return True
        if not replaced(shift, turnovers_at_least(shift, now, prompt_tokens), SPREAD):
            return True
        room = implied(before, prompt_tokens, size.longest_tokens)
    lost, longest = room.pool.share(shift.mean), room.longest_tokens
    until_s = now.end_s - LATE * length_s
    if length_s < OUTLASTS_S and came_at_once(level.balance, since_s - length_s, until_s, lost, longest):
        return True
    # what a stretch sees at its middle began before that; the shortest ones see it nearly at once
    begun_s = [since_s] if level.level.batches == 1 else [since_s, since_s - length_s]
    share = payers(reference, now)
    return any(paid(level.balance, from_s, lost, longest, share) for from_s in begun_s)


def rises(blocks: Sequence[Block], verdict: Verdict, short: bool) -> bool:
    """Return whether usage rises within a stretch too, at a good part of the speed of the whole shift."""
    half = len(blocks) // 2
    earlier, later = stretch_of(blocks[:half], 1, short), stretch_of(blocks[-half:], 1, short)
    step = compare(later, earlier)
    if step is None:
        return False
    apart_s = (later.start_s + later.end_s - earlier.start_s - earlier.end_s) / 2
    return step.mean >= GRADUAL * verdict.rate_per_s * apart_s
