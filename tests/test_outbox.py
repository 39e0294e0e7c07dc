"""The records of the outbox, and how they lie in the store."""

from pathlib import Path

import pytest

from kvlogd.errors import StoreError
from kvlogd.model import AlertKey, Fault, NoticeKind, Severity
from kvlogd.outbox import Case, Notice, NoticeState, Silence, changed, opened
from kvlogd.rows import Batch
from kvlogd.store import Store
from tests.outboxes import BEGIN_S, alert

FIRING = alert(0.25, scope="a'b/0")
CASES = [
    opened("mail", NoticeKind.FIRING, FIRING, BEGIN_S + 1.5),
    Case(
        "mail", NoticeKind.BROKEN, FIRING._replace(key=AlertKey("x", "host", None), value=None, engine_index=None),
        BEGIN_S, ((BEGIN_S, BEGIN_S + 0.1), (BEGIN_S + 0.2, None)), Severity.WARNING, BEGIN_S + 7, tried=True,
    ),
]  # fmt: skip
NOTICES = [
    Notice(1, "mail", NoticeKind.FIRING, "kv-leak", NoticeState.WAITING, BEGIN_S, BEGIN_S + 3, BEGIN_S + 90),
    Notice(
        2, "slack", NoticeKind.SUMMARY, "", NoticeState.SENT, BEGIN_S, BEGIN_S + 3, BEGIN_S + 90, 4, Fault.BUSY, 429,
        BEGIN_S + 5, "", "[]",
    ),
]  # fmt: skip
SILENCE = Silence(1, "kv-*", "*", BEGIN_S, BEGIN_S + 60, "on it")


def test_what_is_stored_comes_back_as_it_was(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.duckdb") as store:
        assert store.last_notice_id() == 0
        store.commit(Batch(cases=CASES, notices=NOTICES, silences=[SILENCE]))
    with Store.open(tmp_path / "s.duckdb") as store:
        assert sorted(store.cases()) == sorted(CASES)
        assert store.notices() == NOTICES
        assert store.notices(NoticeState.WAITING) == NOTICES[:1]
        assert (store.last_notice_id(), store.silences()) == (2, [SILENCE])
        over = changed(CASES[0]._replace(tried=True), "mail", alert(9, scope="a'b/0", over=True), BEGIN_S + 9)
        assert over is not None
        sent = NOTICES[0]._replace(state=NoticeState.SENT, sent_s=BEGIN_S)
        ended = SILENCE._replace(until_s=BEGIN_S)
        store.commit(Batch(cases=[over], closed=[CASES[1].key], notices=[sent], silences=[ended]))
        assert (store.cases(), store.notices(NoticeState.WAITING), store.silences()) == ([over], [], [ended])


def test_a_notice_and_the_events_that_cause_it_are_stored_together_or_not_at_all(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.duckdb") as store:
        broken = NOTICES[0]._replace(attempts="many")  # type: ignore[arg-type]
        with pytest.raises(StoreError):
            store.commit(Batch(alert_events=[FIRING], cases=CASES, notices=[broken]))
        assert (store.alert_events(), store.cases(), store.notices()) == ([], [], [])
