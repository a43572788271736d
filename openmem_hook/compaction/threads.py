"""Which line of a session's history a request belongs to: told by fingerprints, never by a counter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from openmem_hook.model import History


@dataclass(frozen=True, slots=True)
class Thread:
    """One line of history in a session: the main agent's, a sub-agent's, a fork's. Its rules are fixed at first
    contact, so that no later setting changes what was sent."""

    id: int
    """0 before it is stored."""
    name: str
    agent: str
    """A hash of the client's own name of a sub-agent, "" for the main agent."""
    root: bytes
    """Key of its first message after the lead."""
    last_key: bytes
    """Key of the newest message that clients don't leave out the next time."""
    has_tools: bool
    note: int
    """Version of its note's wording, 0 for none."""
    result_chars: int
    """Characters above which a result is compressed, 0 for never."""
    offset: float = 0.0
    """Prompt tokens beyond our estimate of a whole request."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a history belongs."""

    thread: int
    """Id of its thread, 0 for a new one."""
    shared_count: int
    """How many messages from the front are known, the lead taken for known."""
    extends: bool
    """Whether the thread's last message is in the request."""


def place(history: History, agent: str, threads: Iterable[Thread], owners: Mapping[bytes, int]) -> Placement:
    """The thread whose last message the request holds, else the one that has its newest message, else a new one.

    `agent` is the sub-agent's label: a thread of another agent is never the one, even where it holds every message.
    `owners` says which thread stored a message first.
    """
    keys = history.keys
    shared_count = next((i for i in range(history.lead, len(keys)) if keys[i] not in owners), len(keys))
    # A request that goes on from a thread's last message belongs to it, the deepest such message first.
    index = {key: i for i, key in enumerate(keys)}
    candidates = {thread.last_key: thread.id for thread in threads if thread.agent == agent}
    deepest = max((index[key] for key in candidates if key in index), default=-1)
    if deepest >= history.lead:
        return Placement(candidates[keys[deepest]], shared_count, True)
    # A retry or a rewind: its newest message was sent before.
    owner = owners.get(keys[-1], 0) if keys else 0
    return Placement(owner if owner in candidates.values() else 0, shared_count, False)


def extend_thread(thread: Thread, history: History, placement: Placement) -> Thread:
    """The thread as it will be after this request."""
    last_key = _last_key(history) if placement.extends else thread.last_key
    return replace(thread, last_key=last_key, has_tools=thread.has_tools or history.has_tools)


def begin_thread(history: History, agent: str, rules: Thread | None, note: int, result_chars: int) -> Thread:
    """A new thread. It takes over the rules of the one that it branches off from; `note` and `result_chars` are for one
    without."""
    return Thread(
        id=0,
        name="agent" if agent else "main",
        agent=agent,
        root=history.keys[min(history.lead, len(history) - 1)],
        last_key=_last_key(history),
        has_tools=history.has_tools,
        note=note if rules is None else rules.note,
        result_chars=result_chars if rules is None else rules.result_chars,
        offset=0.0 if rules is None else rules.offset,
    )


def _last_key(history: History) -> bytes:
    pairs = zip(reversed(history.keys), reversed(history.facts), strict=True)
    return next((key for key, fact in pairs if fact.identifies), history.keys[-1])


def is_auxiliary(history: History, threads: Iterable[Thread]) -> bool:
    """Titles, probes, a client's own compaction: no tools, and no conversation of its own."""
    if history.has_tools:
        return False
    if any(thread.has_tools for thread in threads):
        return True
    return not any(fact.role == "assistant" for fact in history.facts)


def find_replaced_threads(
    history: History, thread: Thread, placement: Placement, threads: Iterable[Thread]
) -> tuple[int, ...]:
    """A client's own compaction starts a new history: what its agent showed before is shown no more."""
    is_new = not thread.id and placement.shared_count <= history.lead
    if not is_new or not any(fact.kind == "recap" for fact in history.facts):
        return ()
    return tuple(other.id for other in threads if other.agent == thread.agent)


def derive_id(history: History) -> str | None:
    """An id for a conversation whose client names none: what was typed first and what answered it. None before
    anything did."""
    facts = history.facts[history.lead :]
    first_typed = next((fact.digest for fact in facts if fact.kind in ("typed", "mixed")), None)
    answer = next((fact.digest for fact in facts if fact.role == "assistant" and fact.identifies), None)
    if answer is None:
        return None
    return f"derived:{'' if first_typed is None else first_typed.hex()}:{answer.hex()}"
