"""The estimates against real sessions, where the corpus is there.

The bounds are those that the benchmark promises; no constant was fitted to these sessions.
"""

from __future__ import annotations

import pytest

from bench import estimates


@pytest.fixture(scope="module")
def claude() -> list[estimates.GradedSession]:
    folder = estimates.corpus_dir()
    if not folder.is_dir():
        pytest.skip(f"no recorded sessions at {folder} (set OPENMEM_CORPUS)")
    sessions = [graded for graded in estimates.load(folder) if estimates.is_claude(graded)]
    if not sessions:
        pytest.skip(f"no Claude session in {folder}")
    estimates.grade(sessions)
    return sessions


def quantiles(claude: list[estimates.GradedSession], what: str) -> tuple[float, float]:
    errors = estimates.pooled(claude, what)
    return estimates.quantile(errors, 0.5), estimates.quantile(errors, 0.9)


def test_the_next_request_is_estimated_to_half_a_percent(claude: list[estimates.GradedSession]) -> None:
    assert estimates.mean(estimates.pooled(claude, "next")) <= 0.005


def test_after_a_cut_measured_growth_is_off_by_one_percent_and_by_four_at_worst_of_ten(
    claude: list[estimates.GradedSession],
) -> None:
    half, ninth = quantiles(claude, "growth")
    assert half <= 0.01
    assert ninth <= 0.04


@pytest.mark.parametrize("what", ["rate", "rate+"])
def test_after_a_cut_the_learned_rate_alone_is_off_by_two_and_a_half_percent(
    claude: list[estimates.GradedSession], what: str
) -> None:
    half, ninth = quantiles(claude, what)
    assert half <= 0.025
    assert ninth <= 0.08


def test_tables_align() -> None:
    lines = estimates.table(["model", "n"], [["a long name", "1"], ["b", "1000"]]).splitlines()
    assert len({len(line) for line in lines}) == 1
