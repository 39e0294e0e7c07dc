from typing import NamedTuple

import pytest

from kvlogd.engines import CONCURRENT_S, Fleet, Ids, Life
from kvlogd.model import Engine, Event, EventKind, Run, Stats
from tests.lines import START_S, record

SOURCE = "vllm.log"


def fleet_of() -> Fleet:
    return Fleet(SOURCE, Ids())


def event(
    kind: EventKind, at_s: float | None = None, *, pid: int | None = 1, index: int | None = None, **numbers: float
) -> Event:
    return Event(None if at_s is None else START_S + at_s, kind, pid, index, numbers)


class Belongs(NamedTuple):
    """Whose a record is."""

    label: str
    life: int


def place(life: Life) -> Belongs:
    return Belongs(life.engine.label, life.run.number)


def places(fleet: Fleet, *records: Stats) -> list[Belongs]:
    return [place(fleet.life_of(stats)) for stats in records]


# --- when a run begins


def test_records_of_one_process_are_one_run() -> None:
    fleet = fleet_of()
    assert set(places(fleet, *[record(10.0 * i) for i in range(50)])) == {Belongs("vllm.log/0", 1)}
    assert len(fleet.new_engines) == 1
    assert [run.number for run in fleet.changed_runs.values()] == [1]
    assert fleet.changed_runs[1].seen_from_start is False


def test_a_silence_is_no_restart() -> None:
    assert places(fleet_of(), record(0), record(100_000))[1] == Belongs("vllm.log/0", 1)


def test_a_new_process_id_begins_a_run_and_ends_the_old_one() -> None:
    fleet = fleet_of()
    assert places(fleet, record(0, pid=1), record(100, pid=2)) == [Belongs("vllm.log/0", 1), Belongs("vllm.log/0", 2)]
    [ended] = fleet.ended
    assert (ended.run.number, ended.run.end_reason, ended.run.ended_s) == (1, "restart", START_S + 100)
    assert fleet.changed_runs[ended.run.run_id].end_reason == "restart"


def test_pid_1_with_start_up_lines_begins_a_run() -> None:
    fleet = fleet_of()
    fleet.event(event(EventKind.BANNER, -30))
    places(fleet, record(0), record(10))
    fleet.event(event(EventKind.ARGS, 40))
    [ended] = fleet.ended
    assert (ended.run.ended_s, ended.run.end_reason) == (START_S + 40, "restart")
    fleet.event(event(EventKind.ENGINE_START, 50))
    life = fleet.life_of(record(60))
    assert place(life) == Belongs("vllm.log/0", 2)
    assert (life.run.started_s, life.run.seen_from_start) == (START_S + 40, True)


def test_start_up_lines_in_a_row_are_one_start() -> None:
    fleet = fleet_of()
    for i, kind in enumerate([EventKind.BANNER, EventKind.ARGS, EventKind.ENGINE_START, EventKind.SERVER_START]):
        fleet.event(event(kind, i, pid=1 if kind is not EventKind.ENGINE_START else 77))
    life = fleet.life_of(record(60))
    assert (place(life), life.run.started_s) == (Belongs("vllm.log/0", 1), START_S)
    assert fleet.ended == []


def test_a_start_that_never_serves_leaves_no_run() -> None:
    fleet = fleet_of()
    fleet.event(event(EventKind.BANNER, 0))
    fleet.event(event(EventKind.CRASH, 5))
    assert (fleet.lives(), fleet.changed_runs) == ([], {})


@pytest.mark.parametrize(
    ("kinds", "reason"),
    [
        ([EventKind.CRASH], "crash"),
        ([EventKind.STOP], "stop"),
        ([EventKind.CRASH, EventKind.STOP], "crash"),
        ([EventKind.STOP, EventKind.CRASH], "stop"),
        ([EventKind.OOM], "restart"),
        ([], "restart"),
    ],
)
@pytest.mark.parametrize("how", ["new pid", "banner"])
def test_the_reason_is_what_the_log_said_first(kinds: list[EventKind], reason: str, how: str) -> None:
    fleet = fleet_of()
    fleet.life_of(record(0))
    for kind in kinds:
        fleet.event(event(kind, 5))
    if how == "banner":
        fleet.event(event(EventKind.BANNER, 100))
    fleet.life_of(record(120, pid=2))
    assert [life.run.end_reason for life in fleet.ended] == [reason]
    fleet.ended.clear()
    fleet.life_of(record(1000, pid=3))
    assert [life.run.end_reason for life in fleet.ended] == ["restart"]  # the old reason is not the new life's


def test_a_quick_restart_after_a_stop_is_no_second_server() -> None:
    fleet = fleet_of()
    fleet.life_of(record(0))
    fleet.event(event(EventKind.STOP, 1))
    assert places(fleet, record(20, pid=2)) == [Belongs("vllm.log/0", 2)]


