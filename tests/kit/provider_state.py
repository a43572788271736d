"""A strict provider without its HTTP: one request in, one `Reply` out, everything noted.

Order of the gates is the real one: size in bytes, scripted failures, shape, length of the prompt. Only what
passes all of them touches the cache, costs tokens and gets an answer from the scripted model.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from openmem_hook.replay.provider.counting import prompt_tokens
from openmem_hook.replay.provider.prompt_cache import AnthropicCache, AutomaticCache, CacheUse
from openmem_hook.replay.provider.rules_anthropic import BODY_LIMIT
from openmem_hook.replay.provider.rules_responses import items_of
from openmem_hook.replay.provider.signatures import SignatureRegistry

from . import wire_anthropic, wire_chat, wire_responses
from .builders import Format
from .prefix import blocks, check
from .script import Call, Output, next_output
from .situation import situation

Json = dict[str, Any]
Event = tuple[str, Json]

PROMPT_LIMIT = 200_000
KEPT_BODIES = 200
SESSION_HEADERS = (
    "x-claude-code-session-id", "x-claude-code-agent-id", "session-id", "thread-id", "x-session-id",
    "x-parent-session-id", "user-agent", "anthropic-beta",
)  # fmt: skip
_RENDER = {"anthropic": wire_anthropic.render, "chat": wire_chat.render, "responses": wire_responses.render}


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes back: a status, the whole answer as JSON, and the events when a stream was asked for."""

    status: int
    answer: Json
    events: tuple[Event, ...] = ()
    delay_s: float = 0.0
    abort: str = ""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Orders:
    """What `/__script` set: `fail_next` and `answers` are used up one by one, the rest stays.

    A failure: {"status", "message", "route"?, "headers"?}. An answer: {"text"?, "thinking"?, "calls"?: [{"name",
    "arguments"}]}. `abort_mid_stream` is a count or a list of kinds: "error" (an error event), "cut" (the
    connection breaks), "end" (the stream just stops).
    """

    fail_next: deque[Json] = field(default_factory=deque)
    answers: deque[Json] = field(default_factory=deque)
    abort_mid_stream: deque[str] = field(default_factory=deque)
    delay_s: float = 0.0

    def update(self, said: Json) -> None:
        self.fail_next.extend(said.get("fail_next", ()))
        self.answers.extend(said.get("answers", ()))
        aborts = said.get("abort_mid_stream", ())
        self.abort_mid_stream.extend(["error"] * int(aborts) if isinstance(aborts, int) else aborts)
        self.delay_s = float(said.get("delay_s", self.delay_s))


