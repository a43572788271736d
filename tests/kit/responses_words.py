"""The words of `builders` in the Responses API. Items are flat: calls and outputs stand alone."""

from __future__ import annotations

import json
from typing import Any

from .filler import listing, prose

Json = dict[str, Any]


def user(*content: str | Json) -> Json:
    return {"type": "message", "role": "user", "content": [_input(part) for part in content]}


def developer(words: str) -> Json:
    return {"type": "message", "role": "developer", "content": [_input(words)]}


def assistant(words: str, item_id: str = "") -> Json:
    part = {"type": "output_text", "text": words, "annotations": []}
    made: Json = {"type": "message", "role": "assistant", "content": [part]}
    return made | ({"id": item_id} if item_id else {})


def reasoning(item_id: str, encrypted: str = "Z0FBQUFB") -> Json:
    return {"type": "reasoning", "id": item_id, "summary": [], "encrypted_content": encrypted}


def call(call_id: str, name: str = "exec_command", **arguments: Any) -> Json:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": json.dumps(arguments)}


def output(call_id: str, content: str | list[Json] = "ok") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": content}


def custom_call(call_id: str, words: str = "*** Begin Patch", name: str = "apply_patch") -> Json:
    return {"type": "custom_tool_call", "call_id": call_id, "name": name, "input": words}


def custom_output(call_id: str, content: str = "Done") -> Json:
    return {"type": "custom_tool_call_output", "call_id": call_id, "output": content}


def shell_call(call_id: str, command: str = "ls") -> Json:
    action = {"type": "exec", "command": [command], "env": {}}
    return {"type": "local_shell_call", "call_id": call_id, "status": "completed", "action": action}


def shell_output(call_id: str, content: str = "ok") -> Json:
    return {"type": "local_shell_call_output", "call_id": call_id, "output": content}


def web_search(item_id: str, query: str = "weather") -> Json:
    """A search the provider ran: it needs no output."""
    action = {"type": "search", "query": query}
    return {"type": "web_search_call", "id": item_id, "status": "completed", "action": action}


def image(data: str) -> Json:
    return {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}


def tool(name: str) -> Json:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}, "size": {"type": "integer"}}}
    return {"type": "function", "name": name, "description": f"{name} it.", "parameters": parameters}


def body(*items: Json, **fields: Any) -> Json:
    """A request as Codex makes one: nothing stored, encrypted reasoning asked for."""
    made: Json = {"model": "gpt-kit", "store": False, "include": ["reasoning.encrypted_content"]}
    made |= {"tools": [tool("exec_command"), tool("view")], "input": list(items)}
    return {key: value for key, value in (made | fields).items() if value is not None}


def turn(number: int, exchanges: int, size: int, seed: object, finish: bool) -> list[Json]:
    """One turn of a long session; see `builders.session`. Every second exchange comes with reasoning."""
    made = [user(f"Task {number}: {prose(60, seed, number)}")]
    for step in range(exchanges):
        call_id = f"call_{number}_{step}"
        if step % 2 == 0:
            made.append(reasoning(f"rs_{number}_{step}", f"cipher{number}x{step}" + "A" * 40))
        made.append(call(call_id, path=f"src/file_{number}_{step}.py"))
        made.append(output(call_id, listing(size, seed, number, step)))
    return [*made, assistant(f"Task {number} is done. {prose(80, seed, number, 'end')}")] if finish else made


def _input(part: str | Json) -> Json:
    return {"type": "input_text", "text": part} if isinstance(part, str) else part
