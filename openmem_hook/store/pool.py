"""Open databases: at most so many at once, reopened when their file went away, set aside when damaged.

A `Live` session holds its connection, the state loaded from it and the lock under which both are used. The
state outlives the connection: while a store can't be reached, memory still knows the edits already sent.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from openmem_hook.messages import Memo
from openmem_hook.store import database, sessions
from openmem_hook.store.sessions import SessionState

OPEN_SESSIONS = 48
"""Connections kept open a worker; each costs three file handles and up to 2 MB of cache."""
KNOWN_SESSIONS = 64
"""Session states kept in memory a worker. An evicted one is loaded from its database again."""
OPEN_CATALOGS = 16
LOCK_S = 1.5
"""Seconds a request waits for another of the same session in this worker; inside the hook's deadline."""


T = TypeVar("T")


class SessionBusyError(Exception):
    """Another request of the same session holds its lock for too long."""


@dataclass(slots=True)
class File:
    """A connection to the database at a path, reopened when the file was replaced or deleted."""

    path: Path
    kind: str
    db: sqlite3.Connection | None = None
    seen: int = 0

    def connected(self) -> tuple[sqlite3.Connection, bool]:
        """The connection, and whether it is a new one. Raises sqlite3.Error, OSError or StoreError."""
        if self.db is not None and database.inode(self.path) == self.seen:
            return self.db, False
        self.close()
        try:
            self.db = database.connect(self.path, self.kind)
        except sqlite3.DatabaseError as error:
            if not database.is_damage(error):
                raise
            database.set_aside(self.path)
            self.db = database.connect(self.path, self.kind)
        self.seen = database.inode(self.path)
        return self.db, True

    def failed(self, error: BaseException) -> None:
        """After an error the connection is not trusted; a damaged file makes room for a new one."""
        self.close()
        if isinstance(error, sqlite3.Error) and database.is_damage(error):
            database.set_aside(self.path)

    def close(self) -> None:
        if self.db is not None:
            with contextlib.suppress(sqlite3.Error):
                self.db.close()
        self.db = None


@dataclass(slots=True)
class Live:
    """A session in this worker."""

    tenant: str
    name: str
    file: File
    state: SessionState = field(default_factory=SessionState)
    memo: Memo = field(default_factory=Memo)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def database(self) -> sqlite3.Connection:
        """The connection with the state brought up to date. Hold the lock."""
        try:
            db, new = self.file.connected()
            if new:
                self.state.version = -1
            sessions.refresh(db, self.state)
        except (sqlite3.Error, OSError) as error:
            self.file.failed(error)
            raise
        return db


class Pool:
    """The databases below one state folder: a folder a tenant."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._sessions: OrderedDict[tuple[str, str], Live] = OrderedDict()
        self._catalogs: OrderedDict[str, tuple[File, threading.Lock]] = OrderedDict()

    def session_path(self, tenant: str, name: str) -> Path:
        return self.folder / tenant / "sessions" / f"{name}.db"

    def catalog_path(self, tenant: str) -> Path:
        return self.folder / tenant / "catalog.db"

    def session(self, tenant: str, name: str) -> Live:
        with self._lock:
            live = self._sessions.get((tenant, name))
            if live is None:
                live = Live(tenant, name, File(self.session_path(tenant, name), "session"))
                self._sessions[(tenant, name)] = live
            self._sessions.move_to_end((tenant, name))
            self._shrink()
        return live

    def peek(self, tenant: str, name: str) -> Live | None:
        """The session if this worker has it in memory."""
        return self._sessions.get((tenant, name))

    def _shrink(self) -> None:
        """Close or forget the least recently used; one in use is passed over, its turn comes again."""
        spare = list(self._sessions.items())
        for key, live in spare[: max(len(spare) - KNOWN_SESSIONS, 0)]:
            if live.lock.acquire(blocking=False):
                live.file.close()
                del self._sessions[key]
                live.lock.release()
        for _, live in spare[: max(len(spare) - OPEN_SESSIONS, 0)]:
            if live.file.db is not None and live.lock.acquire(blocking=False):
                live.file.close()
                live.lock.release()

    def catalog(self, tenant: str, use: Callable[[sqlite3.Connection], T]) -> T:
        """What `use` returns, called with the tenant's catalog. Raises sqlite3.Error, OSError or StoreError."""
        with self._lock:
            if tenant not in self._catalogs:
                self._catalogs[tenant] = File(self.catalog_path(tenant), "catalog"), threading.Lock()
            self._catalogs.move_to_end(tenant)
            file, lock = self._catalogs[tenant]
            spare = list(self._catalogs.items())[: max(len(self._catalogs) - OPEN_CATALOGS, 0)]
            for name, (old, held) in spare:
                if held.acquire(blocking=False):
                    old.close()
                    del self._catalogs[name]
                    held.release()
        with lock:
            try:
                return use(file.connected()[0])
            except (sqlite3.Error, OSError) as error:
                file.failed(error)
                raise

    def drop(self, tenant: str, name: str) -> None:
        """Close a session that is about to be deleted."""
        with self._lock:
            live = self._sessions.pop((tenant, name), None)
        if live is not None:
            live.file.close()

    def close(self) -> None:
        with self._lock:
            for live in self._sessions.values():
                live.file.close()
            for file, _ in self._catalogs.values():
                file.close()
            self._sessions.clear()
            self._catalogs.clear()
