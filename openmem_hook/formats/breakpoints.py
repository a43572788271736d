"""Cache breakpoints: a client's stay where they are; where a trim removed the last one, one stands again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from openmem_hook.formats import blocks
from openmem_hook.model import Raw

_MARKED_ROLES = ("user", "tool")
_NO_MARKER = ("thinking", "redacted_thinking", "compaction")
"""Block types on which the provider refuses a breakpoint."""


def markers(items: Iterable[Any]) -> list[dict[str, Any]]:
    """Every cache breakpoint on tools, messages or blocks and on the blocks inside them, in order of appearance.
    What a call's arguments or a tool's schema hold under that name is data."""
    found: list[dict[str, Any]] = []
    for item in items:
        if isinstance(item, dict):
            marker, inside = item.get("cache_control"), item.get("content")
            if isinstance(marker, dict):
                found.append(marker)
            if isinstance(inside, list):
                found += markers(inside)
    return found


def with_marker(before: Sequence[Raw], after: list[Raw]) -> list[Raw]:
    """Where a trim removed every message breakpoint of the client, one stands again, on the last legal block that
    no model wrote: what a model wrote is sent back as it was."""
    lost = None if _last(after) is not None else _last(before)
    if lost is None:
        return after
    for at in range(len(after) - 1, -1, -1):
        marked = _marked(after[at], lost) if after[at].get("role") in _MARKED_ROLES else None
        if marked is not None:
            return [*after[:at], marked, *after[at + 1 :]]
    return after


def _last(messages: Sequence[Raw]) -> dict[str, Any] | None:
    """The last breakpoint, looked for from the end, where clients have it."""
    return next((found[-1] for raw in reversed(messages) if (found := markers((raw,)))), None)


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
            places += [f"{part}:{at}:{_ttl(marker)}" for marker in markers((item,))]
    return " ".join(places[:8])


def _ttl(marker: Mapping[str, Any]) -> str:
    return "1h" if marker.get("ttl") == "1h" else "5m"
