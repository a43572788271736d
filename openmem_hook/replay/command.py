"""`openmem replay`: files in, figures out, to a terminal, as JSON, as a page."""

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
from openmem_hook.replay import Transcript, UnknownTranscriptError, read
from openmem_hook.replay.show import name, show
from openmem_hook.replay.summary import Figures, summary, total
from openmem_hook.replay.trial import run

SCHEMA = 1
"""Of the JSON; a change of a field's meaning raises it."""


class NoPageError(Exception):
    """Why the page can't be made, in one line."""


def replay(files: Sequence[Path], settings: Mapping[str, object], as_json: bool, page: Path | None) -> int:
    """Replays the files and reports; 2 if one of them is no transcript. Raises NoPageError before any work, and
    SettingsError."""
    write = _page_writer() if page is not None else None
    sessions: list[Figures] = []
    failed = False
    with _progress() as track:
        for file in files:
            session = _read(file)
            failed = failed or session is None
            if session is not None:
                with track(file.name, len(session.steps)) as tick:
                    sessions.append(summary(run(session, settings, shipped_costs(), lambda *_: tick())))
    if sessions:
        sums = total(sessions)
        if as_json:
            told = {"schema": SCHEMA, "openmem": __version__, "settings": settings, "sessions": sessions, "total": sums}
            print(json.dumps(told))
        else:
            show(Console(), sessions, sums)
        if page is not None and write is not None:
            _save(page, write(sessions, sums))
    return 2 if failed else 0


def _read(file: Path) -> Transcript | None:
    """The session, or None and a line that says why not."""
    try:
        session = read(file)
    except (UnknownTranscriptError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a transcript of Claude Code, Codex or OpenCode"
    else:
        if session.steps:
            return session
        reason = "a transcript without a request"
    print(f"openmem: {name(str(file), 200)}: {reason}", file=sys.stderr)
    return None


def _save(page: Path, text: str) -> None:
    try:
        page.write_text(text, "utf-8")
    except OSError as error:
        raise NoPageError(f"{page}: {error.strerror}") from error


def _page_writer() -> Callable[[Sequence[Figures], Figures], str]:
    try:
        from openmem_hook.replay.page import page
    except ImportError as error:
        raise NoPageError("--html draws with matplotlib: pip install 'openmem-hook[report]'") from error
    return page


_Tick = Callable[[], None]


@contextmanager
def _progress() -> Iterator[Callable[[str, int], AbstractContextManager[_Tick]]]:
    """A bar a session on standard error, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _file, _requests: nullcontext(lambda: None)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:

        @contextmanager
        def track(file: str, requests: int) -> Iterator[_Tick]:
            task = bars.add_task(name(file), total=requests)
            yield lambda: bars.advance(task)
            bars.remove_task(task)

        yield track
