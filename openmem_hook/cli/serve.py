"""`openmem serve`: its options; then this process becomes the `litellm` command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from openmem_hook.cli.base import FILE, CannotRunError, Command, WholeNumber


@click.command(
    cls=Command,
    help="Run the gateway on loopback. Provider keys come from the environment or from .env in this folder, the "
    "master key from LITELLM_MASTER_KEY, else from the file ~/.local/share/openmem/master_key (or "
    "OPENMEM_STATE_DIR/master_key), which is made on the first run and is readable by you alone. LITELLM_ARGS go to "
    "the litellm command.",
    examples=(
        ("openmem serve", "on 127.0.0.1:4000"),
        ("openmem serve --config gateway.yaml --port 4100", "another file and port"),
        ("openmem serve --workers 2 -- --detailed_debug", "words after -- to litellm"),
    ),
)
@click.option(
    "--config",
    type=FILE,
    metavar="FILE",
    show_default="litellm_config.yaml in this folder, or the shipped one",
    help="Gateway configuration.",
)
@click.option("--host", default="127.0.0.1", metavar="HOST", help="Address to listen on.")
@click.option("--port", type=WholeNumber(0, 65535), default=4000, metavar="PORT", help="Port to listen on.")
@click.option("--workers", type=WholeNumber(1, 64), default=1, metavar="N", help="Worker processes.")
@click.argument("litellm_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- LITELLM_ARGS...]")
def command(config: Path | None, host: str, port: int, workers: int, litellm_args: Sequence[str]) -> NoReturn:
    import dotenv  # imported here, with all below, so that --help does without them

    from openmem_hook.cli.launch import ServeOptions, greeting, plan

    # A `.env` file in this folder is where LiteLLM's own advice puts keys; the environment wins.
    try:
        file = {key: value for key, value in dotenv.dotenv_values(".env").items() if value}
    except UnicodeDecodeError as error:
        raise CannotRunError(".env is not readable as UTF-8") from error
    launch = plan(ServeOptions(config, host, port, workers, litellm_args), file | dict(os.environ))
    click.echo("\n".join(greeting(launch)))
    try:
        os.execve(launch.command[0], list(launch.command), dict(launch.environ))  # noqa: S606 - no shell wanted
    except ValueError as error:  # a NUL character in what no command line or environment can hold
        raise CannotRunError(f"the gateway can't be started: {error}") from error
