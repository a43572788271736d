"""A connection to the database at a path: reopened when its file went away, a damaged file put aside."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from openmem_hook.store import database
from openmem_hook.store.database import DatabaseKind


@dataclass(slots=True)
class DatabaseFile:
    path: Path
    kind: DatabaseKind
    db: sqlite3.Connection | None = None
    inode: int = 0
    """Of the file that `db` is connected to."""

    def connection(self) -> tuple[sqlite3.Connection, bool]:
        """The connection, and whether it is a new one. Raises sqlite3.Error, OSError or StoreError."""
        if self.db is not None and database.inode(self.path) == self.inode:
            return self.db, False
        self.close()
        self.inode = database.inode(self.path)
        try:
            self.db = database.connect(self.path, self.kind)
        except sqlite3.DatabaseError as error:
            if not database.is_damage(error):
                raise
            database.quarantine(self.path, self.inode)
            self.db = database.connect(self.path, self.kind)
        self.inode = database.inode(self.path)
        return self.db, True

    def fail(self, error: BaseException) -> None:
        """After an error the connection is not trusted; a damaged file makes room for a new one."""
        self.close()
        if database.is_damage(error):
            database.quarantine(self.path, self.inode)

    def close(self) -> None:
        if self.db is not None:
            with contextlib.suppress(sqlite3.Error):
                self.db.close()
        self.db = None
