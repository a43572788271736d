"""The decision about one request, as a visible row of steps over one frozen draft.

`run` looks at a history and what is known of it and says what to do; it does nothing. `begin` finds the edits that
stand and the thread that the request belongs to, once; each step after it adds what it decides. `finish` builds the
outgoing body from a draft, new or replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from openmem_hook import fingerprint, tokens
from openmem_hook.compaction import estimate, trim, wording
from openmem_hook.compaction.active import ActiveCut, find_active_edits
from openmem_hook.compaction.draft import Break, Draft, Inputs, NotDue, NoUsefulCut
from openmem_hook.compaction.edits import BreakReason, Cut, EditReason, Edits, Swap
from openmem_hook.compaction.estimate import TokenCosts
from openmem_hook.compaction.freeze import freeze
from openmem_hook.compaction.outgoing import apply, outgoing_facts, with_spliced_facts
from openmem_hook.compaction.request import Request
from openmem_hook.compaction.results import shorten
from openmem_hook.compaction.threads import Placement, Thread, begin_thread, extend_thread, place
from openmem_hook.limits import Limits
from openmem_hook.model import Facts, History, Pause, no_pause

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
RESULT_SIZES = tokens.Sizes(words=780, marks=220)
"""What a thousand characters of real tool results are made of."""

Step = Callable[[Draft], Draft]


def run(inputs: Inputs, pause: Pause = no_pause) -> Draft:
    """All steps. `pause` is called between two of them."""
    draft = begin(inputs)
    for step in STEPS:
        draft = step(draft)
        pause()
    return draft


# --- what stands ------------------------------------------------------------------------------------------


def begin(inputs: Inputs) -> Draft:
    """The edits that stand, and the thread with the rules that hold in it."""
    state = inputs.state
    history, edits = find_active_edits(inputs.history, state.edits, state.followers, state.row_keys)
    placement = place(history, inputs.thread_label, state.threads.values(), state.owners)
    thread = _thread(inputs, history, placement)
    return Draft(inputs, history, edits, placement, thread, _costs(inputs, thread.offset))


def _thread(inputs: Inputs, history: History, placement: Placement) -> Thread:
    """The thread of the request as it will be after it."""
    state, request = inputs.state, inputs.request
    if placement.thread:
        return extend_thread(state.threads[placement.thread], history, placement)
    # A new one goes by the rules of the thread that it branches off from: what both share was sent under them.
    parent = None
    if placement.shared_count > history.lead:
        parent = state.threads.get(state.owners.get(history.keys[placement.shared_count - 1], 0))
    rules = parent or state.origin_of(history.keys)
    # Without one the settings of its first contact hold for good. A talk without tools that began with a request which
    # went out as it came goes on without the note.
    began_without = not history.has_tools and inputs.began_untouched
    note = wording.VERSION if has_note(request) and not began_without else 0
    return begin_thread(history, inputs.thread_label, rules, note, _result_chars(inputs))


def has_note(request: Request) -> bool:
    """Whether a thread that begins with this request gets the standing note."""
    return request.settings.standing_instruction and request.may_edit


def _result_chars(inputs: Inputs) -> int:
    """The compression limit in characters: the setting in tokens, by what a token of results has at first contact."""
    over = inputs.request.settings.compress_over_tokens
    if not over or not inputs.request.may_edit:
        return 0
    return int(over * 1000 / max(tokens.estimate(inputs.calibration, RESULT_SIZES), 1.0))


def _costs(inputs: Inputs, offset: float) -> TokenCosts:
    model, state = inputs.request.model, inputs.state
    family_rate, drops_thinking = tokens.family_rate(model), tokens.drops_thinking(model)
    return TokenCosts(state.reports, state.row_tokens, offset, inputs.calibration, family_rate, drops_thinking)


# --- results that are sent for the first time -------------------------------------------------------------


def compress(draft: Draft) -> Draft:
    """Results sent for the first time: short where they are over the limit, else raw for good. One that went out short
    goes on so when something before it changed, and with it the names of all that follows."""
    inputs, history, limit = draft.inputs, draft.history, draft.thread.result_chars
    if not inputs.request.may_edit:
        return draft
    swaps: list[Swap] = []
    newest_swap = {swap.call_id: swap for swap in inputs.state.edits.swaps.values()}
    cap = max(int(limit * SHORT_SHARE), SHORTEST)
    undecided_from = _last_output(draft) if limit > 0 else len(history)
    for i in range(max(draft.edits.tail_start(history), history.editable_from), len(history)):
        # What was sent, stored or not, stays as it was sent.
        if history.keys[i] in inputs.state.row_tokens or history.keys[i] in inputs.sent_unstored:
            continue
        renamed_swaps = _renamed_swaps(draft, i, newest_swap, cap)
        swaps += renamed_swaps
        if i >= undecided_from:
            call_ids = {swap.call_id for swap in renamed_swaps}
            swaps += [swap for swap in _swaps(draft, i, limit, cap, "size") if swap.call_id not in call_ids]
    return _with_swaps(draft, swaps)


def _renamed_swaps(draft: Draft, index: int, newest_swap: Mapping[str, Swap], cap: int) -> list[Swap]:
    """Short forms that the very same results have under another name: a message before them changed, or another part of
    theirs. `newest_swap`: the newest short form by call id."""
    fact, key = draft.history.facts[index], draft.history.keys[index]
    pairs = [(slot, newest_swap[slot.call_id]) for slot in fact.results if slot.call_id in newest_swap]
    if not pairs:
        return []
    texts = {part.call_id: part.text for part in draft.adapter.parts_of(draft.history.messages[index])}
    return [
        Swap(id=swap.id, reason="renamed", key=key, call_id=slot.call_id, text=swap.text)
        for slot, swap in pairs
        if swap.id == fingerprint.short_id(fact.digest, slot.call_id)
        or shorten(texts[slot.call_id], swap.id, cap) == swap.text
    ]


def _last_output(draft: Draft) -> int:
    """In a line that is known: index of the newest model output before the end. What stands before it was sent, else
    nothing had answered it; without a row it went past the store, raw."""
    facts, keys, lead = draft.history.facts, draft.history.keys, draft.history.lead
    if not any(key in draft.inputs.state.row_tokens for key in keys[lead:]):
        return 0
    at = len(facts)
    while at > lead and facts[at - 1].role == "assistant":  # what the client began in the model's stead
        at -= 1
    while at > lead and facts[at - 1].role != "assistant":
        at -= 1
    while at > lead and facts[at - 1].role == "assistant":
        at -= 1
    return at


def _swaps(draft: Draft, index: int, over: int, cap: int, reason: EditReason) -> list[Swap]:
    """Short forms of a message's results above so many characters."""
    fact, key = draft.history.facts[index], draft.history.keys[index]
    slots = [slot for slot in fact.results if slot.chars > over]
    if not slots:
        return []
    texts = {part.call_id: part.text for part in draft.adapter.parts_of(draft.history.messages[index])}
    swaps = []
    for slot in slots:
        # What an agent reads back with our own tools is not shortened again: it could never be read whole.
        if reason == "size" and _is_answer_of_ours(draft.history, index, slot.call_id):
            continue
        result_id = fingerprint.short_id(fact.digest, slot.call_id)
        text = shorten(texts[slot.call_id], result_id, cap)
        if text is not None:
            swaps.append(Swap(id=result_id, reason=reason, key=key, call_id=slot.call_id, text=text))
    return swaps


