"""What messages cost, as the provider counted it: differences between the prompts of two requests.

For graders of an estimate. A difference speaks of exactly the messages in between only where nothing else
changed: same branch, same model, no compaction by the client between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from openmem_hook.replay.session import Message, Request


@dataclass(frozen=True, slots=True)
class Growth:
    """`tokens` is what `messages` added to the prompt; it can be negative.

    Providers drop the thinking of earlier turns, so that the first request of a turn may cost less than
    the one before it; a client's own clean-up of old results has the same effect.
    """

    before: Request
    after: Request
    tokens: int
    messages: list[Message]


def growth(requests: Iterable[Request]) -> Iterator[Growth]:
    """The growth of every recorded request over the recorded one it grew from, in order."""
    seen: dict[int, Request] = {}
    for after in requests:
        seen[after.index] = after
        before = seen.get(after.parent) if after.parent is not None else None
        if before is None or after.recorded is None or before.recorded is None:
            continue
        if (before.branch, before.segment, before.model) != (after.branch, after.segment, after.model):
            continue
        tokens = after.recorded.prompt_tokens - before.recorded.prompt_tokens
        yield Growth(before, after, tokens, after.messages[len(before.messages) :])
