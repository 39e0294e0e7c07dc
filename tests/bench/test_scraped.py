"""What the pages of a simulated server tell, held against what a real vLLM 0.32 counts."""

import pytest

from bench.scraped import told
from bench.traces.labels import TraceClass
from bench.traces.server import run
from tests.bench.streams import plan_of

HOUR_S = 3600


@pytest.mark.parametrize("trace_class", [TraceClass.SYSTEM_PROMPT, TraceClass.AGENTS])
def test_the_counter_of_prompt_tokens_has_those_of_the_prefix_cache_too(trace_class: TraceClass) -> None:
    # of 82,145 tokens that a vLLM 0.32 looked up in its prefix cache, it counted 82,145 as prompt tokens
    (stream,) = run(plan_of(trace_class, duration_s=6 * HOUR_S))
    scrapes = [scrape for _, scrape in told(stream) if scrape is not None]
    counted = sum(scrape.prompt_tokens or 0.0 for scrape in scrapes)
    looked_up = sum(scrape.prefix_queries or 0.0 for scrape in scrapes)
    assert sum(scrape.prefix_hits or 0.0 for scrape in scrapes) > 0.1 * looked_up
    assert counted == pytest.approx(looked_up, rel=0.03)