def _is_answer_of_ours(history: History, index: int, call_id: str) -> bool:
    for at in range(index - 1, -1, -1):
        fact = history.facts[at]
        if call_id in fact.calls:
            return wording.is_own_tool(fact.tool_names[fact.calls.index(call_id)])
    return False


def _with_swaps(draft: Draft, swaps: Sequence[Swap]) -> Draft:
    if not swaps:
        return draft
    active = {**draft.edits.swaps, **{(swap.key, swap.call_id): swap for swap in swaps}}
    return replace(draft, edits=replace(draft.edits, swaps=active), new_edits=draft.new_edits.merge(Edits.of(swaps)))


# --- what it weighs ---------------------------------------------------------------------------------------


class Load(NamedTuple):
    """What a request weighs."""

    tokens: float
    bytes: int
    media: int


def weigh(draft: Draft) -> Draft:
    """What the request costs as it would go out with the edits so far."""
    outgoing = outgoing_facts(draft.adapter, draft.history, draft.edits, draft.inputs.cache)
    count = estimate.prompt_tokens(draft.history, outgoing, draft.edits, draft.costs)
    return replace(draft, outgoing=outgoing, tokens=count, tokens_before=count)


def _load(draft: Draft) -> Load:
    """Tokens, body bytes and media of the request as it would go out."""
    start, trim_ = draft.edits.tail_start(draft.history), draft.edits.trim
    facts = [fact for fact in (*draft.outgoing.facts[: draft.history.lead], *draft.outgoing.facts[start:]) if fact]
    head_bytes = 0 if trim_ is None else len(trim_.cut.head)
    head_media = 0 if trim_ is None else tokens.media_count(trim_.cut.head_sizes)
    size = draft.history.overhead_bytes + head_bytes + sum(fact.bytes + 1 for fact in facts)
    return Load(draft.tokens, size, head_media + sum(fact.media for fact in facts))


