"""What the doctor says of a unit's journal: real journals without systemd, and a journalctl that fails on command."""

from pathlib import Path

import pytest

from kvlogd import journalcheck
from kvlogd.checkup import Mark
from kvlogd.journalcheck import look
from kvlogd.logcheck import Looked
from kvlogd.rules import load_rules, shipped_folder
from kvlogd.stamp import zone
from tests.journals import START_US, UNIT, FakeJournal, RealJournal, needs_remote
from tests.lines import START_S, line_of, record

RULES = load_rules([shipped_folder()])
NOW_S = START_US / 1e6 + 60
COUNT = 60


def lines() -> list[bytes]:
    """Return the log of an engine that leaks nothing, up to the time of the journals here."""
    at_s = START_US / 1e6 - START_S
    return [line_of(record(at_s - 2 * n, running=1, generation_tps=9.0)) for n in reversed(range(COUNT))]


def told(looked: Looked) -> dict[str, tuple[Mark, str]]:
    return {item.link: (item.mark, f"{item.what}; {item.mend}") for item in looked.items}


def seen(journal: FakeJournal, unit: str = UNIT) -> Looked:
    return look("chat", unit, RULES, zone("UTC"), NOW_S, program=str(journal.program))


@needs_remote
def test_the_records_of_a_real_journal_are_read_and_judged(tmp_path: Path) -> None:
    made = RealJournal(tmp_path / "j")
    for line in lines():
        made.add(line)
    made.close()
    looked = look("chat", UNIT, RULES, zone("UTC"), NOW_S, directory=made.folder)
    found = told(looked)
    assert {link: mark for link, (mark, _) in found.items()} == {
        f"chat: {link}": Mark.OK for link in ("journal", "records", "dialect", "interval", "clock")
    }
    assert found["chat: journal"][1] == f"entries of {UNIT} can be read; "
    assert found["chat: records"][1].startswith(f"{COUNT} records in the last 5,000 entries, 1 engine")
    assert found["chat: clock"][1].endswith(" UTC, 1 min ago; ")
    assert looked.verdict[0].startswith(f"chat: nothing found; {COUNT} records of 1 min 58 s judged")
    other = look("chat", "other.service", RULES, zone("UTC"), NOW_S, directory=made.folder)
    assert told(other) == {
        "chat: journal": (
            Mark.FAIL, "no entry of other.service; check the unit's name, and that you are in the group systemd-journal"
        )
    }  # fmt: skip


def test_the_engine_is_called_by_the_name_of_its_source_and_nothing_of_a_line_is_said(tmp_path: Path) -> None:
    journal = FakeJournal(tmp_path / "fake")
    log = Path(__file__).parent / "data" / "real" / "slow-leak-with-idle-spells.log"
    journal.add(*[journal.entry(line.decode()) for line in [*log.read_bytes().splitlines(), b"canary-4711"]])
    looked = seen(journal)
    assert looked.verdict[0].startswith("CRITICAL chat: kv-")
    assert " chat/0: " in looked.verdict[0]
    assert "canary" not in str(looked)
    [(_, *words)] = journal.calls()
    assert {f"--unit={UNIT}", "--lines=5000", "--output=json"} <= set(words)


def test_a_unit_that_is_not_vllms_is_named_as_such(tmp_path: Path) -> None:
    journal = FakeJournal(tmp_path / "fake")
    journal.write(20)
    assert told(seen(journal))["chat: journal"] == (
        Mark.FAIL, f"{UNIT}: has no line that vLLM wrote; give the log of vLLM itself"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fails", "words"),
    [
        ("1 Failed to open files: Permission denied", "the journal may not be read by you; run this as root"),
        ("1 Bad message", "journalctl ends with status 1; see journalctl --verify"),
        ("0 ", "no entry of vllm.service; check the unit's name"),
    ],
)
def test_what_hinders_is_told_with_its_mend(tmp_path: Path, fails: str, words: str) -> None:
    journal = FakeJournal(tmp_path / "fake")
    journal.script("fail", fails)
    [(mark, text)] = told(seen(journal)).values()
    assert (mark, text[: len(words)]) == (Mark.FAIL, words)


def test_a_journalctl_that_hangs_or_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = FakeJournal(tmp_path / "fake")
    journal.program.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(journalcheck, "ANSWER_S", 0.3)
    assert "journalctl does not answer within" in told(seen(journal))["chat: journal"][1]
    journal.program.unlink()
    assert "cannot be started; install systemd, or give" in told(seen(journal))["chat: journal"][1]
