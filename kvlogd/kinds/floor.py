"""`floor`: blocks stay in use when nothing runs or waits, and ever more of them from one idle spell to the next.

Evidence is an idle record: nothing running or waiting. What it computed in its interval does not matter, for the
usage is that of the moment it was printed at: an engine that idles for seconds only is never seen otherwise. An
absolute level proves nothing: up to 0.10.1 the null block is counted, so the floor of each run is learned. What
comes back by itself (a lease of a prefill/decode pair, 480 s by default) is no leak, so the rise must climb over
several spells, or outlast the longest lease; and where idle usage has been seen to fall, it must clear its noise.
Where /metrics is read, each idle scrape is such a record too, and its usage is exact: less of a rise counts then.
What was lost before the first idle spell shows where the engine once worked with less than it ever holds idle.
Cannot see: an engine that never idles; a residue that was there before the run's first records.
"""

from collections.abc import Sequence
from itertools import pairwise

from pydantic import BaseModel, ConfigDict

from kvlogd.block import PRINT_STEP, median
from kvlogd.course import newest
from kvlogd.eyes import as_record
from kvlogd.fields import Count, Duration, Points
from kvlogd.model import Abstained, Clear, Finding, Judgement, NoEvidence, Per
from kvlogd.rest import Resting
from kvlogd.spells import DROP, NOISY_S, Raised, Spell, Spells, climbs
from kvlogd.tally import per_request
from kvlogd.window import Window

NAME = "floor"
SCOPES = frozenset({Per.ENGINE})

SURE_FLOOR = 2
"""Spells at the lowest usage that make it a floor that this run comes back to."""
LEASE_S = 600.0
"""No lease of a prefill/decode pair lasts longer: 480 s, and some time to notice."""
STANDS_S = 9.0
"""vLLM prints two records of an idle engine, at its usual interval so far apart."""
UNSURE_SPELLS = 6
"""Raised spells that count where the floor was seen but once: so many never fall in a row by chance."""
FEW = 3
"""So many requests may end in an engine's last step."""


EXACT = 0.4
"""Of the rise that counts in the log's rounded usage, so much counts in an exact one."""
EXACT_STEP = 0.0005
"""A change of exact usage that is no chance: in the log it is the last digit."""
CALM_S = 60.0
"""It may rest as long where no block is held."""


class Params(BaseModel):
    """What the floor must do to count."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rises_by: Points = 0.005
    """How far above the lowest idle usage of the run every spell must stay."""
    spells: Count = 3
    """Idle spells in a row that must stay above."""
    hold: Duration = 660.0
    """A rise that does not climb must last this long: longer than a lease of 480 s."""
    climb_within: Duration = 240.0
    """A rise that climbs from spell to spell counts after this long, where no KV connector leases blocks."""
    settles: Duration = 60.0
    """Where the start-up lines say that no connector is there, two spells apart by this much are enough."""


def make(params: Params) -> "Floor":
    """Return an evaluator for one run."""
    return Floor(params)


class Floor(Resting):
    """Judges the idle spells of one run."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._taken = self._scraped = 0
        self._exact = Spells(EXACT_STEP)
        self._worked = True
        """The scrape before was not idle."""
        self._judgement: Judgement = NoEvidence()

    def judge(self, window: Window, at_s: float) -> Judgement:
        """Return the verdict on the idle spells so far; it changes only with a new idle record."""
        idle = self._take_exact(window) or window.idled > self._taken
        self._taken = window.count
        self.least = 0 if window.eyes.count else window.count + 1
        if idle or (window.count and isinstance(self._judgement, NoEvidence)):
            raised = window.spells.above(self._params.rises_by)
            exactly = self._exact.above(EXACT * self._params.rises_by)
            by_log = self._look(window, window.spells, raised, PRINT_STEP)
            if not isinstance(by_log, Finding):
                by_log = held_more_than_at_work(window, self._params) or by_log
            by_scrape = self._look(window, self._exact, exactly, EXACT_STEP) if self._exact.count else by_log
            self._judgement = by_scrape if isinstance(by_scrape, Finding) else by_log
            self.rest_s = 0.0 if raised.spells or exactly.spells else CALM_S
        return self._judgement

    def _take_exact(self, window: Window) -> bool:
        """Take in the new scrapes; return whether the engine was idle in one."""
        idle, eyes = False, window.eyes
        if eyes.count > self._scraped:
            for stats in filter(None, map(as_record, newest(eyes.recent, eyes.count - self._scraped))):
                worked, self._worked = self._worked, bool(stats.running or stats.waiting)
                if not self._worked:
                    self._exact.observe(stats, None, worked=worked)
                    idle = True
            self._scraped = eyes.count
        return idle

    def _look(self, window: Window, spells: Spells, raised: Raised, step: float) -> Judgement:
        if spells.count < 2:
            return Abstained("fewer than two idle spells in this run: wait for the engine to idle again")
        if not raised.spells:
            return Clear()
        unleased = window.has_connector is False and spells.last_drop is None
        if unleased and self._settled(spells, raised, step):
            return _finding(window, spells, raised)
        wanted = self._params.spells if spells.at_lowest >= SURE_FLOOR else max(UNSURE_SPELLS, self._params.spells)
        if len(raised.spells) < wanted:
            return Abstained(f"blocks are held over {len(raised.spells)} idle spells; {wanted} tell it from a lease")
        if not self._persists(spells, raised.spells, step, bool(window.has_connector)):
            return Abstained("the idle residue may still be a lease that ends: it neither climbs nor lasts long enough")
        if window.has_connector and not outgrows_leases(window, spells, raised.spells):
            return Abstained("leases of the requests of the last minutes may hold what is in use on the idle engine")
        return _finding(window, spells, raised)

    def _settled(self, spells: Spells, raised: Raised, step: float) -> bool:
        """Return whether blocks that no lease can hold stayed over two spells, or climb from an unsure floor.

        Where it is twice as much as counts, one spell of two records is enough: an engine that works through the day,
        or for hours on a batch, idles too seldom to wait for the next.
        """
        held, now = raised.spells, raised.spells[-1]
        is_sure = spells.at_lowest >= SURE_FLOOR
        if is_sure and now.end_s - now.start_s >= STANDS_S and now.usage >= (spells.lowest or 0.0) + 2 * raised.by:
            return True
        if len(held) < 2 or now.end_s - held[0].start_s < self._params.settles:
            return False
        return is_sure or (len(held) >= self._params.spells and climbs(held, step))

    def _persists(self, spells: Spells, raised: Sequence[Spell], step: float, leases: bool) -> bool:
        lasted_s = raised[-1].end_s - raised[0].start_s
        if spells.last_drop is not None:
            return lasted_s >= NOISY_S and climbs_over_noise([*spells.past, spells.latest[-1]], spells.latest)
        if lasted_s >= self._params.hold:
            return True
        return not leases and lasted_s >= self._params.climb_within and climbs(raised, step)


