"""What goes through the pipe comes out the same, and nonsense is no message and no success."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlogd.model import Fault, Letter, Outcome, Severity
from kvlogd.parcel import (
    Flaw,
    Parcel,
    Warm,
    Word,
    pack,
    pack_flaws,
    pack_urls,
    pack_warm,
    pack_word,
    unpack,
    unpack_flaws,
    unpack_word,
)
from tests.test_picture import GROWTH, LEAK

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SECONDS = st.none() | st.floats(0, 86400)


@given(TEXT, TEXT, TEXT, st.none() | st.sampled_from(Severity), st.lists(st.integers(0, 50)))
def test_a_message_comes_out_as_it_went_in(
    url: str, subject: str, text: str, severity: Severity | None, reached: list[int]
) -> None:
    for panel in (None, LEAK, GROWTH):
        parcel = Parcel(url, Letter(subject, text, f"<p>{text}</p>", severity), panel, tuple(reached))
        line = pack(parcel)
        assert line.count(b"\n") == 1
        assert unpack(line) == parcel


@given(st.none() | st.sampled_from(Fault), st.none() | st.integers(100, 599), SECONDS, st.lists(st.integers(0, 9)))
def test_a_word_comes_out_as_it_went_in(
    fault: Fault | None, status: int | None, wait_s: float | None, reached: list[int]
) -> None:
    word = Word(Outcome(fault, status, wait_s), tuple(reached))
    assert unpack_word(pack_word(word)) == word


def test_questions_about_urls_and_their_answers() -> None:
    urls = {"oncall": "json://example.test/x"}
    assert unpack(pack_urls(urls)) == urls
    assert [unpack(pack_warm(Warm(url))) for url in urls.values()] == [Warm(url) for url in urls.values()]
    assert unpack_flaws(pack_flaws({"oncall": Flaw.URL})) == {"oncall": Flaw.URL}


@pytest.mark.parametrize(
    "line",
    [b"", b"\n", b"x", b"[]", b"{}", b'{"outcome": null}', b'{"outcome": ["odd", 1, 2], "reached": []}', b"\xff"],
)
def test_nonsense_is_a_failure(line: bytes) -> None:
    assert unpack_word(line) == Word(Outcome(Fault.FAILED))
    assert unpack_flaws(line) is None
    with pytest.raises(ValueError):
        unpack(line)
    for odd in (b'{"flaws": []}', b'{"flaws": {"a": "odd"}}'):
        assert unpack_flaws(odd) is None
