"""The ladder of comparisons behind `trend … at_constant: load`: the newest stretch of a run against its first,
at several lengths at once, because a leak may take minutes or weeks.

After Machida (a trend test alone cries wolf) the shift must be large, sure, uniform over the loads, no larger
than the lowest usage seen, and gradual: a new system prompt or one huge request comes in one step.
"""

from collections import deque
from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

from kvlogd.curve import (
    FLOOR,
    NOISY_S,
    PRINT_STEP,
    Block,
    Shift,
    Spells,
    Stretch,
    block_of,
    climbs,
    compare,
    stretch_of,
)
from kvlogd.model import Stats


class Rung(NamedTuple):
    """One length of stretch to compare."""

    blocks: int
    least_rows: int
    """Blocks of a stretch that must have seen a load for it to count."""
    by: float
    """The shift that is enough, as a share of the pool: the longer the stretch, the less."""
    young: int | None = None
    """Compared only while the run has at most this many blocks: later a short stretch is only the day's weather."""
    heavy: bool = False
    """Short enough for some huge requests to outlast it, long enough to see that they slow the others."""


class Level(NamedTuple):
    """Blocks of one size and the stretches made of them."""

    records: int
    warm_up: int
    """First blocks of a run that are left out: caches fill, load ramps up."""
    rungs: tuple[Rung, ...]


LEVELS = (
    Level(10, 1, (Rung(3, 2, 0.08, 60), Rung(6, 2, 0.06, 60))),
    Level(60, 3, (Rung(3, 2, 0.08, 48, True), Rung(6, 2, 0.06, 72, True), Rung(12, 3, 0.04), Rung(36, 4, 0.03))),
    Level(360, 1, (Rung(12, 3, 0.03), Rung(24, 4, 0.025), Rung(48, 6, 0.02))),
)
"""At 10 s a record: blocks of 100 s, 10 min and 1 h, stretches from 5 min to 2 days."""

WARM_TURNOVERS = 2.0
"""Before that the first requests of a run still grow: usage climbs at the same number running."""
GRADUAL = 0.35
"""The middle half of the rise must take at least this share of the stretch."""
JUMP = 0.5
"""No two evaluations in a row may bring more than this share of the rise (stretches of an hour and longer)."""
SAME_MIX = 0.1
"""How far the log-ratio of prompt to generated tokens may move where load alone cannot tell (closed loops)."""
SAME_HITS = 0.08
"""How far the prefix cache's hit rate may move there; twice as far elsewhere: new system prompts move it."""
SAME_RATE = 1.15
"""How far the rate of prompt tokens may move, as a factor."""
LONGER = 0.35
"""By how much of their usage requests may grow unseen while their mix stays the same."""
SLOWER = 0.75
"""A leak costs no steps: where requests generate slower than this share of their pace, they have got heavier."""
PAYERS = 0.15
"""Largest share of the running requests that may generate on and on while the mix stays the same."""
FLAT_BY = 0.05
SPREAD = 0.5
"""Standard deviation of the requests' sizes, as a share of their mean."""
USUAL_RECORDS, AT_ONCE = 3, 0.4
"""A prompt shows as a record with more prompt tokens than so many others; it may be what is missing if it has so
large a share of it."""
HISTORY = 400
"""Comparisons that a rung remembers."""
OUTLASTS_S = 6600.0
"""Without the pool's size one huge request cannot be told from a leak: only stretches that outlast it count."""


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
        self.verdict: Verdict | None = None

    def remember(self, at_s: float, shift: float) -> None:
        """Add a comparison to the history."""
        self.history.append((at_s, shift))
        if len(self.history) > HISTORY:
            half = HISTORY // 2
            self.history = self.history[:half:2] + self.history[half:]


class Balance(NamedTuple):
    """What one block lets a request that never ends add to the pool: see `paid`."""

    end_s: float
    tokens_each: float
    least_running: int
    mean_running: float
    burst_tokens: float
    """Of prompts, in the one record that had most of them, beyond what three others have."""


