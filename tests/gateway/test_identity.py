"""Who is calling and which conversation it is."""

from __future__ import annotations

import hashlib
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest

from openmem_hook.gateway.client_values import LONGEST_ID, client_value, headers_of
from openmem_hook.gateway.request import call_id_of
from openmem_hook.gateway.session import SessionIdentity, agent_of, passthrough_session, session_of
from openmem_hook.gateway.tenant import Authentication, authentication_of, tenant_of
from openmem_hook.store.names import session_name, tenant_folder

SESSION = "0f2ad9a4-3e7b-4c55-9d3a-2b1c64c0aa01"
OTHER = "77aa01c2-5b0e-4f0c-8a44-000000000002"
MADE = "11111111-2222-4333-8444-555555555555"
ACCOUNT, DEVICE = "canary-account-7f3", "canary-device-9b1"

NEW_USER_ID = json.dumps({"device_id": DEVICE, "account_uuid": ACCOUNT, "session_id": SESSION})
OLD_USER_ID = f"user_{DEVICE.replace('-', '')}_account_{ACCOUNT}_session_{SESSION}"
TURN = json.dumps({"session_id": SESSION, "thread_id": OTHER, "turn_id": "t-1", "request_kind": "turn"})


def metadata(**values: object) -> dict[str, object]:
    return {"metadata": values}


def call(**ids: str) -> SimpleNamespace:
    return SimpleNamespace(**ids)


# --- where a session id may stand ------------------------------------------------------------------------

