"""Choosing a cut: which messages a head keeps, and where its anchor is.

First choice: preamble, the reply before the last typed message, that message and its turn. Where that is still
over the target, the oldest exchanges of the running turn go too, down to the last three. What pins an
exchange is kept in the head: a deferred tool's reference that the tail still uses, items a provider signed, the
newest words that a person put in while the turn ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain

from openmem_hook.compaction import boundaries
from openmem_hook.compaction.boundaries import Output
from openmem_hook.model import INTERJECTIONS, Facts, History

KEEP_EXCHANGES = 3
"""Newest exchanges of a running turn that always stay."""
REPEATED_GAIN = 0.2
"""Share of `trim_at` that a thread's further breaks must gain, so that each lost cache pays for many requests."""
SLACK = 0.5
"""A break for body bytes or media count goes down to this share of the limit, for the same reason."""
POINTER_TOKENS = 1_000

Ranges = Sequence[tuple[int, int]]
"""First and last message of what inner cuts replace: kept or left out as a whole."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A legal cut from the lead."""

    head_indices: tuple[int, ...]
    """Indices that the head shows, in order."""
    carrier: int | None
    """The one that carries the pointer, None where the pointer is a message of its own."""
    anchor: int
    """Index of the last message that the head stands for."""
    turn: int
    """Index of the last typed message."""

    def removed_indices(self, history: History) -> list[int]:
        """The messages that leave the request."""
        in_head = set(self.head_indices)
        return [i for i in range(history.lead, self.anchor + 1) if i not in in_head]


@dataclass(frozen=True, slots=True)
class Weights:
    """What each message of a history costs as it would be sent."""

    tokens: Sequence[float]
    bytes: Sequence[int]
    media: Sequence[int]


@dataclass(frozen=True, slots=True)
class Target:
    """What a cut should bring head and tail under, None in a dimension that is not over its limit."""

    tokens: float
    limit: float
    """Tokens that they may have at most."""
    bytes: float | None = None
    media: float | None = None


def find_choices(history: History, ranges: Ranges = (), strict: bool = True) -> Iterator[Choice]:
    """Legal cuts from the first choice to the deepest.

    `strict`: a provider's signed items pin their exchange in finished turns too, and a person's newest words inside
    the running turn stay.
    """
    facts = history.facts
    closed_at = boundaries.find_closed_places(facts, ranges)
    may_start = boundaries.find_tail_starts(history, closed_at)
    outputs = boundaries.find_outputs(history, history.editable_from, closed_at)
    # The preamble: everything up to the first typed message, with the system messages behind it.
    first = _first_typed(history)
    preamble_end = history.editable_from if first is None else _after_system(facts, first + 1)
    # The last typed message begins the running turn. Without one, as after a provider's compaction, nothing can carry
    # the pointer.
    turn = max((i for i in range(history.editable_from, len(facts)) if facts[i].kind == "typed"), default=first)
    if turn is None:
        yield from _without_typed(history, may_start, outputs, ranges)
        return
    preamble = (*_compaction(history), *range(history.editable_from, preamble_end))
    # Words that came in the middle of an exchange stay together with it: calls and results are never parted.
    around = next((output for output in outputs if output.first < turn < output.end), None)
    turn_start, turn_body = (turn, _after_system(facts, turn + 1)) if around is None else (around.first, around.end)
    if not closed_at[turn_start] or not closed_at[turn_body]:
        return
    words_typed = range(turn_start, turn_body) if turn_start >= preamble_end else ()
    reply = _last_reply(history, preamble_end, turn_start, closed_at, may_start)
    # Each place where the tail may begin is a choice, with what has to stay of the messages before it.
    exchanges = [output for output in outputs if output.first >= turn_body]  # without calls: answers to a notice
    for start in _starts(history, may_start, turn_body, exchanges):
        pins = _pins(history, start, outputs, history.editable_from if strict else turn_body, turn_body)
        earlier = [i for i in pins if preamble_end <= i < turn_start and i not in reply]
        words = _newest_interjection(history, start, exchanges, turn_body) if strict else range(0)
        of_turn = sorted({*words, *(i for i in pins if turn_body <= i < start)})
        body = _with_opener(history, start, turn_body, exchanges, of_turn)
        if body is not None:
            head = (*preamble, *sorted({*earlier, *reply}), *words_typed, *body)
            yield Choice(_with_ranges(head, ranges), turn if around is None else None, start - 1, turn)


