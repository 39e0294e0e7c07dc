"""What the sending child makes of a message, and of what the other side answers; through real Apprise and sockets."""

import base64
import os
import socket
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path

import pytest

from kvlogd.model import Fault, Letter, Outcome, Panel, Severity
from kvlogd.reply import LONGEST_RETRY_S, retry_after_s
from tests.office import LETTER, TAKEN, Office
from tests.sinks import DRIP, DROP, HANG, Answer, BlackHole, HttpSink, Request, SmtpSink
from tests.test_picture import LEAK

SLACK = "slack://kvlogd@T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/"
"""The form of a webhook's URL; Apprise refuses others."""


PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def office() -> Iterator[Office]:
    made = Office()
    yield made
    made.postman.close()


@pytest.fixture(scope="module")
def slack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HttpSink, Office]]:
    """Slack, as far as the child can tell: by a proxy, and with a certificate for its host."""
    made = Office()
    with HttpSink(tmp_path_factory.mktemp("ca")) as sink, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTTPS_PROXY", sink.proxy)
        patch.setenv("REQUESTS_CA_BUNDLE", str(sink.ca))
        yield sink, made
    made.postman.close()


def last(sink: HttpSink) -> Request:
    return sink.requests[-1]


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Answer(200), TAKEN),
        (Answer(204), Outcome(None, 204)),
        (Answer(429, {"Retry-After": "7"}), Outcome(Fault.BUSY, 429, 7.0)),
        (Answer(429), Outcome(Fault.BUSY, 429)),
        (Answer(401), Outcome(Fault.REFUSED, 401)),
        (Answer(403), Outcome(Fault.REFUSED, 403)),
        (Answer(404), Outcome(Fault.REFUSED, 404)),
        (Answer(410), Outcome(Fault.REFUSED, 410)),
        (Answer(400), Outcome(Fault.FAILED, 400)),
        (Answer(500), Outcome(Fault.FAILED, 500)),
        (Answer(503, {"Retry-After": "120"}), Outcome(Fault.FAILED, 503, 120.0)),
        (DROP, Outcome(Fault.FAILED)),
    ],
)
def test_the_answer_of_a_web_server_is_told_apart(office: Office, answer: Answer, outcome: Outcome) -> None:
    with HttpSink() as sink:
        sink.script(answer)
        assert office.sent(sink.url()) == outcome
        assert len(sink.requests) == 1


@pytest.mark.parametrize("answer", [HANG, DRIP])
def test_a_web_server_that_takes_too_long_is_a_timeout(office: Office, answer: Answer) -> None:
    with HttpSink() as sink:
        sink.default = answer
        # of a server that drips, each read comes back in time but for one that waits for less than a drip takes
        assert office.sent(sink.url(rto=0.1)) == Outcome(Fault.TIMEOUT)


def test_nobody_there_is_told_apart(office: Office) -> None:
    with BlackHole() as hole:
        assert office.sent(f"json://127.0.0.1:{hole.port}/?cto=0.3") == Outcome(Fault.UNREACHABLE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and does not listen
        port = free.getsockname()[1]
        assert office.sent(f"json://127.0.0.1:{port}/") == Outcome(Fault.UNREACHABLE)
        mail = f"mailto://127.0.0.1:{port}?from=a@example.test&to=b@example.test&mode=insecure"
        assert office.sent(mail) == Outcome(Fault.UNREACHABLE)
    assert office.sent("json://no-such-host.invalid/") == Outcome(Fault.UNREACHABLE)


def test_a_url_that_nobody_understands_is_unusable(office: Office) -> None:
    for url in ("bogus://example.test/x", "slack://token", "hello", ""):
        assert office.sent(url) == Outcome(Fault.UNUSABLE), url


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ("250 taken", Outcome(None, 250)),
        ("451 busy", Outcome(Fault.BUSY, 451)),
        ("550 no", Outcome(Fault.REFUSED, 550)),
        ("drop", Outcome(Fault.FAILED)),
        ("hang", Outcome(Fault.TIMEOUT)),
    ],
)
def test_the_answer_of_a_mail_server_is_told_apart(office: Office, answer: str, outcome: Outcome) -> None:
    with SmtpSink() as sink:
        sink.script(answer)
        assert office.sent(sink.url(cto=1)) == outcome


def test_a_redirect_is_not_followed_whatever_the_url_says(office: Office) -> None:
    with HttpSink() as old, HttpSink() as new:
        old.default = Answer(307, {"Location": f"http://127.0.0.1:{new.port}/"})
        for url in (old.url(), old.url(redirect="yes")):
            assert office.sent(url) == Outcome(Fault.REFUSED, 307)
        assert new.requests == []


def test_apprise_neither_tries_again_nor_excuses(office: Office) -> None:
    with HttpSink() as sink:
        sink.default = Answer(500)
        assert office.sent(sink.url(retry=5, wait=0, optional="yes")) == Outcome(Fault.FAILED, 500)
        assert len(sink.requests) == 1


