"""Puts a stream through kvlogd's pipeline as the daemon does where /metrics is read too: a page after each interval.

What a page tells stands in the ticks: exact usage, counters, and the sum of the times between two tokens. Its counter
of prompt tokens has those of the prefix cache too, as a real vLLM 0.32 counts; the throughput in the log has not. Time
passes with the pages, also while an idle engine logs nothing. Nothing is stored: the rules need no store.
"""

import time
from collections.abc import Iterator, Sequence
from datetime import UTC

from bench.traces.labels import TICK_S, Stream, Tick
from bench.traces.logline import START, START_S, lines_by_tick
from kvlogd.engines import Ids
from kvlogd.envelope import Unwrapper
from kvlogd.model import AlertEvent, Latency, Scrape, Spread
from kvlogd.parse import Parser
from kvlogd.pipeline import Pipeline
from kvlogd.rules import Rule
from kvlogd.scan import Scanner
from kvlogd.stamp import Stamper

LATE_S = 1.0
"""A page is read so long after the record of its interval."""
HARVEST_TICKS = 1000


def watched(stream: Stream, rules: Sequence[Rule]) -> tuple[list[AlertEvent], float]:
    """Return the alert events of a stream that is read by its log and its pages, and the CPU-seconds that it took."""
    parser = Parser(Stamper(year=START.year, zone=UTC, mtime_s=None))
    scanner, pipeline = Scanner(parser, Unwrapper()), Pipeline("bench", Ids(), rules)
    scanner.plain = True
    events: list[AlertEvent] = []
    spent_s = 0.0
    for number, (lines, scrape) in enumerate(told(stream)):
        data = "".join(f"{line}\n" for line in lines).encode()
        began_s = time.process_time()
        pipeline.take([*scanner.feed(data), *scanner.finish()])
        if scrape is not None:
            pipeline.scraped(scrape)
            pipeline.advance(scrape.ts_s)
        spent_s += time.process_time() - began_s
        if number % HARVEST_TICKS == 0:
            events += pipeline.harvest().alert_events
    pipeline.finish()
    return [*events, *pipeline.harvest().alert_events], spent_s


def told(stream: Stream) -> Iterator[tuple[Sequence[str], Scrape | None]]:
    """Yield for each interval the lines of the log and the page of /metrics; None while the process is down."""
    before: Tick | None = None
    for tick, lines in lines_by_tick(stream):
        yield lines, scrape_of(stream, tick, before) if tick.up else None
        before = tick if tick.up else before


def scrape_of(stream: Stream, tick: Tick, before: Tick | None) -> Scrape:
    """Return what a page told of an interval; of the first one after a start only how things stand."""
    at_s = START_S + tick.at_s + LATE_S
    stands = Scrape(at_s, stream.engine_index, None, tick.kv_usage, tick.running, tick.waiting)
    if before is None or before.life != tick.life:
        return stands._replace(restarted=before is not None)
    spread = Spread(Latency.ITL, float(tick.tokens), tick.token_s, None, None, None)
    return stands._replace(
        since_s=at_s - TICK_S,
        prompt_tokens=tick.prompt_tps * TICK_S + tick.hit_tokens,
        generation_tokens=tick.generation_tps * TICK_S,
        preemptions=float(tick.preemptions),
        prefix_queries=float(tick.asked_tokens),
        prefix_hits=float(tick.hit_tokens),
        finished=float(tick.finished),
        latencies=(spread,) if tick.tokens else (),
    )
