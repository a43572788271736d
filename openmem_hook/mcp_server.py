"""The tools as an MCP server: one description for both ways in, over HTTP on the gateway and over stdio on its host.

Who calls is settled by the way in: the gateway's authentication there, the operator's command line here.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mcp.types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from openmem_hook import __version__, config
from openmem_hook.store import names
from openmem_hook.store.pool import Pool
from openmem_hook.tools import TOOLS, Caller, ToolRunner

NAME = "openmem"
INSTRUCTIONS = (
    "Search over what was said, read and run in this and in earlier sessions, also what left your context. Search "
    "before you answer from something you can no longer see."
)

CallerOf = Callable[[Any], Caller]
"""Gives the caller of a request from its context."""


def build_server(runner: ToolRunner, caller_of: CallerOf) -> Server[Any]:
    """An MCP server of the tools; `caller_of` tells who sent a request."""

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=_LIST)

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        answer = await runner.call(caller_of(context), params.name, params.arguments)
        content = types.TextContent(type="text", text=answer.text)
        return types.CallToolResult(content=[content], is_error=answer.is_error)

    return Server(
        NAME, version=__version__, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )


_LIST: list[types.Tool] = [
    types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.schema,
        annotations=types.ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False),
        _meta=dict(tool.meta),
    )
    for tool in TOOLS.values()
]
"""The tools as clients list them."""


# --- over stdio -------------------------------------------------------------------------------------------

_TENANT = re.compile(r"[0-9a-f]{32}")
_OWNER = re.compile(r"(user|key|team):.+|operator|local")


class NoTenantError(Exception):
    """Which tenant is meant can't be told; says what to do in one line."""


def folder_of(state: Path, tenant: str) -> str:
    """The tenant's folder: its name, or the owner it was made for (user:ID, key:HASH, team:ID, operator, local).
    Without `tenant` the only one there is. Raises NoTenantError, which names none of those that are there."""
    if tenant:
        found = tenant if _TENANT.fullmatch(tenant) else names.tenant_folder(_owner(tenant))
        if not (state / found).is_dir():
            raise NoTenantError("nothing is stored for this tenant")
        return found
    there = [path.name for path in state.iterdir() if _TENANT.fullmatch(path.name)] if state.is_dir() else []
    if len(there) == 1:
        return there[0]
    if not there:
        raise NoTenantError(f"nothing is stored in {state}; is this the gateway's state_dir?")
    raise NoTenantError("there is more than one tenant: say which with --tenant user:ID, key:HASH, team:ID or operator")


def _owner(tenant: str) -> str:
    return tenant if _OWNER.fullmatch(tenant) else f"user:{tenant}"


async def serve_stdio(runner: ToolRunner, caller: Caller) -> None:
    running = build_server(runner, lambda _: caller)
    async with stdio_server() as (incoming, outgoing):
        await running.run(incoming, outgoing, running.create_initialization_options())


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    parser = argparse.ArgumentParser(prog="openmem mcp", description=__doc__)
    parser.add_argument("--tenant", default="", help="whose sessions: user:ID, key:HASH, team:ID, operator, local")
    parser.add_argument("--state-dir", type=Path, help="the gateway's state_dir (default: as the gateway finds it)")
    given = parser.parse_args(argv)
    try:
        state = given.state_dir or Path(config.load(None, environ).settings.state_dir)
        folder = folder_of(state, given.tenant)
    except (config.SettingsError, NoTenantError, OSError) as error:
        sys.stderr.write(f"openmem: {str(error).removeprefix('openmem: ')}\n")
        return 2
    runner = ToolRunner(Pool(state))
    try:
        asyncio.run(serve_stdio(runner, Caller(folder)))
    except KeyboardInterrupt:
        return 130
    finally:
        runner.close()
        runner.pool.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