# --- engines


def test_each_rank_is_an_engine_of_its_own() -> None:
    fleet = fleet_of()
    records = [record(10.0 * i, index=index) for i in range(3) for index in range(4)]
    assert set(places(fleet, *records)) == {Belongs(f"vllm.log/{i}", 1) for i in range(4)}
    assert len(fleet.lives()) == 4
    fleet.life_of(record(500, pid=2))
    assert sorted(place(life) for life in fleet.ended) == [Belongs(f"vllm.log/{i}", 1) for i in range(4)]


def test_a_line_that_names_no_engine_is_that_of_engine_0() -> None:
    assert places(fleet_of(), record(0, index=None), record(10, index=0)) == [Belongs("vllm.log/0", 1)] * 2


def test_an_aggregated_line_is_no_engine_of_the_fleet() -> None:
    fleet = fleet_of()
    life = fleet.life_of(record(0, index=None, engines=4))
    assert (life.engine.label, life.engine.engine_index) == ("vllm.log/all", None)
    assert fleet.life_of(record(0, index=0)).engine.engine_index == 0


def test_an_event_goes_to_its_rank() -> None:
    fleet = fleet_of()
    places(fleet, record(0, index=0), record(0, index=1))
    life = fleet.event(event(EventKind.RESET_FAILED, 5, pid=99, index=1))
    assert life is not None
    assert life.engine.label == "vllm.log/1"


# --- two servers in one file


@pytest.mark.parametrize(("first", "second"), [(11, 22), (22, 11)])
def test_two_processes_that_interleave_are_two_servers(first: int, second: int) -> None:
    fleet = fleet_of()
    records = [record(5.0 * i, pid=first if i % 2 == 0 else second) for i in range(40)]
    got = places(fleet, *records)
    assert set(got[::2]) == {Belongs("vllm.log/0", 1)}
    assert set(got[1::2]) == {Belongs("vllm.log~2/0", 1)}
    assert fleet.ended == []


def test_each_of_two_servers_restarts_alone() -> None:
    fleet = fleet_of()
    places(fleet, *[record(5.0 * i, pid=(11, 22)[i % 2]) for i in range(20)])
    places(fleet, *[record(100 + 10.0 * i, pid=11) for i in range(20)])
    assert places(fleet, record(300, pid=33), record(305, pid=11)) == [
        Belongs("vllm.log~2/0", 2),
        Belongs("vllm.log/0", 1),
    ]


@pytest.mark.parametrize("quiet_s", [CONCURRENT_S, CONCURRENT_S + 1])
def test_a_process_is_thought_alive_for_a_minute(quiet_s: float) -> None:
    got = places(fleet_of(), record(0, pid=11), record(quiet_s, pid=22))
    assert got[1].label == ("vllm.log~2/0" if quiet_s <= CONCURRENT_S else "vllm.log/0")


def test_a_server_taken_for_dead_that_speaks_again_is_no_part_of_its_successor() -> None:
    fleet = fleet_of()
    got = places(fleet, record(0, pid=11), record(100, pid=22), record(105, pid=11), record(110, pid=22))
    assert got[1] == got[3] == Belongs("vllm.log/0", 2)
    assert got[2] != got[1]
    assert got[2].label != "vllm.log/0"


def test_a_second_server_that_starts_beside_a_live_one_keeps_its_own_facts() -> None:
    fleet = fleet_of()
    fleet.event(event(EventKind.ARGS, -60, pid=11, max_num_seqs=8))
    places(fleet, record(0, pid=11), record(10, pid=11))
    fleet.event(event(EventKind.ARGS, 15, pid=22, max_num_seqs=256))
    places(fleet, record(20, pid=11), record(30, pid=11))
    life = fleet.life_of(record(35, pid=22))
    assert life.run.max_num_seqs == 256
    assert life.engine.label == "vllm.log~2/0"
    assert (life.run.started_s, life.run.seen_from_start) == (START_S + 15, True)
    again = fleet.life_of(record(40, pid=11))
    assert again.engine.label == "vllm.log/0"
    assert again.run.max_num_seqs != 256


def test_start_up_lines_of_another_process_than_the_records_are_no_second_server() -> None:
    fleet = fleet_of()
    for start_s in (0, 1000):  # the same process ids again, as in a container
        fleet.event(event(EventKind.ARGS, start_s, pid=1, max_num_seqs=8))
        life = fleet.life_of(record(start_s + 60, pid=20))
        assert (life.engine.label, life.run.max_num_seqs) == ("vllm.log/0", 8)
    assert life.run.number == 2


# --- facts


