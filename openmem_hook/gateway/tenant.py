"""Who owns a session: only what the gateway authenticated, never what a client wrote."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from openmem_hook.gateway.client_values import as_mapping, as_text, encode
from openmem_hook.settings import Owner

_NO_USER = "default_user_id"
_MASTER_KEY = "litellm_proxy_master_key"
_OPERATOR_TOKENS = frozenset({_MASTER_KEY, hashlib.sha256(_MASTER_KEY.encode()).hexdigest()})
"""LiteLLM's LITELLM_PROXY_ADMIN_NAME and LITELLM_PROXY_MASTER_KEY_ALIAS (constants.py)."""

_KEY_HASH = re.compile(r"[0-9a-f]{64}")
"""SHA-256 in hex, as LiteLLM keeps keys."""

OPERATOR = "operator"
"""The holder of the gateway's master key."""

LOCAL = "local"
"""Everybody, where the gateway checks no keys."""


@dataclass(frozen=True, slots=True)
class Authentication:
    """What the gateway's own set-up says about the identities it hands out."""

    open: bool = False
    """Nothing is checked, so the key is whatever the client sent."""

    user_from_header: bool = False
    """The operator maps a request header over the user id, which any holder of a key can then forge."""


_OTHER_AUTHENTICATION = ("enable_jwt_auth", "enable_oauth2_auth", "enable_oauth2_proxy_auth")
"""General settings of LiteLLM that authenticate by something else than its keys."""


def authentication_of(proxy: object) -> Authentication:
    """Reads it off `litellm.proxy.proxy_server`, handed in by the caller; unknown counts as authenticated."""
    settings = as_mapping(getattr(proxy, "general_settings", None))

    # A gateway module that was imported but never read a configuration says nothing.
    state = getattr(getattr(proxy, "proxy_config", None), "get_config_state", None)
    is_serving = bool(state()) if callable(state) else True
    is_open = (
        is_serving
        and getattr(proxy, "master_key", "unknown") is None
        and getattr(proxy, "user_custom_auth", None) is None
        and not any(settings.get(flag) for flag in _OTHER_AUTHENTICATION)
    )

    # One mapping of a header to the user, or a list of them.
    mappings = settings.get("user_header_mappings")
    rows = mappings if isinstance(mappings, list) else [mappings]
    roles = (str(as_mapping(row).get("litellm_user_role")).lower() for row in rows)
    return Authentication(is_open, user_from_header=any(role.endswith("internal_user") for role in roles))


def tenant_of(key: object, mode: Owner = "user", authentication: Authentication | None = None) -> str:
    """Who owns the session: `user:<id>`, `key:<hash>`, `team:<id>`, `operator` or `local`.

    `key` is LiteLLM's `user_api_key_dict`; body, headers and `end_user_id` are never looked at. Mode `team` falls
    back to the user where there is no team. A rotated key keeps its tenant through the user id, and is
    another tenant where there is none.
    """
    auth = authentication or Authentication()
    if auth.open:
        return LOCAL

    # LiteLLM gives the master key a user id of its own.
    user_id = key_attribute(key, "user_id")
    user = OPERATOR if user_id.strip() == _NO_USER else _label("user", user_id)
    if auth.user_from_header:
        user = None

    # Custom authentication may leave a key unhashed here: it is hashed before use.
    token = key_attribute(key, "token") or key_attribute(key, "api_key")
    if token in _OPERATOR_TOKENS:
        holder: str | None = OPERATOR
    else:
        is_plain = token and not _KEY_HASH.fullmatch(token)
        holder = _label("key", hashlib.sha256(encode(token)).hexdigest() if is_plain else token)

    team = _label("team", key_attribute(key, "team_id"))
    owners = (team, user, holder) if mode == "team" else (user, holder, team)
    return next((owner for owner in owners if owner), LOCAL)


def _label(kind: str, value: str) -> str | None:
    return f"{kind}:{value}" if value.strip() else None


def key_attribute(key: object, name: str) -> str:
    """A text attribute of whatever custom authentication handed over: object or mapping, present or not."""
    value = key.get(name) if isinstance(key, Mapping) else getattr(key, name, None)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return as_text(value)
