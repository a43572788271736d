"""Step: what a request weighs as it would go out, in every dimension that has a limit."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from openmem_hook import tokens
from openmem_hook.compaction import estimate
from openmem_hook.compaction.draft import Draft
from openmem_hook.compaction.outgoing import outgoing_facts
from openmem_hook.limits import Limits


class Load(NamedTuple):
    """What a request weighs."""

    tokens: float
    bytes: int
    media: int


def weigh(draft: Draft) -> Draft:
    """What the request costs as it would go out with the edits so far."""
    outgoing = outgoing_facts(draft.adapter, draft.history, draft.edits, draft.inputs.cache)
    count = estimate.estimate_prompt(draft.history, outgoing, draft.edits, draft.costs)
    return replace(draft, outgoing=outgoing, tokens=count, tokens_before=count)


def measure_load(draft: Draft) -> Load:
    """Tokens, body bytes and media of the request as it would go out."""
    start, trim_ = draft.edits.tail_start(draft.history), draft.edits.trim
    facts = [fact for fact in (*draft.outgoing.facts[: draft.history.lead], *draft.outgoing.facts[start:]) if fact]
    head_bytes = 0 if trim_ is None else len(trim_.cut.head)
    head_media = 0 if trim_ is None else tokens.media_count(trim_.cut.head_sizes)
    size = draft.history.overhead_bytes + head_bytes + sum(fact.bytes + 1 for fact in facts)
    return Load(draft.tokens, size, head_media + sum(fact.media for fact in facts))


def find_exceeded(load: Load, limits: Limits, share: float = 1.0) -> list[int]:
    """The dimensions in which a load is over that share of its hard limit, as places in `Load`."""
    hard = (limits.hard, limits.max_body_bytes, limits.max_media)
    return [i for i, most in enumerate(hard) if most is not None and load[i] > most * share]
