"""Bodies in words, for tests: `body(user("fix it"), assistant(tool_use("toolu_1")), results(...))`.

Bare names speak the Messages API; `chat.*` and `responses.*` say the same in the other two. Everything comes
back as plain JSON values, and `session` makes a long valid body in any of the three.
"""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any, Literal

from . import chat_words as chat
from . import responses_words as responses
from .filler import listing, prose

Json = dict[str, Any]
Format = Literal["anthropic", "chat", "responses"]
FORMATS: tuple[Format, ...] = ("anthropic", "chat", "responses")

__all__ = [
    "FORMATS", "Format", "Json", "assistant", "body", "chat", "document", "image", "marked", "mixed",
    "picture", "redacted", "reference", "reminder", "responses", "results", "server_search", "session",
    "system", "text", "thinking", "tool", "tool_result", "tool_use", "user",
]  # fmt: skip


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def marked(block: Json, ttl: str = "") -> Json:
    """The same block with a cache breakpoint; without `ttl` the bare five-minute kind."""
    marker = {"type": "ephemeral"} | ({"ttl": ttl} if ttl else {})
    return {**block, "cache_control": marker}


def user(*content: str | Json) -> Json:
    """A typed message; one string stays a string, several parts become blocks."""
    return {"role": "user", "content": _content(content)}


def assistant(*content: str | Json) -> Json:
    return {"role": "assistant", "content": _content(content)}


def system(*content: str | Json) -> Json:
    """A system message in mid-conversation."""
    return {"role": "system", "content": _content(content)}


def results(*blocks: Json) -> Json:
    return {"role": "user", "content": list(blocks)}


def mixed(result: Json, words: str) -> Json:
    """A result with typed text after it in the same message."""
    return {"role": "user", "content": [result, text(words)]}


def tool_use(call: str, name: str = "Read", **arguments: Any) -> Json:
    return {"type": "tool_use", "id": call, "name": name, "input": arguments}


def tool_result(call: str, content: Any = "ok", *, is_error: bool = False) -> Json:
    block: Json = {"type": "tool_result", "tool_use_id": call, "content": content}
    return block | ({"is_error": True} if is_error else {})


def thinking(words: str = "Let me see.", signature: str = "c2lnbmVk") -> Json:
    return {"type": "thinking", "thinking": words, "signature": signature}


def redacted(data: str = "b3BhcXVl") -> Json:
    return {"type": "redacted_thinking", "data": data}


def reminder(words: str = "Today is a weekday.") -> Json:
    return text(f"<system-reminder>\n{words}\n</system-reminder>")


def reference(name: str) -> Json:
    """A deferred tool made known inside a result."""
    return {"type": "tool_reference", "tool_name": name}


def server_search(call: str, query: str = "weather") -> tuple[Json, Json]:
    """A search that the provider ran: the call and its result, both in the assistant's message."""
    found = {
        "type": "web_search_result",
        "url": "https://example.org",
        "title": query,
        "encrypted_content": "eA==",
    }
    return (
        {"type": "server_tool_use", "id": call, "name": "web_search", "input": {"query": query}},
        {"type": "web_search_tool_result", "tool_use_id": call, "content": [found]},
    )


def picture(side: int = 1, size: int = 0) -> str:
    """Base64 of a PNG whose header says `side` x `side` pixels, padded to about `size` bytes."""
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0\0")
    padding = bytes(max(0, size - 100))
    chunks = [(b"IHDR", header), (b"tEXt", padding), (b"IDAT", pixels), (b"IEND", b"")]
    body_of = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + body_of).decode()


def image(data: str = "", media_type: str = "image/png") -> Json:
    source = {"type": "base64", "media_type": media_type, "data": data or picture()}
    return {"type": "image", "source": source}


def document(words: str = "page one") -> Json:
    data = base64.b64encode(b"%PDF-1.4 " + words.encode()).decode()
    return {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": data}}


def tool(name: str, **extra: Any) -> Json:
    properties = {"path": {"type": "string"}, "size": {"type": "integer"}}
    return {"name": name, "description": f"{name} it.", "input_schema": _schema(properties)} | extra


def body(*messages: Json, **fields: Any) -> Json:
    """A request of the Messages API, with tools Read and Bash unless said otherwise."""
    made: Json = {"model": "claude-kit", "max_tokens": 8192, "system": [text("You are a coding agent.")]}
    made |= {"tools": [tool("Read"), tool("Bash")], "messages": list(messages)}
    return {key: value for key, value in (made | fields).items() if value is not None}


def session(fmt: Format, *, exchanges: int = 4, size: int = 400, turns: int = 1, seed: object = 0) -> Json:
    """A long valid body: `turns` turns of `exchanges` tool exchanges with results of `size` characters each.

    It ends where a client would send: after the last result of the last turn, or after its typed message when
    there are no exchanges.
    """
    make = {"anthropic": _anthropic_turn, "chat": chat.turn, "responses": responses.turn}[fmt]
    wrap = {"anthropic": body, "chat": chat.body, "responses": responses.body}[fmt]
    messages: list[Json] = []
    for turn in range(turns):
        messages += make(turn, exchanges, size, seed, turn < turns - 1)
    return wrap(*messages)


def _anthropic_turn(turn: int, exchanges: int, size: int, seed: object, finish: bool) -> list[Json]:
    made = [user(f"Task {turn}: {prose(60, seed, turn)}")]
    for step in range(exchanges):
        call = f"toolu_{turn}_{step}"
        made.append(assistant(text(f"Step {step}."), tool_use(call, path=f"src/file_{turn}_{step}.py")))
        made.append(results(tool_result(call, listing(size, seed, turn, step))))
    return [*made, assistant(f"Task {turn} is done. {prose(80, seed, turn, 'end')}")] if finish else made


def _content(content: tuple[str | Json, ...]) -> str | list[Json]:
    if len(content) == 1 and isinstance(content[0], str):
        return content[0]
    return [text(part) if isinstance(part, str) else part for part in content]


def _schema(properties: Json) -> Json:
    return {"type": "object", "properties": properties}
