"""Answers of the Messages API: one message, its event stream, its errors and its usage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from openmem_hook.replay.provider.counting import count_text
from openmem_hook.replay.provider.prompt_cache import CacheUse
from openmem_hook.replay.provider.signatures import SIGNATURE_MARK, SignatureRegistry

from .filler import number
from .script import Output

Json = dict[str, Any]
PIECE = 160
KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 413:
    "request_too_large", 429: "rate_limit_error", 500: "api_error", 529: "overloaded_error",
}  # fmt: skip


def render(output: Output, body: Json, use: CacheUse, serial: str, registry: SignatureRegistry) -> Json:
    """The whole answer; a signature given out here is remembered in `registry`."""
    content: list[Json] = []
    if output.thinking is not None:
        signature = f"{SIGNATURE_MARK}{number(serial, output.thinking):x}".ljust(64, "A") + "=="
        registry.sign(signature, output.thinking)
        content.append({"type": "thinking", "thinking": output.thinking, "signature": signature})
    if output.search:
        content += _search(output.search, serial)
    if output.text:
        content.append({"type": "text", "text": output.text})
    content += [
        {"type": "tool_use", "id": f"toolu_{call.id}", "name": call.name, "input": call.arguments}
        for call in output.calls
    ]
    return {
        "id": f"msg_{serial}", "type": "message", "role": "assistant", "model": body["model"],
        "content": content,
        "stop_reason": "tool_use" if output.calls else "end_turn", "stop_sequence": None,
        "usage": usage(use, output_tokens(content)),
    }  # fmt: skip


def usage(use: CacheUse, made: int) -> Json:
    """Here `input_tokens` is only what was neither read from the cache nor written to it."""
    return {
        "input_tokens": use.fresh,
        "cache_creation_input_tokens": use.written_5m + use.written_1h,
        "cache_read_input_tokens": use.read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": use.written_5m,
            "ephemeral_1h_input_tokens": use.written_1h,
        },
        "output_tokens": made,
        "service_tier": "standard",
    }


def output_tokens(content: list[Json]) -> int:
    return max(1, count_text(orjson.dumps(content).decode()))


def stream(message: Json) -> Iterator[tuple[str, Json]]:
    """The event sequence of an answer, each event with its name."""
    start = {**message, "content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 1}}
    yield "message_start", {"type": "message_start", "message": start}
    yield "ping", {"type": "ping"}
    for at, block in enumerate(message["content"]):
        opening, deltas = _opened(block)
        yield "content_block_start", {"type": "content_block_start", "index": at, "content_block": opening}
        for delta in deltas:
            yield "content_block_delta", {"type": "content_block_delta", "index": at, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", "index": at}
    ending = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield "message_delta", {"type": "message_delta", "delta": ending, "usage": message["usage"]}
    yield "message_stop", {"type": "message_stop"}


def refusal(status: int, message: str, serial: str = "kit") -> Json:
    error = {"type": KINDS.get(status, "api_error"), "message": message}
    return {"type": "error", "error": error, "request_id": f"req_{serial}"}


def broken_stream(message: str) -> tuple[str, Json]:
    return "error", refusal(529, message)


def pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE]


def _opened(block: Json) -> tuple[Json, list[Json]]:
    """A block as it starts, and the deltas that fill it."""
    kind = block["type"]
    if kind == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
    if kind == "thinking":
        deltas: list[Json] = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return {"type": "thinking", "thinking": "", "signature": ""}, deltas
    if kind in {"tool_use", "server_tool_use"}:
        held = orjson.dumps(block["input"]).decode()
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(held)]
    return block, []


def _search(query: str, serial: str) -> list[Json]:
    call = f"srvtoolu_{serial}"
    found = {"type": "web_search_result", "url": "https://example.org/kit", "title": query}
    found |= {"encrypted_content": "eA==", "page_age": "1 day"}
    return [
        {"type": "server_tool_use", "id": call, "name": "web_search", "input": {"query": query}},
        {"type": "web_search_tool_result", "tool_use_id": call, "content": [found]},
    ]
