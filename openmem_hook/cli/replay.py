"""`openmem replay`: its options, what it prints, and its exit code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from openmem_hook.cli.base import FILE, CannotRunError, Command, WholeNumber


@click.command(
    cls=Command,
    help="""\
    Send the sessions in these files once more, as the client sent them and through the plugin, past a simulated
    provider and into a store that is thrown away. Nothing leaves this machine.

    A FILE is a transcript, plain, .gz or .xz: a session file of Claude Code (~/.claude/projects), Codex
    (~/.codex/sessions) or OpenCode (opencode export).
    """,
    examples=(
        ("openmem replay session.jsonl", "tables on the terminal"),
        ("openmem replay *.jsonl --html page.html", "and one page with charts"),
        ("openmem replay a.jsonl --trim-at-tokens 90000", "with another limit"),
    ),
)
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="FILE...")
@click.option("--json", "as_json", is_flag=True, help="The figures as JSON instead of tables.")
@click.option("--html", "page", type=FILE, metavar="PAGE", help="Write a page with charts, too.")
@click.option(
    "--trim-at-tokens",
    type=WholeNumber(1_000, 100_000_000),
    metavar="N",
    help="The setting trim_at_tokens for this run.",
)
def command(files: Sequence[Path], as_json: bool, page: Path | None, trim_at_tokens: int | None) -> int:
    from rich.console import Console  # imported here, with all below, so that --help does without them

    from openmem_hook import config
    from openmem_hook.replay import command as replay
    from openmem_hook.replay.show import show
    from openmem_hook.replay.summary import total

    settings = {} if trim_at_tokens is None else {"trim_at_tokens": trim_at_tokens}
    sessions, exit_code = [], 0
    try:
        # Whether the page can be drawn is settled before any work.
        write_page = None if page is None else replay.page_writer(page)
        with replay.progress_bars() as bars:
            for file in files:
                try:
                    sessions.append(replay.figures_of(file, settings, bars))
                except replay.NotReplayableError as error:
                    # One file that is no transcript stops none of the others.
                    click.echo(f"openmem: {error}", err=True)
                    exit_code = 2
        if not sessions:
            return exit_code
        if as_json:
            click.echo(replay.to_json(sessions, settings))
        else:
            show(Console(), sessions, total(sessions))
        if write_page is not None:
            write_page(sessions)
    except (replay.NoPageError, config.SettingsError) as error:
        raise CannotRunError(str(error)) from error
    return exit_code
