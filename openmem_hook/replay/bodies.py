"""Steps into the requests a client sends: its headers, its fields, a constant front, then the history.

One builder a client, picked from a table. What stays the same in every request of a session (system prompt,
tools, headers) is built once and shared; each body has its own list of messages over shared objects. Field
values are those measured on real clients; ids are derived, never random, so that two replays are equal.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import orjson

from openmem_hook.replay.prefix import (
    CHARS_PER_TOKEN,
    SYSTEM_SHARE,
    descriptions,
    schema,
    system_text,
)
from openmem_hook.replay.transcript import Client, Message, ReplayRequest, Step, Transcript

Build = Callable[[Step], tuple[dict[str, Any], dict[str, str]]]
"""Body and headers of a step's request."""

Lane = Literal["5m", "1h"]
_MARKERS: Mapping[Lane, Mapping[str, str]] = {"5m": {"type": "ephemeral"}, "1h": {"type": "ephemeral", "ttl": "1h"}}
_CLAUDE_TOOLS = ("Task", "Bash", "Glob", "Grep", "Read", "Edit", "Write", "TodoWrite")
_CODEX_TOOLS = ("exec_command", "write_stdin", "update_plan", "view_image")
_OPENCODE_TOOLS = ("bash", "edit", "glob", "grep", "read", "task", "todowrite", "write")
_CLAUDE_IDENTITY = "You are Claude Code, Anthropic's official CLI for Claude."
_BILLING = "x-anthropic-billing-header: cc_version={}; cc_entrypoint=cli;"
_NO_BUDGET = ("opus-4-6", "sonnet-4-6", "opus-4-7", "-5-2")
"""Models that think as they see fit (`adaptive`) rather than within a budget."""


def requests(
    transcript: Transcript, *, prefix_tokens: int = 40_000, breakpoints: bool = True
) -> Iterator[ReplayRequest]:
    """The transcript's requests in the order in which they were sent.

    `prefix_tokens` sizes the constant front (system prompt and tools). `breakpoints` sets Anthropic's
    `cache_control` where Claude Code does: both system blocks and the last message, which is a copy; with the
    lifetime that most of the session's cached tokens had.
    Message objects are shared between the bodies: don't change them.
    """
    build = _BUILDERS[transcript.client](transcript, prefix_tokens, breakpoints)
    for index, step in enumerate(transcript.steps):
        body, headers = build(step)
        is_compacted = step.actual_messages != step.messages
        actual_body = build(replace(step, messages=step.actual_messages))[0] if is_compacted else body
        yield ReplayRequest(index, step, transcript.format, headers, body, actual_body)


def _tool_descriptions(transcript: Transcript, usual: tuple[str, ...], prefix_tokens: int) -> dict[str, str]:
    """The tools that the client always has and those that the transcript calls, with a text each."""
    names = dict.fromkeys([*usual, *transcript.tools])
    return descriptions(names, int(prefix_tokens * CHARS_PER_TOKEN * (1 - SYSTEM_SHARE)))


# --- Claude Code -----------------------------------------------------------------------------------------


def _claude(transcript: Transcript, prefix_tokens: int, breakpoints: bool) -> Build:
    marker = _MARKERS[_lane(transcript)]
    breakpoint_field = {"cache_control": marker} if breakpoints else {}
    user = {
        "device_id": uuid.uuid5(uuid.NAMESPACE_URL, transcript.session_id).hex,
        "account_uuid": "",
        "session_id": transcript.session_id,
    }
    front = {
        "system": [
            {"type": "text", "text": _BILLING.format(transcript.version)},
            {"type": "text", "text": _CLAUDE_IDENTITY, **breakpoint_field},
            {"type": "text", "text": system_text(prefix_tokens), **breakpoint_field},
        ],
        "tools": [
            {"name": name, "description": text, "input_schema": schema(transcript.tools.get(name, {}))}
            for name, text in _tool_descriptions(transcript, _CLAUDE_TOOLS, prefix_tokens).items()
        ],
        "metadata": {"user_id": orjson.dumps(user).decode()},
    }
    constant_headers = {
        "user-agent": f"claude-cli/{transcript.version} (external, cli)",
        "x-app": "cli",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
        "x-claude-code-session-id": transcript.session_id,
    }

    def build(step: Step) -> tuple[dict[str, Any], dict[str, str]]:
        messages = _with_breakpoint(step.messages, marker) if breakpoints else list(step.messages)
        body = {"model": step.model, "max_tokens": 32_000, **front, "messages": messages, "stream": True}
        agent = {"x-claude-code-agent-id": step.agent_id} if step.agent_id else {}
        return body | _thinking(transcript, step.model), constant_headers | agent

    return build


