"""Both full-text indexes of a session: what is stored at once is indexed after it, in the order it was stored.

A request indexes a little of what is not indexed yet, oldest first; what a large history leaves over follows in
pieces behind it, and so does the merging of the segments that requests leave. A reader that must see everything
calls `index` until nothing is left.
"""

from __future__ import annotations

import sqlite3

from openmem_hook.store.search.words import runs_on
from openmem_hook.store.statements import statement

LINE_BITS = 24
"""A line's id is its message's `seq` shifted by these, and its number from 1."""
AT_ONCE_CHARS = 131_072
"""Characters a request indexes itself: 30 ms at most, and 2 ms for what an ordinary one adds. Only a first contact
with a long history and giant results leave anything over."""
PIECE_CHARS = 262_144
"""Characters indexed behind a request under one hold of the session's lock: 60 ms."""
MERGE_PAGES = 64
"""Pages of an index merged under one hold of the session's lock: 5 ms."""


IS_BEHIND = statement("fulltext", "is_behind")
LAST_INDEXED = statement("fulltext", "last_indexed")
MESSAGES_AFTER = statement("fulltext", "messages_after")
INDEX_MESSAGE = statement("fulltext", "index_message")
MARK_UNSPACED = statement("fulltext", "mark_unspaced")
INDEX_LINES = statement("fulltext", "index_lines")
MERGES = (statement("fulltext", "merge_messages"), statement("fulltext", "merge_lines"))


def is_behind(db: sqlite3.Connection) -> bool:
    """Whether some messages are not in the index yet."""
    return bool(db.execute(IS_BEHIND).fetchone()[0])


def index(db: sqlite3.Connection, chars: int, least: int = 0) -> bool:
    """Index messages of so many characters, or a longer one if it is among the first `least`; False where some are
    left. Call it in a transaction."""
    last = db.execute(LAST_INDEXED).fetchone()[0]
    for place, (seq, text) in enumerate(db.execute(MESSAGES_AFTER, (last,))):
        if len(text) > chars and place >= least:
            return False
        db.execute(INDEX_MESSAGE, (seq, text))
        if runs_on(text):
            db.execute(MARK_UNSPACED, (seq,))
        db.execute(INDEX_LINES, (seq << LINE_BITS, (seq + 1) << LINE_BITS))
        chars -= len(text)
    return True


def merge(db: sqlite3.Connection) -> bool:
    """Merge some of the small segments that single requests added; True where nothing is left to. Call it in a
    transaction."""
    before = db.total_changes
    for sql in MERGES:
        db.execute(sql, (MERGE_PAGES,))
    return db.total_changes - before < 4  # a statement that merged nothing counts as less than two
