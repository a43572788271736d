"""Transcripts back into growing requests, as the client sent them.

`read` turns a session file of Claude Code, Codex or OpenCode (plain, gzip or xz) into a `Transcript`;
`requests` yields its requests with a constant front; `growth` says what each step cost, as the provider reported it.
`trial` sends them once more, past the simulated `provider`, and `command` shows what came of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from openmem_hook.replay import claude_code, codex, opencode
from openmem_hook.replay.bodies import requests
from openmem_hook.replay.growth import Growth, growth
from openmem_hook.replay.records import load, read_document, read_records
from openmem_hook.replay.segments import mark_clearings
from openmem_hook.replay.transcript import (
    Record,
    ReplayRequest,
    ReportedUsage,
    Step,
    Transcript,
    UnknownTranscriptError,
)

__all__ = [
    "Growth",
    "ReplayRequest",
    "ReportedUsage",
    "Step",
    "Transcript",
    "UnknownTranscriptError",
    "growth",
    "read",
    "requests",
]


def read(path: Path | str) -> Transcript:
    """Read a transcript of any known format; its records say which one, not its name.

    Raises `UnknownTranscriptError` if no record is of a known format, and `OSError` as reading files does.
    Broken lines and unknown records are counted in `Transcript.omissions`.
    """
    path, omissions = Path(path), Counter[str]()
    data = load(path, omissions)

    # One JSON document is an export of OpenCode.
    document = read_document(data)
    if document and isinstance(document.get("info"), dict) and isinstance(document.get("messages"), list):
        return _with_segments(opencode.read(path, document, omissions))

    # Else the first record of a known shape decides.
    records = read_records(data, omissions)
    for record in records:
        for reader, has_shape in _READERS:
            if has_shape(record):
                return _with_segments(reader(path, records, omissions))
    raise UnknownTranscriptError(f"{path}: not a transcript of Claude Code, Codex or OpenCode")


def _with_segments(transcript: Transcript) -> Transcript:
    steps, clearings = mark_clearings(list(transcript.steps))
    if clearings:
        transcript.omissions["silent clearing"] += clearings
    return replace(transcript, steps=tuple(steps))


def _is_codex(record: Record) -> bool:
    return isinstance(record.get("payload"), dict) and isinstance(record.get("type"), str)


def _is_claude(record: Record) -> bool:
    return "sessionId" in record or ("uuid" in record and "parentUuid" in record)


_Reader = Callable[[Path, list[Record], Counter[str]], Transcript]
_READERS: tuple[tuple[_Reader, Callable[[Record], bool]], ...] = (
    (codex.read, _is_codex),
    (claude_code.read, _is_claude),
)
