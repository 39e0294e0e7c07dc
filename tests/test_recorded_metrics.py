"""Logs and pages that a real vLLM 0.32 wrote, some with a fault plugged in: each gets its verdict, in its time.

A page was asked for every 2 s, and the stats records came as often.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvlogd.engines import Ids
from kvlogd.exposition import Page, read
from kvlogd.interval import scrapes
from kvlogd.model import Latency, Scrape, Stats
from kvlogd.pipeline import Pipeline
from kvlogd.rules import load_rules, shipped_folder
from tests.lines import new_parser, parsed

FOLDER = Path(__file__).parent / "data" / "real" / "metrics"
LABELS = sorted(FOLDER.glob("*.yaml"))
RULES = load_rules([shipped_folder()])


def pages_of(label: Path) -> list[tuple[float, Page]]:
    with gzip.open(label.with_suffix(".pages.gz"), "rt", encoding="utf-8") as file:
        return [(at_s, read(text.encode())) for at_s, text in map(json.loads, file)]


def told(label: Path) -> list[Scrape]:
    found: list[Scrape] = []
    before: tuple[Page | None, float | None] = (None, None)
    for at_s, page in pages_of(label):
        found += scrapes(*before, page, at_s)
        before = page, at_s
    return found


def fired(label: Path) -> tuple[Pipeline, list[dict[str, Any]]]:
    """Return the pipeline after log and pages, and the verdicts that fired, with the seconds since the first page."""
    parser, pipeline = new_parser(), Pipeline("chat", Ids(), RULES)
    with gzip.open(label.with_suffix(".log.gz")) as file:
        lines = [found for line in file if (found := parsed(line.rstrip(b"\n"), parser)) is not None]
    pages = told(label)
    now_s = 0.0
    dated: list[tuple[float, Any]] = [(one.ts_s, one) for one in pages]
    for line in lines:
        now_s = max(now_s, line.ts_s or now_s)
        dated.append((now_s, line))
    for _, one in sorted(dated, key=lambda pair: pair[0]):
        if isinstance(one, Scrape):
            if pipeline.now_s is not None:
                pipeline.advance(max(pipeline.now_s, one.ts_s - 15))
            pipeline.scraped(one)
        else:
            pipeline.take([one])
    events = pipeline.harvest()
    first_s = pages[0].ts_s
    return pipeline, [
        {"verdict": event.verdict, "at_s": event.at_s - first_s}
        for event in events.alert_events
        if event.state.value == "firing"
    ]


@pytest.mark.parametrize("label", LABELS, ids=lambda path: path.stem)
def test_verdict(label: Path) -> None:
    wanted = yaml.safe_load(label.read_text())
    pipeline, found = fired(label)
    assert {one["verdict"] for one in found} == set(wanted["expected"])
    for one in found:
        assert one["at_s"] <= wanted["expected"][one["verdict"]], one
    (track,) = pipeline.tracks()
    assert track.life.engine.label == "chat/0"
    assert track.window.run.blocks == wanted["blocks"]


def test_a_leak_by_requests_that_were_given_up_tells_what_each_of_them_cost() -> None:
    """No counter of vLLM's has them: 251 were given up, and seven of ten lost a block."""
    pipeline, _ = fired(FOLDER / "leak-by-aborts.yaml")
    (found,) = (one.evidence for _, _, _, one in pipeline.at_work() if one is not None)
    assert found["blocks_per_given_up"] == pytest.approx(0.7, abs=0.05)
    assert found["given_up_error"] < 0.1
    assert found["requests_given_up"] * found["blocks_per_given_up"] == pytest.approx(
        found["requests_ended"] * found["blocks_per_request"], rel=0.1
    )


@pytest.mark.parametrize("label", LABELS, ids=lambda path: path.stem)
def test_differences_add_up_to_what_the_last_page_says(label: Path) -> None:
    pages, found = pages_of(label), told(label)
    first, last = pages[0][1].readings[0], pages[-1][1].readings[0]
    assert all(page.unread == 0 for _, page in pages)
    assert not any(one.restarted for one in found)
    for name in ("prompt_tokens", "generation_tokens", "finished", "prefix_queries"):
        grown = last.values[name] - first.values.get(name, 0.0)
        assert sum(getattr(one, name) or 0.0 for one in found) == pytest.approx(grown), name
    for metric in Latency:
        spreads = [spread for one in found for spread in one.latencies if spread.metric is metric]
        before = first.histograms[metric]
        after = last.histograms[metric]
        assert sum(spread.times for spread in spreads) == after.counts[-1] - before.counts[-1]
        assert sum(spread.sum_s for spread in spreads) == pytest.approx(after.sum_s - before.sum_s)
        assert all((s.p50_s or 0) <= (s.p95_s or 0) <= (s.p99_s or 0) for s in spreads)


@pytest.mark.parametrize("label", LABELS, ids=lambda path: path.stem)
def test_log_and_page_count_the_same_tokens(label: Path) -> None:
    """The log prints rates of two seconds each: over the whole time they come to what the page counts."""
    found = told(label)
    with gzip.open(label.with_suffix(".log.gz")) as file:
        records = [one for line in file if isinstance(one := parsed(line.rstrip(b"\n"), new_parser()), Stats)]
    begun_s, ended_s = found[0].ts_s, found[-1].ts_s
    logged = sum(2 * one.generation_tps for one in records if begun_s <= one.ts_s <= ended_s + 2)
    counted = sum(one.generation_tokens or 0.0 for one in found)
    assert logged == pytest.approx(counted, rel=0.1)
