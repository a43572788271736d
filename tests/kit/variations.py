"""What happens to a history from request to request: it grows, it drifts, and people go back and change things.

`growth` and `drift` must never look like an edit to whoever compares histories; `edit`, `rewind` and `fork` must.
None of them touches its argument.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random
from typing import Any

from openmem_hook.replay.provider.breakpoints import breakpoints
from openmem_hook.replay.provider.rules_responses import OUTPUT_OF, kind_of

from .builders import Format, Json, marked, reminder, text
from .filler import prose
from .prefix import without_breakpoints

SPACES = (" ", "\n", "  \n", "\t")


def format_of(body: Json) -> Format:
    """Which API a body is for, by what only that API has."""
    if "input" in body:
        return "responses"
    messages, tools = body.get("messages") or [], body.get("tools") or []
    roles = {message.get("role") for message in messages}
    leads = bool(messages) and messages[0].get("role") in {"system", "developer"}
    called = any("tool_calls" in message for message in messages) or any("function" in tool for tool in tools)
    return "chat" if leads or called or roles & {"tool", "developer"} else "anthropic"


def turns_of(body: Json) -> list[int]:
    """Indexes of the messages a person typed, wrapped notices left out."""
    return [at for at, message in enumerate(_held(body)) if _is_typed(message)]


def growth(body: Json) -> list[Json]:
    """The requests that led to this one, itself last: each ends where a client has to send."""
    held = _held(body)
    ends = [at + 1 for at in range(len(held)) if _sends_after(held, at)]
    return [_with(body, copy.deepcopy(held[:end])) for end in ends if turns_of(_with(body, held[:end]))]


def drift(body: Json, rng: Random) -> Json:
    """The same conversation, serialised in another way: each change is made with an even chance."""
    moved = _with(body, [_drifted(message, format_of(body), rng) for message in copy.deepcopy(_held(body))])
    if format_of(body) == "anthropic":
        moved = _marks_moved(moved, rng)
    shuffled = _shuffled(moved, rng)
    return shuffled if isinstance(shuffled, dict) else moved


def rewind(body: Json, turns: int = 1, words: str = "Do something else instead.") -> Json:
    """Goes back before the last `turns` typed messages and types `words` there."""
    starts = turns_of(body)
    at = starts[max(0, len(starts) - turns)]
    return _with(body, [*copy.deepcopy(_held(body)[:at]), _typed(body, words)])


def fork(body: Json, rng: Random, words: str = "Try another way.") -> Json:
    """A history that shares a random beginning with this one and goes on with `words`."""
    starts = turns_of(body)
    return rewind(body, rng.randint(1, len(starts)), words)


def edit(body: Json, at: int, words: str = "I meant something quite different.") -> Json:
    """The typed message number `at` (among typed ones) gets other words; all that followed stays."""
    held = copy.deepcopy(_held(body))
    spot = turns_of(body)[at]
    held[spot] = _typed(body, words)
    return _with(body, held)


def _held(body: Json) -> list[Json]:
    held: Any = body["input"] if "input" in body else body["messages"]
    return [{"type": "message", "role": "user", "content": held}] if isinstance(held, str) else held


def _with(body: Json, held: list[Json]) -> Json:
    return {**body, ("input" if "input" in body else "messages"): held}


def _typed(body: Json, words: str) -> Json:
    if "input" in body:
        return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": words}]}
    return {"role": "user", "content": words}


def _is_typed(message: Json) -> bool:
    content = message.get("content")
    if message.get("role") != "user" or not content:
        return False
    parts: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if any(part.get("type") == "tool_result" for part in parts):
        return False
    return not all(str(part.get("text", "")).lstrip().startswith("<") for part in parts)


def _made_by_model(message: Json) -> bool:
    if "role" in message:
        return bool(message["role"] == "assistant")
    return kind_of(message) not in OUTPUT_OF


def _sends_after(held: list[Json], at: int) -> bool:
    last = at + 1 == len(held)
    return not _made_by_model(held[at]) and (last or _made_by_model(held[at + 1]))


def _drifted(message: Json, fmt: Format, rng: Random) -> Json:
    if "content" not in message or message["content"] is None:
        return message
    steps: tuple[Callable[[Json, Format, Random], None], ...] = (_reminded, _spaced, _reshaped)
    for step in steps:
        if rng.random() < 0.5:
            step(message, fmt, rng)
    return message


def _reminded(message: Json, fmt: Format, rng: Random) -> None:
    """A reminder block comes, or the ones that are there go."""
    if message.get("role") != "user" or fmt == "responses":
        return
    content = message["content"]
    parts = [text(content)] if isinstance(content, str) else content
    kept = [part for part in parts if not _is_reminder(part)]
    if len(kept) < len(parts):
        if kept:
            message["content"] = kept
    elif any(part.get("type") != "text" or part["text"].strip() for part in parts):
        message["content"] = [*parts, reminder(prose(30, rng.random(), "reminder"))]


def _is_reminder(part: Json) -> bool:
    return str(part.get("text", "")).startswith("<system-reminder>")


def _spaced(message: Json, fmt: Format, rng: Random) -> None:
    """Whitespace at the end of texts comes or goes; the last message of a body is never an assistant's."""
    content, space = message["content"], rng.choice(SPACES)
    if isinstance(content, str):
        if content:
            message["content"] = content.rstrip() + (space if rng.random() < 0.5 else "")
        return
    for part in content:
        if isinstance(part, dict) and str(part.get("text", "")).strip() and rng.random() < 0.5:
            part["text"] = part["text"].rstrip() + space


def _reshaped(message: Json, fmt: Format, rng: Random) -> None:
    """A string becomes one text block, or the other way round."""
    content, role = message["content"], message.get("role")
    kind = "text" if fmt != "responses" else "output_text" if role == "assistant" else "input_text"
    if isinstance(content, str):
        if content:
            message["content"] = [{"type": kind, "text": content}]
    elif len(content) == 1 and content[0].get("type") == kind and "cache_control" not in content[0]:
        message["content"] = content[0]["text"]


def _marks_moved(body: Json, rng: Random) -> Json:
    """As many message breakpoints as before or fewer, on other blocks that may carry one."""
    here = [one for one in breakpoints(body) if one.place.startswith("messages")]
    if not here:
        return body
    bare = _with(body, [without_breakpoints(message) for message in body["messages"]])
    spots = [
        (message, at)
        for message in bare["messages"]
        if message["role"] == "user" and isinstance(message["content"], list)
        for at, part in enumerate(message["content"])
        if part.get("type") != "text" or part["text"].strip()
    ]
    ttl = "1h" if all(one.ttl == "1h" for one in breakpoints(body)) else ""
    for message, at in rng.sample(spots, min(len(spots), rng.randint(0, len(here)))):
        message["content"][at] = marked(message["content"][at], ttl)
    return bare


def _shuffled(value: Any, rng: Random) -> Any:
    """Keys in another order, at every depth but inside arguments, which are the model's own bytes."""
    if isinstance(value, list):
        return [_shuffled(inner, rng) for inner in value]
    if not isinstance(value, dict) or rng.random() < 0.3:
        return value
    keys = list(value)
    rng.shuffle(keys)
    return {key: value[key] if key == "input" and "messages" not in value and "name" in value
            else _shuffled(value[key], rng) for key in keys}  # fmt: skip
