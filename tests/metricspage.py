"""Pages of /metrics as vLLM writes them, from a description of what its engines have done. Everything is made up."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

TTFT_BOUNDS = (0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 10.0)
ITL_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.5)
MODEL = "acme/chat-8b"


class Told(NamedTuple):
    """What one engine's series stand at."""

    engine: int = 0
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    prompt_tokens: float = 0.0
    generation_tokens: float = 0.0
    preemptions: float = 0.0
    stopped: float = 0.0
    aborted: float = 0.0
    itl: tuple[float, ...] = ()
    """Every time between two tokens so far, in seconds."""
    ttft: tuple[float, ...] = ()
    blocks: int = 4096


def page(engines: Iterable[Told], *, start_s: float = 1_700_000_000.0, old: bool = False, model: str = MODEL) -> bytes:
    """Return the page of a vLLM of today, or of 0.9 with `old`."""
    lines = [
        "# HELP python_gc_objects_collected_total Objects collected during gc",
        f"process_start_time_seconds {start_s}",
    ]
    for told in engines:
        lines += _engine(told, old, model)
    return ("\n".join(lines) + "\n").encode()


def _engine(told: Told, old: bool, model: str) -> list[str]:
    def line(name: str, value: float, **labels: str) -> str:
        every = {"engine": str(told.engine), **labels, "model_name": model}
        written = ",".join(f'{key}="{text}"' for key, text in every.items())
        return f"vllm:{name}{{{written}}} {value}"

    usage, itl = ("gpu_cache_usage_perc", "time_per_output_token_seconds") if old else _NEW
    histograms: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
        itl: (ITL_BOUNDS, told.itl),
        "time_to_first_token_seconds": (TTFT_BOUNDS, told.ttft),
    }
    return [
        "# TYPE vllm:num_requests_running gauge",
        line("num_requests_running", told.running),
        line("num_requests_waiting", told.waiting),
        line(usage, told.kv_usage),
        line("prompt_tokens_total", told.prompt_tokens),
        line("generation_tokens_total", told.generation_tokens),
        line("num_preemptions_total", told.preemptions),
        line("request_success_total", told.stopped, finished_reason="stop"),
        line("request_success_total", told.aborted, finished_reason="abort"),
        line("cache_config_info", 1.0, block_size="16", num_gpu_blocks=str(told.blocks), cache_dtype="auto"),
        *(text for name, (bounds, times) in histograms.items() for text in _histogram(line, name, bounds, times)),
    ]


_NEW = ("kv_cache_usage_perc", "inter_token_latency_seconds")


def _histogram(line: object, name: str, bounds: tuple[float, ...], times: tuple[float, ...]) -> Iterable[str]:
    assert callable(line)
    for bound in bounds:
        yield line(f"{name}_bucket", float(sum(time <= bound for time in times)), le=str(bound))
    yield line(f"{name}_bucket", float(len(times)), le="+Inf")
    yield line(f"{name}_count", float(len(times)))
    yield line(f"{name}_sum", sum(times))