def _first_typed(history: History) -> int | None:
    """The first typed message. Where an exchange stands before it, the last of the messages that a client began
    with, None where it began with an exchange."""
    facts = history.facts
    places = range(history.editable_from, len(history))
    first = next((i for i in places if facts[i].kind in ("typed", "mixed")), len(facts))
    call = next((i for i in places if facts[i].calls), len(facts))
    if first < call:
        return first
    answer = next((i for i in places if facts[i].role not in ("user", "system") or facts[i].answers), len(facts))
    return max((i for i in range(history.editable_from, answer) if facts[i].role == "user"), default=None)


def _compaction(history: History) -> tuple[int, ...]:
    """A provider's compaction with what belongs to it, after the words a history has to begin with."""
    facts, lead = history.facts, history.lead
    if history.editable_from == lead:
        return ()
    closed_at = boundaries.find_closed_places(facts)
    whole = (i for i in range(history.compaction_at, lead, -1) if closed_at[i] and facts[i - 1].kind != "reasoning")
    start = next(whole, lead)
    begins = start > lead and facts[lead].role == "user" and not facts[lead].answers
    return (*range(lead, lead + begins), *range(start, history.editable_from))


def _after_system(facts: Sequence[Facts], at: int) -> int:
    while at < len(facts) and facts[at].role == "system":
        at += 1
    return at


def _last_reply(
    history: History, preamble_end: int, turn_start: int, closed_at: Sequence[bool], may_start: Sequence[bool]
) -> tuple[int, ...]:
    """The output before the last typed message; without one, what keeps the roles legal after a system message."""
    facts = history.facts
    # The output that the last words answer to: it stays where it is words and calls nothing.
    last = next((i for i in range(turn_start - 1, preamble_end - 1, -1) if facts[i].role == "assistant"), None)
    if last is None:
        return ()
    first = last
    while first > preamble_end and facts[first - 1].role == "assistant":
        first -= 1
    run = range(first, last + 1)
    if closed_at[first] and not any(facts[i].calls for i in run) and any(facts[i].has_text for i in run):
        return tuple(run)
    # L3: an assistant's message has to follow a system message at the preamble's end.
    if preamble_end == history.editable_from or facts[preamble_end - 1].role != "system":
        return ()
    places = range(first, preamble_end - 1, -1)
    opener = next((i for i in places if may_start[i] and facts[i].role == "assistant"), None)
    return () if opener is None else tuple(i for i in range(opener, turn_start) if facts[i].role != "system")


def _starts(history: History, may_start: Sequence[bool], turn_body: int, exchanges: Sequence[Output]) -> Iterator[int]:
    """Places where the tail may begin: right after the typed message, then ever deeper in its turn."""
    facts = history.facts
    first = _after_identity(facts, turn_body, turn_body)
    if first is not None:
        yield first
    compaction = next((i for i in range(turn_body, len(facts)) if facts[i].kind == "compaction"), len(facts))
    for output in exchanges[1 : len(exchanges) - KEEP_EXCHANGES + 1]:
        if output.first > compaction:
            return
        if may_start[output.first]:
            place = _after_identity(facts, output.first, turn_body)
            if place is not None:
                yield place


def _after_identity(facts: Sequence[Facts], at: int, least: int) -> int | None:
    """The place after the last message before `at` that has an identity, since an anchor needs one: what lies between
    stays in the tail. None where that is before `least`."""
    while at > 0 and not facts[at - 1].identifies:
        at -= 1
    return at if at >= least else None


def _with_opener(
    history: History, start: int, turn_body: int, exchanges: Sequence[Output], of_turn: list[int]
) -> list[int] | None:
    """What the head keeps of a running turn: `of_turn`, and the nearest exchange before it where roles ask for one.

    A provider may want the turn's first output to start with thinking, and an output to follow a system message. None
    where there is no such exchange.
    """
    facts = history.facts
    # What the rules ask of the turn's first output, and of what follows a system message.
    output_at = next((i for i in (*of_turn, *range(start, len(facts))) if facts[i].role == "assistant"), len(facts))
    before = [output for output in exchanges if output.end <= output_at]
    must_think = history.must_start_with_thinking and any(fact.has_thinking for fact in facts[turn_body:])
    lacks_thinking = must_think and output_at < len(facts) and not facts[output_at].starts_with_thinking
    after_system = not of_turn and turn_body > 0 and facts[turn_body - 1].role == "system"
    lacks_output = after_system and start < len(facts) and facts[start].role != "assistant"
    if not before or not (lacks_output or lacks_thinking):
        return of_turn
    # The nearest exchange before it that does.
    fitting = (output for output in reversed(before) if facts[output.first].starts_with_thinking or not lacks_thinking)
    opener = next(fitting, None)
    return None if opener is None else [*range(opener.first, opener.end), *of_turn]


