"""Both full-text indexes of a session: what is stored at once is indexed after it, in the order it was stored.

A request indexes a little of what is not indexed yet, oldest first; what a large history leaves over follows in
pieces behind it, and so does the merging of the segments that requests leave. A reader that must see everything
calls `index` until nothing is left.
"""

from __future__ import annotations

import sqlite3

from openmem_hook.store.search.words import runs_on

LINE_BITS = 24
"""A line's id is its message's `seq` shifted by these, and its number from 1."""
AT_ONCE_CHARS = 131_072
"""Characters a request indexes itself: 30 ms at most, and 2 ms for what an ordinary one adds. Only a first contact
with a long history and giant results leave anything over."""
PIECE_CHARS = 262_144
"""Characters indexed behind a request under one hold of the session's lock: 60 ms."""
MERGE_PAGES = 64
"""Pages of an index merged under one hold of the session's lock: 5 ms."""


def index(db: sqlite3.Connection, chars: int, least: int = 0) -> bool:
    """Index messages of so many characters, or a longer one if it is among the first `least`; False where some are
    left. Call it in a transaction."""
    last = db.execute("SELECT coalesce(max(id), 0) FROM messages_fts_docsize").fetchone()[0]
    rows = db.execute("SELECT seq, text FROM messages WHERE seq > ? ORDER BY seq", (last,))
    for place, (seq, text) in enumerate(rows):
        if len(text) > chars and place >= least:
            return False
        db.execute("INSERT INTO messages_fts (rowid, text) VALUES (?, ?)", (seq, text))
        if runs_on(text):
            db.execute("INSERT OR IGNORE INTO unspaced (seq) VALUES (?)", (seq,))
        lines = (seq << LINE_BITS, (seq + 1) << LINE_BITS)
        db.execute("INSERT INTO lines_fts (rowid, text) SELECT id, text FROM lines WHERE id > ? AND id < ?", lines)
        chars -= len(text)
    return True


def merge(db: sqlite3.Connection) -> bool:
    """Merge some of the small segments that single requests added; True where nothing is left to. Call it in a
    transaction."""
    before = db.total_changes
    for table in ("messages_fts", "lines_fts"):
        db.execute(f"INSERT INTO {table} ({table}, rank) VALUES ('merge', {MERGE_PAGES})")  # noqa: S608 - constants
    return db.total_changes - before < 4  # a statement that merged nothing counts as less than two
