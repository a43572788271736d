"""The command line `openmem`: a module of this package for each command, imported when the command is run.

A command is the object `command` in the module of its name. `openmem --help` imports none of them, and `openmem NAME
--help` nothing that takes long: commands import what they need (the MCP library, rich, the reader of YAML) when they
are called. LiteLLM takes several seconds and is imported by no command: `openmem serve` becomes the `litellm` command.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence

import click

from openmem_hook import __version__
from openmem_hook.cli.base import Group, LazyCommand

COMMANDS: Mapping[str, str] = {
    "serve": "Run the gateway with the plugin.",
    "mcp": "Serve the search tools over stdio, on the gateway's host.",
    "replay": "See on your own transcripts what the plugin would do.",
}
"""Each command with its line in the list of commands, in the order of that list."""


@click.group(
    cls=Group,
    commands=[LazyCommand(name, f"{__name__}.{name}", summary) for name, summary in COMMANDS.items()],
    # Without a command, click 8.1 exits with 0. So it is `openmem` below that answers: 2, and on standard error.
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    examples=(
        ("openmem serve --port 4100", "the gateway, on this port"),
        ("claude mcp add openmem -- openmem mcp", "its tools, without HTTP"),
        ("openmem replay session.jsonl --html page.html", "what it would have done"),
    ),
)
@click.version_option(__version__, message="openmem %(version)s")
@click.pass_context
def openmem(ctx: click.Context) -> None:
    """Keep long sessions of coding agents under their limit, behind a LiteLLM gateway."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 2 for what can't be run, 1 for output that nobody takes,
    130 after Ctrl-C."""
    # A terminal that knows no other letters than ASCII shows the others' numbers.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        # Commands return their exit code, which click hands on only outside its standalone mode.
        return int(openmem.main(argv, prog_name="openmem", standalone_mode=False))
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130
    except OSError as error:  # standard output that is full, or that nobody reads
        click.echo(f"openmem: {error.strerror or error}", err=True)
        return 1