def _exceeded_dimensions(load: Load, limits: Limits, share: float = 1.0) -> list[int]:
    """The dimensions in which a load is over that share of its hard limit, as places in `Load`."""
    hard = (limits.hard, limits.max_body_bytes, limits.max_media)
    return [i for i, most in enumerate(hard) if most is not None and load[i] > most * share]


# --- a new cut --------------------------------------------------------------------------------------------


def cut(draft: Draft) -> Draft:
    """A new cut where a limit or the person asks for one and the gain is worth a break."""
    if not draft.inputs.request.may_edit:
        return draft
    load = _load(draft)
    reason = _break_reason(draft, load)
    if reason is None:
        return draft
    # The first legal cut that brings the request under its target, else the deepest there is.
    weights = _weights(draft)
    history = with_spliced_facts(draft.adapter, draft.history, draft.edits.splices, draft.inputs.cache)
    ranges = [(active.start, active.anchor) for active in draft.edits.inner_cuts]
    choice = trim.choose(history, weights, _target(draft, reason, load), ranges)
    gain = 0.0 if choice is None else _gain(draft, choice, weights.tokens)
    if choice is None or not _is_worth_a_break(draft, choice, reason, gain, load):
        return replace(draft, verdict=NoUsefulCut(reason, choice is None or gain <= 0 or reason == "forced"))
    # Frozen once; from now on these very bytes are sent.
    generation = len(draft.inputs.state.edits.trims) + 1
    new_cut = freeze(
        draft.adapter, draft.history, choice, draft.edits, draft.inputs.session, reason, generation, draft.inputs.cache
    )
    # Short forms of results that leave with the cut were never sent, and are no edits.
    head_keys = {draft.history.keys[i] for i in choice.head_indices}
    removed_keys = set(draft.history.keys[: choice.anchor + 1]) - head_keys
    others = (edit for edit in draft.new_edits if not (isinstance(edit, Swap) and edit.key in removed_keys))
    pointer = _pointer_tokens(draft, choice, new_cut)
    return replace(
        draft,
        edits=draft.edits.with_trim(ActiveCut(new_cut, draft.history.lead, choice.anchor)),
        new_edits=Edits.of([*others, new_cut]),
        tokens=max(draft.tokens_before - gain - trim.POINTER_TOKENS + pointer, 0.0),
        verdict=Break(reason, new_cut, choice.head_indices),
    )


def _break_reason(draft: Draft, load: Load) -> BreakReason | None:
    """Why a break is due. A retry breaks only at a hard limit or where a person asks."""
    if _exceeded_dimensions(load, draft.limits):
        return "hard"
    if _is_forced(draft):
        return "forced"
    history = draft.history
    is_retry = bool(history.keys) and history.keys[-1] in draft.inputs.state.row_tokens
    is_summary = bool(history.facts) and history.facts[-1].kind == "summarise"
    is_over = draft.tokens_before > draft.limits.trim_at * CERTAIN
    return "limit" if is_over and not is_retry and not is_summary else None


