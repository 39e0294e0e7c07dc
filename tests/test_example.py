"""docs/alert.* is what kvlogd writes today; `python -m tests.example` renews it."""

from tests.example import HTML, PNG, TEXT, example, text_of


def test_the_message_of_the_docs_is_the_one_that_is_sent() -> None:
    letter, panel = example()
    assert TEXT.read_text(encoding="utf-8") == text_of(letter)
    assert HTML.read_text(encoding="utf-8") == letter.html
    assert PNG.read_bytes().startswith(b"\x89PNG")
    assert panel.engine == "slow-leak-with-idle-spells.log/0"
