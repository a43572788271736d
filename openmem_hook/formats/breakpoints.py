"""Cache breakpoints: a client's stay where they are; where a trim removed the last one, one stands again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from openmem_hook.formats import blocks
from openmem_hook.messages import Raw

_NO_MARKER = ("thinking", "redacted_thinking", "compaction")
"""Block types on which the provider refuses a breakpoint."""


def markers(value: Any) -> Iterator[dict[str, Any]]:
    """Every cache breakpoint at any depth, in order of appearance."""
    if isinstance(value, dict):
        found = value.get("cache_control")
        if isinstance(found, dict):
            yield found
        for key, item in value.items():
            if key != "cache_control" and isinstance(item, (dict, list)):
                yield from markers(item)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, (dict, list)):
                yield from markers(item)


def with_marker(before: Sequence[Raw], after: list[Raw]) -> list[Raw]:
    """Where a trim removed every message breakpoint of the client, one stands again, on the last legal block."""
    lost = list(markers(list(before)))
    if not lost or next(markers(after), None) is not None:
        return after
    for at in range(len(after) - 1, -1, -1):
        marked = _marked(after[at], lost[-1])
        if marked is not None:
            return [*after[:at], marked, *after[at + 1 :]]
    return after


def _marked(raw: Raw, marker: dict[str, Any]) -> Raw | None:
    content = raw.get("content") if isinstance(raw, dict) else None
    if isinstance(content, str) and content.strip():
        return {**raw, "content": [{"type": "text", "text": content, "cache_control": marker}]}
    if not isinstance(content, list):
        return None
    for i in range(len(content) - 1, -1, -1):
        block = content[i]
        if not isinstance(block, dict) or block.get("type") in _NO_MARKER:
            continue
        if blocks.is_text(block) and not blocks.text_of(block).strip():
            continue
        return {**raw, "content": [*content[:i], {**block, "cache_control": marker}, *content[i + 1 :]]}
    return None


def layout(body: Mapping[str, Any]) -> str:
    """Where a request's breakpoints are, counted from the front in tools and system and from the end in
    messages: "system:1:5m messages:-1:5m". Empty without any."""
    places = []
    for part in ("tools", "system", "messages"):
        given = body.get(part)
        items = given if isinstance(given, list) else []
        for i, item in enumerate(items):
            at = i - len(items) if part == "messages" else i
            places += [f"{part}:{at}:{_ttl(marker)}" for marker in markers(item)]
    return " ".join(places[:8])


def _ttl(marker: Mapping[str, Any]) -> str:
    return "1h" if marker.get("ttl") == "1h" else "5m"