ROWS: dict[str, tuple[dict[Any, Any], dict[str, Any], str | None, str]] = {
    "claude code": ({"x-claude-code-session-id": SESSION}, {}, SESSION, ""),
    "claude code sub-agent": (
        {"x-claude-code-session-id": SESSION, "x-claude-code-agent-id": "agent-7"},
        {},
        SESSION,
        "agent-7",
    ),
    "user id as json text": ({}, metadata(user_id=NEW_USER_ID), SESSION, ""),
    "user id as json bytes": ({}, metadata(user_id=NEW_USER_ID.encode()), SESSION, ""),
    "user id as an object": ({}, metadata(user_id=json.loads(NEW_USER_ID)), SESSION, ""),
    "old user id": ({}, metadata(user_id=OLD_USER_ID), SESSION, ""),
    "old user id, account empty": (
        {},
        metadata(user_id=f"user_ab12_account__session_{SESSION}"),
        SESSION,
        "",
    ),
    "user id that is somebody": ({}, metadata(user_id="ada@example.com"), None, ""),
    "user id without a session": ({}, metadata(user_id=json.dumps({"account_uuid": ACCOUNT})), None, ""),
    "user id with an empty session": ({}, metadata(user_id=json.dumps({"session_id": ""})), None, ""),
    "user id that fails to parse": ({}, metadata(user_id=NEW_USER_ID[:-4]), None, ""),
    "user id that fails to parse, cache key next": (
        {},
        metadata(user_id=NEW_USER_ID[:-4]) | {"prompt_cache_key": OTHER},
        OTHER,
        "",
    ),
    "user id nested too deep": ({}, metadata(user_id='{"a":' * 100_000), None, ""),
    "codex session-id": ({"session-id": SESSION}, {}, SESSION, ""),
    "codex session_id": ({"session_id": SESSION}, {}, SESSION, ""),
    "codex thread-id": ({"thread-id": SESSION}, {}, SESSION, ""),
    "codex conversation_id": ({"conversation_id": SESSION}, {}, SESSION, ""),
    "codex main thread": ({"session-id": SESSION, "thread-id": SESSION}, {}, SESSION, ""),
    "codex sub-agent": (
        {"session-id": SESSION, "thread-id": OTHER, "x-codex-parent-thread-id": SESSION},
        {"prompt_cache_key": SESSION},
        SESSION,
        OTHER,
    ),
    "codex sub-agent without session-id": (
        {"thread-id": OTHER, "x-codex-parent-thread-id": SESSION},
        {},
        SESSION,
        OTHER,
    ),
    "codex turn metadata": ({"x-codex-turn-metadata": TURN}, {}, SESSION, OTHER),
    "codex turn metadata with a thread only": (
        {"x-codex-turn-metadata": json.dumps({"thread_id": OTHER})},
        {},
        OTHER,
        "",
    ),
    "codex turn metadata that fails to parse": (
        {"x-codex-turn-metadata": "{oops", "conversation_id": SESSION},
        {},
        SESSION,
        "",
    ),
    "codex turn metadata in the body": (
        {},
        {"client_metadata": {"x-codex-turn-metadata": TURN, "x-codex-installation-id": DEVICE}},
        SESSION,
        OTHER,
    ),
    "codex client metadata": (
        {},
        {"client_metadata": {"session_id": SESSION, "thread_id": OTHER, "x-codex-installation-id": DEVICE}},
        SESSION,
        OTHER,
    ),
    "codex installation only": ({}, {"client_metadata": {"x-codex-installation-id": DEVICE}}, None, ""),
    "cache key": ({}, {"prompt_cache_key": SESSION}, SESSION, ""),
    "opencode": ({"x-session-id": "ses_1", "x-session-affinity": "ses_1"}, {}, "ses_1", ""),
    "opencode sub-agent": ({"x-session-id": "ses_2", "x-parent-session-id": "ses_1"}, {}, "ses_2", ""),
    "opencode old": ({"x-opencode-session": "ses_1", "x-opencode-request": "msg_9"}, {}, "ses_1", ""),
    "opencode affinity": ({"x-session-affinity": "ses_1"}, {}, "ses_1", ""),
    "opencode parent alone": ({"x-parent-session-id": "ses_1"}, {}, "ses_1", ""),
    "litellm header": ({"x-litellm-session-id": SESSION}, {}, SESSION, ""),
    "litellm header beats another vendor's": (
        {"x-acme-session-id": OTHER, "x-litellm-session-id": SESSION},
        {},
        SESSION,
        "",
    ),
    "another vendor's header": ({"x-acme-session-id": SESSION}, {}, SESSION, ""),
    "another vendor's header and a parent": (
        {"x-zeta-session-id": SESSION, "x-parent-session-id": OTHER},
        {},
        SESSION,
        "",
    ),
    "explicit body": ({}, {"litellm_session_id": SESSION}, SESSION, ""),
    "explicit metadata": ({}, metadata(session_id=SESSION), SESSION, ""),
    "metadata as text": ({}, {"metadata": json.dumps({"session_id": SESSION})}, SESSION, ""),
    "explicit metadata and trace": ({}, metadata(session_id=SESSION, trace_id=SESSION), SESSION, ""),
    "generated trace id": ({}, {"litellm_trace_id": MADE, "litellm_call_id": MADE}, None, ""),
    "generated session id": (
        {},
        {"litellm_session_id": MADE, "litellm_trace_id": MADE}
        | {"litellm_metadata": {"session_id": MADE, "litellm_session_id_generated": True}},
        None,
        "",
    ),
    "generated session id, older trace": (
        {},
        {"litellm_session_id": MADE, "litellm_trace_id": OTHER}
        | metadata(session_id=MADE, litellm_session_id_generated=True),
        None,
        "",
    ),
    "generated session id without a mark": (
        {},
        {"litellm_session_id": MADE, "litellm_trace_id": MADE} | metadata(session_id=MADE),
        None,
        "",
    ),
    "session id that is the call id": ({}, {"litellm_session_id": MADE, "litellm_call_id": MADE}, None, ""),
    "trace header that litellm copied": (
        {"x-litellm-trace-id": MADE},
        {"litellm_session_id": MADE, "litellm_trace_id": MADE} | metadata(session_id=MADE, trace_id=MADE),
        None,
        "",
    ),
    "trace header that became the session": (
        {"x-litellm-trace-id": MADE},
        {"litellm_session_id": MADE},
        None,
        "",
    ),
    "what litellm resolved to the parent": (
        {"x-session-id": "ses_2", "x-parent-session-id": "ses_1"},
        {"litellm_session_id": "ses_1", "litellm_trace_id": "ses_1"},
        "ses_2",
        "",
    ),
    "header beats body": (
        {"x-claude-code-session-id": SESSION},
        metadata(user_id=NEW_USER_ID.replace(SESSION, OTHER)),
        SESSION,
        "",
    ),
    "body beats cache key": ({}, metadata(session_id=SESSION) | {"prompt_cache_key": OTHER}, SESSION, ""),
    "header beats cache key": ({"session-id": SESSION}, {"prompt_cache_key": OTHER}, SESSION, ""),
    "own header beats the gateway's": (
        {"x-claude-code-session-id": SESSION, "x-litellm-session-id": OTHER},
        {},
        SESSION,
        "",
    ),
    "any case": ({"X-Claude-Code-Session-Id": SESSION, "X-CLAUDE-CODE-AGENT-ID": "a"}, {}, SESSION, "a"),
    "bytes": ({b"X-Session-Id": b"ses_1"}, {}, "ses_1", ""),
    "white space around": ({"x-session-id": f"  {SESSION}\t"}, {}, SESSION, ""),
    "nothing": ({}, {}, None, ""),
    "nothing but others": (
        {"user-agent": "curl/8", "x-request-id": MADE, "x-forwarded-for": "10.0.0.1"},
        {"user": "ada"},
        None,
        "",
    ),
}


