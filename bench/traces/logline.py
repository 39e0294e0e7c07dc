"""Writes a stream as the log of a vLLM 0.32: start-up lines, stats lines, and the line with which a server stops."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from bench.traces.labels import Stream, Tick
from bench.traces.plan import BLOCK_TOKENS

START = datetime(2026, 3, 1, 0, 0, 3, tzinfo=UTC)
START_S = START.timestamp()
FIRST_PID = 4319


def lines(stream: Stream) -> Iterator[str]:
    """Yield the log of a stream, line by line, without newlines."""
    for _, told in lines_by_tick(stream):
        yield from told


def lines_by_tick(stream: Stream) -> Iterator[tuple[Tick, Sequence[str]]]:
    """Yield each interval of a stream and the lines that the log gets at its end."""
    life, was_up, hung = -1, False, False
    for tick in stream.ticks:
        told: list[str] = []
        if was_up and not tick.up and not hung:
            told.append(f"{_head(stream, life, tick.at_s)} [launcher.py:254] [shutdown] API server: shutdown triggered")
        if tick.up and tick.life != life:
            life = tick.life
            told += _start(stream, life, tick.at_s - 1)
        was_up, hung = tick.up, tick.hung
        if tick.printed:
            head = f"{_head(stream, life, tick.at_s)} [loggers.py:335] Engine {stream.engine_index:03d}:"
            told.append(f"{head} {_body(tick)}")
        yield tick, told


def stamp(at_s: float) -> str:
    """Return a time of the trace as vLLM prints it."""
    return f"{START + timedelta(seconds=at_s):%m-%d %H:%M:%S}"


def _head(stream: Stream, life: int, at_s: float) -> str:
    return f"(APIServer pid={_pid(stream, life)}) INFO {stamp(at_s)}"


def _pid(stream: Stream, life: int) -> int:
    return 1 if stream.keeps_pid else FIRST_PID + 1187 * life


def _body(tick: Tick) -> str:
    preempted = f"Preemptions: {tick.preemptions}, " if tick.preemptions else ""
    hit_rate = "" if tick.hit_rate is None else f", Prefix cache hit rate: {100 * tick.hit_rate:.1f}%"
    return (
        f"Avg prompt throughput: {tick.prompt_tps:.1f} tokens/s, "
        f"Avg generation throughput: {tick.generation_tps:.1f} tokens/s, "
        f"Running: {tick.running} reqs, Waiting: {tick.waiting} reqs, {preempted}"
        f"GPU KV cache usage: {100 * tick.kv_usage:.1f}%{hit_rate}"
    )


def _start(stream: Stream, life: int, at_s: float) -> Iterator[str]:
    server = _head(stream, life, at_s)
    core = f"(EngineCore pid={_pid(stream, life) + 20}) INFO {stamp(at_s)}"
    transfer = ", 'kv_transfer_config': KVTransferConfig(kv_connector='NixlConnector')" if stream.kv_connector else ""
    yield f"{server} [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0"
    longest = stream.longest_tokens
    args = f"{{'model': 'bench/model', 'max_model_len': {longest}{transfer}}}"
    yield f"{server} [api_utils.py:286] non-default args: {args}"
    yield (
        f"{core} [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='bench/model', "
        f"max_seq_len={longest}"
    )
    if stream.tells_pool:
        tokens = stream.pool_blocks * BLOCK_TOKENS
        yield (
            f"{core} [kv_cache_utils.py:2327] GPU KV cache size: {tokens:,} tokens, "
            f"Maximum concurrency for {longest:,} tokens per request: {tokens / longest:.2f}x"
        )
    yield f"{core} [core.py:402] init engine (profile, create kv cache, warmup model) took 41.20 s"
    yield f"{server} [entry.py:140] Starting vLLM server on http://0.0.0.0:8000"
    yield f"(APIServer pid={_pid(stream, life)}) INFO:     Application startup complete."
