"""The decision about one request, as a visible row of steps over one frozen draft.

`decide` looks at a history and what is known of it and says what to do; it does nothing. `finish` builds the
outgoing body from a decision, new or replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from openmem_hook import fingerprint, tokens
from openmem_hook.compaction import estimate, trim, wording
from openmem_hook.compaction.edits import Cut, Standing, Swap, SwapMap, apply, sent_message
from openmem_hook.compaction.estimate import Scale
from openmem_hook.compaction.freeze import freeze
from openmem_hook.compaction.results import shorten
from openmem_hook.compaction.standing import Followers, find_standing
from openmem_hook.facts import cached_facts
from openmem_hook.limits import Limits
from openmem_hook.model import Adapter, Facts, History, HistoryCache, Pause, Raw, no_pause

SHORT_SHARE = 0.5
"""A short form's cap as a share of the size above which results are compressed."""
SHORTEST = 600
"""Characters a short form may always have: header, a beginning and an end that still say something."""
POINTER_BYTES = 4_000
"""About what a pointer adds to a body: `wording.POINTER_CHARS` and what JSON puts around them."""
CERTAIN = 0.995
"""Share of `trim_at` up to which a prompt surely is under it: estimates are off by up to half a percent."""
RELIEF = 0.8
"""Share of a hard limit down to which kept results are shortened, so that the next request fits too."""
SQUEEZE = (4_000, 1_500, 600)
"""Caps in characters tried in turn on kept results when a request is over the hard limit."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a thread's decisions go by. `result_chars` (0: off) and `note` were fixed at its first contact."""

    result_chars: int
    note: str | None
    limits: Limits
    new_edits: bool = True


