"""The oracles about bytes, as assertions: prefix, untouched, unaliased, accepted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson

from openmem_hook.replay.provider import check
from openmem_hook.replay.provider.canonical import blocks, broken_at, canonical, without_breakpoints
from openmem_hook.replay.provider.signatures import SignatureRegistry

from .builders import Format

__all__ = [
    "assert_accepted", "assert_prefix", "assert_untouched", "blocks", "broken_at", "canonical", "check", "normal",
    "unchanged", "without_breakpoints",
]  # fmt: skip

Body = dict[str, Any]


def normal(message: Any) -> bytes:
    """A message as canonical JSON: a string equals a list of one text block, breakpoints aside."""
    if isinstance(message, dict) and isinstance(message.get("content"), str):
        message = {**message, "content": [{"type": "text", "text": message["content"]}]}
    return canonical(message)


def assert_prefix(previous_out: Body, next_out: Body, fmt: Format) -> None:
    at = broken_at(previous_out, next_out, fmt)
    if at is not None:
        before, after = blocks(previous_out, fmt), blocks(next_out, fmt)
        seen = after[at][:300] if at < len(after) else b"(nothing: the later request is shorter)"
        raise AssertionError(
            f"prefix broken at block {at} of {len(before)}:\n  was {before[at][:300]!r}\n  is  {seen!r}"
        )


def assert_accepted(body: Body, fmt: Format, registry: SignatureRegistry | None = None) -> None:
    faults = check(body, fmt, registry)
    if faults:
        raise AssertionError(f"the {fmt} provider would refuse this request:\n  " + "\n  ".join(faults[:10]))


def assert_untouched(before: Any, after: Any) -> None:
    """Both are the same bytes as JSON: key order and breakpoints count too."""
    if orjson.dumps(before) != orjson.dumps(after):
        raise AssertionError("the value was changed:\n  was " + _around(orjson.dumps(before), orjson.dumps(after)))


@contextmanager
def unchanged(*held: Any) -> Iterator[None]:
    """None of the objects that the caller still holds is altered inside the block."""
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