def test_what_an_earlier_message_met_is_forgotten(office: Office) -> None:
    with HttpSink() as sink:
        sink.script(Answer(429, {"Retry-After": "7"}))
        assert office.sent(sink.url()).fault is Fault.BUSY
        assert office.sent(sink.url()) == TAKEN
        assert office.sent("bogus://x") == Outcome(Fault.UNUSABLE)


def test_a_mail_is_our_text_with_the_same_as_html(office: Office) -> None:
    letter = Letter("s", "our own text\n  kept as it is", "<table><tr><td>a</td><td>b</td></tr></table>", None)
    with SmtpSink() as sink:
        for _ in range(2):
            assert office.sent(sink.url(), letter) == Outcome(None, 250)
        first, second = sink.mails
        assert first.message.get_content_type() == "multipart/alternative"
        assert [part.get_content_type() for part in parts(first.message)] == ["text/plain", "text/html"]
        assert first.part("text/plain") == letter.text
        assert first.part("text/html") == letter.html
        other = letter._replace(text="another")
        assert office.sent(sink.url(), other) == Outcome(None, 250)
        assert sink.mails[-1].part("text/plain") == "another"
        assert second.message["Message-ID"] != first.message["Message-ID"]


def parts(message: EmailMessage) -> list[EmailMessage]:
    return [part for part in message.walk() if not part.is_multipart()]


def test_a_mail_is_text_alone_where_the_url_says_so_or_the_page_is_too_long(office: Office) -> None:
    with SmtpSink() as sink:
        assert office.sent(sink.url(format="text")) == Outcome(None, 250)
        assert office.sent(sink.url(), LETTER._replace(html="<p>" + "x" * 100_000)) == Outcome(None, 250)
        for mail in sink.mails:
            assert mail.message.get_content_type() == "text/plain"
            assert mail.part("text/plain") == LETTER.text


def test_a_chart_is_seen_in_a_mail_and_comes_with_a_webhook(office: Office) -> None:
    page = "<html><body><p>a page</p></body></html>"
    with SmtpSink() as mail, HttpSink() as web:
        assert office.sent(mail.url(), LETTER._replace(html=page), LEAK) == Outcome(None, 250)
        (got,) = mail.mails
        text, html, picture = parts(got.message)
        assert got.message.get_content_type() == "multipart/related"
        assert (text.get_content_type(), html.get_content_type()) == ("text/plain", "text/html")
        assert got.part("text/plain") == LETTER.text
        shown = '<p><img src="cid:kvlogd.png" alt="chart" style="max-width:100%"></p></body></html>'
        assert got.part("text/html") == page.replace("</body></html>", shown)
        assert picture["Content-ID"] == "<kvlogd.png>"
        assert picture.get_content().startswith(PNG)
        assert office.sent(mail.url(format="text"), LETTER, LEAK) == Outcome(None, 250)
        assert [part.get_content_type() for part in parts(mail.mails[-1].message)] == ["text/plain", "image/png"]
        assert office.sent(web.url(), LETTER, LEAK) == TAKEN
        (file,) = last(web).json["attachments"]
        assert (file["filename"], file["mimetype"]) == ("kvlogd.png", "image/png")
        assert base64.b64decode(file["base64"]).startswith(PNG)


def test_a_chart_that_cannot_be_drawn_keeps_no_message_back(office: Office) -> None:
    odd = LEAK._replace(ts_s=LEAK.ts_s[:3], trend=((float("nan"), 0.0), (1.0, float("inf"))))
    with HttpSink() as web:
        for panel in (odd, LEAK._replace(free_share=(None,) * len(LEAK.ts_s))):
            assert office.sent(web.url(), LETTER, panel) == TAKEN
            assert last(web).json["attachments"] == []


def test_each_recipient_gets_a_mail(office: Office) -> None:
    with SmtpSink() as sink:
        assert office.sent(sink.url(to="a@example.test,b@example.test")) == Outcome(None, 250)
        assert sorted(mail.recipients for mail in sink.mails) == [("a@example.test",), ("b@example.test",)]


@pytest.mark.parametrize(("answer", "fault"), [("451 busy", Fault.BUSY), ("550 no", Fault.REFUSED)])
def test_who_has_a_mail_does_not_get_it_again_because_of_another(office: Office, answer: str, fault: Fault) -> None:
    everybody = [f"{name}@example.test" for name in "abc"]
    with SmtpSink() as sink:
        url = sink.url(to=",".join(everybody))
        sink.script("250 taken", answer, "250 taken")
        assert attempt(office, 7, url).fault is fault
        assert len(sink.mails) == 2
        sink.script(answer)
        assert attempt(office, 7, url).fault is fault
        assert len(sink.mails) == 2
        assert attempt(office, 7, url, LEAK) == Outcome(None, 250)
        assert sorted(mail.recipients[0] for mail in sink.mails) == everybody
        assert attempt(office, 7, url) == Outcome(None, 250)  # a ticket that was done with is a new message
        assert len(sink.mails) == 6
        sink.script("250 taken", answer)
        assert attempt(office, 8, url).fault is fault
        good = LETTER._replace(severity=None)
        assert attempt(office, 8, url, letter=good) == Outcome(None, 250)  # it is over: that everybody must hear
        assert [mail.recipients[0] for mail in sink.mails[-3:]] == sorted(
            mail.recipients[0] for mail in sink.mails[-3:]
        )
        assert len(sink.mails) == 6 + 2 + 3


