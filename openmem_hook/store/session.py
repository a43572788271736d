"""A session's database: load what decisions read, write what they decided in one transaction.

`claim` writes only while the database is what the decision was made from, so that of two workers with the same
history the second one loads the first one's edits and decides again. Every function here works on a connection
under whose lock the caller is.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from openmem_hook.compaction.edits import NO_EDITS, EditRow, Edits, edit_from
from openmem_hook.compaction.estimate import Report
from openmem_hook.compaction.state import REPORTS_KEPT, RowName, SessionState
from openmem_hook.compaction.threads import Thread
from openmem_hook.compaction.write import Event, UsageWrite, Write
from openmem_hook.store import database, fulltext
from openmem_hook.store.handshake import Handshake
from openmem_hook.store.statements import statement
from openmem_hook.store.yielder import Yielder
from openmem_hook.text import split_lines

DICTIONARY_BYTES = 32_768
"""zlib looks back no further."""

DATA_VERSION = statement("session", "data_version")
ROW_NAMES = statement("session", "row_names")
EDITS = statement("session", "edits")
THREADS = statement("session", "threads")
NEWEST_REPORTS = statement("session", "newest_reports")
INSERT_THREAD = statement("session", "insert_thread")
NAME_THREAD = statement("session", "name_thread")
UPDATE_THREAD = statement("session", "update_thread")
SET_THREAD_OFFSET = statement("session", "set_thread_offset")
LAST_SEQ = statement("session", "last_seq")
INSERT_RECORD = statement("session", "insert_record")
INSERT_LINE = statement("session", "insert_line")
PUT_EDIT = statement("session", "put_edit")
RESTORE_EDIT = statement("session", "restore_edit")
ABANDON_EDIT = statement("session", "abandon_edit")
SET_RECORD_TOKENS = statement("session", "set_record_tokens")
SHOW_RECORD = statement("session", "show_record")
SET_IN_CONTEXT = statement("session", "set_in_context")
HIDE_THREAD = statement("session", "hide_thread")
INSERT_EVENT = statement("session", "insert_event")
DELETE_EVENTS_OF_DECISION = statement("session", "delete_events_of_decision")
INSERT_REPORT = statement("session", "insert_report")


# --- load -------------------------------------------------------------------------------------------------


def version(db: sqlite3.Connection) -> int:
    """Changes whenever another connection committed."""
    return int(db.execute(DATA_VERSION).fetchone()[0])


def load(db: sqlite3.Connection) -> SessionState:
    """The whole state. Raises sqlite3.Error, or DamagedError where what stands in the database makes no sense."""
    db.execute("BEGIN")
    try:
        return _state(db)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise database.DamagedError(f"a session database holds what can't be read ({type(error).__name__})") from None
    finally:
        db.execute("ROLLBACK")


def _state(db: sqlite3.Connection) -> SessionState:
    state = SessionState.of_rows(RowName(*row) for row in db.execute(ROW_NAMES))
    rows = (EditRow(*row) for row in db.execute(EDITS))
    edits = Edits.of(edit for row in rows if (edit := edit_from(row._replace(part=_as_text(row.part)))) is not None)
    threads = [Thread(*row) for row in db.execute(THREADS)]
    newest_first = db.execute(NEWEST_REPORTS, {"count": REPORTS_KEPT}).fetchall()
    reports = {(key, cut): Report(*counts) for key, cut, *counts in reversed(newest_first)}
    return replace(state, edits=edits, threads={thread.id: thread for thread in threads}, reports=reports)


def _as_stored(text: str) -> str | bytes:
    """A name from the wire as SQLite can hold it: a lone surrogate has no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def _as_text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "surrogatepass")


# --- claim ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """What became of a decision."""

    outcome: Literal["recorded", "only rows", "nothing", "lost"]
    """`only rows`: the request was sent without the decision's edits, and its messages were stored; `nothing`: the
    client is gone; `lost`: another worker wrote first, so load and decide again."""
    state: SessionState
    """What is known afterwards."""
    thread: Thread
    """As it is stored."""
    is_indexed: bool = True
    """False where the full-text index holds less than the messages."""


def claim(
    db: sqlite3.Connection, state: SessionState, loaded_version: int, write: Write, handshake: Handshake
) -> Claim:
    """Writes a decision, in one immediate transaction, unless the database is no longer the version that the state was
    loaded at.

    Raises sqlite3.Error; then nothing was written. The two-party commit is drawn in `handshake`.
    """
    try:
        with database.transaction(db):
            # Whoever comes second adopts: the decision was made from a state that is no longer the newest.
            if version(db) != loaded_version:
                return Claim("lost", state, write.thread)
            thread = _write_thread(db, write)
            _write_rows(db, write, thread)
            is_indexed = fulltext.index(db, fulltext.AT_ONCE_CHARS)
            # Edits are recorded only if they are sent. Messages that were sent without them are stored all the same.
            permission = handshake.begin()
            if permission == "nothing":
                raise _NothingAllowedError
            if permission == "all":
                _write_edits(db, write)
                _write_context(db, write, thread)
                _write_events(db, write.events, write.now)
            else:
                db.executemany(SHOW_RECORD, [(row.key,) for row in write.rows])
    except _NothingAllowedError:
        return Claim("nothing", state, write.thread)
    # The commit may have taken so long that the request went without the decision meanwhile.
    if permission == "all" and not handshake.commit():
        _retract(db, state, write)
        permission = "rows"
    if permission == "all":
        return Claim("recorded", state.after(write, thread), thread, is_indexed)
    return Claim("only rows", state.after(replace(write, edits=NO_EDITS), thread), thread, is_indexed)


