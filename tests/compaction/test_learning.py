"""What a provider's count teaches. By the calibration of these tests a message costs its words, and a hundred
characters of thinking 26 tokens more: a report that says just so leaves it as it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from openmem_hook import tokens
from openmem_hook.compaction import estimate
from openmem_hook.compaction.active import ActiveEdits
from openmem_hook.compaction.estimate import Report, TokenCosts
from openmem_hook.compaction.learning import Lesson, Sample, learn
from openmem_hook.compaction.outgoing import Outgoing
from openmem_hook.model import History
from openmem_hook.tokens import Calibration, Sizes
from tests.compaction.sketches import history, index

BY_WORDS = Calibration((1.0, 1.0, 1.0, 0.2), tokens.starting("").doubt)
PART = tokens.PART_TOKENS * 0.2
THINKING = 10_000 * tokens.THINKING_TOKENS
FAMILY = 2.5


def sample(line: History, *, drops_thinking: bool = False, cut_id: str = "", **more: Any) -> Sample:
    costs = TokenCosts({}, {}, 0.0, BY_WORDS, FAMILY, drops_thinking)
    outgoing = Outgoing(line.facts, line.keys)
    whole = estimate.estimate_whole(line, outgoing, ActiveEdits(), costs)
    fields = {"outgoing": outgoing, "first_paid": line.lead, "whole": whole, "costs": costs, **more}
    return Sample(history=line, cut_id=cut_id, **fields)


def base(line: History, token: str, count: float, cut_id: str = "", **more: Any) -> Mapping[Any, Report]:
    """A report of the request that ended with this message."""
    return {
        (line.keys[index(line, token)], cut_id): Report(
            round(count), **{"overhead": 0.0, "family_rate": FAMILY, **more}
        )
    }


LINE = history("T1:words=1000 C1:words=2000 R1:words=3000 A1:words=1000 T2:words=3000")
"""The last two come new."""
BEFORE = 6000.0
NEW = 4000 + 2 * PART


def shares(lesson: Lesson, line: History = LINE) -> dict[str, int]:
    return {str(line.messages[line.keys.index(key)]): round(share) for key, share in lesson.row_tokens}


def test_a_first_report_tells_how_far_off_the_whole_was() -> None:
    lesson = learn(sample(LINE), {}, 12_000)
    assert lesson.offset == pytest.approx(12_000 - 10_000 - 5 * PART)
    assert (lesson.row_tokens, lesson.calibration) == ((), None)


def test_growth_since_a_report_is_shared_among_what_came_since() -> None:
    lesson = learn(sample(LINE), base(LINE, "R1", BEFORE), round(BEFORE + NEW))
    assert shares(lesson) == {"A1": 1000 + PART, "T2": 3000 + PART}


def test_a_larger_growth_is_larger_for_each_and_teaches_the_rate() -> None:
    lesson = learn(sample(LINE), base(LINE, "R1", BEFORE), round(BEFORE + 1.25 * NEW))
    assert shares(lesson) == pytest.approx({"A1": 1250, "T2": 3750}, abs=5)
    assert lesson.calibration is not None
    assert lesson.calibration.weights[0] > BY_WORDS.weights[0]


def test_growth_just_as_estimated_leaves_the_rate_and_makes_it_surer() -> None:
    lesson = learn(sample(LINE), base(LINE, "R1", BEFORE), round(BEFORE + NEW))
    assert lesson.calibration is not None
    assert lesson.calibration.weights == pytest.approx(BY_WORDS.weights, abs=0.001)
    assert lesson.calibration.evidence == round(NEW)


def test_the_newest_report_of_a_prefix_is_the_base() -> None:
    reports = {**base(LINE, "T1", 1), **base(LINE, "R1", BEFORE)}
    assert set(shares(learn(sample(LINE), reports, round(BEFORE + NEW)))) == {"A1", "T2"}


def test_a_report_of_the_same_request_is_no_base() -> None:
    lesson = learn(sample(LINE), base(LINE, "T2", BEFORE), round(BEFORE + NEW))
    assert (lesson.row_tokens, lesson.calibration) == ((), None)


def test_another_system_prompt_is_not_charged_to_messages() -> None:
    line = replace(LINE, overhead=Sizes(words=5000))
    of_overhead = sample(line).costs.of_steady_overhead(line)
    lesson = learn(sample(line), base(line, "R1", BEFORE, overhead=0.0), round(BEFORE + NEW + of_overhead))
    assert shares(lesson, line) == {"A1": 1000 + PART, "T2": 3000 + PART}


@pytest.mark.parametrize(
    "reports",
    [
        base(LINE, "R1", BEFORE, cut_id="another"),
        base(LINE, "R1", BEFORE, family_rate=3.2),
        base(history("T9"), "T9", BEFORE),
    ],
    ids=["under other cuts", "by another tokenizer", "of another history"],
)
def test_growth_since_what_can_not_be_compared_is_none(reports: Mapping[Any, Report]) -> None:
    lesson = learn(sample(LINE), reports, round(BEFORE + NEW))
    assert (lesson.row_tokens, lesson.calibration) == ((), None)
    assert lesson.offset is not None


@pytest.mark.parametrize(("first_paid", "is_base"), [(3, True), (4, False)])
def test_under_a_trim_a_report_counts_from_its_anchor_on(first_paid: int, is_base: bool) -> None:
    lesson = learn(sample(LINE, first_paid=first_paid), base(LINE, "R1", BEFORE), round(BEFORE + NEW))
    assert bool(lesson.row_tokens) is is_base


def test_what_stands_in_place_of_rows_takes_its_share_and_is_no_rows() -> None:
    facts = (*LINE.facts[:3], None, LINE.facts[4])
    outgoing = Outgoing(facts, (*LINE.keys[:3], None, None))
    lesson = learn(sample(LINE, outgoing=outgoing), base(LINE, "R1", BEFORE), round(BEFORE + 3000 + PART))
    assert lesson.row_tokens == []
    assert lesson.calibration is not None
    assert lesson.calibration.weights == pytest.approx(BY_WORDS.weights, abs=0.01)


def test_replaced_rows_take_no_share_of_what_came_with_them() -> None:
    line = history("T1:words=1000 C1:words=5000 R1:words=5000 A1:words=1000 T2:words=1000")
    facts = (line.facts[0], None, replace(line.facts[2], sizes=Sizes(words=500)), *line.facts[3:])
    outgoing = Outgoing(facts, (line.keys[0], None, None, *line.keys[3:]))
    lesson = learn(sample(line, outgoing=outgoing), base(line, "T1", 1000), 1000 + 500 + 2000)
    assert shares(lesson, line) == {"A1": pytest.approx(1000, abs=20), "T2": pytest.approx(1000, abs=20)}


# --- thinking that is no longer counted ---------------------------------------------------------------------

FINISHED_TURN = history("T1 C1:think=10000 R1 A1:words=1000 T2:words=3000")
"""The thinking of `C1` stops counting when `T2` comes."""
AFTER = round(BEFORE + NEW - THINKING)


def test_dropped_thinking_is_not_charged_to_what_came() -> None:
    lesson = learn(
        sample(FINISHED_TURN, drops_thinking=True), base(FINISHED_TURN, "R1", BEFORE), round(BEFORE + NEW - THINKING)
    )
    assert shares(lesson, FINISHED_TURN) == {"A1": 1000 + PART, "T2": 3000 + PART}


def test_learning_never_counts_dropped_thinking() -> None:
    lesson = learn(
        sample(FINISHED_TURN, drops_thinking=True), base(FINISHED_TURN, "R1", BEFORE), round(BEFORE + NEW - THINKING)
    )
    assert lesson.calibration is not None
    assert lesson.calibration.weights == pytest.approx(BY_WORDS.weights, abs=0.005)


def test_where_a_provider_keeps_thinking_nothing_is_dropped() -> None:
    lesson = learn(sample(FINISHED_TURN), base(FINISHED_TURN, "R1", BEFORE), round(BEFORE + NEW))
    assert shares(lesson, FINISHED_TURN) == {"A1": 1000 + PART, "T2": 3000 + PART}


def test_inside_a_turn_nothing_is_dropped() -> None:
    line = history("T1 C1:think R1 C2:words=1000 R2:words=3000")
    lesson = learn(sample(line, drops_thinking=True), base(line, "R1", BEFORE), round(BEFORE + NEW))
    assert shares(lesson, line) == {"C2": 1000 + PART, "R2": 3000 + PART}


# --- nonsense -----------------------------------------------------------------------------------------------


def test_no_count_teaches_nothing() -> None:
    assert learn(sample(LINE), base(LINE, "R1", BEFORE), None) == Lesson()


@pytest.mark.parametrize("count", [0, 1, 10**9, round(BEFORE), round(BEFORE) - 3000])
def test_a_difference_that_can_not_be_theirs_is_nobodys_and_teaches_no_rate(count: int) -> None:
    lesson = learn(sample(LINE), base(LINE, "R1", BEFORE), count)
    assert (lesson.row_tokens, lesson.calibration) == ((), None)
    assert lesson.offset == pytest.approx(count - 10_000 - 5 * PART)
