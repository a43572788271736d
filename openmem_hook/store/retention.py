"""Sessions that nobody came back to are deleted whole, by one worker an hour, in batches, without a request waiting.

The tenant's catalog settles who comes first. A request says there that its session is in use before it reads
the session's database; a deletion looks there and unlinks the files inside one transaction. So a session is
either seen to be in use, or gone before it is read. Files that no catalog knows (a crash, a damaged catalog,
a damaged database in quarantine) go by their own age.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from openmem_hook.compaction.write import Event
from openmem_hook.store import catalog, database
from openmem_hook.store.pool import CATALOG_ERRORS, Pool

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
class TenantFiles:
    """The files of a tenant, found in one look."""

    by_session: dict[str, list[Path]] = field(default_factory=dict)
    quarantine: list[Path] = field(default_factory=list)
    """Damaged ones that were put away."""


class Retention:
    """What one worker does about old sessions. `clock` gives seconds since 1970."""

    def __init__(self, pool: Pool, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._clock = clock
        self._last = float("-inf")
        self._stop = threading.Event()

    def is_due(self, ttl_days: int) -> bool:
        """True when this worker has not looked for an hour; it is taken to look now."""
        now = self._clock()
        if not ttl_days or self._last <= now < self._last + EVERY_S:
            return False
        self._last = now
        return True

    def stop(self) -> None:
        """A sweep under way ends after the session it is at."""
        self._stop.set()

    def sweep(self, ttl_days: int) -> int:
        """Deletes what is idle for longer than so many days, of all tenants that no other worker swept within the
        hour. Returns how many sessions went. One tenant's broken store is logged and passed over."""
        before = self._clock() - ttl_days * DAY_S
        count, errors = 0, []
        tenants = _tenants(self._pool.folder)
        for tenant in tenants:
            if self._stop.is_set():
                break
            try:
                count += self._sweep_tenant(tenant, before)
            except CATALOG_ERRORS as error:
                errors.append(error)
        if errors:
            reason = errors[0].strerror if isinstance(errors[0], OSError) else errors[0]
            LOG.warning(
                "openmem: retention: %d of %d tenants could not be swept (%s: %s)",
                *(len(errors), len(tenants), type(errors[0]).__name__, reason),
            )
        return count

    def _sweep_tenant(self, tenant: str, before: float) -> int:
        now = self._clock()
        if not self._pool.with_catalog(tenant, lambda db: catalog.begin_chore(db, CHORE, now, EVERY_S)):
            return 0
        files = _files_of(self._pool.folder / tenant)
        count = self._delete_idle(tenant, before, files) + self._delete_unknown(tenant, before, files)
        for path in files.quarantine:
            if _newest([path]) < before:
                path.unlink(missing_ok=True)
        self._pool.with_catalog(tenant, lambda db: catalog.prune_events(db, before))
        if count:
            event = Event("expired", {"sessions": count})
            self._pool.with_catalog(tenant, lambda db: catalog.record(db, "", [event], now))
        return count

    def _delete_idle(self, tenant: str, before: float, files: TenantFiles) -> int:
        """Sessions that the catalog calls idle; one in use is passed over."""
        count, in_use = 0, set[str]()
        while not self._stop.is_set():
            idle = partial(catalog.find_idle, before=before, limit=BATCH + len(in_use))
            batch = [name for name in self._pool.with_catalog(tenant, idle) if name not in in_use]
            if not batch:
                break
            deletions = {name: self._delete(tenant, name, before, files) for name in batch}
            count += sum(deletions.values())
            in_use |= {name for name, is_deleted in deletions.items() if not is_deleted}
            self._stop.wait(PAUSE_S)
        return count

    def _delete_unknown(self, tenant: str, before: float, files: TenantFiles) -> int:
        """Sessions that have files but no row: a crash, a catalog that was lost."""
        names = self._pool.with_catalog(tenant, catalog.read_names)
        unknown = {name: _newest(paths) for name, paths in files.by_session.items() if name not in names}
        old = [name for name, newest in unknown.items() if 0 < newest < before]
        return sum(not self._stop.is_set() and self._delete(tenant, name, before, files) for name in old)

    def _delete(self, tenant: str, name: str, before: float, files: TenantFiles) -> bool:
        session = self._pool.peek(tenant, name)
        if session is not None and not session.lock.acquire(blocking=False):
            return False
        path, paths = self._pool.session_path(tenant, name), files.by_session.get(name, ())
        try:
            is_deleted = self._pool.with_catalog(
                tenant, lambda db: catalog.forget(db, name, before, lambda: _erase(path, paths))
            )
            if is_deleted and session is not None:
                self._pool.drop(session)
        finally:
            if session is not None:
                session.lock.release()
        return is_deleted


def _tenants(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if _TENANT.fullmatch(p.name)) if folder.is_dir() else []


def _files_of(tenant: Path) -> TenantFiles:
    files = TenantFiles(quarantine=list(tenant.glob("catalog.db.damaged-*")))
    for path in (tenant / "sessions").glob("*.db*"):
        match = _SESSION_FILE.fullmatch(path.name)
        if match is None:
            continue
        files.by_session.setdefault(match[1], []).append(path)
        if match[3]:
            files.quarantine.append(path)
    return files


def _newest(paths: Iterable[Path]) -> float:
    """When the last of these files was written to; 0 where none is there any more."""
    return max((path.stat().st_mtime for path in paths if path.exists()), default=0.0)


def _erase(path: Path, files: Iterable[Path]) -> None:
    database.delete(path)
    for leftover in files:
        leftover.unlink(missing_ok=True)
