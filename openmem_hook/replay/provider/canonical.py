"""A request as the model would read it: block by block, each in canonical JSON.

Cache breakpoints are removed at any depth, and a string equals a list of one text block. System prompt and
tools are left out of `blocks`: they may change in mid-session without a break. All else counts, even trailing spaces.
"""

from __future__ import annotations

from typing import Any

import orjson

from openmem_hook.replay.provider.rules_responses import items_of
from openmem_hook.replay.transcript import Format

Body = dict[str, Any]


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and without cache breakpoints at any depth."""
    return orjson.dumps(without_breakpoints(value), option=orjson.OPT_SORT_KEYS)


def without_breakpoints(value: Any) -> Any:
    """A copy without cache breakpoints; the value itself is not touched."""
    if isinstance(value, dict):
        return {key: without_breakpoints(inner) for key, inner in value.items() if key != "cache_control"}
    if isinstance(value, list):
        return [without_breakpoints(inner) for inner in value]
    return value


def blocks(body: Body, fmt: Format) -> list[bytes]:
    """The conversation as a list of canonical blocks; the first block of a message says so."""
    return _blocks(_messages(body, fmt), fmt)


def _blocks(messages: list[Body], fmt: Format) -> list[bytes]:
    result: list[bytes] = []
    for message in messages:
        envelope, parts = _split(message, fmt)
        result += [
            canonical({"of": envelope if at == 0 else envelope.get("role"), "first": at == 0, "block": part})
            for at, part in enumerate(parts)
        ]
    return result


def broken_at(previous_out: Body, next_out: Body, fmt: Format) -> int | None:
    """Index of the first block at which the earlier request stops being a prefix of the later one.

    None when it is a prefix; equal requests count as prefixes of each other, because a retry is no break.
    """
    one, other = _messages(previous_out, fmt), _messages(next_out, fmt)

    # Most messages are byte for byte what they were: only the rest is compared block by block.
    pairs = enumerate(zip(one, other, strict=False))
    same = next((i for i, (a, b) in pairs if orjson.dumps(a) != orjson.dumps(b)), min(len(one), len(other)))
    before, after = _blocks(one[same:], fmt), _blocks(other[same:], fmt)
    for at, block in enumerate(before):
        if at >= len(after) or after[at] != block:
            return len(_blocks(one[:same], fmt)) + at
    return None


def _messages(body: Body, fmt: Format) -> list[Body]:
    if fmt == "responses":
        return items_of(body)
    messages: list[Body] = body.get("messages") or []
    return messages


def _split(message: Body, fmt: Format) -> tuple[Body, list[Any]]:
    """What stands once in a message, and its blocks; a message without content has one empty block."""
    envelope = {key: value for key, value in message.items() if value is not None and key != "content"}
    if fmt == "responses" and "role" in message:
        envelope.setdefault("type", "message")
    content = message.get("content")
    if isinstance(content, str):
        kind = "text" if fmt != "responses" else "output_text" if message.get("role") == "assistant" else "input_text"
        content = [{"type": kind, "text": content}] if content else []
    if isinstance(content, list):
        return envelope, [_plain(part) for part in content] or [None]
    return envelope, [content]


def _plain(part: Any) -> Any:
    """A result's single text block reads the same as its string; empty annotations say nothing."""
    if not isinstance(part, dict):
        return part
    fields = {key: value for key, value in part.items() if not (key in {"annotations", "logprobs"} and not value)}
    inner = fields.get("content")
    if isinstance(inner, list) and len(inner) == 1 and set(inner[0]) - {"cache_control"} == {"type", "text"}:
        fields["content"] = inner[0]["text"]
    return fields
