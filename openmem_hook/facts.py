"""What decisions need to know of a message, derived from its parts: kind, identity, sizes, what it asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from openmem_hook import fingerprint, tokens
from openmem_hook.model import Facts, HistoryCache, MessageKind, Part, PartKind, Raw, Reader, ResultSlot, Role
from openmem_hook.tokens import Sizes

TRIM_COMMAND = re.compile(r"\s*/smart-compact(?:\s|$)")
TRIM_COMMAND_RECORD = "<command-name>/smart-compact</command-name>"

INTERJECTION_PREFIX = "The user sent a new message while you were working:"
"""How Claude Code begins what was typed while the model worked: beside a result, or in a system message of its own."""

_TYPED_PARTS: frozenset[PartKind] = frozenset(("text", "command", "media", "opaque"))
"""Parts of a user message that a person put there."""
_NO_IDENTITY: frozenset[PartKind] = frozenset(("thinking", "reminder", "blank"))
"""Parts that clients vary, drop or insert."""
_SIZE_KINDS: Mapping[PartKind, tokens.SizeKind] = {"call": "args", "result": "result"}
"""The kind under which `tokens.measure` counts the text of a part; `text` for all others."""


def sizes_of(parts: Iterable[Part]) -> Sizes:
    """How much these parts hold together. Thinking and a provider's compaction are counted by what they cost where
    only a signature or encrypted text is there."""
    total = tokens.ZERO
    for part in parts:
        if part.kind == "thinking":
            total += tokens.thinking(part.text, len(part.signature))
        elif part.kind == "compaction":
            total += tokens.opaque(len(part.text))
        elif part.text:
            total += tokens.measure(_SIZE_KINDS.get(part.kind, "text"), part.text)
        for kind in part.media:
            total += tokens.media(kind)
    return total


def _kind_of(role: Role, parts: Sequence[Part]) -> MessageKind:
    """The message's kind from its role and the kinds of its parts; the first rule that holds wins."""
    kinds = {part.kind for part in parts}
    has_typed = not kinds.isdisjoint(_TYPED_PARTS)
    has_result = "result" in kinds and role in ("user", "tool")
    rules: tuple[tuple[MessageKind, bool], ...] = (
        ("relayed", role == "system" and any(_is_interjection(part) for part in parts)),
        ("compaction", "compaction" in kinds),
        ("system", role == "system"),
        ("summarise", "summarise" in kinds),
        ("mixed", has_result and has_typed),
        ("result", has_result),
        ("call", "call" in kinds or ("server" in kinds and role == "assistant")),
        ("reasoning", kinds == {"thinking"}),
        ("reply", role == "assistant"),
        ("recap", "recap" in kinds),
        ("typed", role == "user" and (has_typed or not kinds)),
        ("notice", role == "user"),
    )
    return next((kind for kind, holds in rules if holds), "unknown")


def facts_of(role: Role, parts: Sequence[Part], size: int) -> Facts:
    """Facts about a message of this role, these parts and this many bytes of JSON."""
    kind = _kind_of(role, parts)
    identity = [part.identity for part in parts if part.identity is not None]
    identifies = bool(identity) or not parts or any(part.kind not in _NO_IDENTITY for part in parts)
    # What has no identity is still stored, once for each text: its own row needs a name.
    meaning = identity if identifies else [[part.kind, part.signature or part.text] for part in parts]
    calls = [part for part in parts if part.kind == "call" and part.call_id]
    results = [part for part in parts if part.kind == "result"]
    return Facts(
        role="tool" if kind == "result" else role,
        kind=kind,
        digest=fingerprint.digest([role if role != "tool" else "user", meaning]),
        identifies=identifies,
        sizes=sizes_of(parts),
        bytes=size,
        calls=tuple(part.call_id for part in calls),
        answers=tuple(part.call_id for part in results if part.call_id),
        results=tuple(
            ResultSlot(part.index, part.call_id, len(part.text))
            for part in results
            if part.text_alone and not part.references
        ),
        tool_names=tuple(part.name for part in calls),
        references=tuple(name for part in parts for name in part.references),
        starts_with_thinking=bool(parts) and parts[0].kind == "thinking",
        has_thinking=any(part.kind == "thinking" for part in parts),
        has_text=any(part.kind == "text" and part.text.strip() for part in parts),
        forces_trim=_forces_trim(role, parts),
        is_signed=any(part.is_signed for part in parts),
        media=sum(len(part.media) for part in parts),
    )


def _is_interjection(part: Part) -> bool:
    return part.kind == "text" and part.text.lstrip().startswith(INTERJECTION_PREFIX)


def _forces_trim(role: Role, parts: Sequence[Part]) -> bool:
    """True where a person asked for a trim, in the literal form or as the record of a slash command."""
    if role != "user":
        return False
    if any(part.kind == "command" for part in parts):
        return True
    first_text = next((part for part in parts if part.kind == "text"), None)
    return first_text is not None and TRIM_COMMAND.match(first_text.text) is not None


def facts_of_message(adapter: Reader, raw: Raw, size: int) -> Facts:
    """Facts about a raw message of this format and of this many bytes of JSON."""
    return facts_of(adapter.role_of(raw), adapter.parts_of(raw), size)


def cached_facts(adapter: Reader, raw: Raw, cache: HistoryCache) -> Facts:
    """The facts about a message, looked up by its bytes. `cache` is read and added to."""
    payload = fingerprint.dump(raw)
    key = hash(payload)
    facts = cache.facts.get(key)
    # Two messages may have the same hash: the length tells them apart, as far as anything so cheap can.
    if facts is None or facts.bytes != len(payload):
        facts = cache.facts[key] = facts_of_message(adapter, raw, len(payload))
    return facts
