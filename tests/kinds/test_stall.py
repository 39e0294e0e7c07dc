import pytest

from kvlogd.kinds.stall import NAME, SCOPES, Params, make
from kvlogd.model import Clear, Event, EventKind, Finding, Judgement, NoEvidence, Per, Stats
from kvlogd.window import Window
from tests.lines import START_S, record, run_of


def judged(records: list[Stats], at_s: float, *events: tuple[EventKind, float], every_s: float = 10.0) -> Judgement:
    """Return the last judgement where the records come one by one and the rule is asked after each, then until at_s."""
    stall = make(Params())
    window = Window(run_of())
    for stats in records:
        window.observe(stats)
        stall.judge(window, stats.ts_s)
    for kind, event_s in events:
        window.event(Event(START_S + event_s, kind), START_S + event_s)
    asked_s = records[-1].ts_s - START_S if records else 0.0
    while asked_s + every_s < at_s:
        asked_s += every_s
        stall.judge(window, START_S + asked_s)
    return stall.judge(window, START_S + at_s)


def busy(at_s: float, running: int = 4, waiting: int = 0, kv_usage: float = 0.3) -> Stats:
    return record(at_s, running=running, waiting=waiting, generation_tps=80.0, kv_usage=kv_usage)


def still(at_s: float, running: int = 1, waiting: int = 0, kv_usage: float = 0.3) -> Stats:
    return record(at_s, running=running, waiting=waiting, kv_usage=kv_usage)


def test_it_judges_engines_only() -> None:
    assert NAME == "stall"
    assert set(SCOPES) == {Per.ENGINE}


# --- something runs: a long prefill or a hang


@pytest.mark.parametrize(("at_s", "is_hung"), [(190, False), (209.9, False), (210, True), (3600, True)])
def test_a_prefill_of_180_s_is_healthy_and_200_s_are_not(at_s: float, is_hung: bool) -> None:
    judgement = judged([busy(0), still(10)], at_s)
    assert isinstance(judgement, Finding if is_hung else Clear)
    if isinstance(judgement, Finding):
        assert judgement.since_s == START_S + 10
        assert judgement.value == at_s - 10
        assert judgement.evidence == {
            "running": 1, "waiting": 0, "usage_now": 0.3, "silent_s": at_s - 10, "generation_tps": 0
        }  # fmt: skip


def test_a_prefill_that_ends_is_forgotten() -> None:
    assert isinstance(judged([busy(0), still(10), busy(190), still(200)], 390), Clear)


def test_zeros_that_go_on_count_from_the_first() -> None:
    records = [busy(0), *[still(10.0 * i) for i in range(1, 22)]]
    assert isinstance(judged(records[:-1], 209), Clear)
    assert isinstance(judged(records, 210), Finding)


def test_prompt_tokens_are_progress() -> None:
    assert isinstance(judged([record(10.0 * i, running=1, prompt_tps=9000.0) for i in range(60)], 600), Clear)


# --- what the GPUs say


def looked_at(at_s: float, *utils: float, running: int = 1) -> Judgement:
    """Return the judgement of a standstill since 10 s, with a reading of the GPU each half minute from 0 s on."""
    window, stall = Window(run_of()), make(Params())
    for stats in (busy(0), still(10, running=running, waiting=3)):
        window.observe(stats)
    for i, util in enumerate(utils):
        window.eyes.work.observe(START_S + 30 * i, util)
    return stall.judge(window, START_S + at_s)


def test_no_prefill_leaves_the_gpu_idle_for_two_minutes() -> None:
    assert isinstance(looked_at(149, 0.9, 0.0, 0.0, 0.0, 0.0), Clear)
    found = looked_at(150, 0.9, 0.0, 0.0, 0.0, 0.01)
    assert isinstance(found, Finding)
    assert found.since_s == START_S + 10
    assert found.evidence["gpu_work"] == pytest.approx(0.0025)


