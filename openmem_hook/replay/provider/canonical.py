"""A request as the model would read it: block by block, each in canonical JSON.

Cache breakpoints are taken out at any depth, and a string equals a list of one text block. System prompt and
tools are left out of `blocks`: they may change in mid-session without a break. All else counts, even trailing spaces.
"""

from __future__ import annotations

from typing import Any

import orjson

from openmem_hook.replay.provider.rules_responses import items_of
from openmem_hook.replay.session import Format

Body = dict[str, Any]


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and without cache breakpoints at any depth."""
    return orjson.dumps(unmarked(value), option=orjson.OPT_SORT_KEYS)


def unmarked(value: Any) -> Any:
    """A copy without cache breakpoints; the value itself is not touched."""
    if isinstance(value, dict):
        return {key: unmarked(inner) for key, inner in value.items() if key != "cache_control"}
    if isinstance(value, list):
        return [unmarked(inner) for inner in value]
    return value


def blocks(body: Body, fmt: Format) -> list[bytes]:
    """The conversation as a list of canonical blocks; the first block of a message says so."""
    return _blocks(_messages(body, fmt), fmt)


def _blocks(messages: list[Body], fmt: Format) -> list[bytes]:
    made: list[bytes] = []
    for message in messages:
        envelope, parts = _split(message, fmt)
        made += [
            canonical({"of": envelope if at == 0 else envelope.get("role"), "first": at == 0, "block": part})
            for at, part in enumerate(parts)
        ]
    return made


def broken_at(previous_out: Body, next_out: Body, fmt: Format) -> int | None:
    """Index of the first block at which the earlier request stops being a prefix of the later one.

    None when it is a prefix; equal requests count as prefixes of each other, because a retry is no break.
    """
    one, other = _messages(previous_out, fmt), _messages(next_out, fmt)
    same = _same(one, other)  # most are byte for byte what they were: only the rest is taken apart
    before, after = _blocks(one[same:], fmt), _blocks(other[same:], fmt)
    for at, block in enumerate(before):
        if at >= len(after) or after[at] != block:
            return len(_blocks(one[:same], fmt)) + at
    return None


def _same(one: list[Body], other: list[Body]) -> int:
    """How many messages at the front are the same JSON."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if orjson.dumps(a) != orjson.dumps(b)), min(len(one), len(other)))


def _messages(body: Body, fmt: Format) -> list[Body]:
    if fmt == "responses":
        return items_of(body)
    messages: list[Body] = body.get("messages") or []
    return messages


def _split(message: Body, fmt: Format) -> tuple[Body, list[Any]]:
    """What is said once about a message, and its blocks; a message without content has one empty block."""
    held = {key: value for key, value in message.items() if value is not None and key != "content"}
    if fmt == "responses" and "role" in message:
        held.setdefault("type", "message")
    content = message.get("content")
    if isinstance(content, str):
        kind = "text" if fmt != "responses" else "output_text" if message.get("role") == "assistant" else "input_text"
        content = [{"type": kind, "text": content}] if content else []
    if isinstance(content, list):
        return held, [_bare(part) for part in content] or [None]
    return held, [content]


def _bare(part: Any) -> Any:
    """A result's single text block reads the same as its string; empty annotations say nothing."""
    if not isinstance(part, dict):
        return part
    kept = {key: value for key, value in part.items() if not (key in {"annotations", "logprobs"} and not value)}
    inner = kept.get("content")
    if isinstance(inner, list) and len(inner) == 1 and set(inner[0]) - {"cache_control"} == {"type", "text"}:
        kept["content"] = inner[0]["text"]
    return kept
