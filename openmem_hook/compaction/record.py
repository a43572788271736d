"""What a decision or a report writes, as values: the core says it, the shell does it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openmem_hook import fingerprint, tokens
from openmem_hook.compaction.edits import Cut, Swap
from openmem_hook.compaction.pipeline import Draft
from openmem_hook.compaction.threads import Place
from openmem_hook.model import History, Pause, no_pause
from openmem_hook.text import searchable, searchable_text


@dataclass(frozen=True, slots=True)
class Thread:
    """One line of history. `note`: version of its note, 0 for none; `result_chars`: 0 for no compression."""

    id: int
    name: str
    agent: str
    root: bytes
    tip: bytes
    has_tools: bool
    note: int
    result_chars: int
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class Adopted:
    """Edits that a session goes by and that its database doesn't hold yet: those of a fork's parent, or of a
    database that was lost. `threads`: whose rules hold, by the keys of their messages."""

    cuts: tuple[Cut, ...] = ()
    swaps: tuple[Swap, ...] = ()
    threads: Mapping[bytes, Thread] = field(default_factory=dict)

    def thread_of(self, keys: Sequence[bytes]) -> Thread | None:
        """The thread of the newest of these messages that is known."""
        return next((self.threads[key] for key in reversed(keys) if key in self.threads), None)


@dataclass(frozen=True, slots=True)
class NewRow:
    """A message to store. `text` is what is searched, `body` its JSON as the client sent it."""

    key: bytes
    past: bytes
    digest: bytes
    role: str
    kind: str
    tool_name: str
    text: str
    in_context: bool
    format: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Event:
    kind: str
    data: Mapping[str, Any]

    def as_json(self) -> str:
        """Its data without a blank too many: one is written with every request, twice."""
        return json.dumps(self.data, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Write:
    """What a decision writes. `hidden` and `shown` are keys whose `in_context` changes; `ended` are threads
    none of whose messages are shown any more."""

    thread: Thread
    rows: Sequence[NewRow] = ()
    cuts: Sequence[Cut] = ()
    swaps: Sequence[Swap] = ()
    events: Sequence[Event] = ()
    hidden: Sequence[bytes] = ()
    shown: Sequence[bytes] = ()
    ended: Sequence[int] = ()
    now: float = 0.0

    @property
    def empty(self) -> bool:
        return not (self.rows or self.cuts or self.swaps or self.events or self.hidden or self.shown or self.ended)


@dataclass(frozen=True, slots=True)
class UsageWrite:
    """What a report adds: `tokens` for the request that ended with `key` under `cut`, and what it says of
    rows. `call_id` makes it count once."""

    call_id: str
    key: bytes
    cut: str
    tokens: int | None
    overhead: float
    family_rate: float
    measured: Sequence[tuple[bytes, float]]
    thread: int
    offset: float | None
    event: Event
    now: float


@dataclass(frozen=True, slots=True)
class Savings:
    """Estimated prompt tokens of a request without and with the edits."""

    before: int
    after: int


def shown_whole(draft: Draft, places: Sequence[int]) -> set[int]:
    """Those of these places whose messages go out as they are."""
    history, standing = draft.history, draft.standing
    start = history.lead if standing is None else standing.index + 1
    swapped = {key for key, _ in draft.swaps}
    front = {*range(history.lead), *draft.kept}
    if standing is not None and draft.new_cut is None and any(i < start for i in places):
        front |= _shown_by_head(history, standing.index, standing.cut.shown)
    return {i for i in places if (i in front if i < start else history.keys[i] not in swapped)}


def hidden_by(draft: Draft) -> list[bytes]:
    """Keys of the messages that new edits take out of sight: a cut all it does not show, a swap its own."""
    if draft.new_cut is None:
        return [swap.key for swap in draft.new_swaps]
    keys = draft.history.keys
    shown = shown_whole(draft, range(len(keys)))
    return [key for i, key in enumerate(keys) if i not in shown]


def _shown_by_head(history: History, anchor: int, shown: Sequence[bytes]) -> set[int]:
    """Indices of the messages a standing head shows: its digests are a subsequence of the history's."""
    found, wanted = set(), iter(shown)
    digest = next(wanted, None)
    for i in range(history.lead, anchor + 1):
        if digest is not None and history.facts[i].digest == digest:
            found.add(i)
            digest = next(wanted, None)
    return found


