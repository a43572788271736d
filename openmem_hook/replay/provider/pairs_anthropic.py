"""Calls and results of the Messages API: the client's own tools answer next, server tools in place.

System messages stand outside: they may come between nothing that belongs together, which is their own rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openmem_hook.replay.provider.blocks_anthropic import blocks_of, is_server_result
from openmem_hook.replay.provider.signatures import SignatureRegistry

Body = dict[str, Any]


def tool_pairs(body: Body, registry: SignatureRegistry | None) -> Iterator[str]:
    """Objections to calls and results of the client's own tools: the next message answers each call, once."""
    messages = [(at, m) for at, m in enumerate(body["messages"]) if m["role"] != "system"]
    ids: set[str] = set()
    for spot, (at, message) in enumerate(messages):
        blocks = blocks_of(message)
        calls = [str(b.get("id")) for b in blocks if b.get("type") == "tool_use"]
        for call in calls:
            if call in ids:
                yield f"messages.{at}.content: `tool_use` ids must be unique"
            ids.add(call)
        if message["role"] == "user":
            previous = blocks_of(messages[spot - 1][1]) if spot else []
            yield from _results(at, blocks, previous)
        if calls:
            following = messages[spot + 1][1] if spot + 1 < len(messages) else None
            yield from _missing_results(at, calls, following)


def _missing_results(at: int, calls: list[str], following: Body | None) -> Iterator[str]:
    answers: set[str] = set()
    if following is not None and following["role"] == "user":
        for block in blocks_of(following):
            if block.get("type") != "tool_result":
                break
            answers.add(str(block.get("tool_use_id")))
    missing = [call for call in calls if call not in answers]
    if missing:
        yield (
            f"messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the next "
            "message."
        )


def _results(at: int, blocks: list[Body], previous: list[Body]) -> Iterator[str]:
    calls = {str(b.get("id")) for b in previous if b.get("type") == "tool_use"}
    answers: set[str] = set()
    for spot, block in enumerate(blocks):
        if block.get("type") != "tool_result":
            continue
        call = str(block.get("tool_use_id"))
        if call in answers:
            yield (
                f"messages.{at}.content.{spot}: each tool_use must have a single result. Found multiple "
                f"`tool_result` blocks with id: {call}"
            )
        elif call not in calls:
            yield (
                f"messages.{at}.content.{spot}: unexpected `tool_use_id` found in `tool_result` blocks: {call}. "
                "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        answers.add(call)


def server_pairs(body: Body, registry: SignatureRegistry | None) -> Iterator[str]:
    """Objections to calls that the provider runs itself: their result stands in the same message, after the call."""
    messages = body["messages"]
    for at, message in enumerate(messages):
        blocks = blocks_of(message) if message["role"] == "assistant" else []
        results = {str(b.get("tool_use_id")): str(b.get("type")) for b in blocks if is_server_result(b)}
        calls: set[str] = set()
        for spot, block in enumerate(blocks):
            if block.get("type") in {"server_tool_use", "mcp_tool_use"}:
                result_type = _result_type(block)
                calls.add(str(block.get("id")))
                last = at == len(messages) - 1 and spot == len(blocks) - 1
                if results.get(str(block.get("id"))) != result_type and not last:
                    yield (
                        f"messages.{at}: `{block.get('name')}` tool use with id `{block.get('id')}` was found "
                        f"without a corresponding `{result_type}` block"
                    )
            elif is_server_result(block) and str(block.get("tool_use_id")) not in calls:
                yield (
                    f"messages.{at}.content.{spot}: unexpected `tool_use_id` found in `{block.get('type')}` blocks: "
                    f"{block.get('tool_use_id')}. Each `{block.get('type')}` block must have a corresponding "
                    "`server_tool_use` block before it."
                )


def _result_type(block: Body) -> str:
    """The only result type that answers this provider-run call."""
    name = str(block.get("name", ""))
    if block.get("type") == "mcp_tool_use":
        return "mcp_tool_result"
    if name.startswith("tool_search_tool"):
        return "tool_search_tool_result"
    return f"{name}_tool_result"
