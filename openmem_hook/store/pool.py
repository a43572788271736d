"""Open databases below one state folder: at most so many at once, the least recently used are closed."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from openmem_hook.bounded_map import BoundedMap
from openmem_hook.store.database import SessionBusyError, StoreError
from openmem_hook.store.database_file import DatabaseFile
from openmem_hook.store.open_session import LOCK_S, OpenSession

OPEN_SESSIONS = 48
"""Connections kept open a worker; each costs three file handles and up to 2 MB of cache."""
KNOWN_SESSIONS = 64
"""Session states kept in memory a worker. An evicted one is loaded from its database again."""
UNSTORED_SESSIONS = 512
"""As many while a store can't be written: only memory knows then what was sent."""
OPEN_CATALOGS = 16
RESTING_CATALOGS = 1_024
REST_S = 1.0
"""Seconds that requests do without a catalog after it could not be used."""

CATALOG_ERRORS = (sqlite3.Error, OSError, StoreError, SessionBusyError)
"""What using a catalog may raise."""

T = TypeVar("T")


class Pool:
    """The databases below one state folder: a folder a tenant."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._sessions: OrderedDict[tuple[str, str], OpenSession] = OrderedDict()
        self._catalogs: OrderedDict[str, tuple[DatabaseFile, threading.Lock]] = OrderedDict()
        self._resting_until = BoundedMap[str, float](RESTING_CATALOGS)
        self.on_catalog_error: Callable[[Exception], None] = lambda _: None

    def session_path(self, tenant: str, name: str) -> Path:
        return self.folder / tenant / "sessions" / f"{name}.db"

    def catalog_path(self, tenant: str) -> Path:
        return self.folder / tenant / "catalog.db"

    # --- sessions ---------------------------------------------------------------------------------------------

    def session(self, tenant: str, name: str) -> OpenSession:
        """The session; those beyond the limits are closed."""
        session = self.get_or_create(tenant, name)
        for idle in self._surplus():
            idle.file.close()
            idle.lock.release()
        return session

    def get_or_create(self, tenant: str, name: str) -> OpenSession:
        """The session without touching a file, not even those of others that are to be closed."""
        with self._lock:
            session = self._sessions.get((tenant, name))
            if session is None:
                session = OpenSession(tenant, name, DatabaseFile(self.session_path(tenant, name), "session"))
                self._sessions[(tenant, name)] = session
            self._sessions.move_to_end((tenant, name))
        return session

    def peek(self, tenant: str, name: str) -> OpenSession | None:
        """The session if this worker has it in memory."""
        return self._sessions.get((tenant, name))

    def sessions_in_memory(self) -> list[OpenSession]:
        with self._lock:
            return list(self._sessions.values())

    def _surplus(self) -> list[OpenSession]:
        """The least recently used, locked, to be closed; the oldest of them are forgotten. One in use is passed over,
        its turn comes again. One that only memory knows whole stays longer."""
        surplus = []
        with self._lock:
            oldest_first = list(self._sessions.items())
            for at, (key, session) in enumerate(oldest_first[: max(len(oldest_first) - OPEN_SESSIONS, 0)]):
                forget = at < len(oldest_first) - (UNSTORED_SESSIONS if session.has_unstored else KNOWN_SESSIONS)
                if (forget or session.file.db is not None) and session.lock.acquire(blocking=False):
                    surplus.append(session)
                    if forget:
                        del self._sessions[key]
        return surplus

    def drop(self, session: OpenSession) -> None:
        """Close and forget a session whose files were deleted. Hold its lock."""
        with self._lock:
            if self._sessions.get((session.tenant, session.name)) is session:
                del self._sessions[(session.tenant, session.name)]
        session.file.close()

    # --- catalogs ---------------------------------------------------------------------------------------------

    def with_catalog(self, tenant: str, use: Callable[[sqlite3.Connection], T]) -> T:
        """What `use` returns, called with the tenant's catalog. Raises what is in `CATALOG_ERRORS`."""
        # The least recently used are closed, but for those in use; outside the lock, since closing may take a while.
        with self._lock:
            if tenant not in self._catalogs:
                self._catalogs[tenant] = DatabaseFile(self.catalog_path(tenant), "catalog"), threading.Lock()
            self._catalogs.move_to_end(tenant)
            file, lock = self._catalogs[tenant]
            surplus = []
            for name, idle in list(self._catalogs.items())[: max(len(self._catalogs) - OPEN_CATALOGS, 0)]:
                if idle[1].acquire(blocking=False):
                    surplus.append(idle)
                    del self._catalogs[name]
        for old, old_lock in surplus:
            old.close()
            old_lock.release()
        # One user at a time in this worker; a connection that failed is not trusted again.
        if not lock.acquire(timeout=LOCK_S):
            raise SessionBusyError("the catalog is in use for too long")
        try:
            return use(file.connection()[0])
        except (sqlite3.Error, OSError) as error:
            file.fail(error)
            raise
        finally:
            lock.release()

    def try_catalog(self, tenant: str, use: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """As `with_catalog`, for what a request can do without: `otherwise` where it can't be used now, which
        `on_catalog_error` hears of. Then it is left alone for a moment, so that requests don't wait one by one."""
        if time.monotonic() < self._resting_until.get(tenant, 0.0):
            return otherwise
        try:
            return self.with_catalog(tenant, use)
        except CATALOG_ERRORS as error:
            self._resting_until.put(tenant, time.monotonic() + REST_S)
            self.on_catalog_error(error)
            return otherwise

    def close(self) -> None:
        with self._lock:
            for session in self._sessions.values():
                session.file.close()
            for file, _ in self._catalogs.values():
                file.close()
            self._sessions.clear()
            self._catalogs.clear()
