"""Event streams read back: lines to events, events to the whole answer, for the three APIs.

A client trusts what it assembled from deltas, so folding uses only them, never a copy of the whole that some
events carry; what a proxy loses on the way is then missing here too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpx
import orjson

Json = dict[str, Any]


class StreamBrokenError(Exception):
    """The stream carried an error or ended too early. `started` says whether any content had arrived."""

    def __init__(self, message: str, *, started: bool) -> None:
        super().__init__(message)
        self.started = started


async def events(response: httpx.Response) -> AsyncIterator[Json]:
    """The data of each event; a chat stream's [DONE] is left out."""
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            data = line[5:].strip()
            if data and data != "[DONE]":
                yield orjson.loads(data)


def fold_anthropic(stream: Iterable[Json]) -> Json:
    message: Json = {}
    partial: dict[int, list[str]] = {}
    for event in stream:
        kind = event.get("type")
        if kind == "error":
            raise StreamBrokenError(str(event), started=bool(message.get("content")))
        if kind == "message_start":
            message = {**event["message"], "content": []}
        elif kind == "content_block_start":
            message["content"].append(dict(event["content_block"]))
        elif kind == "content_block_delta":
            _grow(message["content"], event["index"], event["delta"], partial)
        elif kind == "message_delta":
            message |= event["delta"]
            message["usage"] = {**message["usage"], **event.get("usage", {})}
        elif kind == "message_stop":
            for at, pieces in partial.items():
                message["content"][at]["input"] = orjson.loads("".join(pieces) or "{}")
            return message
    raise StreamBrokenError("no message_stop", started=bool(message.get("content")))


def _grow(content: list[Json], at: int, delta: Json, partial: dict[int, list[str]]) -> None:
    kind = delta["type"]
    if kind == "input_json_delta":
        partial.setdefault(at, []).append(delta["partial_json"])
    elif kind == "signature_delta":
        content[at]["signature"] = content[at].get("signature", "") + delta["signature"]
    else:
        field = {"text_delta": "text", "thinking_delta": "thinking"}[kind]
        content[at][field] = content[at].get(field, "") + delta[field]


def fold_chat(stream: Iterable[Json]) -> Json:
    message: Json = {"role": "assistant", "content": ""}
    calls: dict[int, Json] = {}
    folded: Json = {"choices": [{"message": message, "finish_reason": None}], "usage": None}
    for chunk in stream:
        if "error" in chunk:
            raise StreamBrokenError(str(chunk["error"]), started=bool(message["content"] or calls))
        folded["usage"] = chunk.get("usage") or folded["usage"]
        for choice in chunk.get("choices") or []:
            delta = choice.get("delta") or {}
            message["content"] += delta.get("content") or ""
            for piece in delta.get("tool_calls") or []:
                _grow_call(calls, piece)
            if choice.get("finish_reason"):
                folded["choices"][0]["finish_reason"] = choice["finish_reason"]
    if folded["choices"][0]["finish_reason"] is None:
        raise StreamBrokenError("no finish_reason", started=bool(message["content"] or calls))
    if calls:
        message["tool_calls"] = [calls[at] for at in sorted(calls)]
    return folded


def _grow_call(calls: dict[int, Json], piece: Json) -> None:
    call = calls.setdefault(piece["index"], {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
    call["id"] = piece.get("id") or call["id"]
    inner = piece.get("function") or {}
    call["function"]["name"] += inner.get("name") or ""
    call["function"]["arguments"] += inner.get("arguments") or ""


def fold_responses(stream: Iterable[Json]) -> Json:
    """Items as `output_item.done` delivers them, the rest from `response.completed`."""
    items: list[Json] = []
    for event in stream:
        kind = event.get("type")
        if kind in {"error", "response.failed"} or (kind is None and "error" in event):
            raise StreamBrokenError(str(event), started=bool(items))
        if kind == "response.output_item.done":
            items.append(event["item"])
        elif kind == "response.completed":
            return {**event["response"], "output": items}
    raise StreamBrokenError("no response.completed", started=bool(items))
