"""Chat Completions: results are messages of role tool, the system prompt is the first messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openmem_hook.formats import blocks
from openmem_hook.formats.breakpoints import with_marker as with_marker
from openmem_hook.model import Format, Part, Raw, Role

name: Format = "chat"
call_types = frozenset({"completion", "acompletion", "pass_through_endpoint"})
messages_key = "messages"
references_define = False

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_MEDIA = {"image_url": "image", "file": "document", "input_audio": "audio", "image": "image"}


def matches(body: Mapping[str, Any], named: bool) -> bool:  # noqa: ARG001 - the shape is the same everywhere
    messages = body.get("messages")
    return isinstance(messages, list) and bool(messages) and all(isinstance(m, dict) for m in messages)


def lead_of(messages: Sequence[Raw]) -> int:
    return blocks.leading(messages, ("system", "developer"))


def role_of(raw: Raw) -> Role:
    return _ROLES.get(str(raw.get("role")), "unknown") if isinstance(raw, dict) else "unknown"


def parts_of(raw: Raw) -> list[Part]:
    if not isinstance(raw, dict):
        return [blocks.opaque_part(raw, 0)]
    role = role_of(raw)
    content = [_part(b, i, role) for i, b in enumerate(blocks.blocks_of(raw.get("content")))]
    if role == "tool":
        family, call_id = _answered(raw)
        return [blocks.result_part(family, call_id, content, 0)]
    return [*_reasoning(raw), *content, *_calls(raw)]


def _answered(raw: Raw) -> tuple[str, Any]:
    if raw.get("role") == "function":
        return "function_call", raw.get("name")
    return "function", raw.get("tool_call_id")


def _part(block: Any, index: int, role: Role) -> Part:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text":
        text = blocks.text_of(block)
        return blocks.text_part(text, blocks.kind_of_text(text, role), index)
    if kind == "refusal":
        return blocks.text_part(blocks.string_id(block.get("refusal")), "text", index)
    if isinstance(kind, str) and kind in _MEDIA:
        return blocks.media_part(block, index, _MEDIA[kind])
    if kind in ("thinking", "redacted_thinking"):
        sealed = block.get("signature") or block.get("data")
        return Part(
            "thinking", blocks.string_id(block.get("thinking")), index=index, signature=blocks.string_id(sealed)
        )
    return blocks.opaque_part(block, index)


def _reasoning(raw: Raw) -> list[Part]:
    """What providers of this API return as reasoning, in their several keys."""
    text = raw.get("reasoning_content") or raw.get("reasoning")
    found = [Part("thinking", text)] if isinstance(text, str) and text else []
    sealed = raw.get("thinking_blocks")
    return [*found, Part("thinking", signature=blocks.as_json(sealed))] if sealed else found


def _calls(raw: Raw) -> list[Part]:
    calls = raw.get("tool_calls")
    parts = [_call(call, i) for i, call in enumerate(calls if isinstance(calls, list) else [])]
    legacy = raw.get("function_call")
    if isinstance(legacy, dict):
        parts.append(
            blocks.call_part("function_call", legacy.get("name"), legacy.get("name"), legacy.get("arguments"), 0)
        )
    return parts


def _call(call: Any, index: int) -> Part:
    if not isinstance(call, dict):
        return blocks.opaque_part(call, index)
    told = call.get("function") if isinstance(call.get("function"), dict) else call.get("custom")
    if not isinstance(told, dict):
        return blocks.opaque_part(call, index)
    arguments = told.get("arguments", told.get("input"))
    return blocks.call_part("function", call.get("id"), told.get("name"), arguments, index)


def system_of(body: Mapping[str, Any]) -> Any:  # noqa: ARG001 - the system prompt is among the messages
    return None


def must_start_with_thinking(body: Mapping[str, Any]) -> bool:  # noqa: ARG001 - no such rule in this API
    return False


def shorten_result(raw: Raw, index: int, text: str) -> Raw:  # noqa: ARG001 - a message is one result
    return {**raw, "content": blocks.replaced_text(raw.get("content"), text, blocks.is_text)}


def freeze_message(raw: Raw, keep_thinking: bool) -> Raw | None:
    clean = blocks.unmarked(raw)
    if keep_thinking:
        return clean
    left = {k: v for k, v in clean.items() if k not in ("reasoning_content", "reasoning", "thinking_blocks")}
    content = left.get("content")
    empty = content is None or content == [] or (isinstance(content, str) and not content.strip())
    return None if len(left) < len(clean) and empty and not left.get("tool_calls") else left


def with_pointer(raw: Raw, text: str) -> Raw:
    content = raw.get("content")
    if isinstance(content, list):
        return {**raw, "content": [{"type": "text", "text": text}, *content]}
    return {**raw, "content": f"{text}\n\n{content}" if isinstance(content, str) and content else text}


def with_note(body: dict[str, Any], messages: list[Raw], note: str) -> dict[str, Any]:
    """The note at the end of the first system message; with none, the note is the system prompt."""
    if lead_of(messages) == 0:
        return {**body, "messages": [{"role": "system", "content": note}, *messages]}
    return {**body, "messages": [blocks.noted(messages[0], note, "text"), *messages[1:]]}


def with_messages(body: dict[str, Any], messages: list[Raw]) -> dict[str, Any]:
    return {**body, "messages": messages}
