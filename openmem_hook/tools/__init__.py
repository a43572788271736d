"""The tools that agents call: what left their context, found again.

`table` lists them, `runner` answers calls, and each tool is a file: its description, its arguments and its
behaviour. A new one is such a file and its line in the table.
"""

from openmem_hook.tools.runner import ToolRunner
from openmem_hook.tools.table import TOOLS
from openmem_hook.tools.tool import Answer, Caller

__all__ = ["TOOLS", "Answer", "Caller", "ToolRunner"]
