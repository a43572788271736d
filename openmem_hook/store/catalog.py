"""A tenant's catalog: its sessions, and what is looked up across them (anchors, result ids, rates, events)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from openmem_hook.compaction.record import Event
from openmem_hook.store import database

_BATCH = 500
"""Parameters a statement: below every build's limit."""


def touch(db: sqlite3.Connection, session: str, now: float, agent: str, model: str, project: str = "") -> None:
    """A session exists and was used now. `project`: its name as a hash, "" where the client tells none."""
    with database.transaction(db):
        db.execute(
            "INSERT INTO sessions (name, created_at, last_seen, agent, model, project) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (name) DO UPDATE SET last_seen = max(last_seen, excluded.last_seen), model = excluded.model, "
            "project = excluded.project",
            (session, now, now, agent, model, project),
        )


def index_edits(db: sqlite3.Connection, session: str, anchors: Iterable[bytes], results: Iterable[str]) -> None:
    """Written before the edits themselves: an index entry without its edit is harmless, the reverse is a loss."""
    with database.transaction(db):
        db.executemany("INSERT OR REPLACE INTO anchors VALUES (?, ?)", [(anchor, session) for anchor in anchors])
        db.executemany("INSERT OR REPLACE INTO results VALUES (?, ?)", [(result, session) for result in results])


def find_anchor(db: sqlite3.Connection, chain: Sequence[bytes], own: str) -> tuple[bytes, str] | None:
    """The deepest fingerprint of a chain at which another session has an edit, and that session."""
    wanted = list(dict.fromkeys(reversed(chain)))
    for at in range(0, len(wanted), _BATCH):
        batch = wanted[at : at + _BATCH]
        marks = ",".join("?" * len(batch))
        sql = (
            "SELECT a.anchor, a.session FROM anchors a LEFT JOIN sessions s ON s.name = a.session "  # noqa: S608
            f"WHERE a.session <> ? AND a.anchor IN ({marks}) ORDER BY s.last_seen"  # the newest of several wins
        )
        found = dict(db.execute(sql, (own, *batch)).fetchall())
        for anchor in batch:
            if anchor in found:
                return anchor, found[anchor]
    return None


def session_of_result(db: sqlite3.Connection, result_id: str) -> str | None:
    row = db.execute("SELECT session FROM results WHERE id = ?", (result_id,)).fetchone()
    return None if row is None else row[0]


def rate(db: sqlite3.Connection, model: str) -> str | None:
    row = db.execute("SELECT data FROM rates WHERE model = ?", (model,)).fetchone()
    return None if row is None else row[0]


def record(
    db: sqlite3.Connection,
    session: str,
    events: Sequence[Event],
    now: float,
    rates: Mapping[str, str] | None = None,
    lane: str | None = None,
    model: str = "",
) -> None:
    """Events, and with a usage report the rates learned from it and when the session was last sent."""
    with database.transaction(db):
        db.executemany(
            "INSERT INTO events (kind, created_at, session, data) VALUES (?, ?, ?, ?)",
            [(event.kind, now, session, event.as_json()) for event in events],
        )
        for name, data in (rates or {}).items():
            db.execute("INSERT OR REPLACE INTO rates VALUES (?, ?, ?)", (name, data, now))
        if lane is not None:
            db.execute(
                "UPDATE sessions SET last_seen = max(last_seen, ?), last_sent = ?, lane = ?, model = ? WHERE name = ?",
                (now, now, lane, model, session),
            )


def idle(db: sqlite3.Connection, before: float, limit: int) -> list[str]:
    rows = db.execute("SELECT name FROM sessions WHERE last_seen < ? ORDER BY last_seen LIMIT ?", (before, limit))
    return [row[0] for row in rows]


def forget(db: sqlite3.Connection, session: str, before: float, erase: Callable[[], None]) -> bool:
    """Take an idle session out of the catalog; False where it was used meanwhile. `erase` deletes its files and
    runs inside the transaction: whoever tells the catalog of a use after it finds no file to open."""
    with database.transaction(db):
        row = db.execute("SELECT last_seen FROM sessions WHERE name = ?", (session,)).fetchone()
        if row is not None and row[0] >= before:
            return False
        db.execute("DELETE FROM sessions WHERE name = ?", (session,))
        db.execute("DELETE FROM anchors WHERE session = ?", (session,))
        db.execute("DELETE FROM results WHERE session = ?", (session,))
        erase()
    return True


def prune_events(db: sqlite3.Connection, before: float) -> None:
    with database.transaction(db):
        db.execute("DELETE FROM events WHERE created_at < ?", (before,))


def names(db: sqlite3.Connection) -> set[str]:
    return {row[0] for row in db.execute("SELECT name FROM sessions")}


def totals(db: sqlite3.Connection, since: float) -> list[tuple[str, dict[str, Any]]]:
    rows = db.execute("SELECT kind, data FROM events WHERE created_at >= ? ORDER BY id", (since,))
    return [(kind, json.loads(data)) for kind, data in rows]


def begin_chore(db: sqlite3.Connection, name: str, now: float, every: float) -> bool:
    """True for the one worker whose turn it is: nobody began this chore in the last `every` seconds."""
    with database.transaction(db):
        row = db.execute("SELECT begun_at FROM chores WHERE name = ?", (name,)).fetchone()
        if row is not None and now - every < row[0] <= now:
            return False
        db.execute("INSERT OR REPLACE INTO chores VALUES (?, ?)", (name, now))
    return True
