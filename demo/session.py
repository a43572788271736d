"""The coding session of the demo: typed requests, hundreds of tool exchanges, one detail that is worth keeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from demo.gateway import DemoError
from openmem_hook.replay.provider.counting import prompt_tokens
from openmem_hook.replay.provider.prompt_cache import AnthropicCache
from tests.kit.agent import RefusedError
from tests.kit.clients import ClaudeCode
from tests.kit.filler import listing

Json = dict[str, Any]

MODEL = "claude-demo"
TURNS = 8
RESULT_CHARS = 1600
DETAIL_AT = 5
"""Number of the tool call whose result holds the detail: early, so that it leaves at the first trim."""
DETAIL = "NOTE: the staging database moved to port 6543, see ticket OPS-4711"
LOG_AT = 30
LOG_CHARS = 60_000
"""One result is a whole test log: it goes out shortened and is kept in full."""
PROMPTS = (
    "Find out how the configuration is read and where the database address comes from.",
    "Add retries with a growing delay to the client and show me the tests.",
    "The test run fails on the second retry, find out why.",
    "Split the settings module, it has grown too long.",
    "Rename the cache module everywhere and mend the imports.",
    "Write the missing tests for the scheduler.",
    "Measure start-up time and make it shorter.",
    "Bring the documentation up to date with all that changed.",
)


@dataclass(frozen=True, slots=True)
class PromptUse:
    """One request's prompt, in tokens."""

    tokens: int

    cache_read: int
    """What of it a prompt cache gave."""


@dataclass(frozen=True, slots=True)
class DemoSession:
    """The same requests twice: as the provider got them, and as the agent sent them to the gateway."""

    through: Sequence[PromptUse]
    """With the plugin: those that the provider accepted."""

    direct: Sequence[PromptUse]
    """Without it, as the provider would have counted them."""

    refusals: Sequence[str]
    """The provider's first objection to each request that it refused."""

    last_body: Json
    """The last request as the provider got it."""

    sent_messages: int
    """Messages in the agent's last request."""


class _Agent(ClaudeCode):
    """Claude Code as the kit plays it, reporting after each answer."""

    report: Callable[[int], None]

    async def exchange(self, body: Json) -> Json:
        answer = await super().exchange(body)
        self.report(len(self.bodies))
        return answer


def run_tools() -> Callable[[str, Any], str]:
    """Made-up tool results, with the detail in one of them and one that is very long."""
    calls = 0

    def run(name: str, _arguments: Any) -> str:
        nonlocal calls
        calls += 1
        text = listing(LOG_CHARS if calls == LOG_AT else RESULT_CHARS, name, calls)
        return f"{text}\n{DETAIL}" if calls == DETAIL_AT else text

    return run


async def drive(gateway: str, provider: str, key: str, exchanges: int, report: Callable[[int], None]) -> DemoSession:
    """Runs the session. `report` is called with the number of requests so far. Raises DemoError."""
    async with httpx.AsyncClient(base_url=gateway, timeout=120, trust_env=False) as http:
        agent = _Agent(http, model=MODEL, session="demo", headers={"authorization": f"Bearer {key}"}, run=run_tools())
        agent.report = report
        for turn, words in enumerate(PROMPTS):
            calls = exchanges * (turn + 1) // TURNS - exchanges * turn // TURNS
            try:
                await agent.say(f"{words}\n[[calls:{calls} think:120 lead:1]]")
            except (RefusedError, httpx.HTTPError) as error:
                raise DemoError(f"request {len(agent.bodies)} failed: {error or type(error).__name__}") from error
        log = (await http.get(f"{provider}/__log")).json()["requests"]
        last = (await http.get(f"{provider}/__bodies", params={"last": 1})).json()["bodies"][0]
    return DemoSession(
        through=[PromptUse(row["prompt_tokens"], row["cache"]["read"]) for row in log if row["accepted"]],
        direct=await asyncio.to_thread(_without_plugin, agent.bodies),
        refusals=[row["errors"][0] for row in log if not row["accepted"]],
        last_body=last,
        sent_messages=len(agent.bodies[-1]["messages"]),
    )


def _without_plugin(bodies: Sequence[Json]) -> list[PromptUse]:
    """What the provider would have counted, and its cache have given, for the agent's own requests."""
    cache = AnthropicCache()
    return [PromptUse(prompt_tokens(body, "anthropic"), cache.request(body, now=0.0).read) for body in bodies]
