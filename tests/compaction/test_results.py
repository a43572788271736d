"""The short form of a tool result."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmem_hook.compaction.results import CLEARLY_SMALLER, HEAD_LINES, LONGEST_ECHO, TAIL_LINES, shorten
from openmem_hook.compaction.wording import short_header
from tests.kit.filler import listing, prose

ID = "0123456789abcdef"
LINES = "\n".join(f"line {n} of the file" for n in range(500))


def test_a_long_result_is_its_header_first_and_last_lines() -> None:
    text = shorten(LINES, ID, 4000)
    assert text is not None
    header, *lines = text.split("\n")
    assert header == short_header(ID, 500, len(LINES))
    assert lines[:HEAD_LINES] == LINES.split("\n")[:HEAD_LINES]
    assert lines[-TAIL_LINES:] == LINES.split("\n")[-TAIL_LINES:]
    assert len(lines) == HEAD_LINES + 1 + TAIL_LINES


def test_the_gap_says_how_much_is_left_out() -> None:
    text = shorten(LINES, ID, 1000)
    assert text is not None
    head, gap, tail = text.removeprefix(short_header(ID, 500, len(LINES)) + "\n").partition("[openmem: ")
    chars, _, tail = tail.partition(" characters left out here]\n")
    assert gap
    assert len(head.removesuffix("\n")) + int(chars) + len(tail) == len(LINES)


def test_few_huge_lines_are_cut_in_characters_and_overlap_nowhere() -> None:
    text = shorten("a" * 5000 + "z" * 5000, ID, 1000)
    assert text is not None
    assert 0 < text.count("a" * 100) < 10
    assert text.rstrip().endswith("z" * 100)
    assert len(text) <= 1000


def test_what_fits_goes_whole_with_its_data_urls_named() -> None:
    url = f"data:image/png;base64,{'A' * 50_000}"
    text = shorten(f"before {url} after", ID, 4000)
    assert text is not None
    assert text.endswith(f"\nbefore [openmem: data URL of {len(url)} characters left out] after")


@pytest.mark.parametrize(
    "text",
    ["", "short", "x" * 500, f"{short_header(ID, 1000, 90_000)}\n{prose(5000)}"],
    ids=["nothing", "short", "not clearly less", "an echo"],
)
def test_what_is_not_clearly_less_stays_as_it_is(text: str) -> None:
    assert shorten(text, ID, 600) is None


def test_a_very_long_echo_is_shortened() -> None:
    text = f"{short_header(ID, 1000, 10**9)}\n{prose(LONGEST_ECHO)}"
    assert shorten(text, ID, 1000) is not None


@given(st.integers(0, 20_000), st.integers(0, 8000), st.sampled_from((prose, listing)))
def test_a_short_form_is_within_its_cap_and_clearly_less(chars: int, cap: int, filler: object) -> None:
    text = (prose if filler is prose else listing)(chars, cap)
    short = shorten(text, ID, cap)
    if short is not None:
        assert len(short) <= min(max(cap, 260), len(text) * CLEARLY_SMALLER)
        assert short == shorten(text, ID, cap)
