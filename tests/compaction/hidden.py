"""Edits of the kinds that nothing decides yet, made on real histories: legal in each of the three formats.

A splice puts an exchange with a tool of ours before an output: the provider saw it, the client did not. An inner cut
puts the first of several exchanges, its results left out, in the place of all of them.
"""

from __future__ import annotations

from random import Random
from typing import Any

from openmem_hook import fingerprint
from openmem_hook.compaction import boundaries
from openmem_hook.compaction.decision import ThreadDecision
from openmem_hook.compaction.draft import Draft
from openmem_hook.compaction.edits import Cut, Splice
from openmem_hook.compaction.pipeline import begin
from openmem_hook.facts import facts_of_message
from openmem_hook.model import Adapter, Format, History
from openmem_hook.tokens import ZERO
from tests.compaction.session import MemorySession, is_break
from tests.compaction.sketches import cut, splice
from tests.kit import chat_words as chat
from tests.kit import responses_words as responses
from tests.kit.builders import Json, assistant, results, tool_result, tool_use

TOOL = "smart_compact_search"
THINKING = ("thinking", "redacted_thinking")
LEFT_OUT = "(left out)"


def can_splice(line: History, at: int) -> bool:
    fact = line.facts[at]
    return fact.kind in ("reply", "call") and fact.identifies


def splice_at(line: History, at: int, fmt: Format, call: str) -> Splice:
    """An exchange with our tool, then the output itself."""
    messages = _with_exchange(line.messages[at], fmt, call)
    return splice(line, at, messages=fingerprint.dump(messages))


def _with_exchange(raw: Json, fmt: Format, call: str) -> list[Json]:
    if fmt == "chat":
        return [chat.assistant(None, chat.call(call, TOOL, query="x")), chat.result(call, "2 matches"), raw]
    if fmt == "responses":
        return [responses.call(call, TOOL, query="x"), responses.output(call, "2 matches"), raw]
    content = raw["content"]
    blocks = content if isinstance(content, list) else []
    # An output thinks before its first call: the thinking that the client has stands at the front.
    thinking = [block for block in blocks if block.get("type") in THINKING]
    rest = [block for block in blocks if block.get("type") not in THINKING]
    last = {**raw, "content": rest} if thinking and rest else raw
    front = thinking if thinking and rest else []
    return [assistant(*front, tool_use(call, TOOL, query="x")), results(tool_result(call, "2 matches")), last]


def ranges(line: History, start: int = 0) -> list[tuple[int, int]]:
    """First and last messages of all that an inner cut may replace from a place on: whole exchanges, nothing typed
    among them."""
    closed_at = boundaries.find_closed_places(line.facts)
    exchanges = [
        output
        for output in boundaries.find_outputs(line, max(start, line.editable_from), closed_at)
        if closed_at[output.first] and closed_at[output.end]
    ]
    spans = [
        (one.first, other.end - 1)
        for one in exchanges
        for other in exchanges
        if one.first <= other.first and line.facts[one.end - 1].answers and line.facts[other.end - 1].answers
    ]
    return [span for span in spans if not any(line.facts[i].kind in ("typed", "mixed") for i in _places(span))]


def _places(span: tuple[int, int]) -> range:
    return range(span[0], span[1] + 1)


def inner_cut(line: History, adapter: Adapter, first: int, last: int) -> Cut:
    """The first exchange of a range, its results left out, in the place of all of it."""
    exchange = next(
        output for output in boundaries.find_outputs(line, first, boundaries.find_closed_places(line.facts))
    )
    head: list[Any] = []
    for i in range(first, exchange.end):
        raw = adapter.freeze_message(line.messages[i], True)
        for slot in line.facts[i].results:
            raw = adapter.shorten_result(raw, slot.at, LEFT_OUT)
        head.append(raw)
    sizes = sum((facts_of_message(adapter, raw, 0).sizes for raw in head), ZERO)
    visible = [i for i in range(first, exchange.end) if line.facts[i].identifies and not line.facts[i].results]
    return cut(line, last, visible, start=first, head=fingerprint.dump(head), head_sizes=sizes)


class HidingSession:
    """A session in whose ledger splices and inner cuts appear, at moments when that breaks no prefix.

    A splice is put at an output, and an inner cut over exchanges, before the first request that sends them: whoever
    decides them will know by then, since the provider's response came before. An inner cut over what was sent before
    is put only where the decision breaks anyway: the request is then decided once more, with it.
    """

    def __init__(self, memory: MemorySession, rng: Random, share: float = 0.4) -> None:
        self.memory, self.rng, self.share = memory, rng, share
        self.count = 0
        self.broke = False
        """Whether bytes that were sent before may have changed with the newest request."""

    def send(self, body: Json, **more: Any) -> ThreadDecision:
        self._hide_new(begin(self.memory.inputs(body, **more)))
        decision = self.memory.decide(body, **more)
        self.broke = is_break(decision)
        if self.broke and self._insert_cut(decision.draft, decision.draft.edits.tail_start(decision.draft.history)):
            decision = self.memory.decide(body, **more)
        self.memory.write(decision)
        return decision

    def _hide_new(self, draft: Draft) -> None:
        """Edits of what no request sent so far."""
        line, stored_rows = draft.history, draft.inputs.state.row_tokens
        start = max(draft.edits.tail_start(line), line.editable_from)
        new = [i for i in range(start, len(line)) if line.keys[i] not in stored_rows]
        for i in new:
            if can_splice(line, i) and i not in draft.edits.splices and self.rng.random() < self.share:
                self.count += 1
                self.memory.insert(splice_at(line, i, draft.adapter.name, f"ours_{self.count}"))
        # What was sent is at the front: all from the first new message on is new, unless a client left words out.
        if new and new == [*range(new[0], len(line))]:
            self._insert_cut(draft, new[0])

    def _insert_cut(self, draft: Draft, start: int) -> bool:
        """Perhaps an inner cut over exchanges from a place on; True where there is one."""
        line = draft.history
        standing = [(active.start, active.anchor) for active in draft.edits.inner_cuts]
        candidates = [
            (first, last)
            for first, last in ranges(line, start)
            if all(last < other or anchor < first for other, anchor in standing)
        ]
        if not candidates or self.rng.random() >= self.share:
            return False
        self.memory.insert(inner_cut(line, draft.adapter, *self.rng.choice(candidates)))
        return True
