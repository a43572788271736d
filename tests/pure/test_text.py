"""Text as the store holds it, and as lines are counted in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmem_hook.model import Part
from openmem_hook.text import searchable, searchable_text, split_lines

LINES: list[tuple[str, list[str]]] = [
    ("", [""]),
    ("a", ["a"]),
    ("a\n", ["a", ""]),
    ("a\nb", ["a", "b"]),
    ("a\r\nb", ["a", "b"]),
    ("a\rb", ["a", "b"]),
    ("a\n\rb", ["a", "", "b"]),
    ("a\r\r\nb", ["a", "", "b"]),
    ("\r\n", ["", ""]),
    ("a\u2028b\x0bc\x0cd\x85e", ["a\u2028b\x0bc\x0cd\x85e"]),
]
ROW_TEXTS: list[tuple[str, str]] = [
    ("", ""),
    ("plain", "plain"),
    ("späte Antwort 汉字 😀", "späte Antwort 汉字 😀"),
    ("a\0b", "a\ufffdb"),
    ("a\r\nb\rc", "a\nb\nc"),
    ("a\ud800b\udfff", "a?b?"),
    ("\ud83d\ude00", "??"),
    ("tab\tand \x1b[31mcolour", "tab\tand \x1b[31mcolour"),
]
any_text = st.text(st.characters() | st.sampled_from("\0\r\n\ud800\udfff"))


@pytest.mark.parametrize(("text", "lines"), LINES)
def test_lines_end_at_lf_crlf_and_cr_alone(text: str, lines: list[str]) -> None:
    assert split_lines(text) == lines


@pytest.mark.parametrize(("text", "row_text"), ROW_TEXTS)
def test_the_store_holds_what_sqlite_can(text: str, row_text: str) -> None:
    assert searchable(text) == row_text


@given(any_text)
def test_any_text_can_be_stored_and_has_the_same_lines_there(text: str) -> None:
    row_text = searchable(text)
    assert "\0" not in row_text
    assert row_text.encode("utf-8").decode("utf-8") == row_text
    assert row_text.split("\n") == [searchable(line) for line in split_lines(text)]
    assert searchable(row_text) == row_text


def test_a_message_is_stored_as_the_text_of_its_parts() -> None:
    parts = [Part("text", "a\r\nb"), Part("thinking", ""), Part("call", "Read\npath: x"), Part("media", "plan\0")]
    assert searchable_text(parts) == "a\nb\nRead\npath: x\nplan\ufffd"
    assert searchable_text([]) == ""