@dataclass(frozen=True, slots=True)
class Known:
    """What the store and memory hold about a session, as decisions read it.

    `scale.measured` has the row key of every stored message. `digests` maps their digests to row keys. `sent`
    are keys of messages sent while the store was out of reach: raw for good, though no row says so.
    """

    digests: Mapping[bytes, bytes]
    cuts: Mapping[bytes, Cut]
    swaps: SwapMap
    followers: Followers
    scale: Scale
    sent: Set[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class Draft:
    """A decision in the making; every step returns a new one."""

    adapter: Adapter
    history: History
    rules: Rules
    known: Known
    session: str
    memo: HistoryCache
    standing: Standing | None = None
    swaps: Mapping[tuple[bytes, str], Swap] = field(default_factory=dict)
    new_swaps: tuple[Swap, ...] = ()
    sent: tuple[Facts, ...] = ()
    estimate: float = 0.0
    before: float = 0.0
    new_cut: Cut | None = None
    kept: tuple[int, ...] = ()
    reason: str = ""
    note_event: str = ""


Step = Callable[[Draft], Draft]


def decide(draft: Draft, pause: Pause = no_pause) -> Draft:
    """`pause` is called between two steps."""
    for step in STEPS:
        draft = step(draft)
        pause()
    return draft


def find(draft: Draft) -> Draft:
    known = draft.known
    history, standing = find_standing(draft.history, known.cuts, known.followers, known.digests)
    return replace(draft, history=history, standing=standing, swaps=known.swaps)


def compress(draft: Draft) -> Draft:
    """Results sent for the first time: short where they are over the limit, else raw for good. One that went out short
    goes on so when something before it changed, and with it the names of all that follows."""
    limit = draft.rules.result_chars
    if not draft.rules.new_edits:
        return draft
    made = list[Swap]()
    known = draft.known
    held = {swap.call_id: swap for swap in known.swaps.values()}
    cap = max(int(limit * SHORT_SHARE), SHORTEST)
    fresh_from = _answered(draft) if limit > 0 else len(draft.history)
    for i in range(max(_start(draft), draft.history.editable_from), len(draft.history)):
        key = draft.history.keys[i]
        if key in known.scale.measured or key in known.sent:
            continue
        again = _held(draft, i, held, cap)
        made += again
        if i >= fresh_from:
            named = {swap.call_id for swap in again}
            fresh = _swaps(draft, i, limit, cap, "size")
            made += [swap for swap in fresh if swap.call_id not in named]
    return _with_swaps(draft, made)


def _held(draft: Draft, index: int, held: Mapping[str, Swap], cap: int) -> list[Swap]:
    """Short forms that the very same results have under another name: a message before them changed, or another part of
    theirs. `held`: the newest short form by call id."""
    fact, key = draft.history.facts[index], draft.history.keys[index]
    known = [(slot, held[slot.call_id]) for slot in fact.results if slot.call_id in held]
    if not known:
        return []
    texts = {part.call_id: part.text for part in draft.adapter.parts_of(draft.history.messages[index])}
    return [
        Swap(key, slot.call_id, swap.id, swap.text, "renamed")
        for slot, swap in known
        if swap.id == fingerprint.short_id(fact.digest, slot.call_id)
        or shorten(texts[slot.call_id], swap.id, cap) == swap.text
    ]


def _answered(draft: Draft) -> int:
    """In a line that is known: index of the newest model output before the end. What stands before it was sent, else
    nothing had answered it; without a row it went past the store, raw."""
    facts, keys, lead = draft.history.facts, draft.history.keys, draft.history.lead
    if not any(key in draft.known.scale.measured for key in keys[lead:]):
        return 0
    at = len(facts)
    while at > lead and facts[at - 1].role == "assistant":  # what the client began in the model's stead
        at -= 1
    while at > lead and facts[at - 1].role != "assistant":
        at -= 1
    while at > lead and facts[at - 1].role == "assistant":
        at -= 1
    return at


def _start(draft: Draft) -> int:
    return draft.history.lead if draft.standing is None else draft.standing.index + 1


def _swaps(draft: Draft, index: int, over: int, cap: int, reason: str) -> list[Swap]:
    fact, key = draft.history.facts[index], draft.history.keys[index]
    if not any(slot.chars > over for slot in fact.results):
        return []
    parts = {part.call_id: part for part in draft.adapter.parts_of(draft.history.messages[index])}
    made = []
    for slot in fact.results:
        if slot.chars > over and not (reason == "size" and _asked_of_us(draft.history, index, slot.call_id)):
            result_id = fingerprint.short_id(fact.digest, slot.call_id)
            text = shorten(parts[slot.call_id].text, result_id, cap)
            if text is not None:
                made.append(Swap(key, slot.call_id, result_id, text, reason))
    return made


def _asked_of_us(history: History, index: int, call_id: str) -> bool:
    """What an agent reads back with our own tools is not shortened again: it could never be read whole."""
    for at in range(index - 1, -1, -1):
        fact = history.facts[at]
        if call_id in fact.calls:
            return wording.is_own_tool(fact.tool_names[fact.calls.index(call_id)])
    return False


def _with_swaps(draft: Draft, made: Sequence[Swap]) -> Draft:
    if not made:
        return draft
    renewed = {(swap.key, swap.call_id) for swap in made}
    kept = tuple(swap for swap in draft.new_swaps if (swap.key, swap.call_id) not in renewed)
    merged = {**draft.swaps, **{(swap.key, swap.call_id): swap for swap in made}}
    return replace(draft, swaps=merged, new_swaps=(*kept, *made))


def weigh(draft: Draft) -> Draft:
    """What the request costs as it would go out with the edits so far."""
    sent = _sent(draft)
    found = estimate.total(draft.history, sent, draft.standing, draft.known.scale)
    return replace(draft, sent=sent, estimate=found, before=found)


def _sent(draft: Draft) -> tuple[Facts, ...]:
    """Facts of the messages as they go out: those of the tail with its results swapped."""
    history, facts = draft.history, list(draft.history.facts)
    swapped = {key for key, _ in draft.swaps}
    for i in range(_start(draft), len(history)):
        if history.keys[i] in swapped:
            raw = sent_message(draft.adapter, history, i, draft.swaps)
            facts[i] = cached_facts(draft.adapter, raw, draft.memo)
    return tuple(facts)


def cut(draft: Draft) -> Draft:
    """A new cut where a limit or the person asks for one and the gain is worth a break."""
    if not draft.rules.new_edits:
        return draft
    reason = _reason(draft)
    if not reason:
        return draft
    weights = _weights(draft)
    choice = trim.choose(draft.history, weights, _target(draft, reason))
    gain = 0.0 if choice is None else _gain(draft, choice, weights.tokens)
    if choice is None or not _worth(draft, choice, reason, gain):
        told = "nothing_to_trim" if choice is None or gain <= 0 or reason == "forced" else ""
        return replace(draft, note_event=told, reason=reason if reason == "hard" else "")
    generation = len(draft.known.cuts) + 1
    made = freeze(draft.adapter, draft.history, choice, draft.swaps, draft.session, reason, generation, draft.memo)
    gone = {draft.history.keys[i] for i in range(choice.anchor + 1)}
    left = tuple(swap for swap in draft.new_swaps if swap.key not in gone or _is_kept(draft, choice, swap))
    standing = Standing(made, choice.anchor)
    draft = replace(draft, standing=standing, new_cut=made, new_swaps=left, kept=choice.kept, reason=reason)
    pointer = _pointer_tokens(draft, choice, made)
    return replace(draft, estimate=max(draft.before - gain - trim.POINTER_TOKENS + pointer, 0.0))


def _pointer_tokens(draft: Draft, choice: trim.Choice, made: Cut) -> float:
    """What the pointer that was written costs: the head less the messages it shows, which go without thinking."""
    sizes = [draft.sent[i].sizes for i in choice.kept]
    kept = sum((size - size.thinking_part() for size in sizes), tokens.ZERO)
    return max(tokens.estimate(draft.known.scale.calibration, made.head_sizes - kept), 0.0)


def _is_kept(draft: Draft, choice: trim.Choice, swap: Swap) -> bool:
    return any(draft.history.keys[i] == swap.key for i in choice.kept)


def _reason(draft: Draft) -> str:
    """Why a break is due: hard, forced, limit; empty for none. A retry breaks only for the first two."""
    if _over_hard(draft):
        return "hard"
    history = draft.history
    if _forced(draft):
        return "forced"
    last = history.facts[-1].kind if history.facts else ""
    retry = bool(history.keys) and history.keys[-1] in draft.known.scale.measured
    soft = draft.before > draft.rules.limits.trim_at * CERTAIN
    return "limit" if soft and not retry and last != "summarise" else ""


def _forced(draft: Draft) -> bool:
    """What was typed last asks for it, nothing has answered it yet, and no cut has done it already. A client may
    send its command's record and the command's text as two messages. After its own compaction Codex sends all that
    was ever typed in one run: what stands before the summary, or before more than one typed message, is old."""
    typed = 0
    for i in range(len(draft.history) - 1, _start(draft) - 1, -1):
        fact = draft.history.facts[i]
        if fact.role == "assistant" or fact.kind == "recap" or typed > 1:
            return False
        if fact.forces_trim:
            return True
        typed += fact.kind == "typed"
    return False


def _over_hard(draft: Draft) -> bool:
    return bool(_over(_load(draft), draft.rules.limits))


class Load(NamedTuple):
    """What a request weighs: estimated tokens, body bytes, media."""

    tokens: float
    bytes: int
    media: int


def _load(draft: Draft) -> Load:
    return Load(draft.estimate, *_size(draft))


def _over(load: Load, limits: Limits, share: float = 1.0) -> list[int]:
    """The dimensions in which a load is over that share of its hard limit, as places in `Load`."""
    hard = (limits.hard, limits.max_body_bytes, limits.max_media)
    return [i for i, most in enumerate(hard) if most is not None and load[i] > most * share]


def _size(draft: Draft) -> tuple[int, int]:
    """Body bytes and media of the request as it would go out."""
    tail = draft.sent[_start(draft) :]
    lead = draft.sent[: draft.history.lead]
    head = 0 if draft.standing is None else len(draft.standing.cut.head)
    shown = 0 if draft.standing is None else tokens.media_count(draft.standing.cut.head_sizes)
    size = draft.history.overhead_bytes + head + sum(fact.bytes + 1 for fact in (*lead, *tail))
    return size, shown + sum(fact.media for fact in (*lead, *tail))


def _weights(draft: Draft) -> trim.Weights:
    return trim.Weights(
        estimate.per_message(draft.history, draft.sent, draft.known.scale),
        [fact.bytes + 1 for fact in draft.sent],
        [fact.media for fact in draft.sent],
    )


def _target(draft: Draft, reason: str) -> trim.Target:
    """What may be left of head and tail: a share of what system prompt and tools leave of the limit."""
    limits = draft.rules.limits
    size, media = _size(draft)
    scale = draft.known.scale
    room = max(limits.trim_at - scale.overhead(draft.history) - scale.offset, 0.0)
    tight = reason == "hard"
    return trim.Target(
        tokens=room * limits.trim_to_fraction,
        limit=room,
        bytes=limits.max_body_bytes * trim.SLACK if tight and size > limits.max_body_bytes else None,
        media=limits.max_media * trim.SLACK if tight and media > limits.max_media else None,
    )


def _worth(draft: Draft, choice: trim.Choice, reason: str, gain: float) -> bool:
    """True where the gain pays for the break. A thread's first need not; at a hard limit, over which a provider
    refuses, any gain counts."""
    limits = draft.rules.limits
    if not choice.dropped(draft.history):
        return False
    if reason == "hard":
        now, then = _load(draft), _load_after(draft, choice, gain)
        return any(then[i] < now[i] for i in _over(now, limits))
    enough = trim.REPEATED_GAIN * limits.trim_at if reason == "limit" and draft.standing is not None else 0.0
    return gain > 0 and gain >= enough


def _load_after(draft: Draft, choice: trim.Choice, gain: float) -> Load:
    kept = [draft.sent[i] for i in choice.kept]
    sent = (*draft.sent[: draft.history.lead], *kept, *draft.sent[choice.anchor + 1 :])
    size = draft.history.overhead_bytes + POINTER_BYTES + sum(fact.bytes + 1 for fact in sent)
    return Load(draft.before - gain, size, sum(fact.media for fact in sent))


def _gain(draft: Draft, choice: trim.Choice, costs: Sequence[float]) -> float:
    """Tokens the request loses by a cut, against the standing edits."""
    now = estimate.head(draft.history, draft.standing, draft.known.scale) + sum(costs[_start(draft) :])
    then = trim.POINTER_TOKENS + sum(costs[i] for i in choice.kept) + sum(costs[choice.anchor + 1 :])
    return now - then


def _with_less(draft: Draft, made: Sequence[Swap]) -> Draft:
    """The draft with results shortened, and the estimate less what that saves."""
    scale, start = draft.known.scale, _start(draft)
    before = sum(estimate.per_message(draft.history, draft.sent, scale, start))
    draft = _with_swaps(draft, made)
    sent = _sent(draft)
    priced_anew = {swap.key: None for swap in made}
    anew = replace(scale, measured={**scale.measured, **priced_anew})
    after = sum(estimate.per_message(draft.history, sent, anew, start))
    return replace(draft, sent=sent, estimate=max(draft.estimate - max(before - after, 0.0), 0.0))


def squeeze(draft: Draft) -> Draft:
    """Still over the hard limit in tokens or bytes: shorten results that stay, the largest first. Where even that
    neither helps nor gains much, they stay as they were: the same would be tried with every request."""
    if not draft.rules.new_edits or draft.reason != "hard" or not _heavy(draft, 1.0):
        return draft
    less = draft
    for cap in SQUEEZE:
        places = range(max(_start(less), less.history.editable_from), len(less.history))
        order = sorted(places, key=lambda i: -max_chars(draft.history.facts[i]))
        made = [swap for i in order for swap in _swaps(less, i, cap * 5 // 4, cap, "hard")]
        fresh = [swap for swap in made if less.swaps.get((swap.key, swap.call_id)) != swap]
        less = _until_under(less, fresh)
        if not _heavy(less):
            return less
    limits = draft.rules.limits
    now, then = _load(draft), _load(less)
    much = any(now[i] - then[i] >= trim.REPEATED_GAIN * now[i] for i in _over(now, limits))
    return less if much or not _heavy(less, 1.0) else draft


def max_chars(fact: Facts) -> int:
    return max((slot.chars for slot in fact.results), default=0)


def _until_under(draft: Draft, made: Sequence[Swap]) -> Draft:
    """Swaps taken in batches, so that no more results are shortened than needed, at a bounded cost."""
    step = max(1, len(made) // 8)
    for at in range(0, len(made), step):
        batch = [s for s in made[at : at + step] if _shorter(draft, s)]
        draft = _with_less(draft, batch)
        if not _heavy(draft):
            return draft
    return draft


def _shorter(draft: Draft, swap: Swap) -> bool:
    known = draft.swaps.get((swap.key, swap.call_id))
    return known is None or len(swap.text) < len(known.text)


def _heavy(draft: Draft, share: float = RELIEF) -> bool:
    """Over that share of a hard limit which shorter results would help against."""
    return any(i < Load._fields.index("media") for i in _over(_load(draft), draft.rules.limits, share))


STEPS: tuple[Step, ...] = (find, compress, weigh, cut, squeeze)


def finish(draft: Draft, body: Mapping[str, Any]) -> dict[str, Any]:
    """The outgoing body: edits applied, a lost breakpoint set again, the note added."""
    adapter, history = draft.adapter, draft.history
    out: list[Raw] = apply(adapter, history, draft.standing, draft.swaps)
    if draft.standing is not None:
        out = adapter.with_marker(history.messages, out)
    if draft.rules.note is not None:
        return adapter.with_note(dict(body), out, draft.rules.note)
    return adapter.with_messages(dict(body), out)