@pytest.mark.parametrize(("headers", "body", "expected", "thread"), ROWS.values(), ids=ROWS)
def test_a_session_id_is_found_where_the_client_said_it(headers, body, expected, thread) -> None:
    found = session_of(headers, body, None)
    assert (found.id, found.subagent) == (expected, thread)
    assert "canary" not in repr(found)


@pytest.mark.parametrize(("headers", "body", "expected", "thread"), ROWS.values(), ids=ROWS)
def test_two_requests_of_one_session_say_the_same(headers, body, expected, thread) -> None:
    fresh = {"litellm_call_id": "call-2", "messages": [{"role": "user", "content": "next"}]}
    if "litellm_call_id" in body or "trace" in str(body):
        fresh.pop("litellm_call_id")
    first, second = session_of(headers, body), session_of(dict(headers), {**body, **fresh})
    assert (first.id, first.subagent) == (second.id, second.subagent) == (expected, thread)


ONE_SOURCE = {
    name: (headers, body)
    for name, (headers, body, expected, _) in ROWS.items()
    if expected and len(headers) == 1 and not body and "metadata" not in name
}


@pytest.mark.parametrize("empty", ["", "  ", "null", "NULL", "undefined", "None", b"", b"null", None, 5, True])
@pytest.mark.parametrize("name", [next(iter(headers)) for headers, _ in ONE_SOURCE.values()])
def test_an_empty_header_says_nothing_and_the_next_source_counts(name, empty) -> None:
    assert session_of({name: empty}, {}) == SessionIdentity(None, "", agent_of({name: empty}))
    assert session_of({name: empty}, {"prompt_cache_key": SESSION}).id == SESSION


@pytest.mark.parametrize("empty", ["", " ", "null", "undefined", None, 5, True, [], {"id": SESSION}])
@pytest.mark.parametrize("place", ["prompt_cache_key", "litellm_session_id", "metadata.session_id", "metadata.user_id"])
def test_an_empty_value_in_the_body_says_nothing(place: str, empty: object) -> None:
    outer, dot, inner = place.partition(".")
    assert session_of({}, {outer: {inner: empty} if dot else empty}).id is None


@pytest.mark.parametrize("body", [{"metadata": None}, {"metadata": [1]}, {"metadata": 5}, {"client_metadata": "x"}])
def test_strange_bodies_say_nothing(body: dict[str, Any]) -> None:
    assert session_of({}, body) == SessionIdentity(None)


def test_a_sub_agent_shares_the_session_and_has_its_own_thread() -> None:
    main = session_of({"x-claude-code-session-id": SESSION}, {})
    sub = session_of({"x-claude-code-session-id": SESSION, "x-claude-code-agent-id": "a1"}, {})
    other = session_of({"x-claude-code-session-id": SESSION, "x-claude-code-agent-id": "a2"}, {})
    assert main.id == sub.id == other.id
    assert len({main.subagent, sub.subagent, other.subagent}) == 3


