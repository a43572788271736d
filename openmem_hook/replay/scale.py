"""From counted tokens to the provider's: a rate learned from a session's own recorded counts.

The simulated provider counts with a tokenizer that ships with LiteLLM, which is not the model's own. What a step of
the session added to the recorded prompt, against what the tokenizer counts for the same messages, gives the rate;
what the first prompts cost beyond their messages is the size of system prompt and tools, which no transcript holds.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from openmem_hook.replay.bodies import requests
from openmem_hook.replay.growth import growth
from openmem_hook.replay.provider.counting import message_tokens, prompt_tokens
from openmem_hook.replay.session import Request, Session

FRONT_TOKENS = 40_000
"""Assumed where nothing was recorded, in the provider's tokens."""
SMALLEST_FRONT = 500
LARGEST_FRONT = 200_000
"""A damaged count is no reason to build more."""


@dataclass(frozen=True, slots=True)
class Scale:
    """`rates`: the provider's tokens for one counted token, by model. `front`: size in which to build the constant
    front of the session's requests, as `requests` takes it. `known`: whether any of it comes from recorded counts."""

    rates: dict[str, float]
    front: int
    known: bool

    def rate(self, model: str) -> float:
        return self.rates.get(model) or (statistics.median(self.rates.values()) if self.rates else 1.0)


def scale_of(session: Session) -> Scale:
    """What the session's recorded counts say."""
    made = list(requests(session, prefix_tokens=SMALLEST_FRONT))
    counted: dict[int, int] = {}
    rates = _rates(made, session, counted)
    scale = Scale(rates, FRONT_TOKENS, bool(rates))
    return replace(scale, front=_fitted(session, _front(made, session, scale, counted)))


def _rates(made: Sequence[Request], session: Session, counted: dict[int, int]) -> dict[str, float]:
    """Positive growth alone: a prompt that shrinks was cleared by the client or lost its thinking."""
    grown: dict[str, list[tuple[int, int]]] = {}
    for step in growth(made):
        own = sum(_counted(message, session, counted) for message in step.messages)
        if step.tokens > 0 and own > 0:
            grown.setdefault(step.after.model, []).append((step.tokens, own))
    return {model: sum(t for t, _ in pairs) / sum(c for _, c in pairs) for model, pairs in grown.items()}


def _counted(message: dict[str, object], session: Session, counted: dict[int, int]) -> int:
    """Message objects are shared between the requests, so each is counted once."""
    if id(message) not in counted:
        counted[id(message)] = message_tokens(message, session.format)
    return counted[id(message)]


def _front(made: Sequence[Request], session: Session, scale: Scale, counted: dict[int, int]) -> float:
    """Counted tokens of system prompt and tools: the median of what the first prompts leave for them."""
    whole = [request for request in made if request.recorded is not None and request.segment == 0][:20]
    left = []
    for request, step in ((request, session.steps[request.index]) for request in whole):
        own = sum(_counted(message, session, counted) for message in step.messages)
        recorded = request.recorded.prompt_tokens if request.recorded else 0
        left.append(recorded / scale.rate(request.model) - own)
    found = statistics.median(left) if left else FRONT_TOKENS / scale.rate("")
    return min(max(found, SMALLEST_FRONT), LARGEST_FRONT)


def _fitted(session: Session, wanted: float) -> int:
    """The front's size that is counted as `wanted` tokens: found by building it and counting, twice."""
    size = wanted
    for _ in range(2):
        first = next(requests(session, prefix_tokens=round(size)), None)
        if first is None:
            break
        messages = sum(message_tokens(message, session.format) for message in session.steps[0].messages)
        size *= wanted / max(prompt_tokens(first.body, session.format) - messages, SMALLEST_FRONT / 2)
    return round(size)
