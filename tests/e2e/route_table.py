"""Which routes of the gateway the plugin serves, found out by sending a long session over each.

    python -m tests.e2e.route_table          measures all of them and writes docs/routes.md

A row is measured by what the provider got: a pointer in it means that the session was trimmed. `plain` is a
gateway as most have it; `special` has the switches that send requests other ways, and a provider that also
takes sockets and says 404 to what it doesn't know.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import json
import logging
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import httpx
import uvicorn
import websockets
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from websockets.sync.server import ServerConnection, serve

from openmem_hook.replay.provider.counting import prompt_tokens
from tests.harness.gateway_process import (
    TAG,
    UPSTREAM_KEY,
    Gateway,
    Upstream,
    bearer,
    configuration,
    events,
    query,
    serving,
)
from tests.kit import builders as a
from tests.kit.builders import Format, Json
from tests.kit.provider import app as provider_app
from tests.kit.provider import running

DOCS = Path(__file__).parents[2] / "docs" / "routes.md"
POINTER = "<openmem-pointer>\\n"
NOTE = "Context management (openmem)"
PATIENCE_S = 20.0
SMALL_WINDOW = 16_000


# --- the rows ---------------------------------------------------------------------------------------------------


def long_session(fmt: Format, tag: str) -> Json:
    """Some 30,000 tokens, two turns done and a third begun, which the provider answers in one go."""
    body = a.session(fmt, turns=2, exchanges=8, size=6000)
    said = {"anthropic": a, "chat": a.chat, "responses": a.responses}[fmt]
    key = "input" if fmt == "responses" else "messages"
    lead = 1 if fmt == "chat" else 0
    first, typed = said.user(f"{tag} Begin."), said.user("Go on. [[calls:0]]")
    return {
        **body,
        key: [*body[key][:lead], first, said.assistant("Yes."), *body[key][lead:], said.assistant("Done."), typed],
    }


def _counted(body: Json) -> Json:
    return {key: value for key, value in body.items() if key != "max_tokens"}


def _filed(body: Json) -> Json:
    """A batch names a file, here by the session's tag."""
    found = TAG.search(json.dumps(body).encode())
    file = f"file-{found[0].decode()}" if found else ""
    return {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}


SOCKET, CONTINUED = "a socket", "a response before it"
"""Ways of sending that are more than a path."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `why` is told where nothing is trimmed."""

    route: str
    behind: str
    path: str
    fmt: Format
    model: str
    special: bool = False
    streams: bool = True
    change: Callable[[Json], Json] = dict
    why: str = ""


