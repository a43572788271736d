"""What a session left behind at the provider and in the store, and what must hold of every one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tests.gateway import TRIM_AT, Gateway, Upstream, events, stored, until
from tests.kit.agent import Agent
from tests.walk import normal

Json = dict[str, Any]

STEP = 128
"""Tokens in which an automatic cache counts."""


class Followed:
    """A session named by the tag in its first typed message: `say` puts it there."""

    def __init__(self, agent: Agent, tag: str, upstream: Upstream, gateway: Gateway) -> None:
        self.agent, self.tag, self.upstream, self.gateway = agent, tag, upstream, gateway

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

    @property
    def store(self) -> Path:
        return self.gateway.session_with(self.tag)

    def events(self, kind: str) -> list[Json]:
        return events(self.store, kind)

    # --- what must hold ----------------------------------------------------------------------------------

    def holds(self) -> None:
        """All of it, for a session in which nothing went wrong."""
        self.accepted()
        self.bounded()
        self.cached()
        self.kept()
        self.counted()

    def accepted(self) -> None:
        refused = [note["errors"] for note in self.requests if note["status"] == 400]
        assert not refused, refused

    def bounded(self) -> None:
        largest = max(note["prompt_tokens"] for note in self.answered)
        assert largest <= TRIM_AT, f"a prompt of {largest} tokens"

    def cached(self) -> None:
        """The cache held all of the request before, but once for each trim."""
        missed = [at for at in range(1, len(self.answered)) if self._missed(at)]
        trims = [event for event in self.events("trim")]
        assert len(missed) == len(trims), f"missed at {missed}, {len(trims)} trims"

    def _missed(self, at: int) -> bool:
        before, now = self.answered[at - 1]["prompt_tokens"], self.answered[at]
        whole = before if now["route"] == "anthropic" else before - before % STEP
        return bool(now["cache"]["read"] < whole)

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

    def counted(self) -> None:
        """One usage record for each answer, with the provider's numbers."""
        until(lambda: len(self.events("usage")) >= len(self.answered), f"usage of {self.tag}")
        assert Counter(map(_of_record, self.events("usage"))) == Counter(map(_of_provider, self.answered))


def messages_of(body: Json) -> list[Any]:
    held: list[Any] = body["input"] if "input" in body else body["messages"]
    return held


def _of_provider(note: Json) -> tuple[int, int, int | None]:
    cache = note["cache"]
    written = cache["written_5m"] + cache["written_1h"] if note["route"] == "anthropic" else None
    return note["prompt_tokens"], cache["read"], written


def _of_record(usage: Json) -> tuple[int, int, int | None]:
    return usage["prompt_tokens"], usage["cache_read"], usage["cache_write"]
