"""How a channel fares: how long it is left in peace, and when it is tried all the same."""

from kvlogd.model import Fault, Outcome
from kvlogd.outbox import NoticeState
from kvlogd.plan import GROUP_S, Ledger, Plan
from tests.outboxes import BEGIN_S, Outbox, alert, policy


def test_attempts_that_ended_with_kvlogd_do_not_lengthen_the_waits() -> None:
    box = Outbox()
    box.answers["mail"] = Outcome(Fault.UNREACHABLE)
    box.see(alert(0))
    box.at_s = GROUP_S
    for _ in range(6):
        box.turn(dies=True)
    box.turn()
    [notice] = box.notices.values()
    assert (notice.attempts, notice.failed) == (7, 1)
    assert 7 <= notice.due_s - BEGIN_S - box.at_s <= 13
    box.crash()
    assert box.plan.lines["mail"].failures == 1


def test_a_channel_whose_url_was_changed_is_tried_at_once() -> None:
    box = Outbox(policy("mail"), policy("hook"))
    box.answers |= dict.fromkeys(("mail", "hook"), Outcome(Fault.REFUSED, 403))
    box.see(alert(0))
    while not all(line.is_bad for line in box.plan.lines.values()):
        box.go(1)
    waiting = [notice for notice in box.notices.values() if notice.state is NoticeState.WAITING]
    now_s = BEGIN_S + box.at_s
    plan = Plan(
        box.policies, {}, Ledger(list(box.cases.values()), waiting, (), max(box.notices)), now_s, mended={"mail"}
    )
    assert (plan.lines["mail"].is_bad, plan.lines["hook"].is_bad) == (False, True)
    assert [sending.notice.channel for sending in plan.ready(now_s, lambda _: True)] == ["mail"]


def test_what_is_to_be_sent_soon_is_known_but_for_a_channel_that_is_left_in_peace() -> None:
    box = Outbox(policy("mail"), policy("hook"))
    assert box.plan.soon(BEGIN_S) == {}
    box.see(alert(0))
    assert box.plan.soon(BEGIN_S) == {"mail": GROUP_S, "hook": GROUP_S}
    assert box.plan.soon(BEGIN_S + GROUP_S - 1) == {"mail": 1.0, "hook": 1.0}
    assert box.plan.soon(BEGIN_S + GROUP_S) == {}
    box.plan.lines["hook"].ended(Outcome(Fault.BUSY, 429, 60.0), 1, BEGIN_S)
    assert box.plan.soon(BEGIN_S + 1) == {"mail": GROUP_S - 1}
