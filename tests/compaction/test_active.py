"""Which edits stand in a request: the line that they were decided on, the edits, the request, and where they are in it.

In a line, brackets are around what a trim replaces, parentheses around what an inner cut does, and a tilde is at a
message that is spliced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmem_hook.compaction.active import (
    RECENT_OUTPUTS,
    ActiveEdits,
    find_active_edits,
    find_digest_before,
    find_recent_outputs,
)
from openmem_hook.compaction.edits import Edit, Edits, EditState
from openmem_hook.compaction.trim import find_choices
from openmem_hook.model import Format, History
from tests.compaction.generated import Sketch, sketches
from tests.compaction.sketches import active_shape, cut, facts_of, history, index, splice, state_of, swap
from tests.kit.profile import examples

EditOf = Callable[[History], Edit]
"""Makes an edit on the history that it is decided on."""


def trim_at(anchor: str, visible: str = "T1") -> EditOf:
    return lambda line: cut(line, anchor, visible)


def inner(start: str, anchor: str, visible: str = "") -> EditOf:
    return lambda line: cut(line, anchor, visible, start=start)


def splice_at(message: str) -> EditOf:
    return lambda line: splice(line, message)


def find(request: History, decided_on: str, edits: Sequence[EditOf]) -> tuple[History, ActiveEdits]:
    """The edits that stand in a request, of a session that stored the line which they were decided on."""
    line = history(decided_on)
    state = state_of(line)
    return find_active_edits(request, Edits.of(edit(line) for edit in edits), state.followers, state.row_keys)


Case = tuple[str, Sequence[EditOf], str]
"""The line that edits were decided on, the edits, and a request with marks where they stand."""


def check(case: Case) -> None:
    decided_on, edits, answer = case
    line, active = find(history(re.sub(r"[][()~]", "", answer)), decided_on, edits)
    assert active_shape(line, active) == re.sub(r":\w+", "", answer)


BASE = "T1 C1 R1 C2 R2 A2 T3"
REPETITION = "T1 A1 " * (RECENT_OUTPUTS + 4)

TRIMS: dict[str, Case] = {
    # Exact: the anchor's fingerprint is in the chain.
    "exact": (BASE, [trim_at("A2")], "[T1 C1 R1 C2 R2 A2] T3 C3 R3"),
    "exact at the end": (BASE, [trim_at("A2")], "[T1 C1 R1 C2 R2 A2]"),
    "not in a request that ends before it": (BASE, [trim_at("A2")], "T1 C1 R1 C2 R2"),
    "the deepest of several": (BASE, [trim_at("R1"), trim_at("A2"), trim_at("R2")], "[T1 C1 R1 C2 R2 A2] T3"),
    "an earlier one after a rewind": (BASE, [trim_at("R1"), trim_at("A2")], "[T1 C1 R1] C9 R9"),
    # Drift: the anchor is found by its digest.
    "a message came before it": (BASE, [trim_at("A2")], "[T1 N9 C1 R1 C2 R2 A2] T3"),
    "a message that is not shown left": (
        "T1 N1 C1 R1 C2 R2 A2 T3",
        [trim_at("A2")],
        "[T1 C1 R1 C2 R2 A2] T3",
    ),
    "a message that is not shown was edited": (
        "T1 A1 T2 C2 R2 A2 T3",
        [trim_at("A2", "T1")],
        "[T1 A1 T2' C2 R2 A2] T3",
    ),
    "a result that is not shown was edited": (BASE, [trim_at("A2")], "[T1 C1 R1' C2 R2 A2] T3"),
    "a message that is shown was edited": (BASE, [trim_at("A2")], "T1' C1 R1 C2 R2 A2 T3"),
    "a message that is shown left": (BASE, [trim_at("A2", "T1 C1 R1")], "T1 N9 C1 C2 R2 A2 T3"),
    "messages that are shown changed places": (BASE, [trim_at("A2", "T1 C1 R1")], "T1 R1 C1 C2 R2 A2 T3"),
    "another branch, with other outputs": (BASE, [trim_at("A2")], "T1 C9 R9 C2 R2 A2 T3"),
    "another branch, with an output more": (BASE, [trim_at("A2")], "T1 C1 R1 C2 R2 C9 R9 A2 T3"),
    "outputs before the ones that are compared may differ": (
        f"T1 A0 {' '.join(f'T{n} A{n}' for n in range(1, RECENT_OUTPUTS + 1))}",
        [trim_at(f"A{RECENT_OUTPUTS}", "")],
        f"[T1 A9' {' '.join(f'T{n} A{n}' for n in range(1, RECENT_OUTPUTS + 1))}]",
    ),
    "the deepest through drift": (BASE, [trim_at("R1"), trim_at("A2")], "[T1 N9 C1 R1 C2 R2 A2] T3"),
    "an exact one behind one that drifted": (
        "T1 C1 R1 N1 T2 A2", [trim_at("R1"), trim_at("T2")], "[T1 N9 C1 R1 N1 T2] A9"),
    "a deeper one drifted behind an exact one": (BASE, [trim_at("R1"), trim_at("A2")], "[T1 C1 R1 N9 C2 R2 A2] T3"),
    # Typed words are not unique: both neighbours have to be there.
    "a typed anchor": ("T1 A1 T2 A2", [trim_at("T2")], "[T1 A1 T2] A2"),
    "a typed anchor that drifted": ("T1 A1 T2 A2", [trim_at("T2")], "[T1 N9 A1 T2] A2"),
    "a typed anchor that drifted, at the end": ("T1 A1 T2 A2", [trim_at("T2")], "[T1 N9 A1 T2]"),
    "a typed anchor with another message before it": ("T1 A1 T2 A2", [trim_at("T2")], "T1 A1 N9 T2 A2"),
    "a typed anchor with another message behind it": ("T1 A1 T2 A2", [trim_at("T2")], "T1 N9 A1 T2 A9"),
    "a reminder before it is no neighbour": ("T1 A1 T2 A2", [trim_at("T2")], "[T1 N8 A1 N9:unnamed T2] A2"),
    "a result as anchor needs no neighbour": ("T1 C1 R1 A1", [trim_at("R1")], "[T1 C1 N9 R1] A9"),
    # What was open when it was cut away.
    "an open call that stays open": ("T1 C1 A1 T2", [trim_at("A1")], "[T1 C1 A1] T2 A2"),
    "an open call that is answered later": ("T1 C1 A1 T2", [trim_at("A1")], "T1 C1 A1 T2 R1"),
    "and so through drift": ("T1 C1 A1 T2", [trim_at("A1")], "T1 N9 C1 A1 T2 R1"),
    # A history that repeats itself.
    "the place nearest to where it stood": (
        REPETITION,
        [lambda line: replace(cut(line, "A1", "T1"), position=19, anchor=line.keys[19])],
        f"[T1 N9 A1 {'T1 A1 ' * 9}".strip() + "] T1 A1 T1 A1",
    ),
    "nothing that was known": (BASE, [trim_at("A2")], "T8 A8 T9"),
}  # fmt: skip


@pytest.mark.parametrize("name", TRIMS)
def test_where_a_trim_stands(name: str) -> None:
    check(TRIMS[name])


def test_another_system_prompt_is_no_drift() -> None:
    line, request = history("S1 T1 C1 R1 A1 T2", lead=1), history("S2 S3 T1 C1 R1 A1 T2", lead=2)
    state = state_of(line)
    request, active = find_active_edits(request, Edits.of([cut(line, "A1", "T1")]), state.followers, state.row_keys)
    assert active_shape(request, active) == "S2 S3 [T1 C1 R1 A1] T2"
    assert request.keys[2:] == line.keys[1:]


LONG = "T1 C1 R1 C2 R2 C3 R3 C4 R4 A4 T5"

INNER_CUTS: dict[str, Case] = {
    "exact": (LONG, [inner("C2", "R3")], "T1 C1 R1 (C2 R2 C3 R3) C4 R4 A4 T5"),
    "of a single message": (LONG, [inner("A4", "A4")], "T1 C1 R1 C2 R2 C3 R3 C4 R4 (A4) T5"),
    "two that don't touch": (LONG, [inner("C3", "R3"), inner("C1", "R1")], "T1 (C1 R1) C2 R2 (C3 R3) C4 R4 A4 T5"),
    "two that touch": (LONG, [inner("C1", "R1"), inner("C2", "R2")], "T1 (C1 R1) (C2 R2) C3 R3 C4 R4 A4 T5"),
    "a request that ends inside": (LONG, [inner("C2", "R3")], "T1 C1 R1 C2 R2"),
    "a branch from inside": (LONG, [inner("C2", "R3")], "T1 C1 R1 C2 R2 A9 T9"),
    # Of those that overlap the one that ends last stands, of those that end together the longest.
    "of two that overlap the later end": (LONG, [inner("C1", "R2"), inner("C2", "R3")],
                                          "T1 C1 R1 (C2 R2 C3 R3) C4 R4 A4 T5"),
    "of two that end together the longer": (LONG, [inner("C3", "R3"), inner("C2", "R3")],
                                            "T1 C1 R1 (C2 R2 C3 R3) C4 R4 A4 T5"),
    "one that holds another": (LONG, [inner("C2", "R2"), inner("C1", "R3")], "T1 (C1 R1 C2 R2 C3 R3) C4 R4 A4 T5"),
    "one inside that ends last": (LONG, [inner("C1", "R3"), inner("C4", "A4"), inner("R1", "C4")],
                                  "T1 (C1 R1 C2 R2 C3 R3) (C4 R4 A4) T5"),
    # Behind a trim.
    "behind a trim": (LONG, [trim_at("R1"), inner("C2", "R2")], "[T1 C1 R1] (C2 R2) C3 R3 C4 R4 A4 T5"),
    "further behind": (LONG, [trim_at("R1"), inner("C3", "R3")], "[T1 C1 R1] C2 R2 (C3 R3) C4 R4 A4 T5"),
    "inside of what a trim replaces": (LONG, [trim_at("R3"), inner("C2", "R2")], "[T1 C1 R1 C2 R2 C3 R3] C4 R4 A4 T5"),
    "across a trim's anchor": (LONG, [trim_at("R2"), inner("C2", "R3")], "[T1 C1 R1 C2 R2] C3 R3 C4 R4 A4 T5"),
    # Calls and results.
    "not where it would part a call from its result": (LONG, [inner("R2", "R3")], "T1 C1 R1 C2 R2 C3 R3 C4 R4 A4 T5"),
    "not where its last call is answered later": ("T1 C1 A1 T2", [inner("C1", "A1")], "T1 C1 A1 T2 R1"),
    # Drift.
    "a message came before it": (LONG, [inner("C2", "R3")], "T1 N9 C1 R1 (C2 R2 C3 R3) C4 R4 A4 T5"),
    "a message came inside": (LONG, [inner("C2", "R3")], "T1 C1 R1 (C2 R2 N9 C3 R3) C4 R4 A4 T5"),
    "a message that its head shows was edited": (
        LONG, [inner("C2", "R3", "R2")], "T1 N9 C1 R1 C2 R2' C3 R3 C4 R4 A4 T5"),
    "a message that its head shows is still there": (
        LONG, [inner("C2", "R3", "R2")], "T1 N9 C1 R1 (C2 R2 C3 R3) C4 R4 A4 T5"),
    "its first message was edited": (
        "T1 A1 T2 C2 R2 A2 T3", [inner("T2", "R2")], "T1 A1 T2' C2 R2 A2 T3"),
    "other outputs before its anchor": (LONG, [inner("C2", "R3")], "T1 C9 R9 C2 R2 C3 R3 C4 R4 A4 T5"),
    "behind a trim that drifted": (
        LONG, [trim_at("R1"), inner("C3", "R3")], "[T1 N9 C1 R1] C2 R2 (C3 R3) C4 R4 A4 T5"),
    "two that drifted": (
        LONG, [inner("C1", "R1"), inner("C3", "R3")], "T1 N9 (C1 R1) C2 R2 (C3 R3) C4 R4 A4 T5"),
    "of look-alikes of its first message the nearest one starts it": (
        "T1 A1 T2 A2 T2 A3 T4", [inner("T2", "A3")], "T1 N9 A1 T2 A2 (T2 A3) T4"),
}  # fmt: skip


@pytest.mark.parametrize("name", INNER_CUTS)
def test_where_an_inner_cut_stands(name: str) -> None:
    check(INNER_CUTS[name])


SPLICES: dict[str, Case] = {
    "by the same past": ("T1 C1 R1 A1 T2", [splice_at("A1")], "T1 C1 R1 A1~ T2"),
    "at a call": ("T1 C1 R1 A1 T2", [splice_at("C1")], "T1 C1~ R1 A1 T2"),
    "at the first message of all": ("A1 T2", [splice_at("A1")], "A1~ T2"),
    "by the same outputs, where the past drifted": ("T1 C1 R1 A1 T2", [splice_at("A1")], "T1 N9 C1 R1 A1~ T2"),
    "by the same past before a look-alike with the same outputs": (
        REPETITION, [lambda line: splice(line, 2 * RECENT_OUTPUTS + 3)],
        f"{'T1 A1 ' * 10}".strip() + "~ T1 A1 T1 A1"),
    "several": ("T1 C1 R1 A1 T2 A2 T3", [splice_at("A1"), splice_at("A2")], "T1 C1 R1 A1~ T2 A2~ T3"),
    "two with the same words": (
        "T1 A1 T2 A1 T3", [lambda line: splice(history("T1 A1"), "A1"), splice_at("A1")], "T1 A1~ T2 A1~ T3"),
    "never at typed words": ("T1 A1 T2", [splice_at("T2")], "T1 A1 T2"),
    "never at a result": ("T1 C1 R1 A1", [splice_at("R1")], "T1 C1 R1 A1"),
    "never at reasoning": ("T1 K1 A1 T2", [splice_at("K1")], "T1 K1 A1 T2"),
    "once only, at the same past": ("T1 A1 T2 A2", [splice_at("A1")], "T1 A1~ T1 A1 T2 A2"),
    "not at a look-alike that other outputs led to": ("T1 A1 T2 A2 T3", [splice_at("A2")], "T1 A9 T2 A2 T3"),
    "not at a look-alike after a rewind": ("T1 A1 T2 C2 R2 A2 T3", [splice_at("A2")], "T1 A1 T9 C9 R9 A2 T3"),
    "not at a look-alike with fewer outputs before it": ("T1 C1 R1 A1 T2", [splice_at("A1")], "T1 A1 T2"),
    "not where its words were edited": ("T1 C1 R1 A1 T2", [splice_at("A1")], "T1 C1 R1 A1' T2"),
    "behind a trim": ("T1 C1 R1 A1 T2 A2 T3", [trim_at("A1"), splice_at("A2")], "[T1 C1 R1 A1] T2 A2~ T3"),
    "by the past that its trim names, after drift": (
        "T1 C1 R1 A1 T2 A2 T3", [trim_at("A1"), splice_at("A2")], "[T1 N9 C1 R1 A1] T2 A2~ T3"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPLICES)
def test_where_a_splice_stands(name: str) -> None:
    check(SPLICES[name])


def test_a_splice_stands_once_however_many_look_alikes_there_are() -> None:
    line, active = find(history(f"N9 {REPETITION}"), REPETITION, [lambda line: splice(line, 2 * RECENT_OUTPUTS + 3)])
    assert len(active.splices) == 1
    assert all(line.messages[i] == "A1" for i in active.splices)


# --- formats and states -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_edit", "stands"), [("anthropic", True), ("chat", False), ("responses", False), ("", True)]
)
def test_a_head_stands_only_in_requests_of_its_format(of_edit: Format, stands: bool) -> None:
    for edit in (trim_at("A2"), inner("C1", "R1")):
        _, active = find(history(BASE), BASE, [lambda line, edit=edit: replace(edit(line), format=of_edit)])
        assert bool(active.cuts) is stands


def test_a_splice_stands_only_in_requests_of_its_format() -> None:
    _, active = find(history(BASE), BASE, [lambda line: replace(splice(line, "A2"), format="chat")])
    assert not active.splices


@pytest.mark.parametrize("state", ["prepared", "abandoned"])
def test_an_edit_that_is_not_active_never_stands(state: EditState) -> None:
    edits: list[EditOf] = [
        lambda line: cut(line, "A2", "T1", state=state),
        lambda line: cut(line, "R1", start="C1", state=state),
        lambda line: splice(line, "A2", state=state),
        lambda line: swap(line, "R2", state=state),
    ]
    for request in (BASE, BASE.replace("T1", "T1 N9")):
        _, active = find(history(request), BASE, edits)
        assert active == ActiveEdits()


def test_swaps_stand_wherever_their_rows_are() -> None:
    _, active = find(history(BASE), BASE, [lambda line: swap(line, "R1"), lambda line: swap(line, "R2")])
    line = history(BASE)
    assert set(active.edited_rows) == {line.keys[2], line.keys[4]}


# --- names ------------------------------------------------------------------------------------------------


def names_after(request: str, *edits: EditOf) -> dict[str, bool]:
    """Whether each message of a request has the name that it had in the line which the edits were decided on."""
    old = history(LONG)
    line, _ = find(history(request), LONG, edits)
    return {
        token: line.keys[i] == old.keys[index(old, token)]
        for i, token in enumerate(line.messages)
        if token in old.messages
    }


def test_behind_an_anchor_that_drifted_all_have_their_old_names() -> None:
    names = names_after("T1 N9 C1 R1 C2 R2 C3 R3 C4 R4 A4 T5", trim_at("R2"))
    assert all(names.values())


def test_without_an_edit_drift_gives_new_names_to_all_that_follows() -> None:
    names = names_after("T1 N9 C1 R1 C2 R2 C3 R3 C4 R4 A4 T5")
    assert [token for token, is_old in names.items() if is_old] == ["T1"]


def test_before_an_anchor_that_drifted_messages_have_the_names_of_their_rows() -> None:
    names = names_after("T1 C1 R1' C2 R2 C3 R3 C4 R4 A4 T5", trim_at("R3"))
    assert all(names.values())
    request = history("T1 C1 R1' C2 R2 C3 R3 C4 R4 A4 T5")
    line, _ = find(request, LONG, [trim_at("R3")])
    assert line.keys[2] == request.keys[2], "a message that no row has keeps its own"


def test_behind_an_inner_cut_that_drifted_all_have_their_old_names() -> None:
    names = names_after("T1 C1 R1 C2 R2 N9 C3 R3 C4 R4 A4 T5", inner("C2", "R3"))
    assert all(names.values())


def test_what_comes_new_behind_an_anchor_that_drifted_is_named_as_if_nothing_had() -> None:
    line, _ = find(history(f"{LONG.replace('T1', 'T1 N9')} A5 N6:unnamed T6"), LONG, [trim_at("R3")])
    straight = history(f"{LONG} A5 N6:unnamed T6")
    assert (line.keys[-3:], line.chain[-3:]) == (straight.keys[-3:], straight.chain[-3:])


def test_a_history_in_which_nothing_drifted_keeps_its_own_names() -> None:
    request = history(LONG)
    line, _ = find(request, LONG, [trim_at("R2"), inner("C3", "R3"), splice_at("A4")])
    assert (line.keys, line.chain) == (request.keys, request.chain)


def test_the_request_itself_is_never_changed() -> None:
    request = history(LONG.replace("T1", "T1 N9"))
    before = (list(request.keys), list(request.chain))
    find(request, LONG, [trim_at("R2")])
    assert before == (request.keys, request.chain)


# --- the parts ----------------------------------------------------------------------------------------------


def test_recent_outputs_are_the_last_ones_newest_first() -> None:
    line = history("T1 A1 T2 K2 C2 R2 A2 T3")
    names = {facts_of(token).digest: token for token in line.messages}
    assert [names[digest] for digest in find_recent_outputs(line, 6)] == ["A2", "C2", "A1"]
    assert [names[digest] for digest in find_recent_outputs(line, 4)] == ["C2", "A1"]
    many = history(" ".join(f"A{n}" for n in range(20)))
    assert len(find_recent_outputs(many, 19)) == RECENT_OUTPUTS


def test_outputs_of_the_lead_are_none() -> None:
    assert len(find_recent_outputs(history("A1 T1 A2", lead=1), 2)) == 1


def test_the_digest_before_is_that_of_the_last_message_that_identifies() -> None:
    line = history("T1 A1 N1:unnamed K2 A2")
    assert find_digest_before(line, 4) == facts_of("A1").digest
    assert find_digest_before(line, 0) is None


def test_a_new_trim_takes_the_place_of_all_before_its_anchor() -> None:
    line, active = find(history(LONG), LONG, [trim_at("R1"), inner("C2", "R2"), inner("C4", "R4")])
    trim, first, second = active.cuts
    assert active.with_trim(replace(trim, anchor=index(line, "R3"))).cuts == (replace(trim, anchor=6), second)
    assert active.with_trim(replace(trim, anchor=1)).cuts == (replace(trim, anchor=1), first, second)


def test_the_id_of_the_cuts_that_stand_tells_all_of_them_apart() -> None:
    ids = [
        find(history(LONG), LONG, edits)[1].cut_id
        for edits in ([], [trim_at("R1")], [inner("C3", "R3")], [trim_at("R1"), inner("C3", "R3")], [trim_at("R2")])
    ]
    assert ids[0] == ""
    assert len(set(ids)) == len(ids)


# --- drift of every history --------------------------------------------------------------------------------


@examples(2)
@given(sketch=sketches(), data=st.data())
def test_a_cut_stands_at_the_same_message_after_a_notice_came_anywhere_before_it(
    sketch: Sketch, data: st.DataObject
) -> None:
    line = sketch.history()
    candidates = [choice for choice in find_choices(line) if choice.anchor > 0]
    if not candidates:
        return
    choice = data.draw(st.sampled_from(candidates))
    anchor = str(line.messages[choice.anchor])
    at = data.draw(st.integers(0, choice.anchor - 1))
    visible = " ".join(str(line.messages[i]) for i in choice.head_indices if line.facts[i].identifies)
    tokens = sketch.line.split()
    request = history(" ".join([*tokens[:at], "N999", *tokens[at:]]), deferred_tools="F")
    state = state_of(line)
    edits = Edits.of([cut(line, anchor, visible)])
    request, active = find_active_edits(request, edits, state.followers, state.row_keys)
    assert active.trim is not None
    assert request.messages[active.trim.anchor] == anchor
    behind = slice(active.trim.anchor, None)
    assert request.keys[behind] == line.keys[choice.anchor :]
