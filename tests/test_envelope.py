import json
import time
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlogd.envelope import MAX_JOIN, Envelope, Lost, Unwrapped, Unwrapper, sniff

STATS = (
    b"(APIServer pid=1) INFO 11-29 14:16:25 [loggers.py:335] Engine 000: Avg prompt throughput: 5.0 tokens/s, "
    b"Avg generation throughput: 6.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 7.5%"
)
FORGED = STATS.replace(b"7.5", b"99.9")
AT_S = 1795961785.0
ISO = b"2026-11-29T14:16:25"


def feed(*lines: bytes) -> list[Unwrapped]:
    unwrapper = Unwrapper()
    return [inner for line in lines if (inner := unwrapper.feed(line)) is not None]


def texts(*lines: bytes) -> list[bytes]:
    return [inner.text for inner in feed(*lines)]


def docker(log: bytes, *, stream: str = "stdout", time_text: str = "2026-11-29T14:16:25Z") -> bytes:
    record = {"log": log.decode("latin-1"), "stream": stream, "time": time_text}
    return json.dumps(record, separators=(",", ":")).encode()


def journal(message: object, **fields: str) -> bytes:
    record = {"__CURSOR": "s=0;i=1", "__REALTIME_TIMESTAMP": "1795961785000000", "_PID": "811", **fields}
    return json.dumps({**record, "MESSAGE": message}).encode()