def rows_of(draft: Draft, new: Sequence[int], whole: set[int], pause: Pause = no_pause) -> list[NewRow]:
    """Rows for the messages at these places. `pause` is called after each."""
    if not new:
        return []
    history, adapter = draft.history, draft.adapter
    made_by = _callers(history, {call for i in new for call in history.facts[i].answers})
    rows = []
    for i in new:
        fact, raw = history.facts[i], history.messages[i]
        tools = fact.tool_names or tuple(made_by.get(call, "") for call in fact.answers)
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


def _callers(history: History, answered: set[str]) -> dict[str, str]:
    """The tools that made these calls, looked for from the end: what is new answers what is recent."""
    found: dict[str, str] = {}
    for fact in reversed(history.facts):
        if len(found) == len(answered):
            break
        for call, name in zip(fact.calls, fact.tool_names, strict=True):
            if call in answered:
                found.setdefault(call, name)
    return found


def ended_threads(history: History, thread: Thread, place: Place, threads: Iterable[Thread]) -> list[int]:
    """A client's own compaction starts a new history: what its agent showed before is shown no more."""
    if thread.id or place.shared > history.lead or not any(f.kind == "recap" for f in history.facts):
        return []
    return [known.id for known in threads if known.agent == thread.agent]


def _trim_numbers(draft: Draft) -> dict[str, Any]:
    cut = draft.new_cut
    anchor = draft.standing.index if draft.standing is not None else 0
    return {
        "reason": draft.reason,
        "tokens_before": round(draft.before),
        "tokens_after": round(draft.estimate),
        "messages_left": max(anchor + 1 - draft.history.lead - len(draft.kept), 0) if cut is not None else 0,
        "generation": 0 if cut is None else cut.generation,
        "cut": "" if cut is None else cut.id,
        "trim_at": draft.rules.limits.trim_at,
    }


def savings_of(draft: Draft) -> Savings | None:
    """What the edits keep out of this request."""
    if draft.standing is None and not draft.swaps:
        return None
    scale, history = draft.known.scale, draft.history
    start = history.lead if draft.standing is None else draft.standing.index + 1
    gone = sum(scale.costs(history.keys[history.lead : start], history.facts[history.lead : start]))
    head = 0.0 if draft.standing is None else tokens.estimate(scale.calibration, draft.standing.cut.head_sizes)
    raw = sum(
        tokens.estimate(scale.calibration, history.facts[i].sizes) - scale.cost(history.keys[i], draft.sent[i])
        for i in range(start, len(history))
        if history.facts[i] is not draft.sent[i]
    )
    saved = max(gone - head, 0.0) + max(raw, 0.0)
    return Savings(round(draft.estimate + saved), round(draft.estimate)) if saved else None


def _whole_chars(draft: Draft) -> dict[tuple[bytes, str], int]:
    """Characters of each result as the client sent it."""
    history = draft.history
    placed = zip(history.keys, history.facts, strict=True)
    return {(key, slot.call_id): slot.chars for key, fact in placed for slot in fact.results}


def events_of(draft: Draft, about: Mapping[str, Any]) -> list[Event]:
    short = [swap for swap in draft.new_swaps if swap.reason == "size"]
    whole = _whole_chars(draft) if short else {}
    found = [
        Event(
            "compression",
            {**about, "id": swap.id, "chars_before": whole[swap.key, swap.call_id], "chars_after": len(swap.text)},
        )
        for swap in short
    ]
    if trimmed := draft.new_cut is not None or any(swap.reason == "hard" for swap in draft.new_swaps):
        found.append(Event("trim", {**about, **_trim_numbers(draft)}))
    if draft.reason == "forced" and draft.new_cut is not None:
        found.append(Event("forced", about))
    if draft.note_event and not trimmed and draft.history.keys[-1] not in draft.known.scale.measured:
        found.append(Event("nothing_to_trim", {**about, "estimate": round(draft.estimate)}))
    return found
