"""What is read of a page of /metrics, in every dialect, and what a hostile page can do: nothing."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlogd.exposition import MOST_ENGINES, Page, read
from kvlogd.model import Latency
from tests.metricspage import Told, page

CANARY = "KVLOGD-CANARY-77aa"
TOLD = Told(
    running=3, waiting=2, kv_usage=4 / 59, prompt_tokens=1000, generation_tokens=500, preemptions=7, stopped=5,
    aborted=2, itl=(0.02, 0.04, 0.3), ttft=(0.2, 20.0),
)  # fmt: skip


def values(text: str) -> dict[str, float]:
    """Return what is read of some lines about one engine."""
    (reading,) = read(text.encode()).readings
    return dict(reading.values)


@pytest.mark.parametrize("old", [False, True])
def test_a_page_is_read_in_old_and_new_words(old: bool) -> None:
    found = read(page([TOLD], old=old, start_s=1.5e9))
    (reading,) = found.readings
    assert found.process_start_s == 1.5e9
    assert found.unread == 0
    assert reading.engine_index == 0
    assert reading.values == {
        "running": 3, "waiting": 2, "kv_usage": 4 / 59, "prompt_tokens": 1000, "generation_tokens": 500,
        "preemptions": 7, "finished": 7, "aborted": 2, "blocks": 4096, "block_size": 16,
    }  # fmt: skip
    itl = reading.histograms[Latency.ITL]
    assert itl.bounds[:3] == (0.01, 0.025, 0.05)
    assert itl.counts == (0, 1, 2, 2, 2, 2, 3, 3)
    assert itl.sum_s == pytest.approx(0.36)
    assert reading.histograms[Latency.TTFT].counts[-2:] == (1, 2)


def test_each_engine_has_a_reading_of_its_own() -> None:
    found = read(page([TOLD, TOLD._replace(engine=1, kv_usage=0.5)]))
    assert [(one.engine_index, one.values["kv_usage"]) for one in found.readings] == [(0, 4 / 59), (1, 0.5)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('vllm:num_requests_running{model_name="a"} 4.0', {"running": 4}),  # V0: no engine
        ("vllm:num_requests_running 4", {"running": 4}),
        ("vllm:num_requests_running{} 4", {"running": 4}),
        ('vllm:num_requests_running{engine="0",} 4 1700000000000', {"running": 4}),  # comma, stamp
        ('vllm:num_preemptions_total{engine="0"} 4 # {trace_id="x"} 1 1.7', {"preemptions": 4}),  # OpenMetrics
        ('vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 2', {"waiting_capacity": 2}),
        ('vllm:num_requests_waiting_by_reason{reason="deferred"} 3', {"waiting_deferred": 3}),
        ("vllm:kv_cache_usage_perc 0.5\nvllm:gpu_cache_usage_perc 0.4", {"kv_usage": 0.5}),
        ("vllm:gpu_cache_usage_perc 0.4\nvllm:kv_cache_usage_perc 0.5", {"kv_usage": 0.5}),
        ("vllm:num_requests_running 4\nvllm:num_requests_running 5", {"running": 4}),  # the first of two
        ('vllm:cache_config_info{num_gpu_blocks="None",block_size="16"} 1.0', {"block_size": 16}),
        ("vllm:num_requests_running 4\r\nvllm:num_requests_waiting 1\r\n# EOF\r\n", {"running": 4, "waiting": 1}),
        ("vllm:num_requests_running 4\nvllm:kv_cache_usage_perc NaN", {"running": 4}),
    ],
)
def test_dialects(text: str, wanted: dict[str, float]) -> None:
    assert values(text) == wanted
    assert read(text.encode()).unread == 0


@pytest.mark.parametrize(
    "text",
    [
        'vllm:num_requests_running{engine="0" 4',
        'vllm:num_requests_running{engine="x"} 4',
        'vllm:num_requests_running{engine="-1"} 4',
        'vllm:num_requests_running{engine="123456"} 4',
        'vllm:num_requests_running{engine="0"}',
        'vllm:num_requests_running{engine="0"} four',
        'vllm:num_requests_running{engine="0"} -4',
        "vllm:kv_cache_usage_perc 1.5",
        "vllm:num_requests_running{" + 'a="b",' * 4000 + "} 1",
        'vllm:time_to_first_token_seconds_bucket{le="0.1"} 1\nvllm:time_to_first_token_seconds_sum 1',  # no last bucket
        'vllm:time_to_first_token_seconds_bucket{le="0.1"} 3\nvllm:time_to_first_token_seconds_bucket{le="+Inf"} 1\n'
        "vllm:time_to_first_token_seconds_sum 1",
        'vllm:time_to_first_token_seconds_bucket{le="soon"} 3',
    ],
)
def test_what_cannot_be_is_counted_and_left_out(text: str) -> None:
    found = read(text.encode())
    assert found.unread >= 1
    assert found.readings == ()


def test_a_label_cannot_pose_as_another() -> None:
    text = 'vllm:num_requests_running{model_name="a\\",engine=\\"7",engine="1"} 4'
    (reading,) = read(text.encode()).readings
    assert reading.engine_index == 1


def test_names_of_models_and_adapters_are_not_kept() -> None:
    text = (
        page([TOLD], model=CANARY)
        + (
            f'vllm:lora_requests_info{{running_lora_adapters="{CANARY}"}} 1\nvllm:{CANARY} 1\n'
            f'vllm:request_success_total{{finished_reason="{CANARY}"}} 1\n{CANARY}'
        ).encode()
    )
    assert CANARY not in repr(read(text))


def test_engines_without_end_are_cut_off() -> None:
    found = read("".join(f'vllm:num_requests_running{{engine="{i}"}} 1\n' for i in range(2 * MOST_ENGINES)).encode())
    assert len(found.readings) == MOST_ENGINES
    assert found.unread == MOST_ENGINES


PIECES = st.sampled_from([
    b"vllm:num_requests_running", b"vllm:time_to_first_token_seconds_bucket", b"vllm:request_success_total", b"{", b"}",
    b'engine="0"', b'le="+Inf"', b'le="', b",", b'"', b"\\", b" ", b"1", b"1e999", b"NaN", b"-", b"\n", b"\r", b"#",
    b"\x00", b"\xff", b"_sum", b"vllm:", b"process_start_time_seconds",
])  # fmt: skip


@given(st.lists(PIECES | st.binary(max_size=8), max_size=60).map(b"".join))
def test_whatever_stands_there_is_read_or_passed_over(text: bytes) -> None:
    found = read(text)
    assert isinstance(found, Page)
    for reading in found.readings:
        assert all(math.isfinite(value) and value >= 0 for value in reading.values.values())
        for histogram in reading.histograms.values():
            assert list(histogram.counts) == sorted(histogram.counts)
            assert math.isinf(histogram.bounds[-1])


@given(st.data())
def test_a_damaged_page_never_gives_a_number_that_was_not_there(data: st.DataObject) -> None:
    text = page([TOLD])
    at = data.draw(st.integers(0, len(text)))
    for reading in read(text[:at]).readings:
        assert set(reading.values.values()) <= {
            0,
            1,
            2,
            3,
            4,
            5,
            7,
            10,
            16,
            40,
            50,
            100,
            409,
            500,
            1000,
            4096,
            4 / 59,
        } | {float(str(4 / 59)[:n]) for n in range(1, 20) if str(4 / 59)[:n] not in ("", ".")}
