"""What became of a message, in words, and what to do about one that did not get out. Pure."""

from kvlogd.model import Fault, Outcome
from kvlogd.quantity import duration_text

_REFUSED = {
    401: "the user name, password or token of the URL is wrong or was revoked",
    403: "the token of the URL is wrong or was revoked, or may not write there",
    404: "the webhook or its channel is gone: make a new one",
    410: "the webhook or its channel is gone: make a new one",
    535: "the mail server takes neither this user nor this password",
    550: "the mail server knows no such address, or does not take mail from this sender",
}
_ADVICE = {
    Fault.REFUSED: "hold the URL against what the service shows",
    Fault.BUSY: "it goes on by itself; where it stays so, send less: fewer severities, a longer repeat_every",
    Fault.UNREACHABLE: "check host name, port, proxy, certificate and firewall",
    Fault.TIMEOUT: "the other side does not answer: check it, and the firewall; ?cto= and ?rto= in the URL wait longer",
    Fault.UNUSABLE: "run kvlogd check",
    Fault.FAILED: "look into the log of the other side; where nothing arrived there, try kvlogd notify test again",
}


def told(outcome: Outcome) -> str:
    """Return what became of a message in a few words."""
    number = "" if outcome.status is None else f" ({outcome.status})"
    later = "" if not outcome.retry_after_s else f", again after {duration_text(outcome.retry_after_s)}"
    return f"{'sent' if outcome.fault is None else outcome.fault.value}{number}{later}"


def advice(outcome: Outcome) -> str:
    """Return what to do; nothing where the message was taken."""
    if outcome.fault is None:
        return ""
    if outcome.fault is Fault.REFUSED and outcome.status is not None:
        if 300 <= outcome.status < 400:
            return "the address has moved, and redirects are not followed: take the new one"
        return _REFUSED.get(outcome.status, _ADVICE[Fault.REFUSED])
    return _ADVICE[outcome.fault]
