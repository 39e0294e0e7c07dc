"""What /metrics told of one run, and whether it and the log agree that something moves. Pure.

Where /metrics is not read, nothing is known and nothing is said. Times are those of the log when a scrape came: the
host's clock may be set otherwise. Memory does not grow with age.
"""

from collections import deque

from kvlogd.model import Scrape, Stats
from kvlogd.tally import Tally
from kvlogd.work import Work

KEPT_SCRAPES = 90
FRESH_S = 90.0
"""What /metrics told is of the present for so long: scrapes come every 10 s, and time passes in ticks of 30 s."""


def as_record(scrape: Scrape) -> Stats | None:
    """Return what a scrape says as a record of the log would; None where it does not say enough."""
    if scrape.running is None or scrape.waiting is None or scrape.kv_usage is None or scrape.since_s is None:
        return None
    passed_s = max(1e-3, scrape.ts_s - scrape.since_s)
    prompts, generated = scrape.prompt_tokens or 0.0, scrape.generation_tokens or 0.0
    hit_rate = (scrape.prefix_hits or 0.0) / scrape.prefix_queries if scrape.prefix_queries else None
    return Stats(
        scrape.ts_s, None, scrape.engine_index, None, prompts / passed_s, generated / passed_s, scrape.running,
        scrape.waiting, scrape.kv_usage, deferred=scrape.waiting_deferred, prefix_hit_rate=hit_rate,
    )  # fmt: skip


class Eyes:
    """The memory of the scrapes of one run."""

    def __init__(self) -> None:
        self.recent: deque[Scrape] = deque(maxlen=KEPT_SCRAPES)
        self.last: Scrape | None = None
        self.count = 0
        self.tally = Tally()
        """How many requests ended."""
        self.work = Work()
        """How busy its GPUs were: not of /metrics, and not known where it is not known which are its."""
        self.seen_s: float | None = None
        """When the last scrape came."""
        self.moved_s: float | None = None
        """When one came last that showed work: tokens, or the pool filling while requests run."""
        self.unlogged_since_s: float | None = None
        """When the first of the latest scrapes with tokens came of which the log has no record."""
        self.unscraped_since_s: float | None = None
        """When the first of the log's latest records with tokens came that no scrape shows."""

    def observe(self, scrape: Scrape, at_s: float) -> None:
        """Take in the next scrape."""
        last, self.last = self.last, scrape
        self.recent.append(scrape)
        self.count += 1
        self.seen_s = at_s
        self.tally.observe(scrape, at_s)
        if scrape.since_s is None:
            return
        tokens = bool(scrape.generation_tokens or scrape.prompt_tokens)
        # a long prefill counts no token before its end, but it takes blocks
        fills = bool(scrape.running) and last is not None and scrape.kv_usage != last.kv_usage
        if tokens or fills:
            self.moved_s = at_s
        if tokens:
            self.unscraped_since_s = None
            if self.unlogged_since_s is None:
                self.unlogged_since_s = at_s

    def remembers(self, scrape: Scrape) -> bool:
        """Return whether a scrape of the past was seen already."""
        return self.last is not None and scrape.ts_s <= self.last.ts_s

    def logged(self, at_s: float) -> None:
        """Take in that the log has a record with tokens in it."""
        self.unlogged_since_s = None
        if self.unscraped_since_s is None and self.is_fresh(at_s):
            self.unscraped_since_s = at_s

    def is_fresh(self, at_s: float) -> bool:
        """Return whether the last scrape is of the present."""
        return self.seen_s is not None and at_s - self.seen_s <= FRESH_S

    def unlogged_for_s(self, at_s: float) -> float | None:
        """Return for how long tokens have been counted of which the log has no record; None if not."""
        moves = self.moved_s is not None and at_s - self.moved_s <= FRESH_S
        return at_s - self.unlogged_since_s if moves and self.unlogged_since_s is not None else None

    def unscraped_for_s(self, at_s: float) -> float | None:
        """Return for how long the log has told of tokens that /metrics does not count; None if not."""
        known = self.unscraped_since_s is not None and self.is_fresh(at_s)
        return at_s - (self.unscraped_since_s or at_s) if known else None
