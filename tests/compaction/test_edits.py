"""The ledger as a value, and each kind of edit as a row."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, get_args

import pytest

from openmem_hook.compaction.active import ActiveEdits
from openmem_hook.compaction.edits import (
    KINDS,
    NO_EDITS,
    Cut,
    Edit,
    EditKey,
    EditKind,
    EditRow,
    Edits,
    EditState,
    ResultEdit,
    edit_from,
    in_order,
)
from tests.compaction.samples import DEEP_TRIM, INNER, LINE, OTHER_SWAP, SAMPLES, SPLICE, SWAP, TRIM
from tests.compaction.sketches import cut, history, splice


@pytest.mark.parametrize("name", SAMPLES)
def test_an_edit_survives_its_row(name: str) -> None:
    edit = SAMPLES[name]
    assert edit_from(edit.row()) == edit


def test_every_kind_has_a_sample_and_names_itself() -> None:
    assert {edit.kind for edit in SAMPLES.values()} == set(KINDS) == set(get_args(EditKind))
    assert all(kind.kind == name for name, kind in KINDS.items())


@pytest.mark.parametrize("name", SAMPLES)
def test_the_row_of_an_edit_is_at_its_place_and_its_detail_is_json(name: str) -> None:
    edit = SAMPLES[name]
    row = edit.row()
    assert EditKey(edit.kind, row.key, row.part) == edit.edit_key
    assert isinstance(json.loads(row.detail), dict)


def test_a_kind_of_a_later_version_is_no_edit() -> None:
    assert edit_from(EditRow("fold", "0" * 16, b"key", "", "limit", 0, "active", b"", "{}")) is None


def row_with(edit: Edit, **detail: Any) -> EditRow:
    """The edit's row with other detail; None takes a key out."""
    row = edit.row()
    changes = {**json.loads(row.detail), **detail}
    return row._replace(detail=json.dumps({key: value for key, value in changes.items() if value is not None}))


def test_a_row_without_format_place_and_start_is_a_trim_of_no_known_format() -> None:
    edit = edit_from(row_with(TRIM, format=None, place=None))
    assert edit == replace(TRIM, format="", position=None)


@pytest.mark.parametrize(
    "row",
    [
        row_with(TRIM, anchor_digest="no hex"),
        row_with(TRIM, trail=None),
        row_with(TRIM, head_sizes=["many"] * 20),
        TRIM.row()._replace(detail="{"),
        row_with(SPLICE, format=None),
        SPLICE.row()._replace(part="no hex"),
    ],
    ids=["no hex", "no outputs", "no sizes", "no JSON", "no format", "no past"],
)
def test_a_row_that_makes_no_sense_raises(row: EditRow) -> None:
    with pytest.raises((ValueError, LookupError, TypeError)):
        edit_from(row)


# --- places -------------------------------------------------------------------------------------------------


def test_edits_at_different_places_have_different_keys() -> None:
    inner = [INNER, cut(LINE, "R3", start="T2"), cut(LINE, "R3")]
    splices = [SPLICE, splice(history("T9 A3"), "A3")]
    edits: list[Edit] = [TRIM, DEEP_TRIM, *inner, SWAP, OTHER_SWAP, *splices]
    assert len({edit.edit_key for edit in edits}) == len(edits)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (TRIM, replace(TRIM, head=b"[1]", id="1" * 16, state="abandoned")),
        (SWAP, replace(SWAP, text="shorter", reason="hard")),
        (SPLICE, replace(SPLICE, messages=b"[2]")),
    ],
)
def test_another_edit_at_the_same_place_has_its_key(one: Edit, other: Edit) -> None:
    assert one.edit_key == other.edit_key


def test_a_fork_finds_an_edit_by_what_stands_in_its_own_chain() -> None:
    assert TRIM.fingerprints == (LINE.keys[3],)
    assert SWAP.fingerprints == (LINE.keys[2],)
    assert SPLICE.fingerprints == (LINE.chain[6],)


def test_only_a_swap_has_a_full_text_to_be_asked_for_and_a_row_that_it_replaces() -> None:
    assert (SWAP.results, SWAP.replaced_row) == ((SWAP.id,), LINE.keys[2])
    for edit in (TRIM, INNER, SPLICE):
        assert (edit.results, edit.replaced_row) == ((), None)


class LaterText(ResultEdit):
    """A kind of text that comes later in the table than a swap."""

    kind = "splice"