def test_an_agent_id_without_a_session_still_separates_the_thread() -> None:
    assert session_of({"x-claude-code-agent-id": "a1"}, {}) == SessionIdentity(None, "a1", "claude-code")


LONG = [
    "x" * 4096,
    "x" * 4095 + "y",
    "x" * LONGEST_ID,
    "x" * (LONGEST_ID + 1),
    "a\nb",
    "a\x00b",
    "ab",
    "\ud800",
]


def test_long_and_unprintable_ids_become_short_and_never_collide() -> None:
    found = [client_value(value) for value in LONG]
    assert len(set(found)) == len(LONG)
    assert all(value and value.isprintable() and len(value) <= LONGEST_ID for value in found)


def test_bytes_that_are_no_utf8_are_an_id_all_the_same() -> None:
    assert client_value(b"\xff\xfe") != client_value(b"\xff\xfd")
    assert client_value(b"ses_1") == client_value("ses_1")


# --- pass-through and the call ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trace", "expected"),
    [("ses_1", "ses_1"), (MADE, None), (MADE.upper(), None), ("", None), (None, None), (5, None)],
)
def test_a_pass_through_request_is_known_by_its_trace_unless_that_may_be_random(trace, expected) -> None:
    logging = call(litellm_trace_id=trace)
    assert passthrough_session(logging) == expected
    assert session_of({}, {"messages": []}, logging).id == expected


def test_the_body_of_a_pass_through_request_beats_its_trace() -> None:
    body = metadata(user_id=NEW_USER_ID)
    assert session_of({}, body, call(litellm_trace_id="ses_1")).id == SESSION
    assert session_of({}, body, call(litellm_trace_id=MADE)).id == SESSION


def test_a_trace_is_not_looked_at_where_there_are_headers() -> None:
    assert session_of({"user-agent": "x"}, {}, call(litellm_trace_id="ses_1")).id is None


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"litellm_call_id": "c1", "litellm_logging_obj": call(litellm_call_id="c2")}, "c1"),
        ({"litellm_logging_obj": call(litellm_call_id="c2")}, "c2"),
        ({"litellm_call_id": "x" * 300}, "x" * 300),
        ({"litellm_logging_obj": object()}, None),
        ({"litellm_call_id": None}, None),
        ({}, None),
    ],
)
def test_the_call_id_is_found_in_data_or_in_the_logging_object(data, expected) -> None:
    assert call_id_of(data) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            {"proxy_server_request": {"headers": {"User-Agent": "x", b"A": b"b"}}},
            {"user-agent": "x", "a": "b"},
        ),
        ({"proxy_server_request": {"headers": None}}, {}),
        ({"proxy_server_request": None}, {}),
        ({}, {}),
    ],
)
def test_headers_are_read_in_lower_case(data, expected) -> None:
    assert headers_of(data) == expected


@pytest.mark.parametrize(
    ("headers", "agent"),
    [
        ({"user-agent": "claude-cli/2.1.332 (external, cli)"}, "claude-code"),
        ({"User-Agent": b"claude-code/2.1.332"}, "claude-code"),
        ({"user-agent": "codex_cli_rs/0.171.0 (Debian 12; x86_64)"}, "codex"),
        ({"user-agent": "codex_exec/0.171.0"}, "codex"),
        ({"user-agent": "Codex Desktop/1.0"}, "codex"),
        ({"user-agent": "opencode/1.18.33 ai-sdk/provider-utils/3.0"}, "opencode"),
        ({"user-agent": "ai-sdk/anthropic/2.0 opencode/1.18.33"}, "opencode"),
        ({"x-claude-code-session-id": SESSION}, "claude-code"),
        ({"x-codex-turn-metadata": "{}"}, "codex"),
        ({"x-opencode-session": "ses_1"}, "opencode"),
        ({"user-agent": "codex_cli_rs/0.1", "x-claude-code-session-id": SESSION}, "codex"),
        ({"user-agent": "QwenCode/0.15.10 (linux; x64)"}, ""),
        ({"user-agent": "my-claude-cli/1"}, ""),
        ({"user-agent": "codexes"}, ""),
        ({"user-agent": None}, ""),
        ({}, ""),
    ],
)
def test_the_agent_is_known_by_user_agent_then_by_its_own_headers(headers, agent) -> None:
    assert agent_of(headers) == agent
    assert session_of(headers, {}).agent == agent


