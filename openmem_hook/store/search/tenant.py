"""What the tools look up in a tenant's catalog: its recent sessions, where a shortened result is, its events."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import aiosqlite

from openmem_hook.store.statements import statement

_RECENT_SESSIONS = statement("tenant", "recent_sessions")
_SESSIONS_OF_RESULT = statement("tenant", "sessions_of_result")
_EVENTS_SINCE = statement("tenant", "events_since")


class EventRow(NamedTuple):
    """An event of the catalog."""

    kind: str
    """trim, usage, fail_open, ..."""
    created_at: float
    """Seconds since 1970."""
    data: Mapping[str, Any]
    """Numbers and names, never the text of a message."""


def read_recent_sessions(db: sqlite3.Connection, limit: int, project: str = "") -> list[str]:
    """The names of the sessions used last, those of this project first."""
    return [name for (name,) in db.execute(_RECENT_SESSIONS, {"project": project, "limit": limit})]


async def find_sessions_of_result(db: aiosqlite.Connection, result_id: str) -> list[str]:
    """The names of those that hold this shortened result, a fork and its parent for one, the one used last first."""
    return [row[0] for row in await db.execute_fetchall(_SESSIONS_OF_RESULT, {"result_id": result_id})]


async def read_events_since(db: aiosqlite.Connection, since: float) -> Iterable[Sequence[Any]]:
    """The events since a time in seconds since 1970, oldest first, as `parse_events` takes them."""
    return await db.execute_fetchall(_EVENTS_SINCE, {"since": since})


def parse_events(rows: Iterable[Sequence[Any]]) -> list[EventRow]:
    """Rows of `read_events_since` with their data as values. Thousands take tens of milliseconds: not for the event
    loop."""
    return [EventRow(kind, created_at, json.loads(data)) for kind, created_at, data in rows]
