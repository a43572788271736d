"""Long sessions through the real gateway: every law that can be seen from outside, at once."""

from __future__ import annotations

import asyncio

import pytest

from tests.harness.tracked_session import CLIENTS

pytestmark = pytest.mark.e2e


async def test_long_sessions_of_every_client_run_side_by_side(follow) -> None:
    running = [follow(name, f"tag-{name}{int(s)}", stream=s) for name in CLIENTS for s in (True, False)]
    await asyncio.gather(*(session.turns(4) for session in running))
    for session in running:
        session.holds()
        assert len(session.events("trim")) >= 2


@pytest.mark.parametrize(
    ("client", "model"),
    [("claude", "gpt-kit"), ("codex", "claude-kit"), ("opencode", "claude-kit"), ("opencode", "gpt-kit")],
)
async def test_a_trimmed_session_stays_legal_when_the_gateway_translates_it(follow, client: str, model: str) -> None:
    """The plugin sees the client's format, the provider gets its own."""
    session = follow(client, f"tag-{client}-on-{model}", model=model)
    await session.turns(3)
    session.accepted()
    session.bounded()
    session.kept()
    assert session.events("trim")


async def test_a_client_that_speaks_as_system_behind_every_result(follow) -> None:
    session = follow("claude", "tag-told", mid_system=True)
    await session.turns(4)
    session.holds()
    assert len(session.events("trim")) >= 2
    roles = [message["role"] for message in session.agent.bodies[-1]["messages"]]
    assert roles.count("system") > roles.count("user") / 2
