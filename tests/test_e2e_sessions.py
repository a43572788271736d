"""Long sessions through the real gateway: every law that can be seen from outside, at once."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.followed import Followed
from tests.gateway import Gateway, Upstream, bearer
from tests.kit.agent import Agent
from tests.kit.clients import ClaudeCode, Codex, OpenCode

pytestmark = pytest.mark.e2e

CLIENTS: dict[str, tuple[type[Agent], str]] = {
    "claude": (ClaudeCode, "claude-kit"),
    "codex": (Codex, "gpt-kit"),
    "opencode": (OpenCode, "local-kit"),
}


@pytest.fixture
def follow(http: httpx.AsyncClient, gateway: Gateway, upstream: Upstream) -> Any:
    """Begins a session: `follow("claude", "tag-some", stream=False)`."""

    def begin(client: str, tag: str, who: str = "alice", **options: Any) -> Followed:
        kind, model = CLIENTS[client]
        options = {"model": model, "session": tag, "headers": bearer(who), **options}
        return Followed(kind(http, **options), tag, upstream, gateway)

    return begin


async def test_long_sessions_of_every_client_run_side_by_side(follow) -> None:
    running = [follow(name, f"tag-{name}{int(s)}", stream=s) for name in CLIENTS for s in (True, False)]
    await asyncio.gather(*(session.turns(4) for session in running))
    for session in running:
        session.holds()
        assert len(session.events("trim")) >= 2
