"""Whether the full-text index of a session holds everything, and having it do so."""

from __future__ import annotations

import sqlite3
import time

from openmem_hook.store import database, fulltext
from openmem_hook.store.database import StoreError
from openmem_hook.store.open_session import OpenSession
from openmem_hook.store.statements import statement

_IS_BEHIND = statement("messages", "is_behind")


def is_behind(db: sqlite3.Connection) -> bool:
    """Whether some messages of a session are not in the full-text index yet."""
    return bool(db.execute(_IS_BEHIND).fetchone()[0])


def catch_up(session: OpenSession, seconds: float) -> bool:
    """Have all of a session in the full-text index; False where that takes longer.

    Raises StoreError, OSError or SessionBusyError.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        # One piece under one hold of the lock: a request of the session waits for no more than that.
        with session.lock_in_time():
            try:
                db = session.refresh()
                with database.transaction(db):
                    is_done = fulltext.index(db, fulltext.PIECE_CHARS, least=1)
            except sqlite3.Error as error:
                session.file.fail(error)
                raise StoreError(f"the full-text index can't be brought up to date ({error})") from None
        if is_done:
            return True
    return False
