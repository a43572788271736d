"""Anthropic Messages: results are blocks of user messages, the system prompt stands apart, breakpoints move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openmem_hook import fingerprint
from openmem_hook.formats import blocks
from openmem_hook.formats.breakpoints import with_marker as with_marker
from openmem_hook.model import Format, Part, Raw, Role

name: Format = "anthropic"
call_types = frozenset({"anthropic_messages", "pass_through_endpoint"})
messages_key = "messages"
references_define = False  # a reference points to an entry in `tools`

_MEDIA = {"image": "image", "document": "document"}
_THINKING = ("thinking", "redacted_thinking")


def matches(body: Mapping[str, Any], named: bool) -> bool:
    """A list of messages; where the call type doesn't name the API, none with the marks of chat."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        return False
    if named:
        return True
    foreign = any(m.get("role") in ("tool", "developer") or "tool_calls" in m for m in messages)
    return "max_tokens" in body and not foreign


def lead_of(messages: Sequence[Raw]) -> int:  # noqa: ARG001 - the system prompt is not among the messages
    return 0


_ROLES: Mapping[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}


def role_of(raw: Raw) -> Role:
    return _ROLES.get(str(raw.get("role")), "unknown") if isinstance(raw, dict) else "unknown"


def parts_of(raw: Raw) -> list[Part]:
    if not isinstance(raw, dict):
        return [blocks.opaque_part(raw, 0)]
    role = role_of(raw)
    content = blocks.blocks_of(raw.get("content"))
    return [_part(block, i, role) for i, block in enumerate(content)]


def _part(block: Any, index: int, role: Role) -> Part:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        return blocks.opaque_part(block, index)
    if kind == "text":
        text = blocks.text_of(block)
        return blocks.text_part(text, blocks.kind_of_text(text, role), index)
    if kind in _THINKING:
        sealed = block.get("signature") if kind == "thinking" else block.get("data")
        return Part(
            "thinking", blocks.string_id(block.get("thinking")), index=index, signature=blocks.string_id(sealed)
        )
    if kind == "tool_use":
        return blocks.call_part("tool", block.get("id"), block.get("name"), block.get("input"), index)
    if kind == "tool_result":
        inner = [_inner(item, i) for i, item in enumerate(blocks.blocks_of(block.get("content")))]
        failed = block.get("is_error") is True
        return blocks.result_part("tool", block.get("tool_use_id"), inner, index, failed)
    return _other(block, index, kind)


def _inner(block: Any, index: int) -> Part:
    """A block inside a tool result; whatever its text looks like, nobody typed it."""
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text":
        text = blocks.text_of(block)
        return blocks.text_part(text, blocks.kind_of_text(text, "tool"), index)
    if kind == "tool_reference":
        found = blocks.string_id(block.get("tool_name"))
        return Part("reference", found, ["reference", found], index=index, references=(found,))
    return _other(block, index, kind if isinstance(kind, str) else "")


def _other(block: Any, index: int, kind: str) -> Part:
    if kind in _MEDIA and isinstance(block, dict):
        title = block.get("title")
        return blocks.media_part(block, index, _MEDIA[kind], title if isinstance(title, str) else "")
    if kind == "compaction":
        return blocks.opaque_part(block, index, "compaction")
    if kind.startswith(("server_tool_use", "mcp_tool_")) or kind.endswith("_tool_result"):
        return blocks.opaque_part(block, index, "server", signed=b"encrypted_" in fingerprint.dump(block))
    return blocks.opaque_part(block, index)


def system_of(body: Mapping[str, Any]) -> Any:
    """What stands before the messages and counts as prompt, tools aside."""
    return body.get("system")


def must_start_with_thinking(body: Mapping[str, Any]) -> bool:
    thinking = body.get("thinking")
    return isinstance(thinking, dict) and thinking.get("type") == "enabled"


def shorten_result(raw: Raw, index: int, text: str) -> Raw:
    """The message with the text of the result at this block replaced; ids, flags and other parts stay."""

    def change(content: list[Any]) -> list[Any]:
        block = content[index]
        content[index] = {
            **block,
            "content": blocks.replaced_text(block.get("content"), text, blocks.is_text),
        }
        return content

    return blocks.map_content(raw, "content", change)


def freeze_message(raw: Raw, keep_thinking: bool) -> Raw | None:
    """The message as a head shows it: no breakpoints, no thinking; None where nothing would be left."""
    clean = blocks.unmarked(raw)
    content = clean.get("content")
    if keep_thinking or not isinstance(content, list):
        return clean
    left = [b for b in content if not (isinstance(b, dict) and b.get("type") in _THINKING)]
    if not any(not blocks.is_text(b) or blocks.text_of(b).strip() for b in left):
        return None if len(left) < len(content) else clean
    return {**clean, "content": left}


def with_pointer(raw: Raw, text: str) -> Raw:
    """The typed message with the pointer before its words, but never before a result it carries."""
    content = raw.get("content")
    if not isinstance(content, list):
        return {**raw, "content": f"{text}\n\n{content}" if isinstance(content, str) and content else text}
    after = [i for i, b in enumerate(content) if isinstance(b, dict) and b.get("type") == "tool_result"]
    at = after[-1] + 1 if after else 0
    return {**raw, "content": [*content[:at], {"type": "text", "text": text}, *content[at:]]}


def with_note(body: dict[str, Any], messages: list[Raw], note: str) -> dict[str, Any]:
    """The note at the end of the system prompt, in the shape the client used, once."""
    system = body.get("system")
    if isinstance(system, list):
        if not any(blocks.is_text(b) and note in blocks.text_of(b) for b in system):
            system = [*system, {"type": "text", "text": note}]
    elif isinstance(system, str) and system:
        system = system if note in system else f"{system}\n\n{note}"
    elif system is None or system == "":
        system = note
    return {**body, "system": system, "messages": messages}


def with_messages(body: dict[str, Any], messages: list[Raw]) -> dict[str, Any]:
    return {**body, "messages": messages}
