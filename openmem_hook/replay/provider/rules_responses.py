"""The Responses API as a strict reader, in the provider's own words.

Families: an output answers only a call of its own family, so the same id in another family is an orphan. Item
types the table doesn't know pass unjudged, because new ones appear every few months.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson

from openmem_hook.replay.provider import media
from openmem_hook.replay.provider.signatures import SignatureRegistry

BODY_LIMIT = 32 * 1024 * 1024
TOO_LARGE = "Request body too large"

Body = dict[str, Any]
Rule = Callable[[Body, SignatureRegistry | None], Iterator[str]]

TOP_LEVEL = frozenset({
    "model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "stream",
    "stream_options", "temperature", "top_p", "top_logprobs", "max_output_tokens", "max_tool_calls",
    "metadata", "store", "include", "reasoning", "text", "truncation", "previous_response_id",
    "conversation", "prompt", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
    "service_tier", "user", "background", "context_management", "client_metadata",
})  # fmt: skip
FAMILIES = {
    "function_call": "function call",
    "custom_tool_call": "custom tool call",
    "local_shell_call": "local shell call",
    "shell_call": "shell call",
    "apply_patch_call": "apply patch call",
    "computer_call": "computer call",
    "tool_search_call": "tool search call",
}
OUTPUT_OF = {f"{call}_output": call for call in FAMILIES} | {"tool_search_output": "tool_search_call"}
OUTPUT_OF.pop("tool_search_call_output")
SERVER_RUN = frozenset({
    "web_search_call", "image_generation_call", "file_search_call", "code_interpreter_call", "mcp_call",
    "mcp_list_tools", "mcp_approval_request",
})  # fmt: skip
MODEL_ITEMS = frozenset(FAMILIES) | SERVER_RUN
ROLES = frozenset({"user", "assistant", "system", "developer"})
PARTS = {
    "assistant": {"output_text", "refusal"},
    "user": {"input_text", "input_image", "input_file", "input_audio"},
}
PARTS["system"] = PARTS["developer"] = PARTS["user"]


def check(body: Body, registry: SignatureRegistry | None = None) -> list[str]:
    """Every objection to a request body; an empty list means accepted."""
    shape = [*_top_level(body)]
    if shape:
        return shape
    return [fault for rule in RULES for fault in rule(body, registry)]


def items_of(body: Body) -> list[Body]:
    """The input as items; a plain string is one user message."""
    items = body.get("input")
    if isinstance(items, str):
        return [{"type": "message", "role": "user", "content": items}]
    return [item for item in items or [] if isinstance(item, dict)]


def kind_of(item: Body) -> str:
    """The item's type; messages may leave it out."""
    return str(item.get("type") or ("message" if "role" in item else ""))


def call_id_of(item: Body) -> str:
    """The id that pairs a call with its output. A local shell output may carry it as its own `id`."""
    call_id = item.get("call_id")
    if not call_id and kind_of(item) == "local_shell_call_output":
        call_id = item.get("id")
    return str(call_id or "")


def _top_level(body: Body) -> Iterator[str]:
    for key in sorted(set(body) - TOP_LEVEL):
        yield f"Unknown parameter: '{key}'."
    if "model" not in body:
        yield "Missing required parameter: 'model'."
    items = body.get("input")
    has_context = body.get("previous_response_id") or body.get("conversation") or body.get("prompt")
    if not items and not has_context:
        yield "Missing required parameter: 'input'."
    elif items is not None and not isinstance(items, str | list):
        yield "Invalid type for 'input': expected one of a string or array of objects."
    elif isinstance(items, list) and any(not isinstance(item, dict) for item in items):
        yield "Invalid type for 'input': expected an array of objects."


def _sizes(body: Body, registry: SignatureRegistry | None) -> Iterator[str]:
    if len(orjson.dumps(body)) > BODY_LIMIT:
        yield TOO_LARGE
    parts = (part for item in items_of(body) for part in parts_of(item))
    pictures = sum(1 for part in parts if part.get("type") == "input_image")
    if pictures > media.MEDIA_LIMIT:
        yield f"Too many images in request: {pictures} > {media.MEDIA_LIMIT}"


def _ids(body: Body, registry: SignatureRegistry | None) -> Iterator[str]:
    ids: set[str] = set()
    for item in items_of(body):
        item_id = str(item.get("id") or "")
        if item_id and kind_of(item) != "local_shell_call_output":
            if item_id in ids:
                yield (f"Duplicate item found with id {item_id}. Remove duplicate items from your input and try again.")
            ids.add(item_id)


def _pairs(body: Body, registry: SignatureRegistry | None) -> Iterator[str]:
    has_context = bool(body.get("previous_response_id") or body.get("conversation"))
    has_answer: dict[tuple[str, str], bool] = {}
    for at, item in enumerate(items_of(body)):
        kind, call = kind_of(item), call_id_of(item)
        if kind in FAMILIES:
            if kind == "tool_search_call" and not call:
                continue
            if not call:
                yield f"Missing required parameter: 'input[{at}].call_id'."
            elif (kind, call) in has_answer:
                yield f"Duplicate call_id found in input: {call}."
            has_answer[kind, call] = False
        elif kind in OUTPUT_OF:
            if kind == "tool_search_output" and not call:
                continue
            yield from _answer(at, kind, call, has_answer, has_context)
    for (kind, call), is_done in has_answer.items():
        if not is_done and call:
            yield f"No tool output found for {FAMILIES[kind]} {call}."


