"""Choosing a cut: which messages a head keeps, where its anchor is, and whether the gain is worth a break.

First choice: preamble, the reply before the last typed message, that message and its turn. Where that is still
over the target, the oldest exchanges of the running turn go too, down to the last three. What pins an
exchange is kept in the head: a deferred tool's reference that the tail still uses, items a provider signed, the
newest words that a person put in while the turn ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from openmem_hook.compaction import boundaries
from openmem_hook.compaction.boundaries import Output
from openmem_hook.model import INTERJECTIONS, Facts, History

KEEP_EXCHANGES = 3
REPEATED_GAIN = 0.2
"""Share of `trim_at` that a thread's further breaks must gain, so that each lost cache pays for many requests."""
SLACK = 0.5
"""A break for body bytes or media count goes down to this share of the limit, for the same reason."""
POINTER_TOKENS = 1_000


@dataclass(frozen=True, slots=True)
class Choice:
    """`kept`: indices the head shows, in order. `carrier`: the one that carries the pointer, None where the
    pointer is a message of its own. `anchor`: index of the last message the head stands for. `turn`: index of
    the last typed message."""

    kept: tuple[int, ...]
    carrier: int | None
    anchor: int
    turn: int

    def dropped(self, history: History) -> list[int]:
        kept = set(self.kept)
        return [i for i in range(history.lead, self.anchor + 1) if i not in kept]


@dataclass(frozen=True, slots=True)
class Weights:
    """What each message of a history costs as it would be sent: tokens, bytes, media."""

    tokens: Sequence[float]
    bytes: Sequence[int]
    media: Sequence[int]


@dataclass(frozen=True, slots=True)
class Target:
    """What a cut should bring head and tail under, each None where that dimension is not over its limit; `limit`:
    the tokens they may have at most."""

    tokens: float
    limit: float
    bytes: float | None = None
    media: float | None = None


def choices(history: History, strict: bool = True) -> Iterator[Choice]:
    """Legal cuts from the first choice to the deepest. `strict`: a provider's signed items pin their exchange in
    finished turns too, and a person's newest words inside the running turn stay."""
    facts = history.facts
    ends = boundaries.closed(facts)
    allowed = boundaries.legal(history, ends)
    outputs = boundaries.outputs(history, history.editable_from, ends)
    first = _first_typed(history)
    edge = history.editable_from if first is None else _after_system(facts, first + 1)
    turn = max((i for i in range(history.editable_from, len(facts)) if facts[i].kind == "typed"), default=first)
    if turn is None:
        yield from _without_typed(history, allowed, outputs)
        return
    preamble = (*_compaction(history), *range(history.editable_from, edge))
    amid = next((o for o in outputs if o.first < turn < o.end), None)
    begin, start = (turn, _after_system(facts, turn + 1)) if amid is None else (amid.first, amid.end)
    reply = _reply(history, edge, begin, ends, allowed)
    typed = range(begin, start) if begin >= edge else ()
    if not ends[begin] or not ends[start]:
        return
    exchanges = [o for o in outputs if o.first >= start]  # those without calls answered a client's notice
    for at in _starts(history, allowed, start, exchanges):
        pinned = _pinned(history, at, outputs, history.editable_from if strict else start, start)
        before = [i for i in pinned if edge <= i < begin and i not in reply]
        asked = _beside(history, at, exchanges, start) if strict else range(0)
        inside = _opened(history, at, start, exchanges, sorted({*asked, *(i for i in pinned if start <= i < at)}))
        if inside is not None:
            kept = (*preamble, *sorted({*before, *reply}), *typed, *inside)
            yield Choice(kept, turn if amid is None else None, at - 1, turn)


def _first_typed(history: History) -> int | None:
    """The first typed message. Where an exchange stands before it, the last of the messages that a client began
    with, None where it began with an exchange."""
    facts = history.facts
    places = range(history.editable_from, len(history))
    typed = next((i for i in places if facts[i].kind in ("typed", "mixed")), len(facts))
    called = next((i for i in places if facts[i].calls), len(facts))
    if typed < called:
        return typed
    said = next((i for i in places if facts[i].role not in ("user", "system") or facts[i].answers), len(facts))
    return max((i for i in range(history.editable_from, said) if facts[i].role == "user"), default=None)


def _compaction(history: History) -> tuple[int, ...]:
    """A provider's compaction with what belongs to it, after the words a history has to begin with."""
    facts, lead = history.facts, history.lead
    if history.editable_from == lead:
        return ()
    ends = boundaries.closed(facts)
    whole = (i for i in range(history.compaction_at, lead, -1) if ends[i] and facts[i - 1].kind != "reasoning")
    start = next(whole, lead)
    begins = start > lead and facts[lead].role == "user" and not facts[lead].answers
    return (*range(lead, lead + begins), *range(start, history.editable_from))


def _after_system(facts: Sequence[Facts], at: int) -> int:
    while at < len(facts) and facts[at].role == "system":
        at += 1
    return at


def _reply(history: History, edge: int, turn: int, ends: Sequence[bool], allowed: Sequence[bool]) -> tuple[int, ...]:
    """The output before the last typed message; without one, what keeps the roles legal after a system message."""
    facts = history.facts
    last = next((i for i in range(turn - 1, edge - 1, -1) if facts[i].role == "assistant"), None)
    if last is None:
        return ()
    first = last
    while first > edge and facts[first - 1].role == "assistant":
        first -= 1
    run = range(first, last + 1)
    if ends[first] and not any(facts[i].calls for i in run) and any(facts[i].has_text for i in run):
        return tuple(run)
    if edge == history.editable_from or facts[edge - 1].role != "system":
        return ()
    opened = next((i for i in range(first, edge - 1, -1) if allowed[i] and facts[i].role == "assistant"), None)
    return () if opened is None else tuple(i for i in range(opened, turn) if facts[i].role != "system")


