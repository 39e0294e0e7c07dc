import pickle
from math import inf

import pytest

from kvlogd.kinds.capacity import KEPT, NAME, SCOPES, Capacity, Params, make
from kvlogd.model import Abstained, Clear, Event, EventKind, Finding, Judgement, NoEvidence, Per, Run, Severity, Stats
from kvlogd.window import Window
from tests.lines import START_S, record, run_of

SIZED = run_of()._replace(kv_tokens=65536, max_model_len=32768)


def queue(
    n: int,
    *,
    start_s: float = 0.0,
    every_s: float = 10.0,
    waiting: tuple[float, float] = (20.0, 0.0),
    running: int = 20,
    usage: float = 0.98,
    prompt_tps: float = 100.0,
    generation_tps: float = 300.0,
) -> list[Stats]:
    """Return records with a queue of `waiting[0]` requests that grows by `waiting[1]` a record."""
    return [
        record(
            start_s + i * every_s,
            running=running,
            waiting=round(waiting[0] + i * waiting[1]),
            prompt_tps=prompt_tps,
            generation_tps=generation_tps,
            kv_usage=usage,
        )
        for i in range(n)
    ]


def judged(records: list[Stats], run: Run = SIZED, *, at_s: float | None = None) -> tuple[Capacity, Judgement]:
    """Return the last judgement where the rule is asked after each record, and then at a time."""
    capacity, window = make(Params()), Window(run)
    judgement: Judgement = NoEvidence()
    for stats in records:
        window.observe(stats)
        judgement = capacity.judge(window, stats.ts_s)
    if at_s is not None:
        judgement = capacity.judge(window, START_S + at_s)
    return capacity, judgement


def test_it_judges_engines_only() -> None:
    assert NAME == "capacity"
    assert set(SCOPES) == {Per.ENGINE}


@pytest.mark.parametrize(
    ("every_s", "n", "is_found"), [(10.0, 12, False), (10.0, 13, True), (2.0, 60, False), (2.0, 61, True)]
)
def test_a_queue_must_stand_for_two_minutes(every_s: float, n: int, is_found: bool) -> None:
    _, judgement = judged(queue(n, every_s=every_s))
    assert (isinstance(judgement, Finding) and judgement.severity is None) is is_found
    if is_found and isinstance(judgement, Finding):
        assert judgement.since_s == START_S
        assert judgement.value == 20.0
        assert {"queued": 20.0, "beside": 20.0, "pool_tokens": 65536.0}.items() <= judgement.evidence.items()
        # 0.98 of the pool's tokens, replaced at 400 a second, and as many waiting as running
        assert judgement.evidence["wait_s"] == pytest.approx(0.98 * 65536 / 400)


@pytest.mark.parametrize(
    "records",
    [
        queue(30, waiting=(60.0, -1.9)),  # it drains
        queue(30, waiting=(3.0, 0.0)),  # next to what runs it is nothing
        queue(30, usage=0.60),  # there is room
        queue(30, prompt_tps=4000.0),  # over within seconds
        [*queue(11), *queue(1, start_s=110, waiting=(0.0, 0.0)), *queue(11, start_s=120)],  # gone in between
    ],
)
def test_what_is_no_such_queue_pages_nobody(records: list[Stats]) -> None:
    _, judgement = judged(records)
    assert isinstance(judgement, Clear) or (isinstance(judgement, Finding) and judgement.severity is Severity.INFO)


def test_a_queue_that_grows_need_not_be_long_yet() -> None:
    _, judgement = judged(queue(14, waiting=(1.0, 0.8)))
    assert isinstance(judgement, Finding)
    assert judgement.severity is None
    assert judgement.evidence["queue_per_h"] > 0


@pytest.mark.parametrize(
    ("waiting", "n", "is_found"), [((1.0, 1.5), 14, True), ((20.0, 0.0), 14, False), ((20.0, 0.0), 31, True)]
)
def test_without_the_pool_s_size_it_must_grow_steadily_or_stand_longer(
    waiting: tuple[float, float], n: int, is_found: bool
) -> None:
    _, judgement = judged(queue(n, waiting=waiting), run_of())
    assert (isinstance(judgement, Finding) and judgement.severity is None) is is_found


@pytest.mark.parametrize(("n", "is_found"), [(60, False), (61, True)])
def test_no_room_for_one_more_counts_after_ten_minutes(n: int, is_found: bool) -> None:
    records = queue(n, running=1, usage=0.6, waiting=(1.0, 0.2), prompt_tps=0.0, generation_tps=5.0)
    _, judgement = judged(records)
    assert isinstance(judgement, Finding) is is_found