_A, _C, _R = "Anthropic", "OpenAI chat", "OpenAI Responses"
ROWS: tuple[Row, ...] = (
    Row("`/v1/messages`", _A, "/v1/messages", "anthropic", "claude-kit"),
    Row("`/v1/messages`", _R, "/v1/messages", "anthropic", "gpt-kit"),
    Row(
        "`/v1/messages` with `use_chat_completions_url_for_anthropic_messages`",
        *(_C, "/v1/messages", "anthropic", "gpt-kit", True),
    ),
    Row("`/v1/chat/completions`", _C, "/v1/chat/completions", "chat", "local-kit"),
    Row("`/v1/chat/completions`", _A, "/v1/chat/completions", "chat", "claude-kit"),
    Row("`/v1/responses`", _R, "/v1/responses", "responses", "gpt-kit"),
    Row("`/v1/responses`", _A, "/v1/responses", "responses", "claude-kit"),
    Row("`/anthropic/v1/messages`", _A, "/anthropic/v1/messages", "anthropic", "claude-sonnet-5", True),
    Row(
        "`/openai_passthrough/v1/chat/completions`",
        *(_C, "/openai_passthrough/v1/chat/completions", "chat", "gpt-5.5", True),
    ),
    Row(
        "`/openai_passthrough/v1/responses`",
        *(_R, "/openai_passthrough/v1/responses", "responses", "gpt-5.5", True),
    ),
    Row(
        "`/v1/responses` with `previous_response_id`",
        *(_R, CONTINUED, "responses", "gpt-kit", True, False),
        why="the provider has the history; such a request only adds to it",
    ),
    Row(
        "`/v1/responses` over a WebSocket",
        *(_R, SOCKET, "responses", "gpt-socket", True, False),
        why="LiteLLM asks no plugin about the frames; leave `supports_websockets` off in Codex",
    ),
    Row(
        "`/v1/responses/compact`",
        *(_R, "/v1/responses/compact", "responses", "gpt-kit", True, False),
        why="a history to be condensed, not a turn",
    ),
    Row(
        "`/openai_passthrough/v1/responses/compact`",
        *(_R, "/openai_passthrough/v1/responses/compact", "responses", "gpt-5.5", True, False),
        why="the same",
    ),
    Row(
        "`/v1/messages/count_tokens`",
        *(_A, "/v1/messages/count_tokens", "anthropic", "claude-kit", False, False, _counted),
        why="the client's whole history is counted, as it sent it",
    ),
    Row(
        "`/anthropic/v1/messages/count_tokens`",
        *(_A, "/anthropic/v1/messages/count_tokens", "anthropic", "claude-sonnet-5", True, False, _counted),
        why="the same",
    ),
    Row(
        "`/v1/completions`",
        *(_C, "/v1/completions", "chat", "local-kit", True, False, lambda body: {"prompt": json.dumps(body)}),
        why="no conversation",
    ),
    Row(
        "`/v1/embeddings`",
        *(_C, "/v1/embeddings", "chat", "local-kit", True, False, lambda body: {"input": [json.dumps(body)]}),
        why="no conversation",
    ),
    Row(
        "`/v1/batches`",
        *(_C, "/v1/batches", "chat", "local-kit", True, False, _filed),
        why="its requests are in a file",
    ),
)


# --- a provider that sees everything ----------------------------------------------------------------------------


class Everything(Upstream):
    """The strict provider, and besides it whatever is sent to a path it doesn't serve, or over a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.elsewhere: list[str] = []
        self.socket = ""

    def forwarded(self, tag: str) -> list[str]:
        return [raw for raw in (*map(json.dumps, self.bodies), *self.elsewhere) if tag in raw]

    async def note(self, request: Request) -> JSONResponse:
        self.elsewhere.append((await request.body()).decode())
        return JSONResponse({"error": {"message": "no such route", "type": "invalid_request_error"}}, 404)

    def talk(self, connection: ServerConnection) -> None:
        for frame in connection:
            self.elsewhere.append(str(frame))
            usage = {"input_tokens": 5, "output_tokens": 1, "total_tokens": 6}
            response = {
                "id": "resp_1",
                "object": "response",
                "created_at": 1,
                "status": "completed",
                "model": "gpt-5.5",
            }
            response |= {"output": [], "parallel_tool_calls": True, "tools": [], "tool_choice": "auto", "usage": usage}
            connection.send(json.dumps({"type": "response.completed", "sequence_number": 1, "response": response}))


@contextlib.contextmanager
def everything(folder: Path) -> Iterator[Everything]:
    """Serves on two loopback ports: HTTP, and sockets with TLS, without which LiteLLM opens none."""
    provider = Everything()
    served = provider_app(provider)
    served.routes.append(Route("/{path:path}", provider.note, methods=["POST"]))
    server = uvicorn.Server(uvicorn.Config(served, port=0, log_level="critical", lifespan="off"))
    sockets = serve(provider.talk, "127.0.0.1", 0, ssl=_certified(folder / "upstream.pem"), logger=_quiet())
    threads = [threading.Thread(target=one, daemon=True) for one in (server.run, sockets.serve_forever)]
    for thread in threads:
        thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        provider.address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        provider.socket = f"https://127.0.0.1:{sockets.socket.getsockname()[1]}/v1"
        yield provider
    finally:
        server.should_exit = True
        sockets.shutdown()
        for thread in threads:
            thread.join(timeout=10)


def _quiet() -> logging.Logger:
    """LiteLLM also knocks on the socket's port without asking for one, which would be told with a traceback."""
    logger = logging.getLogger("tests.e2e.route_table.socket")
    logger.disabled = True
    return logger


