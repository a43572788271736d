"""Responses: one flat list of items; a model output is a run of reasoning, messages and calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from openmem_hook.formats import blocks
from openmem_hook.formats.typed import classify
from openmem_hook.model import Format, Part, Raw, Role

name: Format = "responses"
call_types = frozenset({"responses", "aresponses", "pass_through_endpoint"})
messages_key = "input"
references_define = True  # the output of a tool search holds the definitions

_ROLES: Mapping[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXT = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_MEDIA = {
    "input_image": "image",
    "input_file": "document",
    "input_audio": "audio",
    "computer_screenshot": "image",
}
_COMPACTION = ("compaction", "compaction_summary", "context_compaction")

_CALLS = {
    "function_call": "function",
    "custom_tool_call": "custom",
    "local_shell_call": "local_shell",
    "shell_call": "shell",
    "apply_patch_call": "apply_patch",
    "computer_call": "computer",
    "tool_search_call": "tool_search",
}
_RESULTS = {f"{call}_output": family for call, family in _CALLS.items()} | {"tool_search_output": "tool_search"}
_SERVER = (
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
)
_PREFIX = ("additional_tools",)


def matches(body: Mapping[str, Any], named: bool) -> bool:  # noqa: ARG001 - the shape is the same everywhere
    """A list of items or one string; token ids, as embeddings send them, are neither. A request that only adds
    to what the provider keeps is not ours to edit: it shows no history."""
    if body.get("previous_response_id") or body.get("conversation"):
        return False
    given = body.get("input")
    if isinstance(given, str):
        return bool(given) and "messages" not in body
    return (
        isinstance(given, list) and bool(given) and all(isinstance(i, dict) for i in given) and "messages" not in body
    )


def lead_of(messages: Sequence[Raw]) -> int:
    """Leading developer messages and items that are no conversation; they are never trimmed."""
    count = 0
    for raw in messages:
        if not isinstance(raw, dict) or not (raw.get("role") in ("system", "developer") or raw.get("type") in _PREFIX):
            break
        count += 1
    return count


def role_of(raw: Raw) -> Role:
    if isinstance(raw, str):
        return "user"
    kind = _kind(raw) if isinstance(raw, dict) else None
    if kind in (None, "message"):
        return _ROLES.get(str(raw.get("role")), "unknown") if isinstance(raw, dict) else "unknown"
    if kind == "reasoning" or kind in _CALLS or kind in _SERVER or kind in _COMPACTION or _searched(raw):
        return "assistant"
    return "tool" if kind in _RESULTS else "unknown"


def _kind(raw: Mapping[str, Any]) -> str | None:
    """The item's type, None where it says none; whatever is no name is a type that nobody knows."""
    kind = raw.get("type")
    return kind if kind is None or isinstance(kind, str) else ""


def _searched(raw: Mapping[str, Any]) -> bool:
    """A tool search that the provider ran: its output is part of the model's own."""
    return raw.get("type") == "tool_search_output" and not raw.get("call_id")


def parts_of(raw: Raw) -> list[Part]:
    if isinstance(raw, str):
        return [blocks.text_part(raw, classify(raw), 0)]
    if not isinstance(raw, dict):
        return [blocks.opaque_part(raw, 0)]
    kind = _kind(raw)
    if kind in (None, "message"):
        role = role_of(raw)
        return [_part(b, i, role) for i, b in enumerate(blocks.blocks_of(raw.get("content"), "input_text"))]
    if kind in _CALLS:
        return [_call(raw, str(kind))]
    if kind in _RESULTS:
        inner = [_part(b, i, "tool") for i, b in enumerate(_output(raw))]
        result = blocks.result_part(_RESULTS[str(kind)], raw.get("call_id") or raw.get("id"), inner, 0)
        return [replace(result, references=tuple(_names(raw.get("tools"))))]
    return [_item(raw, str(kind))]


def _names(tools: Any) -> Iterator[str]:
    """Names of the tools that an output defines, those of a namespace too."""
    for tool in tools if isinstance(tools, list) else []:
        if isinstance(tool, dict):
            yield blocks.string_id(tool.get("name"))
            yield from _names(tool.get("tools"))


