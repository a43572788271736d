"""Open databases: at most so many at once, reopened when their file went away, set aside when damaged.

A `Live` session holds its connection, the state loaded from it and the lock under which both are used. The
state outlives the connection: while a store can't be reached, memory still knows the edits already sent.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from openmem_hook.model import HistoryCache
from openmem_hook.store import database, sessions
from openmem_hook.store.database import StoreError
from openmem_hook.store.sessions import SessionState

OPEN_SESSIONS = 48
"""Connections kept open a worker; each costs three file handles and up to 2 MB of cache."""
KNOWN_SESSIONS = 64
"""Session states kept in memory a worker. An evicted one is loaded from its database again."""
UNWRITTEN_SESSIONS = 512
"""As many while a store can't be written: only memory knows then what was sent."""
OPEN_CATALOGS = 16
REST_S = 1.0
"""Seconds that requests do without a catalog after it could not be used."""
LOCK_S = 1.5
"""Seconds a request waits for another of the same session in this worker; inside the hook's deadline."""


T = TypeVar("T")


class SessionBusyError(Exception):
    """Another thread holds a session or a catalog for too long."""


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
        self.seen = database.inode(self.path)
        try:
            self.db = database.connect(self.path, self.kind)
        except sqlite3.DatabaseError as error:
            if not database.is_damage(error):
                raise
            database.set_aside(self.path, self.seen)
            self.db = database.connect(self.path, self.kind)
        self.seen = database.inode(self.path)
        return self.db, True

    def failed(self, error: BaseException) -> None:
        """After an error the connection is not trusted; a damaged file makes room for a new one."""
        self.close()
        if database.is_damage(error):
            database.set_aside(self.path, self.seen)

    def close(self) -> None:
        if self.db is not None:
            with contextlib.suppress(sqlite3.Error):
                self.db.close()
        self.db = None


@dataclass(slots=True)
class Live:
    """A session in this worker. `longest`: messages of its longest history, which bounds what `memo` may hold;
    `catalogued`: the connection to the catalog through which all of its edits were indexed; `tidying`: what
    requests left over is being done."""

    tenant: str
    name: str
    file: File
    state: SessionState = field(default_factory=SessionState)
    memo: HistoryCache = field(default_factory=HistoryCache)
    longest: int = 0
    tidying: bool = False
    catalogued: sqlite3.Connection | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """With the lock. Raises SessionBusyError where it can't be had in time."""
        if not self.lock.acquire(timeout=LOCK_S):
            raise SessionBusyError("another request of this session takes too long")
        try:
            yield
        finally:
            self.lock.release()

    @contextlib.contextmanager
    def used(self) -> Iterator[sqlite3.Connection]:
        """With the lock, the database and its state. After an error in it the connection is not trusted. Raises
        sqlite3.Error, OSError, StoreError or SessionBusyError."""
        with self.held():
            db = self.database()
            try:
                yield db
            except (sqlite3.Error, OSError) as error:
                self.file.failed(error)
                raise

    @property
    def unwritten(self) -> bool:
        """True while memory knows of something sent that the database doesn't hold."""
        return bool(self.state.sent or self.state.adopted.cuts or self.state.adopted.swaps)

    def database(self) -> sqlite3.Connection:
        """The connection with the state brought up to date. Hold the lock."""
        try:
            db, new = self.file.connected()
            if new:
                self.state.version = -1
            self.state = sessions.refreshed(db, self.state)
        except (sqlite3.Error, OSError, StoreError) as error:
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
        self._resting: dict[str, float] = {}
        self.trouble: Callable[[Exception], None] = lambda _: None

    def session_path(self, tenant: str, name: str) -> Path:
        return self.folder / tenant / "sessions" / f"{name}.db"

    def catalog_path(self, tenant: str) -> Path:
        return self.folder / tenant / "catalog.db"

    def session(self, tenant: str, name: str) -> Live:
        live = self.remembered(tenant, name)
        for idle in self._spare():
            idle.file.close()
            idle.lock.release()
        return live

    def remembered(self, tenant: str, name: str) -> Live:
        """The session without touching a file, not even those of others that are to be closed."""
        with self._lock:
            live = self._sessions.get((tenant, name))
            if live is None:
                live = Live(tenant, name, File(self.session_path(tenant, name), "session"))
                self._sessions[(tenant, name)] = live
            self._sessions.move_to_end((tenant, name))
        return live

    def peek(self, tenant: str, name: str) -> Live | None:
        """The session if this worker has it in memory."""
        return self._sessions.get((tenant, name))

    def known(self) -> list[Live]:
        """The sessions that this worker has in memory."""
        with self._lock:
            return list(self._sessions.values())

    def _spare(self) -> list[Live]:
        """The least recently used, locked, to be closed; the oldest of them are forgotten. One in use is passed
        over, its turn comes again."""
        found = []
        with self._lock:
            held = list(self._sessions.items())
            for at, (key, live) in enumerate(held[: max(len(held) - OPEN_SESSIONS, 0)]):
                forget = at < len(held) - (UNWRITTEN_SESSIONS if live.unwritten else KNOWN_SESSIONS)
                if (forget or live.file.db is not None) and live.lock.acquire(blocking=False):
                    found.append(live)
                    if forget:
                        del self._sessions[key]
        return found

    def catalog(self, tenant: str, use: Callable[[sqlite3.Connection], T]) -> T:
        """What `use` returns, called with the tenant's catalog. Raises sqlite3.Error, OSError, StoreError or
        SessionBusyError."""
        with self._lock:
            if tenant not in self._catalogs:
                self._catalogs[tenant] = File(self.catalog_path(tenant), "catalog"), threading.Lock()
            self._catalogs.move_to_end(tenant)
            file, lock = self._catalogs[tenant]
            spare = []
            for name, idle in list(self._catalogs.items())[: max(len(self._catalogs) - OPEN_CATALOGS, 0)]:
                if idle[1].acquire(blocking=False):
                    spare.append(idle)
                    del self._catalogs[name]
        for old, held in spare:
            old.close()
            held.release()
        if not lock.acquire(timeout=LOCK_S):
            raise SessionBusyError("the catalog is in use for too long")
        try:
            return use(file.connected()[0])
        except (sqlite3.Error, OSError) as error:
            file.failed(error)
            raise
        finally:
            lock.release()

    def consult(self, tenant: str, use: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """As `catalog`, for what a request can do without: `otherwise` where it can't be used now, which `trouble`
        is told. Then it is left alone for a moment, so that requests don't wait for it one by one."""
        if time.monotonic() < self._resting.get(tenant, 0.0):
            return otherwise
        try:
            return self.catalog(tenant, use)
        except (sqlite3.Error, OSError, StoreError, SessionBusyError) as error:
            self._resting[tenant] = time.monotonic() + REST_S
            self.trouble(error)
            return otherwise

    def drop(self, live: Live) -> None:
        """Close and forget a session whose files were deleted. Hold its lock."""
        with self._lock:
            if self._sessions.get((live.tenant, live.name)) is live:
                del self._sessions[(live.tenant, live.name)]
        live.file.close()

    def close(self) -> None:
        with self._lock:
            for live in self._sessions.values():
                live.file.close()
            for file, _ in self._catalogs.values():
                file.close()
            self._sessions.clear()
            self._catalogs.clear()