def _lane(transcript: Transcript) -> Lane:
    usages = [step.usage for step in transcript.steps if step.usage is not None]
    hour = sum(usage.cache_write_1h or 0 for usage in usages)
    return "1h" if 2 * hour > sum(usage.cache_write or 0 for usage in usages) else "5m"


def _thinking(transcript: Transcript, model: str) -> dict[str, Any]:
    if any(part in model for part in _NO_BUDGET):
        return {"thinking": {"type": "adaptive"}}
    if transcript.metadata.get("thinks"):
        return {"thinking": {"type": "enabled", "budget_tokens": 31_999}}
    return {}


def _with_breakpoint(messages: list[Message], marker: Mapping[str, str]) -> list[Message]:
    """A list whose last message is a copy with `cache_control` on its last block."""
    last = messages[-1]
    content = last["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    blocks[-1] = {**blocks[-1], "cache_control": dict(marker)}
    return [*messages[:-1], {**last, "content": blocks}]


# --- Codex -----------------------------------------------------------------------------------------------


def _codex(transcript: Transcript, prefix_tokens: int, _breakpoints: bool) -> Build:
    instructions = str(transcript.metadata.get("instructions") or "")
    content = [{"type": "input_text", "text": system_text(prefix_tokens, instructions)}]
    front = {"type": "message", "role": "developer", "content": content}
    tools = _tool_descriptions(transcript, _CODEX_TOOLS, prefix_tokens)
    constant = {
        "tools": [_codex_tool(name, text, transcript.tools.get(name, {})) for name, text in tools.items()],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": transcript.session_id,
    }

    def build(step: Step) -> tuple[dict[str, Any], dict[str, str]]:
        effort = {"effort": step.extra.get("effort") or "medium", "summary": "auto"}
        body = {"model": step.model, "input": [front, *step.messages], **constant, "reasoning": effort}
        return body, _codex_headers(transcript, step)

    return build


def _codex_headers(transcript: Transcript, step: Step) -> dict[str, str]:
    thread, parent = str(transcript.metadata["thread_id"]), str(transcript.metadata["parent"])
    source = "subagent" if parent else "user"
    turn = {"request_kind": "turn", "thread_source": source, "turn_id": step.ids[0]}
    headers = {
        "user-agent": f"{transcript.metadata['originator']}/{transcript.version}",
        "originator": str(transcript.metadata["originator"]),
        "session-id": transcript.session_id,
        "thread-id": thread,
        "x-codex-window-id": f"{thread}:0",
        "x-codex-turn-metadata": orjson.dumps(turn).decode(),
    }
    if parent:
        headers |= {"x-codex-parent-thread-id": parent, "x-openai-subagent": "collab_spawn"}
    return headers


def _codex_tool(name: str, text: str, tool: Mapping[str, Any]) -> dict[str, Any]:
    """The declaration of a tool whose calls in the transcript are of this kind and namespace."""
    kind = tool.get("kind")
    if kind == "web_search_call":
        return {"type": "web_search"}
    if kind == "tool_search_call":
        return {"type": "tool_search", "execution": "client", "description": text, "parameters": schema({})}
    if kind == "custom_tool_call":
        return {"type": "custom", "name": name, "description": text}
    function = {"type": "function", "name": name, "description": text, "strict": False, "parameters": schema({})}
    if tool.get("namespace"):
        return {"type": "namespace", "name": tool["namespace"], "description": text[:80], "tools": [function]}
    return function


# --- OpenCode --------------------------------------------------------------------------------------------


def _opencode(transcript: Transcript, prefix_tokens: int, _breakpoints: bool) -> Build:
    system = {"role": "system", "content": system_text(prefix_tokens)}
    functions = [
        {"name": name, "description": text, "parameters": schema(transcript.tools.get(name, {}))}
        for name, text in _tool_descriptions(transcript, _OPENCODE_TOOLS, prefix_tokens).items()
    ]
    tools = [{"type": "function", "function": function} for function in functions]
    headers = {
        "user-agent": f"opencode/{transcript.version}",
        "x-session-id": transcript.session_id,
        "x-session-affinity": transcript.session_id,
    }
    if transcript.metadata.get("parent"):
        headers["x-parent-session-id"] = str(transcript.metadata["parent"])

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


_BUILDERS: Mapping[Client, Callable[[Transcript, int, bool], Build]] = {
    "claude-code": _claude,
    "codex": _codex,
    "opencode": _opencode,
}