def _output(raw: Raw) -> list[Any]:
    output = raw.get("output", raw.get("tools"))
    if isinstance(output, dict):
        return [output] if output.get("type") in _MEDIA else blocks.blocks_of(blocks.as_json(output), "input_text")
    return blocks.blocks_of(output, "input_text")


def _part(block: Any, index: int, role: Role) -> Part:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind in _TEXT:
        text = blocks.text_of(block)
        return blocks.text_part(text, blocks.kind_of_text(text, role), index)
    if kind == "refusal":
        return blocks.text_part(blocks.string_id(block.get("refusal")), "text", index)
    if isinstance(kind, str) and kind in _MEDIA:
        return blocks.media_part(block, index, _MEDIA[kind])
    return blocks.opaque_part(block, index)


def _call(raw: Raw, kind: str) -> Part:
    given = next((raw[key] for key in ("arguments", "input", "action", "operation") if key in raw), None)
    label = raw.get("name") or _CALLS[kind]
    return blocks.call_part(_CALLS[kind], raw.get("call_id") or raw.get("id"), label, given, 0)


def _item(raw: Raw, kind: str) -> Part:
    if kind == "reasoning":
        told = [*blocks.blocks_of(raw.get("summary")), *blocks.blocks_of(raw.get("content"))]
        sealed = raw.get("encrypted_content")
        return Part(
            "thinking", "\n".join(t for t in map(blocks.text_of, told) if t), signature=blocks.string_id(sealed)
        )
    if kind in _COMPACTION:
        return blocks.opaque_part(raw, 0, "compaction")
    known = kind in _SERVER
    return blocks.opaque_part({k: v for k, v in raw.items() if k != "id"}, 0, "server" if known else "opaque")


def system_of(body: Mapping[str, Any]) -> Any:
    return body.get("instructions")


def must_start_with_thinking(body: Mapping[str, Any]) -> bool:  # noqa: ARG001 - reasoning runs are kept whole anyway
    return False


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in _TEXT


def shorten_result(raw: Raw, index: int, text: str) -> Raw:  # noqa: ARG001 - an item is one result
    output = raw.get("output")
    return {**raw, "output": blocks.replaced_text(output, text, _is_text)}


def freeze_message(raw: Raw, keep_thinking: bool) -> Raw | None:  # noqa: ARG001 - an output is kept with its reasoning run
    return raw


def with_pointer(raw: Raw, text: str) -> Raw:
    if isinstance(raw, str):
        return {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": f"{text}\n\n{raw}"}],
        }
    content = raw.get("content")
    if isinstance(content, list):
        return {**raw, "content": [{"type": "input_text", "text": text}, *content]}
    return {**raw, "content": f"{text}\n\n{content}" if isinstance(content, str) and content else text}


def with_note(body: dict[str, Any], messages: list[Raw], note: str) -> dict[str, Any]:
    """The note at the end of `instructions`, else of the first developer message, else as instructions."""
    given = body.get("instructions")
    if isinstance(given, str) and given:
        told = given if note in given else f"{given}\n\n{note}"
        return with_messages({**body, "instructions": told}, messages)
    if given:
        return with_messages(body, messages)
    at = next((i for i in range(lead_of(messages)) if role_of(messages[i]) == "system"), None)
    if at is None:
        return with_messages({**body, "instructions": note}, messages)
    return with_messages(body, [*messages[:at], blocks.noted(messages[at], note, "input_text"), *messages[at + 1 :]])


def with_messages(body: dict[str, Any], messages: list[Raw]) -> dict[str, Any]:
    """A bare string stays one where nothing was put around it."""
    given = body.get("input")
    same = isinstance(given, str) and len(messages) == 1 and messages[0] is given
    return {**body, "input": given if same else messages}


def with_marker(before: Sequence[Raw], after: list[Raw]) -> list[Raw]:  # noqa: ARG001 - this API has no breakpoints
    return after
