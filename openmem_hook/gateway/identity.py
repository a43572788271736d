"""Who is calling, and which conversation it is.

The tenant comes from the gateway's authentication alone. The session comes from what the client said, in
one table from the most to the least explicit: its own headers, ids in the body, the cache key. Ids that the
gateway makes per request look alike and are never taken. Nothing found is `None`: the caller derives an id
from the history. Only the session part of a combined user id is read, never its account and device parts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# --- text from the wire ----------------------------------------------------------------------------------

_SAYS_NOTHING = frozenset({"", "null", "undefined", "none", "nil", "nan", "[object object]", "{}", "[]"})
LONGEST_ID = 200
"""Characters of an id that are kept as they are; real ids have 8 to 60. A longer one becomes its hash."""


def said(value: object) -> str | None:
    """An id as the client said it, or None when it says nothing.

    What is long or holds control characters is replaced by its hash: short, safe to show, and still different
    for different ids. Numbers and other JSON types are no ids.
    """
    if isinstance(value, bytes | bytearray):
        value = _decoded(bytes(value))
    if not isinstance(value, str):
        return None
    text = value.strip()
    if text.lower() in _SAYS_NOTHING:
        return None
    if len(text) <= LONGEST_ID and text.isprintable():
        return text
    return "sha256:" + hashlib.sha256(_encoded(text)).hexdigest()


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _encoded(text: str) -> bytes:
    """UTF-8 that also takes the lone surrogates which JSON may carry. No normal form: NFC and NFD differ."""
    return text.encode("utf-8", "surrogatepass")


def _json_object(value: object) -> Mapping[str, Any]:
    """A JSON object, given as text or parsed; empty for anything else."""
    if isinstance(value, bytes | bytearray):
        value = _decoded(bytes(value))
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, Mapping) else {}


def headers_of(data: Mapping[str, Any]) -> dict[str, str]:
    """The client's headers, names in lower case. Empty for pass-through requests, which carry none."""
    request = _mapping(data.get("proxy_server_request"))
    return _lowered(_mapping(request.get("headers")))


def _lowered(headers: Mapping[Any, Any]) -> dict[str, str]:
    pairs = ((_text(name).lower(), _text(value)) for name, value in headers.items())
    return {name: value for name, value in pairs if name}


