from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from kvlogd.errors import ConfigError
from kvlogd.reading import GpuSample, HostSample
from kvlogd.sidecar import gpu_samples, host_samples, read_gpu, read_host

BERLIN = ZoneInfo("Europe/Berlin")
HEADER = (
    "timestamp, index, uuid, utilization.gpu [%], memory.used [MiB], memory.total [MiB], temperature.gpu, "
    "power.draw [W], clocks.current.sm [MHz]"
)
ROW = (
    "2025/08/07 15:33:08.123, 0, GPU-6f1b2c3d-aaaa-bbbb-cccc-0123456789ab, 96 %, 74312 MiB, 81559 MiB, 61, "
    "632.00 W, 1980 MHz"
)
TS_S = datetime(2025, 8, 7, 15, 33, 8, 123000, tzinfo=UTC).timestamp()


def refuse(error: ConfigError) -> None:
    raise error


def gpus(text: str, errors: list[ConfigError] | None = None) -> list[GpuSample]:
    """Read a whole text; without `errors` to put it in, a complaint fails the test."""
    complaints: list[ConfigError] = [] if errors is None else errors
    samples = list(gpu_samples(text.splitlines(keepends=True), "gpu.csv", UTC, complaints.append))
    assert errors is not None or complaints == []
    return samples


def hosts(text: str, errors: list[ConfigError] | None = None) -> list[HostSample]:
    complaints: list[ConfigError] = [] if errors is None else errors
    samples = list(host_samples(text.splitlines(keepends=True), "host.csv", UTC, complaints.append))
    assert errors is not None or complaints == []
    return samples


def test_reads_what_nvidia_smi_prints() -> None:
    assert gpus(f"{HEADER}\n{ROW}\n") == [GpuSample(TS_S, "0", 0.96, 74312, 81559, 61, 632, 1980)]


def test_reads_the_same_without_units() -> None:
    bare = ROW.replace(" %", "").replace(" MiB", "").replace(" W", "").replace(" MHz", "")
    assert gpus(f"{HEADER}\r\n{bare}\r\n") == gpus(f"{HEADER}\n{ROW}\n")


@pytest.mark.parametrize("unknown", ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[GPU requires reset]", ""])
def test_unknown_is_none(unknown: str) -> None:
    sample = gpus(f"{HEADER}\n{ROW.replace('96 %', unknown).replace('632.00 W', unknown)}\n")[0]
    assert (sample.util, sample.power_w, sample.memory_used_mib) == (None, None, 74312)


def test_columns_that_are_not_there_are_none_and_unknown_ones_are_ignored() -> None:
    text = "timestamp, fan.speed [%], index, pstate\n2025/08/07 15:33:08.123, 30 %, 3, P0\n"
    assert gpus(text) == [GpuSample(TS_S, "3", None, None, None, None, None, None)]


def test_gpu_without_index_goes_by_its_uuid() -> None:
    text = "timestamp, uuid, power.draw [W]\n2025/08/07 15:33:08.123, GPU-6f1b2c3d-aaaa, 70.5 W\n"
    assert [(sample.gpu, sample.power_w) for sample in gpus(text)] == [("GPU-6f1b2c3d-aaaa", 70.5)]


def test_header_in_mid_file_begins_new_columns() -> None:
    text = f"{HEADER}\n{ROW}\ntimestamp, index, power.draw [W]\n2025/08/07 15:33:09, 1, 80.00 W\n"
    assert [(sample.gpu, sample.power_w) for sample in gpus(text)] == [("0", 632), ("1", 80)]


def test_of_two_columns_for_one_field_the_first_counts() -> None:
    text = "timestamp, index, power.draw [W], power.draw.instant [W]\n2025/08/07 15:33:09, 1, 80.00 W, 95.00 W\n"
    assert gpus(text)[0].power_w == 80


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("2025/08/07 15:33:08.123, 0, 96 %", "3 columns, where the header names 9"),
        (ROW.replace("2025/08/07", "yesterday"), "the time is none like"),
        (ROW.replace("74312 MiB", "74 GiB"), "memory_used_mib is no number in MiB"),
        (ROW.replace("74312 MiB", "-1 MiB"), "memory_used_mib is out of range"),
        (ROW.replace("632.00 W", "nan W"), "power_w is no number in W"),
        (ROW.replace("96 %", "101 %"), "util is more than 100 %"),
        (ROW.replace(" 0, GPU-6f1b2c3d-aaaa-bbbb-cccc-0123456789ab", " first, none"), "neither index nor uuid"),
    ],
)
def test_bad_row_is_named_and_the_others_are_read(row: str, what: str) -> None:
    errors: list[ConfigError] = []
    samples = gpus(f"{HEADER}\n{ROW}\n{row}\n{ROW}\n", errors)
    assert len(samples) == 2
    assert [error.where for error in errors] == ["gpu.csv:3"]
    assert what in errors[0].what
    assert "nvidia-smi --query-gpu=" in errors[0].mend


