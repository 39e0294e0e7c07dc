"""45. The same lines give the same alert history however they are cut: here, one replay or many of a growing log."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.command import SAMPLES, Told, replay, sql
from tests.logs import frozen_after_abort, hang_with_silence, leak_at_constant_load, residue_ratchets

COURSES = {
    "leak": leak_at_constant_load,
    "residue": residue_ratchets,
    "hang": hang_with_silence,
    "frozen": frozen_after_abort,
}


def grown(data: bytes, folder: Path, cuts: list[int]) -> Told:
    """Replay a log each time it has grown to the next cut, wherever in a line that is."""
    log, db = folder / "vllm.log", folder / "s.duckdb"
    for cut in cuts:
        log.write_bytes(data[:cut])
        replay(log, "--db", db)
    log.write_bytes(data)
    return replay(log, "--db", db)


@pytest.mark.parametrize("course", COURSES.values(), ids=COURSES)
def test_a_log_in_chunks_gives_the_alerts_of_the_whole(tmp_path: Path, course: Any) -> None:
    data = course().text()
    shuffled = random.Random(45)
    (tmp_path / "whole").mkdir()
    (tmp_path / "chunks").mkdir()
    straight = grown(data, tmp_path / "whole", [])
    told = grown(data, tmp_path / "chunks", sorted(shuffled.sample(range(2000, len(data)), 4)))
    assert sql(tmp_path / "chunks" / "s.duckdb", SAMPLES) == sql(tmp_path / "whole" / "s.duckdb", SAMPLES)
    assert told.alerts == straight.alerts