@dataclass(slots=True)
class Provider:
    """`limits` maps a model to its longest prompt in tokens; other models get `prompt_limit`."""

    prompt_limit: int = PROMPT_LIMIT
    limits: dict[str, int] = field(default_factory=dict)
    byte_limit: int = BODY_LIMIT
    seed: int = 0
    salt: str = field(default_factory=lambda: os.urandom(3).hex())
    registry: SignatureRegistry = field(default_factory=SignatureRegistry)
    marked_cache: AnthropicCache = field(default_factory=AnthropicCache)
    automatic_cache: AutomaticCache = field(default_factory=AutomaticCache)
    orders: Orders = field(default_factory=Orders)
    log: list[Json] = field(default_factory=list)
    bodies: deque[Json] = field(default_factory=lambda: deque(maxlen=KEPT_BODIES))
    stored: dict[str, list[Json]] = field(default_factory=dict)
    served: int = 0

    def reset(self) -> None:
        """Forgets log, caches and orders, but not what was signed: clients may still hold that."""
        self.log.clear()
        self.bodies.clear()
        self.marked_cache, self.automatic_cache = AnthropicCache(), AutomaticCache()
        self.orders = Orders()

    def order(self, said: Json) -> None:
        """Takes a `/__script` message; limits may be changed in it too."""
        self.orders.update(said)
        self.prompt_limit = int(said.get("prompt_limit", self.prompt_limit))
        self.byte_limit = int(said.get("byte_limit", self.byte_limit))
        self.limits.update(said.get("limits", {}))

    def handle(self, fmt: Format, raw: bytes, headers: dict[str, str], now: float) -> Reply:
        """Answers one request that arrived at `now` (seconds)."""
        self.served += 1
        note: Json = {"n": self.served, "at": now, "route": fmt, "bytes": len(raw), "accepted": False, "errors": []}
        note["headers"] = {name: headers[name] for name in SESSION_HEADERS if name in headers}
        self.log.append(note)
        reply = self._refused(fmt, raw, note) or self._answer(fmt, note, now)
        note["status"] = reply.status
        return reply

    def _refused(self, fmt: Format, raw: bytes, note: Json) -> Reply | None:
        if len(raw) > self.byte_limit:
            return self._refuse(fmt, note, 413, "Request exceeds the maximum size")
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return self._refuse(fmt, note, 400, "The request body is not valid JSON")
        self.bodies.append(body)
        note |= {"model": body.get("model"), "stream": bool(body.get("stream")), "messages": _length(body)}
        note["cache_key"] = body.get("prompt_cache_key")
        note["user_id"] = (body.get("metadata") or {}).get("user_id")
        if failure := self._ordered_failure(fmt):
            message = failure.get("message", "Overloaded")
            return self._refuse(fmt, note, int(failure["status"]), message, failure.get("headers"))
        body, unknown = self._continued(body) if fmt == "responses" else (body, "")
        faults = [unknown] if unknown else check(body, fmt, self.registry)
        if faults:
            return self._refuse(fmt, note, 400, faults[0], also=faults)
        return self._too_long(fmt, body, note)

    def _too_long(self, fmt: Format, body: Json, note: Json) -> Reply | None:
        note["blocks"] = [hashlib.blake2b(b, digest_size=6).hexdigest() for b in blocks(body, fmt)]
        note["prompt_tokens"] = tokens = prompt_tokens(body, fmt)
        limit = self.limits.get(str(body["model"]), self.prompt_limit)
        if tokens <= limit:
            note["accepted"] = True
            return None
        messages = {
            "anthropic": f"prompt is too long: {tokens} tokens > {limit} maximum",
            "chat": f"This model's maximum context length is {limit} tokens. However, your messages resulted in "
            f"{tokens} tokens. Please reduce the length of the messages.",
            "responses": "Your input exceeds the context window of this model. Please adjust your input and try again.",
        }
        return self._refuse(fmt, note, 400, messages[fmt], code="context_length_exceeded")

    def _refuse(
        self, fmt: Format, note: Json, status: int, message: str, headers: Json | None = None, *,
        also: list[str] | None = None, code: str | None = None,
    ) -> Reply:  # fmt: skip
        note["errors"] = also or [message]
        if fmt == "anthropic":
            answer = wire_anthropic.refusal(status, message, f"{self.salt}{self.served}")
        else:
            param = "input" if fmt == "responses" else "messages"
            answer = wire_chat.refusal(status, message, param=param, code=code)
        return Reply(status, answer, delay_s=self.orders.delay_s, headers=headers or {})

    def _ordered_failure(self, fmt: Format) -> Json | None:
        for at, failure in enumerate(self.orders.fail_next):
            if failure.get("route", fmt) == fmt:
                del self.orders.fail_next[at]
                return failure
        return None

    def _continued(self, body: Json) -> tuple[Json, str]:
        """The body with the stored response that it goes on from put in front; or what's wrong with that."""
        held = body.get("previous_response_id")
        if not held:
            return body, ""
        if held not in self.stored:
            return body, f"Previous response with id '{held}' not found."
        whole = {**body, "input": [*self.stored[held], *items_of(body)]}
        del whole["previous_response_id"]
        return whole, ""

    def _answer(self, fmt: Format, note: Json, now: float) -> Reply:
        sent = self.bodies[-1]
        body = self._continued(sent)[0] if fmt == "responses" else sent
        use = self._cache(fmt, body, now)
        note["cache"] = {"read": use.read, "written_5m": use.written_5m, "written_1h": use.written_1h}
        note["cache"] |= {"uncached": use.fresh, "hit_blocks": use.hit_at}
        serial = f"{self.salt}n{self.served}"
        output = self._ordered_output(serial) or next_output(situation(body, fmt), seed=self.seed, serial=serial)
        answer = _RENDER[fmt](output, sent, use, serial, self.registry)
        note |= {"response": answer["id"], "calls": len(output.calls)}
        if fmt == "responses" and sent.get("store", True):
            self.stored[answer["id"]] = [*items_of(body), *answer["output"]]
        events = tuple(_events(fmt, sent, answer)) if sent.get("stream") else ()
        abort = self.orders.abort_mid_stream.popleft() if events and self.orders.abort_mid_stream else ""
        note["aborted"] = abort
        return Reply(200, answer, events, self.orders.delay_s, abort)

    def _cache(self, fmt: Format, body: Json, now: float) -> CacheUse:
        if fmt == "anthropic":
            return self.marked_cache.request(body, now)
        return self.automatic_cache.request(body, fmt, now)

    def _ordered_output(self, serial: str) -> Output | None:
        if not self.orders.answers:
            return None
        said = self.orders.answers.popleft()
        calls = tuple(
            Call(f"o_{at}_{serial}", call["name"], call.get("arguments", {}), bool(call.get("custom")))
            for at, call in enumerate(said.get("calls", ()))
        )
        return Output(said.get("thinking"), said.get("text", ""), said.get("search", ""), calls)


def _events(fmt: Format, sent: Json, answer: Json) -> Iterator[Event]:
    if fmt == "anthropic":
        return wire_anthropic.stream(answer)
    if fmt == "responses":
        return wire_responses.stream(answer)
    return wire_chat.stream(answer, include_usage=bool((sent.get("stream_options") or {}).get("include_usage")))


def _length(body: Json) -> int:
    held = body.get("messages") or body.get("input") or []
    return len(held) if isinstance(held, list) else 1
