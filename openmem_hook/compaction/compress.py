"""Step: results that are sent for the first time go out short where they are over their limit, else raw for good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from openmem_hook import fingerprint
from openmem_hook.compaction import wording
from openmem_hook.compaction.draft import Draft
from openmem_hook.compaction.edits import EditReason, ResultEdit, Swap
from openmem_hook.compaction.results import shorten
from openmem_hook.model import History, ResultSlot

SHORT_SHARE = 0.5
"""A short form's cap as a share of the size above which results are compressed."""
SHORTEST = 600
"""Characters a short form may always have: header, a beginning and an end that still say something."""


def compress(draft: Draft) -> Draft:
    """Results sent for the first time: short where they are over the limit, else raw for good. One that went out short
    goes on so when something before it changed, and with it the names of all that follows."""
    inputs, history, limit = draft.inputs, draft.history, draft.thread.result_chars
    if not inputs.request.may_edit:
        return draft
    swaps: list[Swap] = []
    newest_swap = {swap.call_id: swap for swap in inputs.state.edits.swaps.values()}
    cap = max(int(limit * SHORT_SHARE), SHORTEST)
    undecided_from = draft.undecided_from() if limit > 0 else len(history)
    # What was sent, stored or not, stays as it was sent.
    for i in draft.editable_places():
        renamed_swaps = _renamed_swaps(draft, i, newest_swap, cap)
        swaps += renamed_swaps
        if i >= undecided_from:
            call_ids = {swap.call_id for swap in renamed_swaps}
            swaps += [swap for swap in make_swaps(draft, i, limit, cap, "size") if swap.call_id not in call_ids]
    return draft.with_row_edits(swaps)


def _renamed_swaps(draft: Draft, index: int, newest_swap: Mapping[str, Swap], cap: int) -> list[Swap]:
    """Short forms that the very same results have under another name: a message before them changed, or another part of
    theirs. `newest_swap`: the newest short form by call id."""
    fact, key = draft.history.facts[index], draft.history.keys[index]
    slots = [slot for slot in _swappable_slots(draft, index) if slot.call_id in newest_swap]
    pairs = [(slot, newest_swap[slot.call_id]) for slot in slots]
    if not pairs:
        return []
    texts = {part.call_id: part.text for part in draft.adapter.parts_of(draft.history.messages[index])}
    return [
        Swap(id=swap.id, reason="renamed", key=key, call_id=slot.call_id, text=swap.text)
        for slot, swap in pairs
        if swap.id == fingerprint.short_id(fact.digest, slot.call_id)
        or shorten(texts[slot.call_id], swap.id, cap) == swap.text
    ]


def make_swaps(draft: Draft, index: int, over: int, cap: int, reason: EditReason) -> list[Swap]:
    """Short forms of a message's results above so many characters."""
    fact, key = draft.history.facts[index], draft.history.keys[index]
    slots = [slot for slot in _swappable_slots(draft, index) if slot.chars > over]
    if not slots:
        return []
    texts = {part.call_id: part.text for part in draft.adapter.parts_of(draft.history.messages[index])}
    swaps = []
    for slot in slots:
        # What an agent reads back with our own tools is not shortened again: it could never be read whole.
        if reason == "size" and is_answer_of_ours(draft.history, index, slot.call_id):
            continue
        result_id = fingerprint.short_id(fact.digest, slot.call_id)
        text = shorten(texts[slot.call_id], result_id, cap)
        if text is not None:
            swaps.append(Swap(id=result_id, reason=reason, key=key, call_id=slot.call_id, text=text))
    return swaps


def _swappable_slots(draft: Draft, index: int) -> Sequence[ResultSlot]:
    """Results of a message that no other kind's text stands for."""
    slots, edits = draft.history.facts[index].results, draft.edits.edited_rows.get(draft.history.keys[index], ())
    others = {edit.call_id for edit in edits if isinstance(edit, ResultEdit) and not isinstance(edit, Swap)}
    return [slot for slot in slots if slot.call_id not in others] if others else slots


def is_answer_of_ours(history: History, index: int, call_id: str) -> bool:
    """Whether the result of this call, in the message at an index, is an answer of one of our own tools."""
    for at in range(index - 1, -1, -1):
        fact = history.facts[at]
        if call_id in fact.calls:
            return wording.is_own_tool(fact.tool_names[fact.calls.index(call_id)])
    return False
