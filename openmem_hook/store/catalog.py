"""A tenant's catalog: its sessions, and what is looked up across them (anchors, result ids, rates, events)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence

from openmem_hook.compaction.edits import Edits
from openmem_hook.compaction.write import Event
from openmem_hook.store import database
from openmem_hook.store.statements import statement

_BATCH = 500
"""Parameters of one statement: below every build's limit."""

TOUCH_SESSION = statement("catalog", "touch_session")
PUT_ANCHOR = statement("catalog", "put_anchor")
PUT_RESULT = statement("catalog", "put_result")
SESSIONS_OF_ANCHORS = statement("catalog", "sessions_of_anchors")
RATE = statement("catalog", "rate")
PUT_RATE = statement("catalog", "put_rate")
INSERT_EVENT = statement("catalog", "insert_event")
NOTE_SENT = statement("catalog", "note_sent")
IDLE_SESSIONS = statement("catalog", "idle_sessions")
LAST_SEEN = statement("catalog", "last_seen")
DELETE_SESSION = statement("catalog", "delete_session")
DELETE_ANCHORS = statement("catalog", "delete_anchors")
DELETE_RESULTS = statement("catalog", "delete_results")
DELETE_EVENTS = statement("catalog", "delete_events")
SESSION_NAMES = statement("catalog", "session_names")
CHORE_BEGUN = statement("catalog", "chore_begun")
PUT_CHORE = statement("catalog", "put_chore")


def touch(db: sqlite3.Connection, session: str, now: float, agent: str, model: str, project: str = "") -> None:
    """A session exists and was used now. `project`: its name as a hash, "" where the client tells none."""
    values = {"session": session, "now": now, "agent": agent, "model": model, "project": project}
    with database.transaction(db):
        db.execute(TOUCH_SESSION, values)


def index_edits(db: sqlite3.Connection, session: str, edits: Edits) -> None:
    """Written before the edits themselves: an index entry without its edit is harmless, the reverse is a loss."""
    with database.transaction(db):
        db.executemany(PUT_ANCHOR, [(fingerprint, session) for fingerprint in edits.fingerprints])
        db.executemany(PUT_RESULT, [(result, session) for result in edits.results])


def find_anchor(db: sqlite3.Connection, chain: Sequence[bytes], own: str) -> tuple[bytes, str] | None:
    """The deepest fingerprint of a chain at which another session has an edit, and that session."""
    deepest_first = list(dict.fromkeys(reversed(chain)))
    for at in range(0, len(deepest_first), _BATCH):
        batch = deepest_first[at : at + _BATCH]
        sql = SESSIONS_OF_ANCHORS.replace("IN (?)", f"IN ({','.join('?' * len(batch))})")
        sessions = dict(db.execute(sql, (own, *batch)).fetchall())
        for anchor in batch:
            if anchor in sessions:
                return anchor, sessions[anchor]
    return None


def read_rate(db: sqlite3.Connection, model: str) -> str | None:
    row = db.execute(RATE, (model,)).fetchone()
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
        db.executemany(INSERT_EVENT, [(event.kind, now, session, event.as_json()) for event in events])
        for name, data in (rates or {}).items():
            db.execute(PUT_RATE, (name, data, now))
        if lane is not None:
            db.execute(NOTE_SENT, {"now": now, "lane": lane, "model": model, "session": session})


def find_idle(db: sqlite3.Connection, before: float, limit: int) -> list[str]:
    return [row[0] for row in db.execute(IDLE_SESSIONS, (before, limit))]


def forget(db: sqlite3.Connection, session: str, before: float, erase: Callable[[], None]) -> bool:
    """Take an idle session out of the catalog; False where it was used meanwhile. `erase` deletes its files and
    runs inside the transaction: whoever tells the catalog of a use after it finds no file to open."""
    with database.transaction(db):
        row = db.execute(LAST_SEEN, (session,)).fetchone()
        if row is not None and row[0] >= before:
            return False
        for sql in (DELETE_SESSION, DELETE_ANCHORS, DELETE_RESULTS):
            db.execute(sql, (session,))
        erase()
    return True


def prune_events(db: sqlite3.Connection, before: float) -> None:
    with database.transaction(db):
        db.execute(DELETE_EVENTS, (before,))


def read_names(db: sqlite3.Connection) -> set[str]:
    return {row[0] for row in db.execute(SESSION_NAMES)}


def begin_chore(db: sqlite3.Connection, name: str, now: float, every: float) -> bool:
    """True for the one worker whose turn it is: nobody began this chore in the last `every` seconds."""
    with database.transaction(db):
        row = db.execute(CHORE_BEGUN, (name,)).fetchone()
        if row is not None and now - every < row[0] <= now:
            return False
        db.execute(PUT_CHORE, (name, now))
    return True
