"""What Codex does to the items of a run before it sends them again, and what a stripped file needs besides.

Pure. A run is what came between two requests: model outputs, their results, what the person typed meanwhile.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from dataclasses import replace
from typing import Any

from openmem_hook.replay.session import Message, Record, Recorded, Step
from openmem_hook.replay.transcript import as_count

OUTPUT_OF = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "function_call_output",
    "tool_search_call": "tool_search_output",
}
OUTPUTS = frozenset(OUTPUT_OF.values())
SERVER_RUN = frozenset({"web_search_call", "image_generation_call"})

SEALED_BASE, SEALED_PER_TOKEN = 400, 5.5
"""Characters of encrypted reasoning: for each run, and more for each reasoning token. A rough size."""


_NEEDS: dict[str, tuple[str, ...]] = {
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
    fields = _NEEDS.get(item["type"], ())
    return (call_id is None or isinstance(call_id, str)) and all(isinstance(item.get(f), str) for f in fields)


def is_output(item: Record) -> bool:
    """Whether the model made this item."""
    kind = item.get("type")
    return kind == "reasoning" or kind in OUTPUT_OF or kind in SERVER_RUN or is_said(item)


def is_said(item: Record) -> bool:
    """Whether this is a message of the model."""
    return item.get("type") == "message" and item.get("role") == "assistant"


def is_typed(item: Record) -> bool:
    """Whether a person typed it: a user message that no environment or instruction block opens."""
    if item.get("type") != "message" or item.get("role") != "user":
        return False
    content = item.get("content")
    first = content[0] if isinstance(content, list) and content else {}
    text = first.get("text", "") if isinstance(first, dict) else content
    return not str(text).lstrip().startswith(("<", "# AGENTS.md instructions"))


def settle(run: list[Message], usage: Record | None, seed: str, repaired: Counter[str]) -> list[Message]:
    """The run as it is sent from now on: each call answered once, no reasoning without what it led to."""
    wanted = {(OUTPUT_OF[item["type"]], item["call_id"]) for item in run if _needs_output(item)}
    answers = [(item.get("type"), item.get("call_id")) for item in run]
    settled: list[Message] = []
    for place, item in enumerate(run):
        key = answers[place]
        if item.get("type") in OUTPUTS and (key not in wanted or key in answers[:place]):
            repaired["result without a call"] += 1
            continue
        settled.append(item)
        if _needs_output(item) and (OUTPUT_OF[item["type"]], item["call_id"]) not in answers:
            repaired["call without a result"] += 1
            settled.append(_aborted(item))
    return _sealed(_without_idle_reasoning(settled, repaired), usage, seed, repaired)


def _without_idle_reasoning(run: list[Message], repaired: Counter[str]) -> list[Message]:
    """Drop reasoning that no output of the model follows: the API wants what it was produced with."""
    kept: list[Message] = []
    for item in reversed(run):
        if item.get("type") == "reasoning" and not (kept and is_output(kept[-1])):
            repaired["reasoning that led to nothing"] += 1
        else:
            kept.append(item)
    return kept[::-1]


def _needs_output(item: Message) -> bool:
    return item.get("type") in OUTPUT_OF and bool(item.get("call_id")) and item.get("execution") != "server"


def _aborted(call: Message) -> Message:
    """The client's own stand-in for a call that was interrupted."""
    kind = OUTPUT_OF[call["type"]]
    if kind == "tool_search_output":
        nothing = {"status": "completed", "execution": "client", "tools": []}
        return {"type": kind, "call_id": call["call_id"], **nothing}
    return {"type": kind, "call_id": call["call_id"], "output": "aborted"}


def _sealed(run: list[Message], usage: Record | None, seed: str, repaired: Counter[str]) -> list[Message]:
    """Give reasoning that lost its encrypted content as much noise, for nothing else may stand there."""
    bare = [item for item in run if item.get("type") == "reasoning" and not item.get("encrypted_content")]
    if not bare:
        return run
    tokens = as_count((usage or {}).get("reasoning_output_tokens")) or 0
    size = int((SEALED_BASE + SEALED_PER_TOKEN * tokens) / len(bare))
    repaired["encrypted reasoning stood in for"] += len(bare)
    return [
        {**item, "encrypted_content": _noise(size, f"{seed}.{place}")}
        if item.get("type") == "reasoning" and not item.get("encrypted_content")
        else item
        for place, item in enumerate(run)
    ]


def _noise(chars: int, seed: str) -> str:
    raw = hashlib.shake_256(seed.encode()).digest(chars * 3 // 4 + 3)
    return "gAAAAA" + base64.urlsafe_b64encode(raw).decode().rstrip("=")[: max(chars - 6, 0)]


def answered(step: Step, items: list[Message], usage: Record | None) -> Step:
    """The step with the outputs and the counts that came for it."""
    reply = (*step.reply, *(item for item in items if is_output(item)))
    return replace(step, reply=reply, recorded=recorded(usage) if usage else step.recorded)


def recorded(usage: dict[str, Any]) -> Recorded:
    """Codex counts cached tokens in `input_tokens`, and knows no writes before its newest versions."""
    return Recorded(
        prompt_tokens=usage["input_tokens"],
        cache_read=as_count(usage.get("cached_input_tokens")),
        cache_write=as_count(usage.get("cache_write_input_tokens")),
        output_tokens=as_count(usage.get("output_tokens")),
    )


def user(text: str) -> Message:
    """A user item as Codex writes it."""
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
