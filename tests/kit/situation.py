"""What a model would look at before it answers: the newest typed words, how far the turn is, its tools.

How far a turn is can't be counted, because a trimmer may have taken its oldest exchanges away. It is read
from the newest call's id instead, which the kit's own model numbers (`…_s3p0_…`: third exchange, first call).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from openmem_hook.replay.provider.rules_responses import FAMILIES, OUTPUT_OF, items_of, kind_of

from .builders import Format

Body = dict[str, Any]

_STEP = re.compile(r"_s(\d+)p\d+_")
_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Tool:
    """`custom` tools take free text (Responses), the others an object that fits `schema`; see `script.Call`."""

    name: str
    schema: dict[str, Any]
    custom: bool = False
    namespace: str = ""
    search: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """`step` counts the exchanges already made since the typed words; `thinking` is "", "seen" or
    "omitted"."""

    typed: str
    step: int
    last_result: str
    tools: tuple[Tool, ...]
    messages: int
    thinking: str
    must_think: bool = False
    can_search: bool = False


@dataclass(frozen=True, slots=True)
class _Event:
    """One thing in a conversation, newest first: typed words, a call's id, or a result's text."""

    kind: str
    value: str


def situation(body: Body, fmt: Format) -> Situation:
    events = {"anthropic": _anthropic, "chat": _chat, "responses": _responses}[fmt](body)
    typed, result, calls = "", "", []
    for event in events:
        if event.kind == "typed":
            typed = event.value
            break
        if event.kind == "call":
            calls.append(event.value)
        elif not calls:
            result = result or event.value
    count = len(items_of(body)) if fmt == "responses" else len(body.get("messages") or [])
    thinking, must = _thinking(body, fmt)
    searches = any(str(tool.get("type", "")).startswith("web_search") for tool in body.get("tools") or [])
    offered = [*(body.get("tools") or []), *(_found(body) if fmt == "responses" else ())]
    return Situation(typed, _step(calls), result, tuple(_tools(offered)), count, thinking, must, searches)


def _step(calls: list[str]) -> int:
    """Exchanges so far: the newest call's own number, else (ids not ours) the number of calls."""
    if not calls:
        return 0
    found = _STEP.search(calls[0])
    return int(found[1]) + 1 if found else len(calls)


def _thinking(body: Body, fmt: Format) -> tuple[str, bool]:
    if fmt == "anthropic":
        asked = body.get("thinking") or {}
        if asked.get("type") not in {"enabled", "adaptive"}:
            return "", False
        return ("omitted" if asked.get("display") == "omitted" else "seen"), asked["type"] == "enabled"
    if fmt == "responses":
        include = body.get("include") or []
        return ("omitted" if "reasoning.encrypted_content" in include or body.get("reasoning") else ""), False
    return "", False


def _found(body: Body) -> Iterator[Body]:
    """Tools that searches told of, as long as they are in the request."""
    for item in items_of(body):
        if kind_of(item) == "tool_search_output":
            yield from item.get("tools") or []


def _tools(offered: Iterable[Body], namespace: str = "") -> Iterator[Tool]:
    for tool in offered:
        if tool.get("type") == "namespace":
            yield from _tools(tool.get("tools") or [], str(tool.get("name", "")))
        elif tool.get("type") == "tool_search":
            yield Tool("tool_search", tool.get("parameters") or {}, search=True)
        elif tool.get("type") == "custom" and "input_schema" not in tool:
            yield Tool(str(tool.get("name", "")), {}, custom=True)
        else:
            held = tool.get("function", tool)
            schema = held.get("input_schema") or held.get("parameters")
            if held.get("name") and isinstance(schema, dict) and (namespace or not tool.get("defer_loading")):
                yield Tool(str(held["name"]), schema, namespace=namespace)


def _words(text: object) -> str:
    """What a person typed of a text: nothing when the whole text is something a client wrapped in tags."""
    bare = _REMINDER.sub("", str(text or "")).strip()
    return "" if bare.startswith("<") and bare.endswith(">") else bare


def _typed(content: Any) -> str:
    """The last typed text of a content; words put in front of it are not the newest ones."""
    if isinstance(content, str):
        return _words(content)
    parts = [part for part in content or [] if isinstance(part, dict) and "text" in part]
    return next((words for part in reversed(parts) if (words := _words(part["text"]))), "")


def plain(content: Any) -> str:
    """A result's content as text."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else orjson.dumps(content).decode()


def _anthropic(body: Body) -> Iterator[_Event]:
    for message in reversed(body.get("messages") or []):
        content = message.get("content")
        blocks = content if isinstance(content, list) else []
        if message["role"] == "user":
            if typed := _typed(content):
                yield _Event("typed", typed)
            for block in reversed(blocks):
                if block.get("type") == "tool_result":
                    yield _Event("result", plain(block.get("content")))
        elif message["role"] == "assistant":
            for block in reversed(blocks):
                if block.get("type") == "tool_use":
                    yield _Event("call", str(block.get("id")))


def _chat(body: Body) -> Iterator[_Event]:
    for message in reversed(body.get("messages") or []):
        if message["role"] == "user" and (typed := _typed(message.get("content"))):
            yield _Event("typed", typed)
        elif message["role"] == "tool":
            yield _Event("result", plain(message.get("content")))
        for call in reversed(message.get("tool_calls") or []):
            yield _Event("call", str(call.get("id")))


def _responses(body: Body) -> Iterator[_Event]:
    for item in reversed(items_of(body)):
        kind = kind_of(item)
        if kind == "message" and item.get("role") == "user" and (typed := _typed(item.get("content"))):
            yield _Event("typed", typed)
        elif kind in OUTPUT_OF:
            yield _Event("result", plain(item.get("output")))
        elif kind in FAMILIES:
            yield _Event("call", str(item.get("call_id")))
