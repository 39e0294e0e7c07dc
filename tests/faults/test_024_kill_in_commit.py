"""Scenario 24: 100 times SIGKILL while the writer commits; rows and position never part."""

import subprocess
import sys
from pathlib import Path

from kvlogd.store import Store
from tests.test_store import rows

ROOT = Path(__file__).parent.parent.parent
KILLS = 100

# One process loads DuckDB; each writer is a fork of it, which costs milliseconds.
NURSERY = f"""
import os, random, select, signal, sys
from pathlib import Path
from tests.test_store import Batch, ENGINE, Position, RUN, Store, sample

def write(path, ready):
    with_store = Store.open(path)
    at = with_store.positions().get("f", 0)
    if not at:
        with_store.commit(Batch(engines=[ENGINE], runs=[RUN], positions=[Position("vllm.log", "f", 0)]))
    random.seed(os.getpid())
    while True:
        count = random.choice([1, 3, 40, 400])
        many = [sample(at + i, running=at + i) for i in range(count)]
        at += count
        with_store.commit(Batch(samples=many, sample_runs=[7] * count, positions=[Position("vllm.log", "f", at)]))
        os.write(ready, at.to_bytes(8, "big"))
        if random.random() < 0.1:
            with_store.checkpoint()

chosen = random.Random(24)
told = 0
for _ in range({KILLS}):
    seen, ready = os.pipe()
    child = os.fork()
    if not child:
        try:
            write(Path(sys.argv[1]), ready)
        finally:
            os._exit(1)
    os.close(ready)
    for _ in range(chosen.randrange(1, 6)):
        told = int.from_bytes(os.read(seen, 8), "big")
    # somewhere in the next commit, or in the checkpoint
    select.select([seen], [], [], chosen.uniform(0, 0.02))
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    while left := os.read(seen, 8):
        told = int.from_bytes(left, "big")
    os.close(seen)
print(told)
"""


def test_024_rows_equal_the_stored_position(tmp_path: Path) -> None:
    path = tmp_path / "kv.duckdb"
    run = subprocess.run(
        [sys.executable, "-c", NURSERY, str(path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    told = int(run.stdout)
    assert told > KILLS
    with Store.open(path) as store:
        at = store.positions()["f"]
        assert at >= told
        assert rows(store, "SELECT count(*), count(DISTINCT running), max(running) FROM samples") == [(at, at, at - 1)]
