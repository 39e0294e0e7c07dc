"""What rules remember survives as bytes, is read by the same code and rules only, and makes nothing but our classes."""

import os
import pickle
import sys
import zlib
from pathlib import Path

import pytest

from kvlogd import memory
from kvlogd.engines import Ids
from kvlogd.journalctl import Child
from kvlogd.model import Event, EventKind
from kvlogd.pipeline import Pipeline
from kvlogd.rules import Rule, load_rules, shipped_folder
from tests.course import rule
from tests.lines import START_S, record


@pytest.fixture(scope="module")
def rules() -> tuple[Rule, ...]:
    return load_rules([shipped_folder()])


def lived(rules: tuple[Rule, ...]) -> Pipeline:
    pipeline = Pipeline("vllm.log", Ids(), rules)
    pipeline.take(
        [record(10.0 * n, running=1 + n % 5, prompt_tps=90.0, generation_tps=30.0, kv_usage=0.3) for n in range(900)]
    )
    pipeline.take([Event(None, EventKind.STOP, 1)])  # waits for the next stamp, with its empty mapping of numbers
    pipeline.harvest()
    return pipeline


def test_it_goes_on_as_if_nothing_had_been(rules: tuple[Rule, ...]) -> None:
    straight, ids = lived(rules), Ids()
    thawed = memory.thawed(memory.frozen(straight), rules, ids)
    assert thawed is not None
    more = [record(9000.0 + 10 * n, running=4, prompt_tps=90.0, generation_tps=30.0, kv_usage=0.9) for n in range(400)]
    for pipeline in (straight, thawed):
        pipeline.take(more)
    assert straight.harvest().alert_events == thawed.harvest().alert_events
    assert [t.window.last for t in straight.tracks()] == [t.window.last for t in thawed.tracks()]


def test_past_lives_that_were_looked_at_are_in_it(rules: tuple[Rule, ...]) -> None:
    pipeline = Pipeline("vllm.log", Ids(), rules)
    for start in (0, 20_000, 40_000):
        pipeline.take([Event(START_S + start, EventKind.BANNER, 1)])
        pipeline.take(
            record(start + 10.0 * (1 + n), running=1, prompt_tps=60.0, generation_tps=30.0, kv_usage=0.02)
            for n in range(1200)
        )
        pipeline.harvest()
    thawed = memory.thawed(memory.frozen(pipeline), rules, Ids())
    assert thawed is not None
    assert thawed.past == pipeline.past
    assert [len(lives) for lives in thawed.past.values()] == [2]


def test_it_is_small_and_does_not_grow_with_age(rules: tuple[Rule, ...]) -> None:
    pipeline = Pipeline("vllm.log", Ids(), rules)
    sizes = []
    for day in range(4):
        start = day * 8640
        pipeline.take(
            record(10.0 * (start + n), running=1 + n % 7, prompt_tps=90.0 + n % 11, generation_tps=30.0, kv_usage=0.3)
            for n in range(8640)
        )
        pipeline.harvest()
        sizes.append(len(memory.frozen(pipeline)))
    assert sizes[-1] < 1.5 * sizes[1]
    assert sizes[-1] < 1 << 20


BROKEN = [b"rubbish", b"I12x\n.", pickle.dumps([1, 2])]


@pytest.mark.parametrize("data", [b"", b"rubbish", *map(zlib.compress, BROKEN)])
def test_damaged_bytes_are_no_memory(data: bytes, rules: tuple[Rule, ...]) -> None:
    assert memory.thawed(data, rules, Ids()) is None


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /nonexistent/evil",)


@pytest.mark.parametrize(
    "foreign", [Evil(), Path("/"), os.stat_result([0] * 10), print], ids=["call", "path", "stat", "function"]
)
def test_nothing_but_our_classes_is_made(foreign: object, rules: tuple[Rule, ...]) -> None:
    assert memory.thawed(zlib.compress(pickle.dumps(foreign)), rules, Ids()) is None


class Runs:
    def __reduce__(self) -> tuple[object, tuple[list[str]]]:
        return Child, (["true"],)


def test_a_class_of_ours_that_does_things_is_not_made(rules: tuple[Rule, ...]) -> None:
    assert memory.thawed(zlib.compress(pickle.dumps(Runs())), rules, Ids()) is None


def test_nothing_is_imported_to_look_at_it(rules: tuple[Rule, ...]) -> None:
    assert memory.thawed(zlib.compress(b"\x80\x04\x8c\x04this\x8c\x01c\x93."), rules, Ids()) is None
    assert "this" not in sys.modules


def test_a_function_of_ours_is_no_class(rules: tuple[Rule, ...]) -> None:
    stolen = b"\x80\x04\x8c\x0ckvlogd.store\x8c\tos.system\x93."
    assert memory.thawed(zlib.compress(stolen), rules, Ids()) is None


def test_other_rules_are_another_code(tmp_path: Path) -> None:
    one, other = rule(tmp_path, for_="1m"), rule(tmp_path, for_="2m")
    assert memory.code([one]) == memory.code([one._replace(path=tmp_path / "moved.yaml")])
    assert memory.code([one]) == memory.code([one._replace(tags=("leak",), notify=("mail",))])
    assert memory.code([one]) != memory.code([other])
    assert memory.code([one]) != memory.code([])
