"""Chat Completions: results are messages of role tool, the system prompt is the first messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openmem_hook.formats import blocks, breakpoints
from openmem_hook.model import CallFamily, Format, MediaKind, Part, Raw, Role

# --- Reader -----------------------------------------------------------------------------------------------

name: Format = "chat"
call_types = frozenset({"completion", "acompletion", "pass_through_endpoint"})
messages_key = "messages"
references_define = False  # this API has no references

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_MEDIA: Mapping[str, MediaKind] = {
    "image_url": "image",
    "image": "image",
    "file": "document",
    "input_audio": "audio",
}
_REASONING = ("reasoning_content", "reasoning", "thinking_blocks")
"""Keys under which providers of this API return reasoning."""


def matches(body: Mapping[str, Any], is_declared: bool) -> bool:  # noqa: ARG001 - the shape is the same everywhere
    return blocks.are_messages(body.get("messages"))


def lead_of(messages: Sequence[Raw]) -> int:
    return blocks.count_leading(messages, ("system", "developer"))


def role_of(raw: Raw) -> Role:
    return blocks.role_from(raw, _ROLES)


def parts_of(raw: Raw) -> list[Part]:
    if not isinstance(raw, dict):
        return [blocks.opaque_part(raw, 0)]
    role = role_of(raw)
    content = [_part(block, i, role) for i, block in enumerate(blocks.blocks_of(raw.get("content")))]
    if role == "tool":
        family, call_id = _call_of_result(raw)
        return [blocks.result_part(family, call_id, content, 0)]
    return [*_reasoning_parts(raw), *content, *_call_parts(raw)]


def _call_of_result(raw: Mapping[str, Any]) -> tuple[CallFamily, Any]:
    """The older kind of calls, one a message, has no ids: its result says the function's name."""
    if raw.get("role") == "function":
        return "function_call", raw.get("name")
    return "function", raw.get("tool_call_id")


def _part(block: Any, index: int, role: Role) -> Part:
    block_type = blocks.type_of(block)
    if block_type == "text":
        return blocks.text_part(blocks.text_of(block), role, index)
    if block_type == "refusal":
        return blocks.refusal_part(block, index)
    if block_type in _MEDIA:
        return blocks.media_part(block, index, _MEDIA[block_type])
    if block_type in ("thinking", "redacted_thinking"):  # LiteLLM passes on those of other providers
        return blocks.thinking_part(block.get("thinking"), block.get("signature") or block.get("data"), index)
    return blocks.opaque_part(block, index)


def _reasoning_parts(raw: Mapping[str, Any]) -> list[Part]:
    text = raw.get("reasoning_content") or raw.get("reasoning")
    parts = [blocks.thinking_part(text, "")] if isinstance(text, str) and text else []
    thinking = raw.get("thinking_blocks")
    return [*parts, blocks.thinking_part("", blocks.json_text(thinking))] if thinking else parts


def _call_parts(raw: Mapping[str, Any]) -> list[Part]:
    calls = raw.get("tool_calls")
    parts = [_call_part(call, i) for i, call in enumerate(calls if isinstance(calls, list) else [])]
    older = raw.get("function_call")
    if isinstance(older, dict):
        tool = older.get("name")
        parts.append(blocks.call_part("function_call", tool, tool, older.get("arguments"), 0))
    return parts


def _call_part(call: Any, index: int) -> Part:
    """A call's name and arguments are in `function`, or in `custom` with an `input` in place of arguments."""
    if not isinstance(call, dict):
        return blocks.opaque_part(call, index)
    function = call.get("function") if isinstance(call.get("function"), dict) else call.get("custom")
    if not isinstance(function, dict):
        return blocks.opaque_part(call, index)
    arguments = function.get("arguments", function.get("input"))
    return blocks.call_part("function", call.get("id"), function.get("name"), arguments, index)


def system_of(body: Mapping[str, Any]) -> Any:  # noqa: ARG001 - the system prompt is among the messages
    return None


def must_start_with_thinking(body: Mapping[str, Any]) -> bool:  # noqa: ARG001 - no such rule in this API
    return False


# --- Editor -----------------------------------------------------------------------------------------------


def shorten_result(raw: Raw, index: int, text: str) -> Raw:  # noqa: ARG001 - a message is one result
    return {**raw, "content": blocks.replace_text(raw.get("content"), text, blocks.is_text)}


def freeze_message(raw: Raw, keep_thinking: bool) -> Raw | None:
    """Of a message that was reasoning alone nothing is left; one with calls stays, even without content."""
    clean = breakpoints.without_markers(raw)
    if keep_thinking:
        return clean
    rest = {key: value for key, value in clean.items() if key not in _REASONING}
    content = rest.get("content")
    is_empty = content is None or content == [] or (isinstance(content, str) and not content.strip())
    return None if len(rest) < len(clean) and is_empty and not rest.get("tool_calls") else rest


def with_pointer(raw: Raw, text: str) -> Raw:
    return {**raw, "content": blocks.put_text_before(raw.get("content"), text, "text")}


# --- Finisher ---------------------------------------------------------------------------------------------


def with_note(body: dict[str, Any], messages: list[Raw], note: str) -> dict[str, Any]:
    """The note ends the first system message; without one, the note is the system prompt."""
    if lead_of(messages) == 0:
        return with_messages(body, [{"role": "system", "content": note}, *messages])
    system = messages[0]
    system = {**system, "content": blocks.put_text_after(system.get("content"), note, "text")}
    return with_messages(body, [system, *messages[1:]])


def with_messages(body: dict[str, Any], messages: list[Raw]) -> dict[str, Any]:
    return {**body, "messages": messages}


with_marker = breakpoints.with_marker
