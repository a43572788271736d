"""Which conversation a request belongs to, and which agent sends it.

Both come from what the client wrote, in one table from the most to the least explicit: its own headers, ids in the
body, the cache key. Ids that the gateway makes per request look alike and are never taken. Where nothing is written
the id is None: the caller derives one from the history. Only the session part of a combined user id is read, never
its account and device parts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from openmem_hook.gateway.client_values import as_mapping, as_text, client_value, encode, json_object, lower_names
from openmem_hook.settings import Agent

# --- the agent -------------------------------------------------------------------------------------------

AGENTS: tuple[tuple[Agent, re.Pattern[str], tuple[str, ...]], ...] = (
    (
        "claude-code",
        re.compile(r"^claude-(cli|code)/"),
        ("x-claude-code-session-id", "x-claude-code-agent-id"),
    ),
    (
        "codex",
        re.compile(r"^codex[-_ /]"),
        ("x-codex-turn-metadata", "x-codex-window-id", "x-codex-parent-thread-id", "x-codex-installation-id"),
    ),
    (
        "opencode",
        re.compile(r"\bopencode/"),
        ("x-opencode-session", "x-opencode-client", "x-opencode-request", "x-session-affinity"),
    ),
)
"""Agent, user agent (lower case; the first two as LiteLLM 1.108.7 knows them), and headers only it sends."""


def agent_of(headers: Mapping[Any, Any]) -> Agent | Literal[""]:
    """The agent that sends these headers, "" when unknown. The user agent counts before other headers."""
    lower = lower_names(headers)
    user_agent = lower.get("user-agent", "").strip().lower()
    by_name = [agent for agent, pattern, _ in AGENTS if pattern.search(user_agent)]
    by_header = [agent for agent, _, names in AGENTS if any(name in lower for name in names)]
    return next(iter(by_name + by_header), "")


# --- where an id may stand -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What one request says of its session, parsed once."""

    headers: Mapping[str, str]
    """Names in lower case."""

    body: Mapping[str, Any]
    metadata: Mapping[str, Any]
    """The body's `metadata`."""

    user: Mapping[str, Any]
    """The parts of Claude Code's combined user id, where it is JSON."""

    turn: Mapping[str, Any]
    """Codex's turn metadata, from its header or the body's `client_metadata`."""

    client: Mapping[str, Any]
    """The body's `client_metadata`."""

    gateway_ids: frozenset[str]
    """Ids that the gateway made for this very request."""

    trace: str | None
    """The session of a pass-through request."""


_Reader = Callable[[_Evidence], str | None]


def _first(values: Iterable[str | None]) -> str | None:
    return next((value for value in values if value), None)


def _header(name: str) -> _Reader:
    return lambda evidence: client_value(evidence.headers.get(name))


def _turn(*names: str) -> _Reader:
    return lambda evidence: _first(client_value(evidence.turn.get(name)) for name in names)


def _client(*names: str) -> _Reader:
    return lambda evidence: _first(client_value(evidence.client.get(name)) for name in names)


_VENDOR_SESSION = re.compile(r"^x-.+-session-id$")


def _any_vendor_header(evidence: _Evidence) -> str | None:
    """`x-<vendor>-session-id` of clients we don't know, as LiteLLM reads it too."""
    names = sorted(name for name in evidence.headers if _VENDOR_SESSION.match(name))
    return _first(client_value(evidence.headers[name]) for name in names if name != "x-parent-session-id")


_OLD_USER_ID = re.compile(r"user_[^{}]*_session_([A-Za-z0-9-]+)")


def _combined_user_id(evidence: _Evidence) -> str | None:
    """Claude Code's `metadata.user_id`: JSON text, or the older `user_…_account_…_session_<id>`."""
    if evidence.user:
        return client_value(evidence.user.get("session_id"))
    match = _OLD_USER_ID.fullmatch(as_text(evidence.metadata.get("user_id")).strip())
    return client_value(match[1]) if match else None


def _metadata_session(evidence: _Evidence) -> str | None:
    """LiteLLM writes this key too, as the next one: only an id it didn't make is the client's."""
    session = client_value(evidence.metadata.get("session_id"))
    return None if session in evidence.gateway_ids else session


def _body_session(evidence: _Evidence) -> str | None:
    """The gateway's "original body" is of no help here: it is a later snapshot."""
    session = client_value(evidence.body.get("litellm_session_id"))
    return None if session in evidence.gateway_ids else session