def held_more_than_at_work(window: Window, params: Params) -> Finding | Abstained | None:
    """Return a finding where the run, before it idled first, once worked with less than it has ever held idle since.

    Its floor, whatever it consists of, was no higher then. What the last requests held, were it given back with the
    next step only, is no more than a few requests hold, or falls by chance within some spells; and then the engine
    works with less again. None where it never held more.
    """
    spells = window.spells
    lowest = spells.lowest or 0.0
    if not spells.count or window.has_connector is not False or lowest < params.rises_by:
        return None
    first = spells.past[0] if spells.past else spells.latest[0]
    parts = [*window.course.parts, *window.course.latest]
    least = min([p for p in parts if p.start_s < first.start_s], key=lambda part: part.least_usage, default=None)
    since = min([part.least_usage for part in parts if part.start_s >= first.start_s], default=lowest)
    if least is None or lowest - least.least_usage < params.rises_by - 1e-9 or since < lowest - DROP:
        return None
    above = sum([part.usage - part.records * least.least_usage for part in parts])
    few = FEW * above / max(1, sum([part.running for part in parts]))
    wanted = UNSURE_SPELLS if lowest - least.least_usage < few else params.spells
    held = Raised(params.rises_by)
    held.spells, held.count, held.low_s = [*spells.past, spells.latest[-1]], spells.count, least.end_s
    lasted_s = held.spells[-1].end_s - first.start_s
    if spells.last_drop is not None or spells.count < wanted or lasted_s < params.hold:
        return Abstained("more is in use idle than it once worked with; it may be given back by itself or late")
    return _finding(window, spells, held, least.least_usage)


def outgrows_leases(window: Window, spells: Spells, raised: Sequence[Spell]) -> bool:
    """Return whether the idle engine holds more than came in within a lease; where that is not known, lasts for a day.

    A lease holds the blocks of one request: its prompt, what a prefix cache had of it too, and what it generated.
    """
    pool = window.pool_tokens()
    if not pool:
        return raised[-1].end_s - raised[0].start_s >= NOISY_S
    came = 0.0
    for record in window.since(raised[-1].start_s - LEASE_S):
        computed = 1.0 - min(0.99, record.prefix_hit_rate or 0.0)
        computed *= 1.0 - min(0.99, record.external_prefix_hit_rate or 0.0)
        came += (record.prompt_tps / computed + record.generation_tps) * (window.interval_s or 10.0)
    return (raised[-1].usage - (spells.lowest or 0.0)) * pool > came


def climbs_over_noise(past: Sequence[Spell], latest: Sequence[Spell]) -> bool:
    """Return whether the floor rose on an engine whose idle usage also falls by itself (delayed frees).

    The lowest of the last 20 spells must pass the 95 % quantile of the older half by a clear margin.
    """
    if len(past) < 60:
        return False
    older = sorted([spell.usage for spell in past[: len(past) // 2]])
    steps = sorted([abs(b.usage - a.usage) for a, b in pairwise(latest)])
    margin = max(0.01, 3 * median(steps))
    return min([spell.usage for spell in list(latest)[-20:]]) >= older[int(0.95 * (len(older) - 1))] + margin


def _finding(window: Window, spells: Spells, since_low: Raised, at_work: float | None = None) -> Finding:
    lowest, raised = spells.lowest or 0.0 if at_work is None else at_work, since_low.spells
    held = raised[-1].usage
    # it rose at some time since the floor was last seen: a rate from the first raised spell on would be far too fast
    hours = (raised[-1].end_s - (raised[0].start_s if since_low.low_s is None else since_low.low_s)) / 3600
    evidence = {
        "idle_usage": held,
        "lowest_idle_usage": spells.lowest or 0.0,
        "spells": float(since_low.count),
        "lasted_s": raised[-1].end_s - raised[0].start_s,
    }
    if at_work is not None:
        evidence["busy_usage"] = at_work
    if hours > 0:
        rate = (held - lowest) / hours
        evidence["lost_per_h"] = rate
        evidence["full_in_s"] = (1.0 - held) / rate * 3600
    if window.run.blocks:
        evidence["blocks_held"] = float(round((held - lowest) * window.run.blocks))
    if window.run.kv_tokens:
        evidence["tokens_held"] = float(round((held - lowest) * window.run.kv_tokens))
    grown = max(0.0, held - raised[0].usage) / max(1.0, raised[-1].end_s - raised[0].end_s)
    evidence |= per_request(window.eyes.tally, window.run, grown, raised[0].end_s, raised[-1].end_s)
    return Finding(raised[0].start_s, held, evidence)