# --- tenants ---------------------------------------------------------------------------------------------

HASH_1, HASH_2 = hashlib.sha256(b"sk-1").hexdigest(), hashlib.sha256(b"sk-2").hexdigest()
MASTER = "litellm_proxy_master_key"


def key(**fields: object) -> SimpleNamespace:
    return SimpleNamespace(**fields)


@pytest.mark.parametrize(
    ("who", "user_mode", "team_mode"),
    [
        (key(user_id="ada", token=HASH_1, team_id="t"), "user:ada", "team:t"),
        (key(user_id="ada", token=HASH_1, team_id=None), "user:ada", "user:ada"),
        (key(user_id=None, token=HASH_1, team_id="t"), f"key:{HASH_1}", "team:t"),
        (key(user_id=None, token=HASH_1, team_id=None), f"key:{HASH_1}", f"key:{HASH_1}"),
        (key(user_id="", token=HASH_1), f"key:{HASH_1}", f"key:{HASH_1}"),
        (key(user_id="default_user_id", token=MASTER, api_key=MASTER), "operator", "operator"),
        (key(user_id=None, token=hashlib.sha256(MASTER.encode()).hexdigest()), "operator", "operator"),
        (key(user_id="default_user_id", token=HASH_1), "operator", "operator"),
        (key(user_id=None, token=None, api_key=None, team_id="t"), "team:t", "team:t"),
        (key(user_id=None, token=None, api_key=HASH_2), f"key:{HASH_2}", f"key:{HASH_2}"),
        (key(user_id=42, token=HASH_1), "user:42", "user:42"),
        (key(), "local", "local"),
        (None, "local", "local"),
        (object(), "local", "local"),
        ({"user_id": "ada"}, "user:ada", "user:ada"),
    ],
)
def test_the_tenant_is_what_the_gateway_authenticated(who, user_mode, team_mode) -> None:
    assert tenant_of(who, "user") == user_mode
    assert tenant_of(who, "team") == team_mode


def test_two_keys_of_one_user_and_a_rotated_key_are_one_tenant() -> None:
    assert tenant_of(key(user_id="ada", token=HASH_1)) == tenant_of(key(user_id="ada", token=HASH_2))


def test_a_rotated_key_without_a_user_is_another_tenant() -> None:
    assert tenant_of(key(token=HASH_1)) != tenant_of(key(token=HASH_2))


def test_kinds_of_tenants_never_collide() -> None:
    tenants = [
        tenant_of(key(user_id=HASH_1)),
        tenant_of(key(token=HASH_1)),
        tenant_of(key(team_id=HASH_1)),
        tenant_of(key(user_id="operator")),
        tenant_of(key(user_id="default_user_id")),
        tenant_of(key(user_id="local")),
        tenant_of(None),
        tenant_of(key(user_id=f"key:{HASH_1}")),
    ]
    assert len(set(tenants)) == len(tenants)


def test_a_key_that_custom_authentication_left_unhashed_is_never_shown() -> None:
    tenant = tenant_of(key(token="secret-canary"))
    assert tenant == f"key:{hashlib.sha256(b'secret-canary').hexdigest()}"


def test_the_end_user_of_the_request_is_no_tenant() -> None:
    assert tenant_of(key(end_user_id=NEW_USER_ID, end_user="ada", request_route="/x")) == "local"


OPEN = {"master_key": None, "general_settings": {}, "user_custom_auth": None}


@pytest.mark.parametrize(
    ("proxy", "is_open"),
    [
        (OPEN, True),
        (OPEN | {"master_key": "sk-1"}, False),
        (OPEN | {"user_custom_auth": print}, False),
        (OPEN | {"general_settings": {"enable_jwt_auth": True}}, False),
        (OPEN | {"general_settings": {"enable_oauth2_auth": True}}, False),
        (OPEN | {"general_settings": {"enable_oauth2_proxy_auth": True}}, False),
        (OPEN | {"general_settings": {"enable_jwt_auth": False}}, True),
        (OPEN | {"general_settings": None}, True),
        ({}, False),
    ],
)
def test_a_gateway_is_open_only_when_nothing_can_check_a_key(proxy, is_open) -> None:
    assert authentication_of(SimpleNamespace(**proxy)).open is is_open


