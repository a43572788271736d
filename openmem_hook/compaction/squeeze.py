"""Step: a request that no cut brings under its hard limit gets the results that stay shortened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from openmem_hook.compaction import estimate, trim
from openmem_hook.compaction.compress import make_swaps
from openmem_hook.compaction.draft import Draft, NotDue
from openmem_hook.compaction.edits import Swap
from openmem_hook.compaction.outgoing import outgoing_facts
from openmem_hook.compaction.weigh import Load, find_exceeded, measure_load
from openmem_hook.model import Facts

RELIEF = 0.8
"""Share of a hard limit down to which kept results are shortened, so that the next request fits too."""
SQUEEZE = (4_000, 1_500, 600)
"""Caps in characters tried in turn on kept results when a request is over the hard limit."""


def squeeze(draft: Draft) -> Draft:
    """Still over the hard limit in tokens or bytes: shorten results that stay, the largest first. Where even that
    neither helps nor gains much, they stay as they were: the same would be tried with every request."""
    if isinstance(draft.verdict, NotDue) or draft.verdict.reason != "hard" or not _is_heavy(draft, 1.0):
        return draft
    history, smaller = draft.history, draft
    for cap in SQUEEZE:
        places = range(max(smaller.edits.tail_start(history), history.editable_from), len(history))
        largest_first = sorted(places, key=lambda i: -max_chars(history.facts[i]))
        swaps = [swap for i in largest_first for swap in make_swaps(smaller, i, cap * 5 // 4, cap, "hard")]
        smaller = _shortened_until_light(smaller, swaps)
        if not _is_heavy(smaller):
            return smaller
    before, after = measure_load(draft), measure_load(smaller)
    dimensions = find_exceeded(before, draft.limits)
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
    active = draft.edits.row_edits.get(swap.edit_key)
    return isinstance(active, Swap) and (active.text, active.reason) == (swap.text, swap.reason)


def _is_shorter(draft: Draft, swap: Swap) -> bool:
    active = draft.edits.row_edits.get(swap.edit_key)
    return not isinstance(active, Swap) or len(swap.text) < len(active.text)


def _with_shorter(draft: Draft, swaps: Sequence[Swap]) -> Draft:
    """The draft with results shortened, and the estimate less what that saves."""
    costs, start = draft.costs, draft.edits.tail_start(draft.history)
    before = sum(estimate.estimate_each(draft.history, draft.outgoing, costs, start))
    draft = draft.with_row_edits(swaps)
    outgoing = outgoing_facts(draft.adapter, draft.history, draft.edits, draft.inputs.cache)
    # What was measured of a row says nothing of its shorter form.
    forget = {swap.key: None for swap in swaps}
    costs = replace(costs, row_tokens={**costs.row_tokens, **forget})
    after = sum(estimate.estimate_each(draft.history, outgoing, costs, start))
    count = max(draft.tokens - max(before - after, 0.0), 0.0)
    return replace(draft, outgoing=outgoing, costs=costs, tokens=count)


def _is_heavy(draft: Draft, share: float = RELIEF) -> bool:
    """Over that share of a hard limit which shorter results would help against."""
    return any(Load._fields[i] != "media" for i in find_exceeded(measure_load(draft), draft.limits, share))
