import pytest

from kvlogd import bulletin
from kvlogd.layout import MOST_CHARS
from kvlogd.model import Fault, Letter, Severity
from tests.lines import START_S

AT_S = START_S + 3600


def test_a_test_says_that_nothing_is_wrong() -> None:
    found = bulletin.trial("ops-mail", host="gpu-07", at_s=START_S)
    assert found.subject == "[test gpu-07] test of channel ops-mail by kvlogd"
    assert found.severity is None
    assert "Nothing is wrong" in found.text
    assert "Nothing is wrong" in found.html


@pytest.mark.parametrize("fault", Fault)
def test_a_channel_that_takes_nothing_is_told_with_what_to_do(fault: Fault) -> None:
    found = bulletin.channel_down("ops", fault, START_S, host="gpu-07", at_s=START_S + 7200, status=403, waiting=2)
    assert found.subject.startswith("[warning gpu-07] channel ops takes no messages: ")
    assert found.severity is Severity.WARNING
    assert "since: 2026-11-29 14:00:00 UTC, for 2 h" in found.text
    assert "its answer: 403" in found.text
    assert "kept for it: 2 messages" in found.text
    assert "kvlogd notify test ops" in found.text


def test_a_rule_that_fails() -> None:
    found = bulletin.rule_broken("mine", ["a/0"], "KeyError", START_S, host="", at_s=START_S + 60)
    assert found.subject == "[warning] rule mine fails and finds nothing, a/0"
    assert "why: KeyError" in found.text


@pytest.mark.parametrize(
    ("scopes", "subject", "listed"),
    [
        ([], "rule mine has had nothing to judge for 1 d", ""),
        (["a/0"], "rule mine has had nothing to judge for 1 d, a/0", ""),
        ([f"a/{i}" for i in range(100)], "rule mine has had nothing to judge for 1 d on 100 engines", "and 92 more"),
    ],
)
def test_a_rule_that_sees_nothing(scopes: list[str], subject: str, listed: str) -> None:
    found = bulletin.no_data("mine", scopes, START_S, host="gpu-07", at_s=START_S + 86400)
    assert found.subject == f"[no data gpu-07] {subject}"
    assert listed in found.text


def test_a_rule_without_a_gpu_to_look_at_says_where_to_look() -> None:
    found = bulletin.no_data("gpu-lost", ["gpu"], START_S, host="gpu-07", at_s=START_S + 86400)
    assert "which GPUs and servers are read" in found.text
    assert "requests" not in found.text


HOSTILE = "x" * 200 + "\r\nBcc: y <script>"


@pytest.mark.parametrize(
    "found",
    [
        bulletin.trial(HOSTILE, host=HOSTILE, at_s=START_S),
        bulletin.channel_down(HOSTILE, Fault.FAILED, START_S, host=HOSTILE, at_s=AT_S),
        bulletin.rule_broken("mine", [HOSTILE] * 50, HOSTILE, START_S, host=HOSTILE, at_s=AT_S),
        bulletin.no_data("mine", [HOSTILE] * 50, START_S, host=HOSTILE, at_s=AT_S),
    ],
)
def test_nothing_from_outside_steers_anything(found: Letter) -> None:
    assert found.subject.isprintable()
    assert len(found.subject) <= 150
    assert len(found.text) <= MOST_CHARS
    assert "\r" not in found.text + found.html
    assert "<script>" not in found.html