def test_a_prompt_being_computed_is_no_lack_of_room() -> None:
    records = queue(90, running=1, usage=0.6, waiting=(1.0, 0.2), prompt_tps=900.0, generation_tps=5.0)
    assert isinstance(judged(records)[1], Clear)


def test_a_queue_for_seats_waits_for_no_blocks() -> None:
    records = queue(61, running=8, usage=0.92)
    assert isinstance(judged(records, SIZED)[1], Finding)
    assert isinstance(judged(records, SIZED._replace(max_num_seqs=8))[1], Clear)


def test_deferred_requests_are_no_queue() -> None:
    records = [stats._replace(deferred=stats.waiting, kv_usage=0.93) for stats in queue(60)]
    assert isinstance(judged(records)[1], Clear)


def test_frozen_records_are_no_queue() -> None:
    assert isinstance(judged(queue(60, prompt_tps=0.0, generation_tps=0.0))[1], Clear)


def test_a_full_pool_without_a_queue_is_only_busy() -> None:
    _, judgement = judged(queue(8, waiting=(0.0, 0.0)))
    assert isinstance(judgement, Finding)
    assert (judgement.severity, judgement.since_s) == (Severity.INFO, START_S)
    assert judgement.evidence["full_for"] > 60
    quiet = queue(600, start_s=100, waiting=(0.0, 0.0), usage=0.3)
    assert isinstance(judged([*queue(8, waiting=(0.0, 0.0)), *quiet])[1], Clear)


def test_silence_between_two_full_records_is_no_time_spent_full() -> None:
    full = [stats for i in range(4) for stats in queue(2, start_s=600.0 * i, waiting=(0.0, 0.0))]
    assert isinstance(judged(full)[1], Clear)


# --- nothing runs

STUCK = [*queue(5, waiting=(0.0, 0.0), usage=0.1), record(50, running=0, waiting=3, kv_usage=0.0)]


@pytest.mark.parametrize(
    ("run", "at_s", "verdict"),
    [
        (SIZED._replace(max_model_len=131072), 110, Finding),
        (SIZED._replace(max_model_len=131072), 109, Clear),
        (SIZED, 600, Clear),
        (run_of(), 600, Abstained),
        (run_of()._replace(blocks=2048, max_model_len=32768), 600, Finding),
    ],
)
def test_a_prompt_longer_than_the_pool(run: Run, at_s: float, verdict: type) -> None:
    _, judgement = judged(STUCK, run, at_s=at_s)
    assert type(judgement) is verdict
    if isinstance(judgement, Finding):
        assert judgement.since_s == START_S + 50
        assert judgement.evidence["longest_tokens"] == run.max_model_len


def test_where_blocks_are_held_it_is_not_the_prompt() -> None:
    stuck = [*STUCK[:-1], record(50, running=0, waiting=3, kv_usage=0.9)]
    assert isinstance(judged(stuck, SIZED._replace(max_model_len=131072), at_s=600)[1], Clear)


@pytest.mark.parametrize("kind", [EventKind.CRASH, EventKind.STOP, EventKind.SLEEP])
def test_an_engine_that_is_gone_or_asleep_is_not_judged(kind: EventKind) -> None:
    capacity, window = make(Params()), Window(SIZED)
    for stats in queue(30):
        window.observe(stats)
    window.event(Event(START_S + 300, kind), START_S + 300)
    assert isinstance(capacity.judge(window, START_S + 301), NoEvidence)


def test_its_memory_is_bounded_and_can_be_written_down() -> None:
    capacity, _ = judged(queue(3000))
    assert len(capacity._queue) <= KEPT
    again = pickle.loads(pickle.dumps(capacity))
    assert again.__dict__.keys() == capacity.__dict__.keys()
    assert again._queue == capacity._queue


@pytest.mark.parametrize(("full", "calm_s"), [(0.95, 600.0), (0.8, 600.0), (0.7, -inf)])
def test_it_rests_on_a_calm_engine_only_where_what_it_calls_full_is_no_calm(full: float, calm_s: float) -> None:
    capacity, window = make(Params(full=full)), Window(SIZED)
    window.observe(record(0, running=4, generation_tps=80.0, kv_usage=0.3))
    capacity.judge(window, START_S)
    assert capacity.calm_s == calm_s
