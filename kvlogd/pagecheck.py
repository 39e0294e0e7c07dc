"""Asks a source's /metrics once, as `kvlogd doctor` does: is it reached, is it vLLM's, and which engines are on it.

Asks by the daemon's own `Scraper`, so that what hinders the one hinders the other, and waits for it no longer than
`ANSWER_S`, whatever a server or a look-up of its name does.
"""

from collections.abc import Iterator
from urllib.parse import urlsplit

from kvlogd.checkup import Item, Mark
from kvlogd.clock import Clock, Waker
from kvlogd.model import Scrape
from kvlogd.quantity import count_text
from kvlogd.scrape import SLOW, WHOLE_S, Scraper

ANSWER_S = WHOLE_S + 2.0
_LOOK_S = 0.05


def items(name: str, url: str, clock: Clock) -> Iterator[Item]:
    """Tell what a source's /metrics answers."""
    link, parts = f"{name}: /metrics", urlsplit(url)
    place = f"{parts.netloc}{parts.path or '/metrics'}"
    found, unread, fault = _asked(name, url, clock)
    if not found:
        what, _, mend = (fault or SLOW).partition(": ")
        yield Item(link, Mark.FAIL, f"{place}: {what}", mend)
        return
    engines = ", ".join(str(one.engine_index) for one in found)
    yield Item(link, Mark.OK, f"{place} answers: {count_text(len(found), 'engine')} of vLLM ({engines})")
    blind = [str(one.engine_index) for one in found if one.kv_usage is None or one.running is None]
    if blind:
        what = f"it says nothing of pool or load of {count_text(len(blind), 'engine')} ({', '.join(blind)})"
        yield Item(link, Mark.WARN, what, "name the server's own /metrics, not that of a router before it")
    if unread:
        what = f"{count_text(unread, 'line')} of vLLM's could not be read"
        yield Item(link, Mark.WARN, what, "see whether a newer kvlogd reads this vLLM; else report it")


def _asked(name: str, url: str, clock: Clock) -> tuple[list[Scrape], int, str]:
    """Return the engines of one page and how many lines of it could not be read, or what is wrong and its mend."""
    scraper, waker, end_s = Scraper(name, url, clock), Waker(), clock.monotonic_s() + ANSWER_S
    try:
        while not (scraper.state.pages or scraper.state.failed) and clock.monotonic_s() < end_s:
            waker.wait(_LOOK_S)
        return scraper.taken(), scraper.state.unread, scraper.state.mend
    finally:
        scraper.close()
        waker.close()
