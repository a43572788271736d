"""The words of `builders` in chat completions."""

from __future__ import annotations

import json
from typing import Any

from .filler import listing, prose

Json = dict[str, Any]


def system(words: str) -> Json:
    return {"role": "system", "content": words}


def developer(words: str) -> Json:
    return {"role": "developer", "content": words}


def user(*content: str | Json) -> Json:
    if len(content) == 1 and isinstance(content[0], str):
        return {"role": "user", "content": content[0]}
    return {"role": "user", "content": [text(part) if isinstance(part, str) else part for part in content]}


def assistant(words: str | None = None, *calls: Json) -> Json:
    """An answer, with calls when there are any. OpenCode sends an empty string beside calls, so do we."""
    made: Json = {"role": "assistant", "content": words if words is not None else ("" if calls else None)}
    return made | ({"tool_calls": list(calls)} if calls else {})


def call(call_id: str, name: str = "read", **arguments: Any) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def result(call_id: str, content: str | list[Json] = "ok") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def image(data: str) -> Json:
    """A picture from base64 of a PNG."""
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def tool(name: str) -> Json:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}, "size": {"type": "integer"}}}
    return {
        "type": "function",
        "function": {"name": name, "description": f"{name} it.", "parameters": parameters},
    }


def body(*messages: Json, **fields: Any) -> Json:
    """A request with a leading system message and two tools unless said otherwise."""
    made: Json = {"model": "gpt-kit", "tools": [tool("read"), tool("bash")]}
    lead = [] if messages and messages[0]["role"] in {"system", "developer"} else [system("You are a coding agent.")]
    made["messages"] = [*lead, *messages]
    return {key: value for key, value in (made | fields).items() if value is not None}


def turn(number: int, exchanges: int, size: int, seed: object, finish: bool) -> list[Json]:
    """One turn of a long session; see `builders.session`."""
    made = [user(f"Task {number}: {prose(60, seed, number)}")]
    for step in range(exchanges):
        call_id = f"call_{number}_{step}"
        made.append(assistant(f"Step {step}.", call(call_id, path=f"src/file_{number}_{step}.py")))
        made.append(result(call_id, listing(size, seed, number, step)))
    return [*made, assistant(f"Task {number} is done. {prose(80, seed, number, 'end')}")] if finish else made
