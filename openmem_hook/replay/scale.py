"""From counted tokens to the provider's: a rate learned from a session's own reported counts.

The simulated provider counts with a tokenizer that ships with LiteLLM, which is not the model's own. What a step of
the session added to the reported prompt, against what the tokenizer counts for the same messages, gives the rate;
what the first prompts cost beyond their messages is the size of system prompt and tools, which no transcript holds.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from openmem_hook.replay.bodies import requests
from openmem_hook.replay.growth import growth
from openmem_hook.replay.provider.counting import message_tokens, prompt_tokens
from openmem_hook.replay.transcript import Format, Message, ReplayRequest, Transcript

FRONT_TOKENS = 40_000
"""Assumed where nothing was reported, in the provider's tokens."""
SMALLEST_FRONT = 500
LARGEST_FRONT = 200_000
"""A damaged count is no reason to build more."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What a session's reported counts say of the tokenizer and of the front."""

    rates: dict[str, float]
    """The provider's tokens for one counted token, by model; empty where nothing was reported."""

    front: int
    """Size in which to build the constant front of the session's requests, as `requests` takes it."""

    def rate(self, model: str) -> float:
        """The provider's tokens for one counted token: the model's, else the median over models, else 1."""
        return self.rates.get(model) or (statistics.median(self.rates.values()) if self.rates else 1.0)


def scale_of(transcript: Transcript) -> Scale:
    """What the transcript's reported counts say."""
    replay = list(requests(transcript, prefix_tokens=SMALLEST_FRONT))
    counter = _Counter(transcript.format)

    # Positive growth alone: a prompt that shrinks was cleared by the client or lost its thinking.
    pairs: dict[str, list[tuple[int, int]]] = {}
    for step in growth(replay):
        own = counter.count(step.messages)
        if step.tokens > 0 and own > 0:
            pairs.setdefault(step.after.step.model, []).append((step.tokens, own))
    rates = {model: sum(t for t, _ in each) / sum(c for _, c in each) for model, each in pairs.items()}

    scale = Scale(rates, FRONT_TOKENS)
    return replace(scale, front=_fit_front(transcript, _front(replay, scale, counter)))


class _Counter:
    """Counts messages, which are shared between the requests, once each."""

    def __init__(self, fmt: Format) -> None:
        self._format: Format = fmt
        self._counts: dict[int, int] = {}

    def count(self, messages: Iterable[Message]) -> int:
        """Counted tokens of these messages together. They have to live as long as the counter."""
        total = 0
        for message in messages:
            if id(message) not in self._counts:
                self._counts[id(message)] = message_tokens(message, self._format)
            total += self._counts[id(message)]
        return total


def _front(replay: Sequence[ReplayRequest], scale: Scale, counter: _Counter) -> float:
    """Counted tokens of system prompt and tools: the median of what the first prompts leave for them."""
    steps = [request.step for request in replay]
    whole = [(step, step.usage) for step in steps if step.usage is not None and step.segment == 0][:20]
    fronts = [usage.prompt_tokens / scale.rate(step.model) - counter.count(step.messages) for step, usage in whole]
    front = statistics.median(fronts) if fronts else FRONT_TOKENS / scale.rate("")
    return min(max(front, SMALLEST_FRONT), LARGEST_FRONT)


def _fit_front(transcript: Transcript, target: float) -> int:
    """The front's size that is counted as `target` tokens: built and counted, twice."""
    size = target
    for _ in range(2):
        first = next(requests(transcript, prefix_tokens=round(size)), None)
        if first is None:
            break
        messages = sum(message_tokens(message, transcript.format) for message in first.step.messages)
        size *= target / max(prompt_tokens(first.body, transcript.format) - messages, SMALLEST_FRONT / 2)
    return round(size)
