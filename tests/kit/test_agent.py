"""The scripted agents against the strict provider: several turns, all three APIs, nothing refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.kit.agent import Agent, RefusedError, run_tool
from tests.kit.builders import Format
from tests.kit.clients import ClaudeCode, Codex, OpenCode
from tests.kit.prefix import assert_prefix, broken_at
from tests.kit.provider import app
from tests.kit.provider_state import Provider
from tests.kit.sse import StreamBrokenError

CLIENTS: dict[type[Agent], Format] = {ClaudeCode: "anthropic", Codex: "responses", OpenCode: "chat"}
EVERY = pytest.mark.parametrize("client", CLIENTS)
BOTH = pytest.mark.parametrize("stream", [True, False])


@pytest.fixture
def provider() -> Provider:
    return Provider(salt="kit")


@pytest.fixture
async def http(provider: Provider) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app(provider, clock=lambda: 0.0), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://kit") as client:
        yield client


@EVERY
@BOTH
async def test_several_turns_pass_and_every_request_extends_the_last(
    http: httpx.AsyncClient, provider: Provider, client: type[Agent], stream: bool
) -> None:
    agent = client(http, model="kit-m", stream=stream)
    assert await agent.say("read [[calls:3 parallel:2 size:1500]]") == "Done after 3 exchanges."
    assert "hello there" in await agent.say("greet [[calls:1 say:hello_there search:1 lead:1]]")
    await agent.say("and now something without a marker")
    assert [note["errors"] for note in provider.log] == [[]] * len(agent.bodies)
    assert len(agent.bodies) >= 7
    for earlier, later in pairwise(agent.bodies):
        assert_prefix(earlier, later, CLIENTS[client])
    reads = [note["cache"]["read"] for note in provider.log]
    assert reads == sorted(reads)
    assert reads[-1] > 3000


@EVERY
async def test_stream_or_not_the_history_is_the_same(client: type[Agent]) -> None:
    histories = []
    for stream in (True, False):
        transport = httpx.ASGITransport(app(Provider(salt="same"), clock=lambda: 0.0))
        async with httpx.AsyncClient(transport=transport, base_url="http://kit") as http:
            agent = client(http, model="kit-m", stream=stream)
            await agent.say("read [[calls:2 parallel:2 text:700]]")
            histories.append(agent.history)
    assert histories[0] == histories[1]


@EVERY
async def test_a_busy_provider_is_asked_again_with_the_same_body(
    http: httpx.AsyncClient, provider: Provider, client: type[Agent]
) -> None:
    await http.post("/__script", json={"fail_next": [{"status": 429}, {"status": 529}]})
    agent = client(http, model="kit-m")
    await agent.say("go [[calls:0]]")
    assert [note["status"] for note in provider.log] == [429, 529, 200]
    assert provider.bodies[0] == provider.bodies[1] == provider.bodies[2]


@EVERY
@pytest.mark.parametrize("kind", ["error", "cut", "end"])
async def test_a_broken_stream_is_tried_again(
    http: httpx.AsyncClient, provider: Provider, client: type[Agent], kind: str
) -> None:
    await http.post("/__script", json={"abort_mid_stream": [kind]})
    agent = client(http, model="kit-m")
    assert await agent.say("go [[calls:1]]") == "Done after 1 exchanges."
    assert [note["aborted"] for note in provider.log] == [kind, "", ""]
    assert provider.bodies[1]["stream"] is (client is not ClaudeCode)


async def test_a_stream_that_keeps_breaking_is_given_up(http: httpx.AsyncClient) -> None:
    await http.post("/__script", json={"abort_mid_stream": 2})
    with pytest.raises(StreamBrokenError):
        await Codex(http, model="kit-m", retries=1).say("go")


async def test_a_refusal_is_raised_at_once(http: httpx.AsyncClient, provider: Provider) -> None:
    provider.prompt_limit = 100
    with pytest.raises(RefusedError, match="prompt is too long") as caught:
        await ClaudeCode(http, model="kit-m").say("go")
    assert caught.value.status == 400
    assert len(provider.log) == 1


async def test_claude_code_moves_its_breakpoint_and_flattens_what_lost_it(http: httpx.AsyncClient) -> None:
    agent = ClaudeCode(http, model="kit-m", mid_system=True)
    for words in ("one [[calls:1]]", "two [[calls:0]]", "three [[calls:0]]"):
        await agent.say(words)
    first, *_, last = agent.bodies
    marked = [
        [at for at, message in enumerate(b["messages"]) if "cache_control" in json.dumps(message)] for b in agent.bodies
    ]
    assert marked == [[len(b["messages"]) - 1] for b in agent.bodies]
    assert [message["role"] for message in first["messages"]] == ["user", "system"]
    flat = [message["content"] for message in last["messages"] if message["role"] == "user"]
    assert "two [[calls:0]]" in flat
    assert json.loads(last["metadata"]["user_id"])["session_id"] == agent.headers()["x-claude-code-session-id"]


async def test_claude_code_answers_parallel_calls_in_another_order(http: httpx.AsyncClient) -> None:
    agent = ClaudeCode(http, model="kit-m")
    await agent.say("go [[calls:1 parallel:2]]")
    calls = [block["id"] for block in agent.history[1]["content"] if block["type"] == "tool_use"]
    answers = agent.history[2]["content"]
    assert [block["tool_use_id"] for block in answers] == calls[::-1]
    assert {type(block["content"]) for block in answers} == {str, list}


@pytest.mark.parametrize(
    "thinking", [{"type": "adaptive", "display": "omitted"}, {"type": "enabled", "budget_tokens": 4096}]
)
async def test_thinking_goes_back_as_it_was_signed(
    http: httpx.AsyncClient, provider: Provider, thinking: dict[str, Any]
) -> None:
    agent = ClaudeCode(http, model="kit-m", thinking=thinking, server_search=True)
    await agent.say("go [[calls:2 search:1]]")
    await agent.say("on [[calls:1 think:0]]")
    assert {note["status"] for note in provider.log} == {200}
    assert len(provider.registry.thinking) >= 3
    agent.history[1]["content"][0]["thinking"] = "changed"
    with pytest.raises(RefusedError, match="cannot be modified"):
        await agent.say("so")


async def test_codex_echoes_its_encrypted_reasoning(http: httpx.AsyncClient) -> None:
    agent = Codex(http, model="kit-m")
    await agent.say("go [[calls:2]]")
    thoughts = [item for item in agent.history if item["type"] == "reasoning"]
    assert len(thoughts) == 3
    assert all(item["content"] is None and item["encrypted_content"] for item in thoughts)
    thoughts[0]["encrypted_content"] += "x"
    with pytest.raises(RefusedError, match="could not be verified"):
        await agent.say("on")


async def test_codex_calls_its_free_text_tool_too(http: httpx.AsyncClient, provider: Provider) -> None:
    agent = Codex(http, model="kit-m")
    await agent.say("patch [[calls:1 tool:apply_patch args:300]]")
    assert [item["type"] for item in agent.history[-3:-2]] == ["custom_tool_call_output"]
    assert {note["status"] for note in provider.log} == {200}


@EVERY
async def test_a_fork_shares_the_past_but_not_the_session(http: httpx.AsyncClient, client: type[Agent]) -> None:
    agent = client(http, model="kit-m")
    await agent.say("one [[calls:1]]")
    twin = agent.fork("other")
    await twin.say("two [[calls:0]]")
    await agent.say("three [[calls:0]]")
    assert twin.headers() != agent.headers()
    assert_prefix(agent.bodies[1], twin.bodies[0], CLIENTS[client])
    assert broken_at(twin.bodies[0], agent.bodies[-1], CLIENTS[client]) is not None


@EVERY
async def test_a_rewind_takes_whole_turns_back(
    http: httpx.AsyncClient, provider: Provider, client: type[Agent]
) -> None:
    agent = client(http, model="kit-m")
    await agent.say("one [[calls:1]]")
    kept = list(agent.history)
    await agent.say("two [[calls:2 parallel:2]]")
    agent.rewind()
    assert agent.history == kept
    await agent.say("three [[calls:0]]")
    assert {note["status"] for note in provider.log} == {200}


def test_tools_give_the_same_text_for_the_same_call() -> None:
    assert run_tool("Read", {"size": 500}) == run_tool("Read", {"size": 500})
    assert len(run_tool("Read", {"size": 500})) == 500
    assert run_tool("Read", {"size": 500, "path": "b"}) != run_tool("Read", {"size": 500, "path": "a"})