WRAPPED = [
    ("docker", docker(STATS + b"\n"), AT_S, None, None, Envelope.DOCKER_JSON),
    ("docker, tty", docker(b"\x1b[0;36m" + STATS + b"\x1b[0m\r\n"), AT_S, None, None, Envelope.DOCKER_JSON),
    ("docker, other order", b'{"time":"' + ISO + b'Z","stream":"stdout","log":"' + STATS + b'\\n"}', AT_S, None, None,
     Envelope.DOCKER_JSON),
    ("docker logs -t", ISO + b".108632509Z " + STATS, AT_S + 0.108632, None, None, Envelope.TIMESTAMPS),
    ("docker logs -t, colour", ISO + b"Z \x1b[1;36m" + STATS + b"\x1b[0;0m", AT_S, None, None, Envelope.TIMESTAMPS),
    ("kubectl, local", b"2026-11-29T15:16:25.5+01:00 " + STATS, AT_S + 0.5, None, None, Envelope.TIMESTAMPS),
    ("cri", b"2026-11-29T16:16:25.000000000+02:00 stdout F " + STATS, AT_S, None, None, Envelope.CRI),
    ("compose", b"vllm-1  | " + STATS, None, None, None, Envelope.COMPOSE),
    ("compose, colour", b"\x1b[36mvllm-1  |\x1b[0m " + STATS, None, None, None, Envelope.COMPOSE),
    ("compose, times", b"vllm-1  | " + ISO + b"Z " + STATS, AT_S, None, None, Envelope.COMPOSE),
    ("compose in docker", docker(b"vllm-1  | " + STATS + b"\n"), AT_S, None, None, Envelope.DOCKER_JSON),
    ("short", b"Nov 29 14:16:25 gpu01 vllm[811]: " + STATS, None, b"11-29 14:16:25", 811, Envelope.SYSLOG),
    ("short, day padded", b"Nov  9 04:16:25 gpu01 vllm[811]: " + STATS, None, b"11-09 04:16:25", 811, Envelope.SYSLOG),
    ("short, no pid", b"Nov 29 14:16:25 gpu01 vllm: " + STATS, None, b"11-29 14:16:25", None, Envelope.SYSLOG),
    ("short, no host", b"Nov 29 14:16:25 vllm[811]: " + STATS, None, b"11-29 14:16:25", 811, Envelope.SYSLOG),
    ("short-precise", b"Nov 29 14:16:25.123456 gpu01 vllm[811]: " + STATS, None, b"11-29 14:16:25", 811,
     Envelope.SYSLOG),
    ("short-iso", b"2026-11-29T17:16:25+0300 gpu01 vllm[811]: " + STATS, AT_S, None, 811, Envelope.SYSLOG),
    ("short-iso-precise", b"2026-11-29T17:16:25.250000+03:00 gpu01 vllm[811]: " + STATS, AT_S + 0.25, None, 811,
     Envelope.SYSLOG),
    ("short-unix", b"1795961785.123456 gpu01 vllm[811]: " + STATS, AT_S + 0.123456, None, 811, Envelope.SYSLOG),
    ("short-full", b"Sun 2026-11-29 14:16:25 UTC gpu01 vllm[811]: " + STATS, AT_S, None, 811, Envelope.SYSLOG),
    ("with-unit", b"Sun 2026-11-29 15:16:25 CET gpu01 vllm@a.service[811]: " + STATS, None, b"11-29 15:16:25", 811,
     Envelope.SYSLOG),
    ("short-monotonic", b"[  123.456789] gpu01 vllm[811]: " + STATS, None, None, 811, Envelope.SYSLOG),
    ("rfc3164", b"<34>Nov 29 14:16:25 gpu01 vllm[811]: " + STATS, None, b"11-29 14:16:25", 811, Envelope.SYSLOG),
    ("rsyslog", b"Nov 29 14:16:25 gpu01 vllm[811]: #033[0;36m" + STATS + b"#033[0m", None, b"11-29 14:16:25", 811,
     Envelope.SYSLOG),
    ("rfc5424", b"<34>1 " + ISO + b"Z gpu01 vllm 811 - - \xef\xbb\xbf" + STATS, AT_S, None, 811,
     Envelope.SYSLOG_5424),
    ("rfc5424, data", b'<34>1 ' + ISO + b'.5Z gpu01 vllm 811 ID1 [a@1 b="c \\] d"][e f="g"] ' + STATS, AT_S + 0.5,
     None, 811, Envelope.SYSLOG_5424),
    ("rfc5424, no time", b"<34>1 - gpu01 vllm - - - " + STATS, None, None, None, Envelope.SYSLOG_5424),
    ("journal", journal(STATS.decode()), AT_S, None, 811, Envelope.JOURNAL_JSON),
    ("journal, bytes", journal(list(b"\x1b[0;36m" + STATS + b"\x1b[0m")), AT_S, None, 811, Envelope.JOURNAL_JSON),
    ("ray", b"(RayWorkerWrapper pid=7, ip=10.0.0.1) " + STATS, None, None, None, Envelope.RAY),
    ("colour", b"\x1b[1;36m" + STATS[:17] + b"\x1b[0;0m" + STATS[17:], None, None, None, Envelope.COLOUR),
    ("crlf", STATS + b"\r", None, None, None, Envelope.CRLF),
    ("hole", b"\0" * 512 + STATS, None, None, None, Envelope.NUL_HOLE),
    ("plain", STATS, None, None, None, Envelope.PLAIN),
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "ts_s", "stamp", "pid", "kind"), [row[1:] for row in WRAPPED], ids=[r[0] for r in WRAPPED]
)
def test_the_stats_line_comes_out(
    line: bytes, ts_s: float | None, stamp: bytes | None, pid: int | None, kind: Envelope
) -> None:
    [inner] = feed(line)
    assert inner == (STATS, pytest.approx(ts_s, abs=1e-6) if ts_s is not None else None, stamp, pid)
    assert sniff(line + b"\n") is kind
    assert sniff(b"\n".join([line, line, line[:40]])) is kind


