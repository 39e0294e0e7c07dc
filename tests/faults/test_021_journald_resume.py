"""21. journald resume: kvlogd killed before a commit or right behind it loses nothing and repeats nothing."""

import signal
import subprocess
import sys
from pathlib import Path

from kvlogd.store import Store
from tests.journals import FakeJournal, RealJournal, needs_remote

ROOT = Path(__file__).parent.parent.parent
SEQ = "SELECT CAST(numbers->>'seq' AS INTEGER) FROM events ORDER BY rowid"
KILLS = [("commit", 1), ("read", 1), ("read", 3), ("commit", 4)]


def read(store: Path, place: Path, point: str, count: int) -> int:
    command = [sys.executable, "-m", "tests.journal_reader", str(store), str(place), point, str(count)]
    return subprocess.run(command, cwd=ROOT, check=False, timeout=120).returncode


def stored(path: Path) -> tuple[list[int], str | None, int]:
    """Return the numbers that are stored, the cursor, and how many gaps."""
    with Store.open(path) as store:
        with store.query(SEQ, limit_s=30) as answer:
            numbers = [row[0] for row in answer.rows]
        cursors = [place.cursor for place in store.places()]
        return numbers, cursors[0] if cursors else None, len(store.gaps())


def kill_and_go_on(db: Path, place: Path, total: int) -> None:
    for point, count in KILLS:
        before = stored(db)[0] if db.exists() else []
        assert read(db, place, point, count) == -signal.SIGKILL
        numbers, _, gaps = stored(db)
        committed = count if point == "commit" else count - 1
        assert (len(numbers) > len(before)) == (committed > 0)
        assert numbers == list(range(len(numbers)))
        assert gaps == 0
    left = total - len(stored(db)[0])
    assert left > 0
    assert read(db, place, "never", left) == 0


def test_killed_around_the_commit(tmp_path: Path) -> None:
    fake = FakeJournal(tmp_path / "fake")
    fake.write(400)
    kill_and_go_on(tmp_path / "s.duckdb", fake.program, 400)
    assert stored(tmp_path / "s.duckdb") == (list(range(400)), fake.cursor(399), 0)


@needs_remote
def test_killed_around_the_commit_with_a_real_journal(tmp_path: Path) -> None:
    made = RealJournal(tmp_path / "j")
    made.write(400)
    made.close()
    kill_and_go_on(tmp_path / "s.duckdb", made.folder, 400)
    assert stored(tmp_path / "s.duckdb")[0] == list(range(400))


def test_the_stored_cursor_is_that_of_the_last_stored_row(tmp_path: Path) -> None:
    fake = FakeJournal(tmp_path / "fake")
    fake.write(100)
    db = tmp_path / "s.duckdb"
    for _ in range(2):
        assert read(db, fake.program, "commit", 3) == -signal.SIGKILL
        numbers, cursor, _ = stored(db)
        assert cursor == fake.cursor(numbers[-1])
