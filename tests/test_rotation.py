from pathlib import Path

import pytest

from kvlogd.rotation import Rotating, rotating

LOG = Path("/var/log/vllm/chat.log")


@pytest.mark.parametrize(
    ("text", "copytruncate", "packs"),
    [
        ("/var/log/vllm/*.log {\n daily\n copytruncate\n}\n", True, False),
        ("compress\n/var/log/vllm/chat.log {\n compress\n}\n", False, True),
        ('/var/log/other.log\n"/var/log/vllm/chat.log" {\n compress\n delaycompress\n}\n', False, False),
        ("/var/log/vllm/*.log {\n # copytruncate\n postrotate\n  echo copytruncate\n endscript\n}\n", False, False),
    ],
)
def test_what_bears_on_reading(tmp_path: Path, text: str, copytruncate: bool, packs: bool) -> None:
    config = tmp_path / "vllm"
    config.write_text(text)
    assert rotating(LOG, (tmp_path,)) == Rotating(config, copytruncate, packs)
    assert rotating(LOG, (config,)) == Rotating(config, copytruncate, packs)


def test_a_log_that_nobody_rotates(tmp_path: Path) -> None:
    (tmp_path / "vllm").write_text("/var/log/vllm/other.log {\n copytruncate\n}\n")
    (tmp_path / "odd").write_bytes(b"\xff\xfe{{{}")
    (tmp_path / "long").write_bytes(b"prerotate\n" * 100_000)
    assert rotating(LOG, (tmp_path, tmp_path / "none")) is None
