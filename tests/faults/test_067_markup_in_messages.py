"""Scenario 67 b: what a log can put into a message arrives as visible text, byte for byte, and the subject is one line.

Through the real Apprise, as the bytes that arrive at a webhook, at Slack and at a mail server.
"""

import json
from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from html import escape, unescape
from pathlib import Path

import pytest

from kvlogd.model import Letter, Severity
from tests.office import TAKEN, Office
from tests.sinks import HttpSink, SmtpSink

HOSTILE = (
    "<!channel> <!here> @here <https://evil.example.test|fix it> [fix](https://evil.example.test) *bold* _it_ `code` "
    "<b>html</b> <img src=x onerror=alert(1)> &amp; &lt; <@U012AB3CD> :smoke:"
)
"""A model's name, as somebody could choose it."""
BREAKS = "model\r\nBcc: victim@example.test\r\n\r\n<p>new body</p>\n.\r\nQUIT\r\n"
LETTER = Letter(
    f"kv-leak chat/0: {BREAKS} {HOSTILE}",
    f"model: {HOSTILE}\n{BREAKS}end \x1b[31m\u202e\x00",
    f"<html><body><p>model: {escape(HOSTILE)}</p><pre>{escape(BREAKS)}</pre></body></html>",
    Severity.CRITICAL,
)
SUBJECT = " ".join(LETTER.subject.split())[:249] + "…"
SLACK = "slack://kvlogd@T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/"


@pytest.fixture(scope="module")
def office() -> Iterator[Office]:
    made = Office()
    yield made
    made.postman.close()


def without_commands(text: str) -> bool:
    return all(char == "\n" or char.isprintable() for char in text)


def test_a_webhook_gets_the_text_as_it_is(office: Office) -> None:
    with HttpSink() as sink:
        assert office.sent(sink.url(), LETTER) == TAKEN
        (request,) = sink.requests
        assert request.json["title"] == SUBJECT
        assert HOSTILE in request.json["message"]
        assert without_commands(request.json["message"])


@pytest.mark.parametrize("more", ["", "?format=markdown", "?format=html", "?blocks=yes", "?blocks=yes&format=markdown"])
def test_slack_is_told_of_no_mention_no_link_and_no_markup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    """Slack takes what stands in angle brackets for commands: none may arrive, whatever the channel's URL says."""
    office = Office()
    with HttpSink(tmp_path) as sink:
        monkeypatch.setenv("HTTPS_PROXY", sink.proxy)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(sink.ca))
        assert office.sent(SLACK + more, LETTER) == TAKEN
        (request,) = sink.requests
        assert "<" not in request.body.decode()
        assert ">" not in request.body.decode()
        (attachment,) = request.json["attachments"]
        if "blocks" in more:
            assert {block["text"]["type"] for block in attachment["blocks"]} == {"plain_text"}
        else:
            assert request.json["mrkdwn"] is False
            assert HOSTILE in unescape(attachment["text"]).replace("&lt;!", "<!")
        assert without_commands(json.dumps(request.json, ensure_ascii=False))
        assert "\n" not in attachment.get("title", "")
    office.postman.close()


@pytest.mark.parametrize("more", [{}, {"format": "text"}])
def test_a_mail_has_one_subject_no_more_recipients_and_no_more_body(office: Office, more: dict[str, str]) -> None:
    with SmtpSink() as sink:
        assert office.sent(sink.url("ops@example.test", **more), LETTER).fault is None
        (mail,) = sink.mails
        assert mail.recipients == ("ops@example.test",)
        head, _, _ = mail.raw.partition(b"\r\n\r\n")
        names = [line.partition(b":")[0] for line in head.split(b"\r\n") if line[:1] not in b" \t"]
        assert names.count(b"Subject") == 1
        assert not {b"Bcc", b"Cc", b"QUIT"} & set(names)
        plain = message_from_bytes(mail.raw, EmailMessage, policy=policy.default)
        assert str(plain["Subject"]) == SUBJECT
        assert HOSTILE in mail.part("text/plain")
        assert without_commands(mail.part("text/plain"))
        if not more:
            page = mail.part("text/html")
            assert "<!channel>" not in page
            assert "<img" not in page
            assert HOSTILE in unescape(page)
