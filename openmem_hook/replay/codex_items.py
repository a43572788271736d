"""What Codex does to the items of a run before it sends them again, and what a stripped file needs besides.

Pure. A run is what came between two requests: model outputs, their results, what the person typed meanwhile.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from dataclasses import replace
from typing import Any

from openmem_hook.replay.records import as_count
from openmem_hook.replay.transcript import Message, Record, ReportedUsage, Step

OUTPUT_OF = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "function_call_output",
    "tool_search_call": "tool_search_output",
}
OUTPUTS = frozenset(OUTPUT_OF.values())
SERVER_RUN = frozenset({"web_search_call", "image_generation_call"})

CIPHER_BASE, CIPHER_PER_TOKEN = 400, 5.5
"""Characters of encrypted reasoning: for each run, and more for each reasoning token. A rough size."""


_REQUIRED_TEXTS: dict[str, tuple[str, ...]] = {
    "message": ("role",),
    "function_call": ("call_id", "name"),
    "custom_tool_call": ("call_id", "name"),
    **dict.fromkeys(OUTPUTS, ("call_id",)),
}
"""Text fields without which an item is of no use."""


def is_sound(item: Any) -> bool:
    """Whether this is an item at all, as far as its pairing goes."""
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        return False
    call_id = item.get("call_id")
    fields = _REQUIRED_TEXTS.get(item["type"], ())
    return (call_id is None or isinstance(call_id, str)) and all(isinstance(item.get(f), str) for f in fields)


def is_output(item: Record) -> bool:
    """Whether the model made this item."""
    kind = item.get("type")
    is_message = kind == "message" and item.get("role") == "assistant"
    return kind == "reasoning" or kind in OUTPUT_OF or kind in SERVER_RUN or is_message


def is_typed(item: Record) -> bool:
    """Whether a person typed it: a user message that no environment or instruction block opens."""
    if item.get("type") != "message" or item.get("role") != "user":
        return False
    content = item.get("content")
    first = content[0] if isinstance(content, list) and content else {}
    text = first.get("text", "") if isinstance(first, dict) else content
    return not str(text).lstrip().startswith(("<", "# AGENTS.md instructions"))


def settle(run: list[Message], usage: Record | None, seed: str, repairs: Counter[str]) -> list[Message]:
    """The run as it is sent from now on: each call answered once, no reasoning without what it led to.

    `usage` is what the provider reported on the request that made the run; `seed` makes stand-ins reproducible.
    """
    # Results of calls that are there, the first of each; a stand-in after a call without one.
    calls = {(OUTPUT_OF[item["type"]], item["call_id"]) for item in run if _needs_output(item)}
    keys = [(item.get("type"), item.get("call_id")) for item in run]
    items: list[Message] = []
    for place, item in enumerate(run):
        key = keys[place]
        if item.get("type") in OUTPUTS and (key not in calls or key in keys[:place]):
            repairs["result without a call"] += 1
            continue
        items.append(item)
        if _needs_output(item) and (OUTPUT_OF[item["type"]], item["call_id"]) not in keys:
            repairs["call without a result"] += 1
            items.append(_interruption(item))

    # Reasoning that no output of the model follows is dropped: the API wants what it was produced with.
    backwards: list[Message] = []
    for item in reversed(items):
        if item.get("type") == "reasoning" and not (backwards and is_output(backwards[-1])):
            repairs["reasoning that led to nothing"] += 1
        else:
            backwards.append(item)
    return _fill_ciphers(backwards[::-1], usage, seed, repairs)


def _needs_output(item: Message) -> bool:
    return item.get("type") in OUTPUT_OF and bool(item.get("call_id")) and item.get("execution") != "server"


def _interruption(call: Message) -> Message:
    """The client's own stand-in for a call that was interrupted."""
    kind = OUTPUT_OF[call["type"]]
    if kind == "tool_search_output":
        nothing = {"status": "completed", "execution": "client", "tools": []}
        return {"type": kind, "call_id": call["call_id"], **nothing}
    return {"type": kind, "call_id": call["call_id"], "output": "aborted"}


def _fill_ciphers(run: list[Message], usage: Record | None, seed: str, repairs: Counter[str]) -> list[Message]:
    """Give reasoning that lost its encrypted content as much noise, for nothing else may stand there."""
    bare = sum(item.get("type") == "reasoning" and not item.get("encrypted_content") for item in run)
    if not bare:
        return run
    tokens = as_count((usage or {}).get("reasoning_output_tokens")) or 0
    size = int((CIPHER_BASE + CIPHER_PER_TOKEN * tokens) / bare)
    repairs["encrypted reasoning stood in for"] += bare
    return [
        {**item, "encrypted_content": _noise(size, f"{seed}.{place}")}
        if item.get("type") == "reasoning" and not item.get("encrypted_content")
        else item
        for place, item in enumerate(run)
    ]


def _noise(chars: int, seed: str) -> str:
    raw = hashlib.shake_256(seed.encode()).digest(chars * 3 // 4 + 3)
    return "gAAAAA" + base64.urlsafe_b64encode(raw).decode().rstrip("=")[: max(chars - 6, 0)]


def complete_step(step: Step, items: list[Message], usage: Record | None) -> Step:
    """The step with the outputs and the counts that came for it."""
    reply = (*step.reply, *(item for item in items if is_output(item)))
    return replace(step, reply=reply, usage=read_usage(usage) if usage else step.usage)


def read_usage(usage: dict[str, Any]) -> ReportedUsage:
    """Codex counts cached tokens in `input_tokens`, and knows no writes before its newest versions."""
    return ReportedUsage(
        prompt_tokens=usage["input_tokens"],
        cache_read=as_count(usage.get("cached_input_tokens")),
        cache_write=as_count(usage.get("cache_write_input_tokens")),
        output_tokens=as_count(usage.get("output_tokens")),
    )


def user_item(text: str) -> Message:
    """A user item as Codex writes it."""
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
