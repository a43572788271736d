"""Answers of the Responses API: one response, its event stream, its errors and its usage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import orjson

from openmem_hook.replay.provider.counting import count_text
from openmem_hook.replay.provider.prompt_cache import CacheUse
from openmem_hook.replay.provider.signatures import CIPHER_MARK, SignatureRegistry

from .filler import number
from .script import Call, Output
from .wire_anthropic import pieces
from .wire_chat import refusal

Json = dict[str, Any]
Event = tuple[str, Json]
REASONING_CHARS = 600

__all__ = ["broken_stream", "refusal", "render", "stream", "usage"]


def render(output: Output, body: Json, use: CacheUse, serial: str, registry: SignatureRegistry) -> Json:
    """The whole response; what it encrypts and which items belong together is remembered in `registry`."""
    items: list[Json] = []
    if output.thinking is not None:
        items.append(_reasoning(body, serial, registry))
    if output.search:
        action = {"type": "search", "query": output.search}
        items.append({"id": f"ws_{serial}", "type": "web_search_call", "status": "completed", "action": action})
    if output.text:
        part = {"type": "output_text", "text": output.text, "annotations": [], "logprobs": []}
        message = {"id": f"msg_{serial}", "type": "message", "role": "assistant", "status": "completed"}
        items.append({**message, "content": [part]})
    items += [_call(call) for call in output.calls]
    registry.respond(f"resp_{serial}", [item["id"] for item in items])
    made = max(1, count_text(orjson.dumps(items).decode()))
    return {
        "id": f"resp_{serial}", "object": "response", "created_at": int(time.time()), "status": "completed",
        "model": body["model"], "output": items, "usage": usage(use, made), "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"), "metadata": body.get("metadata") or {},
        "parallel_tool_calls": True, "previous_response_id": body.get("previous_response_id"),
        "store": body.get("store", True), "temperature": 1.0, "top_p": 1.0, "tool_choice": "auto",
        "tools": [], "text": {"format": {"type": "text"}}, "truncation": "disabled",
    }  # fmt: skip


def usage(use: CacheUse, made: int) -> Json:
    return {
        "input_tokens": use.total,
        "input_tokens_details": {"cached_tokens": use.read},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": use.total + made,
    }


def stream(response: Json) -> Iterator[Event]:
    """The event sequence of a response, numbered as the provider numbers it."""
    order = count()
    opening = {**response, "status": "in_progress", "output": [], "usage": None}
    yield _event("response.created", order, response=opening)
    yield _event("response.in_progress", order, response=opening)
    for at, item in enumerate(response["output"]):
        yield _event("response.output_item.added", order, output_index=at, item=_empty(item))
        for name, fields in _filling(item):
            yield _event(name, order, output_index=at, item_id=item["id"], **fields)
        yield _event("response.output_item.done", order, output_index=at, item=item)
    yield _event("response.completed", order, response=response)


def broken_stream(message: str) -> Event:
    return "error", {"type": "error", "code": "server_error", "message": message, "param": None}


def _event(name: str, order: Iterator[int], /, **fields: Any) -> Event:
    return name, {"type": name, "sequence_number": next(order), **fields}


def _empty(item: Json) -> Json:
    """An item as it is announced, before anything has filled it."""
    started = {**item, "status": "in_progress"} if "status" in item else dict(item)
    for key, nothing in (("content", []), ("arguments", ""), ("input", "")):
        if isinstance(item.get(key), type(nothing)):
            started[key] = nothing
    return started


def _filling(item: Json) -> Iterator[tuple[str, Json]]:
    if item["type"] == "message":
        part = item["content"][0]
        nothing = {**part, "text": ""}
        yield "response.content_part.added", {"content_index": 0, "part": nothing}
        for piece in pieces(part["text"]):
            yield "response.output_text.delta", {"content_index": 0, "delta": piece, "logprobs": []}
        yield "response.output_text.done", {"content_index": 0, "text": part["text"], "logprobs": []}
        yield "response.content_part.done", {"content_index": 0, "part": part}
    elif item["type"] in {"function_call", "custom_tool_call"}:
        custom = item["type"] == "custom_tool_call"
        name, key = ("custom_tool_call_input", "input") if custom else ("function_call_arguments", "arguments")
        for piece in pieces(item[key]):
            yield f"response.{name}.delta", {"delta": piece}
        yield f"response.{name}.done", {key: item[key]} | ({} if custom else {"name": item["name"]})
    elif item["type"] == "web_search_call":
        for state in ("in_progress", "searching", "completed"):
            yield f"response.web_search_call.{state}", {}


def _reasoning(body: Json, serial: str, registry: SignatureRegistry) -> Json:
    item_id = f"rs_{serial}"
    made: Json = {"id": item_id, "type": "reasoning", "summary": []}
    if "reasoning.encrypted_content" in (body.get("include") or []):
        blob = f"{CIPHER_MARK}{number(serial):x}".ljust(REASONING_CHARS, "Q")
        registry.encrypt(item_id, blob)
        made["encrypted_content"] = blob
    else:
        registry.encrypt(item_id, "")
    return made


def _call(call: Call) -> Json:
    shared = {"call_id": f"call_{call.id}", "name": call.name, "status": "completed"}
    if call.search:
        del shared["name"]
        return {
            "id": f"tsc_{call.id}",
            "type": "tool_search_call",
            "execution": "client",
            **shared,
            "arguments": call.arguments,
        }
    if call.namespace:
        shared["namespace"] = call.namespace
    if call.custom:
        return {"id": f"ctc_{call.id}", "type": "custom_tool_call", **shared, "input": call.arguments}
    held = call.arguments if isinstance(call.arguments, str) else orjson.dumps(call.arguments).decode()
    return {"id": f"fc_{call.id}", "type": "function_call", **shared, "arguments": held}
