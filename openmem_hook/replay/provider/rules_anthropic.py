"""The Messages API as a strict reader, in the provider's own words.

`check` returns every objection it finds (the real provider stops at the first). Rules run over the whole body
in a visible tuple; each rule yields messages. What single blocks may look like is in `blocks_anthropic`.
Stricter than the measured provider in two places, on purpose: the first message must be user, and two system
messages may not follow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson

from openmem_hook.replay.provider import media
from openmem_hook.replay.provider.blocks_anthropic import block_faults, blocks_of, inner_blocks, is_server_result
from openmem_hook.replay.provider.breakpoints import breakpoint_faults
from openmem_hook.replay.provider.pairs_anthropic import server_pairs, tool_pairs
from openmem_hook.replay.provider.signatures import SignatureRegistry

BODY_LIMIT = 32 * 1024 * 1024
TOO_LARGE = "Request exceeds the maximum size"

Body = dict[str, Any]
Rule = Callable[[Body, SignatureRegistry | None], Iterator[str]]

TOP_LEVEL = frozenset({
    "model", "messages", "max_tokens", "system", "metadata", "stop_sequences", "stream", "temperature",
    "top_k", "top_p", "tools", "tool_choice", "thinking", "service_tier", "container",
    "context_management", "mcp_servers", "output_config", "output_format", "cache_control",
    "inference_geo", "speed",
})  # fmt: skip
MESSAGE_KEYS = {"user": {"role", "content"}, "assistant": {"role", "content"},
                "system": {"role", "content", "output_config", "clear_at"}}  # fmt: skip
ANY_POSITION = "the directive-only form (content: [] with output_config) is accepted at any position"


def check(body: Body, registry: SignatureRegistry | None = None) -> list[str]:
    """Every objection to a request body; an empty list means accepted."""
    shape = [*_top_level(body)]
    if shape:
        return shape
    return [fault for rule in RULES for fault in rule(body, registry)]


def _top_level(body: Body) -> Iterator[str]:
    for key in sorted(set(body) - TOP_LEVEL):
        yield f"{key}: Extra inputs are not permitted"
    for key in ("model", "max_tokens", "messages"):
        if key not in body:
            yield f"{key}: Field required"
    messages = body.get("messages")
    if not isinstance(messages, list):
        yield "messages: Input should be a valid list"
        return
    if not messages:
        yield "messages: at least one message is required"
    for at, message in enumerate(messages):
        yield from _message_shape(at, message)


def _message_shape(at: int, message: Any) -> Iterator[str]:
    if not isinstance(message, dict):
        yield f"messages.{at}: Input should be a valid dictionary"
    elif message.get("role") not in MESSAGE_KEYS:
        yield f"messages.{at}.role: Input should be 'user', 'assistant' or 'system'"
    elif not isinstance(message.get("content"), str | list):
        yield f"messages.{at}.content: Input should be a valid list"
    elif any(not isinstance(block, dict) for block in blocks_of(message)):
        yield f"messages.{at}.content: Input should be a valid dictionary"


def _sizes(body: Body, registry: SignatureRegistry | None) -> Iterator[str]:
    if len(orjson.dumps(body)) > BODY_LIMIT:
        yield TOO_LARGE
    blocks = [b for m in body["messages"] for b in inner_blocks(m) if b.get("type") in {"image", "document"}]
    if len(blocks) > media.MEDIA_LIMIT:
        yield f"messages: Too many images and documents: {len(blocks)} > {media.MEDIA_LIMIT}"
    if len(blocks) > media.MANY_MEDIA and any(media.side_of(b) > media.MANY_MEDIA_PIXELS for b in blocks):
        yield (
            "messages: At least one of the image dimensions exceed max allowed size for many-image requests: 2000 "
            "pixels"
        )


def _settings(body: Body, registry: SignatureRegistry | None) -> Iterator[str]:
    metadata = body.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        yield "metadata: Input should be a valid dictionary"
    elif metadata:
        for key in sorted(set(metadata) - {"user_id"}):
            yield f"metadata.{key}: Extra inputs are not permitted"
    if not isinstance(body["max_tokens"], int) or body["max_tokens"] < 1:
        yield "max_tokens: Input should be greater than or equal to 1"
    thinking = body.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") == "enabled":
        budget = thinking.get("budget_tokens")
        if not isinstance(budget, int) or budget < 1024:
            yield "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
        elif isinstance(body["max_tokens"], int) and body["max_tokens"] <= budget:
            yield "`max_tokens` must be greater than `thinking.budget_tokens`."


def _tools(body: Body, registry: SignatureRegistry | None) -> Iterator[str]:
    tools = body.get("tools")
    if tools is None:
        return
    if not isinstance(tools, list) or any(not isinstance(tool, dict) for tool in tools):
        yield "tools: Input should be a valid list"
        return
    names = [tool.get("name") for tool in tools if tool.get("type") != "mcp_toolset"]
    if len(names) != len(set(names)):
        yield "tools: Tool names must be unique."
    for at, tool in enumerate(tools):
        if tool.get("type", "custom") != "custom":
            continue
        if not isinstance(tool.get("name"), str) or not tool["name"]:
            yield f"tools.{at}.custom.name: Field required"
        if not isinstance(tool.get("input_schema"), dict):
            yield f"tools.{at}.custom.input_schema: Field required"


def _system_prompt(body: Body, registry: SignatureRegistry | None) -> Iterator[str]:
    system = body.get("system")
    if system is None or isinstance(system, str):
        return
    if not isinstance(system, list):
        yield "system: Input should be a valid list"
        return
    for at, block in enumerate(system):
        if not isinstance(block, dict) or block.get("type") != "text":
            yield f"system.{at}: Input should be a text block"
        elif not str(block.get("text", "")).strip():
            yield "system: text content blocks must be non-empty"


def _order_of_roles(body: Body, registry: SignatureRegistry | None) -> Iterator[str]:
    messages = body["messages"]
    if messages[0]["role"] == "assistant":
        yield 'messages: first message must use the "user" role'
    for at, message in enumerate(messages):
        extra = set(message) - MESSAGE_KEYS[message["role"]]
        for key in sorted(extra):
            yield f"messages.{at}.{key}: Extra inputs are not permitted"
        directive = message["content"] == [] and message.get("output_config")
        if message["role"] == "system" and not directive:
            yield from _system_place(messages, at)


def _system_place(messages: list[Body], at: int) -> Iterator[str]:
    if at == 0:
        yield (f"messages.0: use the top-level 'system' parameter for the initial system prompt; {ANY_POSITION}")
        return
    before = messages[at - 1]
    tail = blocks_of(before)
    server_end = (
        before["role"] == "assistant"
        and bool(tail)
        and (is_server_result(tail[-1]) or tail[-1].get("type") == "server_tool_use")
    )
    if before["role"] != "user" and not server_end:
        yield (
            f"messages.{at}: role 'system' must follow a 'user' message or an 'assistant' message ending in a server "
            f"tool result; {ANY_POSITION}"
        )
    if at + 1 < len(messages) and messages[at + 1]["role"] != "assistant":
        yield (f"messages.{at}: role 'system' must precede an 'assistant' message or end the array; {ANY_POSITION}")


def _contents(body: Body, registry: SignatureRegistry | None) -> Iterator[str]:
    tools = body.get("tools") or []
    names = {tool.get("name") for tool in tools if isinstance(tool, dict)}
    for at, message in enumerate(body["messages"]):
        yield from block_faults(at, message, names, registry)


def _thinking_leads(body: Body, registry: SignatureRegistry | None) -> Iterator[str]:
    """With thinking `enabled`, the running turn has to open with thinking, and so has a prefilled answer."""
    messages = body["messages"]
    thinking = body.get("thinking")
    if not isinstance(thinking, dict) or thinking.get("type") != "enabled":
        return
    at = _turn_opener(messages)
    if at is None:
        return
    first = (blocks_of(messages[at]) or [{}])[0].get("type")
    if first not in {"thinking", "redacted_thinking"}:
        yield (
            f"messages.{at}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{first}`. When "
            "`thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the "
            "lastmost set of `tool_use` and `tool_result` blocks). We recommend you include thinking blocks from "
            "previous turns. To avoid this requirement, disable `thinking`."
        )


def _turn_opener(messages: list[Body]) -> int | None:
    """Index of the first assistant message of a turn that still runs; None when a new turn begins.

    A user message with any tool result goes on with the turn it stands in, typed text beside it or not.
    """
    opener = None
    for at in range(len(messages) - 1, -1, -1):
        role, blocks = messages[at]["role"], blocks_of(messages[at])
        if role == "assistant":
            opener = at
        elif role == "user" and not any(b.get("type") == "tool_result" for b in blocks):
            break
    return opener


def _ending(body: Body, registry: SignatureRegistry | None) -> Iterator[str]:
    last = body["messages"][-1]
    blocks = blocks_of(last)
    if last["role"] != "assistant" or not blocks:
        return
    if blocks[-1].get("type") in {"thinking", "redacted_thinking"}:
        yield (f"messages.{len(body['messages']) - 1}: The final block in an assistant message cannot be `thinking`.")
    text = blocks[-1].get("text") if blocks[-1].get("type") == "text" else None
    if isinstance(text, str) and text != text.rstrip():
        yield "messages: final assistant content cannot end with trailing whitespace"


RULES: tuple[Rule, ...] = (
    _sizes,
    _settings,
    _tools,
    _system_prompt,
    _order_of_roles,
    _contents,
    tool_pairs,
    server_pairs,
    _thinking_leads,
    _ending,
    breakpoint_faults,
)
