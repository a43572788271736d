"""What the demo reads back from the store: plain SQL on the public tables, as docs/schema.md shows it."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.gateway import DemoError

EVENTS_S = 20
"""Seconds to wait for the last usage record: the gateway writes it after the response."""

FIND = """
SELECT lines.text, lines.seq, lines.line_no, messages.tool_name, messages.in_context
FROM lines_fts
JOIN lines ON lines.id = lines_fts.rowid
JOIN messages ON messages.seq = lines.seq
WHERE lines_fts MATCH ?
"""


@dataclass(frozen=True, slots=True)
class StoreLine:
    """A line of the store and the message it stands in."""

    text: str

    seq: int
    """The message's number."""

    line_no: int
    """The line's number in the message."""

    tool_name: str

    in_context: bool
    """Whether the model still sees the message."""


@dataclass(frozen=True, slots=True)
class StoreContents:
    """The session as its database holds it."""

    path: Path

    messages: int
    """Number of messages."""

    trims: Sequence[Mapping[str, Any]]
    compressions: Sequence[Mapping[str, Any]]
    usage: Sequence[Mapping[str, Any]]
    """Data of the events of each kind, the oldest first."""

    matches: Sequence[StoreLine]
    """Lines that hold the phrase."""


def read(state_dir: Path, phrase: str, requests: int) -> StoreContents:
    """The one session below this folder, once it has a usage record for each of so many requests.

    Raises DemoError where there is none.
    """
    path = next(state_dir.glob("*/sessions/*.db"), None)
    if path is None:
        raise DemoError("nothing was stored: the gateway did not call the plugin")
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        until = time.monotonic() + EVENTS_S
        while len(usage := _events(db, "usage")) < requests and time.monotonic() < until:
            time.sleep(0.05)
        return StoreContents(
            path=path,
            messages=db.execute("SELECT count(*) FROM messages").fetchone()[0],
            trims=_events(db, "trim"),
            compressions=_events(db, "compression"),
            usage=usage,
            matches=[StoreLine(*row) for row in db.execute(FIND, (f'"{phrase}"',))],
        )


def _events(db: sqlite3.Connection, kind: str) -> list[Mapping[str, Any]]:
    return [json.loads(data) for (data,) in db.execute("SELECT data FROM events WHERE kind = ? ORDER BY id", (kind,))]
