"""`openmem mcp`: the search tools over standard input and output.

Agents start it in a project's folder, which may hold modules and a `.env` of its own. Nothing of them counts: the
module path of an installed script begins with the script's folder and lacks the current one, and no `.env` is read.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import click

from openmem_hook.cli.base import CannotRunError, Command


@click.command(
    cls=Command,
    help="Run an MCP server on standard input and output, for agents on this machine. Over HTTP the gateway serves "
    "the same tools at /v1/mcp/openmem.",
    examples=(
        ("openmem mcp", "the only tenant there is"),
        ("openmem mcp --tenant user:alice", "one of several"),
        ("claude mcp add openmem -- openmem mcp", "let Claude Code start it"),
    ),
)
@click.option(
    "--tenant",
    default="",
    show_default="the only one",
    metavar="TENANT",
    help="Whose sessions: user:ID, key:HASH, team:ID, operator, local.",
)
@click.option(
    "--state-dir",
    type=click.Path(readable=False),
    default="",
    show_default="as the gateway finds it",
    metavar="FOLDER",
    help="The gateway's state_dir.",
)
def command(tenant: str, state_dir: str) -> int:
    from openmem_hook import config
    from openmem_hook.cli.tenant import folder_of

    try:
        state = Path(state_dir or config.load(None, os.environ).settings.state_dir)
        folder = folder_of(state, tenant)
    except (config.SettingsError, OSError) as error:
        raise CannotRunError(str(error)) from error
    _serve(state, folder)
    return 0


def _serve(state: Path, folder: str) -> None:
    """Serves the tenant in this folder until standard input ends."""
    import asyncio  # these, unlike the checks above, take most of a second

    from openmem_hook.mcp_server import serve_stdio
    from openmem_hook.store.executor import Executor
    from openmem_hook.store.pool import Pool
    from openmem_hook.tools import Caller, ToolRunner

    # The library waits for a line of standard input, which no exception interrupts: Ctrl-C ends the process itself.
    # What was being written then is not committed.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    pool, executor = Pool(state), Executor()
    runner = ToolRunner(pool, executor)
    try:
        asyncio.run(serve_stdio(runner, Caller(folder)))
    finally:
        executor.close()
        pool.close()