def _certified(file: Path) -> ssl.SSLContext:
    """A TLS server's context with a certificate of a day, made on the spot."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    made = made.not_valid_before(now - day).not_valid_after(now + day).add_extension(here, critical=False)
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file.write_bytes(
        made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, *private)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


@contextlib.contextmanager
def special(folder: Path, provider: Everything) -> Iterator[Gateway]:
    """A gateway with the switch for /v1/messages, pass-through routes, sockets, and a fallback to a small model."""
    config = configuration(provider.address)
    socket = {"model": "openai/gpt-5.5", "api_base": provider.socket, "api_key": UPSTREAM_KEY}
    big = {"model": "anthropic/claude-opus-4-5", "api_base": provider.address, "api_key": UPSTREAM_KEY}
    small = {**big, "model": "anthropic/claude-haiku-4-5"}
    config["model_list"] += [
        {"model_name": "gpt-socket", "litellm_params": socket},
        {"model_name": "claude-big", "litellm_params": big, "model_info": {"max_input_tokens": 200_000}},
        {"model_name": "claude-small", "litellm_params": small, "model_info": {"max_input_tokens": SMALL_WINDOW}},
    ]
    config["litellm_settings"] |= {
        "use_chat_completions_url_for_anthropic_messages": True,
        "ssl_verify": False,
        "fallbacks": [{"claude-big": ["claude-small"]}],
    }
    config["router_settings"] = {"disable_cooldowns": True}
    told = {f"{name}_API_BASE": provider.address for name in ("ANTHROPIC", "OPENAI")}
    told |= {f"{name}_API_KEY": UPSTREAM_KEY for name in ("ANTHROPIC", "OPENAI")} | {"SSL_VERIFY": "False"}
    with serving(Gateway(folder, config, environ=told)) as started:
        yield started


# --- measuring --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request."""

    trimmed: bool
    noted: bool
    usage: bool


async def measure(row: Row, gateway: Gateway, provider: Upstream, *, stream: bool) -> Outcome:
    tag = f"tag-route-{ROWS.index(row)}-{'stream' if stream else 'whole'}"
    body = row.change({**long_session(row.fmt, tag), "model": row.model})
    body |= {"model": row.model} | ({"stream": True} if stream else {})
    if row.path == SOCKET:
        told = await _over_a_socket(gateway, body, row.model)
    else:
        told = await _posted(gateway, row, body, tag)
    if row.path.endswith("count_tokens"):
        counted, whole = json.loads(told)["input_tokens"], prompt_tokens(body, row.fmt)
        return Outcome(counted < whole, counted > whole, False)
    sent = _forwarded(provider, tag)
    assert sent, f"{row.route}: nothing was forwarded: {told[:300]}"
    noted = NOTE in sent[-1]
    return Outcome(POINTER in sent[-1], noted, noted and await asyncio.to_thread(_is_recorded, gateway, tag))


async def _posted(gateway: Gateway, row: Row, body: Json, tag: str) -> str:
    async with httpx.AsyncClient(base_url=gateway.address, timeout=120, trust_env=False) as http:
        headers = bearer("alice") | {"x-session-id": tag}
        if row.path != CONTINUED:
            return (await http.post(row.path, json=body, headers=headers)).text
        first = {"model": row.model, "input": "Hello. [[calls:0]]", "store": True}
        before = (await http.post("/v1/responses", json=first, headers=headers)).json()
        return (
            await http.post("/v1/responses", json=body | {"previous_response_id": before["id"]}, headers=headers)
        ).text


