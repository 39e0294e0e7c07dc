"""With /metrics rules see more: a prefill is no stall, less of a residue tells, log and page check each other."""

from collections.abc import Iterator

import pytest

from kvlogd.engines import Ids
from kvlogd.eyes import FRESH_S, KEPT_SCRAPES, Eyes, as_record
from kvlogd.kinds import creep, floor, stall
from kvlogd.model import Clear, Event, EventKind, Finding, Judgement, Latency, NoEvidence, Scrape, Spread, Stats
from kvlogd.pipeline import Pipeline
from kvlogd.rules import load_rules, shipped_folder
from kvlogd.window import SIGNALS, Window
from tests.lines import START_S, record, run_of

RULES = load_rules([shipped_folder()])


def scrape(
    at_s: float, *, tokens: float = 0.0, prompts: float = 0.0, running: int = 2, waiting: int = 0,
    kv_usage: float = 0.25, itl_s: float | None = None, is_first: bool = False,
) -> Scrape:  # fmt: skip
    """Return what a page told `at_s` after the start, ten seconds after the one before."""
    spread = () if itl_s is None or not tokens else (Spread(Latency.ITL, tokens, tokens * itl_s, itl_s, itl_s, itl_s),)
    return Scrape(
        START_S + at_s, 0, None if is_first else START_S + at_s - 10, kv_usage, running, waiting,
        prompt_tokens=prompts, generation_tokens=tokens, latencies=spread,
    )  # fmt: skip


def busy(at_s: float) -> Stats:
    return record(at_s, running=2, generation_tps=50.0, prompt_tps=100.0, kv_usage=0.25)


def value(window: Window, signal: str, at_s: float) -> float | None:
    return SIGNALS[signal].read(window, START_S + at_s)


# --- what is remembered


def test_memory_has_a_bound_and_a_scrape_is_of_the_present_for_a_while() -> None:
    eyes = Eyes()
    assert not eyes.is_fresh(START_S)
    for i in range(500):
        eyes.observe(scrape(10 * i), START_S + 10 * i)
    assert (len(eyes.recent), eyes.count) == (KEPT_SCRAPES, 500)
    assert eyes.is_fresh(START_S + 4990 + FRESH_S)
    assert not eyes.is_fresh(START_S + 4990 + FRESH_S + 1)


def test_a_scrape_that_was_seen_is_remembered() -> None:
    eyes = Eyes()
    assert not eyes.remembers(scrape(0))
    eyes.observe(scrape(10), START_S + 10)
    assert eyes.remembers(scrape(10))
    assert not eyes.remembers(scrape(20))


# --- the log and the page check each other


def watched(*told: Stats | Scrape) -> Window:
    window = Window(run_of())
    for one in told:
        if isinstance(one, Scrape):
            window.scraped(one, one.ts_s)
        else:
            window.observe(one)
    return window


def test_a_log_that_stops_while_tokens_are_counted() -> None:
    window = watched(busy(0), scrape(1, tokens=500), busy(10), *[scrape(10 * i + 1, tokens=500) for i in range(1, 40)])
    assert value(window, "log_stopped_for", 400) == pytest.approx(389)
    window.observe(busy(400))
    assert value(window, "log_stopped_for", 401) is None


def test_a_log_that_stops_with_the_tokens_is_well() -> None:
    window = watched(busy(0), scrape(1, tokens=500), *[scrape(10 * i + 1, running=0) for i in range(1, 40)])
    assert value(window, "log_stopped_for", 400) is None


def test_a_page_that_stands_still_while_the_log_tells_of_tokens() -> None:
    told = [one for i in range(40) for one in (scrape(10 * i), busy(10 * i + 1))]
    window = watched(*told)
    assert value(window, "metrics_frozen_for", 400) == pytest.approx(399)
    window.eyes.observe(scrape(401, tokens=1), START_S + 401)
    assert value(window, "metrics_frozen_for", 402) is None


def test_a_page_that_is_not_there_is_no_frozen_page() -> None:
    assert value(watched(*[busy(10 * i) for i in range(40)]), "metrics_frozen_for", 400) is None
    window = watched(scrape(0), *[busy(10 * i) for i in range(40)])
    assert value(window, "metrics_frozen_for", 400) is None


