"""The MCP endpoint on the gateway's own app, for agents on any machine: `POST /v1/mcp/openmem` with the agent's key.

The path is one that ordinary virtual keys may reach. The gateway authenticates; the tenant is read off the key it
found. Stateless, JSON answers: any worker answers any request. The SDK's session manager only works inside its
`run()`, so the first request of a worker starts it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Depends, Request
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from openmem_hook import mcp_server
from openmem_hook.gateway import session, tenant
from openmem_hook.gateway.client_values import client_value
from openmem_hook.settings import Owner
from openmem_hook.store import names
from openmem_hook.tools import Caller, ToolRunner

PATH = "/v1/mcp/openmem"
CALLER = "openmem.caller"
_CODEX_SESSION = ("sessionId", "session_id", "threadId", "thread_id")


class Endpoint:
    """Serves one runner. A worker has one event loop; a test may have several, each with a manager of its own."""

    def __init__(self, runner: ToolRunner) -> None:
        self._runner = runner
        self._manager: StreamableHTTPSessionManager | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: asyncio.Task[None] | None = None

    async def manager(self) -> StreamableHTTPSessionManager:
        loop = asyncio.get_running_loop()
        if self._manager is None or self._loop is not loop or self._running is None or self._running.done():
            ready = loop.create_future()
            self._manager = StreamableHTTPSessionManager(
                mcp_server.build_server(self._runner, _caller_of), json_response=True, stateless=True
            )
            self._loop, self._running = loop, loop.create_task(_run(self._manager, ready))
            self._ready = ready
        await asyncio.shield(self._ready)
        return self._manager

    async def stop(self) -> None:
        if self._running is not None and self._loop is asyncio.get_running_loop():
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running


async def _run(manager: StreamableHTTPSessionManager, ready: asyncio.Future[None]) -> None:
    """Enters and leaves `run()` in one task, as its task group wants it."""
    try:
        async with manager.run():
            ready.set_result(None)
            await asyncio.Event().wait()
    except Exception as error:
        if ready.done():
            raise
        ready.set_exception(error)


def _caller_of(context: Any) -> Caller:
    """The caller that the route put beside the request, and what the client itself says of its session."""
    caller: tuple[str, str, str] = context.request.scope[CALLER]
    owner, folder, project = caller
    meta: Mapping[str, Any] = context.meta or {}
    session_id = next((value for key in _CODEX_SESSION if (value := client_value(meta.get(key)))), None)
    return Caller(folder, names.session_name(owner, session_id) if session_id else "", project)


class _ManagerResponse(Response):
    """An answer that the session manager sends itself. The gateway's authentication has read the body already: the
    manager receives it again."""

    def __init__(self, manager: StreamableHTTPSessionManager, body: bytes) -> None:
        super().__init__()
        self._manager, self._body = manager, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_first = True

        async def receive_again() -> Message:
            nonlocal is_first
            if not is_first:
                return await receive()
            is_first = False
            return {"type": "http.request", "body": self._body, "more_body": False}

        await self._manager.handle_request(scope, receive_again, send)


def router(runner: ToolRunner, authenticate: Any, tenant_mode: Owner, proxy: Any) -> APIRouter:
    """The route. `authenticate` is the gateway's own dependency, `proxy` its server module."""
    endpoint = Endpoint(runner)
    routes = APIRouter()

    @routes.post(PATH, include_in_schema=False)
    async def serve(request: Request, key: Any = Depends(authenticate)) -> Response:  # noqa: B008 - FastAPI's way
        owner = tenant.tenant_of(key, tenant_mode, tenant.authentication_of(proxy))
        request.scope[CALLER] = (owner, names.tenant_folder(owner), session.project_of(request.headers))
        return _ManagerResponse(await endpoint.manager(), await request.body())

    return routes


def add_to(proxy: Any, runner: ToolRunner, tenant_mode: Owner) -> bool:
    """Adds the endpoint to the gateway's app, once; False where the gateway can't take it. Search is then missing,
    everything else works."""
    app = getattr(proxy, "app", None)
    if app is None:
        return False
    try:
        from litellm.proxy.auth.user_api_key_auth import user_api_key_auth
    except ImportError:
        logging.getLogger("openmem").warning("openmem: this gateway has no authentication for routes: no search tools")
        return False
    app.include_router(router(runner, user_api_key_auth, tenant_mode, proxy))
    return True
