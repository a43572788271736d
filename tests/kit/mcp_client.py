"""The least of an MCP client: one JSON-RPC call a POST, no session."""

from __future__ import annotations

from typing import Any

import httpx

PATH = "/v1/mcp/openmem"
ACCEPT = {"accept": "application/json, text/event-stream"}


async def rpc(http: httpx.AsyncClient, method: str, headers: dict[str, str], **params: Any) -> Any:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = await http.post(PATH, json=body, headers={**ACCEPT, **headers})
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert "result" in told, told
    return told["result"]


async def call(
    http: httpx.AsyncClient, tool: str, headers: dict[str, str], meta: dict[str, Any] | None = None, **arguments: Any
) -> tuple[str, bool]:
    """A tool's text, and whether it is an error."""
    more = {"_meta": meta} if meta else {}
    result = await rpc(http, "tools/call", headers, name=tool, arguments=arguments, **more)
    return "".join(part["text"] for part in result["content"]), bool(result.get("isError"))