def _is_forced(draft: Draft) -> bool:
    """What was typed last asks for it, nothing has answered it yet, and no cut has done it already. A client may
    send its command's record and the command's text as two messages. After its own compaction Codex sends all that
    was ever typed in one run: what stands before the summary, or before more than one typed message, is old."""
    typed_messages = 0
    for i in range(len(draft.history) - 1, draft.edits.tail_start(draft.history) - 1, -1):
        fact = draft.history.facts[i]
        if fact.role == "assistant" or fact.kind == "recap" or typed_messages > 1:
            return False
        if fact.forces_trim:
            return True
        typed_messages += fact.kind == "typed"
    return False


def _weights(draft: Draft) -> trim.Weights:
    facts = draft.outgoing.facts
    return trim.Weights(
        estimate.per_message(draft.history, draft.outgoing, draft.costs),
        [fact.bytes + 1 if fact else 0 for fact in facts],
        [fact.media if fact else 0 for fact in facts],
    )


def _target(draft: Draft, reason: BreakReason, load: Load) -> trim.Target:
    """What may be left of head and tail: a share of what system prompt and tools leave of the limit."""
    limits = draft.limits
    room = max(limits.trim_at - draft.costs.of_overhead(draft.history) - draft.costs.offset, 0.0)
    is_hard = reason == "hard"
    return trim.Target(
        tokens=room * limits.trim_to_fraction,
        limit=room,
        bytes=limits.max_body_bytes * trim.SLACK if is_hard and load.bytes > limits.max_body_bytes else None,
        media=limits.max_media * trim.SLACK if is_hard and load.media > limits.max_media else None,
    )


def _gain(draft: Draft, choice: trim.Choice, costs: Sequence[float]) -> float:
    """Tokens that the request loses by a cut, against the edits that stand."""
    head = estimate.of_head(draft.history, draft.edits, draft.costs)
    now = head + sum(costs[draft.edits.tail_start(draft.history) :])
    then = trim.POINTER_TOKENS + sum(costs[i] for i in choice.head_indices) + sum(costs[choice.anchor + 1 :])
    return now - then


def _is_worth_a_break(draft: Draft, choice: trim.Choice, reason: BreakReason, gain: float, load: Load) -> bool:
    """True where the gain pays for the break. A thread's first need not; at a hard limit, over which a provider
    refuses, any gain counts."""
    if not choice.removed_indices(draft.history):
        return False
    if reason == "hard":
        then = _load_after(draft, choice, gain)
        return any(then[i] < load[i] for i in _exceeded_dimensions(load, draft.limits))
    is_repeated = reason == "limit" and draft.edits.trim is not None
    return gain > 0 and gain >= (trim.REPEATED_GAIN * draft.limits.trim_at if is_repeated else 0.0)


def _load_after(draft: Draft, choice: trim.Choice, gain: float) -> Load:
    facts = draft.outgoing.facts
    head = (facts[i] or draft.history.facts[i] for i in choice.head_indices)
    after = [fact for fact in (*facts[: draft.history.lead], *head, *facts[choice.anchor + 1 :]) if fact]
    size = draft.history.overhead_bytes + POINTER_BYTES + sum(fact.bytes + 1 for fact in after)
    return Load(draft.tokens_before - gain, size, sum(fact.media for fact in after))


def _pointer_tokens(draft: Draft, choice: trim.Choice, new_cut: Cut) -> float:
    """What the pointer that was written costs: the head less the messages it shows, which go without thinking."""
    sizes = [(draft.outgoing.facts[i] or draft.history.facts[i]).sizes for i in choice.head_indices]
    head = sum((size - size.thinking_part() for size in sizes), tokens.ZERO)
    return max(tokens.estimate(draft.costs.calibration, new_cut.head_sizes - head), 0.0)


