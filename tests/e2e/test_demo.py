"""The demo: its numbers, its picture, and that it says no when something of it failed."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from demo import report
from demo.chart import HEIGHT, WIDTH, chart
from demo.session import DETAIL, DemoSession, PromptUse
from demo.store_contents import StoreContents, StoreLine

REPO = Path(__file__).parents[2]
THROUGH = [
    PromptUse(1000, 0),
    PromptUse(2000, 1000),
    PromptUse(3000, 2000),
    PromptUse(1500, 900),
    PromptUse(2500, 1500),
    PromptUse(1400, 900),
]
DIRECT = [PromptUse(900 * n, 900 * (n - 1)) for n in range(1, 7)]
GOOD = DemoSession(THROUGH, DIRECT, [], {"messages": []}, sent_messages=11)
TRIM = {"tokens_before": 3100, "messages_left": 4}
USED = {"hook_ms": 4.0}
STORED = StoreContents(Path("s.db"), 11, [TRIM, TRIM], [], [USED] * 6, [StoreLine(DETAIL, 5, 3, "Read", False)])

BROKEN = {
    "a refused request": ({"refusals": ["no"]}, {}, "accepted all"),
    "a single trim": ({}, {"trims": [TRIM]}, "more than once"),
    "a prompt over the limit": ({"through": [PromptUse(3031, 0)]}, {}, "no prompt went over"),
    "a cache miss without a trim": (
        {"through": [*THROUGH[:2], PromptUse(3000, 0), *THROUGH[3:]]},
        {},
        "missed at trims",
    ),
    "a lost usage record": ({}, {"usage": [USED] * 5}, "one usage record"),
    "a lost message": ({}, {"messages": 10}, "every message is in the store"),
    "a detail that never left": ({"last_body": {"messages": [DETAIL]}}, {}, "not in the last request"),
    "a detail that was lost": ({}, {"matches": []}, "read back"),
    "a detail still marked as shown": ({}, {"matches": [StoreLine(DETAIL, 5, 3, "Read", True)]}, "read back"),
}


def failed(session: DemoSession, stored: StoreContents) -> list[str]:
    return [check.claim for check in report.checks(session, stored, trim_at=3000) if not check.holds]


def test_a_session_that_went_well_passes_all_checks() -> None:
    assert failed(GOOD, STORED) == []


@pytest.mark.parametrize(("session", "stored", "said"), BROKEN.values(), ids=BROKEN)
def test_each_thing_that_can_fail_is_noticed(session: dict, stored: dict, said: str) -> None:
    assert any(said in line for line in failed(replace(GOOD, **session), replace(STORED, **stored)))


def test_a_prompt_may_exceed_the_limit_by_what_an_estimate_may_be_off() -> None:
    slightly_over = replace(GOOD, through=[*THROUGH[:2], PromptUse(3030, 2000), *THROUGH[3:]])
    assert failed(slightly_over, STORED) == []


def test_a_break_is_a_request_whose_cache_missed_and_a_cut_is_a_shorter_one() -> None:
    assert report.breaks(THROUGH) == report.cut_places(THROUGH) == [3, 5]
    assert report.breaks(DIRECT) == report.cut_places(DIRECT) == []


def test_the_chart_fits_a_terminal_and_shows_both_lines_and_the_limit() -> None:
    rows = [row.plain for row in chart([n % 40 for n in range(300)], list(range(300)), limit=100)]
    assert len(rows) == HEIGHT + 2
    assert max(map(len, rows)) <= WIDTH + 9 < 80
    assert {"█", "·", "╌"} <= set("".join(rows))


def test_the_chart_of_a_short_session_is_as_narrow_as_it() -> None:
    assert [row.plain for row in chart([1, 2], [1, 3], limit=2)][-2].endswith("└──")


def demo(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "demo", *words]
    return subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.e2e
def test_the_demo_trims_and_reads_a_detail_back_and_leaves_nothing_behind() -> None:
    done = demo("--exchanges", "160")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("✓") == 8
    assert f"“{DETAIL}”" in done.stdout
    assert re.search(r"│ trims +│ +│ +[2-9] │", done.stdout)
    assert "store and logs" not in done.stdout
