"""Sessions that nobody came back to are deleted whole, by one worker an hour, in batches, without a request waiting.

The tenant's catalog settles who comes first. A request says there that its session is in use before it reads
the session's database; a deletion looks there and unlinks the files inside one transaction. So a session is
either seen to be in use, or gone before it is read. Files that no catalog knows (a crash, a damaged catalog,
a damaged database that was set aside) go by their own age.
"""

from __future__ import annotations

import logging
import re
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openmem_hook.compaction.write import Event
from openmem_hook.store import catalog, database
from openmem_hook.store.database import SessionBusyError, StoreError
from openmem_hook.store.pool import Pool

LOG = logging.getLogger("openmem")
CHORE = "retention"
EVERY_S = 3_600.0
DAY_S = 86_400.0
BATCH = 50
"""Sessions deleted before requests get a breath."""
PAUSE_S = 0.05

_TENANT = re.compile(r"[0-9a-f]{32}")
_SESSION_FILE = re.compile(r"([0-9a-f]{16})\.db(-wal|-shm|-journal)?(\.damaged-\S+)?")


@dataclass(slots=True)
class Folder:
    """The files of a tenant, found in one look: of each session, and damaged ones that were set aside."""

    files: dict[str, list[Path]] = field(default_factory=dict)
    aside: list[Path] = field(default_factory=list)


class Retention:
    """What one worker does about old sessions. `clock` gives seconds since 1970."""

    def __init__(self, pool: Pool, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._clock = clock
        self._last = float("-inf")
        self._stopped = threading.Event()

    def is_due(self, ttl_days: int) -> bool:
        """True when this worker has not looked for an hour; it is taken to look now."""
        now = self._clock()
        if not ttl_days or self._last <= now < self._last + EVERY_S:
            return False
        self._last = now
        return True

    def stop(self) -> None:
        """A sweep under way ends after the session it is at."""
        self._stopped.set()

    def sweep(self, ttl_days: int) -> int:
        """Delete what is idle for longer than so many days, of all tenants that no other worker swept within the
        hour. Returns how many sessions went. One tenant's broken store is told of and passed over."""
        before = self._clock() - ttl_days * DAY_S
        gone, broken = 0, []
        tenants = _tenants(self._pool.folder)
        for tenant in tenants:
            if self._stopped.is_set():
                break
            try:
                gone += self._tenant(tenant, before)
            except (sqlite3.Error, OSError, StoreError, SessionBusyError) as error:
                broken.append(error)
        if broken:
            told = broken[0].strerror if isinstance(broken[0], OSError) else broken[0]
            LOG.warning(
                "openmem: retention: %d of %d tenants could not be swept (%s: %s)",
                *(len(broken), len(tenants), type(broken[0]).__name__, told),
            )
        return gone

    def _tenant(self, tenant: str, before: float) -> int:
        now = self._clock()
        if not self._pool.with_catalog(tenant, lambda db: catalog.begin_chore(db, CHORE, now, EVERY_S)):
            return 0
        folder = _files(self._pool.folder / tenant)
        gone = self._idle(tenant, before, folder.files) + self._unknown(tenant, before, folder.files)
        for path in folder.aside:
            if _newest([path]) < before:
                path.unlink(missing_ok=True)
        self._pool.with_catalog(tenant, lambda db: catalog.prune_events(db, before))
        if gone:
            told = Event("expired", {"sessions": gone})
            self._pool.with_catalog(tenant, lambda db: catalog.record(db, "", [told], now))
        return gone

    def _idle(self, tenant: str, before: float, files: Mapping[str, list[Path]]) -> int:
        """Sessions that the catalog calls idle; one in use is passed over."""
        gone, passed = 0, set[str]()
        while not self._stopped.is_set():
            limit = BATCH + len(passed)
            found = self._pool.with_catalog(tenant, lambda db, limit=limit: catalog.idle(db, before, limit))  # type: ignore[misc]
            batch = [name for name in found if name not in passed]
            if not batch:
                break
            deleted = {name for name in batch if self._delete(tenant, name, before, files.get(name, ()))}
            gone += len(deleted)
            passed |= set(batch) - deleted
            self._stopped.wait(PAUSE_S)
        return gone

    def _unknown(self, tenant: str, before: float, files: Mapping[str, list[Path]]) -> int:
        """Sessions that have files but no row."""
        known = self._pool.with_catalog(tenant, catalog.names)
        old = [name for name, paths in files.items() if name not in known and 0 < _newest(paths) < before]
        return sum(not self._stopped.is_set() and self._delete(tenant, name, before, files[name]) for name in old)

    def _delete(self, tenant: str, name: str, before: float, files: Iterable[Path]) -> bool:
        live = self._pool.peek(tenant, name)
        if live is not None and not live.lock.acquire(blocking=False):
            return False
        try:
            erase = lambda: _erase(self._pool.session_path(tenant, name), files)  # noqa: E731
            gone = self._pool.with_catalog(tenant, lambda db: catalog.forget(db, name, before, erase))
            if gone and live is not None:
                self._pool.drop(live)
        finally:
            if live is not None:
                live.lock.release()
        return gone


def _tenants(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if _TENANT.fullmatch(p.name)) if folder.is_dir() else []


def _files(tenant: Path) -> Folder:
    found = Folder(aside=list(tenant.glob("catalog.db.damaged-*")))
    for path in (tenant / "sessions").glob("*.db*"):
        named = _SESSION_FILE.fullmatch(path.name)
        if named is None:
            continue
        found.files.setdefault(named[1], []).append(path)
        if named[3]:
            found.aside.append(path)
    return found


def _newest(paths: Iterable[Path]) -> float:
    """When the last of these files was written to; 0 where none is there any more."""
    return max((path.stat().st_mtime for path in paths if path.exists()), default=0.0)


def _erase(path: Path, files: Iterable[Path]) -> None:
    database.delete(path)
    for leftover in files:
        leftover.unlink(missing_ok=True)
