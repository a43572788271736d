"""The benchmark's own words: a missed target is said, and every section can be asked for."""

from __future__ import annotations

from importlib import import_module

import pytest

from bench.__main__ import SECTIONS
from bench.figures import Figure, Section


def test_a_table_is_aligned_and_says_what_was_missed() -> None:
    figures = [Figure("median", 4.2, "ms", 5), Figure("slowest", 1234.5, "ms", 30), Figure("bytes sent on", 12.0, "%")]
    assert Section("speed", "a session", figures).table().splitlines() == [
        "speed: a session",
        "                 measured    target",
        "  median           4.2 ms   <= 5 ms  ok",
        "  slowest        1,234 ms  <= 30 ms  MISSED",
        "  bytes sent on      12 %",
    ]


def test_a_figure_without_a_target_is_never_missed() -> None:
    assert Figure("bytes sent on", 1e9).met
    assert not Figure("ratio", 0.51, "", 0.5).met


@pytest.mark.parametrize("name", SECTIONS)
def test_every_section_can_be_measured(name: str) -> None:
    assert callable(import_module(f"bench.{name}").run)
