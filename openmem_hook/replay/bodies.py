"""Steps into the requests a client sends: its headers, its fields, a constant front, then the history.

One builder a client, picked from a table. What stays the same in every request of a session (system prompt,
tools, headers) is built once and shared; each body has its own list of messages over shared objects. Field
values are those measured on real clients; ids are derived, never random, so that two replays are equal.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import orjson

from openmem_hook.replay.prefix import (
    CHARS_PER_TOKEN,
    SYSTEM_SHARE,
    descriptions,
    schema,
    system_text,
)
from openmem_hook.replay.session import Message, Request, Session, Step

Build = Callable[[Step], tuple[dict[str, Any], dict[str, str]]]

_MARKERS: Mapping[str, Mapping[str, str]] = {"5m": {"type": "ephemeral"}, "1h": {"type": "ephemeral", "ttl": "1h"}}
_CLAUDE_TOOLS = ("Task", "Bash", "Glob", "Grep", "Read", "Edit", "Write", "TodoWrite")
_CODEX_TOOLS = ("exec_command", "write_stdin", "update_plan", "view_image")
_OPENCODE_TOOLS = ("bash", "edit", "glob", "grep", "read", "task", "todowrite", "write")
_CLAUDE_IDENTITY = "You are Claude Code, Anthropic's official CLI for Claude."
_BILLING = "x-anthropic-billing-header: cc_version={}; cc_entrypoint=cli;"
_NO_BUDGET = ("opus-4-6", "sonnet-4-6", "opus-4-7", "-5-2")
"""Models that think as they see fit (`adaptive`) rather than within a budget."""


def requests(session: Session, *, prefix_tokens: int = 40_000, breakpoints: bool = True) -> Iterator[Request]:
    """The session's requests in the order in which they were sent.

    `prefix_tokens` sizes the constant front (system prompt and tools). `breakpoints` sets Anthropic's
    `cache_control` where Claude Code does: both system blocks and the last message, which is a copy; with the
    lifetime that most of the session's cached tokens had.
    Message objects are shared between the bodies: don't change them.
    """
    build = _BUILDERS[session.client](session, prefix_tokens, breakpoints)
    for index, step in enumerate(session.steps):
        body, headers = build(step)
        yield Request(
            index=index,
            body=body,
            format=session.format,
            headers=headers,
            recorded=step.recorded,
            segment=step.segment,
            branch=step.branch,
            model=step.model,
            sent_at=step.sent_at,
            parent=step.parent,
            ids=step.ids,
            reply=step.reply,
            sent=step.sent,
            sent_body=body if step.sent == step.messages else build(replace(step, messages=step.sent))[0],
            sent_known=step.sent_known,
        )


def _described(session: Session, usual: tuple[str, ...], prefix_tokens: int) -> dict[str, str]:
    names = dict.fromkeys([*usual, *session.tools])
    return descriptions(names, int(prefix_tokens * CHARS_PER_TOKEN * (1 - SYSTEM_SHARE)))


def _claude(session: Session, prefix_tokens: int, breakpoints: bool) -> Build:
    marker = _MARKERS[_lane(session)]
    marked = {"cache_control": marker} if breakpoints else {}
    front = {
        "system": [
            {"type": "text", "text": _BILLING.format(session.version)},
            {"type": "text", "text": _CLAUDE_IDENTITY, **marked},
            {"type": "text", "text": system_text(prefix_tokens), **marked},
        ],
        "tools": [
            {"name": name, "description": text, "input_schema": schema(session.tools.get(name, {}))}
            for name, text in _described(session, _CLAUDE_TOOLS, prefix_tokens).items()
        ],
        "metadata": {"user_id": _claude_user(session)},
    }

    def build(step: Step) -> tuple[dict[str, Any], dict[str, str]]:
        messages = _with_breakpoint(step.messages, marker) if breakpoints else list(step.messages)
        body = {"model": step.model, "max_tokens": 32_000, **front, "messages": messages, "stream": True}
        return body | _thinking(session, step.model), _claude_headers(session, step)

    return build


def _lane(session: Session) -> str:
    recorded = [step.recorded for step in session.steps if step.recorded is not None]
    hour = sum(counts.cache_write_1h or 0 for counts in recorded)
    return "1h" if 2 * hour > sum(counts.cache_write or 0 for counts in recorded) else "5m"


def _claude_user(session: Session) -> str:
    device = uuid.uuid5(uuid.NAMESPACE_URL, session.session_id).hex
    return orjson.dumps({"device_id": device, "account_uuid": "", "session_id": session.session_id}).decode()


def _claude_headers(session: Session, step: Step) -> dict[str, str]:
    headers = {
        "user-agent": f"claude-cli/{session.version} (external, cli)",
        "x-app": "cli",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
        "x-claude-code-session-id": session.session_id,
    }
    return headers | ({"x-claude-code-agent-id": step.agent_id} if step.agent_id else {})


def _thinking(session: Session, model: str) -> dict[str, Any]:
    if any(part in model for part in _NO_BUDGET):
        return {"thinking": {"type": "adaptive"}}
    if session.about.get("thinks"):
        return {"thinking": {"type": "enabled", "budget_tokens": 31_999}}
    return {}


def _with_breakpoint(messages: list[Message], marker: Mapping[str, str]) -> list[Message]:
    """A list whose last message is a copy with `cache_control` on its last block."""
    last = messages[-1]
    content = last["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    blocks[-1] = {**blocks[-1], "cache_control": dict(marker)}
    return [*messages[:-1], {**last, "content": blocks}]


def _codex(session: Session, prefix_tokens: int, _breakpoints: bool) -> Build:
    known = str(session.about.get("instructions") or "")
    content = [{"type": "input_text", "text": system_text(prefix_tokens, known)}]
    front = {"type": "message", "role": "developer", "content": content}
    described = _described(session, _CODEX_TOOLS, prefix_tokens)
    constant = {
        "tools": [_codex_tool(name, text, session.tools.get(name, {})) for name, text in described.items()],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": session.session_id,
    }

    def build(step: Step) -> tuple[dict[str, Any], dict[str, str]]:
        effort = {"effort": step.extra.get("effort") or "medium", "summary": "auto"}
        body = {"model": step.model, "input": [front, *step.messages], **constant, "reasoning": effort}
        return body, _codex_headers(session, step)

    return build


def _codex_headers(session: Session, step: Step) -> dict[str, str]:
    thread, parent = str(session.about["thread_id"]), str(session.about["parent"])
    source = "subagent" if parent else "user"
    turn = {"request_kind": "turn", "thread_source": source, "turn_id": step.ids[0]}
    headers = {
        "user-agent": f"{session.about['originator']}/{session.version}",
        "originator": str(session.about["originator"]),
        "session-id": session.session_id,
        "thread-id": thread,
        "x-codex-window-id": f"{thread}:0",
        "x-codex-turn-metadata": orjson.dumps(turn).decode(),
    }
    if parent:
        headers |= {"x-codex-parent-thread-id": parent, "x-openai-subagent": "collab_spawn"}
    return headers


def _codex_tool(name: str, text: str, about: Any) -> dict[str, Any]:
    kind = about.get("kind")
    if kind == "web_search_call":
        return {"type": "web_search"}
    if kind == "tool_search_call":
        return {"type": "tool_search", "execution": "client", "description": text, "parameters": schema({})}
    if kind == "custom_tool_call":
        return {"type": "custom", "name": name, "description": text}
    tool = {"type": "function", "name": name, "description": text, "strict": False, "parameters": schema({})}
    if about.get("namespace"):
        return {"type": "namespace", "name": about["namespace"], "description": text[:80], "tools": [tool]}
    return tool


def _opencode(session: Session, prefix_tokens: int, _breakpoints: bool) -> Build:
    system = {"role": "system", "content": system_text(prefix_tokens)}
    described = _described(session, _OPENCODE_TOOLS, prefix_tokens)
    functions = [
        {"name": name, "description": text, "parameters": schema(session.tools.get(name, {}))}
        for name, text in described.items()
    ]
    tools = [{"type": "function", "function": function} for function in functions]
    headers = {
        "user-agent": f"opencode/{session.version}",
        "x-session-id": session.session_id,
        "x-session-affinity": session.session_id,
    }
    if session.about.get("parent"):
        headers["x-parent-session-id"] = str(session.about["parent"])

    def build(step: Step) -> tuple[dict[str, Any], dict[str, str]]:
        body = {
            "model": step.model,
            "messages": [system, *step.messages],
            "tools": tools,
            "tool_choice": "auto",
            "max_tokens": 32_000,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return body, dict(headers)

    return build


_BUILDERS: dict[str, Callable[[Session, int, bool], Build]] = {
    "claude-code": _claude,
    "codex": _codex,
    "opencode": _opencode,
}
