"""45. A log that grows in random pieces under a daemon that is killed and restarted gives what a replay of it gives."""

import os
import random
from pathlib import Path

import pytest

from tests.live import Live, replayed

DATA = Path(__file__).parent.parent / "data"
LOGS = sorted((DATA / "real").glob("*.log"))
SIZES = (10, 100, 1_000, 10_000, 100_000)


@pytest.mark.parametrize("log", LOGS, ids=[log.stem for log in LOGS])
@pytest.mark.parametrize("seed", range(2))
def test_live_in_pieces_is_replay(log: Path, seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    data, grown = log.read_bytes(), tmp_path / "vllm.log"
    grown.touch()
    live = Live(grown, tmp_path / "live.duckdb", wall_s=grown.stat().st_mtime)
    with grown.open("ab", buffering=0) as writer:
        while data:
            size = dice.choice(SIZES)
            writer.write(data[:size])
            data = data[size:]
            live.turn(0.1)
            _trouble(live, dice)
    live.read_all()
    live.restart()
    live.commit()
    assert live.told() == replayed(log, tmp_path / "replay.duckdb")
    live.kill()


def _trouble(live: Live, dice: random.Random) -> None:
    what = dice.random()
    if what < 0.1:
        live.commit()
    elif what < 0.13:
        live.restart()
    elif what < 0.16:
        live.kill()
        live.start()


def test_the_rows_are_those_of_the_replay_too(tmp_path: Path) -> None:
    log = DATA / "real" / "leak-to-hang-and-restart.log"
    grown = tmp_path / "vllm.log"
    grown.write_bytes(log.read_bytes())
    os.utime(grown, (1.8e9, 1.8e9))
    live = Live(grown, tmp_path / "live.duckdb")
    live.read_all()
    live.restart()
    live.read_all()
    live.commit()
    assert live.count() == 291
    live.kill()
