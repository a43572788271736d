"""What one content block of the Messages API may look like, and where each type may stand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from openmem_hook.replay.provider import media
from openmem_hook.replay.provider.signatures import SignatureRegistry

Block = dict[str, Any]

_CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")

USER_TYPES = frozenset({"text", "image", "document", "tool_result", "search_result", "container_upload"})
ASSISTANT_TYPES = frozenset({
    "text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "mcp_tool_use", "mcp_tool_result",
    "compaction", "container_upload",
})  # fmt: skip
SYSTEM_TYPES = frozenset({"text", "tool_addition", "tool_removal"})
RESULT_TYPES = frozenset({"text", "image", "document", "search_result", "tool_reference"})
KEYS = {
    "text": {"type", "text", "cache_control", "citations"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
    "tool_use": {"type", "id", "name", "input", "cache_control", "caller"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
    "image": {"type", "source", "cache_control"},
    "document": {"type", "source", "title", "context", "citations", "cache_control"},
    "tool_reference": {"type", "tool_name", "cache_control"},
}


def blocks_of(message: Block) -> list[Block]:
    """The blocks of a message; a string counts as one text block, an empty string as none."""
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content if isinstance(content, list) else []


def inner_blocks(message: Block) -> Iterator[Block]:
    """Blocks of a message and those inside its tool results."""
    for block in blocks_of(message):
        yield block
        if isinstance(block.get("content"), list):
            yield from (inner for inner in block["content"] if isinstance(inner, dict))


def is_server_result(block: Block) -> bool:
    return str(block.get("type", "")).endswith("_tool_result")


def block_faults(at: int, message: Block, tools: set[Any], registry: SignatureRegistry | None) -> Iterator[str]:
    """Objections to the blocks of message number `at`; `tools` are the names a reference may point to."""
    role, blocks = message["role"], blocks_of(message)
    if not blocks:
        yield from _empty(at, message)
    elif all(block.get("type") == "text" and _is_blank(block) for block in blocks):
        yield f"messages.{at}: text content blocks must contain non-whitespace text"
    for spot, block in enumerate(blocks):
        place = f"messages.{at}.content.{spot}"
        kind = block.get("type")
        if not _may_stand(role, kind):
            yield _place_fault(at, place, role, kind)
            continue
        yield from _faults_of(place, block, tools, registry)


def _is_blank(block: Block) -> bool:
    """Whitespace and nothing else. Models do emit such blocks beside calls, and those are accepted back."""
    text = block.get("text")
    return isinstance(text, str) and bool(text) and not text.strip()


def _empty(at: int, message: Block) -> Iterator[str]:
    if message["role"] == "system":
        if not (message["content"] == [] and message.get("output_config")):
            yield f"messages.{at}: system content must contain at least one block"
    else:
        yield (
            f"messages.{at}: all messages must have non-empty content except for the optional final assistant message"
        )


def _may_stand(role: str, kind: object) -> bool:
    if role == "user":
        return kind in USER_TYPES
    if role == "system":
        return kind in SYSTEM_TYPES
    return kind in ASSISTANT_TYPES or str(kind).endswith("_tool_result")


def _place_fault(at: int, place: str, role: str, kind: object) -> str:
    if role == "system":
        return f"messages.{at}: role 'system' supports text, tool_addition, and tool_removal blocks only"
    if kind in USER_TYPES | ASSISTANT_TYPES:
        other = "user" if role == "assistant" else "assistant"
        return f"messages.{at}: `{kind}` blocks can only be in `{other}` messages"
    return f"{place}: Input tag '{kind}' found using 'type' does not match any of the expected tags"


def _faults_of(place: str, block: Block, tools: set[Any], registry: SignatureRegistry | None) -> Iterator[str]:
    kind = str(block.get("type"))
    for key in sorted(set(block) - KEYS.get(kind, set(block))):
        yield f"{place}.{kind}.{key}: Extra inputs are not permitted"
    if kind == "text":
        yield from _text(place, block)
    elif kind in {"thinking", "redacted_thinking"}:
        yield from _thinking(place, block, registry)
    elif kind in {"tool_use", "server_tool_use", "mcp_tool_use"}:
        yield from _call(place, block)
    elif kind == "tool_result":
        yield from _result(place, block, tools)
    elif kind in {"image", "document"}:
        fault = media.source_fault(block)
        if fault:
            yield f"{place}.{kind}.{fault}"


def _text(place: str, block: Block) -> Iterator[str]:
    text = block.get("text")
    if not isinstance(text, str):
        yield f"{place}.text.text: Input should be a valid string"
    elif not text:
        yield f"{place}: text content blocks must be non-empty"


def _thinking(place: str, block: Block, registry: SignatureRegistry | None) -> Iterator[str]:
    if block["type"] == "redacted_thinking":
        data = block.get("data")
        if not isinstance(data, str) or not data:
            yield f"{place}.redacted_thinking.data: Field required"
        return
    signature, text = block.get("signature"), block.get("thinking")
    if not isinstance(text, str):
        yield f"{place}.thinking.thinking: Field required"
    elif not isinstance(signature, str) or not signature:
        yield f"{place}.thinking.signature: Field required"
    elif registry and registry.thinking_fault(signature, text):
        yield (
            f"{place}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. "
            "These blocks must remain as they were in the original response."
            if signature in registry.thinking
            else f"{place}: Invalid `signature` in `thinking` block"
        )


def _call(place: str, block: Block) -> Iterator[str]:
    kind = block["type"]
    if not isinstance(block.get("id"), str) or not _CALL_ID.fullmatch(block["id"]):
        yield f"{place}.{kind}.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
    if not isinstance(block.get("name"), str) or not block["name"]:
        yield f"{place}.{kind}.name: String should have at least 1 character"
    if not isinstance(block.get("input"), dict):
        yield f"{place}.{kind}.input: Input should be a valid dictionary"


def _result(place: str, block: Block, tools: set[Any]) -> Iterator[str]:
    if not isinstance(block.get("tool_use_id"), str) or not block["tool_use_id"]:
        yield f"{place}.tool_result.tool_use_id: Field required"
    content = block.get("content")
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        yield f"{place}.tool_result.content: Input should be a valid list"
        return
    for spot, inner in enumerate(content):
        yield from _inside(f"{place}.tool_result.content.{spot}", inner, tools)


def _inside(place: str, inner: Any, tools: set[Any]) -> Iterator[str]:
    kind = inner.get("type") if isinstance(inner, dict) else inner
    if kind not in RESULT_TYPES:
        yield f"{place}: Input tag '{kind}' found using 'type' does not match any of the expected tags"
    elif kind == "text":
        if not isinstance(inner.get("text"), str) or not inner["text"]:
            yield f"{place}: text content blocks must be non-empty"
    elif kind == "tool_reference":
        if inner.get("tool_name") not in tools:
            yield f"{place}: Tool reference '{inner.get('tool_name')}' not found in available tools"
    elif kind in {"image", "document"} and media.source_fault(inner):
        yield f"{place}.{kind}.{media.source_fault(inner)}"
