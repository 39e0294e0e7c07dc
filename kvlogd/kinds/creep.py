"""`creep`: a token takes longer than it did at the start of the run, at moments of no less load.

The time a token takes is what runs divided by what is generated. Rows of 10 records (in a young run), of 60 and of
360 (they tell where one request or none runs) are held against the first third of the run, a day or two at most, and
there only against rows with as many running or as much work done, as many prompts, as full a pool and no warmer
prefix cache: more load, longer prompts and a colder cache are no creep. Moments of a nearly full pool are left out.
From three rows of 10 records at 1.6 times the old pace to 36 rows of 60 or 18 of 360 at 1.12 times. A shift of less
than 1.55 times that comes at once and does not grow, as of a hot GPU, must last for more than two hours.
Where /metrics is read, the time between two tokens stands in its histogram, and is held against its own past in the
same way: from three rows at 1.5 times the old pace to 36 at 1.1 times.
Cannot see: what was slow from the start; loads heavier than any of the reference; slowness of the first token or of
the queue; anything while the pool is nearly full; a run of less than about 100 records.
"""

from pydantic import BaseModel, ConfigDict

from kvlogd.course import PART_RECORDS, newest
from kvlogd.fields import Points
from kvlogd.model import Abstained, Clear, Finding, Judgement, Per
from kvlogd.pace import MEASURED, SCALES, MeasuredState, ScaleState, Verdict
from kvlogd.rest import Resting
from kvlogd.window import Window

NAME = "creep"
SCOPES = frozenset({Per.ENGINE})

MEASURED_S, UNMEASURED_S = 60.0, 300.0
"""How long it may rest where scrapes come, and where only records do: a row that is complete ends it then."""


class Params(BaseModel):
    """How much slower is slow."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    by_at_least: Points = 0.12
    """By which share a token must take longer; short stretches ask for more by themselves."""


def make(params: Params) -> "Creep":
    """Return an evaluator for one run."""
    return Creep(params)


class Creep(Resting):
    """Judges the pace of one run."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._taken = 0
        self._scales = [ScaleState(scale) for scale in SCALES]
        self._scraped = 0
        self._is_measured = False
        """The time between two tokens is measured: what can be inferred from the log is not asked then."""
        self._measured: list[ScaleState] = [MeasuredState(scale) for scale in MEASURED]
        self.rest_s = UNMEASURED_S
        self.ripe = PART_RECORDS
        """Its rows are of ten records and more."""
        self._judgement: Judgement = Abstained("the run is young: it has no past of its own to be compared with yet")

    def judge(self, window: Window, at_s: float) -> Judgement:
        """Return the verdict on the pace so far; it changes only when a row of records is complete."""
        closed = self._take(window)
        if self._take_measured(window) or closed:
            self._judgement = self._look(self._is_measured and window.eyes.is_fresh(at_s))
        return self._judgement

    def _take(self, window: Window) -> bool:
        """Take in the new records; return whether they completed a row."""
        closed, course = False, window.course
        if course.records > self._taken:
            parts = newest(course.latest, (course.records - self._taken) // PART_RECORDS)
            for state in self._scales:
                closed |= state.take(parts)
            self._taken = course.records
            self.ripe = self._taken + PART_RECORDS * min([state.missing() for state in self._scales])
        return closed

    def _take_measured(self, window: Window) -> bool:
        """Take in the new scrapes; return whether they completed a row."""
        closed, eyes = False, window.eyes
        if eyes.count == self._scraped:
            return closed
        scrapes = newest(eyes.recent, eyes.count - self._scraped)
        since_known = [scrape for scrape in scrapes if scrape.since_s is not None]
        if since_known:
            self._is_measured |= any(scrape.latencies for scrape in since_known)
            for state in self._measured:
                closed |= state.take(since_known)
        self._scraped = eyes.count
        self.rest_s = MEASURED_S
        return closed

    def _look(self, is_measured: bool) -> Judgement:
        self._scales = [state for state in self._scales if not state.over()]
        self._measured = [state for state in self._measured if not state.over()]
        states = self._measured if is_measured else self._scales
        compared = any(state.compared for state in states)
        verdicts = [state.verdict for state in states if state.verdict is not None]
        found = [verdict for verdict in verdicts if verdict.slower >= self._params.by_at_least]
        if found:
            return _finding(found[-1])
        if compared or isinstance(self._judgement, Clear | Finding):
            return Clear()
        return Abstained("no stretch of this run has had the load of its beginning again yet, with room in the pool")


def _finding(verdict: Verdict) -> Finding:
    evidence = {
        "slower": verdict.slower,
        "token_s": verdict.token_s,
        "token_before_s": verdict.before_s,
        "running": verdict.running,
        "running_spread": verdict.spread,
        "lasted_s": verdict.at_s - verdict.since_s,
        "last_s": verdict.at_s,
    }
    return Finding(verdict.since_s, verdict.slower, evidence)
