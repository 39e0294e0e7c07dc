"""What the doctor says of a /metrics: real servers of this host that answer, fail, hang, or are somebody else's."""

import re

import pytest

from kvlogd import scrape
from kvlogd.checkup import Item, Mark
from kvlogd.clock import Clock
from kvlogd.pagecheck import items
from tests.metricspage import Told, page
from tests.pageserver import Answer, PageServer, whole

GOOD = page([Told(), Told(engine=1)])


def asked(answer: Answer, query: str = "") -> tuple[list[Item], PageServer]:
    with PageServer(answer) as server:
        return list(items("chat", f"{server.url}{query}", Clock())), server


def test_a_page_in_order_names_its_engines_and_is_asked_for_once() -> None:
    found, server = asked(whole(GOOD), "?key=canary-4711")
    assert found == [
        Item("chat: /metrics", Mark.OK, f"127.0.0.1:{server.port}/metrics answers: 2 engines of vLLM (0, 1)")
    ]
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("answer", "what", "mend"),
    [
        (whole(b"go_gc_duration_seconds 1\n"), "the page has no series of vLLM", "is this its /metrics"),
        (whole(b"", "401 Unauthorized"), "the server asks for a key, and", "leave /metrics open"),
        (whole(b"", "404 Not Found"), "the server has no such page", "is the path right?"),
        (lambda peer, _: peer.sendall(b"SSH-2.0-x\r\n"), "the answer is no HTTP", "is this vLLM's"),
        (lambda peer, _: peer.recv(1), "the server does not answer within", "is it overloaded"),
    ],
    ids=["other", "key", "path", "ssh", "hang"],
)  # fmt: skip
def test_what_hinders_is_told_with_its_mend(
    answer: Answer, what: str, mend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "WHOLE_S", 0.5)
    [item], server = asked(answer)
    assert (item.link, item.mark) == ("chat: /metrics", Mark.FAIL)
    assert item.what.startswith(f"127.0.0.1:{server.port}/metrics: {what}")
    assert item.mend.startswith(mend)


def test_a_server_that_is_down() -> None:
    with PageServer(whole(GOOD)) as server:
        url = server.url
    [item] = items("chat", url, Clock())
    assert (item.mark, item.mend) == (Mark.FAIL, "is the server up, and is this its address and port?")


def test_a_page_that_lacks_what_counts_and_one_that_is_half_understood() -> None:
    blind = re.sub(rb'vllm:kv_cache_usage_perc\{engine="1".*\n', b"", GOOD)
    found, _ = asked(whole(blind + b'vllm:num_requests_running{engine="x"} 1\n'))
    assert [item.mark for item in found] == [Mark.OK, Mark.WARN, Mark.WARN]
    assert "nothing of pool or load of 1 engine (1)" in found[1].what
    assert "1 line of vLLM's could not be read" in found[2].what
