import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlogd.layout import Chart, Code, Facts, Part, Steps, Words, as_html, as_text, shortened, with_picture
from kvlogd.model import Severity

PARTS: list[Part] = [
    Facts((("since", "noon"), ("load", "8 & more"))),
    Words(("one", "two")),
    Steps("Do", ("first", "then")),
    Chart("Free", ("▇▁", "·^")),
    Code("Run", ("kvlogd alerts",)),
]
TEXT = """it <leaks>

since: noon
load: 8 & more

one
two

Do:
1. first
2. then

Free:
  ▇▁
  ·^

Run:
  kvlogd alerts

alert 1
"""


def test_the_text_has_its_parts_one_below_the_other() -> None:
    assert as_text("it <leaks>", PARTS, "alert 1") == TEXT


def test_the_page_says_the_same_in_the_same_order() -> None:
    page = as_html("it <leaks>", PARTS, "alert 1", Severity.CRITICAL)
    words = html.unescape(re.sub(r"<[^>]+>", "\n", page.partition("<body")[2]))
    shown = [line.strip() for line in words.splitlines() if line.strip()][1:]
    told = [re.sub(r"^\d\. ", "", word).strip() for word in re.split(r"\n|: |:\n", TEXT) if word.strip()]
    assert [word.removesuffix(":") for word in told] == shown


def test_what_does_not_fit_is_left_out_as_a_whole_and_the_last_line_never() -> None:
    text = as_text("title", [Words(("a" * 50,)), Words(("b" * 500,)), Words(("c" * 50,))], "alert 1", most=200)
    assert len(text) <= 200
    assert ("a" * 50 in text, "b" in text, "c" * 50 in text) == (True, False, True)
    assert text.endswith("\n\n(more: kvlogd alerts)\n\nalert 1\n")


@given(st.lists(st.text(max_size=300), max_size=8), st.text(max_size=20), st.integers(100, 600))
def test_a_text_keeps_its_length_and_its_lines(words: list[str], last: str, most: int) -> None:
    text = as_text("title", [Words(tuple(words)), Facts(tuple((w, w) for w in words)), Code("C", (last,))], last, most)
    assert len(text) <= most
    assert all(line.isprintable() for line in text.split("\n"))


def everything(word: str) -> list[Part]:
    lines = (word,)
    return [Facts(((word, word),)), Words(lines), Steps(word, lines), Code(word, lines), Chart(word, lines)]


@given(st.text())
def test_no_value_is_markup(word: str) -> None:
    page, blank = as_html(word, everything(word), word, None), as_html("", everything(""), "", None)
    assert re.findall(r"<[^>]*>", page) == re.findall(r"<[^>]*>", blank)


def test_a_picture_takes_the_place_of_the_chart_of_text() -> None:
    page = with_picture(as_html("t", PARTS, "alert 1", None), "<img>")
    assert "▇▁" not in page
    assert page.index("first") < page.index("<img>") < page.index("kvlogd alerts")
    plain = as_html("t", PARTS[:2], "alert 1", None)
    assert with_picture(plain, "<img>") == plain.replace("</body>", "<img></body>")
    assert with_picture("<p>no end", "<img>") == "<p>no end<img>"


@pytest.mark.parametrize(("text", "cut"), [("abc", "abc"), ("abcdef", "abcd…"), ("abc; ef", "abc…")])
def test_what_is_too_long_ends_with_dots(text: str, cut: str) -> None:
    assert shortened(text, 5) == cut
