"""A session in this worker: its connection, the state loaded from it, and the lock under which both are used.

The state outlives the connection: while a store can't be reached, memory still knows the edits already sent. It is
true while the database's data version is the one it was loaded at. What was sent outlives a database that is lost:
its edits and messages are carried over to the next one.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from openmem_hook.compaction.state import SessionState
from openmem_hook.compaction.threads import Thread
from openmem_hook.compaction.write import UsageWrite, Write
from openmem_hook.model import HistoryCache
from openmem_hook.store import database, fulltext, session
from openmem_hook.store.database import SessionBusyError, StoreError
from openmem_hook.store.database_file import DatabaseFile
from openmem_hook.store.handshake import Handshake, NotWaitedForError
from openmem_hook.store.statements import statement

LOCK_S = 1.5
"""Seconds a request waits for another of the same session in this worker; inside the hook's deadline."""
CACHE_SLACK = 2
"""Facts kept in a session's cache, as a multiple of its longest history's length."""
CHORES_EVERY = 8
"""Decisions written, after which the indexes are merged and the log is emptied behind the request."""
LOG_PAGES = 4_096
"""Pages of a write-ahead log above which it is cut: 16 MB."""
LOG_PATIENCE_S = 0.2
"""Seconds that writers may wait for that: well inside their own patience."""

CHECKPOINT = statement("database", "checkpoint")
TRUNCATE_LOG = statement("database", "truncate_log")


def _index_more(db: sqlite3.Connection) -> bool:
    with database.transaction(db):
        return fulltext.index(db, fulltext.PIECE_CHARS, least=1)


def _merge_more(db: sqlite3.Connection) -> bool:
    with database.transaction(db):
        return fulltext.merge(db)


def _empty_log(db: sqlite3.Connection) -> bool:
    """Its pages go into the database and its file gets short, so that a store takes little more room while its sessions
    are in use. Where readers come without a pause the log never gets to start anew by itself: once it is long, writers
    wait a moment for it, in which the readers that are there leave and new ones need the log no more."""
    _, pages, pages_copied = db.execute(CHECKPOINT).fetchone()
    is_long = pages > LOG_PAGES
    if is_long or pages == pages_copied:
        with database.busy_timeout(db, LOG_PATIENCE_S if is_long else 0.0):
            db.execute(TRUNCATE_LOG).fetchall()
    return True


CHORES: tuple[Callable[[sqlite3.Connection], bool], ...] = (_index_more, _merge_more, _empty_log)
"""What requests leave over, in order: each done in pieces, until it says that nothing is left. In a request, merging
or emptying the log would cost one in eight 20 ms."""


@dataclass(slots=True)
class Chores:
    """Which of a session's chores are to be done."""

    due: bool = False
    is_running: bool = False
    writes: int = 0
    """Decisions written since the last time."""
    next: int = 0
    """Place in `CHORES`."""

    def note_write(self, *, is_indexed: bool) -> None:
        self.writes += 1
        self.due |= not is_indexed or self.writes >= CHORES_EVERY
        self.next = self.next if is_indexed else 0

    def do_piece(self, db: sqlite3.Connection) -> None:
        """Afterwards `due` says whether there is more."""
        self.next += CHORES[self.next](db)
        if self.next == len(CHORES):
            self.next, self.writes, self.due = 0, 0, False


