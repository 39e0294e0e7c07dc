"""Blocks are cut into whole lines, wherever they begin and end."""

from hypothesis import example, given
from hypothesis import strategies as st

from kvlogd.cutter import Chunk, Cutter
from kvlogd.errors import SourceError

BLOCKS = st.lists(st.binary(min_size=1, max_size=12).map(lambda b: b.replace(b"\0", b".")), max_size=12)
LINES = st.lists(
    st.sampled_from([b"a\n", b"bb\n", b"\n", b"12345678\n", b"123456789\n", b"x" * 30 + b"\n"]), max_size=9
)


def cut(blocks: list[bytes], max_line: int, start: int = 0) -> tuple[list[Chunk], Cutter]:
    cutter = Cutter(start, max_line)
    chunks = [cutter.add(block) for block in blocks]
    return [chunk for chunk in chunks if chunk is not None], cutter


@given(BLOCKS)
def test_no_byte_is_lost_repeated_or_moved(blocks: list[bytes]) -> None:
    content = b"".join(blocks)
    chunks, cutter = cut(blocks, 1000)
    rest = cutter.rest()
    assert b"".join(chunk.data for chunk in chunks) + (rest.data if rest else b"") == content
    for chunk in chunks:
        assert content[chunk.offset : chunk.end_offset] == chunk.data
        assert chunk.data.endswith(b"\n")
    assert cutter.line_at == content.rfind(b"\n") + 1
    assert cutter.read_to == len(content)


@given(LINES, st.integers(1, 8))
@example([b"123456789\n"], 8)
def test_lines_that_are_too_long_are_left_out_and_counted(lines: list[bytes], step: int) -> None:
    content = b"".join(lines)
    chunks, cutter = cut([content[at : at + step] for at in range(0, len(content), step)], 8)
    kept = b"".join(line for line in lines if len(line) <= 9)
    assert b"".join(chunk.data for chunk in chunks) == kept
    counted = sum(chunk.cut_lines for chunk in chunks)
    assert counted + cutter.cut_lines == sum(len(line) > 9 for line in lines)
    assert cutter.line_at == len(content)


def test_memory_stays_under_one_line_while_one_is_too_long() -> None:
    cutter = Cutter(0, 100)
    for _ in range(50):
        cutter.add(b"x" * 90)
        assert len(cutter.tail) <= 100
    assert cutter.line_at == 0
    chunk = cutter.add(b"\nnext\n")
    assert chunk == Chunk(4501, b"next\n", 4506, cut_lines=1)


def test_the_last_line_without_newline_is_given_on_demand() -> None:
    _, cutter = cut([b"one\ntwo"], 100)
    assert cutter.rest() == Chunk(4, b"two", 7, partial=True)
    _, cutter = cut([b"one\n"], 100)
    assert cutter.rest() is None


def test_a_hole_is_one_byte_however_long() -> None:
    cutter = Cutter(0, 100)
    cutter.add(b"\0" * 50)
    cutter.jump(1 << 31)
    assert cutter.tail == b"\0"
    chunk = cutter.add(b"\0\0line\n")
    assert chunk is not None
    assert chunk.data.lstrip(b"\0") == b"line\n"
    assert (chunk.offset, chunk.end_offset) == (0, (1 << 31) + 7)


def test_damage_counts_the_half_line_before_it() -> None:
    _, cutter = cut([b"one\ntw"], 100)
    error = SourceError("damaged")
    assert cutter.broken(error) == Chunk(4, b"", 6, cut_lines=1, error=error)
