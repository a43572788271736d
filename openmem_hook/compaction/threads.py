"""Which line of a session's history a request belongs to: told by fingerprints, never by a counter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from openmem_hook.model import History


class Line(Protocol):
    """What placing needs of a known thread."""

    @property
    def id(self) -> int: ...
    @property
    def agent(self) -> str: ...
    @property
    def tip(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Place:
    """`thread`: id of the thread, 0 for a new one. `seen`: the newest message was sent before (a retry or a
    rewind). `shared`: how many messages from the front are known, the lead taken for known. `extends`: the thread's
    tip is in the request.
    """

    thread: int
    seen: bool
    shared: int
    extends: bool


def place(history: History, agent: str, threads: Iterable[Line], owner: Mapping[bytes, int]) -> Place:
    """The thread whose tip the request holds, else the one that already has its newest message, else a new one."""
    keys = history.keys
    shared = next((i for i in range(history.lead, len(keys)) if keys[i] not in owner), len(keys))
    position = {key: i for i, key in enumerate(keys)}
    tips = {t.tip: t.id for t in threads if t.agent == agent}
    deepest = max((position[tip] for tip in tips if tip in position), default=-1)
    seen = bool(keys) and keys[-1] in owner
    if deepest >= 0 and deepest >= history.lead:
        return Place(tips[keys[deepest]], seen, shared, True)
    if seen:
        return Place(_owner(keys, owner, tips.values()), seen, shared, False)
    return Place(0, False, shared, False)


def _owner(keys: Sequence[bytes], owner: Mapping[bytes, int], candidates: Iterable[int]) -> int:
    """The thread of the newest message; only a thread of the same agent counts."""
    found = owner.get(keys[-1], 0)
    return found if found in set(candidates) else 0


def derived_id(history: History) -> str | None:
    """An id for a conversation whose client names none: what was typed first and what answered it."""
    facts = history.facts[history.lead :]
    typed = next((f.digest for f in facts if f.kind in ("typed", "mixed")), None)
    answer = next((f.digest for f in facts if f.role == "assistant" and f.identifies), None)
    if answer is None:
        return None
    return f"derived:{'' if typed is None else typed.hex()}:{answer.hex()}"