class _LevelState:
    def __init__(self, level: Level) -> None:
        self.level = level
        self.pending: list[Stats] = []
        self.longest = max(rung.blocks for rung in level.rungs)
        self.first: list[Block] = []
        self.last: deque[Block] = deque(maxlen=self.longest)
        self.balance: deque[Balance] = deque(maxlen=300)
        self.seen = 0
        self.rungs = [_RungState(rung) for rung in level.rungs]

    def verdicts(self) -> list[Verdict]:
        """Return what the rungs that say leak say."""
        return [state.verdict for state in self.rungs if state.verdict is not None]


class Ladder:
    """The comparisons of one run. Feed it records; `verdicts` holds the rungs that say leak now."""

    def __init__(self, levels: Sequence[Level] = LEVELS) -> None:
        self._levels = [_LevelState(level) for level in levels]
        self._turnovers = 0.0
        """Of the run so far, as far as the smallest blocks tell."""
        self._spells = Spells(IDLE.by)
        self._idle: Verdict | None = None
        self.verdicts: list[Verdict] = []
        self.compared = False
        """Some stretch has been compared with its reference at a load that both saw."""

    def take(self, records: Sequence[Stats], interval_s: float | None, kv_tokens: int | None) -> bool:
        """Take in the next records; return whether `verdicts` may have changed: a block is complete, or it idled."""
        closed = self._spells.take(records, interval_s)
        if closed:
            self._idle = judge_idle(self._spells)
        for state in self._levels:
            state.pending += records
            size = state.level.records
            while len(state.pending) >= size:
                self._close(state, state.pending[:size], interval_s or 10.0, kv_tokens)
                del state.pending[:size]
                closed = True
        if closed:
            self._levels = [state for state in self._levels if not self._outgrown(state, kv_tokens)]
            least_s = 0.0 if self._spells.last_drop is None else NOISY_S
            self.verdicts = [v for s in self._levels for v in s.verdicts() if v.stretch_s >= least_s]
            if self._idle is not None:
                self.verdicts.append(self._idle)
        return closed

    def _outgrown(self, state: _LevelState, kv_tokens: int | None) -> bool:
        """Return whether a level has nothing more to say: the run is too old for all of its rungs."""
        if any(r.rung.young is None or state.seen <= r.rung.young for r in state.rungs):
            return False
        return not kv_tokens or self._turnovers >= WARM_TURNOVERS

    def _close(self, state: _LevelState, records: Sequence[Stats], interval_s: float, kv_tokens: int | None) -> None:
        block = block_of(records, interval_s)
        state.seen += 1
        others = (block.prompt_tokens - block.most_prompt_tokens) / max(1, len(records) - 1)
        burst = block.most_prompt_tokens - USUAL_RECORDS * others
        state.balance.append(
            Balance(block.end_s, block.tokens_each, block.least_running, block.mean_running, max(0.0, burst))
        )
        if state is self._levels[0] and kv_tokens and self._turnovers < WARM_TURNOVERS:
            self._turnovers += block.fresh_tokens / max(1.0, block.mean_usage * kv_tokens)
        warm = state.seen > state.level.warm_up and (not kv_tokens or self._turnovers >= WARM_TURNOVERS)
        if not warm or block.censored:
            return
        state.last.append(block)
        if len(state.first) < state.longest:
            state.first.append(block)
        for rung_state in state.rungs:
            self._climb(state, rung_state, kv_tokens)

    def _climb(self, state: _LevelState, rung_state: _RungState, kv_tokens: int | None) -> None:
        rung = rung_state.rung
        if rung.young is not None and state.seen > rung.young:
            rung_state.verdict = None
            return
        if len(state.last) < rung.blocks or len(state.first) < rung.blocks:
            return
        if state.last[-rung.blocks].start_s <= state.first[rung.blocks - 1].end_s:
            return
        short = state.level.records < 60
        if rung_state.reference is None:
            rung_state.reference = stretch_of(state.first[: rung.blocks], rung.least_rows, short)
        blocks = list(state.last)[-rung.blocks :]
        highest = min([block.least_usage for block in blocks]) / FLOOR
        if highest < 0.25 * rung.by:  # far too little was held at some time: spare the comparison
            self.compared = True
            rung_state.remember(blocks[-1].end_s, highest)
            rung_state.verdict = None
            return
        now = stretch_of(blocks, rung.least_rows, short, rung_state.reference.points.keys())
        shift = compare(now, rung_state.reference)
        if shift is None:
            rung_state.verdict = None
            return
        self.compared = True
        rung_state.remember(now.end_s, shift.seen)
        rung_state.verdict = judge(shift, now, rung_state, kv_tokens, state.balance)
        verdict = rung_state.verdict
        if verdict is not None and verdict.since_s <= rung_state.reference.end_s and not rung_state.came_gradually:
            # what was there at the first comparison came in one step, unless it is seen to grow on
            rung_state.came_gradually = rises(blocks, verdict, short)
            rung_state.verdict = verdict if rung_state.came_gradually else None