def fired(told: list[Stats | Scrape | Event], to_s: float) -> list[tuple[str, float]]:
    """Return the rules that fire, and when."""
    pipeline = Pipeline("chat", Ids(), RULES)
    for one in told:
        if isinstance(one, Scrape):
            pipeline.advance(one.ts_s)
            pipeline.scraped(one)
        else:
            pipeline.take([one])
    pipeline.advance(START_S + to_s)
    events = pipeline.harvest().alert_events
    return [(event.key.rule, event.at_s - START_S) for event in events if event.state.value == "firing"]


def test_a_log_without_records_is_told_once_tokens_are_counted_for_five_minutes() -> None:
    start = Event(START_S, EventKind.BANNER, 1)
    told: list[Stats | Scrape | Event] = [start, *[scrape(10 * i, tokens=500, is_first=i == 1) for i in range(1, 60)]]
    ((rule, at_s),) = fired(told, 600)
    assert rule == "frozen-stats"
    assert 300 <= at_s <= 360


# --- stall


def stalled(told: list[Stats | Scrape], at_s: float) -> Judgement:
    window, judge = Window(run_of()), stall.make(stall.Params())
    for one in told:
        if isinstance(one, Scrape):
            window.eyes.observe(one, one.ts_s)
        else:
            window.observe(one)
        judge.judge(window, one.ts_s)
    return judge.judge(window, START_S + at_s)


STILL = record(10, running=1, kv_usage=0.2)


def test_a_prefill_of_six_minutes_that_takes_blocks_is_no_stall() -> None:
    prefill = [scrape(10 * i + 1, running=1, kv_usage=0.2 + 0.001 * i) for i in range(1, 37)]
    assert isinstance(stalled([busy(0), STILL], 371), Finding)
    assert isinstance(stalled([busy(0), STILL, *prefill], 371), Clear)


def test_a_prefill_that_hangs_is_a_stall_from_its_last_movement_on() -> None:
    prefill = [scrape(10 * i + 1, running=1, kv_usage=0.2 + 0.001 * min(i, 10)) for i in range(1, 60)]
    found = stalled([busy(0), STILL, *prefill], 600)
    assert isinstance(found, Finding)
    assert found.since_s - START_S == 101


def test_a_hang_is_a_stall_with_the_page_as_without() -> None:
    frozen = [scrape(10 * i + 1, running=1, kv_usage=0.2) for i in range(1, 21)]
    assert isinstance(stalled([busy(0), scrape(1, tokens=9), STILL, *frozen], 209), Clear)
    assert isinstance(stalled([busy(0), scrape(1, tokens=9), STILL, *frozen], 212), Finding)


def test_a_page_that_is_gone_excuses_nothing() -> None:
    assert isinstance(stalled([busy(0), STILL, scrape(21, running=1, kv_usage=0.3)], 225), Finding)


def test_a_queue_that_only_grows_is_no_work() -> None:
    jam = record(10, running=0, waiting=3, kv_usage=0.99)
    grows = [scrape(10 * i + 1, running=0, waiting=3 + i, kv_usage=0.99) for i in range(1, 7)]
    assert isinstance(stalled([busy(0), jam, *grows], 72), Finding)


# --- a log without records


def mute(count: int) -> list[Stats | Scrape | Event]:
    """Return the start of a server whose log has no records, and what its page tells while a pool fills and jams."""
    busy_s = [scrape(10.0 * i, tokens=500, kv_usage=0.3) for i in range(1, count)]
    jam = [scrape(10.0 * i, running=0, waiting=4, kv_usage=0.99) for i in range(count, count + 20)]
    return [Event(START_S, EventKind.BANNER, 1), *busy_s, *jam]


def test_the_page_stands_in_for_a_log_without_records() -> None:
    found = dict(fired(mute(30), 490))
    assert set(found) == {"engine-stall", "frozen-stats"}
    assert 355 <= found["engine-stall"] <= 390


def test_a_log_that_is_only_slow_to_begin_is_not_stood_in_for() -> None:
    window = watched(*[scrape(10 * i + 1, tokens=500) for i in range(11)])
    assert (window.count, window.is_stood_in_for) == (0, False)
    window = watched(*[scrape(10 * i + 1, tokens=500) for i in range(16)])
    assert (window.count, window.is_stood_in_for) == (4, True)
    window.observe(busy(170))
    window.scraped(scrape(180, tokens=500), START_S + 180)
    assert (window.count, window.is_stood_in_for) == (5, False)


