"""What all tests share: none asserts how fast it is, for a loaded machine must not fail one; and two stand-in GPUs."""

import signal
from pathlib import Path

import pytest
from hypothesis import settings

from tests.nvml.driver import Driver

settings.register_profile("kvlogd", deadline=None)
settings.load_profile("kvlogd")
# what is begun in the background of a script ignores ^C, and so would all that it begins
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver(tmp_path, 2)
    for name in ("LD_LIBRARY_PATH", "NVML_STUB"):
        monkeypatch.setenv(name, driver.environment[name])
    return driver
