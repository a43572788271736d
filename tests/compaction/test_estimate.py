"""What a request will cost, from the best source there is. By the calibration of these tests a message costs its words,
and a hundred characters of thinking 26 tokens more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from openmem_hook import tokens
from openmem_hook.compaction.active import ActiveCut, ActiveEdits
from openmem_hook.compaction.estimate import (
    Report,
    TokenCosts,
    estimate_each,
    estimate_head,
    estimate_prompt,
    estimate_whole,
    find_first_paid,
    find_last_typed,
)
from openmem_hook.compaction.outgoing import Outgoing
from openmem_hook.model import Facts, History
from openmem_hook.tokens import Calibration, Sizes
from tests.compaction.sketches import cut, history, index

BY_WORDS = Calibration((1.0, 1.0, 1.0, 0.0), tokens.starting("").doubt)
THINKING = 100 * tokens.THINKING_TOKENS
FAMILY, OTHER_FAMILY = 2.5, 3.2


def costs(**more: Any) -> TokenCosts:
    fields: dict[str, Any] = {"reports": {}, "row_tokens": {}, "offset": 0.0, "calibration": BY_WORDS, **more}
    return TokenCosts(family_rate=FAMILY, **fields)


def as_it_is(line: History) -> Outgoing:
    return Outgoing(line.facts, line.keys)


def trim_at(line: History, anchor: str, words: int = 50) -> ActiveEdits:
    at = index(line, anchor)
    return ActiveEdits((ActiveCut(cut(line, anchor, head_sizes=Sizes(words=words)), line.lead, at),))


def reports(line: History, cut_id: str = "", family: float = FAMILY, **by_token: int) -> Mapping[Any, Report]:
    """Reports of the requests that ended with these messages, without an overhead."""
    return {(line.keys[index(line, token)], cut_id): Report(count, 0.0, family) for token, count in by_token.items()}


LINE = history("T1 C1 R1:words=1000 A1 T2")


# --- the whole ----------------------------------------------------------------------------------------------


def test_without_a_report_every_message_is_priced_and_the_offset_added() -> None:
    assert estimate_prompt(LINE, as_it_is(LINE), ActiveEdits(), costs()) == 1400
    assert estimate_prompt(LINE, as_it_is(LINE), ActiveEdits(), costs(offset=70.0)) == 1470


def test_system_prompt_and_tools_count() -> None:
    line = replace(LINE, overhead=Sizes(words=300))
    assert estimate_whole(line, as_it_is(line), ActiveEdits(), costs()) == 1700


def test_a_measured_message_costs_what_was_measured() -> None:
    rows = {LINE.keys[2]: 400.0, LINE.keys[0]: None}
    assert estimate_prompt(LINE, as_it_is(LINE), ActiveEdits(), costs(row_tokens=rows)) == 800


def test_a_trim_counts_its_head_and_what_is_behind_it() -> None:
    edits = trim_at(LINE, "R1")
    assert estimate_head(LINE, edits, costs()) == 50
    assert estimate_whole(LINE, as_it_is(LINE), edits, costs()) == 250


def test_the_lead_counts_before_a_head() -> None:
    line = history("S1 T1 C1 R1 A1 T2", lead=1)
    assert estimate_whole(line, as_it_is(line), trim_at(line, "A1"), costs()) == 100 + 50 + 100


def test_what_a_compaction_stands_for_costs_nothing() -> None:
    line = history("T1 C1 R1 P1 T2")
    assert estimate_each(line, as_it_is(line), costs()) == [0, 0, 0, 100, 100]
    assert estimate_whole(line, as_it_is(line), ActiveEdits(), costs()) == 200
    assert find_first_paid(line, ActiveEdits()) == 4


def test_the_head_of_a_trim_before_a_compaction_costs_nothing() -> None:
    line = history("T1 C1 R1 A1 T2 P1 T3")
    assert estimate_head(line, trim_at(line, "R1"), costs()) == 0
    assert estimate_head(line, trim_at(line, "P1"), costs()) == 50


def test_an_estimate_is_never_below_nothing() -> None:
    assert estimate_prompt(LINE, as_it_is(LINE), ActiveEdits(), costs(offset=-(10**6))) == 0


# --- inner cuts ---------------------------------------------------------------------------------------------


def test_what_an_inner_cut_replaced_is_charged_nothing_whatever_was_measured() -> None:
    line = history("T1 C1 R1 C2 R2 A2 T3")
    head: Facts = replace(line.facts[4], sizes=Sizes(words=7))
    facts: Sequence[Facts | None] = (*line.facts[:1], None, None, None, head, *line.facts[5:])
    outgoing = Outgoing(facts, (line.keys[0], None, None, None, None, *line.keys[5:]))
    rows = dict.fromkeys(line.keys, 1000.0)
    assert estimate_each(line, outgoing, costs(row_tokens=rows)) == [1000, 0, 0, 0, 7, 1000, 1000]


def test_a_report_paid_for_the_head_of_an_inner_cut_and_growth_comes_behind_it() -> None:
    line = history("T1 C1 R1 A1 T2")
    outgoing = Outgoing(
        (line.facts[0], None, line.facts[2], *line.facts[3:]), (line.keys[0], None, None, *line.keys[3:])
    )
    past = reports(line, R1=500)
    assert estimate_prompt(line, outgoing, ActiveEdits(), costs(reports=past)) == 700


# --- reports ------------------------------------------------------------------------------------------------


def test_the_newest_report_of_a_prefix_counts_and_what_came_since() -> None:
    past = reports(LINE, T1=90, R1=800)
    assert estimate_prompt(LINE, as_it_is(LINE), ActiveEdits(), costs(reports=past, offset=999.0)) == 1000


def test_the_report_of_the_very_request_is_its_cost() -> None:
    assert estimate_prompt(LINE, as_it_is(LINE), ActiveEdits(), costs(reports=reports(LINE, T2=777))) == 777


def test_growth_is_measured_where_its_rows_were() -> None:
    past, rates = reports(LINE, R1=800), {LINE.keys[3]: 40.0}
    assert estimate_prompt(LINE, as_it_is(LINE), ActiveEdits(), costs(reports=past, row_tokens=rates)) == 940


def test_a_report_under_other_cuts_is_none() -> None:
    past = reports(LINE, cut_id="another", R1=800)
    assert estimate_prompt(LINE, as_it_is(LINE), ActiveEdits(), costs(reports=past)) == 1400


@pytest.mark.parametrize(("token", "answer"), [("C1", 150), ("R1", 700 + 100), ("A1", 700)])
def test_under_a_trim_only_reports_from_its_anchor_on_count(token: str, answer: int) -> None:
    line = history("T1 C1 R1 A1")
    edits = trim_at(line, "R1")
    past = reports(line, cut_id=edits.cut_id, **{token: 700})
    assert estimate_prompt(line, as_it_is(line), edits, costs(reports=past)) == answer


def test_another_system_prompt_is_no_growth_of_the_messages() -> None:
    line = replace(LINE, overhead=Sizes(words=1000))
    steady = costs().of_steady_overhead(line)
    past = {(line.keys[2], ""): Report(800 + round(steady), steady, FAMILY)}
    assert estimate_prompt(line, as_it_is(line), ActiveEdits(), costs(reports=past)) == pytest.approx(
        800 + round(steady) + 200
    )
    other = replace(LINE, overhead=Sizes())
    assert estimate_prompt(other, as_it_is(other), ActiveEdits(), costs(reports=past)) == pytest.approx(1000, abs=1)


def test_another_tokenizers_count_and_measures_say_nothing() -> None:
    past = reports(LINE, family=OTHER_FAMILY, R1=80_000)
    rows = dict.fromkeys(LINE.keys, 9000.0)
    estimate = estimate_prompt(LINE, as_it_is(LINE), ActiveEdits(), costs(reports=past, row_tokens=rows, offset=50.0))
    assert estimate == 1400


# --- thinking of finished turns -----------------------------------------------------------------------------

THINKING_TURNS = history("T1 C1:think R1 A1:think T2 C2:think R2")


@pytest.mark.parametrize(("drops", "thoughts"), [(True, 1), (False, 3)])
def test_where_a_provider_drops_the_thinking_of_finished_turns_the_running_one_counts(
    drops: bool, thoughts: int
) -> None:
    whole = estimate_whole(THINKING_TURNS, as_it_is(THINKING_TURNS), ActiveEdits(), costs(drops_thinking=drops))
    assert whole == pytest.approx(700 + thoughts * THINKING)


def test_a_turn_that_begins_ends_the_counting_of_the_one_before() -> None:
    line = history("T1 C1:think R1 A1:think T2")
    past = reports(line, R1=1000)
    growing = costs(reports=past)
    assert estimate_prompt(line, as_it_is(line), ActiveEdits(), growing) == pytest.approx(1200 + THINKING)
    dropping = replace(growing, drops_thinking=True)
    assert estimate_prompt(line, as_it_is(line), ActiveEdits(), dropping) == pytest.approx(1200 - THINKING)


def test_inside_a_turn_nothing_stops_counting() -> None:
    line = history("T1 C1:think R1 C2:think R2")
    dropping = costs(reports=reports(line, R1=1000), drops_thinking=True)
    assert estimate_prompt(line, as_it_is(line), ActiveEdits(), dropping) == pytest.approx(1200 + THINKING)


def test_the_last_typed_message_is_looked_for_before_a_place() -> None:
    assert [find_last_typed(THINKING_TURNS, end) for end in (None, 5, 4, 1, 0)] == [4, 4, 0, 0, 0]
