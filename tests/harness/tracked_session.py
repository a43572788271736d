"""What a session left behind at the provider and in the store, and what must hold of every one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.gateway_process import TRIM_AT, Gateway, Upstream, bearer, events, stored, until
from tests.kit.agent import Agent
from tests.kit.clients import ClaudeCode, Codex, OpenCode
from tests.kit.prefix import normal

Json = dict[str, Any]

STEP = 128
"""Tokens in which an automatic cache counts."""
SLACK = {"anthropic": 1.0, "chat": 1.0, "responses": 1.02}
"""How far a prompt may be over its limit. The kit goes on counting the reasoning of finished turns, which the provider
that it plays does not."""
CLIENTS: dict[str, tuple[type[Agent], str]] = {
    "claude": (ClaudeCode, "claude-kit"),
    "codex": (Codex, "gpt-kit"),
    "opencode": (OpenCode, "local-kit"),
}
"""Each client and the model it asks for."""


class TrackedSession:
    """A session named by the tag in its first typed message: `say` puts it there."""

    def __init__(self, agent: Agent, tag: str, upstream: Upstream, gateway: Gateway) -> None:
        self.agent, self.tag, self.upstream, self.gateway = agent, tag, upstream, gateway
        self.begun = gateway.log.stat().st_size

    async def turns(self, count: int, marker: str = "calls:10 size:1500 lead:1") -> None:
        """So many turns of a working session."""
        for turn in range(count):
            await self.agent.say(f"{self.tag} turn {turn}, please go on\n[[{marker}]]")

    @property
    def requests(self) -> list[Json]:
        """What the provider was asked, in order."""
        return self.upstream.requests(self.tag)

    @property
    def answered(self) -> list[Json]:
        return [note for note in self.requests if note["accepted"]]

    @cached_property
    def store(self) -> Path:
        return self.gateway.session_with(self.tag)

    def events(self, kind: str) -> list[Json]:
        return events(self.store, kind)

    # --- what must hold ----------------------------------------------------------------------------------

    def holds(self, hung_up: Collection[int] = ()) -> None:
        """All of it, for a session in which nothing went wrong, but that the client hung up on the requests at these
        places."""
        self.accepted()
        self.bounded()
        self.cached()
        self.kept()
        self.counted(hung_up)

    def usages(self) -> list[Json]:
        """The records of its threads; titles beside them have none."""
        return [usage for usage in self.events("usage") if usage["thread"]]

    def accepted(self) -> None:
        refused = [note["errors"] for note in self.requests if note["status"] == 400]
        assert not refused, refused
        assert not self.gateway.failures(self.begun)
        assert self.answered

    def bounded(self, but: Container[int] = ()) -> None:
        """`but`: places among the answered requests that may be over."""
        over = {
            at: note["prompt_tokens"]
            for at, note in enumerate(self.answered)
            if note["prompt_tokens"] > TRIM_AT * SLACK[note["route"]] and at not in but
        }
        assert not over, f"prompts over {TRIM_AT}, of {len(self.answered)}: {over}"

    def cached(self) -> None:
        """The cache held all of the request before, but once for each trim."""
        trims = len(self.events("trim"))
        assert len(self.missed()) == trims, f"missed at {self.missed()}, {trims} trims"

    def missed(self) -> list[int]:
        """Places of the requests for which the cache did not hold all of the one before."""
        pairs = enumerate(zip(self.answered, self.answered[1:], strict=False), 1)
        return [at for at, (before, now) in pairs if now["cache"]["read"] < _cached(before)]

    def kept(self) -> None:
        """Every message that was sent can be read back, and is there once."""
        held = stored(self.store)
        missing = self.sent() - held
        assert not missing, f"{sum(missing.values())} messages were lost"
        assert sum(held.values()) == sum(self.sent().values())

    def sent(self) -> Counter[bytes]:
        """The client's messages, in the longest history it sent."""
        body = max(self.agent.bodies, key=lambda body: len(messages_of(body)))
        return Counter(map(normal, messages_of(body)))

    def counted(self, hung_up: Collection[int] = ()) -> None:
        """One usage record for each answer, with the provider's numbers. Where the client hung up before they were told
        there may be none, or one that says so: LiteLLM reads on to the end, but not always."""
        answered = Counter(map(of_provider, self.answered))
        sure = answered - Counter(of_provider(self.answered[at]) for at in hung_up)
        until(lambda: not sure - self.told(), f"usage of {self.tag}")
        assert len(self.usages()) <= answered.total()
        unknown = self.told() - answered
        assert not unknown or (hung_up and set(unknown) == {(None, None, None)})

    def told(self) -> Counter[tuple[int | None, int | None, int | None]]:
        return Counter(map(of_record, self.usages()))


def _cached(note: Json) -> int:
    """Tokens of a request that a cache can hold."""
    tokens: int = note["prompt_tokens"]
    return tokens if note["route"] == "anthropic" else tokens - tokens % STEP


def messages_of(body: Json) -> list[Any]:
    held: list[Any] = body["input"] if "input" in body else body["messages"]
    return held


def of_provider(note: Json) -> tuple[int | None, int | None, int | None]:
    cache = note["cache"]
    written = cache["written_5m"] + cache["written_1h"] if note["route"] == "anthropic" else None
    return note["prompt_tokens"], cache["read"], written


def of_record(usage: Json) -> tuple[int | None, int | None, int | None]:
    return usage["prompt_tokens"], usage["cache_read"], usage["cache_write"]


@pytest.fixture
def follow(http: httpx.AsyncClient, gateway: Gateway, upstream: Upstream) -> Callable[..., TrackedSession]:
    """Begins a session at the gateway that all tests share: `follow("claude", "tag-some", stream=False)`."""
    return partial(begin, http, gateway, upstream)


def begin(
    http: httpx.AsyncClient,
    gateway: Gateway,
    upstream: Upstream,
    client: str | type[Agent],
    tag: str,
    who: str = "alice",
    **options: Any,
) -> TrackedSession:
    """`client`: one of CLIENTS, or another class of agent with its `model`."""
    kind, model = CLIENTS[client] if isinstance(client, str) else (client, "")
    options = {"model": model, "session": tag, "headers": bearer(who), **options}
    return TrackedSession(kind(http, **options), tag, upstream, gateway)
