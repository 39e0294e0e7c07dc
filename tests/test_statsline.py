import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlogd.model import Stats
from tests.lines import GOOD, START_S, line_of, logged, new_parser, parsed, record

OPTIONAL = (
    "Deferred: 3 reqs",
    "KV fetch: 2 waiting to start, 4 in progress, 1 completed waiting",
    "Preemptions: 6",
    "Prefix cache hit rate: 12.5%",
    "Corrupted: 1 reqs",
    "External prefix cache hit rate: 71.3%",
    "MM cache hit rate: 7.0%",
)
REQUIRED = (
    "Avg prompt throughput: 501.5 tokens/s",
    "Avg generation throughput: 88.0 tokens/s",
    "Running: 6 reqs",
    "Waiting: 9 reqs",
    "GPU KV cache usage: 58.0%",
)
VALUES: dict[str, dict[str, float]] = {
    "Deferred": {"deferred": 3},
    "KV fetch": {"kv_fetch_waiting": 2, "kv_fetch_in_progress": 4, "kv_fetch_completed": 1},
    "Preemptions": {"preemptions": 6},
    "Prefix cache hit rate": {"prefix_hit_rate": 0.125},
    "Corrupted": {"corrupted": 1},
    "External prefix cache hit rate": {"external_prefix_hit_rate": 0.713},
    "MM cache hit rate": {"mm_hit_rate": 0.07},
}


@given(st.permutations(REQUIRED[1:] + OPTIONAL), st.sets(st.sampled_from(OPTIONAL)))
def test_fields_stand_in_any_order_and_may_be_missing(order: list[str], missing: set[str]) -> None:
    fields = [REQUIRED[0], *(field for field in order if field not in missing)]
    parser = new_parser()
    line = logged("Engine 003: " + ", ".join(fields), file="loggers.py")
    found = parsed(line, parser)
    assert isinstance(found, Stats)
    wanted: dict[str, object] = dict.fromkeys(Stats._fields[9:])
    for field in fields:
        wanted |= VALUES.get(field.split(":")[0], {})
    assert found[:9] == (START_S, 1, 3, None, 501.5, 88.0, 6, 9, 0.58)
    assert found[9:] == tuple(wanted.values())
    assert parsed(line, parser) == found


@pytest.mark.parametrize("missing", REQUIRED)
def test_a_record_without_one_of_its_five_numbers_is_none(missing: str) -> None:
    parser = new_parser()
    assert parsed(logged(", ".join(field for field in REQUIRED if field != missing), file="loggers.py"), parser) is None
    assert parser.counts["unparsed"] == (1 if missing != REQUIRED[0] else 0)


def test_an_unknown_key_is_counted_and_the_record_kept() -> None:
    parser = new_parser()
    found = parsed(GOOD + b", Novel cache hit rate: 12.0%, Things: 7", parser)
    assert found == parsed(GOOD)
    assert parser.counts["unknown_keys"] == 2
    assert parsed(GOOD + b", Novel cache hit rate: 12.0%", parser) == found
    assert parser.counts["unknown_keys"] == 3


@pytest.mark.parametrize(
    ("old", "new", "count"),
    [
        (b"usage: 7.5%", b"usage: 101.0%", "impossible"),
        (b"usage: 7.5%", b"usage: 100.1%", "impossible"),
        (b"usage: 7.5%", b"usage: -1.0%", "impossible"),
        (b"throughput: 5.0", b"throughput: nan", "impossible"),
        (b"throughput: 5.0", b"throughput: inf", "impossible"),
        (b"throughput: 5.0", b"throughput: -5.0", "impossible"),
        (b"throughput: 5.0", b"throughput: 9999999999999.0", "impossible"),
        (b"Running: 1", b"Running: 1.5", "impossible"),
        (b"Running: 1", b"Running: -1", "impossible"),
        (b"usage: 7.5%", b"usage: 7.5% trailing words", "unparsed"),
        (b"usage: 7.5%", b"usage: 7.5%..", "unparsed"),
        (b"usage: 7.5%", b"usage: 7.5%, ", "unparsed"),
        (b"usage: 7.5%", b"usage: 7.5", "unparsed"),
        (b"Running: 1 reqs", b"Running: 1 cats", "unparsed"),
        (b"Running: 1 reqs", b"Running: 1 reqs, Running: 2 reqs", "unparsed"),
        (b"Running: 1 reqs", b"Running: many reqs", "unparsed"),
        (b"11-29 14:00:25", b"11-31 14:00:25", "broken_stamp"),
        (b"11-29 14:00:25", b"11-29 24:00:25", "broken_stamp"),
        (b"11-29 14:00:25", b"11-29 14:00:61", "broken_stamp"),
    ],
)
def test_what_vllm_cannot_mean_is_refused_and_counted(old: bytes, new: bytes, count: str) -> None:
    assert old in GOOD
    bad = GOOD.replace(old, new, 1)
    parser = new_parser()
    assert parsed(bad, parser) is None
    assert dict(parser.counts) == {count: 1}
    assert parsed(GOOD, parser) is not None  # learned: now the fast way must refuse it as well
    assert parsed(bad, parser) is None
    assert parser.counts[count] == 2


@pytest.mark.parametrize("name", ["Prefix", "External prefix", "MM"])
def test_a_learned_shape_refuses_impossible_hit_rates(name: str) -> None:
    parser = new_parser()
    assert isinstance(parsed(GOOD + f", {name} cache hit rate: 99.9%".encode(), parser), Stats)
    assert isinstance(parsed(GOOD + f", {name} cache hit rate: 100.0%".encode(), parser), Stats)
    assert parsed(GOOD + f", {name} cache hit rate: 100.1%".encode(), parser) is None
    assert parser.counts["impossible"] == 1


numbers = st.floats(0, 1e6, allow_nan=False).map(lambda x: round(x, 1))
shares = st.integers(0, 1005).map(lambda n: n / 10)
counts = st.integers(0, 10**10)


@given(st.lists(st.tuples(numbers, numbers, counts, counts, shares, shares, shares), min_size=2, max_size=5))
def test_learned_shapes_say_what_the_first_reading_says(values: list[tuple[float, ...]]) -> None:
    learned = new_parser()
    for i, (prompt, generation, running, waiting, usage, hits, external) in enumerate(values):
        body = (
            f"Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, Avg generation throughput: {generation:.1f} "
            f"tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: {usage:.1f}%, "
            f"Prefix cache hit rate: {hits:.1f}%, External prefix cache hit rate: {external:.1f}%"
        )
        line = logged(body, 10 * i, file="loggers.py")
        fresh = new_parser()
        assert parsed(line, learned) == parsed(line, fresh)
        assert (max(usage, hits, external) > 100) == (fresh.counts["impossible"] == 1)


def test_two_processes_have_their_own_shapes() -> None:
    parser = new_parser()
    for _ in range(2):
        for pid in (11, 22):
            found = parsed(line_of(record(pid=pid)), parser)
            assert found is not None
            assert found.pid == pid


def test_the_pid_of_the_envelope_counts_where_the_line_has_none() -> None:
    parser = new_parser()
    line = line_of(record(pid=None))
    for pid in (811, 812):  # the second by a learned shape
        found = parser.line(line, envelope_pid=pid)
        assert found is not None
        assert found.pid == pid
    found = parser.line(line_of(record(pid=5)), envelope_pid=811)
    assert found is not None
    assert found.pid == 5
