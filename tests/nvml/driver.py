"""A driver without a GPU: the real nvidia-ml-py on a stand-in library, whose answers a test may change."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "stub.c"
UUID = "GPU-5e1f0000-0000-4000-8000-{:012d}"
MIB = 1 << 20
LOST, RESET_REQUIRED, NO_PERMISSION, NOT_SUPPORTED, UNKNOWN, MISMATCH, NOT_LOADED = 15, 16, 4, 3, 999, 18, 9


class Driver:
    """The stand-in, built into a folder; skips the test where there is no C compiler."""

    def __init__(self, folder: Path, count: int = 1, *defines: str) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler: the stand-in for NVIDIA's library cannot be built")
        self.folder = folder / "driver"
        self.folder.mkdir(exist_ok=True)
        self.answers = self.folder / "answers"
        self.library = self.folder / "libnvidia-ml.so.1"
        flags = ["-O1", "-Wall", "-Wextra", "-fPIC", "-shared", "-Wl,-soname,libnvidia-ml.so.1"]
        defined = [f"-D{define}" for define in defines]
        subprocess.run([compiler, *flags, *defined, "-o", str(self.library), str(SOURCE)], check=True)
        self._lines: dict[str, str] = {}
        self.set(count=count)

    @property
    def environment(self) -> Mapping[str, str]:
        """What makes a process meet this driver."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self.folder), "NVML_STUB": str(self.answers)}

    def set(self, **values: object) -> None:
        """Change answers: `set(used=…)` for all GPUs, `set(**{"1.used": …})` for one; None takes one back."""
        for name, value in values.items():
            if value is None:
                self._lines.pop(name, None)
            else:
                self._lines[name] = str(value)
        new = self.answers.with_suffix(".new")
        new.write_text("".join(f"{name} {value}\n" for name, value in self._lines.items()))
        new.replace(self.answers)

    def heal(self) -> None:
        """Take back all faults."""
        self.set(**{name: None for name in self._lines if name.endswith((".err", ".ms"))})
        self.set(**{name: None for name in list(self._lines) if name == "err"})

    def remove(self) -> None:
        """Take the library away, as on a host without a driver."""
        self.library.rename(self.library.with_suffix(".away"))

    def install(self) -> None:
        """Put the library back."""
        self.library.with_suffix(".away").rename(self.library)
