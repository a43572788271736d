"""Where a history may be cut: between exchanges and turns, never inside one.

A boundary at i stands before message i. It is closed when no call made before it is answered after it, when it
does not part reasoning from the item it was produced with, and when a model output is not split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from openmem_hook.model import Facts, History

_OPENS_TURN = ("typed", "recap", "notice", "summarise")


def closed(facts: Sequence[Facts]) -> list[bool]:
    """For each place 0..n: no call before it is answered at or after it."""
    open_calls: dict[str, list[int]] = {}
    change = [0] * (len(facts) + 1)
    for i, fact in enumerate(facts):
        for call in fact.calls:
            open_calls.setdefault(call, []).append(i)
        for answer in fact.answers:
            made = open_calls.get(answer)
            if made:
                change[made.pop() + 1] += 1
                change[i + 1] -= 1
    return [not waiting for waiting in accumulate(change)]


def legal(history: History, ends: Sequence[bool]) -> list[bool]:
    """For each place 0..n: a tail may start there. `ends` says where `closed` does."""
    facts = history.facts
    out = [False] * (len(facts) + 1)
    for i in range(history.editable_from, len(facts) + 1):
        out[i] = ends[i] and (i == len(facts) or _starts(facts, i))
    return out


def _starts(facts: Sequence[Facts], i: int) -> bool:
    fact, before = facts[i], facts[i - 1] if i else None
    if before is not None and before.kind == "reasoning":
        return False
    if fact.role == "user" and fact.kind in _OPENS_TURN:
        return before is None or before.kind != "unknown"
    return fact.role == "assistant" and (before is None or before.role in ("user", "tool", "system"))


@dataclass(frozen=True, slots=True)
class Output:
    """A model output: the run of items at first..last, and the end (exclusive) of the results answering it, with
    whatever stands among them."""

    first: int
    last: int
    end: int
    calls: bool


def outputs(history: History, start: int, ends: Sequence[bool]) -> list[Output]:
    """The model outputs at or after `start`, in order; `ends` as `closed` tells."""
    facts, found, i = history.facts, [], start
    while i < len(facts):
        if facts[i].role != "assistant":
            i += 1
            continue
        first = i
        while i + 1 < len(facts) and facts[i + 1].role == "assistant":
            i += 1
        end = i + 1
        while end < len(facts) and (facts[end].answers or not ends[end]):
            end += 1
        found.append(Output(first, i, end, any(f.calls for f in facts[first : i + 1])))
        i = max(end, i + 1)
    return found
