"""46. One channel fails: the other is told at once and once; the first is tried again, ever more rarely."""

import itertools
from pathlib import Path

from kvlogd.model import NoticeKind
from kvlogd.outbox import NoticeState
from tests.outboxes import BEGIN_S, alert
from tests.paging import Desk, Paged
from tests.sinks import Answer, HttpSink, SmtpSink


def test_046_the_mail_comes_at_once_and_once(tmp_path: Path) -> None:
    with HttpSink() as slack, SmtpSink() as mail:
        slack.default = Answer(500)
        daemon = Paged(tmp_path, {"slack": slack.url(), "mail": mail.url()})
        try:
            daemon.up()
            daemon.fire()
            daemon.waits(lambda: mail.mails)
            assert len(slack.requests) <= 1, "it waited for no second try of the other"
            daemon.waits(lambda: len(slack.requests) >= 2)
            [row] = daemon.rows("SELECT attempts, state, fault, status FROM notices WHERE channel = 'slack'")
            assert (row["state"], row["fault"], row["status"]) == ("waiting", "failed", 500)
            assert len(mail.mails) == 1
            [letter] = mail.mails
            assert "full chat/0" in str(letter.message["Subject"])
        finally:
            daemon.close()


def test_046_what_failed_is_tried_ever_more_rarely_until_it_gets_out(tmp_path: Path) -> None:
    with HttpSink() as slack, HttpSink() as other:
        slack.default = Answer(500)
        desk = Desk(tmp_path, {"slack": slack.url(), "other": other.url()})
        try:
            desk.see(alert(0))
            times, before = [], 0
            for _ in range(180):
                desk.go(10, 5)
                if len(slack.requests) > before:
                    before = len(slack.requests)
                    times.append(desk.live.clock.wall - BEGIN_S)
            assert 6 <= before <= 8
            pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
            assert pauses[-1] > 300 > 30 > pauses[0]
            slack.default = Answer()
            desk.go(800)
            assert len(other.requests) <= 2, "the alert, and that the other channel is out of order"
            states = {(n.channel, n.kind): n.state for n in desk.notices()}
            assert states["slack", NoticeKind.FIRING] is NoticeState.SENT
        finally:
            desk.close()
