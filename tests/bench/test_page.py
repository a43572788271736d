"""The benchmark's page: made from the kept results and of nothing else, whichever of them are there."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from bench import charts, document
from bench.crowd import PACES
from bench.figures import Figure, Section

MADE = {"seed": 0, "peers": {"Kompact": "0.4.0"}, "left_out": {"Headroom": "not installed"}}


def cell(way: str, mb: float, ms: float | None, **more: Any) -> dict[str, Any]:
    found = {
        "way": way, "mb": mb, "calls": 20 if ms else 0, "median_ms": ms, "p95_ms": ms,
        "sent_share": 0.5 if ms else None, "steps": 10, "steps_kept": 9, "resident_mb": 100.0 if ms else None,
        "stored_bytes": 2_000_000 if ms else None,
    }  # fmt: skip
    return found | more


def in_process(way: str, mb: float, ms: float | None, ended: str = "") -> dict[str, Any]:
    kept = {"kind": "cell", "ended": ended, "bytes_kept_share": 0.999, "started_mb": 20.0}
    return cell(way, mb, ms, **kept)


def curve(way: str, *points: tuple[float, float]) -> list[dict[str, Any]]:
    return [{"kind": "curve", "way": way, "mb": mb, "median_ms": ms} for mb, ms in points]


FOUND = {
    "graded": Section("graded", "", (), [{
        "family": "claude-x", "sessions": 2, "next_n": 9, "next_cold": 0.25, "next_carried": 0.2, "next_answer": None,
        "cut_n": 0,
    }]),
    "peers": Section("peers", "", (), [
        in_process("openmem", 0.4, 2.0), in_process("openmem", 2.0, 4.25), in_process("openmem", 8.0, 9.0),
        in_process("Kompact", 0.4, 300.0), in_process("Kompact", 2.0, 1_500.0, ended="cut off"),
        in_process("Kompact", 8.0, None, ended="cut off"),
        *curve("openmem", (0.4, 2.0), (8.0, 9.0)), *curve("Kompact", (0.4, 300.0), (2.0, 1_500.0)),
    ], {**MADE, "window": 20, "cut_off_s": 60.0}),
    "roundtrips": Section("roundtrips", "", (), [
        cell(way, 2.0, ms, ended="") for way, ms in (("no hook", 47.0), ("openmem", 44.0))
    ] + [cell("Kompact", 2.0, None, ended="status 400", stored_bytes=0)], {**MADE, "rounds": 15, "cut_off_s": 60.0}),
    "crowd": Section("crowd", "", (), [
        {
            "way": way, "pace": pace, "a_second": 16.5, "mean_kb": 200.0, "p50_ms": 40.0, "p99_ms": 90.0,
            "slowest_ms": 120.0, "errors": 0, "fail_opens": 0, "gap_p99_ms": 3.0, "gap_ms": 25.0, "trims": 7,
            "resident_mb": 400.0,
        }
        for pace, way in itertools.product(PACES, ("no hook", "openmem"))
    ], {"seed": 0, "sessions": 50, "seconds": 60.0, "trim_at_tokens": 60_000, "paces_s": PACES}),
    "search": Section("search", "a session", [Figure("words, median", 31.0, "ms", 25), Figure("searches", 9)]),
}  # fmt: skip
"""A small result of each section that the page shows."""


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Keeps results beside a page of their own."""
    monkeypatch.setattr(document, "RESULTS", tmp_path / "benchmarks")
    monkeypatch.setattr(document, "PAGE", tmp_path / "benchmarks.md")
    monkeypatch.setattr(document, "PACKAGES", ("openmem-hook", "litellm"))  # the peers come with another extra

    def keep(*names: str) -> str:
        for name in names:
            document.keep(FOUND[name])
        return document.PAGE.read_text("utf-8")

    return keep


def test_the_page_is_made_from_the_kept_results() -> None:
    assert document.PAGE.read_text("utf-8") == document.page(document.load()), "run python -m bench.document"


def test_every_kept_result_says_how_it_was_made() -> None:
    for name, held in document.load().items():
        assert held["section"] == name
        assert set(held["machine"]) >= {"python", "system", "cores"}
        assert set(held["versions"]) == set(document.PACKAGES)
        assert held["rows"]


def test_every_chart_that_the_page_shows_is_there() -> None:
    for chart in re.findall(r"!\[[^]]*\]\(([^)]+)\)", document.PAGE.read_text("utf-8")):
        assert (document.DOCS / chart).read_text("utf-8").count("<svg") == 1


def test_all_that_is_kept_is_numbers_and_names() -> None:
    """No text of a transcript: sessions by the start of their file's name, ways and tasks by theirs. Only what a figure
    is called may be longer."""
    for held in document.load().values():
        for row in held["rows"]:
            words = [value for key, value in row.items() if isinstance(value, str) and key != "name"]
            assert all(len(word) <= 24 for word in words), words
            assert len(row.get("name", "")) <= 80
            json.dumps(row)


@pytest.mark.parametrize("name", FOUND)
def test_any_result_alone_makes_a_page(name: str, kept) -> None:
    page = kept(name)
    assert [name] == re.findall(r"^- \[(\w+)\.json\]", page, re.MULTILINE)
    assert "None" not in page
    assert "{" not in page


def test_no_result_at_all_makes_one_too() -> None:
    assert "## How it was made" in document.page({})


def test_a_peer_that_is_faster_or_cut_off_or_refused_is_shown_so(kept) -> None:
    page = kept("peers", "roundtrips")
    assert "| Kompact | 300 ms (300) | 1,500 ms (1,500), cut off after 20 | cut off |" in page
    assert "| Kompact | status 400 |" in page
    assert page.count("Not measured: Headroom (not installed).") == 2


def test_a_promise_that_was_missed_is_shown_so(kept) -> None:
    assert "| words, median | 31 ms | at most 25 ms | **missed** |" in kept("search")


def test_the_page_opens_with_what_was_measured(kept) -> None:
    opening = " ".join(kept(*FOUND).split("Everything here ran")[0].split())
    assert "On a request of 2 MB the hook takes 4.25 ms and sends on 50 % of it (Kompact 1,500 ms)." in opening
    assert "2 MB there and back take 44 ms, 47 ms without it" in opening
    assert "50 sessions at once: half of the answers within 40 ms" in opening


def test_a_way_that_was_cut_off_is_named_with_it_at_its_line(kept) -> None:
    kept("peers")
    chart = (document.RESULTS / "peers.svg").read_text("utf-8")
    assert "Kompact (cut off after 2.0 MB)" in chart
    assert ">openmem<" in chart


def test_every_peer_has_a_line_of_its_own() -> None:
    looks = [str(sorted(style.items(), key=str)) for style in charts.PEERS.values()]
    assert len(set(looks)) == len(looks)