def _answer(at: int, kind: str, call: str, has_answer: dict[tuple[str, str], bool], has_context: bool) -> Iterator[str]:
    """Objections to one output; notes that its call has its answer."""
    family = OUTPUT_OF[kind]
    shell = kind == "function_call_output" and ("local_shell_call", call) in has_answer
    if shell and (family, call) not in has_answer:
        family = "local_shell_call"
    if not call:
        yield f"Missing required parameter: 'input[{at}].call_id'."
    elif (family, call) not in has_answer:
        if not has_context:
            yield f"No tool call found for {FAMILIES[family]} output with call_id {call}."
    elif has_answer[family, call]:
        yield f"Multiple tool outputs found for {FAMILIES[family]} {call}."
    else:
        has_answer[family, call] = True


def _reasoning(body: Body, registry: SignatureRegistry | None) -> Iterator[str]:
    items = items_of(body)
    for at, item in enumerate(items):
        if kind_of(item) != "reasoning":
            continue
        name = item.get("id") or f"input[{at}]"
        blob = item.get("encrypted_content")
        if registry and isinstance(blob, str) and registry.cipher_fault(str(item.get("id", "")), blob):
            yield (
                f"The encrypted content for item {name} could not be verified. Reason: Encrypted content could not "
                "be decrypted or parsed."
            )
        follower = next((later for later in items[at + 1 :] if kind_of(later) != "reasoning"), None)
        if follower is None or not _is_model_item(follower) or not _same_response(item, follower, registry):
            yield f"Item '{name}' of type 'reasoning' was provided without its required following item."


def _is_model_item(item: Body) -> bool:
    """Whether a model produced this item. An unknown type gets the benefit of the doubt, outputs don't."""
    kind = kind_of(item)
    if kind == "message":
        return item.get("role") == "assistant"
    return kind in MODEL_ITEMS or (kind not in OUTPUT_OF and not kind.endswith("_output"))


def _same_response(reasoning: Body, follower: Body, registry: SignatureRegistry | None) -> bool:
    if registry is None:
        return True
    one = registry.response_of.get(str(reasoning.get("id", "")))
    other = registry.response_of.get(str(follower.get("id", "")))
    return one is None or other is None or one == other


def _with_reasoning(body: Body, registry: SignatureRegistry | None) -> Iterator[str]:
    """An item that came with reasoning, sent back under its id, needs that reasoning before it."""
    if registry is None or body.get("previous_response_id"):
        return
    present: set[str] = set()
    for item in items_of(body):
        item_id = str(item.get("id") or "")
        reasoning = registry.reasoning_before.get(item_id)
        if reasoning and reasoning not in present:
            yield (
                f"Item '{item_id}' of type '{kind_of(item)}' was provided without its required 'reasoning' item: "
                f"'{reasoning}'."
            )
        blob = str(item.get("encrypted_content") or "")
        present.add(registry.reasoning_id(item_id, blob) if kind_of(item) == "reasoning" else item_id)


def _contents(body: Body, registry: SignatureRegistry | None) -> Iterator[str]:
    for at, item in enumerate(items_of(body)):
        kind = kind_of(item)
        if not kind:
            yield f"Missing required parameter: 'input[{at}].type'."
        elif kind == "message":
            yield from _message(at, item)
        elif kind in {"function_call", "custom_tool_call"}:
            yield from _call(at, item, "arguments" if kind == "function_call" else "input")
        elif kind in {"function_call_output", "custom_tool_call_output"}:
            if not isinstance(item.get("output"), str | list):
                yield f"Missing required parameter: 'input[{at}].output'."
            yield from _parts(at, item, PARTS["user"])
        elif kind == "compaction" and not item.get("encrypted_content"):
            yield f"Missing required parameter: 'input[{at}].encrypted_content'."


def _call(at: int, item: Body, field: str) -> Iterator[str]:
    if not isinstance(item.get(field), str):
        yield f"Invalid type for 'input[{at}].{field}': expected a string, but got an object instead."
    if not item.get("name"):
        yield f"Missing required parameter: 'input[{at}].name'."


def _message(at: int, item: Body) -> Iterator[str]:
    role, content = item.get("role"), item.get("content")
    if role not in ROLES:
        yield (
            f"Invalid value: '{role}'. Supported values are: 'assistant', 'system', 'developer', and 'user'. "
            f"(input[{at}].role)"
        )
    elif content in (None, "", []):
        yield f"Invalid 'input[{at}].content': content must not be empty."
    elif not isinstance(content, str | list):
        yield f"Invalid type for 'input[{at}].content': expected one of a string or array of objects."
    else:
        yield from _parts(at, item, PARTS[str(role)])


def _parts(at: int, item: Body, types: set[str]) -> Iterator[str]:
    for spot, part in enumerate(parts_of(item)):
        place, kind = f"input[{at}].content[{spot}]", part.get("type")
        if kind not in types:
            values = ", ".join(f"'{one}'" for one in sorted(types))
            yield f"Invalid value: '{kind}'. Supported values are: {values}. ({place}.type)"
        elif kind in {"input_text", "output_text"}:
            if not isinstance(part.get("text"), str) or not part["text"]:
                yield f"Invalid '{place}.text': text must be a non-empty string."
        elif kind == "input_image" and not part.get("file_id"):
            fault = media.url_fault(part.get("image_url"))
            if fault:
                yield f"{fault} ({place})"
        elif kind == "input_file" and not (part.get("file_id") or part.get("file_url")):
            fault = media.file_fault(part.get("file_data"))
            if fault:
                yield f"{fault} ({place})"


def parts_of(item: Body) -> list[Body]:
    """Parts of a message's content or of an output."""
    parts = item.get("content") if kind_of(item) == "message" else item.get("output")
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


RULES: tuple[Rule, ...] = (_sizes, _ids, _pairs, _reasoning, _with_reasoning, _contents)
