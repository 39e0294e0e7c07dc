"""Hears what the other side answered while a message was sent: numbers only, for Apprise tells no more than yes or no.

Listens in `requests` and `smtplib`, through which Apprise sends nearly everything, by standing in for one method of
each; for the sending child alone. Promises to keep no text of an answer. What goes another way is heard as silence.
"""

import smtplib
from email.utils import parsedate_to_datetime
from typing import Any

import requests
from urllib3.exceptions import ProtocolError, ReadTimeoutError

from kvlogd.model import Fault, Outcome

LONGEST_RETRY_S = 86400.0
"""Who wants to be left alone for longer gets another try after a day."""
_LASTING = frozenset({401, 403, 404, 410})
_TOO_MANY = 429
_SMTP_BYE, _SMTP_LATER, _SMTP_NEVER = 221, 400, 500


class Ear:
    """What was heard of one attempt, from the last `begin` on. The worst answer counts where there are several."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget what was heard before."""
        self._fault: Fault | None = None
        self._status: int | None = None
        self._retry_after_s: float | None = None

    def outcome(self, *, taken: bool) -> Outcome:
        """Return what became of the attempt; `taken` is what Apprise says."""
        if taken:
            return Outcome(None, self._status)
        return Outcome(self._fault or Fault.FAILED, self._status, self._retry_after_s)

    def http(self, status: int, retry_after: str | None, date: str | None) -> None:
        """Hear an answer by HTTP."""
        if self._fault is None:
            self._status, self._fault = status, _http_fault(status)
            self._retry_after_s = None if status < 400 else retry_after_s(retry_after, date)

    def smtp(self, code: int) -> None:
        """Hear an answer of a mail server."""
        if self._fault is None and code > 0 and code != _SMTP_BYE:
            self._status = code
            if code >= _SMTP_LATER:
                self._fault = Fault.REFUSED if code >= _SMTP_NEVER else Fault.BUSY

    def nothing(self, fault: Fault) -> None:
        """Hear that no answer came."""
        if self._fault is None:
            self._fault, self._status = fault, None


def _http_fault(status: int) -> Fault | None:
    if status < 300:
        return None
    if status == _TOO_MANY:
        return Fault.BUSY
    # redirects are not followed: the address is another one now
    return Fault.REFUSED if status < 400 or status in _LASTING else Fault.FAILED


def retry_after_s(value: str | None, date: str | None) -> float | None:
    """Return the seconds of a Retry-After header; one that names a time is held against the answer's own Date."""
    if value is None:
        return None
    if value.strip().isascii() and value.strip().isdigit() and len(value) < 20:
        return min(float(value), LONGEST_RETRY_S)
    try:
        wait_s = (parsedate_to_datetime(value) - parsedate_to_datetime(date or "")).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(wait_s, 0.0), LONGEST_RETRY_S)


def listen(ear: Ear) -> None:
    """Let `ear` hear every answer from now on, in this process."""
    _listen_to_requests(ear)
    _listen_to_smtplib(ear)


def _listen_to_requests(ear: Ear) -> None:
    send = requests.Session.send

    def heard(session: requests.Session, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        try:
            answer = send(session, request, **options)
        except requests.RequestException as error:
            ear.nothing(_silence(error))
            raise
        ear.http(answer.status_code, answer.headers.get("Retry-After"), answer.headers.get("Date"))
        return answer

    requests.Session.send = heard  # type: ignore[assignment, method-assign]


def _silence(error: requests.RequestException) -> Fault:
    if any(isinstance(cause, ReadTimeoutError) for cause in error.args):
        return Fault.TIMEOUT
    if any(isinstance(cause, ProtocolError) for cause in error.args):
        return Fault.FAILED  # hung up on us: somebody is there
    return Fault.UNREACHABLE if isinstance(error, requests.ConnectionError) else Fault.FAILED


def _listen_to_smtplib(ear: Ear) -> None:
    connect, getreply = smtplib.SMTP.connect, smtplib.SMTP.getreply

    def heard_connect(server: smtplib.SMTP, *where: Any, **options: Any) -> tuple[int, bytes]:
        try:
            return connect(server, *where, **options)
        except OSError:
            ear.nothing(Fault.UNREACHABLE)
            raise

    def heard_reply(server: smtplib.SMTP) -> tuple[int, bytes]:
        try:
            code, text = getreply(server)
        except smtplib.SMTPServerDisconnected as error:
            ear.nothing(Fault.TIMEOUT if isinstance(error.__context__, TimeoutError) else Fault.FAILED)
            raise
        ear.smtp(code)
        return code, text

    smtplib.SMTP.connect = heard_connect  # type: ignore[assignment, method-assign]
    smtplib.SMTP.getreply = heard_reply  # type: ignore[assignment, method-assign]
