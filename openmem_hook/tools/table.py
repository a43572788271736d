"""The table of tools, used by every way in. Each tool is a file of its own."""

from __future__ import annotations

from collections.abc import Mapping

from openmem_hook.tools import get, search, sql, status
from openmem_hook.tools.tool import Tool

TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        search.TOOL,
        sql.TOOL,
        get.TOOL,
        status.TOOL,
    )
}
