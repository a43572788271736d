"""The work of `openmem replay`: a file's figures, a bar while they are made, and their two forms, JSON and a page."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from openmem_hook import __version__
from openmem_hook.gateway.prices import shipped_costs
from openmem_hook.replay import UnknownTranscriptError, read
from openmem_hook.replay.show import name
from openmem_hook.replay.summary import Figures, summary, total
from openmem_hook.replay.trial import run

SCHEMA = 1
"""Of the JSON; a change of a field's meaning raises it."""

Advance = Callable[[], None]
"""Moves a session's bar on by one request."""

Bars = Callable[[str, int], AbstractContextManager[Advance]]
"""Shows a bar for the file of this name with this number of requests."""


class NotReplayableError(Exception):
    """Why a file can't be replayed, in one line that begins with the file's name."""


class NoPageError(Exception):
    """Why the page can't be made, in one line."""


def figures_of(file: Path, settings: Mapping[str, object], bars: Bars) -> Figures:
    """Replays one transcript. Raises NotReplayableError, and SettingsError for settings that are not allowed."""
    try:
        session = read(file)
    except (UnknownTranscriptError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a transcript of Claude Code, Codex or OpenCode"
        raise NotReplayableError(f"{name(str(file), 200)}: {reason}") from error
    if not session.steps:
        raise NotReplayableError(f"{name(str(file), 200)}: a transcript without a request")
    with bars(file.name, len(session.steps)) as advance:
        return summary(run(session, settings, shipped_costs(), lambda *_: advance()))


def to_json(sessions: Sequence[Figures], settings: Mapping[str, object]) -> str:
    return json.dumps(
        {
            "schema": SCHEMA,
            "openmem": __version__,
            "settings": settings,
            "sessions": sessions,
            "total": total(sessions),
        }
    )


def page_writer(file: Path) -> Callable[[Sequence[Figures]], None]:
    """What writes the figures into this file as a page; raises NoPageError where it can't be written, and at once
    where the library for the charts is missing."""
    try:
        from openmem_hook.replay.page import page
    except ImportError as error:
        raise NoPageError("--html draws with matplotlib: pip install 'openmem-hook[report]'") from error

    def write(sessions: Sequence[Figures]) -> None:
        try:
            file.write_text(page(sessions, total(sessions)), "utf-8")
        except OSError as error:
            raise NoPageError(f"{file}: {error.strerror}") from error

    return write


@contextmanager
def progress_bars() -> Iterator[Bars]:
    """A bar a session on standard error, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _file, _requests: nullcontext(lambda: None)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:

        @contextmanager
        def bar(file: str, requests: int) -> Iterator[Advance]:
            task = progress.add_task(name(file), total=requests)
            yield lambda: progress.advance(task)
            progress.remove_task(task)

        yield bar
