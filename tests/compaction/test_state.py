"""What is known of a session: every operation gives a new value, and whoever holds the old one still sees a whole."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import pytest

from openmem_hook import fingerprint
from openmem_hook.compaction.edits import Edit, Edits, EditState
from openmem_hook.compaction.estimate import Report
from openmem_hook.compaction.state import SessionState, row_name
from openmem_hook.compaction.threads import Thread
from openmem_hook.compaction.write import Event, NewRow, UsageWrite, Write
from openmem_hook.model import History
from tests.compaction.sketches import cut, history, splice, state_of, swap, thread_of

LINE = history("T1 C1 R1 A1 T2")
NEXT = history("T1 C1 R1 A1 T2 C2 R2")


@contextmanager
def assert_unchanged(*states: SessionState) -> Iterator[None]:
    """None of the states that somebody holds is altered inside the block."""
    before = [contents(state) for state in states]
    yield
    assert [contents(state) for state in states] == before


def contents(state: SessionState) -> dict[str, Any]:
    values = {field.name: getattr(state, field.name) for field in fields(state)}
    return {
        name: copy.deepcopy(dict(value.by_key) if isinstance(value, Edits) else value) for name, value in values.items()
    }


def rows(line: History, start: int = 0) -> list[NewRow]:
    return [
        NewRow(
            key=line.keys[i],
            past=line.chain[i - 1] if i else fingerprint.ROOT,
            digest=line.facts[i].digest,
            role="user",
            kind="typed",
            tool_name="",
            text="",
            in_context=True,
            format="chat",
            body=b"{}",
        )
        for i in range(start, len(line))
    ]


def write(line: History, start: int = 0, *edits: Edit, thread: Thread | None = None) -> Write:
    return Write(thread or thread_of(line), rows(line, start), Edits.of(edits))


def usage(line: History, **more: Any) -> UsageWrite:
    values: dict[str, Any] = {
        "report_id": "call", "key": line.keys[-1], "cut": "", "tokens": 900, "overhead": 5.0, "family_rate": 2.5,
        "row_tokens": (), "thread": 1, "offset": None, "event": Event("usage", {}), "now": 0.0,
    }  # fmt: skip
    return UsageWrite(**{**values, **more})


# --- rows ---------------------------------------------------------------------------------------------------


def test_a_state_of_rows_knows_names_followers_and_owners() -> None:
    state = state_of(LINE, tokens=10.0)
    assert dict(state.row_tokens) == dict.fromkeys(LINE.keys, 10.0)
    assert state.row_keys[LINE.facts[3].digest] == LINE.keys[3]
    assert state.followers[LINE.chain[2]] == {LINE.facts[3].digest}
    assert state.followers[fingerprint.ROOT] == {LINE.facts[0].digest}
    assert set(state.owners.values()) == {1}


def test_followers_of_a_branch_are_told_apart() -> None:
    other = history("T1 C1 R1 A9 T9")
    state = state_of(LINE, other)
    assert state.followers[LINE.chain[2]] == {LINE.facts[3].digest, other.facts[3].digest}


def test_a_row_that_is_known_counts_once_and_keeps_its_tokens() -> None:
    state = state_of(LINE, tokens=10.0)
    with assert_unchanged(state):
        again = state.with_rows(row_name(row, 2) for row in rows(LINE))
    assert again == state


def test_the_newest_row_of_a_message_gives_it_its_name() -> None:
    line = history("T1 A1 T1")
    assert state_of(line).row_keys[line.facts[0].digest] == line.keys[2]


# --- after a decision ---------------------------------------------------------------------------------------


def test_after_a_decision_its_rows_edits_and_thread_are_known() -> None:
    state, trim = state_of(LINE), cut(NEXT, "A1")
    thread = thread_of(NEXT)
    with assert_unchanged(state):
        later = state.after(write(NEXT, 5, trim), thread)
    assert set(later.row_tokens) == set(NEXT.keys)
    assert list(later.edits) == [trim]
    assert dict(later.threads) == {1: thread}
    assert later.owners[NEXT.keys[-1]] == 1


def test_rows_belong_to_the_thread_that_was_stored() -> None:
    later = SessionState().after(write(LINE), replace(thread_of(LINE), id=7))
    assert set(later.owners.values()) == {7}


def test_what_was_measured_of_a_row_whose_result_is_swapped_counts_no_more() -> None:
    state, edit = state_of(LINE, tokens=10.0), swap(LINE, "R1")
    with assert_unchanged(state):
        later = state.after(write(LINE, 5, edit), thread_of(LINE))
    assert [key for key, cost in later.row_tokens.items() if cost is None] == [edit.key]


def test_a_swap_of_a_message_that_is_not_stored_makes_it_not_known() -> None:
    later = SessionState().after(write(LINE, 5, swap(LINE, "R1")), thread_of(LINE))
    assert not later.row_tokens


@pytest.mark.parametrize("edit", [cut(LINE, "A1"), cut(LINE, "R1", start="C1"), splice(LINE, "A1")])
def test_cuts_and_splices_replace_no_row(edit: Edit) -> None:
    later = state_of(LINE, tokens=10.0).after(write(LINE, 5, edit), thread_of(LINE))
    assert set(later.row_tokens.values()) == {10.0}


def test_edits_that_the_database_did_not_hold_are_stored_with_the_first_write_that_has_edits() -> None:
    edit = cut(LINE, "A1")
    state = replace(state_of(LINE), edits=Edits.of([edit]), unstored_edits=Edits.of([edit]))
    assert state.after(write(NEXT, 5), thread_of(NEXT)).unstored_edits
    assert not state.after(write(NEXT, 5, edit), thread_of(NEXT)).unstored_edits


def test_a_later_edit_takes_the_place_of_the_one_before_it() -> None:
    first, second = swap(LINE, "R1"), swap(LINE, "R1", text="x")
    state = SessionState().after(write(LINE, 0, first), thread_of(LINE)).after(write(LINE, 5, second), thread_of(LINE))
    assert list(state.edits) == [second]


# --- after a report -----------------------------------------------------------------------------------------


def test_a_report_is_known_by_its_request_and_the_cuts_that_stood() -> None:
    state = state_of(LINE)
    with assert_unchanged(state):
        later = state.after_report(usage(LINE)).after_report(usage(LINE, cut="cut-1", tokens=300))
    key = LINE.keys[-1]
    assert dict(later.reports) == {(key, ""): Report(900, 5.0, 2.5), (key, "cut-1"): Report(300, 5.0, 2.5)}


def test_a_report_measures_rows_that_are_known() -> None:
    measures = [(LINE.keys[0], 12.0), (b"lost", 99.0)]
    later = state_of(LINE).after_report(usage(LINE, row_tokens=measures))
    assert later.row_tokens[LINE.keys[0]] == 12.0
    assert b"lost" not in later.row_tokens


def test_a_report_sets_its_threads_offset() -> None:
    state = state_of(LINE)
    with assert_unchanged(state):
        later = state.after_report(usage(LINE, offset=70.0))
    assert later.threads[1].offset == 70.0
    assert state.after_report(usage(LINE, offset=70.0, thread=9)).threads == state.threads


def test_a_response_without_a_count_is_no_report() -> None:
    assert not state_of(LINE).after_report(usage(LINE, tokens=None)).reports


def test_the_visible_cut_of_a_thread_is_its_newest() -> None:
    state = state_of(LINE)
    with assert_unchanged(state):
        later = state.with_newest_cut(1, "cut-1")
    assert dict(later.newest_cut_ids) == {1: "cut-1"}
    assert later.with_newest_cut(1, "cut-1") is later


# --- a database that was lost -------------------------------------------------------------------------------


def memory_with(*edits: Edit) -> SessionState:
    """What memory knows: a line with these edits in a thread with rules of its own."""
    state = state_of(LINE, thread=thread_of(LINE, note=3, result_chars=77))
    return replace(state, edits=Edits.of(edits), newest_cut_ids={1: "cut-1"})


def test_what_was_sent_is_carried_over_to_a_state_that_lacks_it() -> None:
    edits = [cut(LINE, "A1"), swap(LINE, "R1"), splice(LINE, "A1"), cut(LINE, "R1", start="C1")]
    memory = memory_with(*edits)
    with assert_unchanged(memory):
        state = memory.carry_over(SessionState())
    assert list(state.edits) == list(state.unstored_edits) == edits
    assert not state.row_tokens
    assert set(state.origins) == set(LINE.keys)
    assert state.origin_of(LINE.keys) == memory.threads[1]
    assert dict(state.newest_cut_ids) == {1: "cut-1"}


@pytest.mark.parametrize(("state", "is_carried"), [("active", True), ("prepared", True), ("abandoned", False)])
def test_what_is_abandoned_is_not_carried_over(state: EditState, is_carried: bool) -> None:
    edit = cut(LINE, "A1", state=state)
    assert bool(memory_with(edit).carry_over(SessionState()).unstored_edits) is is_carried


def test_an_edit_that_the_database_calls_abandoned_stays_so() -> None:
    edit = cut(LINE, "A1")
    fresh = replace(state_of(LINE), edits=Edits.of([replace(edit, state="abandoned")]))
    state = memory_with(edit).carry_over(fresh)
    assert [other.state for other in state.edits] == ["abandoned"]
    assert not state.unstored_edits


def test_a_state_that_holds_all_is_taken_as_it_is() -> None:
    memory = memory_with(cut(LINE, "A1"))
    fresh = replace(memory, newest_cut_ids={})
    state = memory.carry_over(fresh)
    assert not state.unstored_edits
    assert not state.origins
    assert state.edits == fresh.edits


def test_lost_rows_are_those_that_the_new_state_lacks() -> None:
    assert memory_with().lost_rows(state_of(history("T1 C1"))) == list(LINE.keys[2:])


# --- forks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_line", "answer"),
    [("T8 A8 T9", True), ("T1", False), ("T1 C9 R9", False), ("T9 C1 R1", True)],
    ids=["nothing in common", "the first message", "the first message and a branch", "later messages alone"],
)
def test_a_history_is_new_to_a_session_that_shares_its_first_message_not(request_line: str, answer: bool) -> None:
    assert state_of(LINE).is_new(history(request_line), "") is answer


def test_no_history_is_new_to_a_session_with_a_trim() -> None:
    state = replace(state_of(LINE), edits=Edits.of([cut(LINE, "A1")]))
    assert not state.is_new(history("T8"), "")
    assert replace(state, edits=Edits.of([swap(LINE, "R1")])).is_new(history("T8"), "")


def test_a_fork_adopts_the_deepest_trim_and_what_stands_at_messages_of_both() -> None:
    own = [cut(LINE, "R1"), cut(LINE, "A1"), swap(LINE, "R1"), splice(LINE, "A1"), cut(LINE, "R1", start="C1")]
    foreign = [cut(NEXT, "R2"), swap(NEXT, "R2"), splice(NEXT, "C2")]
    parent = replace(state_of(NEXT), edits=Edits.of([*own, *foreign]))
    fork, anchor = history("T1 C1 R1 A1 T9"), LINE.keys[3]
    empty = SessionState()
    with assert_unchanged(parent, empty):
        state = empty.adopt(fork, anchor, parent)
    assert set(state.edits) == set(state.unstored_edits) == {*own[1:]}
    assert dict(state.origins) == {anchor: parent.threads[1]}


def test_nothing_is_adopted_where_nothing_is_shared() -> None:
    parent = replace(state_of(LINE), edits=Edits.of([cut(LINE, "A1")]))
    empty = SessionState()
    assert empty.adopt(history("T8 A8"), LINE.keys[3], parent) is empty


@pytest.mark.parametrize("state", ["prepared", "abandoned"])
def test_what_is_not_active_is_not_adopted(state: EditState) -> None:
    parent = replace(state_of(LINE), edits=Edits.of([cut(LINE, "A1")]).with_state(state))
    empty = SessionState()
    assert empty.adopt(NEXT, LINE.keys[3], parent) is empty


def test_the_origin_of_a_history_is_the_thread_of_its_newest_message_that_is_known() -> None:
    first, second = thread_of(LINE), thread_of(NEXT, 2)
    state = SessionState(origins={LINE.keys[1]: first, LINE.keys[3]: second})
    assert state.origin_of(LINE.keys) == second
    assert state.origin_of(LINE.keys[:3]) == first
    assert state.origin_of([]) is None