SOURCES: tuple[_Reader, ...] = (
    # The client's own headers.
    _header("x-claude-code-session-id"),
    _header("session-id"),
    _header("session_id"),
    _turn("session_id", "session-id"),
    _header("x-codex-parent-thread-id"),
    _header("thread-id"),
    _header("thread_id"),
    _turn("thread_id", "thread-id"),
    _header("conversation_id"),
    _header("x-session-id"),
    _header("x-opencode-session"),
    _header("x-session-affinity"),
    _header("x-litellm-session-id"),
    _any_vendor_header,
    _header("x-parent-session-id"),
    # Ids in the body.
    _combined_user_id,
    _client("session_id", "session-id"),
    _client("thread_id", "thread-id"),
    _metadata_session,
    _body_session,
    # What merely stays the same for a conversation.
    lambda evidence: client_value(evidence.body.get("prompt_cache_key")),
    lambda evidence: evidence.trace,
)
"""Where a session id may stand, the most explicit first. Precedence is the order of the rows."""

THREADS: tuple[_Reader, ...] = (
    _header("x-claude-code-agent-id"),
    _header("thread-id"),
    _header("thread_id"),
    _turn("thread_id", "thread-id"),
    _client("thread_id", "thread-id"),
)
"""Where a sub-agent that shares its parent's session id writes its own."""


# --- the session -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionIdentity:
    """Which conversation a request belongs to."""

    id: str | None
    """The client's id; None where it wrote none, and the caller derives one."""

    subagent: str = ""
    """Tells a sub-agent that shares its parent's session apart; "" for the main line."""

    agent: Agent | Literal[""] = ""


def session_of(headers: Mapping[Any, Any], body: Mapping[str, Any], call: object = None) -> SessionIdentity:
    """The session a request says it belongs to. `body` is the hook's `data`.

    `call` is LiteLLM's logging object; it counts only where there are no headers (pass-through).
    """
    # What holds ids, parsed once for all rows of the tables.
    lower = lower_names(headers)
    metadata = json_object(body.get("metadata"))
    client = json_object(body.get("client_metadata"))
    evidence = _Evidence(
        headers=lower,
        body=body,
        metadata=metadata,
        user=json_object(metadata.get("user_id")),
        turn=json_object(lower.get("x-codex-turn-metadata") or client.get("x-codex-turn-metadata")),
        client=client,
        gateway_ids=frozenset(_gateway_ids(lower, body, metadata, call)),
        trace=None if lower else passthrough_session(call),
    )

    # The most explicit row that says something decides.
    session = _first(read(evidence) for read in SOURCES)
    thread = _first(read(evidence) for read in THREADS) or ""

    # Codex's main line names itself as its thread: that is no sub-agent.
    return SessionIdentity(session, "" if thread == session else thread, agent_of(lower))


_GENERATED_MARK = "litellm_session_id_generated"
"""LiteLLM's mark beside a session id that its `missing_session_id: generate` policy made (constants.py)."""


def _gateway_ids(
    headers: Mapping[str, str], body: Mapping[str, Any], metadata: Mapping[str, Any], call: object
) -> Iterator[str]:
    """Ids that stand for one request: made by the gateway, or a trace id that a header handed to it."""
    values = [body.get("litellm_trace_id"), body.get("litellm_call_id"), headers.get("x-litellm-trace-id")]
    values += [getattr(call, "litellm_trace_id", None), getattr(call, "litellm_call_id", None)]
    for holder in (metadata, as_mapping(body.get("litellm_metadata"))):
        if holder.get(_GENERATED_MARK):
            values += [holder.get("session_id"), body.get("litellm_session_id")]
    return (text for text in map(client_value, values) if text)


_RANDOM_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE)


def passthrough_session(call: object) -> str | None:
    """The session of a pass-through request, from the logging object's trace id.

    LiteLLM puts the session header there, or a fresh random UUID when there was none. The two can't be told
    apart when the header is a random UUID as well, so those are not taken: the body names such sessions.
    """
    trace = client_value(getattr(call, "litellm_trace_id", None))
    return None if trace is None or _RANDOM_UUID.fullmatch(trace) else trace


PROJECT_HEADER = "x-openmem-project"
"""The header by which a client may name its project, for searches within it."""


def project_of(headers: Mapping[str, str]) -> str:
    """The project a client names with its requests and its tools, as a hash; "" where it names none."""
    name = client_value(headers.get(PROJECT_HEADER))
    return "" if name is None else hashlib.sha256(encode(name)).hexdigest()[:16]
