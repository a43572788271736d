"""What the commands are built from: help with examples, importing on demand, a refusal in one line, option types."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import click

FILE = click.Path(path_type=Path, readable=False)
"""A path. Nothing is checked before it is used, so that an error is the operating system's own."""

Example = tuple[str, str]
"""A line to type, and what it does."""

_EXAMPLE_WIDTH = 48
"""Columns for the lines to type; with what they do beside them, they fit into 80."""


class CannotRunError(click.ClickException):
    """Why a command does not run, in one line for standard error; the exit code is 2."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        # The errors of settings begin with the program's name already, for the gateway's log.
        click.echo(f"openmem: {self.message.removeprefix('openmem: ')}", file=file, err=file is None)


class Command(click.Command):
    """A command whose help ends with examples, in columns like its options."""

    def __init__(self, name: str | None, *, examples: Sequence[Example], **attributes: Any) -> None:
        super().__init__(name, **attributes)
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            # An option without its value is the one error that click shows without the usage line.
            error.ctx = error.ctx or ctx
            raise

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        with formatter.section("Examples"):
            formatter.write_dl(self.examples, col_max=_EXAMPLE_WIDTH)


class Group(Command, click.Group):
    """Commands in the order in which they were added: the ones that people begin with come first."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        return list(self.commands)


class LazyCommand(click.Command):
    """The place of a command whose module is imported when the command is run, not when it is listed."""

    def __init__(self, name: str, module: str, summary: str) -> None:
        super().__init__(name, short_help=summary)
        self.module = module

    def load(self) -> click.Command:
        command: click.Command = import_module(self.module).command
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        return self.load().make_context(info_name, args, parent, **extra)


class WholeNumber(click.IntRange):
    """A whole number in plain digits, both ends included. click's own type also takes `+5`, ` 5 ` and `1_000`."""

    def __init__(self, lowest: int, highest: int) -> None:
        super().__init__(lowest, highest)
        self.lowest, self.highest = lowest, highest

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        # Python refuses to convert thousands of digits, with an error of its own.
        if text.isdecimal() and len(text) < 20 and self.lowest <= int(text) <= self.highest:
            return int(text)
        reason = f"{text} is not allowed: a whole number from {self.lowest} to {self.highest} is"
        raise click.BadParameter(reason, ctx, param)