def _starts(history: History, allowed: Sequence[bool], start: int, exchanges: Sequence[Output]) -> Iterator[int]:
    """Places where the tail may begin: right after the typed message, then ever deeper in its turn."""
    facts = history.facts
    anchored = _anchored(facts, start, start)
    if anchored is not None:
        yield anchored
    solid = next((i for i in range(start, len(facts)) if facts[i].kind == "compaction"), len(facts))
    for output in exchanges[1 : len(exchanges) - KEEP_EXCHANGES + 1]:
        if output.first > solid:
            return
        if allowed[output.first]:
            place = _anchored(facts, output.first, start)
            if place is not None:
                yield place


def _opened(history: History, at: int, start: int, exchanges: Sequence[Output], inside: list[int]) -> list[int] | None:
    """What the head keeps of a running turn: what is pinned, and the nearest exchange before it where roles ask for
    one. A provider may want the turn's first output to start with thinking, and an output to follow a system
    message. None where there is no such exchange."""
    facts = history.facts
    shown = next((i for i in (*inside, *range(at, len(facts))) if facts[i].role == "assistant"), len(facts))
    before = [o for o in exchanges if o.end <= shown]
    thought = history.must_start_with_thinking and any(f.has_thinking for f in facts[start:])
    unthought = thought and shown < len(facts) and not facts[shown].starts_with_thinking
    ends_in_system = not inside and start > 0 and facts[start - 1].role == "system"
    alone = ends_in_system and at < len(facts) and facts[at].role != "assistant"
    if not before or not (alone or unthought):
        return inside
    opener = next((o for o in reversed(before) if facts[o.first].starts_with_thinking or not unthought), None)
    return None if opener is None else [*range(opener.first, opener.end), *inside]


def _anchored(facts: Sequence[Facts], at: int, start: int) -> int | None:
    """The place after the last message before `at` that has an identity; what lies between stays in the tail."""
    while at > 0 and not facts[at - 1].identifies:
        at -= 1
    return at if at >= start else None


def _pinned(history: History, at: int, outputs: Sequence[Output], signed_from: int, running: int) -> list[int]:
    """Messages before `at` that must stay, with their exchanges: tool references in use, what a provider signed at or
    after `signed_from`, and, in the running turn (from `running` on), what nobody here knows."""
    facts = history.facts
    pins = [
        i
        for i in range(history.editable_from, at)
        if facts[i].is_signed or facts[i].references or facts[i].kind == "unknown"
    ]
    if not pins:
        return []
    wanted = history.deferred_tools.intersection(name for fact in facts[at:] for name in fact.tool_names)
    whole = {i: range(o.first, o.end) for o in outputs for i in range(o.first, o.end)}
    stay = set[int]()
    for i in pins:
        if facts[i].kind == "unknown" and i >= running:
            stay.update(range(_thought(facts, i, running), i + 1))
        elif not (facts[i].is_signed and i >= signed_from) and not wanted.intersection(facts[i].references):
            continue
        stay.update(whole.get(i, range(i, i + 1)))
    return sorted(i for i in stay if i < at)


def _beside(history: History, at: int, exchanges: Sequence[Output], start: int) -> range:
    """The newest words before `at` that came inside the running turn, with the exchange that they came beside."""
    facts = history.facts
    last = next((i for i in range(len(facts) - 1, start - 1, -1) if facts[i].kind in INTERJECTIONS), None)
    if last is None or last >= at:
        return range(0)
    came = next((o for o in reversed(exchanges) if o.first <= last), None)
    return range(last, last + 1) if came is None else range(came.first, max(came.end, last + 1))


def _thought(facts: Sequence[Facts], at: int, start: int) -> int:
    """Where the reasoning that an item may have come with begins."""
    while at > start and facts[at - 1].kind == "reasoning":
        at -= 1
    return at


def _without_typed(history: History, allowed: Sequence[bool], outputs: Sequence[Output]) -> Iterator[Choice]:
    """Nothing typed is left to carry the pointer (a compaction stands before a running turn): it stands alone."""
    for at in _starts(history, allowed, history.editable_from, outputs):
        if at > history.editable_from and _opened(history, at, history.editable_from, outputs, []) == []:
            yield Choice(_compaction(history), None, at - 1, history.editable_from)


def choose(history: History, weights: Weights, target: Target) -> Choice | None:
    """The first cut that fits the target, else the deepest. Where what a provider signed in finished turns, or the
    exchange beside which a person's words came, would keep the request over its limit, it leaves."""
    fitting, deepest = _fitting(choices(history), weights, target)
    if fitting or deepest is None or not any(fact.is_signed or fact.kind in INTERJECTIONS for fact in history.facts):
        return fitting or deepest
    within = replace(target, tokens=target.limit)
    if _fitting([deepest], weights, within)[0]:
        return deepest
    fitting, other = _fitting(choices(history, strict=False), weights, target)
    return fitting or other


def _fitting(found: Iterable[Choice], weights: Weights, target: Target) -> tuple[Choice | None, Choice | None]:
    """The first choice that fits, and the last one looked at."""
    measures = [
        (_sums(kind), kind, limit)
        for kind, limit in (
            (weights.tokens, target.tokens - POINTER_TOKENS),
            (weights.bytes, target.bytes),
            (weights.media, target.media),
        )
        if limit is not None
    ]
    last = None
    for choice in found:
        last = choice
        if all(
            sums[-1] - sums[choice.anchor + 1] + sum(kind[i] for i in choice.kept) <= limit
            for sums, kind, limit in measures
        ):
            return choice, choice
    return None, last


def _sums(values: Sequence[float]) -> list[float]:
    return list(accumulate(values, initial=0.0))