@pytest.mark.parametrize(
    "line",
    [
        b'{"asctime": "2026-11-29 15:35:20,141", "name": "vllm.v1.metrics.loggers", "message": "Engine 000"}',
        b'{"name": "vllm.x", "message": "{\\"log\\": 1, \\"stream\\": 2, \\"MESSAGE\\": 3}"}',
        b"2024-12-23 18:28:20 - vllm.engine.metrics - INFO - Avg prompt throughput: 365.8 tokens/s",
        b"[node7] INFO 12-23 18:36:20 metrics.py:467] Avg prompt throughput: 660.7 tokens/s",
        b"INFO:     127.0.0.1:36276 - \"GET /metrics HTTP/1.1\" 200 OK",
        b"(_AsyncLLMEngine pid=1974) INFO 01-25 11:26:53 llm_engine.py:706] Avg prompt throughput: 0.0 tokens/s",
        b"(APIServer pid=7619) (APIServer pid=1) INFO 11-29 14:16:15 [loggers.py:335] Engine 000",
        b"(EngineCore_DP0 pid=7619) (APIServer pid=1) INFO 11-29 14:16:15 [loggers.py:335] Engine 000",
        b"(Worker_TP0 pid=7619) (APIServer pid=1) INFO 11-29 14:16:15 [loggers.py:335] Engine 000",
        b"ValueError: (APIServer pid=1) INFO 11-29 14:16:15 [loggers.py:335] Engine 000",
        b"Mayor 29 14:16:25 said: nothing",
        b"<html>vllm-1 | x",
        b"| Unpadded Tokens | Padded Tokens |",
        b"Exception: one\rtwo",
    ],
)  # fmt: skip
def test_what_is_no_envelope_stays(line: bytes) -> None:
    assert feed(line) == [Unwrapped(line)]
    assert sniff(line + b"\n") is Envelope.PLAIN


def test_an_exception_in_a_timestamped_log_is_not_taken_for_a_syslog_name() -> None:
    assert texts(ISO + b"+01:00 pydantic ValidationError: " + FORGED) == [b"pydantic ValidationError: " + FORGED]
    assert texts(ISO + b"+01:00 gpu01 kernel: Out of memory: Killed process 811 (python)") == [
        b"Out of memory: Killed process 811 (python)"
    ]


def test_a_json_record_of_vllm_comes_out_of_docker() -> None:
    record = b'{"name": "vllm.v1.metrics.loggers", "message": "Engine 000"}'
    assert texts(docker(record + b"\n")) == [record]


def test_empty_lines_are_nothing() -> None:
    assert feed(b"", b"\r", b"\0\0", b"\x1b[0m", ISO + b"Z stdout F", ISO + b"Z ", docker(b"\n"), b"vllm-1  |") == []


def test_sniff_looks_at_every_whole_line() -> None:
    assert sniff(b"") is Envelope.PLAIN
    assert sniff((STATS + b"\n") * 50 + docker(b"x\n") + b"\n") is Envelope.DOCKER_JSON
    assert sniff((STATS + b"\n") * 50 + b"a\x1b[0mb\n") is Envelope.COLOUR
    assert sniff((STATS + b"\n") * 50 + docker(b"x\n")) is Envelope.PLAIN
    assert sniff(STATS + b"\r\n" + STATS + b"\n") is Envelope.PLAIN


# --- lines in pieces


def test_docker_parts_are_joined_stream_by_stream() -> None:
    lines = [
        docker(b"Received request: prompt: 'a", time_text="2026-11-29T14:16:24Z"),
        docker(b"err", stream="stderr"),
        docker(FORGED + b" tail"),
        docker(b"or\n", stream="stderr"),
        docker(b"'\n"),
        docker(STATS + b"\n"),
    ]
    assert texts(*lines) == [b"error", b"Received request: prompt: 'a" + FORGED + b" tail'", STATS]
    assert feed(lines[0], docker(b"x\n"))[0].ts_s == AT_S - 1


def test_cri_parts_are_joined() -> None:
    part, full = ISO + b"Z stdout P ", ISO + b"Z stdout F "
    assert texts(part + b"a", ISO + b"Z stderr F e", part + FORGED, full + FORGED, full + STATS) == [
        b"e", b"a" + FORGED + FORGED, STATS,
    ]  # fmt: skip


