"""The words that a model reads from us: a pointer with its map, the header of a short form."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmem_hook.compaction.wording import (
    OWN_TOOLS,
    POINTER_CHARS,
    Removal,
    is_own_tool,
    is_short_form,
    pointer,
    quote,
    short_header,
)
from tests.kit.profile import examples

NOTHING = Removal(messages=3, turns=1, requests=[], files_read=[], files_written=[], has_tool=True)


def test_a_pointer_names_the_session_and_what_left() -> None:
    text = pointer("name-1", NOTHING)
    assert text.startswith("<openmem-pointer>\n3 earlier messages of this conversation (1 turns)")
    assert text.endswith("</openmem-pointer>")
    assert 'session_id="name-1"' in text


def test_a_pointer_helps_where_the_search_tool_is_not_at_hand() -> None:
    assert "not in your list" not in pointer("s", NOTHING)
    assert "not in your list" in pointer("s", replace(NOTHING, has_tool=False))


def test_a_map_lists_requests_and_files_newest_first() -> None:
    removal = replace(NOTHING, requests=["one", "two"], files_read=["a", "b"], files_written=["c"])
    lines = pointer("s", removal).split("\n")
    assert [line for line in lines if line.startswith("- ")] == ["- two", "- one", "- c", "- b", "- a"]
    assert [line.partition(" ")[0] for line in lines if line.endswith("newest first:")] == [
        "Requests",
        "Files",
        "Files",
    ]


def test_a_map_without_entries_has_no_titles() -> None:
    assert "newest first" not in pointer("s", NOTHING)


def test_a_list_that_is_too_long_ends_in_dots_and_crowds_out_no_other() -> None:
    many = [f"request number {n} with some more words" for n in range(500)]
    text = pointer("s", replace(NOTHING, requests=many, files_read=[f"f{n}" for n in range(5)], files_written=many))
    assert len(text) <= POINTER_CHARS
    assert text.count("- …") == 2
    assert "- f0" in text
    assert "- request number 499" in text


@examples()
@given(st.lists(st.text()), st.lists(st.text()), st.text(), st.booleans())
def test_no_quoted_text_ends_a_frame_a_line_or_the_room(
    requests: list[str], files: list[str], session: str, has_tool: bool
) -> None:
    text = pointer("s", Removal(1, 1, requests, files, files, has_tool))
    assert text.count("<openmem-pointer>") == text.count("</openmem-pointer>") == 1
    assert len(text) <= POINTER_CHARS
    assert not any(character in line for line in text.split("\n")[2:-1] for character in "<>\x00\x1b\u2028\r")


@pytest.mark.parametrize(
    ("text", "quotation"),
    [
        ("a\nb\tc", "a b c"),
        ("  spaces  ", "spaces"),
        ("</openmem-pointer>", "‹/openmem-pointer›"),
        ("x" * 101, "x" * 99 + "…"),
        ("x" * 100, "x" * 100),
        ("a\x00\x1b\u2028b", "a b"),
        ("\n" * 1000 + "late", ""),
    ],
)
def test_a_quote_is_one_short_line_that_ends_no_frame(text: str, quotation: str) -> None:
    assert quote(text) == quotation


@pytest.mark.parametrize("prefix", ["", "mcp__openmem__", "openmem_"])
def test_our_own_tools_are_known_under_a_servers_name(prefix: str) -> None:
    assert all(is_own_tool(prefix + name) for name in OWN_TOOLS)
    assert not is_own_tool(f"{prefix}read")


def test_a_short_form_is_known_by_its_header() -> None:
    header = short_header("0" * 16, 10, 1000)
    assert is_short_form(f"{header}\ntext")


@pytest.mark.parametrize(
    "text",
    [
        "text",
        f"text\n{short_header('0' * 16, 1, 1000)}\n",
        short_header("0" * 16, 1, 1000),
        f"{short_header('no hex', 1, 1000)}\n",
        f"{short_header('0' * 16, 1, 20)}\nas long as it says that the whole is",
    ],
    ids=["none", "not at the front", "no line end", "no id", "as long as the whole"],
)
def test_what_only_looks_like_one_is_none(text: str) -> None:
    assert not is_short_form(text)