def test_of_two_texts_for_one_result_that_of_the_later_kind_stands_whatever_their_order() -> None:
    later = LaterText(id="2" * 16, reason="size", key=SWAP.key, call_id=SWAP.call_id, text="later")
    assert in_order([SWAP, later]) == in_order([later, SWAP]) == [SWAP, later]
    ledgers = [ActiveEdits(row_edits=Edits.of(edits).row_edits) for edits in ([SWAP, later], [later, SWAP])]
    assert [ledger.edited_rows for ledger in ledgers] == [{SWAP.key: [SWAP, later]}] * 2


# --- the ledger ---------------------------------------------------------------------------------------------


def test_the_last_of_several_at_one_place_counts() -> None:
    later = replace(TRIM, head=b"[1]")
    assert list(Edits.of([TRIM, SWAP, later])) == [later, SWAP]


def test_merging_takes_the_later_one_at_a_place_and_keeps_the_order() -> None:
    later = replace(SWAP, text="shorter")
    ledger = Edits.of([TRIM, SWAP]).merge(Edits.of([later, SPLICE]))
    assert list(ledger) == [TRIM, later, SPLICE]
    assert len(ledger) == 3


def test_merging_changes_neither() -> None:
    one, other = Edits.of([TRIM]), Edits.of([SWAP])
    one.merge(other)
    assert (list(one), list(other)) == ([TRIM], [SWAP])


def test_merging_with_nothing_gives_the_very_same_ledger() -> None:
    ledger = Edits.of([TRIM])
    assert ledger.merge(NO_EDITS) is ledger
    assert NO_EDITS.merge(ledger) is ledger


def test_without_leaves_what_stands_at_other_places_whatever_its_state() -> None:
    ledger = Edits.of([TRIM, SWAP, SPLICE])
    others = Edits.of([replace(SWAP, state="abandoned"), INNER])
    assert list(ledger.without(others)) == [TRIM, SPLICE]
    assert ledger.without(NO_EDITS) is ledger
    assert not NO_EDITS.without(ledger)


def test_with_state_gives_every_edit_that_state_at_its_place() -> None:
    ledger = Edits.of([TRIM, SWAP]).with_state("prepared")
    assert [edit.state for edit in ledger] == ["prepared", "prepared"]
    assert list(ledger.by_key) == [TRIM.edit_key, SWAP.edit_key]


def test_an_empty_ledger_is_false() -> None:
    assert not NO_EDITS
    assert Edits.of([SWAP])


def test_active_edits_by_what_they_are() -> None:
    ledger = Edits.of([TRIM, DEEP_TRIM, INNER, SWAP, OTHER_SWAP, SPLICE])
    assert dict(ledger.trims) == {TRIM.anchor: TRIM, DEEP_TRIM.anchor: DEEP_TRIM}
    assert ledger.inner_cuts == (INNER,)
    assert dict(ledger.swaps) == {(SWAP.key, "1"): SWAP, (SWAP.key, "2"): OTHER_SWAP}
    assert dict(ledger.splices) == {SPLICE.digest: (SPLICE,)}
    assert ledger.besides_trims == (INNER, SWAP, OTHER_SWAP, SPLICE)
    assert set(ledger.fingerprints) == {TRIM.anchor, DEEP_TRIM.anchor, INNER.anchor, SWAP.key, SPLICE.past}
    assert ledger.results == (SWAP.id, OTHER_SWAP.id)


@pytest.mark.parametrize("state", ["prepared", "abandoned"])
def test_what_is_not_active_has_a_place_and_nothing_else(state: EditState) -> None:
    ledger = Edits.of([TRIM, INNER, SWAP, SPLICE]).with_state(state)
    assert len(ledger) == 4
    views = (ledger.trims, ledger.inner_cuts, ledger.swaps, ledger.splices, ledger.besides_trims, ledger.fingerprints)
    assert not any(views)
    assert not ledger.results


def test_splices_of_the_same_words_are_told_apart_by_their_past() -> None:
    line = history("T1 A1 T2 A1")
    first, second = splice(history("T1 A1"), "A1"), splice(line, "A1")
    assert Edits.of([first, second]).splices[first.digest] == (first, second)


def test_a_trim_and_an_inner_cut_with_the_same_anchor_are_two() -> None:
    ledger = Edits.of([cut(LINE, "R3"), INNER])
    assert [type(edit) for edit in ledger] == [Cut, Cut]
