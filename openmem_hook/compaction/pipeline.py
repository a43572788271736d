"""The decision about one request, as a visible row of steps over one frozen draft.

`run` looks at a history and what is known of it and says what to do; it does nothing. `begin` finds the edits that
stand and the thread that the request belongs to, once; each step after it, a file of its own, adds what it decides.
`finish` builds the outgoing body from a draft, new or replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from openmem_hook import tokens
from openmem_hook.compaction import wording
from openmem_hook.compaction.active import find_active_edits
from openmem_hook.compaction.compress import compress
from openmem_hook.compaction.cut import cut
from openmem_hook.compaction.draft import Draft, Inputs
from openmem_hook.compaction.estimate import TokenCosts
from openmem_hook.compaction.outgoing import apply
from openmem_hook.compaction.request import Request
from openmem_hook.compaction.squeeze import squeeze
from openmem_hook.compaction.threads import Placement, Thread, begin_thread, extend_thread, place
from openmem_hook.compaction.weigh import weigh
from openmem_hook.model import History, Pause, no_pause

RESULT_SIZES = tokens.Sizes(words=780, marks=220)
"""What a thousand characters of real tool results are made of."""

Step = Callable[[Draft], Draft]

STEPS: tuple[Step, ...] = (compress, weigh, cut, squeeze)


def run(inputs: Inputs, pause: Pause = no_pause) -> Draft:
    """All steps. `pause` is called between two of them."""
    draft = begin(inputs)
    for step in STEPS:
        draft = step(draft)
        pause()
    return draft


def begin(inputs: Inputs) -> Draft:
    """The edits that stand, and the thread with the rules that hold in it."""
    state = inputs.state
    history, edits = find_active_edits(inputs.history, state.edits, state.followers, state.row_keys)
    placement = place(history, inputs.subagent_label, state.threads.values(), state.owners)
    thread = _thread(inputs, history, placement)
    return Draft(inputs, history, edits, placement, thread, _costs(inputs, thread.offset))


def _thread(inputs: Inputs, history: History, placement: Placement) -> Thread:
    """The thread of the request as it will be after it."""
    state, request = inputs.state, inputs.request
    if placement.thread:
        return extend_thread(state.threads[placement.thread], history, placement)
    # A new one goes by the rules of the thread that it branches off from: what both share was sent under them.
    parent = None
    if placement.shared_count > history.lead:
        parent = state.threads.get(state.owners.get(history.keys[placement.shared_count - 1], 0))
    rules = parent or state.origin_of(history.keys)
    # Without one the settings of its first contact hold for good. A talk without tools that began with a request which
    # went out as it came goes on without the note.
    began_without = not history.has_tools and inputs.began_outside_thread
    note = wording.VERSION if has_note(request) and not began_without else 0
    return begin_thread(history, inputs.subagent_label, rules, note, _result_chars(inputs))


def has_note(request: Request) -> bool:
    """Whether a thread that begins with this request gets the standing note."""
    return request.settings.standing_instruction and request.may_edit


def _result_chars(inputs: Inputs) -> int:
    """The compression limit in characters: the setting in tokens, by what a token of results has at first contact."""
    over = inputs.request.settings.compress_over_tokens
    if not over or not inputs.request.may_edit:
        return 0
    return int(over * 1000 / max(tokens.estimate(inputs.calibration, RESULT_SIZES), 1.0))


def _costs(inputs: Inputs, offset: float) -> TokenCosts:
    model, state = inputs.request.model, inputs.state
    family_rate, drops_thinking = tokens.family_rate(model), tokens.drops_thinking(model)
    return TokenCosts(state.reports, state.row_tokens, offset, inputs.calibration, family_rate, drops_thinking)


def finish(draft: Draft, *, with_note: bool = True) -> dict[str, Any]:
    """The outgoing body: edits applied, a lost breakpoint set again, the thread's note added."""
    adapter, history, body = draft.adapter, draft.history, draft.inputs.request.body
    messages = apply(adapter, history, draft.edits)
    if draft.edits.cuts or draft.edits.splices or len(messages) < len(history):
        messages = adapter.with_marker(history.messages, messages)
    note = wording.NOTES.get(draft.thread.note)
    if with_note and note is not None:
        return adapter.with_note(dict(body), messages, note)
    return adapter.with_messages(dict(body), messages)
