"""Answers of chat completions: one completion, its chunks, its errors and its usage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import orjson

from openmem_hook.replay.provider.counting import count_text
from openmem_hook.replay.provider.prompt_cache import CacheUse
from openmem_hook.replay.provider.signatures import SignatureRegistry

from .script import Output
from .wire_anthropic import pieces

Json = dict[str, Any]
KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 500: "server_error"}


def render(output: Output, body: Json, use: CacheUse, serial: str, registry: SignatureRegistry) -> Json:
    message: Json = {"role": "assistant", "content": output.text or None, "refusal": None, "annotations": []}
    if output.calls:
        message["tool_calls"] = [_call(call.id, call.name, call.arguments) for call in output.calls]
    made = count_text(orjson.dumps(message).decode())
    choice = {"index": 0, "message": message, "logprobs": None}
    choice["finish_reason"] = "tool_calls" if output.calls else "stop"
    return {
        "id": f"chatcmpl-{serial}", "object": "chat.completion", "created": int(time.time()),
        "model": body["model"],
        "choices": [choice], "usage": usage(use, made), "service_tier": "default", "system_fingerprint": None,
    }  # fmt: skip


def usage(use: CacheUse, made: int) -> Json:
    """Here `prompt_tokens` is the whole prompt, cached part included."""
    return {
        "prompt_tokens": use.total,
        "completion_tokens": made,
        "total_tokens": use.total + made,
        "prompt_tokens_details": {"cached_tokens": use.read, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def stream(completion: Json, *, include_usage: bool) -> Iterator[tuple[str, Json]]:
    """The chunks of a completion; the events have no names here."""
    shared = {key: completion[key] for key in ("id", "created", "model", "system_fingerprint")}
    shared["object"] = "chat.completion.chunk"
    message = completion["choices"][0]["message"]

    def chunk(delta: Json, finish: str | None = None) -> tuple[str, Json]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return "", {**shared, "choices": [choice]} | ({"usage": None} if include_usage else {})

    yield chunk({"role": "assistant", "content": ""})
    for piece in pieces(message["content"] or ""):
        yield chunk({"content": piece})
    for at, call in enumerate(message.get("tool_calls") or []):
        opening = {**call, "index": at, "function": {"name": call["function"]["name"], "arguments": ""}}
        yield chunk({"tool_calls": [opening]})
        for piece in pieces(call["function"]["arguments"]):
            yield chunk({"tool_calls": [{"index": at, "function": {"arguments": piece}}]})
    yield chunk({}, completion["choices"][0]["finish_reason"])
    if include_usage:
        yield "", {**shared, "choices": [], "usage": completion["usage"]}


def refusal(status: int, message: str, *, param: str = "messages", code: str | None = None) -> Json:
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def broken_stream(message: str) -> tuple[str, Json]:
    return "", refusal(500, message)


def _call(call_id: str, name: str, arguments: Any) -> Json:
    held = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return {"id": f"call_{call_id}", "type": "function", "function": {"name": name, "arguments": held}}