async def _over_a_socket(gateway: Gateway, body: Json, model: str) -> str:
    address = f"{gateway.address.replace('http', 'ws', 1)}/v1/responses?model={model}"
    async with websockets.connect(address, additional_headers=bearer("alice"), proxy=None) as socket:
        for _ in range(2):
            await socket.send(json.dumps({"type": "response.create", **body}))
            answer = await asyncio.wait_for(socket.recv(), 60)
    return str(answer)


def _forwarded(provider: Upstream, tag: str) -> list[str]:
    if isinstance(provider, Everything):
        return provider.forwarded(tag)
    return [raw for raw in map(json.dumps, provider.bodies) if tag in raw]


def _is_recorded(gateway: Gateway, tag: str) -> bool:
    """Whether the provider's count of the request reached the store, a moment behind the answer."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        paths = [path for path in gateway.sessions() if query(path, _HOLDS.format(tag))[0][0]]
        told = [event["prompt_tokens"] for path in paths for event in events(path, "usage")]
        if told:
            return told[-1] is not None
        time.sleep(0.05)
    return False


_HOLDS = "SELECT count(*) FROM lines WHERE text LIKE '%{}%'"


async def measure_all(
    plain: Gateway, provider: Upstream, other: Gateway, everything: Everything
) -> dict[Row, list[Outcome]]:
    found: dict[Row, list[Outcome]] = {}
    for row in ROWS:
        at = (other, everything) if row.special else (plain, provider)
        found[row] = [await measure(row, *at, stream=stream) for stream in ((False, True) if row.streams else (False,))]
    return found


# --- the page ---------------------------------------------------------------------------------------------------

PAGE = """\
# Routes

Measured with LiteLLM {version} by `python -m tests.e2e.route_table`, which sends a long session over each route of a
real gateway and looks at what the provider gets. Don't edit this page: a test says when it is out of date.

| route | provider's API | trimmed | usage recorded |
| --- | --- | --- | --- |
{rows}

"yes" holds for whole answers and for streams. What is not trimmed goes to the provider as the client sent it,
without the standing note, and is not stored. Requests of other kinds (images, audio, rerank, moderation, Gemini's own
routes) are not looked at.

LiteLLM reads the usage of a stream that it passes through only where the host is OpenAI's or Azure's own; from other
hosts, as here, the plugin reads that of whole answers.

When LiteLLM answers a request of an agent without having asked the plugin, one line in the log says so, once a
process and kind of call.
"""


def page(found: dict[Row, list[Outcome]], litellm: str) -> str:
    return PAGE.format(version=litellm, rows="\n".join(_line(row, seen) for row, seen in found.items()))


def _line(row: Row, seen: list[Outcome]) -> str:
    trimmed = _cell([one.trimmed for one in seen])
    why = f": {row.why}" if trimmed == "no" and row.why else ""
    return f"| {row.route} | {row.behind} | {trimmed}{why} | {_cell([one.usage for one in seen])} |"


def _cell(seen: list[bool]) -> str:
    if len(set(seen)) == 1:
        return "yes" if seen[0] else "no"
    return "whole answers only" if seen[0] else "streams only"


def litellm_version() -> str:
    return version("litellm")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="routes") as name, contextlib.ExitStack() as held:
        folders = [Path(name) / which for which in ("plain", "special")]
        for folder in folders:
            folder.mkdir()
        provider, other = Upstream(), held.enter_context(everything(folders[1]))
        provider.address = held.enter_context(running(provider))
        plain = held.enter_context(serving(Gateway(folders[0], configuration(provider.address))))
        switched = held.enter_context(special(folders[1], other))
        found = asyncio.run(measure_all(plain, provider, switched, other))
        DOCS.write_text(page(found, litellm_version()))
    print(f"wrote {DOCS.name}")


if __name__ == "__main__":
    main()
