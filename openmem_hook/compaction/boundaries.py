"""Where a history may be cut: between exchanges and turns, never inside one.

Place i is the gap before message i. It is closed when no call made before it is answered at or after it. A tail may
start at a closed place that parts neither a model output nor reasoning from the item it was produced with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from openmem_hook.model import Facts, History, MessageKind

_TURN_STARTS: tuple[MessageKind, ...] = ("typed", "recap", "notice", "summarise")


def find_closed_places(facts: Sequence[Facts], ranges: Iterable[tuple[int, int]] = ()) -> list[bool]:
    """For each place 0..n: no call before it is answered at or after it, and it is inside none of the `ranges` (first
    and last message), which are kept or replaced as a whole."""
    open_calls: dict[str, list[int]] = {}
    change = [0] * (len(facts) + 1)
    for i, fact in enumerate(facts):
        for call in fact.calls:
            open_calls.setdefault(call, []).append(i)
        for answer in fact.answers:
            callers = open_calls.get(answer)
            if callers:
                change[callers.pop() + 1] += 1
                change[i + 1] -= 1
    for first, last in ranges:
        change[first + 1] += 1
        change[last + 1] -= 1
    return [not waiting for waiting in accumulate(change)]


def find_tail_starts(history: History, closed_at: Sequence[bool]) -> list[bool]:
    """For each place 0..n: a tail may start there. `closed_at` is what `find_closed_places` says."""
    facts = history.facts
    out = [False] * (len(facts) + 1)
    for i in range(history.editable_from, len(facts) + 1):
        out[i] = closed_at[i] and (i == len(facts) or _may_start(facts, i))
    return out


def _may_start(facts: Sequence[Facts], i: int) -> bool:
    fact, before = facts[i], facts[i - 1] if i else None
    if before is not None and before.kind == "reasoning":
        return False
    if fact.role == "user" and fact.kind in _TURN_STARTS:
        return before is None or before.kind != "unknown"
    return fact.role == "assistant" and (before is None or before.role in ("user", "tool", "system"))


@dataclass(frozen=True, slots=True)
class Output:
    """A model output with the results that answer it: an exchange, where it calls a tool."""

    first: int
    """Index of its first item."""
    end: int
    """Index behind the results that answer it, with whatever stands among them."""


def find_outputs(history: History, start: int, closed_at: Sequence[bool]) -> list[Output]:
    """The model outputs at or after `start`, in order; `closed_at` is what `find_closed_places` says."""
    facts, i = history.facts, start
    exchanges: list[Output] = []
    while i < len(facts):
        if facts[i].role != "assistant":
            i += 1
            continue
        first = i
        while i < len(facts) and facts[i].role == "assistant":
            i += 1
        while i < len(facts) and (facts[i].answers or not closed_at[i]):
            i += 1
        exchanges.append(Output(first, i))
    return exchanges
