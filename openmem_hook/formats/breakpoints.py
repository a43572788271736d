"""Cache breakpoints: a client's stay where they are; where a trim removed the last one, it is set again.

A breakpoint is an object under `cache_control` on a message, a block or a tool, here called its marker. What a call's
arguments or a tool's schema hold under that name is data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from openmem_hook.formats import blocks
from openmem_hook.model import Raw

Marker = dict[str, Any]

_MARKER_ROLES = ("user", "tool")
"""Roles whose messages no model wrote: what a model wrote is sent back as it was."""
_MARKERLESS = ("thinking", "redacted_thinking", "compaction")
"""Block types on which the provider refuses a breakpoint."""
_MOST_PLACES = 8
"""Places that `layout` names at the most; a provider takes four breakpoints."""


def markers(items: Iterable[Any]) -> list[Marker]:
    """Every breakpoint on tools, messages or blocks and on the blocks inside them, in order of appearance."""
    out: list[Marker] = []
    for item in items:
        if isinstance(item, dict):
            marker, content = item.get("cache_control"), item.get("content")
            if isinstance(marker, dict):
                out.append(marker)
            if isinstance(content, list):
                out += markers(content)
    return out


def without_markers(value: Any) -> Any:
    """A message without breakpoints on itself, its blocks and those inside; the very same object where it has none."""
    if isinstance(value, list):
        items = [without_markers(item) for item in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    if not isinstance(value, dict):
        return value
    content = without_markers(value.get("content"))
    if "cache_control" not in value and content is value.get("content"):
        return value
    return {key: content if key == "content" else item for key, item in value.items() if key != "cache_control"}


def with_marker(before: Sequence[Raw], after: list[Raw]) -> list[Raw]:
    """The outgoing messages (`after`). Where the client's (`before`) had breakpoints and an edit removed all, the last
    one is set again, on the last block that may have one and that no model wrote."""
    marker = None if _last_marker(after) is not None else _last_marker(before)
    if marker is None:
        return after
    for at in range(len(after) - 1, -1, -1):
        raw = _with_marker_at_end(after[at], marker) if after[at].get("role") in _MARKER_ROLES else None
        if raw is not None:
            return [*after[:at], raw, *after[at + 1 :]]
    return after


def _last_marker(messages: Sequence[Raw]) -> Marker | None:
    """The last breakpoint, searched from the end, where clients set it."""
    return next((of_message[-1] for raw in reversed(messages) if (of_message := markers((raw,)))), None)


def _with_marker_at_end(raw: Raw, marker: Marker) -> Raw | None:
    """The message with a breakpoint on its last block that may have one; None where there is no such block."""
    content = raw.get("content") if isinstance(raw, dict) else None
    if isinstance(content, str) and content.strip():
        return {**raw, "content": [{"type": "text", "text": content, "cache_control": marker}]}
    if not isinstance(content, list):
        return None
    for i in range(len(content) - 1, -1, -1):
        block = content[i]
        if not isinstance(block, dict) or block.get("type") in _MARKERLESS:
            continue
        if blocks.is_text(block) and not blocks.text_of(block).strip():
            continue
        return {**raw, "content": [*content[:i], {**block, "cache_control": marker}, *content[i + 1 :]]}
    return None


def layout(body: Mapping[str, Any]) -> str:
    """Where a request's breakpoints are, counted from the front in tools and system and from the end in
    messages: "system:1:5m messages:-1:5m". Empty without any."""
    places: list[str] = []
    for part in ("tools", "system", "messages"):
        value = body.get(part)
        items = value if isinstance(value, list) else []
        for i, item in enumerate(items):
            at = i - len(items) if part == "messages" else i
            places += [f"{part}:{at}:{_lifetime(marker)}" for marker in markers((item,))]
    return " ".join(places[:_MOST_PLACES])


def _lifetime(marker: Marker) -> str:
    return "1h" if marker.get("ttl") == "1h" else "5m"
