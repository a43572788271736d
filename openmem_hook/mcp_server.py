"""The tools as an MCP server: one description for both ways in, over HTTP on the gateway and over stdio on its host.

Who calls is settled by the way in: the gateway's authentication there, the operator's command line here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mcp.types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from openmem_hook import __version__
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


async def serve_stdio(runner: ToolRunner, caller: Caller) -> None:
    running = build_server(runner, lambda _: caller)
    async with stdio_server() as (incoming, outgoing):
        await running.run(incoming, outgoing, running.create_initialization_options())
