"""Transcripts back into growing requests, as the client sent them.

`read` turns a session file of Claude Code, Codex or OpenCode (plain, gzip or xz) into a `Session`;
`requests` yields its requests with a constant front; `growth` says what each step cost, as recorded. `trial` sends
them once more, past the simulated `provider`, and `command` shows what came of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from openmem_hook.replay import claude_code, codex, opencode
from openmem_hook.replay.bodies import requests
from openmem_hook.replay.growth import Growth, growth
from openmem_hook.replay.segments import mark_clearings
from openmem_hook.replay.session import (
    Record,
    Recorded,
    Request,
    Session,
    Step,
    UnknownTranscriptError,
)
from openmem_hook.replay.transcript import document, load, records

__all__ = [
    "Growth",
    "Recorded",
    "Request",
    "Session",
    "Step",
    "UnknownTranscriptError",
    "growth",
    "read",
    "requests",
]


def read(path: Path | str) -> Session:
    """Read a transcript of any known format; which one is told by its records, not by its name.

    Raises `UnknownTranscriptError` if no record is of a known format, and `OSError` as reading files does.
    Broken lines and unknown records are counted in `Session.skipped`.
    """
    path, skipped = Path(path), Counter[str]()
    data = load(path, skipped)
    whole = document(data)
    if whole and isinstance(whole.get("info"), dict) and isinstance(whole.get("messages"), list):
        return _segmented(opencode.read(path, whole, skipped))
    found = records(data, skipped)
    for record in found:
        for reader, knows in _READERS:
            if knows(record):
                return _segmented(reader(path, found, skipped))
    raise UnknownTranscriptError(f"{path}: not a transcript of Claude Code, Codex or OpenCode")


def _segmented(session: Session) -> Session:
    steps, clearings = mark_clearings(list(session.steps))
    if clearings:
        session.skipped["silent clearing"] += clearings
    return replace(session, steps=tuple(steps))


def _is_codex(record: Record) -> bool:
    return isinstance(record.get("payload"), dict) and isinstance(record.get("type"), str)


def _is_claude(record: Record) -> bool:
    return "sessionId" in record or ("uuid" in record and "parentUuid" in record)


_Reader = Callable[[Path, list[Record], Counter[str]], Session]
_READERS: tuple[tuple[_Reader, Callable[[Record], bool]], ...] = (
    (codex.read, _is_codex),
    (claude_code.read, _is_claude),
)
