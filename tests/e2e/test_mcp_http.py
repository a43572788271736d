"""The MCP endpoint on the real gateway, with several identities."""

from __future__ import annotations

import httpx
import pytest

from tests.harness.gateway_process import bearer
from tests.kit.clients import ClaudeCode
from tests.kit.mcp_client import ACCEPT, PATH, call

pytestmark = pytest.mark.e2e


async def test_two_people_on_the_real_gateway_find_their_own(http: httpx.AsyncClient) -> None:
    for name in ("alice", "bob", "first", "second"):
        agent = ClaudeCode(http, model="claude-kit", session="tag-mcp", headers=bearer(name))
        await agent.say(f"tag-mcp needle-of-{name} [[calls:1 size:300]]")
    for name in ("alice", "bob", "first", "second"):
        text, failed = await call(http, "smart_compact_search", bearer(name) | ACCEPT, query="needle-of-*", role="all")
        assert not failed
        assert {other for other in ("alice", "bob", "first", "second") if f"needle-of-{other}" in text} == {name}
    refused = await http.post(PATH, json={}, headers={"authorization": "Bearer sk-nobody", **ACCEPT})
    assert refused.is_error
    assert b"needle" not in refused.content