class _NothingAllowedError(Exception):
    """Ends the transaction without a trace."""


def _retract(db: sqlite3.Connection, state: SessionState, write: Write) -> None:
    """The request was sent without the decision's edits: they never were. Edits in whose place they came, and which
    memory knew before, were sent, and stay."""
    before = [(edit, state.edits.by_key.get(edit.edit_key)) for edit in write.edits]
    with database.transaction(db):
        db.executemany(ABANDON_EDIT, [_edit_values(edit.row()) for edit, earlier in before if earlier is None])
        db.executemany(RESTORE_EDIT, [_edit_values(earlier.row()) for _, earlier in before if earlier is not None])
        db.executemany(SHOW_RECORD, [(key,) for key in (*(row.key for row in write.rows), *write.hidden_keys)])
        db.execute(DELETE_EVENTS_OF_DECISION, {"now": write.now})


def _write_thread(db: sqlite3.Connection, write: Write) -> Thread:
    thread = write.thread
    values = {
        "id": thread.id,
        "name": thread.name,
        "agent": thread.agent,
        "root": thread.root,
        "last_key": thread.last_key,
        "has_tools": thread.has_tools,
        "note": thread.note,
        "result_chars": thread.result_chars,
        "offset": thread.offset,
        "now": write.now,
    }
    if thread.id:
        db.execute(UPDATE_THREAD, values)
        return thread
    number = int(db.execute(INSERT_THREAD, values).lastrowid or 0)
    name = f"{thread.name}-{number}"
    db.execute(NAME_THREAD, {"name": name, "id": number})
    return replace(thread, id=number, name=name)


def _write_rows(db: sqlite3.Connection, write: Write, thread: Thread) -> None:
    """Messages and their lines."""
    if not write.rows:
        return
    seq, yielder = db.execute(LAST_SEQ).fetchone()[0], Yielder()
    for row in write.rows:
        yielder()
        values = {
            "seq": seq + 1,
            "key": row.key,
            "past": row.past,
            "digest": row.digest,
            "thread": thread.id,
            "role": row.role,
            "kind": row.kind,
            "tool_name": row.tool_name,
            "in_context": row.in_context,
            "now": write.now,
            "format": row.format,
            "body": pack(row.body, row.text),
        }
        if db.execute(INSERT_RECORD, values).rowcount:
            seq += 1
            first = seq << fulltext.LINE_BITS
            lines = [(first | number, line) for number, line in enumerate(split_lines(row.text), 1)]
            db.executemany(INSERT_LINE, lines)


def _write_edits(db: sqlite3.Connection, write: Write) -> None:
    for edit in write.edits:
        db.execute(PUT_EDIT, {**_edit_values(edit.row()), "now": write.now})
        # What was measured of a row says nothing of what goes out in its place.
        if edit.replaced_row is not None:
            db.execute(SET_RECORD_TOKENS, {"tokens": None, "key": edit.replaced_row})


def _edit_values(row: EditRow) -> dict[str, Any]:
    return {**row._asdict(), "part": _as_stored(row.part)}


def _write_context(db: sqlite3.Connection, write: Write, thread: Thread) -> None:
    for value, keys in ((0, write.hidden_keys), (1, write.shown_keys)):
        db.executemany(SET_IN_CONTEXT, [{"value": value, "key": key, "agent": thread.agent} for key in keys])
    for number in write.replaced_threads:
        db.execute(HIDE_THREAD, (number,))


def _write_events(db: sqlite3.Connection, events: Iterable[Event], now: float) -> None:
    db.executemany(INSERT_EVENT, [(event.kind, now, event.as_json()) for event in events])


# --- after the call ---------------------------------------------------------------------------------------


def record_usage(db: sqlite3.Connection, usage: UsageWrite) -> bool:
    """Stores a report; False where one was stored under this id before."""
    values = {
        "report_id": usage.report_id,
        "key": usage.key,
        "cut": usage.cut,
        "tokens": -1 if usage.tokens is None else usage.tokens,
        "overhead": usage.overhead,
        "family_rate": usage.family_rate,
    }
    with database.transaction(db):
        if not db.execute(INSERT_REPORT, values).rowcount:
            return False
        db.executemany(SET_RECORD_TOKENS, [{"tokens": tokens, "key": key} for key, tokens in usage.row_tokens])
        if usage.offset is not None:
            db.execute(SET_THREAD_OFFSET, {"offset": usage.offset, "id": usage.thread})
        _write_events(db, [usage.event], usage.now)
    return True


def add_events(db: sqlite3.Connection, events: Iterable[Event], now: float) -> None:
    with database.transaction(db):
        _write_events(db, events, now)


# --- a message's JSON -------------------------------------------------------------------------------------


def pack(body: bytes, text: str) -> bytes:
    """The body compressed, with the text stored beside it as dictionary: little more than what differs."""
    words = text.encode("utf-8", "surrogatepass")[-DICTIONARY_BYTES:]
    packer = zlib.compressobj(1, zlib.DEFLATED, -15, 9, zlib.Z_DEFAULT_STRATEGY, words)
    return packer.compress(body) + packer.flush()


def unpack(data: bytes, text: str) -> bytes:
    """What `pack` was given; needs the very text it was given."""
    words = text.encode("utf-8", "surrogatepass")[-DICTIONARY_BYTES:]
    unpacker = zlib.decompressobj(-15, words)
    return unpacker.decompress(data) + unpacker.flush()
