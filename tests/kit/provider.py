"""The strict fake provider over HTTP.

    python -m tests.kit.provider --port 9100 [--record FILE] [--prompt-limit N] [--model-limit NAME=N]

Answers /v1/messages (and /v1/messages/count_tokens), /v1/chat/completions, /v1/responses, with or without the
/v1, streaming or not. For tests: `app(Provider())` through httpx's ASGITransport, or `running()` for a real
port in a thread.

    GET  /__log?last=N      {"requests": [...]}: route, status, accepted, errors, prompt_tokens, cache, model,
                            headers (session ids), blocks (digest of each message block), bytes
    GET  /__bodies?last=N   {"bodies": [...]} as they arrived
    POST /__script          orders for the next answers: see `provider_state.Orders`; also prompt_limit,
    limits POST /__reset           forget log, caches and orders

What the model says is driven by markers in the prompts: see `script`.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from openmem_hook.replay.provider.counting import prompt_tokens

from . import wire_anthropic, wire_chat, wire_responses
from .builders import Format
from .provider_state import PROMPT_LIMIT, Event, Provider, Reply

Json = dict[str, Any]
Handler = Callable[[Request], Awaitable[Response]]

PATHS: dict[Format, str] = {"anthropic": "/messages", "chat": "/chat/completions", "responses": "/responses"}
_BROKEN = {
    "anthropic": wire_anthropic.broken_stream,
    "chat": wire_chat.broken_stream,
    "responses": wire_responses.broken_stream,
}


def app(provider: Provider, *, record: Path | None = None, clock: Callable[[], float] = time.time) -> Starlette:
    """The ASGI application. `record` gets one JSON line a request; `clock` is what the caches live by."""

    def model_route(fmt: Format) -> Handler:
        async def answer(request: Request) -> Response:
            reply = provider.handle(fmt, await request.body(), dict(request.headers), clock())
            if record is not None:
                _append(record, provider.log[-1])
            if reply.delay_s:
                await asyncio.sleep(reply.delay_s)
            if reply.events:
                return StreamingResponse(_sent(fmt, reply), media_type="text/event-stream")
            return _json(reply.answer, reply.status, reply.headers)

        return answer

    routes = [Route(path, handler, methods=["POST"]) for path, handler in _control(provider).items()]
    routes += [Route("/__log", _listing("requests", lambda: provider.log))]
    routes += [Route("/__bodies", _listing("bodies", lambda: list(provider.bodies)))]
    for fmt, path in PATHS.items():
        routes += [Route(prefix + path, model_route(fmt), methods=["POST"]) for prefix in ("/v1", "")]
    return Starlette(routes=routes)


def _control(provider: Provider) -> dict[str, Handler]:
    async def script(request: Request) -> Response:
        provider.order(orjson.loads(await request.body()))
        return _json({"ok": True})

    async def reset(request: Request) -> Response:
        provider.reset()
        return _json({"ok": True})

    async def count_tokens(request: Request) -> Response:
        return _json({"input_tokens": prompt_tokens(orjson.loads(await request.body()), "anthropic")})

    return {"/__script": script, "/__reset": reset, "/v1/messages/count_tokens": count_tokens}


def _listing(name: str, held: Callable[[], list[Json]]) -> Handler:
    async def listing(request: Request) -> Response:
        last = int(request.query_params.get("last", 0))
        return _json({name: held()[-last:]})

    return listing


async def _sent(fmt: Format, reply: Reply) -> AsyncIterator[bytes]:
    """The event stream as bytes; an aborted one stops half way, in the manner that was ordered."""
    events = reply.events[: len(reply.events) // 2] if reply.abort else reply.events
    for event in events:
        yield _line(event)
        await asyncio.sleep(0)
    if reply.abort == "error":
        yield _line(_BROKEN[fmt]("Overloaded"))
    elif reply.abort == "cut":
        raise ConnectionResetError("the kit's provider was told to cut this stream")
    elif not reply.abort and fmt == "chat":
        yield b"data: [DONE]\n\n"


def _line(event: Event) -> bytes:
    name, data = event
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + orjson.dumps(data) + b"\n\n"


def _json(value: Json, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers, media_type="application/json")


def _append(record: Path, note: Json) -> None:
    with record.open("ab") as file:
        file.write(orjson.dumps(note) + b"\n")


@contextmanager
def running(provider: Provider | None = None, **options: Any) -> Iterator[str]:
    """Serves on a free loopback port in a thread; yields the base address, without a slash at its end."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app(provider or Provider(), **options), log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listener.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.kit.provider", description="The strict fake provider.")
    parser.add_argument("--port", type=int, default=9100)
    parser.add_argument("--record", type=Path, help="file that gets one JSON line a request")
    parser.add_argument("--prompt-limit", type=int, default=PROMPT_LIMIT, help="longest prompt in tokens")
    parser.add_argument("--model-limit", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    limits = {name: int(limit) for name, limit in (pair.rsplit("=", 1) for pair in given.model_limit)}
    provider = Provider(prompt_limit=given.prompt_limit, limits=limits, seed=given.seed)
    served = app(provider, record=given.record)
    uvicorn.run(served, host="127.0.0.1", port=given.port, log_level="warning", lifespan="off")


if __name__ == "__main__":
    main()