@pytest.mark.parametrize("who", [key(), key(api_key="anything", token="anything"), key(user_id="ada")])
def test_an_open_gateway_has_one_tenant_whatever_key_is_sent(who) -> None:
    assert tenant_of(who, "user", Authentication(open=True)) == "local"


@pytest.mark.parametrize(
    ("mapping", "forged"),
    [
        ([{"header_name": "x-user", "litellm_user_role": "internal_user"}], True),
        ({"header_name": "x-user", "litellm_user_role": "INTERNAL_USER"}, True),
        ([{"header_name": "x-user", "litellm_user_role": "customer"}], False),
        ([], False),
        (None, False),
    ],
)
def test_a_user_id_that_comes_from_a_header_is_not_believed(mapping, forged) -> None:
    proxy = SimpleNamespace(master_key="sk", general_settings={"user_header_mappings": mapping})
    tenant = tenant_of(key(user_id="victim", token=HASH_1), "user", authentication_of(proxy))
    assert tenant == (f"key:{HASH_1}" if forged else "user:victim")


@pytest.mark.filterwarnings("ignore")
def test_litellms_own_key_objects_are_read_as_it_fills_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    from litellm.constants import LITELLM_PROXY_ADMIN_NAME, LITELLM_PROXY_MASTER_KEY_ALIAS
    from litellm.types.proxy.auth.user_api_key_auth import UserAPIKeyAuth

    master = UserAPIKeyAuth(api_key=LITELLM_PROXY_MASTER_KEY_ALIAS, user_id=LITELLM_PROXY_ADMIN_NAME)
    assert tenant_of(master) == "operator"
    assert tenant_of(UserAPIKeyAuth(api_key=LITELLM_PROXY_MASTER_KEY_ALIAS)) == "operator"
    assert tenant_of(UserAPIKeyAuth(api_key="sk-1")) == f"key:{HASH_1}"
    assert tenant_of(UserAPIKeyAuth(api_key="sk-1", user_id="ada")) == "user:ada"
    assert tenant_of(UserAPIKeyAuth()) == "local"


# --- names on disk ---------------------------------------------------------------------------------------

HOSTILE = [
    "../../x", "/etc/x", "a/b", "a\\b", "a%2f..", "a\x00", "a\x00b", "x" * 5000, "x" * 4999, "", ".", "..", "A",
    "a", "e\u0301", "\u00e9", "a\nb", "a b", "con", "NUL", "-rf", "~", "a\ud800", "a?", "\U0001f600", "a:b", "a|b",
]  # fmt: skip


def test_hostile_ids_give_as_many_safe_names() -> None:
    names = {session_name("user:ada", hostile) for hostile in HOSTILE}
    assert len(names) == len(set(HOSTILE)) == len(HOSTILE)
    assert all(re.fullmatch(r"[0-9a-f]{16}", name) for name in names)
    folders = {tenant_folder(hostile) for hostile in HOSTILE}
    assert len(folders) == len(HOSTILE)
    assert all(re.fullmatch(r"[0-9a-f]{32}", folder) for folder in folders)


def test_hostile_ids_stay_different_on_their_way_from_the_header() -> None:
    distinct = [hostile for hostile in HOSTILE if hostile.strip()]
    names = {session_name("t", str(session_of({"x-session-id": hostile}, {}).id)) for hostile in distinct}
    assert len(names) == len(distinct)


def test_one_id_under_two_tenants_is_two_sessions() -> None:
    assert session_name("user:a", SESSION) != session_name("user:b", SESSION)
    assert session_name("user:a", "bc") != session_name("user:ab", "c")
    assert session_name("user:a", SESSION) == session_name("user:a", SESSION)


def test_names_stay_the_same_from_release_to_release() -> None:
    assert (session_name("user:ada", "s1"), tenant_folder("user:ada")) == (
        "d97475021f8d21f1",
        "3691bb16187283efa38223d9821ada8d",
    )