IDLE = Rung(6, 1, 0.02)
"""The comparison at load 0: so many idle spells must lie so far above the lowest."""
IDLE_HOLD_S = 660.0
"""Longer than a lease of 480 s."""


def judge_idle(spells: Spells) -> Verdict | None:
    """Return a verdict where the usage at load 0 climbs from idle spell to idle spell and has never come back."""
    raised = spells.raised
    if len(raised) < IDLE.blocks or spells.last_drop is not None or spells.lowest is None or not climbs(raised):
        return None
    lasted_s = raised[-1].end_s - raised[0].start_s
    lost = raised[-1].usage - spells.lowest
    if lasted_s < IDLE_HOLD_S or lost < IDLE.by:
        return None
    shift = Shift(lost, lost, lost, PRINT_STEP, lost, PRINT_STEP, lost, 1, 0.0, 0.0, spells.lowest)
    return Verdict(raised[-1].end_s, raised[0].start_s, lasted_s, IDLE, shift, lost / lasted_s, raised[-1].usage, None)


def judge(
    shift: Shift, now: Stretch, state: _RungState, kv_tokens: int | None, balance: Sequence[Balance]
) -> Verdict | None:
    """Return a verdict where a shift passes all gates."""
    reference, rung = state.reference, state.rung
    if reference is None or shift.shift < rung.by:
        return None
    turnovers = turnovers_of(now, reference, kv_tokens)
    if now.prompted < 0.2 or (turnovers is not None and turnovers < 3.0) or not sure(shift, reference, now):
        return None
    if turnovers is not None and shift.mean < 3 * request_noise(shift, turnovers):
        return None
    if rung.heavy and now.pace < SLOWER * reference.pace:
        return None
    quarter_s = last_below(state.history, 0.25 * shift.shift)
    length_s = now.end_s - now.start_s
    if not gradual(state.history, shift.shift, quarter_s, length_s, jumps=rung.blocks >= 12):
        return None
    since_s = quarter_s if quarter_s is not None else reference.end_s
    if kv_tokens is None:
        if length_s < OUTLASTS_S:
            return None
    else:
        lost = shift.mean * kv_tokens
        at_once = length_s < OUTLASTS_S and came_at_once(balance, since_s - length_s, lost)
        if at_once or paid(balance, since_s, lost):
            return None
    span_s = max(1.0, (now.start_s + now.end_s) / 2 - (reference.start_s + reference.end_s) / 2)
    if quarter_s is not None:
        span_s = max(1.0, min(span_s, (now.end_s - quarter_s) / 0.75))
    peak = max(now.points.keys() & reference.points.keys())
    return Verdict(
        now.end_s,
        since_s,
        length_s,
        rung,
        shift,
        shift.shift / span_s,
        now.points[peak].usage,
        turnovers,
        now.end_s - reference.end_s,
    )


def rises(blocks: Sequence[Block], verdict: Verdict, short: bool) -> bool:
    """Return whether usage rises within a stretch too, at a good part of the speed of the whole shift."""
    half = len(blocks) // 2
    earlier, later = stretch_of(blocks[:half], 1, short), stretch_of(blocks[-half:], 1, short)
    step = compare(later, earlier)
    if step is None:
        return False
    apart_s = (later.start_s + later.end_s - earlier.start_s - earlier.end_s) / 2
    return step.mean >= GRADUAL * verdict.rate_per_s * apart_s


def turnovers_of(now: Stretch, reference: Stretch, kv_tokens: int | None) -> float | None:
    """Return how often the tokens held by requests were replaced in a stretch; None for a pool of unknown size."""
    if not kv_tokens:
        return None
    return now.tokens / max(1.0, (now.mean_usage + reference.mean_usage) / 2 * kv_tokens)