def _pins(history: History, start: int, outputs: Sequence[Output], signed_from: int, turn_body: int) -> list[int]:
    """Messages before `start` that must stay, with their exchanges: tool references in use, what a provider signed at
    or after `signed_from`, and, in the running turn, what nobody here knows."""
    facts = history.facts
    places = range(history.editable_from, start)
    candidates = [i for i in places if facts[i].is_signed or facts[i].references or facts[i].kind == "unknown"]
    if not candidates:
        return []
    # What the tail still needs: a deferred tool's definition came with its reference.
    in_use = history.deferred_tools.intersection(name for fact in facts[start:] for name in fact.tool_names)
    # Each stays with its whole exchange, and an unknown item with the reasoning that it may have come with.
    whole = {i: range(output.first, output.end) for output in outputs for i in range(output.first, output.end)}
    stay = set[int]()
    for i in candidates:
        if facts[i].kind == "unknown" and i >= turn_body:
            stay.update(range(_reasoning_before(facts, i, turn_body), i + 1))
        elif not (facts[i].is_signed and i >= signed_from) and not in_use.intersection(facts[i].references):
            continue
        stay.update(whole.get(i, range(i, i + 1)))
    return sorted(i for i in stay if i < start)


def _newest_interjection(history: History, start: int, exchanges: Sequence[Output], turn_body: int) -> range:
    """The newest words before `start` that came inside the running turn, with the exchange that they came beside."""
    facts = history.facts
    places = range(len(facts) - 1, turn_body - 1, -1)
    last = next((i for i in places if facts[i].kind in INTERJECTIONS), None)
    if last is None or last >= start:
        return range(0)
    beside = next((output for output in reversed(exchanges) if output.first <= last), None)
    return range(last, last + 1) if beside is None else range(beside.first, max(beside.end, last + 1))


def _reasoning_before(facts: Sequence[Facts], at: int, least: int) -> int:
    """Where the reasoning that an item may have come with begins."""
    while at > least and facts[at - 1].kind == "reasoning":
        at -= 1
    return at


def _without_typed(
    history: History, may_start: Sequence[bool], outputs: Sequence[Output], ranges: Ranges
) -> Iterator[Choice]:
    """Nothing typed is left to carry the pointer (a compaction stands before a running turn): it stands alone."""
    first = history.editable_from
    for start in _starts(history, may_start, first, outputs):
        pins = _pins(history, start, outputs, first, first)
        if start > first and _with_opener(history, start, first, outputs, pins) == pins:
            yield Choice(_with_ranges((*_compaction(history), *pins), ranges), None, start - 1, first)


def _with_ranges(head: tuple[int, ...], ranges: Ranges) -> tuple[int, ...]:
    """With all of a range of which anything stays."""
    stay = [range(first, last + 1) for first, last in ranges if any(first <= i <= last for i in head)]
    return tuple(sorted({*head, *chain.from_iterable(stay)})) if stay else head


def choose(history: History, weights: Weights, target: Target, ranges: Ranges = ()) -> Choice | None:
    """The first cut that fits the target, else the deepest.

    Where what a provider signed in finished turns, or the exchange beside which a person's words came, would keep the
    request over its limit, it leaves.
    """
    fitting, deepest = _first_fitting(find_choices(history, ranges), weights, target)
    has_pins = any(fact.is_signed or fact.kind in INTERJECTIONS for fact in history.facts)
    if fitting or deepest is None or not has_pins:
        return fitting or deepest
    if _first_fitting([deepest], weights, replace(target, tokens=target.limit))[0]:
        return deepest
    fitting, deepest = _first_fitting(find_choices(history, ranges, strict=False), weights, target)
    return fitting or deepest


def _first_fitting(
    candidates: Iterable[Choice], weights: Weights, target: Target
) -> tuple[Choice | None, Choice | None]:
    """The first choice that fits, and the last one looked at."""
    dimensions = (
        (weights.tokens, target.tokens - POINTER_TOKENS),
        (weights.bytes, target.bytes),
        (weights.media, target.media),
    )
    measures = [(_sums(each), each, limit) for each, limit in dimensions if limit is not None]
    last = None
    for choice in candidates:
        last = choice
        if all(
            sums[-1] - sums[choice.anchor + 1] + sum(each[i] for i in choice.head_indices) <= limit
            for sums, each, limit in measures
        ):
            return choice, choice
    return None, last


def _sums(values: Sequence[float]) -> list[float]:
    return list(accumulate(values, initial=0.0))