def test_facts_of_the_start_stand_on_the_run() -> None:
    fleet = fleet_of()
    fleet.event(
        Event(
            START_S - 60,
            EventKind.ARGS,
            1,
            None,
            {
                "max_model_len": 4096.0,
                "tp": 2.0,
                "pp": 1.0,
                "dp": 4.0,
                "gpu_memory_utilization": 0.9,
                "block_size": 16.0,
            },
            "0.32.0",
            "tiny",
        )
    )
    fleet.event(event(EventKind.BLOCKS, -50, pid=9, num_gpu_blocks=60, num_cpu_blocks=7))
    fleet.event(event(EventKind.KV_TOKENS, -40, pid=9, tokens=960, max_len=4096, max_concurrency=0.2))
    run = fleet.life_of(record(0)).run
    assert run[3:] == (
        START_S - 60, True, None, None, "0.32.0", "tiny", 960, 60, 16, 4096, None, 0.9, 2, 1, 4, None
    )  # fmt: skip
    assert all(type(value) is int for value in (run.kv_tokens, run.blocks, run.tp))


def test_the_tokens_of_a_prompt_are_no_fact() -> None:
    fleet = fleet_of()
    fleet.life_of(record(0))
    fleet.event(event(EventKind.PRESSURE, 5, tokens=40012))
    assert fleet.lives()[0].run.kv_tokens is None


def test_facts_that_come_late_reach_the_run_and_the_store() -> None:
    fleet = fleet_of()
    fleet.life_of(record(0))
    fleet.changed_runs.clear()
    fleet.event(event(EventKind.KV_TOKENS, 5, tokens=960))
    assert [run.kv_tokens for run in fleet.changed_runs.values()] == [960]
    assert fleet.life_of(record(10)).run.kv_tokens == 960


def test_facts_do_not_reach_across_a_restart() -> None:
    fleet = fleet_of()
    fleet.event(event(EventKind.ARGS, -60, max_num_seqs=8, kv_connector=1))
    fleet.event(event(EventKind.KV_TOKENS, -50, tokens=960))
    assert fleet.life_of(record(0)).run.kv_connector
    fleet.event(event(EventKind.BANNER, 100))
    life = fleet.life_of(record(120))
    assert (life.run.kv_tokens, life.run.max_num_seqs, life.run.kv_connector) == (None, None, None)


def test_arguments_without_a_connector_say_that_there_is_none_until_one_is_at_work() -> None:
    fleet = fleet_of()
    fleet.event(event(EventKind.ARGS, -60, max_num_seqs=8, kv_connector=0))
    life = fleet.life_of(record(0))
    assert life.run.kv_connector is False
    fleet.event(event(EventKind.KV_EXPIRED, 5))
    assert life.run.kv_connector is True
    fleet.event(event(EventKind.ARGS, 6, max_num_seqs=8, kv_connector=0))
    assert life.run.kv_connector is True


@pytest.mark.parametrize("kind", [EventKind.KV_TRANSFER, EventKind.KV_EXPIRED])
def test_a_connector_at_work_is_noted(kind: EventKind) -> None:
    fleet = fleet_of()
    life = fleet.life_of(record(0))
    assert not life.run.kv_connector
    fleet.event(event(kind, 5))
    assert life.run.kv_connector


# --- the store's runs go on


def known(label: str, engine_id: int, run_id: int, number: int) -> tuple[Engine, Run]:
    return Engine(engine_id, SOURCE, 0, label), Run(run_id, engine_id, number, START_S, True)


def test_an_adopted_life_goes_on_whatever_its_process() -> None:
    engine, run = known("vllm.log/0", 3, 7, 2)
    fleet = Fleet(SOURCE, Ids([engine], [run]))
    adopted = fleet.adopt(engine, run)
    assert fleet.life_of(record(0, pid=55)) is adopted
    assert fleet.new_engines == []
    assert place(fleet.life_of(record(100, pid=56))) == Belongs("vllm.log/0", 3)


def test_numbers_go_on_where_the_store_ended() -> None:
    engine, run = known("vllm.log/0", 3, 7, 2)
    fleet = Fleet(SOURCE, Ids([engine], [run]))
    life = fleet.life_of(record(0))
    assert (life.engine.engine_id, life.run.run_id, life.run.number) == (3, 8, 3)
    other = fleet.life_of(record(0, index=1))
    assert (other.engine.engine_id, other.run.run_id, other.run.number) == (4, 9, 1)


def test_a_server_met_after_an_adopted_second_one_has_a_name_of_its_own() -> None:
    engine, run = known("vllm.log~2/0", 3, 7, 1)
    fleet = Fleet(SOURCE, Ids([engine], [run]))
    fleet.adopt(engine, run)
    labels = {fleet.life_of(stats).engine.label for stats in (record(0, pid=1), record(1, pid=2), record(2, pid=3))}
    assert len(labels) == 3
