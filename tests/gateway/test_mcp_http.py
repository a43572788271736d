"""The MCP endpoint as clients speak to it: in process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request
from litellm.proxy._types import LitellmUserRoles, UserAPIKeyAuth
from litellm.proxy.auth.route_checks import RouteChecks

from openmem_hook.gateway import mcp_route, session
from openmem_hook.tools import TOOLS
from tests.conftest import make_key
from tests.harness.conversation import Conversation
from tests.harness.filled_store import FilledStore, number
from tests.harness.gateway_process import query
from tests.kit.builders import user
from tests.kit.mcp_client import ACCEPT, call, rpc

PROXY = SimpleNamespace(master_key="sk-x", user_custom_auth=None, general_settings={})


async def who(request: Request) -> Any:
    """Authentication as the gateway has it: it reads the body, and knows two people and their keys."""
    await request.body()
    name = request.headers.get("authorization", "").removeprefix("Bearer ")
    if name not in ("alice", "bob"):
        raise HTTPException(401)
    return make_key(name)


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[FilledStore]:
    made = FilledStore(tmp_path / "context")
    yield made
    made.close()


@pytest.fixture
async def door(shelf: FilledStore) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.include_router(mcp_route.router(shelf.runner, who, "user", PROXY))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=ACCEPT) as client:
        yield client
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def as_(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


async def test_a_client_shakes_hands_lists_and_calls_without_a_session(
    door: httpx.AsyncClient, shelf: FilledStore
) -> None:
    shelf.put(["the needle"])
    hello = await rpc(door, "initialize", as_("alice"), protocolVersion="2025-06-18", capabilities={},
                      clientInfo={"name": "kit", "version": "1"})  # fmt: skip
    assert hello["serverInfo"]["name"] == "openmem"
    listed = (await rpc(door, "tools/list", as_("alice")))["tools"]
    assert [tool["name"] for tool in listed] == list(TOOLS)
    assert all(tool["_meta"]["anthropic/alwaysLoad"] is True for tool in listed)
    assert all(tool["inputSchema"]["type"] == "object" for tool in listed)
    text, failed = await call(door, "smart_compact_search", as_("alice"), query="needle")
    assert ("  1| the needle" in text, failed) == (True, False)


async def test_a_notification_is_taken_and_other_methods_are_not_there(door: httpx.AsyncClient) -> None:
    told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (await door.post(mcp_route.PATH, json=told, headers=as_("alice"))).status_code == 202
    for method in ("GET", "DELETE", "PUT"):
        assert (await door.request(method, mcp_route.PATH, headers=as_("alice"))).status_code == 405


async def test_nobody_gets_in_without_a_key(door: httpx.AsyncClient) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    assert (await door.post(mcp_route.PATH, json=body)).status_code == 401
    assert (await door.post(mcp_route.PATH, json=body, headers=as_("eve"))).status_code == 401


async def test_many_first_requests_at_once_start_one_server(door: httpx.AsyncClient, shelf: FilledStore) -> None:
    for name in ("alice", "bob"):
        shelf.put([f"needle of {name}"], owner=f"user:{name}")
    asked = [call(door, "smart_compact_search", as_(name), query="needle") for name in ("alice", "bob") * 10]
    for name, (text, _) in zip(("alice", "bob") * 10, await asyncio.gather(*asked), strict=True):
        assert f"needle of {name}" in text
        assert number(SimpleNamespace(text=text), "total_matches") == 1


async def test_a_wrong_call_is_an_answer_and_garbage_is_refused(door: httpx.AsyncClient) -> None:
    text, failed = await call(door, "smart_compact_search", as_("alice"), query="a", foo=1)
    assert failed
    assert "no argument foo" in text
    text, failed = await call(door, "nonsense", as_("alice"))
    assert failed
    broken = await door.post(mcp_route.PATH, content=b"{", headers=as_("alice") | {"content-type": "application/json"})
    assert broken.status_code == 400


async def test_a_stored_lone_surrogate_does_not_break_the_answer(door: httpx.AsyncClient, shelf: FilledStore) -> None:
    shelf.put(["needle \ud800 x"])
    text, _ = await call(door, "smart_compact_search", as_("alice"), query="needle")
    assert "needle" in text


async def test_the_clients_own_session_and_project_come_first(door: httpx.AsyncClient, shelf: FilledStore) -> None:
    """Codex tells its session id with every call."""
    own = shelf.put(["needle old"], session="codex-1", at=1.0)
    newer = shelf.put(["needle new"], session="other", at=2.0)
    text, _ = await call(door, "smart_compact_search", as_("alice"), query="needle")
    assert text.index(newer) < text.index(own)
    text, _ = await call(door, "smart_compact_search", as_("alice"), meta={"sessionId": "codex-1"}, query="needle")
    assert text.index(own) < text.index(newer)
    text, _ = await call(door, "smart_compact_search", as_("bob"), meta={"sessionId": "codex-1"}, query="needle")
    assert "total_matches: 0" in text


async def test_sessions_of_the_project_that_a_header_names_come_first(
    door: httpx.AsyncClient, shelf: FilledStore
) -> None:
    header = {"x-openmem-project": "shop"}
    same = shelf.put(["needle here"], session="a", at=1.0, project=session.project_of(header))
    newer = shelf.put(["needle there"], session="b", at=2.0)
    text, _ = await call(door, "smart_compact_search", as_("alice"), query="needle")
    assert text.index(newer) < text.index(same)
    text, _ = await call(door, "smart_compact_search", as_("alice") | header, query="needle")
    assert text.index(same) < text.index(newer)


async def test_a_request_tells_the_catalog_its_project(new_hook, state_dir: Path) -> None:
    talk = Conversation(new_hook())
    headers = {"x-claude-code-session-id": "session-1", "x-openmem-project": "shop"}
    body = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 9,
        "tools": [{"name": "Read", "input_schema": {"type": "object"}}],
        "messages": [user("hello")],
    }
    await talk.send(body, proxy_server_request={"headers": headers})
    (catalog,) = (state_dir / "context").glob("*/catalog.db")
    assert query(catalog, "SELECT project FROM sessions") == [(session.project_of(headers),)]
    assert "shop" not in str(query(catalog, "SELECT * FROM sessions"))


@pytest.mark.parametrize("role", [LitellmUserRoles.INTERNAL_USER, LitellmUserRoles.CUSTOMER, None])
def test_an_ordinary_virtual_key_may_reach_the_route_and_a_restricted_one_needs_it_named(role: Any) -> None:
    """LiteLLM's own rule, asked for our path: the reason for the path."""
    request = SimpleNamespace(method="POST", query_params={}, url=SimpleNamespace(path=mcp_route.PATH))
    told = {"user_obj": None, "_user_role": role, "route": mcp_route.PATH, "request": request, "request_data": {}}
    plain = UserAPIKeyAuth(api_key="sk-1", user_id="u")
    RouteChecks.non_proxy_admin_allowed_routes_check(**told, valid_token=plain)
    with pytest.raises(Exception, match=r"admin|not allowed"):
        RouteChecks.non_proxy_admin_allowed_routes_check(**{**told, "route": "/openmem/mcp"}, valid_token=plain)
    assert RouteChecks.is_virtual_key_allowed_to_call_route(mcp_route.PATH, plain)
    limited = UserAPIKeyAuth(api_key="sk-1", allowed_routes=["llm_api_routes"])
    with pytest.raises(HTTPException):
        RouteChecks.is_virtual_key_allowed_to_call_route(mcp_route.PATH, limited)
    named = UserAPIKeyAuth(api_key="sk-1", allowed_routes=["llm_api_routes", mcp_route.PATH])
    assert RouteChecks.is_virtual_key_allowed_to_call_route(mcp_route.PATH, named)
