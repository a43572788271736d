"""Where reported counts stop being comparable although no record says so.

Some clients clear old tool results on their own, silently: in the middle of a turn the prompt gets smaller.
Nothing else does that. (At the start of a turn it may: providers then drop the thinking of the one before.)
Counts before and after are not those of one history, so that a new segment begins.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from openmem_hook.replay.transcript import Message, Step

DROP_TOKENS = 2_000
"""Smaller drops inside a turn occur without a clearing, up to 1,127 in the sessions looked at."""


def mark_clearings(steps: list[Step]) -> tuple[list[Step], int]:
    """The steps with a segment more after each silent clearing, and how many there were.

    What the client sent is not known after one, until its next compaction replaces everything anyway.
    """
    result: list[Step] = []
    clearings = 0
    for step in steps:
        if step.parent is None:
            result.append(step)
            continue
        before, above = steps[step.parent], result[step.parent]
        is_clearing = _is_clearing(before, step)
        clearings += is_clearing
        is_actual_known = (above.is_actual_known or step.segment > before.segment) and not is_clearing
        segment = step.segment + above.segment - before.segment + is_clearing
        result.append(replace(step, segment=segment, is_actual_known=is_actual_known))
    return result, clearings


def _is_clearing(before: Step, after: Step) -> bool:
    if before.usage is None or after.usage is None:
        return False
    if (before.segment, before.model) != (after.segment, after.model):
        return False
    new = after.messages[len(before.messages) + len(before.reply) :]
    drop = before.usage.prompt_tokens - after.usage.prompt_tokens
    return drop > DROP_TOKENS and all(_is_results(message) for message in new)


def _is_results(message: Message) -> bool:
    if message.get("role") == "tool" or str(message.get("type", "")).endswith("_output"):
        return True
    content: Any = message.get("content")
    return isinstance(content, list) and all(
        isinstance(block, dict) and block.get("type") == "tool_result" for block in content
    )