def test_what_a_scrape_says_as_a_record() -> None:
    told = scrape(10, tokens=500, prompts=1000, running=3)._replace(prefix_queries=1000.0, prefix_hits=250.0)
    assert as_record(told) == record(10, running=3, prompt_tps=100, generation_tps=50, kv_usage=0.25)._replace(
        pid=None, prefix_hit_rate=0.25
    )
    assert as_record(scrape(10, is_first=True)) is None
    assert as_record(told._replace(kv_usage=None)) is None


# --- residue


def residue(usages: list[float], *, by_page: bool) -> Judgement:
    """Return the verdict on idle spells of a minute, each after some work."""
    window, judge = Window(run_of()._replace(blocks=4096)), floor.make(floor.Params())
    verdict: Judgement = NoEvidence()
    for n, usage in enumerate(usages):
        at_s = 120.0 * n
        window.observe(busy(at_s))
        window.observe(record(at_s + 10, kv_usage=round(usage, 3)))
        if by_page:
            for i in range(7):
                page_s = at_s + 11 + 10 * i
                told = scrape(page_s, running=0, tokens=0 if i else 500, kv_usage=usage)
                window.eyes.observe(told, START_S + page_s)
        verdict = judge.judge(window, START_S + at_s + 90)
    return verdict


def test_twelve_lost_blocks_of_4096_are_seen_on_the_page() -> None:
    lost = [0.0, 0.0, 0.0, *[blocks / 4096 for blocks in (9, 10, 11, 12, 13, 14, 15, 16)]]
    assert not isinstance(residue(lost, by_page=False), Finding)
    found = residue(lost, by_page=True)
    assert isinstance(found, Finding)
    assert found.evidence["blocks_held"] == 16


@pytest.mark.parametrize("usages", [[1 / 4096] * 12, [0.0, 2 / 4096] * 6, [0.0, 0.0] + [3 / 4096] * 20])
def test_a_null_block_and_a_few_blocks_are_no_residue(usages: list[float]) -> None:
    assert not isinstance(residue(usages, by_page=True), Finding)


def test_the_log_alone_finds_what_it_found_before() -> None:
    assert isinstance(residue([0.0, 0.0, *[0.01 * i for i in range(1, 9)]], by_page=False), Finding)


# --- creep


def course(count: int, *, slower_from: int, by: float, load: float = 1.0) -> Iterator[Stats | Scrape]:
    """Yield log and page of an engine whose clients wait for their answers; the log lies by a tenth either way."""
    for i in range(count):
        token_s = 0.02 * (by if i >= slower_from else 1.0)
        running = 8 if i < count // 2 else round(8 * load)
        tps = running / token_s
        lie = 1.0 + 0.1 * (i % 3 - 1)
        yield record(10.0 * i, running=running, prompt_tps=400, generation_tps=round(tps * lie, 1), kv_usage=0.3)
        yield scrape(10.0 * i + 1, tokens=10 * tps, prompts=4000, running=running, kv_usage=0.3, itl_s=token_s)


def crept(told: Iterator[Stats | Scrape], *, by_page: bool) -> Judgement:
    window, judge = Window(run_of()), creep.make(creep.Params(by_at_least=0.1))
    verdict: Judgement = NoEvidence()
    for one in told:
        if isinstance(one, Stats):
            window.observe(one)
        elif by_page:
            window.eyes.observe(one, one.ts_s)
        verdict = judge.judge(window, one.ts_s)
    return verdict


def test_a_token_that_takes_a_fifth_longer_is_found() -> None:
    found = crept(course(6000, slower_from=3000, by=1.2), by_page=True)
    assert isinstance(found, Finding)
    assert found.evidence["token_s"] == pytest.approx(0.024)
    assert found.evidence["token_before_s"] == pytest.approx(0.02)


def test_more_load_that_makes_tokens_slow_is_no_creep() -> None:
    assert not isinstance(crept(course(6000, slower_from=3000, by=1.2, load=2.0), by_page=True), Finding)


def test_without_the_page_the_log_is_asked() -> None:
    assert isinstance(crept(course(6000, slower_from=3000, by=1.3), by_page=False), Finding)


def test_when_the_page_is_gone_the_log_is_asked_again() -> None:
    told = [
        one for one in course(6000, slower_from=3000, by=1.3) if isinstance(one, Stats) or one.ts_s < START_S + 20_000
    ]
    assert isinstance(crept(iter(told), by_page=True), Finding)
