"""Step: a new cut, where a limit or a person asks for one and the gain is worth a break."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from openmem_hook import tokens
from openmem_hook.compaction import estimate, trim
from openmem_hook.compaction.active import ActiveCut
from openmem_hook.compaction.draft import Break, Draft, NoUsefulCut
from openmem_hook.compaction.edits import BreakReason, Cut, Edits
from openmem_hook.compaction.freeze import freeze
from openmem_hook.compaction.outgoing import with_spliced_facts
from openmem_hook.compaction.weigh import Load, find_exceeded, measure_load

POINTER_BYTES = 4_000
"""About what a pointer adds to a body: `wording.POINTER_CHARS` and what JSON puts around them."""
CERTAIN = 0.995
"""Share of `trim_at` up to which a prompt surely is under it: estimates are off by up to half a percent."""


def cut(draft: Draft) -> Draft:
    """A new cut where a limit or the person asks for one and the gain is worth a break."""
    if not draft.inputs.request.may_edit:
        return draft
    load = measure_load(draft)
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
    others = (edit for edit in draft.new_edits if edit.replaced_row not in removed_keys)
    pointer = _pointer_tokens(draft, choice, new_cut)
    return replace(
        draft,
        edits=draft.edits.with_trim(ActiveCut(new_cut, draft.history.lead, choice.anchor)),
        new_edits=Edits.of([*others, new_cut]),
        tokens=max(draft.tokens_before - gain - trim.POINTER_TOKENS + pointer, 0.0),
        verdict=Break(reason, new_cut, _shown_in_head(draft, choice)),
    )


def _break_reason(draft: Draft, load: Load) -> BreakReason | None:
    """Why a break is due. A retry breaks only at a hard limit or where a person asks."""
    if find_exceeded(load, draft.limits):
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
        estimate.estimate_each(draft.history, draft.outgoing, draft.costs),
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
    head = estimate.estimate_head(draft.history, draft.edits, draft.costs)
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
        return any(then[i] < load[i] for i in find_exceeded(load, draft.limits))
    is_repeated = reason == "limit" and draft.edits.trim is not None
    return gain > 0 and gain >= (trim.REPEATED_GAIN * draft.limits.trim_at if is_repeated else 0.0)


def _load_after(draft: Draft, choice: trim.Choice, gain: float) -> Load:
    facts = draft.outgoing.facts
    head = (facts[i] or draft.history.facts[i] for i in choice.head_indices)
    after = [fact for fact in (*facts[: draft.history.lead], *head, *facts[choice.anchor + 1 :]) if fact]
    size = draft.history.overhead_bytes + POINTER_BYTES + sum(fact.bytes + 1 for fact in after)
    return Load(draft.tokens_before - gain, size, sum(fact.media for fact in after))


def _shown_in_head(draft: Draft, choice: trim.Choice) -> tuple[int, ...]:
    """The messages that the head shows as they are: of those in an inner cut only what that shows."""
    hidden_indices = set[int]()
    for active in draft.edits.inner_cuts:
        hidden_indices |= {*range(active.start, active.anchor + 1)} - active.shown_indices(draft.history)
    return tuple(i for i in choice.head_indices if i not in hidden_indices)


def _pointer_tokens(draft: Draft, choice: trim.Choice, new_cut: Cut) -> float:
    """What the pointer that was written costs: the head less the messages it shows, which go without thinking."""
    sizes = [(draft.outgoing.facts[i] or draft.history.facts[i]).sizes for i in choice.head_indices]
    head = sum((size - size.thinking_part() for size in sizes), tokens.ZERO)
    return max(tokens.estimate(draft.costs.calibration, new_cut.head_sizes - head), 0.0)
