"""What messages cost, as the provider counted it: differences between the prompts of two requests.

For graders of an estimate. A difference speaks of exactly the messages in between only where nothing else
changed: same branch, same model, no compaction by the client between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from openmem_hook.replay.transcript import Message, ReplayRequest


@dataclass(frozen=True, slots=True)
class Growth:
    """What one request's prompt grew by."""

    before: ReplayRequest
    after: ReplayRequest

    tokens: int
    """What `messages` added to the prompt. It can be negative: providers drop the thinking of earlier turns, so that
    the first request of a turn may cost less than the one before it; a client's own clean-up of old results has the
    same effect."""

    messages: list[Message]


def growth(requests: Iterable[ReplayRequest]) -> Iterator[Growth]:
    """The growth of every request with a usage over the one it grew from, in order."""
    by_index: dict[int, ReplayRequest] = {}
    for after in requests:
        by_index[after.index] = after
        before = by_index.get(after.step.parent) if after.step.parent is not None else None
        if before is None or before.step.usage is None or after.step.usage is None:
            continue
        one, other = before.step, after.step
        if (one.branch, one.segment, one.model) != (other.branch, other.segment, other.model):
            continue
        tokens = after.step.usage.prompt_tokens - before.step.usage.prompt_tokens
        yield Growth(before, after, tokens, after.messages[len(before.messages) :])
