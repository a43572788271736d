"""Responses: one flat list of items; a model output is a run of reasoning, messages and calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from openmem_hook.formats import blocks
from openmem_hook.model import CallFamily, Format, MediaKind, Part, Raw, Role

# --- Reader -----------------------------------------------------------------------------------------------

name: Format = "responses"
call_types = frozenset({"responses", "aresponses", "pass_through_endpoint"})
messages_key = "input"
references_define = True  # the output of a tool search holds the definitions

_ROLES: Mapping[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_LEADING_ITEMS = ("additional_tools",)
"""Types of items that are no conversation and belong to the prompt."""

_TEXT = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_MEDIA: Mapping[str, MediaKind] = {
    "input_image": "image",
    "computer_screenshot": "image",
    "input_file": "document",
    "input_audio": "audio",
}
_CALLS: Mapping[str, CallFamily] = {
    "function_call": "function",
    "custom_tool_call": "custom",
    "local_shell_call": "local_shell",
    "shell_call": "shell",
    "apply_patch_call": "apply_patch",
    "computer_call": "computer",
    "tool_search_call": "tool_search",
}
_RESULTS: Mapping[str, CallFamily] = {
    **{f"{call}_output": family for call, family in _CALLS.items()},
    "tool_search_output": "tool_search",
}
_SERVER = (
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
)
"""Items of tools that the provider runs: they need no output."""
_COMPACTION = ("compaction", "compaction_summary", "context_compaction")
_MODEL_OUTPUT = frozenset(("reasoning", *_CALLS, *_SERVER, *_COMPACTION))
"""Types of items that a model wrote, messages aside."""
_ARGUMENTS = ("arguments", "input", "action", "operation")
"""Keys of what a call does, one for each family; the first that is there counts."""


def matches(body: Mapping[str, Any], is_declared: bool) -> bool:  # noqa: ARG001 - the shape is the same everywhere
    """A list of items or one string; token ids, as embeddings send them, are neither. A request that only adds
    to what the provider keeps is not ours to edit: it shows no history."""
    if body.get("previous_response_id") or body.get("conversation") or "messages" in body:
        return False
    items = body.get("input")
    return bool(items) if isinstance(items, str) else blocks.are_messages(items)


def lead_of(messages: Sequence[Raw]) -> int:
    return blocks.count_leading(messages, ("system", "developer"), _LEADING_ITEMS)


def role_of(raw: Raw) -> Role:
    if not isinstance(raw, dict):
        return "user" if isinstance(raw, str) else "unknown"
    item_type = _item_type(raw)
    if item_type == "message":
        return blocks.role_from(raw, _ROLES)
    if item_type in _RESULTS:
        return "assistant" if _is_provider_search(raw) else "tool"
    return "assistant" if item_type in _MODEL_OUTPUT else "unknown"


def _item_type(raw: Mapping[str, Any]) -> str:
    """An item that names no type is a message; whatever is no name is a type that nobody knows."""
    return "message" if raw.get("type") is None else blocks.type_of(raw)


def _is_provider_search(raw: Mapping[str, Any]) -> bool:
    """Whether the provider ran this tool search: then its output is part of the model's own."""
    return raw.get("type") == "tool_search_output" and not raw.get("call_id")


def parts_of(raw: Raw) -> list[Part]:
    if isinstance(raw, str):
        return [blocks.text_part(raw, "user", 0)]
    if not isinstance(raw, dict):
        return [blocks.opaque_part(raw, 0)]
    item_type = _item_type(raw)
    if item_type == "message":
        role, content = role_of(raw), blocks.blocks_of(raw.get("content"), "input_text")
        return [_part(block, i, role) for i, block in enumerate(content)]
    if item_type in _CALLS:
        family = _CALLS[item_type]
        arguments = next((raw[key] for key in _ARGUMENTS if key in raw), None)
        return [blocks.call_part(family, _call_id(raw), raw.get("name") or family, arguments, 0)]
    if item_type in _RESULTS:
        inner = [_part(block, i, "tool") for i, block in enumerate(_output_blocks(raw))]
        result = blocks.result_part(_RESULTS[item_type], _call_id(raw), inner, 0)
        return [replace(result, references=tuple(_tool_names(raw.get("tools"))))]
    return [_other_part(raw, item_type)]