def request_noise(shift: Shift, turnovers: float) -> float:
    """Return the standard error of a shift that the requests' own unequal sizes make.

    A stretch has seen `turnovers` sets of running requests; sizes spread by about half of their mean.
    """
    running = max(1.0, (shift.lowest_running + shift.highest_running) / 2)
    return SPREAD * (shift.before + shift.mean / 2) * sqrt(2.0 / (running * turnovers))


def paid(balance: Sequence[Balance], since_s: float, tokens: float) -> bool:
    """Return whether requests that have not ended can be what the pool lost since a time.

    Such a request runs all the while, so there are never more of them than the fewest running since; and while the
    mix of prompts and generated tokens stays the same, at most 15 % of those running (or one) are of that kind,
    because they generate but bring no prompts. Each holds all that it generated: where that is far more than what is
    missing, none of them has run that long.
    """
    each = running = 0.0
    fewest, blocks = 1 << 30, 0
    for block in reversed(balance):
        if block.end_s <= since_s:
            break
        each += block.tokens_each
        running += block.mean_running
        blocks += 1
        fewest = min(fewest, block.least_running)
    if not blocks or not fewest:
        return False
    return each <= 2.0 * tokens and each * min(fewest, max(1, int(PAYERS * running / blocks))) >= 0.7 * tokens


def came_at_once(balance: Sequence[Balance], since_s: float, tokens: float) -> bool:
    """Return whether one prompt may have brought a good part of what the pool lost: its request may run for an hour."""
    return any(block.burst_tokens >= AT_ONCE * tokens for block in balance if block.end_s > since_s)


def sure(shift: Shift, reference: Stretch, now: Stretch) -> bool:
    """Return whether the shift is beyond its error and uniform over the loads."""
    if shift.bins > 2 and shift.intercept >= 5 * shift.error:
        if abs((now.hit_rate or 0.0) - (reference.hit_rate or 0.0)) > 2 * SAME_HITS:
            return False
        return shift.smallest >= 0.25 * shift.shift and shift.intercept <= 2.5 * shift.mean
    tells = shift.bins > 2 and shift.highest_running >= 1.3 * shift.lowest_running and 2 * shift.error < shift.mean
    return not tells and flat(shift, reference, now)


def flat(shift: Shift, reference: Stretch, now: Stretch) -> bool:
    """Return whether the same number running, with the same mix of requests, holds more cache than it did.

    Where the load hardly varies, the curve has no slope to tell a leak from longer requests by.
    """
    if shift.mean < FLAT_BY or shift.mean < 5 * shift.mean_error or shift.smallest < 0.25 * shift.mean:
        return False
    if shift.shift < 0.6 * shift.mean:
        return False  # the pool was emptier than that meanwhile: it is not in every record
    if reference.mix is None or now.mix is None or abs(now.mix - reference.mix) > SAME_MIX:
        return False
    # requests a third longer may look the same; where their rate has moved as well, more may: slower steps change
    # what a request holds, and blocks that are freed late grow with the requests that end
    ratio = max(1.0, now.prompt_rate) / max(1.0, reference.prompt_rate)
    alike = 1 / SAME_RATE <= ratio <= SAME_RATE
    if shift.mean <= (LONGER if alike else max(2 * LONGER, ratio - 1.0)) * shift.before:
        return False
    if reference.hit_rate is None or now.hit_rate is None:
        return reference.hit_rate is now.hit_rate
    return abs(now.hit_rate - reference.hit_rate) <= SAME_HITS


def last_below(history: Sequence[tuple[float, float]], level: float) -> float | None:
    """Return when the shift was last below a level; None where it never was."""
    for at_s, shift in reversed(history):
        if shift < level:
            return at_s
    return None


def gradual(
    history: Sequence[tuple[float, float]], shift: float, quarter_s: float | None, length_s: float, *, jumps: bool
) -> bool:
    """Return whether the shift grew over time instead of in one step."""
    if quarter_s is None:
        return True  # it was there at the first comparison: nothing is known of how it came
    three_quarters_s = last_below(history, 0.75 * shift)
    if three_quarters_s is None or three_quarters_s - quarter_s < GRADUAL * length_s:
        return False
    if not jumps:
        return True
    rise = [s for at_s, s in history if at_s >= quarter_s]
    return all(later - earlier <= JUMP * shift for earlier, later in zip(rise, rise[2:], strict=False))