def _text(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return _decoded(bytes(value))
    return value if isinstance(value, str) else ""


def _mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


# --- the agent -------------------------------------------------------------------------------------------

AGENTS: tuple[tuple[str, re.Pattern[str], tuple[str, ...]], ...] = (
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


def agent_of(headers: Mapping[Any, Any]) -> str:
    """`claude-code`, `codex`, `opencode`, or "" when unknown. The user agent counts before other headers."""
    seen = _lowered(headers)
    user_agent = seen.get("user-agent", "").strip().lower()
    by_name = (agent for agent, pattern, _ in AGENTS if pattern.search(user_agent))
    by_header = (agent for agent, _, names in AGENTS if any(name in seen for name in names))
    return next(by_name, None) or next(by_header, "")


# --- the session -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Session:
    """Which conversation a request belongs to.

    `id` is None when the client said nothing: the caller derives one. `agent_thread` tells a sub-agent that
    shares its parent's session apart, empty for the main line. `source` says which row of `SOURCES` answered.
    """

    id: str | None
    agent_thread: str = ""
    agent: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class _Evidence:
    """One request's material, parsed once. `made` holds the ids that the gateway made for this request."""

    headers: Mapping[str, str]
    body: Mapping[str, Any]
    metadata: Mapping[str, Any]
    user: Mapping[str, Any]
    codex: Mapping[str, Any]
    client: Mapping[str, Any]
    made: frozenset[str] = field(default=frozenset())
    trace: str | None = None


_Reader = Callable[[_Evidence], str | None]


def _header(name: str) -> _Reader:
    return lambda seen: said(seen.headers.get(name))


def _codex(*names: str) -> _Reader:
    """Codex's turn metadata, as a header or in the body's `client_metadata`."""
    return lambda seen: _first(said(seen.codex.get(name)) for name in names)


def _client(*names: str) -> _Reader:
    return lambda seen: _first(said(seen.client.get(name)) for name in names)


def _first(values: Iterator[str | None]) -> str | None:
    return next((value for value in values if value), None)


_VENDOR_SESSION = re.compile(r"^x-.+-session-id$")


def _any_vendor_header(seen: _Evidence) -> str | None:
    """`x-<vendor>-session-id` of clients we don't know, as LiteLLM reads it too."""
    names = sorted(name for name in seen.headers if _VENDOR_SESSION.match(name))
    return _first(said(seen.headers[name]) for name in names if name != "x-parent-session-id")


_OLD_USER_ID = re.compile(r"user_[^{}]*_session_([A-Za-z0-9-]+)")


def _combined_user_id(seen: _Evidence) -> str | None:
    """Claude Code's `metadata.user_id`: JSON text, or the older `user_…_account_…_session_<id>`."""
    if seen.user:
        return said(seen.user.get("session_id"))
    found = _OLD_USER_ID.fullmatch(_text(seen.metadata.get("user_id")).strip())
    return said(found[1]) if found else None


def _unless_made(value: object, seen: _Evidence) -> str | None:
    text = said(value)
    return None if text in seen.made else text


def _body_session(seen: _Evidence) -> str | None:
    """LiteLLM writes this key too, and its "original body" is a later snapshot: only an id it didn't make."""
    return _unless_made(seen.body.get("litellm_session_id"), seen)


def _metadata_session(seen: _Evidence) -> str | None:
    return _unless_made(seen.metadata.get("session_id"), seen)


def _trace(seen: _Evidence) -> str | None:
    return seen.trace


SOURCES: tuple[tuple[str, _Reader], ...] = (
    ("header x-claude-code-session-id", _header("x-claude-code-session-id")),
    ("header session-id", _header("session-id")),
    ("header session_id", _header("session_id")),
    ("turn metadata session", _codex("session_id", "session-id")),
    ("header x-codex-parent-thread-id", _header("x-codex-parent-thread-id")),
    ("header thread-id", _header("thread-id")),
    ("header thread_id", _header("thread_id")),
    ("turn metadata thread", _codex("thread_id", "thread-id")),
    ("header conversation_id", _header("conversation_id")),
    ("header x-session-id", _header("x-session-id")),
    ("header x-opencode-session", _header("x-opencode-session")),
    ("header x-session-affinity", _header("x-session-affinity")),
    ("header x-litellm-session-id", _header("x-litellm-session-id")),
    ("header x-<vendor>-session-id", _any_vendor_header),
    ("header x-parent-session-id", _header("x-parent-session-id")),
    ("body metadata.user_id", _combined_user_id),
    ("body client_metadata session", _client("session_id", "session-id")),
    ("body client_metadata thread", _client("thread_id", "thread-id")),
    ("body metadata.session_id", _metadata_session),
    ("body litellm_session_id", _body_session),
    ("body prompt_cache_key", lambda seen: said(seen.body.get("prompt_cache_key"))),
    ("pass-through trace", _trace),
)
"""Where a session id may stand, the most explicit first. Precedence is the order of the rows."""

THREADS: tuple[_Reader, ...] = (
    _header("x-claude-code-agent-id"),
    _header("thread-id"),
    _header("thread_id"),
    _codex("thread_id", "thread-id"),
    _client("thread_id", "thread-id"),
)
"""Where a sub-agent that shares its parent's session id says its own."""


def session_of(headers: Mapping[Any, Any], body: Mapping[str, Any], call: object = None) -> Session:
    """The session a request says it belongs to. `body` is the hook's `data`.

    `call` is LiteLLM's logging object; it counts only where there are no headers (pass-through).
    """
    seen = _evidence(_lowered(headers), body, call)
    agent = agent_of(seen.headers)
    for source, reader in SOURCES:
        found = reader(seen)
        if found:
            thread = _first(read(seen) for read in THREADS)
            return Session(found, thread if thread and thread != found else "", agent, source)
    return Session(None, _first(read(seen) for read in THREADS) or "", agent)


def _evidence(headers: Mapping[str, str], body: Mapping[str, Any], call: object) -> _Evidence:
    metadata = _json_object(body.get("metadata"))
    client = _json_object(body.get("client_metadata"))
    turn = headers.get("x-codex-turn-metadata") or client.get("x-codex-turn-metadata")
    return _Evidence(
        headers=headers,
        body=body,
        metadata=metadata,
        user=_json_object(metadata.get("user_id")),
        codex=_json_object(turn),
        client=client,
        made=frozenset(_made_ids(headers, body, metadata, call)),
        trace=None if headers else passthrough_session(call),
    )


_GENERATED = "litellm_session_id_generated"
"""LiteLLM's mark beside a session id that its `missing_session_id: generate` policy made (constants.py)."""


def _made_ids(
    headers: Mapping[str, str], body: Mapping[str, Any], metadata: Mapping[str, Any], call: object
) -> Iterator[str]:
    """Ids that stand for one request: made by the gateway, or a trace id that a header handed to it."""
    values = [body.get("litellm_trace_id"), body.get("litellm_call_id"), headers.get("x-litellm-trace-id")]
    values += [getattr(call, "litellm_trace_id", None), getattr(call, "litellm_call_id", None)]
    for holder in (metadata, _mapping(body.get("litellm_metadata"))):
        if holder.get(_GENERATED):
            values += [holder.get("session_id"), body.get("litellm_session_id")]
    return (text for text in map(said, values) if text)


PROJECT_HEADER = "x-openmem-project"


def project_of(headers: Mapping[str, str]) -> str:
    """The project a client names with its requests and its tools, as a hash; empty where it names none."""
    name = said(headers.get(PROJECT_HEADER))
    return "" if name is None else hashlib.sha256(_encoded(name)).hexdigest()[:16]


# --- the call --------------------------------------------------------------------------------------------

_RANDOM_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE)


def call_id_of(data: Mapping[str, Any]) -> str | None:
    """LiteLLM's id of this call, the key between request and usage. A client may choose it with a header."""
    logging = data.get("litellm_logging_obj")
    return _text(data.get("litellm_call_id")) or _text(getattr(logging, "litellm_call_id", None)) or None


_NO_TURN = re.compile(r"(?:count[_-]?tokens(?::\w+)?|/input_tokens|/compact)/?$", re.IGNORECASE)


def is_no_turn(user_api_key_dict: object) -> bool:
    """True for a history that is sent to be counted or condensed. Only the route says so where the gateway passes
    bodies through: they have the shape of a turn."""
    return _NO_TURN.search(_attribute(user_api_key_dict, "request_route")) is not None


def passthrough_session(call: object) -> str | None:
    """The session of a pass-through request, from the logging object's trace id.

    LiteLLM puts the session header there, or a fresh random UUID when there was none. The two can't be told
    apart when the header is a random UUID as well, so those are not taken: the body names such sessions.
    """
    trace = said(getattr(call, "litellm_trace_id", None))
    return None if trace is None or _RANDOM_UUID.fullmatch(trace) else trace


# --- the tenant ------------------------------------------------------------------------------------------

_NO_USER = "default_user_id"
_MASTER_KEY = "litellm_proxy_master_key"
_OPERATOR_TOKENS = frozenset({_MASTER_KEY, hashlib.sha256(_MASTER_KEY.encode()).hexdigest()})
"""LiteLLM's LITELLM_PROXY_ADMIN_NAME and LITELLM_PROXY_MASTER_KEY_ALIAS (constants.py)."""
_KEY_HASH = re.compile(r"[0-9a-f]{64}")
OPERATOR = "operator"
LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Authentication:
    """What the gateway's own set-up says about the identities it hands out.

    `open`: nothing is checked, so the key is whatever the client sent. `user_from_header`: the operator maps
    a request header over the user id, which any holder of a key can then forge.
    """

    open: bool = False
    user_from_header: bool = False


_OTHER_WAYS_IN = ("enable_jwt_auth", "enable_oauth2_auth", "enable_oauth2_proxy_auth")


def authentication_of(proxy: object) -> Authentication:
    """Reads it off `litellm.proxy.proxy_server`, handed in by the caller; unknown counts as authenticated."""
    settings = _mapping(getattr(proxy, "general_settings", None))
    mapped = settings.get("user_header_mappings")
    rows = mapped if isinstance(mapped, list) else [mapped]
    roles = (str(_mapping(row).get("litellm_user_role")).lower() for row in rows)
    return Authentication(
        open=_serves(proxy)
        and getattr(proxy, "master_key", "unknown") is None
        and getattr(proxy, "user_custom_auth", None) is None
        and not any(settings.get(flag) for flag in _OTHER_WAYS_IN),
        user_from_header=any(role.endswith("internal_user") for role in roles),
    )


def _serves(proxy: object) -> bool:
    """False for a gateway module that was imported but never read a configuration: it says nothing."""
    state = getattr(getattr(proxy, "proxy_config", None), "get_config_state", None)
    return bool(state()) if callable(state) else True


def tenant_of(user_api_key_dict: object, mode: str = "user", authentication: Authentication | None = None) -> str:
    """Who owns the session: `user:<id>`, `key:<hash>`, `team:<id>`, `operator` or `local`.

    Only from what the gateway authenticated, never from body, headers or `end_user_id`. Mode `team` falls
    back to the user where there is no team. A rotated key keeps its tenant through the user id, and is
    another tenant where there is none.
    """
    auth = authentication or Authentication()
    if auth.open:
        return LOCAL
    team = _named("team", _attribute(user_api_key_dict, "team_id"))
    user = None if auth.user_from_header else _user(user_api_key_dict)
    key = _key(user_api_key_dict)
    owners = (team, user, key) if mode == "team" else (user, key, team)
    return next((owner for owner in owners if owner), LOCAL)


def _attribute(holder: object, name: str) -> str:
    """A text attribute of whatever custom authentication handed over: object or mapping, present or not."""
    value = holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _text(value)


def _named(kind: str, value: str) -> str | None:
    return f"{kind}:{value}" if value.strip() else None


def _user(holder: object) -> str | None:
    user = _attribute(holder, "user_id")
    return OPERATOR if user.strip() == _NO_USER else _named("user", user)


def _key(holder: object) -> str | None:
    """The key's hash. Custom authentication may leave a key unhashed here: then it is hashed before use."""
    token = _attribute(holder, "token") or _attribute(holder, "api_key")
    if token in _OPERATOR_TOKENS:
        return OPERATOR
    if token and not _KEY_HASH.fullmatch(token):
        token = hashlib.sha256(_encoded(token)).hexdigest()
    return _named("key", token)