def _part(block: Any, index: int, role: Role) -> Part:
    """A block of a message's content or of an output."""
    block_type = blocks.type_of(block)
    if _is_text(block):
        return blocks.text_part(blocks.text_of(block), role, index)
    if block_type == "refusal":
        return blocks.refusal_part(block, index)
    if block_type in _MEDIA:
        return blocks.media_part(block, index, _MEDIA[block_type])
    return blocks.opaque_part(block, index)


def _is_text(block: Any) -> bool:
    return blocks.type_of(block) in _TEXT


def _call_id(raw: Mapping[str, Any]) -> Any:
    return raw.get("call_id") or raw.get("id")


def _output_blocks(raw: Mapping[str, Any]) -> list[Any]:
    """An output that is one picture is a list of it; any other object is searched as its JSON."""
    output = raw.get("output", raw.get("tools"))
    if isinstance(output, dict):
        output = [output] if blocks.type_of(output) in _MEDIA else blocks.json_text(output)
    return blocks.blocks_of(output, "input_text")


def _tool_names(tools: Any) -> Iterator[str]:
    """Names of the tools that an output defines, those of a namespace too."""
    for tool in tools if isinstance(tools, list) else []:
        if isinstance(tool, dict):
            yield blocks.string_or_empty(tool.get("name"))
            yield from _tool_names(tool.get("tools"))


def _other_part(raw: Mapping[str, Any], item_type: str) -> Part:
    """An item that is neither message nor call nor result. An id says nothing: clients drop it when they resend."""
    if item_type == "reasoning":
        texts = map(blocks.text_of, [*blocks.blocks_of(raw.get("summary")), *blocks.blocks_of(raw.get("content"))])
        return blocks.thinking_part("\n".join(filter(None, texts)), raw.get("encrypted_content"))
    if item_type in _COMPACTION:
        return blocks.opaque_part(raw, 0, "compaction")
    without_id = {key: value for key, value in raw.items() if key != "id"}
    return blocks.opaque_part(without_id, 0, "server" if item_type in _SERVER else "opaque")


def system_of(body: Mapping[str, Any]) -> Any:
    return body.get("instructions")


def must_start_with_thinking(body: Mapping[str, Any]) -> bool:  # noqa: ARG001 - reasoning runs are kept whole anyway
    return False


# --- Editor -----------------------------------------------------------------------------------------------


def shorten_result(raw: Raw, index: int, text: str) -> Raw:  # noqa: ARG001 - an item is one result
    return {**raw, "output": blocks.replace_text(raw.get("output"), text, _is_text)}


def freeze_message(raw: Raw, keep_thinking: bool) -> Raw | None:  # noqa: ARG001 - an output is kept with its reasoning run
    return raw


def with_pointer(raw: Raw, text: str) -> Raw:
    """An input that was one bare string becomes a message of one text block."""
    if isinstance(raw, str):
        content = [{"type": "input_text", "text": f"{text}\n\n{raw}"}]
        return {"type": "message", "role": "user", "content": content}
    return {**raw, "content": blocks.put_text_before(raw.get("content"), text, "input_text")}


# --- Finisher ---------------------------------------------------------------------------------------------


def with_note(body: dict[str, Any], messages: list[Raw], note: str) -> dict[str, Any]:
    """The note ends `instructions`, else the first developer message; without either it becomes `instructions`."""
    instructions = body.get("instructions")
    lead = range(lead_of(messages))
    at = None if instructions else next((i for i in lead if role_of(messages[i]) == "system"), None)
    if at is not None:
        system = messages[at]
        system = {**system, "content": blocks.put_text_after(system.get("content"), note, "input_text")}
        return with_messages(body, [*messages[:at], system, *messages[at + 1 :]])
    if not instructions or isinstance(instructions, str):  # anything else is for the provider to refuse
        body = {**body, "instructions": blocks.put_text_after(instructions or "", note, "input_text")}
    return with_messages(body, messages)


def with_messages(body: dict[str, Any], messages: list[Raw]) -> dict[str, Any]:
    """An input that was one bare string stays one where nothing was put around it."""
    text = body.get("input")
    is_same = isinstance(text, str) and len(messages) == 1 and messages[0] is text
    return {**body, "input": text if is_same else messages}


def with_marker(before: Sequence[Raw], after: list[Raw]) -> list[Raw]:  # noqa: ARG001 - this API has no breakpoints
    return after