def test_many_bad_rows_are_one_complaint() -> None:
    errors: list[ConfigError] = []
    gpus(f"{HEADER}\n{ROW}\nx\nx\nx\n", errors)
    assert [(error.where, error.what) for error in errors] == [
        ("gpu.csv:3", "1 columns, where the header names 9 (rows that cannot be read: 3)")
    ]


def test_file_without_header_is_refused_rather_than_guessed() -> None:
    errors: list[ConfigError] = []
    assert gpus(f"{ROW}\n", errors) == []
    assert [(error.where, error.what) for error in errors] == [
        ("gpu.csv:1", "no header line tells which column is what")
    ]
    assert "without noheader" in errors[0].mend


@pytest.mark.parametrize(
    ("header", "what"),
    [
        ("timestamp, power.draw [W]", "there is no column index or uuid"),
        ("index, power.draw [W]", "there is no column timestamp"),
        ("timestamp, index, power.draw [mW]", "the column power.draw must be in W"),
    ],
)
def test_header_that_lacks_what_is_needed(header: str, what: str) -> None:
    errors: list[ConfigError] = []
    gpus(f"{header}\n", errors)
    assert [(error.where, error.what) for error in errors] == [("gpu.csv:1", what)]


@pytest.mark.parametrize("text", ["", "\n\n", f"{HEADER}\n"])
def test_file_without_samples_is_said(text: str) -> None:
    errors: list[ConfigError] = []
    assert gpus(text, errors) == []
    assert [(error.where, error.what) for error in errors] == [("gpu.csv", "no samples in it")]


def test_complaint_quotes_nothing_of_the_file() -> None:
    errors: list[ConfigError] = []
    gpus(f"{HEADER}\nCANARY\n{ROW.replace('96 %', 'CANARY')}\n{ROW.replace('2025', 'CANARY')}\n", errors)
    hosts("ts,rss_mib\nCANARY,CANARY\n", errors)
    assert len(errors) == 2
    assert "CANARY" not in "".join(map(str, errors))


def test_reads_host_memory() -> None:
    text = "ts,rss_mib,cpu_cores\n2026-05-29T20:10:58,6152.6,1.30\n2026-05-29T22:10:58+02:00,6161,1\n1780085459.5,7,1\n"
    first_s = datetime(2026, 5, 29, 20, 10, 58, tzinfo=UTC).timestamp()
    assert hosts(text) == [
        HostSample(first_s, None, 6152.6),
        HostSample(first_s, None, 6161),
        HostSample(1780085459.5, None, 7),
    ]


def test_host_memory_may_name_its_source() -> None:
    assert [sample.source for sample in hosts("ts,source,rss_mib\n1780085458,chat,1\n1780085459,,1\n")] == [
        "chat",
        None,
    ]


def test_host_row_without_memory_is_bad() -> None:
    errors: list[ConfigError] = []
    assert hosts("ts,rss_mib\n1780085458,\n", errors) == []
    assert [(error.where, error.what) for error in errors] == [("host.csv:2", "rss_mib is unknown")]


def test_naive_stamps_are_in_the_zone_given() -> None:
    lines = ["ts,rss_mib", "2026-07-01T02:00:00,1"]
    samples = list(host_samples(lines, "host.csv", BERLIN, refuse))
    assert samples[0].ts_s == datetime(2026, 7, 1, tzinfo=UTC).timestamp()


def test_hour_that_comes_twice_is_told_by_its_place() -> None:
    stamps = ["02:30:00", "02:59:00", "02:30:00", "02:59:00", "03:10:00"]
    lines = ["ts,rss_mib", *(f"2026-10-25T{stamp},1" for stamp in stamps)]
    times = [sample.ts_s for sample in host_samples(lines, "host.csv", BERLIN, refuse)]
    first_s = datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()
    assert [(time_s - first_s) / 60 for time_s in times] == [0, 29, 60, 89, 100]


def drained(samples: Iterator[GpuSample] | Iterator[HostSample]) -> int:
    return sum(1 for _ in samples)


def test_reads_files(tmp_path: Path) -> None:
    (tmp_path / "gpu.csv").write_bytes(b"\xef\xbb\xbf" + f"{HEADER}\r\n{ROW}".encode())
    (tmp_path / "host.csv").write_text("ts,rss_mib\n1780085458,1\n")
    assert drained(read_gpu(tmp_path / "gpu.csv", UTC, refuse)) == 1
    assert drained(read_host(tmp_path / "host.csv", UTC, refuse)) == 1


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    errors: list[ConfigError] = []
    assert drained(read_gpu(tmp_path / "gone.csv", UTC, errors.append)) == 0
    assert drained(read_host(tmp_path, UTC, errors.append)) == 0
    assert [(error.where, error.what) for error in errors] == [
        (str(tmp_path / "gone.csv"), "cannot be read: No such file or directory"),
        (str(tmp_path), "not a regular file"),
    ]


def test_binary_file_is_one_complaint(tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv"
    path.write_bytes(bytes(range(256)) * 512)
    errors: list[ConfigError] = []
    assert drained(read_gpu(path, UTC, errors.append)) == 0
    assert len(errors) == 1
    assert errors[0].where == f"{path}:1"
