"""Scripted coding agents that speak over HTTP as the real ones do: the whole history with every request.

    async with httpx.AsyncClient(base_url=...) as http:
        agent = ClaudeCode(http, model="claude-kit")
        answer = await agent.say("Read two files [[calls:2 size:3000]]")

Tools run locally and return text made from the call's arguments, so two agents that get the same calls hold
the same history. `history` is what the client keeps; `bodies` are the requests it sent, `answers` what it got.
A 429, a 5xx or a broken stream is tried again with the same body, a 4xx raises `RefusedError`.
"""

from __future__ import annotations

import asyncio
import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self

import httpx
import orjson

from .filler import listing, number
from .sse import StreamBrokenError, events

Json = dict[str, Any]
Runner = Callable[[str, Any], str]
RESULT_CHARS = 400
MOST_EXCHANGES = 2000


class RefusedError(Exception):
    """The other side said no for good: `status` and the parsed `answer`."""

    def __init__(self, status: int, answer: Any) -> None:
        super().__init__(f"{status}: {answer}")
        self.status = status
        self.answer = answer


def run_tool(name: str, arguments: Any) -> str:
    """A made-up result: as many characters as the call's `size` says, the same for the same call."""
    size = arguments.get("size", RESULT_CHARS) if isinstance(arguments, dict) else RESULT_CHARS
    return listing(int(size), name, orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS))


class Agent(ABC):
    """What all agents share. `headers` go with every request (a gateway key, say), `extra` into every body."""

    path: ClassVar[str]

    def __init__(
        self, http: httpx.AsyncClient, *, model: str, session: str = "kit-session", stream: bool = True,
        retries: int = 3, retry_delay_s: float = 0.0, headers: dict[str, str] | None = None,
        extra: Json | None = None, run: Runner = run_tool,
    ) -> None:  # fmt: skip
        self.http, self.model, self.stream, self.run = http, model, stream, run
        self.session = f"{number(session):012x}-{session}"
        self.retries, self.retry_delay_s = retries, retry_delay_s
        self.extra_headers, self.extra = headers or {}, extra or {}
        self.history: list[Json] = []
        self.bodies: list[Json] = []
        self.answers: list[Json] = []

    async def say(self, text: str) -> str:
        """Sends what a person typed, runs tools until the model has no more calls, returns its last text."""
        self.history += self.typed(text)
        return await self.resume()

    async def resume(self) -> str:
        """Goes on with the history as it stands, which has to end with typed words or results."""
        for _ in range(MOST_EXCHANGES):
            body = self.request()
            answer = await self.exchange(body)
            self.history += self.kept(answer)
            results = self.results(answer)
            if not results:
                return self.text_of(answer)
            self.history += results
        raise RuntimeError(f"the model still calls tools after {MOST_EXCHANGES} exchanges")

    async def exchange(self, body: Json) -> Json:
        """One answer to one body, retries included."""
        self.bodies.append(body)
        for attempt in range(self.retries + 1):
            try:
                answer = await self._once(body)
            except (StreamBrokenError, httpx.TransportError):
                if attempt == self.retries:
                    raise
                body = self.after_break(body)
            except RefusedError as refused:
                if attempt == self.retries or (refused.status < 500 and refused.status != 429):
                    raise
            else:
                self.answers.append(answer)
                return answer
            await asyncio.sleep(self.retry_delay_s)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _once(self, body: Json) -> Json:
        content = orjson.dumps(body)
        headers = {"content-type": "application/json", **self.headers(), **self.extra_headers}
        async with self.http.stream("POST", self.path, content=content, headers=headers) as response:
            if response.status_code >= 400 or not body.get("stream"):
                answer = _parsed(await response.aread())
                if response.status_code >= 400:
                    raise RefusedError(response.status_code, answer)
                return answer if isinstance(answer, dict) else {}
            return self.folded([event async for event in events(response)])

    def fork(self, session: str) -> Self:
        """A copy that goes its own way under a new session id, as `--fork-session` makes one."""
        twin = copy.copy(self)
        twin.session = f"{number(session):012x}-{session}"
        twin.history, twin.bodies, twin.answers = copy.deepcopy(self.history), [], []
        return twin

    def rewind(self, turns: int = 1) -> None:
        """Takes back the last `turns` typed messages and all that followed."""
        starts = [at for at, message in enumerate(self.history) if self.is_typed(message)]
        del self.history[starts[-turns] :]

    def after_break(self, body: Json) -> Json:
        """The body to try again with after a broken stream."""
        return body

    @abstractmethod
    def headers(self) -> dict[str, str]: ...
    @abstractmethod
    def request(self) -> Json: ...
    @abstractmethod
    def typed(self, text: str) -> list[Json]: ...
    @abstractmethod
    def is_typed(self, message: Json) -> bool: ...
    @abstractmethod
    def kept(self, answer: Json) -> list[Json]: ...
    @abstractmethod
    def results(self, answer: Json) -> list[Json]: ...
    @abstractmethod
    def text_of(self, answer: Json) -> str: ...
    @abstractmethod
    def folded(self, stream: Iterable[Json]) -> Json: ...


def _parsed(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return {"text": content.decode(errors="replace")}
