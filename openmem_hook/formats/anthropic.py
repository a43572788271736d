"""Anthropic Messages: results are blocks of user messages, the system prompt stands apart, breakpoints move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openmem_hook import fingerprint
from openmem_hook.formats import blocks, breakpoints
from openmem_hook.model import Format, MediaKind, Part, Raw, Role

# --- Reader -----------------------------------------------------------------------------------------------

name: Format = "anthropic"
call_types = frozenset({"anthropic_messages", "pass_through_endpoint"})
messages_key = "messages"
references_define = False  # a reference points to an entry in `tools`

_ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}
_MEDIA: Mapping[str, MediaKind] = {"image": "image", "document": "document"}
_THINKING = ("thinking", "redacted_thinking")


def matches(body: Mapping[str, Any], is_declared: bool) -> bool:
    """Where the call type doesn't declare the API, a body with the marks of chat completions is none of this one."""
    messages: Any = body.get("messages")
    if not blocks.are_messages(messages):
        return False
    if is_declared:
        return True
    is_chat = any(raw.get("role") in ("tool", "developer") or "tool_calls" in raw for raw in messages)
    return "max_tokens" in body and not is_chat


def lead_of(messages: Sequence[Raw]) -> int:  # noqa: ARG001 - the system prompt is not among the messages
    return 0


def role_of(raw: Raw) -> Role:
    return blocks.role_from(raw, _ROLES)


def parts_of(raw: Raw) -> list[Part]:
    if not isinstance(raw, dict):
        return [blocks.opaque_part(raw, 0)]
    role = role_of(raw)
    return [_part(block, i, role) for i, block in enumerate(blocks.blocks_of(raw.get("content")))]


def _part(block: Any, index: int, role: Role) -> Part:
    block_type = blocks.type_of(block)
    if block_type == "text":
        return blocks.text_part(blocks.text_of(block), role, index)
    if block_type in _THINKING:
        signature = block.get("signature" if block_type == "thinking" else "data")
        return blocks.thinking_part(block.get("thinking"), signature, index)
    if block_type == "tool_use":
        return blocks.call_part("tool", block.get("id"), block.get("name"), block.get("input"), index)
    if block_type == "tool_result":
        inner = [_part_of_result(item, i) for i, item in enumerate(blocks.blocks_of(block.get("content")))]
        is_error = block.get("is_error") is True
        return blocks.result_part("tool", block.get("tool_use_id"), inner, index, is_error)
    return _other_part(block, index)


def _part_of_result(block: Any, index: int) -> Part:
    """Whatever the text inside a result looks like, nobody typed it."""
    block_type = blocks.type_of(block)
    if block_type == "text":
        return blocks.text_part(blocks.text_of(block), "tool", index)
    if block_type == "tool_reference":
        tool = blocks.string_or_empty(block.get("tool_name"))
        return Part("reference", tool, ["reference", tool], index=index, references=(tool,))
    return _other_part(block, index)


def _other_part(block: Any, index: int) -> Part:
    """What may be in a message as well as in a result."""
    block_type = blocks.type_of(block)
    if block_type in _MEDIA:
        return blocks.media_part(block, index, _MEDIA[block_type], blocks.string_or_empty(block.get("title")))
    if block_type == "compaction":
        return blocks.opaque_part(block, index, "compaction")
    if block_type.startswith(("server_tool_use", "mcp_tool_")) or block_type.endswith("_tool_result"):
        is_signed = b"encrypted_" in fingerprint.dump(block)
        return blocks.opaque_part(block, index, "server", is_signed)
    return blocks.opaque_part(block, index)


def system_of(body: Mapping[str, Any]) -> Any:
    return body.get("system")


def must_start_with_thinking(body: Mapping[str, Any]) -> bool:
    thinking = body.get("thinking")
    return isinstance(thinking, dict) and thinking.get("type") == "enabled"


# --- Editor -----------------------------------------------------------------------------------------------


def shorten_result(raw: Raw, index: int, text: str) -> Raw:
    content = list(raw["content"])
    block = content[index]
    content[index] = {**block, "content": blocks.replace_text(block.get("content"), text, blocks.is_text)}
    return {**raw, "content": content}


def freeze_message(raw: Raw, keep_thinking: bool) -> Raw | None:
    """Blank text alone is nothing once the thinking beside it has gone: the API refuses such a message."""
    clean = breakpoints.without_markers(raw)
    content = clean.get("content")
    if keep_thinking or not isinstance(content, list):
        return clean
    rest = [block for block in content if blocks.type_of(block) not in _THINKING]
    if any(not blocks.is_text(block) or blocks.text_of(block).strip() for block in rest):
        return {**clean, "content": rest}
    return None if len(rest) < len(content) else clean


def with_pointer(raw: Raw, text: str) -> Raw:
    """The pointer stands behind the results that the message has: the API wants results first."""
    content, at = raw.get("content"), 0
    if isinstance(content, list):
        at = max((i + 1 for i, block in enumerate(content) if blocks.type_of(block) == "tool_result"), default=0)
    return {**raw, "content": blocks.put_text_before(content, text, "text", at)}


# --- Finisher ---------------------------------------------------------------------------------------------


def with_note(body: dict[str, Any], messages: list[Raw], note: str) -> dict[str, Any]:
    system = body.get("system")
    if system is None or isinstance(system, (str, list)):  # anything else is for the provider to refuse
        system = blocks.put_text_after(system, note, "text")
    return {**body, "system": system, "messages": messages}


def with_messages(body: dict[str, Any], messages: list[Raw]) -> dict[str, Any]:
    return {**body, "messages": messages}


with_marker = breakpoints.with_marker
