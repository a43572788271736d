"""V-P and the other oracles about bytes: prefix, untouched, unaliased, accepted.

A request is compared as the model would read it: block by block, each block in canonical JSON, cache
breakpoints taken out at any depth, and a string equal to a list of one text block. System prompt and tools
are left out: they may change in mid-session without a break. All else counts, even trailing spaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson

from . import rules_anthropic, rules_chat, rules_responses
from .builders import Format
from .issued import Issued

Body = dict[str, Any]

_CHECKS = {
    "anthropic": rules_anthropic.check,
    "chat": rules_chat.check,
    "responses": rules_responses.check,
}


def check(body: Body, fmt: Format, issued: Issued | None = None) -> list[str]:
    """Objections of the provider that speaks `fmt`."""
    return _CHECKS[fmt](body, issued)


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
    made: list[bytes] = []
    for message in _messages(body, fmt):
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
    before, after = blocks(previous_out, fmt), blocks(next_out, fmt)
    for at, block in enumerate(before):
        if at >= len(after) or after[at] != block:
            return at
    return None


def assert_prefix(previous_out: Body, next_out: Body, fmt: Format) -> None:
    at = broken_at(previous_out, next_out, fmt)
    if at is not None:
        before, after = blocks(previous_out, fmt), blocks(next_out, fmt)
        seen = after[at][:300] if at < len(after) else b"(nothing: the later request is shorter)"
        raise AssertionError(
            f"prefix broken at block {at} of {len(before)}:\n  was {before[at][:300]!r}\n  is  {seen!r}"
        )


def assert_accepted(body: Body, fmt: Format, issued: Issued | None = None) -> None:
    faults = check(body, fmt, issued)
    if faults:
        raise AssertionError(f"the {fmt} provider would refuse this request:\n  " + "\n  ".join(faults[:10]))


def assert_untouched(before: Any, after: Any) -> None:
    """V-U, bytewise: key order and breakpoints count too."""
    if orjson.dumps(before) != orjson.dumps(after):
        raise AssertionError("the value was changed:\n  was " + _around(orjson.dumps(before), orjson.dumps(after)))


@contextmanager
def unchanged(*held: Any) -> Iterator[None]:
    """V-M: none of the objects that the caller still holds is altered inside the block."""
    before = [orjson.dumps(value) for value in held]
    yield
    for at, value in enumerate(held):
        if orjson.dumps(value) != before[at]:
            raise AssertionError(f"object {at} was mutated:\n  was " + _around(before[at], orjson.dumps(value)))


def _around(before: bytes, after: bytes) -> str:
    at = next(
        (i for i, (x, y) in enumerate(zip(before, after, strict=False)) if x != y),
        min(len(before), len(after)),
    )
    low = max(0, at - 80)
    return f"{before[low : at + 120]!r}\n  is  {after[low : at + 120]!r}"


def _messages(body: Body, fmt: Format) -> list[Body]:
    if fmt == "responses":
        return rules_responses.items_of(body)
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