def test_of_a_gpu_that_fell_idle_only_its_idleness_is_told() -> None:
    found = looked_at(180, 0.9, 0.9, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert isinstance(found, Finding)
    assert found.evidence["gpu_work"] == 0


def test_two_idle_readings_with_nothing_between_them_are_no_two_idle_minutes() -> None:
    window, stall = Window(run_of()), make(Params())
    for stats in (busy(-10), still(0)):
        window.observe(stats)
    for at_s in (0, 130):
        window.eyes.work.observe(START_S + at_s, 0.0)
    assert isinstance(stall.judge(window, START_S + 130), Clear)
    for at_s in (160, 190):
        window.eyes.work.observe(START_S + at_s, 0.0)
    assert window.eyes.work.idle_since_s(START_S + 190) == START_S + 130


def test_a_busy_gpu_is_told_and_excuses_nothing() -> None:
    busy_all_along = [0.9] * 7
    assert isinstance(looked_at(200, *busy_all_along), Clear)
    found = looked_at(210, *busy_all_along)
    assert isinstance(found, Finding)
    assert found.evidence["gpu_work"] == pytest.approx(0.9)


def test_readings_that_are_old_say_nothing() -> None:
    assert isinstance(looked_at(200, 0.0, 0.0, 0.0), Clear)
    found = looked_at(300, 0.0, 0.0, 0.0)
    assert isinstance(found, Finding)
    assert "gpu_work" not in found.evidence


def test_where_nothing_runs_an_idle_gpu_is_no_news() -> None:
    found = looked_at(70, 0.0, 0.0, 0.0, running=0)
    assert isinstance(found, Finding)
    assert "gpu_work" not in found.evidence


# --- nothing runs and something waits: a jam


@pytest.mark.parametrize(("at_s", "is_jammed"), [(69.9, False), (70, True)])
def test_a_queue_with_nothing_running_is_a_jam_after_a_minute(at_s: float, is_jammed: bool) -> None:
    judgement = judged([busy(0), still(10, running=0, waiting=3, kv_usage=0.99)], at_s)
    assert isinstance(judgement, Finding if is_jammed else Clear)


# --- silence that is nobody's fault


@pytest.mark.parametrize("at_s", [60, 600, 86_400])
def test_an_idle_engine_falls_silent_and_is_well(at_s: float) -> None:
    assert isinstance(judged([busy(0), record(10)], at_s, every_s=600), Clear)


def test_idle_with_blocks_held_is_no_stall() -> None:
    assert isinstance(judged([busy(0), record(10, kv_usage=0.9)], 86_400, every_s=600), Clear)


def test_silence_after_a_record_that_moves_is_no_stall_by_itself() -> None:
    assert isinstance(judged([busy(0), busy(10)], 3600, every_s=600), Clear)


def test_before_the_first_record_there_is_nothing_to_judge() -> None:
    assert isinstance(judged([], 3600), NoEvidence)


@pytest.mark.parametrize("after_s", [1, 10_000])
def test_a_stopped_engine_never_stalls(after_s: float) -> None:
    judgement = judged([busy(0), still(10)], 12 + after_s, (EventKind.STOP, 12), every_s=600)
    assert isinstance(judgement, NoEvidence)


@pytest.mark.parametrize("kind", [EventKind.SLEEP, EventKind.PAUSE])
def test_an_engine_put_to_rest_on_purpose_does_not_stall(kind: EventKind) -> None:
    assert isinstance(judged([busy(0), still(10, running=0, waiting=3)], 3600, (kind, 11), every_s=600), NoEvidence)


@pytest.mark.parametrize(("at_s", "is_jammed"), [(1059, False), (1060, True)])
def test_after_waking_patience_begins_anew(at_s: float, is_jammed: bool) -> None:
    records = [busy(0), still(10, running=0, waiting=3)]
    judgement = judged(records, at_s, (EventKind.SLEEP, 11), (EventKind.WAKE, 1000), every_s=600)
    assert isinstance(judgement, Finding if is_jammed else Clear)


# --- a dead core


def test_a_crash_is_found_at_once() -> None:
    assert judged([busy(0)], 5, (EventKind.CRASH, 5)) == Finding(START_S + 5, 0.0, {"crashed": 1.0})


def test_running_out_of_memory_alone_is_no_crash() -> None:
    assert isinstance(judged([busy(0)], 6, (EventKind.OOM, 5)), Clear)


def test_a_crash_stays_found_when_the_server_stops_afterwards() -> None:
    judgement = judged([busy(0)], 60, (EventKind.CRASH, 5), (EventKind.STOP, 6))
    assert isinstance(judgement, Finding)
    assert judgement.since_s == START_S + 5


def test_what_dies_after_a_stop_was_stopped() -> None:
    assert isinstance(judged([busy(0)], 60, (EventKind.STOP, 5), (EventKind.CRASH, 6)), NoEvidence)


def test_a_crash_before_the_first_record_is_found() -> None:
    assert isinstance(judged([], 6, (EventKind.CRASH, 5)), Finding)


def test_a_dump_or_a_hint_is_no_crash() -> None:
    assert isinstance(judged([busy(0)], 6, (EventKind.CRASH_DUMP, 5), (EventKind.HANG_HINT, 5)), Clear)


# --- a queue beside a pool with room


def starving(start_s: float, seconds: int, running: int = 1, waiting: int = 12, kv_usage: float = 0.1) -> list[Stats]:
    return [busy(start_s + at_s, running, waiting, kv_usage) for at_s in range(0, seconds + 1, 10)]


USUAL = [busy(10.0 * i, 16, 0) for i in range(30)]


@pytest.mark.parametrize(("seconds", "is_found"), [(290, False), (300, True), (600, True)])
def test_a_queue_that_is_not_admitted_is_found_after_five_minutes(seconds: int, is_found: bool) -> None:
    judgement = judged([*USUAL, *starving(300, seconds)], 300 + seconds)
    assert isinstance(judgement, Finding if is_found else Clear)
    if isinstance(judgement, Finding):
        assert judgement.since_s == START_S + 300
        assert judgement.evidence["generation_tps"] == 80


def test_a_burst_that_drains_is_none() -> None:
    records = [*USUAL, *starving(300, 200), *[busy(510.0 + 10 * i, 16, 3) for i in range(60)]]
    assert isinstance(judged(records, 1100), Clear)
    again = [*records, *starving(1110, 200)]
    assert isinstance(judged(again, 1310), Clear)


@pytest.mark.parametrize(
    "records",
    [
        starving(300, 900, kv_usage=0.5),  # the pool has no room
        starving(300, 900, running=16, waiting=40),  # as many run as ever
        starving(300, 900, running=4, waiting=4),  # the queue is no longer than what runs
        starving(300, 900, waiting=0),
    ],
)
def test_a_queue_with_a_reason_is_none(records: list[Stats]) -> None:
    assert isinstance(judged([*USUAL, *records], 1200), Clear)


def test_the_usual_load_is_forgotten_slowly() -> None:
    # once 64 ran; for a day since then 8 have, with a queue: that is its size now
    records = [busy(0, 64), *[busy(10.0 * i, 8, 20, 0.1) for i in range(1, 12_000)]]
    assert isinstance(judged(records, 120_000), Clear)


# --- parameters


def test_patience_can_be_set() -> None:
    stall = make(Params(running=20.0))
    window = Window(run_of())
    window.observe(still(0))
    assert isinstance(stall.judge(window, START_S + 19.9), Clear)
    assert isinstance(stall.judge(window, START_S + 20), Finding)