# --- still over a hard limit ------------------------------------------------------------------------------


def squeeze(draft: Draft) -> Draft:
    """Still over the hard limit in tokens or bytes: shorten results that stay, the largest first. Where even that
    neither helps nor gains much, they stay as they were: the same would be tried with every request."""
    if isinstance(draft.verdict, NotDue) or draft.verdict.reason != "hard" or not _is_heavy(draft, 1.0):
        return draft
    history, smaller = draft.history, draft
    for cap in SQUEEZE:
        places = range(max(smaller.edits.tail_start(history), history.editable_from), len(history))
        largest_first = sorted(places, key=lambda i: -max_chars(history.facts[i]))
        swaps = [swap for i in largest_first for swap in _swaps(smaller, i, cap * 5 // 4, cap, "hard")]
        smaller = _shortened_until_light(smaller, swaps)
        if not _is_heavy(smaller):
            return smaller
    before, after = _load(draft), _load(smaller)
    dimensions = _exceeded_dimensions(before, draft.limits)
    gains_much = any(before[i] - after[i] >= trim.REPEATED_GAIN * before[i] for i in dimensions)
    return smaller if gains_much or not _is_heavy(smaller, 1.0) else draft


def max_chars(fact: Facts) -> int:
    return max((slot.chars for slot in fact.results), default=0)


def _shortened_until_light(draft: Draft, swaps: Sequence[Swap]) -> Draft:
    """Swaps taken in batches, so that no more results are shortened than needed, at a bounded cost."""
    fresh = [swap for swap in swaps if not _is_active(draft, swap)]
    step = max(1, len(fresh) // 8)
    for at in range(0, len(fresh), step):
        draft = _with_shorter(draft, [swap for swap in fresh[at : at + step] if _is_shorter(draft, swap)])
        if not _is_heavy(draft):
            return draft
    return draft


def _is_active(draft: Draft, swap: Swap) -> bool:
    active = draft.edits.swaps.get((swap.key, swap.call_id))
    return active is not None and (active.text, active.reason) == (swap.text, swap.reason)


def _is_shorter(draft: Draft, swap: Swap) -> bool:
    active = draft.edits.swaps.get((swap.key, swap.call_id))
    return active is None or len(swap.text) < len(active.text)


def _with_shorter(draft: Draft, swaps: Sequence[Swap]) -> Draft:
    """The draft with results shortened, and the estimate less what that saves."""
    costs, start = draft.costs, draft.edits.tail_start(draft.history)
    before = sum(estimate.per_message(draft.history, draft.outgoing, costs, start))
    draft = _with_swaps(draft, swaps)
    outgoing = outgoing_facts(draft.adapter, draft.history, draft.edits, draft.inputs.cache)
    # What was measured of a row says nothing of its shorter form.
    forget = {swap.key: None for swap in swaps}
    new_costs = replace(costs, row_tokens={**costs.row_tokens, **forget})
    after = sum(estimate.per_message(draft.history, outgoing, new_costs, start))
    return replace(draft, outgoing=outgoing, tokens=max(draft.tokens - max(before - after, 0.0), 0.0))


def _is_heavy(draft: Draft, share: float = RELIEF) -> bool:
    """Over that share of a hard limit which shorter results would help against."""
    return any(Load._fields[i] != "media" for i in _exceeded_dimensions(_load(draft), draft.limits, share))


STEPS: tuple[Step, ...] = (compress, weigh, cut, squeeze)


def finish(draft: Draft, *, with_note: bool = True) -> dict[str, Any]:
    """The outgoing body: edits applied, a lost breakpoint set again, the thread's note added."""
    adapter, history, body = draft.adapter, draft.history, draft.inputs.request.body
    messages = apply(adapter, history, draft.edits)
    if draft.edits.cuts or draft.edits.splices:
        messages = adapter.with_marker(history.messages, messages)
    note = wording.NOTES.get(draft.thread.note)
    if with_note and note is not None:
        return adapter.with_note(dict(body), messages, note)
    return adapter.with_messages(dict(body), messages)
