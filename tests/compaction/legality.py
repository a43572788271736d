"""What is legal of a choice of a cut, by definition and without a word from the code that makes it.

Whatever held between messages in the history has to hold in what would be sent: the faults of a choice are lines that
name the messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from openmem_hook.compaction.trim import KEEP_EXCHANGES, Choice
from openmem_hook.model import History
from tests.compaction.generated import Style

POINTER = -1
"""Stands for a pointer that is a message of its own."""


def pairs(line: History) -> list[tuple[int, int]]:
    """Calls with the results that answer them; a result belongs to the newest open call of its id."""
    waiting, matches = list[tuple[str, int]](), list[tuple[int, int]]()
    for at, fact in enumerate(line.facts):
        waiting += [(call, at) for call in fact.calls]
        for answer in fact.answers:
            open_calls = [entry for entry in waiting if entry[0] == answer]
            if open_calls:
                waiting.remove(open_calls[-1])
                matches.append((open_calls[-1][1], at))
    return matches


def outgoing_places(line: History, choice: Choice) -> list[int]:
    """What would be sent: the lead, the head, the pointer where it stands alone, the tail."""
    own = [POINTER] if choice.carrier is None else []
    return [*range(line.lead), *choice.head_indices, *own, *range(choice.anchor + 1, len(line))]


def faults(
    line: History, choice: Choice, style: Style, ranges: Sequence[tuple[int, int]] = (), *, strict: bool = True
) -> list[str]:
    """All that is wrong with a choice."""
    places = outgoing_places(line, choice)
    checks = (
        _bounds(line, choice),
        _pairing(line, places),
        _reasoning(line, places),
        _pins(line, choice, places, strict),
        _exchanges_that_stay(line, choice),
        _ranges(line, choice, ranges),
        _roles(line, places) if style == "messages" else (),
        _opening(line, places) if line.must_start_with_thinking else (),
    )
    return [fault for check in checks for fault in check]


def _bounds(line: History, choice: Choice) -> Iterator[str]:
    cut_range = range(line.lead, choice.anchor + 1)
    if sorted({*choice.head_indices, *choice.removed_indices(line)}) != [*cut_range]:
        yield "what is kept and what is dropped are not just lead to anchor"
    if list(choice.head_indices) != sorted(set(choice.head_indices)):
        yield "the head is not in order"
    if not line.facts[choice.anchor].identifies:
        yield f"the anchor {line.messages[choice.anchor]} does not identify"
    if choice.carrier is not None and choice.carrier not in choice.head_indices:
        yield "the pointer's carrier is not in the head"
    last = max((i for i in range(line.editable_from, len(line)) if line.facts[i].kind == "typed"), default=None)
    if last is not None and last <= choice.anchor and last not in choice.head_indices:
        yield "the last typed message is gone"


def _pairing(line: History, places: Sequence[int]) -> Iterator[str]:
    for call, answer in pairs(line):
        if (call in places) != (answer in places):
            yield f"{line.messages[call]} and {line.messages[answer]} are parted"


def _reasoning(line: History, places: Sequence[int]) -> Iterator[str]:
    for i, fact in enumerate(line.facts[:-1]):
        if fact.kind == "reasoning" and (i in places) != (i + 1 in places):
            yield f"{line.messages[i]} and {line.messages[i + 1]} are parted"


def _pins(line: History, choice: Choice, places: Sequence[int], strict: bool) -> Iterator[str]:
    tail = line.facts[choice.anchor + 1 :]
    in_use = line.deferred_tools.intersection(name for fact in tail for name in fact.tool_names)
    for i in range(line.editable_from, len(line)):
        fact = line.facts[i]
        if in_use.intersection(fact.references) and i not in places:
            yield f"{line.messages[i]} is gone, and the tail uses its tool"
        if fact.is_signed and i not in places and (strict or i > choice.turn):
            yield f"the signed {line.messages[i]} is gone"
        if fact.kind == "unknown" and i > choice.turn and i not in places:
            yield f"the unknown {line.messages[i]} of the running turn is gone"


def _exchanges_that_stay(line: History, choice: Choice) -> Iterator[str]:
    """The newest exchanges of the running turn are in the tail, or in the head."""
    inside = {i for call, answer in pairs(line) for i in range(call + 1, answer + 1)}
    outputs = [
        i
        for i in range(choice.turn + 1, len(line))
        if line.facts[i].role == "assistant" and line.facts[i - 1].role != "assistant" and i not in inside
    ]
    if any(i <= choice.anchor and i not in choice.head_indices for i in outputs[-KEEP_EXCHANGES:]):
        yield f"fewer than {KEEP_EXCHANGES} exchanges stay"


def _ranges(line: History, choice: Choice, ranges: Sequence[tuple[int, int]]) -> Iterator[str]:
    for first, last in ranges:
        whole = range(first, last + 1)
        if first <= choice.anchor < last or 0 < len(set(choice.head_indices).intersection(whole)) < len(whole):
            yield f"{line.messages[first]} to {line.messages[last]} is split"


def _role(line: History, place: int) -> str:
    role = "user" if place == POINTER else line.facts[place].role
    return "user" if role == "tool" else role


def _roles(line: History, places: Sequence[int]) -> Iterator[str]:
    """In a list of messages a user begins, and a system message stands between a user's and an output."""
    roles = [_role(line, place) for place in places[line.lead :]]
    if roles[0] != "user":
        yield "no user begins"
    for at, role in enumerate(roles):
        if role == "system" and (roles[at - 1] != "user" or roles[at + 1 : at + 2] not in ([], ["assistant"])):
            yield f"a system message between {roles[at - 1]} and {roles[at + 1 : at + 2]}"


def _opening(line: History, places: Sequence[int]) -> Iterator[str]:
    """With thinking enabled, the first output since a turn's words starts with thinking."""
    opener = None
    for place in reversed(places):
        if _role(line, place) == "assistant":
            opener = place
        elif _role(line, place) == "user" and not line.facts[place].answers:
            break
    if opener is not None and not line.facts[opener].starts_with_thinking:
        yield f"the turn opens with {line.messages[opener]}, without thinking"