def attempt(office: Office, ticket: int, url: str, panel: Panel | None = None, letter: Letter = LETTER) -> Outcome:
    """Send a message under a ticket that may have been there before."""
    office.outcomes.pop(ticket, None)
    office.postman.send(ticket, "oncall", url, letter, panel, office.now_s)
    return office.outcome(ticket)


def test_a_mail_server_that_is_not_there_is_asked_once(office: Office) -> None:
    with SmtpSink() as sink:
        sink.default = "hang"
        assert office.sent(sink.url(to="a@example.test,b@example.test", cto=0.5)) == Outcome(Fault.TIMEOUT)
        assert sink.attempts == 1


def test_the_colour_tells_how_bad_it_is(office: Office) -> None:
    with HttpSink() as sink:
        kinds = []
        for severity in (*Severity, None):
            assert office.sent(sink.url(), LETTER._replace(severity=severity)) == TAKEN
            kinds.append(last(sink).json["type"])
        assert kinds == ["info", "warning", "failure", "success"]


def test_a_message_without_a_body_is_its_subject(office: Office) -> None:
    with HttpSink() as sink:
        assert office.sent(sink.url(), Letter("kv-leak", "\n", "", None)) == TAKEN
        assert last(sink).json["message"] == "kv-leak"


def test_slack_gets_text_and_nothing_from_elsewhere(slack: tuple[HttpSink, Office]) -> None:
    sink, office = slack
    for url in (SLACK, SLACK + "?image=yes&footer=yes"):
        assert office.sent(url) == TAKEN
        assert last(sink).path == "/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"
        attachment = {"title": LETTER.subject, "text": LETTER.text, "color": "#A32037"}
        assert last(sink).json == {"mrkdwn": False, "attachments": [attachment], "username": "kvlogd"}


def test_a_webhook_of_slack_takes_no_chart_and_gets_none(slack: tuple[HttpSink, Office]) -> None:
    sink, office = slack
    assert office.sent(SLACK, LETTER, LEAK) == TAKEN
    assert "attach" not in last(sink).body.decode().replace('"attachments"', "")
    assert len(last(sink).json["attachments"]) == 1


@pytest.mark.parametrize(("more", "most"), [("", 8000), ("?blocks=yes", 3000)])
def test_a_long_message_is_cut_to_what_slack_takes(slack: tuple[HttpSink, Office], more: str, most: int) -> None:
    sink, office = slack
    assert office.sent(SLACK + more, LETTER._replace(subject="s" * 500, text="a<b " * 4000)) == TAKEN
    (attachment,) = last(sink).json["attachments"]
    told = attachment["blocks"][1]["text"]["text"] if more else attachment["text"]
    title = attachment["blocks"][0]["text"]["text"] if more else attachment["title"]
    assert len(title) <= 150
    assert len(told) <= most
    assert told.endswith("shows the rest")


def test_the_answers_of_slack_are_told_apart(slack: tuple[HttpSink, Office]) -> None:
    sink, office = slack
    sink.script(Answer(429, {"Retry-After": "30"}), Answer(404))
    assert office.sent(SLACK) == Outcome(Fault.BUSY, 429, 30.0)
    assert office.sent(SLACK) == Outcome(Fault.REFUSED, 404)


def test_a_certificate_that_nobody_vouches_for_is_refused(slack: tuple[HttpSink, Office], tmp_path: Path) -> None:
    sink, _ = slack
    before = len(sink.requests)
    office = Office()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("REQUESTS_CA_BUNDLE")
        assert os.environ["HTTPS_PROXY"] == sink.proxy
        assert office.sent(SLACK) == Outcome(Fault.UNREACHABLE)
    office.postman.close()
    assert len(sink.requests) == before


def test_retry_after_is_seconds_or_a_time() -> None:
    date = "Sun, 29 Nov 2026 12:00:00 GMT"
    assert retry_after_s("120", None) == 120.0
    assert retry_after_s("Sun, 29 Nov 2026 12:01:30 GMT", date) == 90.0
    assert retry_after_s("Sun, 29 Nov 2026 11:00:00 GMT", date) == 0.0
    assert retry_after_s("9" * 15, None) == LONGEST_RETRY_S
    for nonsense in (None, "", "soon", "-5", "9" * 400, "Sun, 29 Nov 2026 12:01:30 GMT"):
        assert retry_after_s(nonsense, None) is None, nonsense
