"""Cache breakpoints of a Messages body: where they stand, and what the provider objects to.

Order of the walk is the provider's: tools, system, messages; blocks inside a tool result come before the
result that holds them ends. A bare marker lasts five minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from openmem_hook.replay.provider.blocks_anthropic import blocks_of
from openmem_hook.replay.provider.signatures import SignatureRegistry

MAX_BREAKPOINTS = 4


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A `cache_control` marker and the block that holds it."""

    place: str
    """Path of the block in the body; "" for a marker of the whole request."""

    kind: str
    """The block's type, `tool` for a tool, `request` for the body."""

    text: str | None
    """The block's text; None where it is no text block."""

    ttl: str
    """The lifetime: "5m", "1h" or whatever the client wrote."""

    marker: Any
    """The marker itself, of any shape."""


def breakpoints(body: dict[str, Any]) -> list[Breakpoint]:
    """All markers in the order of the walk."""
    return list(_walk(body))


def _walk(body: dict[str, Any]) -> Iterator[Breakpoint]:
    for at, tool in enumerate(body.get("tools") or []):
        yield from _marker(f"tools.{at}", tool, kind="tool")
    system = body.get("system")
    for at, block in enumerate(system if isinstance(system, list) else []):
        yield from _marker(f"system.{at}", block)
    for at, message in enumerate(body.get("messages") or []):
        for spot, block in enumerate(blocks_of(message)):
            place = f"messages.{at}.content.{spot}"
            inner = block.get("content")
            for deep, part in enumerate(inner if isinstance(inner, list) else []):
                yield from _marker(f"{place}.tool_result.content.{deep}", part)
            yield from _marker(place, block)
    yield from _marker("", body, kind="request")


def _marker(place: str, block: Any, kind: str = "") -> Iterator[Breakpoint]:
    if isinstance(block, dict) and block.get("cache_control") is not None:
        marker = block["cache_control"]
        ttl = marker.get("ttl", "5m") if isinstance(marker, dict) else "5m"
        text = block.get("text") if block.get("type") == "text" else None
        yield Breakpoint(place, kind or str(block.get("type")), text, str(ttl), marker)


def breakpoint_faults(body: dict[str, Any], registry: SignatureRegistry | None) -> Iterator[str]:
    """Objections to the markers of a body."""
    markers = breakpoints(body)
    if len(markers) > MAX_BREAKPOINTS:
        yield f"A maximum of 4 blocks with cache_control may be provided. Found {len(markers)}."
    short = False
    for one in markers:
        where = f"{one.place}.{one.kind}" if one.kind not in {"tool", "request"} else one.place or "request"
        if not _is_marker(one.marker):
            yield f"{where}.cache_control: Input should be {{'type': 'ephemeral'}} with a ttl of '5m' or '1h'"
        if one.text is not None and not one.text.strip():
            yield f"{where}: cache_control cannot be set for empty text blocks"
        if one.ttl == "1h" and short:
            yield (
                f"{one.place}.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' "
                "cache_control block. Note that blocks are processed in the following order: `tools`, `system`, "
                "`messages`."
            )
        short = short or one.ttl != "1h"


def _is_marker(marker: Any) -> bool:
    if not isinstance(marker, dict) or marker.get("type") != "ephemeral":
        return False
    return set(marker) <= {"type", "ttl", "scope"} and marker.get("ttl", "5m") in {"5m", "1h"}