@dataclass(slots=True)
class OpenSession:
    """One session in this worker's memory. What changes its database or its state holds `lock`."""

    tenant: str
    """The tenant's folder."""
    name: str
    file: DatabaseFile
    state: SessionState = field(default_factory=SessionState)
    version: int = -1
    """The database's data version that `state` was loaded at; -1 for none."""
    cache: HistoryCache = field(default_factory=HistoryCache)
    longest: int = 0
    """Messages of its longest history, which bounds what `cache` may hold."""
    sent_unstored: set[bytes] = field(default_factory=set)
    """Keys of messages that were sent and that the database doesn't hold. Added to without the lock, too."""
    chores: Chores = field(default_factory=Chores)
    catalog: sqlite3.Connection | None = None
    """The connection to the catalog through which all of its edits were indexed."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def lock_in_time(self) -> Iterator[None]:
        """Raises SessionBusyError where the lock can't be had in time."""
        if not self.lock.acquire(timeout=LOCK_S):
            raise SessionBusyError("another request of this session takes too long")
        try:
            yield
        finally:
            self.lock.release()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[sqlite3.Connection]:
        """With the lock, the database and its state. After an error in it the connection is not trusted. Raises
        sqlite3.Error, OSError, StoreError or SessionBusyError."""
        with self.lock_in_time():
            db = self.refresh()
            try:
                yield db
            except (sqlite3.Error, OSError) as error:
                self.file.fail(error)
                raise

    @property
    def has_unstored(self) -> bool:
        """True while memory knows of something sent that the database doesn't hold."""
        return bool(self.sent_unstored or self.state.unstored_edits)

    def refresh(self) -> sqlite3.Connection:
        """The connection, with the state brought up to date with what other workers committed. Hold the lock."""
        try:
            db, is_new = self.file.connection()
            current = session.version(db)
            if is_new or current != self.version:
                fresh = session.load(db)
                self.sent_unstored.update(self.state.lost_rows(fresh))
                self.state, self.version = self.state.carry_over(fresh), current
                self._forget_stored()
        except (sqlite3.Error, OSError, StoreError) as error:
            self.file.fail(error)
            raise
        return db

    def _forget_stored(self) -> None:
        """What was sent past the store may have been stored since, here or by another worker."""
        if self.sent_unstored:
            self.sent_unstored.difference_update([key for key in self.sent_unstored if key in self.state.row_tokens])

    def bound_cache(self, messages: int) -> None:
        """Forgets what the cache holds beyond what histories of this session need; `messages`: of the newest one."""
        self.longest = max(self.longest, messages)
        if len(self.cache.facts) > CACHE_SLACK * self.longest + 64:
            self.cache.facts.clear()
            self.cache.files.clear()

    def write(self, db: sqlite3.Connection, write: Write, handshake: Handshake) -> Thread | None:
        """Writes a decision; the thread as it is stored, or None where another worker wrote first. Hold the lock.

        `db` is the connection that the state was brought up to date with. Raises sqlite3.Error, or NotWaitedForError
        where the request was sent without the decision.
        """
        claim = session.claim(db, self.state, self.version, write, handshake)
        self.state = claim.state
        if claim.outcome in ("recorded", "only rows"):
            self._forget_stored()
            self.chores.note_write(is_indexed=claim.is_indexed)
        if claim.outcome in ("only rows", "nothing"):
            raise NotWaitedForError
        return None if claim.outcome == "lost" else claim.thread

    def record_usage(self, db: sqlite3.Connection, usage: UsageWrite) -> None:
        """Stores a report. Hold the lock."""
        if session.record_usage(db, usage):
            self.state = self.state.after_report(usage)

    def index_all(self, seconds: float) -> bool:
        """Has all of the session in the full-text index; False where that takes longer than so many seconds.

        Raises StoreError, OSError or SessionBusyError.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            # One piece under one hold of the lock: a request of the session waits for no more than that.
            with self.lock_in_time():
                try:
                    is_done = _index_more(self.refresh())
                except sqlite3.Error as error:
                    self.file.fail(error)
                    raise StoreError(f"the full-text index can't be brought up to date ({error})") from None
            if is_done:
                return True
        return False

    def tidy(self) -> None:
        """Does what requests left over, by pieces, so that requests of the session come in between. A failure leaves
        the rest to the session's next request."""
        try:
            with contextlib.suppress(sqlite3.Error, OSError, StoreError, SessionBusyError):
                while self.chores.due:
                    with self.in_use() as db:
                        self.chores.do_piece(db)
        finally:
            self.chores.is_running = False
