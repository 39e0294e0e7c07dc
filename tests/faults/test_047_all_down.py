"""47. All channels are down for two hours, an alert fires and resolves twice: one message on each tells it after."""

from pathlib import Path

from kvlogd.model import NoticeKind
from kvlogd.outbox import NoticeState
from kvlogd.plan import TTL_S
from tests.outboxes import alert
from tests.paging import Desk
from tests.sinks import Answer, HttpSink, SmtpSink


def test_047_after_the_outage_one_message_tells_the_state_and_what_happened(tmp_path: Path) -> None:
    with HttpSink() as hook, SmtpSink() as mail:
        hook.default, mail.default = Answer(503), "451 later"
        desk = Desk(tmp_path, {"hook": hook.url(), "mail": mail.url()})
        try:
            for at_s in (0, 3600):
                desk.see(alert(at_s), alert(at_s, rule="engine-stall"))
                desk.go(1800, 60)
                desk.see(alert(at_s + 1800, over=True, reason="cleared"))
                desk.go(1800, 60)
                desk.kill()
            tried = len(hook.requests)
            hook.default, mail.default = Answer(), "250 taken"
            desk.go(900, 10)
            taken = hook.requests[tried:]
            titles = [str(request.json["title"]) for request in taken]
            assert len([title for title in titles if "kv-leak" in title]) == 1
            assert len([title for title in titles if "engine-stall" in title]) == 1
            [told] = [str(request.json["message"]) for request in taken if "kv-leak" in str(request.json["title"])]
            assert "it fired" in told, "with when it did"
            assert len([letter for letter in mail.mails if "kv-leak" in str(letter.message["Subject"])]) == 1
            assert {notice.kind for notice in desk.notices() if notice.state is NoticeState.SENT} <= {
                NoticeKind.FIRING, NoticeKind.SUMMARY, NoticeKind.CHANNEL,
            }  # fmt: skip
            assert desk.live.store.notices(NoticeState.WAITING) == []
        finally:
            desk.close()


def test_047_what_is_older_than_a_day_is_told_to_nobody(tmp_path: Path) -> None:
    with HttpSink() as hook:
        hook.default = Answer(503)
        desk = Desk(tmp_path, {"hook": hook.url()})
        try:
            desk.see(alert(0))
            desk.go(60)
            desk.see(alert(60, over=True))
            desk.go(120)
            desk.live.clock.pass_s(TTL_S)
            tried = len(hook.requests)
            hook.default = Answer()
            desk.go(1200, 60)
            assert len(hook.requests) == tried
            assert {notice.state for notice in desk.notices()} == {NoticeState.DROPPED}
        finally:
            desk.close()
