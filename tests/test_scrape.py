"""Asking a server for /metrics, and all that it may do instead of answering."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kvlogd import scrape
from kvlogd.clock import Clock
from kvlogd.model import Scrape
from kvlogd.scrape import Scraper
from tests.metricspage import Told, page
from tests.pageserver import Answer, PageServer, whole
from tests.waiting import until

GOOD = page([Told(running=1, generation_tokens=10)])


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "EVERY_S", 0.02)
    monkeypatch.setattr(scrape, "WHOLE_S", 0.5)
    monkeypatch.setattr(scrape, "MOST_BYTES", 1 << 20)


@contextmanager
def asking(url: str) -> Iterator[Scraper]:
    scraper = Scraper("chat", url, Clock())
    try:
        yield scraper
    finally:
        scraper.close()
        scraper._thread.join(10)
        assert not scraper._thread.is_alive()


def told(scraper: Scraper, count: int) -> list[Scrape]:
    found: list[Scrape] = []

    def is_enough() -> bool:
        found.extend(scraper.taken())
        return len(found) >= count

    until(is_enough)
    return found


def test_each_page_is_told_against_the_one_before() -> None:
    with PageServer(whole(GOOD)) as server, asking(server.url) as scraper:
        first = told(scraper, 1)[0]
        server.answer = whole(page([Told(running=2, generation_tokens=50)]))
        until(lambda: scraper.state.pages > 4)
        found = told(scraper, 3)
        assert scraper.health().state == "reading"
        assert b"GET /metrics HTTP/1.1\r\n" in server.asked[0]
        assert b"kvlogd" in server.asked[0]
    assert (first.since_s, first.generation_tokens, first.running) == (None, None, 1)
    assert sum(one.generation_tokens or 0 for one in found) == 40
    assert all(one.since_s is not None and one.since_s < one.ts_s for one in found)


def hang(server: PageServer) -> Answer:
    def answer(peer: socket.socket, asked: bytes) -> None:
        server.closing.wait(10)

    return answer


def drip_head(server: PageServer) -> Answer:
    def answer(peer: socket.socket, asked: bytes) -> None:
        peer.sendall(b"HTTP/1.1 200 OK\r\n")
        while not server.closing.wait(0.05):
            peer.sendall(b"x")

    return answer


def drip_body(server: PageServer) -> Answer:
    def answer(peer: socket.socket, asked: bytes) -> None:
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + GOOD)
        while not server.closing.wait(0.05):
            peer.sendall(b"#")

    return answer


def endless(server: PageServer) -> Answer:
    def answer(peer: socket.socket, asked: bytes) -> None:
        peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(800):  # 50 MB
            peer.sendall(b"# all work and no play\n" * 2850)

    return answer


def bomb(server: PageServer) -> Answer:
    return whole(GOOD + b"x" * (2 << 20))


def plain(answer: Answer) -> Callable[[PageServer], Answer]:
    return lambda _server: answer


def bare(data: bytes) -> Answer:
    return lambda peer, _asked: peer.sendall(data)


TROUBLES: dict[str, tuple[Callable[[PageServer], Answer], str]] = {
    "hang": (hang, scrape.SLOW),
    "drip in the head": (drip_head, scrape.SLOW),
    "drip in the body": (drip_body, scrape.SLOW),
    "50 MB": (endless, scrape.TOO_LARGE),
    "large with its size": (bomb, scrape.TOO_LARGE),
    "500": (plain(whole(b"no", "500 Internal Server Error")), scrape.FAILED),
    "404": (plain(whole(b"no", "404 Not Found")), scrape.MISSING),
    "401": (plain(whole(b"no", "401 Unauthorized")), scrape.REFUSED),
    "other host": (plain(whole(b"", "302 Found", "Location: http://other.example/metrics")), scrape.ELSEWHERE),
    "for ever": (plain(whole(b"", "307 Temporary Redirect", "Location: /metrics")), scrape.ELSEWHERE),
    "another scheme": (plain(whole(b"", "302 Found", "Location: file:///etc/passwd")), scrape.ELSEWHERE),
    "garbage": (plain(bare(bytes(range(256)) * 40)), scrape.BROKEN),
    "nothing": (plain(bare(b"")), scrape.BROKEN),
    "cut short": (
        plain(bare(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n" + GOOD)),
        scrape.BROKEN,
    ),
    "odd chunk": (
        plain(bare(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")),
        scrape.BROKEN,
    ),
    "another service": (plain(whole(b"# HELP go_goroutines\ngo_goroutines 5\n")), scrape.NO_SERIES),
    "a page of HTML": (plain(whole(b"<html>vllm:num_requests_running</html>")), scrape.NO_SERIES),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_trouble_is_a_state_with_its_mend_and_ends_by_itself(trouble: str) -> None:
    make, mend = TROUBLES[trouble]
    with PageServer(whole(GOOD)) as server, asking(server.url) as scraper:
        told(scraper, 2)
        server.answer = make(server)
        until(lambda: scraper.health().state == "unreadable")
        assert scraper.health().mend == mend
        assert scraper.state.faults == 0
        scraper.taken()
        server.answer = whole(page([Told(generation_tokens=70)]))
        found = told(scraper, 1)[0]
        assert scraper.health().state == "reading"
        # what happened meanwhile is told with the time that it took, none of it is made up
        assert (found.generation_tokens, found.since_s is not None) == (60, True)
    assert all(thread.name != "metrics chat" for thread in threading.enumerate())


def test_a_redirect_within_the_server_is_followed() -> None:
    def answer(peer: socket.socket, asked: bytes) -> None:
        here = asked.startswith(b"GET /metrics/ ")
        (whole(GOOD) if here else whole(b"", "307 Temporary Redirect", "Location: /metrics/"))(peer, asked)

    with PageServer(answer) as server, asking(server.url) as scraper:
        assert told(scraper, 1)[0].running == 1


def test_a_page_in_chunks_is_read() -> None:
    parts = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (GOOD[:100], GOOD[100:])) + b"0\r\n\r\n"

    def answer(peer: socket.socket, asked: bytes) -> None:
        peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + parts)

    with PageServer(answer) as server, asking(server.url) as scraper:
        assert told(scraper, 1)[0].running == 1


def test_a_server_that_is_away_is_waited_for_in_patience() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with asking(f"http://127.0.0.1:{port}/metrics") as scraper:
        assert scraper.health().state == "waiting"
        until(lambda: scraper.health().state == "unreadable")
        assert scraper.health().mend == scrape.AWAY


def test_counters_that_began_anew_are_told_as_another_process() -> None:
    with PageServer(whole(page([Told(generation_tokens=900)]))) as server, asking(server.url) as scraper:
        told(scraper, 1)
        server.answer = whole(page([Told(generation_tokens=5)], start_s=1.8e9))
        until(lambda: any(one.restarted for one in scraper.taken()))


def test_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with PageServer(whole(GOOD)) as server, asking(server.url) as scraper:
        assert told(scraper, 1)


def test_what_nobody_takes_is_dropped_from_the_old_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with PageServer(whole(GOOD)) as server, asking(server.url) as scraper:
        until(lambda: scraper.state.pages > scrape.KEPT_PAGES + 5)
        found = scraper.taken()
    assert len(found) <= scrape.KEPT_PAGES + 1
    assert found[0].since_s is not None


def test_a_system_without_a_thread_to_spare_is_a_failure_and_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(scrape, "EVERY_S", 0.01)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refused)
        scraper = Scraper("chat", "http://127.0.0.1:9/metrics", Clock())
        until(lambda: not scraper.is_waiting() and scraper.health().state == "unreadable")
        assert scraper.health().mend == scrape.NO_THREAD
    try:
        until(lambda: not scraper.is_waiting() and scraper.health().mend == scrape.AWAY)
    finally:
        scraper.close()
