"""Scenario 51: the clock goes back by an hour between two sends, and nothing sleeps.

Apprise spaces its sends by the host's clock: it slept for the hour and five seconds. The control below shows it.
"""

import subprocess
import sys

import pytest

from tests.sinks import SmtpSink

SCRIPT = """
import datetime, sys, time
from apprise import Apprise, url
from kvlogd.model import Letter
from kvlogd.parcel import Parcel
from kvlogd.reply import Ear
from kvlogd import sender

address, way = sys.argv[1:]
slept = []
time.sleep = slept.append

class Back(datetime.datetime):
    hours = 0
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) - datetime.timedelta(hours=cls.hours)

url.datetime = Back
plain = Apprise()
plain.add(address)
# the child makes a way anew for each message: here one is kept, which is harder
sender._plugin = lambda given, made=sender._plugin(address): made
for hours in (0, 1, 2):
    Back.hours = hours
    if way == "ours":
        word = sender.send(Parcel(address, Letter("s", "t", "<p>t</p>", None)), Ear())
        assert word.outcome.fault is None, word
    else:
        assert plain.notify("t", title="s")
print(*(round(one) for one in slept))
"""


@pytest.mark.parametrize(("way", "slept"), [("ours", []), ("plain apprise", [3605, 3605])])
def test_a_clock_that_goes_back_makes_nobody_sleep(way: str, slept: list[int]) -> None:
    with SmtpSink() as sink:
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT, sink.url(), way], capture_output=True, text=True, check=False, timeout=60
        )
        assert ran.returncode == 0, ran.stderr
        told = [int(word) for word in ran.stdout.split()]
        assert len(told) == len(slept)
        assert all(abs(one - wanted) <= 60 for one, wanted in zip(told, slept, strict=True)), told
        assert len(sink.mails) == 3
