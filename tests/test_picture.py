import struct
import subprocess
import sys

import pytest

from kvlogd.model import Occupancy, Panel
from kvlogd.picture import png, span_of
from tests.lines import START_S

HOUR = 3600.0
TIMES = tuple(START_S + 60 * i for i in range(120))
FREE = tuple(None if 50 < i < 60 else 0.9 - 0.005 * i for i in range(120))
LOAD = tuple(None if free is None else 8.0 for free in FREE)
LEAK = Panel(
    "vllm.log/1", TIMES, FREE, LOAD, LOAD, START_S + 1800, START_S + 7000, (START_S + 3500,),
    ((START_S + 1800, 0.75), (START_S + 4 * HOUR, 0.0)), START_S + 4 * HOUR,
)  # fmt: skip
NOTHING = tuple(None for _ in TIMES)
GROWTH = LEAK._replace(
    engine="gpu/GPU-5e1f0000", running=NOTHING, waiting=NOTHING,
    trend=((START_S, 60.0), (START_S + 4 * HOUR, 80.0)),
    memory=Occupancy(tuple(None if free is None else 70 - 10 * free for free in FREE), 80.0, is_device=True),
)  # fmt: skip


@pytest.mark.parametrize(
    "panel",
    [
        LEAK,
        GROWTH,
        GROWTH._replace(free_share=NOTHING, trend=None, full_s=None, over_s=START_S + 8000),
        GROWTH._replace(memory=Occupancy((*NOTHING[1:], 0.0), None, is_device=False), trend=None),
        LEAK._replace(trend=None, full_s=None, over_s=START_S + 8000, restarts_s=()),
        LEAK._replace(engine="$\\frac{1}{0}$ \x1b[31m 世界 \N{PILE OF POO}" * 9),
        LEAK._replace(ts_s=TIMES[:1], free_share=FREE[:1], running=LOAD[:1], waiting=(None,), trend=None, full_s=None),
        LEAK._replace(full_s=START_S + 90 * 86400, trend=((START_S, 0.9), (START_S + 90 * 86400, 0.0))),
        LEAK._replace(firing_s=START_S - HOUR, running=tuple(0.0 for _ in TIMES)),
    ],
    ids=["leak", "memory", "memory alone", "memory once", "over", "odd label", "one sample", "far away", "idle"],
)
def test_a_picture_of_one_size_comes_out(panel: Panel) -> None:
    found = png(panel)
    assert found is not None
    assert found.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", found[16:24]) == (960, 840)
    assert len(found) < 200_000


def test_nothing_to_draw_is_no_picture() -> None:
    assert png(LEAK._replace(free_share=tuple(None for _ in TIMES))) is None
    assert png(GROWTH._replace(memory=Occupancy(NOTHING, 80.0, is_device=True))) is None


def test_the_time_reaches_to_the_full_pool_if_that_is_not_far() -> None:
    assert span_of(LEAK)[1] == pytest.approx(TIMES[-1] + 0.5 * (TIMES[-1] - TIMES[0]))
    near = LEAK._replace(trend=((START_S, 0.9), (TIMES[-1] + 60, 0.0)))
    assert span_of(near) == (TIMES[0], TIMES[-1] + 60)
    assert span_of(LEAK._replace(trend=None)) == (TIMES[0], TIMES[-1])


WITHOUT = """
import sys
sys.modules["matplotlib"] = None
from kvlogd.picture import png
from tests.test_picture import LEAK
print(png(LEAK))
"""


def test_without_matplotlib_there_is_none() -> None:
    run = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert run.stdout == "None\n"


def test_naming_the_module_does_not_load_matplotlib() -> None:
    probe = "import kvlogd.picture, sys; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout == "False\n"
