"""What becomes of a request: one of a few classes, each with the body that goes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from openmem_hook.compaction import pipeline, wording
from openmem_hook.compaction.draft import Draft, Inputs
from openmem_hook.compaction.outgoing import is_edited
from openmem_hook.compaction.pipeline import begin, finish
from openmem_hook.compaction.record import plan_write
from openmem_hook.compaction.threads import derive_id, is_auxiliary
from openmem_hook.compaction.write import Write
from openmem_hook.model import Pause, no_pause

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Passthrough:
    """The plugin is off and nothing is known of the history: it goes out as it came, and nobody remembers it."""

    body: Body
    is_trimmed: Literal[False] = False


@dataclass(frozen=True, slots=True)
class Opening:
    """The first request of a conversation whose client names none: it has no session yet."""

    body: Body
    """With the note, if its thread will have one."""
    is_trimmed: Literal[False] = False


@dataclass(frozen=True, slots=True)
class Auxiliary:
    """A title, a probe, a client's own compaction: part of no thread."""

    body: Body
    """The client's own, but for edits without which it would not fit."""
    is_trimmed: bool = False


@dataclass(frozen=True, slots=True)
class Replay:
    """A thread's request with the edits that memory knows, while the store is out of reach."""

    body: Body
    draft: Draft

    @property
    def is_trimmed(self) -> bool:
        return self.draft.edits.trim is not None


@dataclass(frozen=True, slots=True)
class ThreadDecision:
    """A thread's request, with all that has to be written before it is sent."""

    body: Body
    draft: Draft
    write: Write

    @property
    def is_trimmed(self) -> bool:
        return self.draft.edits.trim is not None


Decision = Passthrough | Opening | Auxiliary | Replay | ThreadDecision


def decide(
    inputs: Inputs, make_pause: Callable[[], Pause] = lambda: no_pause
) -> Passthrough | Opening | Auxiliary | ThreadDecision:
    """What becomes of a request, from all that is known. Nothing is done here. `make_pause` gives, for each piece of
    work that may be long, what is called now and then while it is done."""
    outside = _outside_a_thread(inputs)
    if outside is not None:
        return outside
    draft = pipeline.run(inputs, make_pause())
    # What is written is made after the body: a body that can't be built must leave nothing behind.
    body = finish(draft)
    return ThreadDecision(body, draft, plan_write(draft, make_pause()))


def replay(inputs: Inputs) -> Passthrough | Opening | Auxiliary | Replay:
    """The request with the edits that are known: none made, nothing to be written."""
    outside = _outside_a_thread(inputs)
    if outside is not None:
        return outside
    draft = begin(inputs)
    is_known = draft.placement.thread or draft.placement.shared_count > draft.history.lead
    if not inputs.request.may_edit and not is_known:
        return _auxiliary(draft)
    return Replay(finish(draft), draft)


def _outside_a_thread(inputs: Inputs) -> Passthrough | Opening | Auxiliary | None:
    request, history = inputs.request, inputs.history
    if request.session_id is None and derive_id(history) is None:
        return Opening(_with_note(inputs))
    if not inputs.is_known:
        return Passthrough(request.body)
    if not inputs.session:
        return Auxiliary(request.body)
    if is_auxiliary(history, inputs.state.threads.values()):
        return _auxiliary(begin(inputs))
    return None


def _with_note(inputs: Inputs) -> Body:
    request = inputs.request
    if not (inputs.history.has_tools and pipeline.has_note(request)):
        return request.body
    note = wording.NOTES[wording.VERSION]
    return request.adapter.with_note(dict(request.body), list(inputs.history.messages), note)


def _auxiliary(draft: Draft) -> Auxiliary:
    """The edits of its session stand, else it might not fit; nothing else is done to it."""
    if not is_edited(draft.history, draft.edits):
        return Auxiliary(draft.inputs.request.body)
    return Auxiliary(finish(draft, with_note=False), is_trimmed=draft.edits.trim is not None)