def test_an_overlong_join_is_dropped_as_a_whole_and_counted() -> None:
    unwrapper = Unwrapper()
    for _ in range(MAX_JOIN // 16_384 + 2):
        assert unwrapper.feed(docker(b"x" * 16_384)) is None
    assert unwrapper.feed(docker(FORGED)) is None
    assert unwrapper.feed(docker(FORGED + b"\n")) is None
    assert unwrapper.counts == {Lost.OVERLONG: 1}
    assert unwrapper.feed(docker(STATS + b"\n")) == Unwrapped(STATS, AT_S)


def test_too_many_open_streams_lose_their_lines_whole() -> None:
    unwrapper = Unwrapper()
    for number in range(40):
        assert unwrapper.feed(docker(b"x", stream=f"s{number}")) is None
    rest = [unwrapper.feed(docker(FORGED + b"\n", stream=f"s{number}")) for number in range(40)]
    assert all(inner is None or inner.text == b"x" + FORGED for inner in rest)
    assert unwrapper.counts[Lost.OVERLONG] == sum(inner is None for inner in rest) > 0


def test_what_journald_cut_off_is_no_line() -> None:
    unwrapper = Unwrapper()
    lines = [journal("x" * 49_152), journal(FORGED.decode()), journal(STATS.decode())]
    assert [unwrapper.feed(line) is not None for line in lines] == [False, False, True]
    assert unwrapper.counts == {Lost.CUT: 1}


@pytest.mark.parametrize("message", [None, "short"])
@pytest.mark.parametrize("line_break", ["line-max", "nul"])
def test_journald_says_itself_that_it_cut(message: str | None, line_break: str) -> None:
    lines = [journal(message, _LINE_BREAK=line_break), journal("other", _PID="5"), journal(FORGED.decode())]
    assert texts(*lines) == [b"other"]


def test_short_lines_are_cut_too() -> None:
    head = b"Nov 29 14:16:25 gpu01 vllm[811]: "
    assert texts(head + b"x" * 49_152, head + FORGED, head + STATS) == [STATS]
    assert texts(head + b"[48.0K blob data]", head + FORGED, head + STATS) == [STATS]


def test_journal_pieces_of_a_container_are_joined() -> None:
    fields = {"CONTAINER_ID_FULL": "ab12"}
    lines = [journal("a", CONTAINER_PARTIAL_MESSAGE="true", **fields), journal(FORGED.decode(), **fields)]
    assert texts(*lines) == [b"a" + FORGED]


def test_what_cannot_be_read_is_counted() -> None:
    unwrapper = Unwrapper()
    lines = [
        journal(None), journal([300]), journal(["a"]), journal("a\n" + FORGED.decode()), journal({"a": 1}),
        docker(b"a\n" + FORGED + b"\n"),
        b'{"log":"torn', b'{"log":' + b"[" * 5000, b"Nov 29 14:16:25 gpu01 vllm[811]: [123B blob data]",
    ]  # fmt: skip
    assert [unwrapper.feed(line) for line in lines] == [None] * len(lines)
    assert unwrapper.counts == {Lost.NULL_MESSAGE: 2, Lost.UNDECODABLE: 7}


def test_a_hole_is_counted() -> None:
    unwrapper = Unwrapper()
    assert unwrapper.feed(b"\0\0\0" + STATS) == Unwrapped(STATS)
    assert unwrapper.counts == {Lost.NUL_HOLE: 1}


# --- the journal's export format


def entry(message: bytes, *, binary: bool = False, pid: bytes = b"811") -> bytes:
    head = b"__CURSOR=s=0;i=1\n__REALTIME_TIMESTAMP=1795961785000000\n_SYSTEMD_UNIT=vllm.service\n"
    body = (
        b"MESSAGE\n" + len(message).to_bytes(8, "little") + message + b"\n" if binary else b"MESSAGE=" + message + b"\n"
    )
    return head + body + b"_PID=" + pid + b"\n\n"


def exported(data: bytes) -> Iterable[Unwrapped]:
    unwrapper = Unwrapper()
    for line in data.removesuffix(b"\n").split(b"\n"):
        inner = unwrapper.feed(line)
        if inner is not None:
            yield inner
    last = unwrapper.finish()
    if last is not None:
        yield last


@pytest.mark.parametrize("length", [1, 10, 266, 2570, 70_000])
def test_export_with_binary_fields(length: int) -> None:
    odd = (b"\n\x1b\0=\r" * length)[: length - 1] + b"x"
    data = entry(STATS) + entry(odd, binary=True, pid=b"5") + entry(b"\x1b[0;36m" + STATS, binary=True) + entry(STATS)
    want = Unwrapped(STATS, AT_S, None, 811)
    assert [inner for inner in exported(data) if inner.pid == 811] == [want] * 3
    assert sniff(data) is Envelope.JOURNAL_EXPORT


def test_export_without_its_last_blank_line() -> None:
    assert list(exported(entry(STATS).rstrip(b"\n"))) == [Unwrapped(STATS, AT_S, None, 811)]


def test_export_passes_over_a_field_that_is_too_long() -> None:
    data = entry((b"x" * 99 + b"\n") * 20_000, binary=True) + entry(STATS)
    assert [inner.text for inner in exported(data)] == [STATS]


def test_export_without_blank_lines_is_parted_by_its_cursors() -> None:
    unwrapper = Unwrapper()
    lines = [line for line in (entry(STATS) + entry(STATS)).split(b"\n") if line]
    got = [unwrapper.feed(line) for line in lines] + [unwrapper.finish()]
    assert [inner.text for inner in got if inner is not None] == [STATS, STATS]


def test_a_cursor_in_a_plain_log_is_text() -> None:
    assert texts(STATS, b"__CURSOR=s=1", b"MESSAGE", b"\xff" * 8, STATS) == [
        STATS, b"__CURSOR=s=1", b"MESSAGE", b"\xff" * 8, STATS,
    ]  # fmt: skip


# --- anything at all

HEADS = [row[1][: -len(STATS)] if row[1].endswith(STATS) else row[1] for row in WRAPPED] + [
    b"__CURSOR=1", b"MESSAGE", b"MESSAGE=", b"", b"\0", b'{"log":', b'{"MESSAGE":', b"2026-13-99T99:99:99Z ",
    b"2026-11-29T14:16:25Z stdout P ",
]  # fmt: skip


@given(st.lists(st.builds(bytes.__add__, st.sampled_from(HEADS), st.binary(max_size=40)), max_size=12))
def test_arbitrary_bytes_never_raise(lines: list[bytes]) -> None:
    unwrapper = Unwrapper()
    for line in lines:
        inner = unwrapper.feed(line)
        assert inner is None or (inner.text and (b"\n" not in inner.text or b"\n" in line))
    unwrapper.finish()
    assert sniff(b"\n".join(lines)) in Envelope


@given(st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.text(max_size=30), st.booleans()), max_size=30))
def test_joined_parts_are_the_lines_that_were_written(parts: list[tuple[str, str, bool]]) -> None:
    wanted, pending, got, unwrapper = [], {"stdout": "", "stderr": ""}, [], Unwrapper()
    for stream, raw, is_end in parts:
        text = "(" + raw.replace("\n", "").replace("\r", "").replace("\x1b", "")
        pending[stream] += text
        record = json.dumps({"log": text + "\n" * is_end, "stream": stream, "time": "x"})
        inner = unwrapper.feed(record.encode())
        got += [] if inner is None else [inner.text]
        if is_end:
            wanted.append(pending[stream].encode())
            pending[stream] = ""
    assert got == wanted


