"""What a decision writes: new rows with their visibility, edits, events. The core says it, a store does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from openmem_hook import fingerprint, tokens
from openmem_hook.compaction.draft import Break, Draft, NoUsefulCut
from openmem_hook.compaction.edits import Cut, Edits, Swap
from openmem_hook.compaction.threads import find_replaced_threads
from openmem_hook.compaction.write import Event, NewRow, Savings, Write
from openmem_hook.model import History, Pause, no_pause
from openmem_hook.text import searchable, searchable_text


def plan_write(draft: Draft, pause: Pause = no_pause) -> Write:
    """All that a decision writes. `pause` is called after each row."""
    inputs, history = draft.inputs, draft.history
    state, thread = inputs.state, draft.thread
    new = [i for i, key in enumerate(history.keys) if key not in state.row_tokens]
    rows = _rows(draft, new, find_visible(draft, new), pause)
    # New edits take messages out of sight. Where another trim stands than in the thread's last request, or nobody here
    # knows which one did, every message is looked at: the client went back, or on again.
    hidden_keys, shown_keys = _hidden_by_new_edits(draft), list[bytes]()
    trim_changed = state.newest_cut_ids.get(thread.id) != visible_cut(draft)
    if thread.id and trim_changed and not isinstance(draft.verdict, Break):
        whole = find_visible(draft, range(len(history)))
        shown_keys = [key for i, key in enumerate(history.keys) if i in whole]
        hidden_keys = [key for i, key in enumerate(history.keys) if i not in whole]
    return Write(
        thread=thread,
        rows=rows,
        edits=_edits(draft),
        events=list_events(draft),
        hidden_keys=hidden_keys,
        shown_keys=shown_keys,
        replaced_threads=find_replaced_threads(history, thread, draft.placement, state.threads.values()),
        now=inputs.now,
    )


def _edits(draft: Draft) -> Edits:
    """Those that the database doesn't hold yet, and the new ones. What is no cut belongs to the cut that it came with,
    and stands before it."""
    edits = draft.inputs.state.unstored_edits.merge(draft.new_edits)
    cuts = [edit for edit in edits if isinstance(edit, Cut)]
    newest = max((cut.generation for cut in cuts), default=0)
    others = [replace(edit, generation=newest) for edit in edits if not isinstance(edit, Cut)]
    return Edits.of([*others, *cuts])


def visible_cut(draft: Draft) -> str:
    """What decides which stored messages a request shows: the id of the cuts that stand, "" for none."""
    return draft.edits.cut_id


def find_visible(draft: Draft, places: Sequence[int]) -> set[int]:
    """Those of these places whose messages go out as they are."""
    history, edits = draft.history, draft.edits
    # Under the trim only what its head shows, and in an inner cut only what that one's shows.
    start = edits.tail_start(history)
    under_cuts = {i for active in edits.inner_cuts for i in range(active.start, active.anchor + 1)}
    front = {*range(history.lead)}
    if isinstance(draft.verdict, Break):
        front.update(draft.verdict.head_indices)
    elif edits.trim is not None and any(i < start for i in places):
        front |= edits.trim.shown_indices(history)
    for active in edits.inner_cuts:
        under_cuts -= active.shown_indices(history)
    # What was edited is stored whole and sent otherwise.
    edited_rows = edits.edited_rows
    as_they_are = (i for i in places if history.keys[i] not in edited_rows)
    return {i for i in as_they_are if (i in front if i < start else i not in under_cuts)}


def _hidden_by_new_edits(draft: Draft) -> list[bytes]:
    """Keys of the messages that new edits take out of sight: a cut all that it does not show, others their own."""
    if not isinstance(draft.verdict, Break):
        return [edit.replaced_row for edit in draft.new_edits if edit.replaced_row is not None]
    keys = draft.history.keys
    whole = find_visible(draft, range(len(keys)))
    return [key for i, key in enumerate(keys) if i not in whole]


def _rows(draft: Draft, new: Sequence[int], whole: set[int], pause: Pause) -> list[NewRow]:
    """Rows for the messages at these places."""
    if not new:
        return []
    history, adapter = draft.history, draft.adapter
    callers = _callers(history, {call for i in new for call in history.facts[i].answers})
    rows = []
    for i in new:
        fact, raw = history.facts[i], history.messages[i]
        tools = fact.tool_names or tuple(callers.get(call, "") for call in fact.answers)
        rows.append(
            NewRow(
                key=history.keys[i],
                past=history.chain[i - 1] if i else fingerprint.ROOT,
                digest=fact.digest,
                role="user" if fact.kind == "relayed" else fact.role,
                kind=fact.kind,
                tool_name=searchable(", ".join(dict.fromkeys(name for name in tools if name))),
                text=searchable_text(adapter.parts_of(raw)),
                in_context=i in whole,
                format=adapter.name,
                body=fingerprint.dump(raw),
            )
        )
        pause()
    return rows


def _callers(history: History, answers: set[str]) -> dict[str, str]:
    """The tools whose calls these answer, looked for from the end: what is new answers what is recent."""
    callers: dict[str, str] = {}
    for fact in reversed(history.facts):
        if len(callers) == len(answers):
            break
        for call, name in zip(fact.calls, fact.tool_names, strict=True):
            if call in answers:
                callers.setdefault(call, name)
    return callers


def measure_savings(draft: Draft) -> Savings | None:
    """What the edits keep out of this request."""
    edits, history, costs = draft.edits, draft.history, draft.costs
    if not (edits.cuts or edits.row_edits):
        return None
    # The trim: all up to its anchor, less its head.
    start = edits.tail_start(history)
    replaced_tokens = sum(costs.of_each(history.keys[history.lead : start], history.facts[history.lead : start]))
    head = 0.0 if edits.trim is None else tokens.estimate(costs.calibration, edits.trim.cut.head_sizes)
    # In the tail: each message less what goes out in its place.
    facts, outgoing = history.facts, draft.outgoing
    places = [i for i in range(start, len(history)) if facts[i] is not outgoing.facts[i]]
    counts = costs.of_each([outgoing.keys[i] for i in places], [outgoing.facts[i] for i in places])
    raw_counts = (tokens.estimate(costs.calibration, facts[i].sizes) for i in places)
    in_tail = sum(raw - count for raw, count in zip(raw_counts, counts, strict=True))
    difference = max(replaced_tokens - head, 0.0) + max(in_tail, 0.0)
    return Savings(round(draft.tokens + difference), round(draft.tokens)) if difference else None


def list_events(draft: Draft) -> list[Event]:
    """What an operator may count of this decision."""
    request, verdict = draft.inputs.request, draft.verdict
    about = {"model": request.model, "agent": request.agent}
    events: list[Event] = []
    short = [edit for edit in draft.new_edits if isinstance(edit, Swap) and edit.reason == "size"]
    chars = _result_chars(draft.history) if short else {}
    for swap in short:
        before, after = chars[swap.key, swap.call_id], len(swap.text)
        events.append(Event("compression", {**about, "id": swap.id, "chars_before": before, "chars_after": after}))
    has_squeezed = any(isinstance(edit, Swap) and edit.reason == "hard" for edit in draft.new_edits)
    if isinstance(verdict, Break) or has_squeezed:
        events.append(Event("trim", {**about, **_trim_numbers(draft)}))
    if isinstance(verdict, Break) and verdict.reason == "forced":
        events.append(Event("forced", about))
    is_retry = draft.history.keys[-1] in draft.inputs.state.row_tokens
    if isinstance(verdict, NoUsefulCut) and verdict.is_notable and not has_squeezed and not is_retry:
        events.append(Event("nothing_to_trim", {**about, "estimate": round(draft.tokens)}))
    return events


def _trim_numbers(draft: Draft) -> Mapping[str, Any]:
    verdict, trim = draft.verdict, draft.edits.trim
    new_cut = verdict.cut if isinstance(verdict, Break) else None
    messages_left = 0
    if isinstance(verdict, Break) and trim is not None:
        messages_left = max(trim.anchor + 1 - draft.history.lead - len(verdict.head_indices), 0)
    return {
        "reason": verdict.reason if isinstance(verdict, Break | NoUsefulCut) else "",
        "tokens_before": round(draft.tokens_before),
        "tokens_after": round(draft.tokens),
        "messages_left": messages_left,
        "generation": 0 if new_cut is None else new_cut.generation,
        "cut": "" if new_cut is None else new_cut.id,
        "trim_at": draft.limits.trim_at,
    }


def _result_chars(history: History) -> dict[tuple[bytes, str], int]:
    """Characters of each result as the client sent it."""
    pairs = zip(history.keys, history.facts, strict=True)
    return {(key, slot.call_id): slot.chars for key, fact in pairs for slot in fact.results}
