"""What goes wrong between client, gateway and provider, and must leave no trace in a session."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.harness.gateway_process import Gateway, until
from tests.harness.tracked_session import CLIENTS, TrackedSession, of_provider, of_record

pytestmark = pytest.mark.e2e

LONG = "calls:0 text:12000"
"""A turn of nothing but an answer that takes a while to stream."""


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_that_tries_again_after_a_refusal_changes_nothing(follow, upstream, client: str) -> None:
    session = follow(client, f"tag-refused-{client}", retries=4)
    await session.turns(1)
    upstream.order({"fail_next": [{"status": status} for status in (429, 429, 529, 500)]})
    await session.turns(2)
    assert [note["status"] for note in session.requests if not note["accepted"]] == [429, 429, 529, 500]
    session.holds()
    assert session.events("trim")


async def test_what_the_gateway_tries_again_by_itself_counts_once(follow, upstream) -> None:
    session = follow("claude", "tag-again", model="claude-again", retries=0)
    await session.turns(1)
    upstream.order({"fail_next": [{"status": 529}, {"status": 500}]})
    await session.turns(2)
    assert len(session.requests) == len(session.agent.bodies) + 2
    session.holds()


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_that_hangs_up_in_mid_stream_and_asks_again(follow, client: str) -> None:
    session = follow(client, f"tag-hangup-{client}")
    await session.turns(1)
    hung_up = []
    for _ in range(2):
        hung_up.append(await hang_up(session))
        await session.agent.resume()
    await session.turns(2)
    session.holds(hung_up)
    assert session.events("trim")


async def hang_up(session: TrackedSession) -> int:
    """Types, reads the first bytes of the answer and closes the connection. The request's place."""
    agent = session.agent
    agent.history += agent.typed(f"{session.tag} tell me all\n[[{LONG}]]")
    body, headers = agent.request(), {**agent.headers(), **agent.extra_headers}
    agent.bodies.append(body)
    asked = len(session.requests)
    async with agent.http.stream("POST", agent.path, json=body, headers=headers) as response:
        assert await anext(response.aiter_bytes())
    until(lambda: len(session.requests) > asked, "the request at the provider")
    return asked


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_stream_that_the_provider_breaks_is_counted_with_its_own_numbers_or_not_at_all(
    follow, upstream, client: str
) -> None:
    """Some broken streams end as failures and report nothing, and one that just stops looks complete to LiteLLM:
    then it counts the prompt itself, without the tools, which nobody may take for the provider's number."""
    session = follow(client, f"tag-broken-{client}", retries=4)
    await session.turns(1)
    upstream.order({"abort_mid_stream": ["error", "cut", "end"]})
    await session.turns(1, LONG)
    await session.turns(2)
    broken = [note for note in session.requests if note["aborted"]]
    session.accepted()
    session.bounded()
    session.cached()
    session.kept()
    assert {note["aborted"] for note in broken} <= {"error", "cut", "end"}
    whole = Counter(of_provider(note) for note in session.answered if not note["aborted"])
    until(lambda: not whole - told(session), "usage of whole answers")
    assert not told(session) - whole - Counter(map(of_provider, broken))


def told(session: TrackedSession) -> Counter[object]:
    return Counter(of_record(usage) for usage in session.events("usage") if usage["prompt_tokens"] is not None)


@pytest.mark.parametrize("client", ["codex", "opencode"])
async def test_a_provider_that_reports_no_usage_is_not_given_one(follow, upstream, client: str) -> None:
    """Anthropic's own clients can't do without. Instructions are what LiteLLM counts beside a Responses input."""
    upstream.silent.add(f"tag-silent-{client}")
    session = follow(client, f"tag-silent-{client}")
    if client == "codex":
        session.agent.extra["instructions"] = "You are an agent that works in a folder."
    await session.turns(3)
    session.accepted()
    session.kept()
    assert session.events("trim")
    until(lambda: len(session.events("usage")) == len(session.answered), "usage records")
    assert {usage["prompt_tokens"] for usage in session.events("usage")} == {None}
    assert {usage["cache_read"] for usage in session.events("usage")} == {None}


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_store_that_goes_away_and_comes_back(follow, gateway: Gateway, client: str) -> None:
    """Requests go on, with the cut that memory knows; what was sent meanwhile is stored when it can be. Until then
    nothing more may leave a request, so that one can be over the limit."""
    session = follow(client, f"tag-away-{client}")
    await session.turns(3, "calls:8 size:1500 lead:1")
    assert session.events("trim")
    before = len(session.answered)
    away = gateway.store.rename(gateway.store.with_name("away"))
    gateway.store.write_text("not a folder")
    await session.turns(1, "calls:3 size:300")
    gateway.store.unlink()
    away.rename(gateway.store)
    meanwhile = range(before, len(session.answered))
    await session.turns(1, "calls:3 size:300")
    assert all(note["accepted"] for note in session.requests)
    assert len(gateway.failures(session.begun)) <= 2
    session.bounded(but=meanwhile)
    session.cached()
    session.kept()