@pytest.mark.parametrize(
    "unit",
    [b"(", b" ", b"( ", b"(a pid=1) ", b"\x1b[", b"\x1b[1", b"a", b"a ", b"[a]", b"\\]", b"#033[", b"\0", b"|", b": "],
)
@pytest.mark.parametrize(
    "head",
    [b"", b"(Worker", b"a-1", b"<1>1 - a b c d ", b"<1>1 - a b c d [", b"Nov 29 14:16:25 ", b'{"log":', b"[ ",
     ISO + b"Z ", b"Sun 2026-11-29 14:16:25 CET ", b"1795961785.123456 ", b"\x1b", b"(a pid=1) ("],
)  # fmt: skip
def test_no_line_is_slow(head: bytes, unit: bytes) -> None:
    line = head + unit * (100_000 // len(unit))
    begun = time.process_time()
    Unwrapper().feed(line)
    assert time.process_time() - begun < 0.1


def test_all_parts_of_a_line_whose_begin_was_cut_off_go_with_it() -> None:
    cut = journal("", CONTAINER_ID_FULL="f00d", _LINE_BREAK="line-max")
    middle = journal(STATS.decode(), CONTAINER_ID_FULL="f00d", CONTAINER_PARTIAL_MESSAGE="true")
    end = journal(FORGED.decode(), CONTAINER_ID_FULL="f00d")
    assert texts(cut, middle, end, journal(STATS.decode(), CONTAINER_ID_FULL="f00d")) == [STATS]
