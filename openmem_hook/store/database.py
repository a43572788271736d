"""Every database is opened here: private files, one set of pragmas, migrations from `.sql` files."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import sqlite3
import time
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import aiosqlite

from openmem_hook.store.executor import read_outcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

BUSY_S = 0.8
"""Seconds to wait for another worker's short transaction; well inside the hook's deadline."""

_PRAGMAS = (
    "PRAGMA journal_mode = WAL",  # readers never wait for the writer
    "PRAGMA synchronous = NORMAL",  # survives a killed process; a power cut may lose the newest, never damage
    "PRAGMA temp_store = MEMORY",  # no message text in temporary files
    "PRAGMA cache_size = -2000",  # 2 MB a connection, so that many stay open
    "PRAGMA journal_size_limit = 1048576",  # a WAL grown by one big message shrinks again
    "PRAGMA trusted_schema = OFF",
)
DatabaseKind = Literal["catalog", "session"]

_LOG_PAGES: Mapping[DatabaseKind, int] = {"catalog": 256, "session": 1_000}
"""Pages after which a commit empties the log by itself: that of a session is emptied behind requests before."""
_SIDE = ("", "-wal", "-shm", "-journal")
_DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class StoreError(Exception):
    """The store can't be used as it is; says why in one line without any text of a message."""


class DamagedError(StoreError):
    """A database that SQLite can read holds what can't be ours."""


class SessionBusyError(Exception):
    """Another thread holds a session or a catalog for too long."""


def private_folder(path: Path) -> None:
    """The folder and those above it that had to be made, open to the owner only."""
    missing = [p for p in (path, *path.parents) if not p.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)


def _private_file(path: Path) -> None:
    """Made before SQLite does, which would use the default mask; its side files take over the mode. A file that is
    there is never opened: closing it would drop the locks that other connections of this process hold on it."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    for side in _SIDE:  # those that are there already: a store that was copied, a process that was killed
        part = path.with_name(path.name + side)
        with suppress(FileNotFoundError):
            if part.stat().st_mode & 0o077:
                part.chmod(0o600)


def connect(path: Path, kind: DatabaseKind) -> sqlite3.Connection:
    """A connection for writing to a database of this kind ("catalog" or "session"), migrated.

    May be used from any thread, one at a time. Raises StoreError, sqlite3.Error or OSError.
    """
    private_folder(path.parent)
    _private_file(path)
    uri = f"{path.absolute().as_uri()}?mode=rw"  # SQLite itself makes no file: others could read it
    db = sqlite3.connect(uri, timeout=BUSY_S, isolation_level=None, check_same_thread=False, uri=True)
    try:
        _patiently(db, _PRAGMAS[0])
        for pragma in _PRAGMAS[1:]:
            db.execute(pragma)
        db.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES[kind]}")
        _migrate(db, kind)
    except BaseException:
        db.close()
        raise
    return db


def _patiently(db: sqlite3.Connection, pragma: str) -> None:
    """SQLite itself doesn't wait here: while another connection makes a new database a WAL one, it says busy."""
    until = time.monotonic() + BUSY_S
    while True:
        try:
            db.execute(pragma)
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.002)
        else:
            return


@contextmanager
def busy_timeout(db: sqlite3.Connection, seconds: float) -> Iterator[None]:
    """Another time to wait for locks than usual."""
    db.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")
    try:
        yield
    finally:
        db.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}")


def inode(path: Path) -> int:
    """Which file is at this path, 0 for none: a connection outlives the deletion of its file."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


@cache
def migrations(kind: DatabaseKind) -> tuple[str, ...]:
    folder = resources.files("openmem_hook.store") / "migrations"
    files = sorted((f for f in folder.iterdir() if f.name.startswith(f"{kind}_")), key=lambda f: f.name)
    return tuple(f.read_text("utf-8") for f in files)


def _migrate(db: sqlite3.Connection, kind: DatabaseKind) -> None:
    scripts = migrations(kind)
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version == len(scripts):
        return
    with transaction(db):
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > len(scripts):
            raise StoreError(f"a {kind} database has schema {version}, this version of openmem knows {len(scripts)}")
        for script in scripts[version:]:
            for statement in _statements(script):
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {len(scripts)}")


def _statements(script: str) -> Iterator[str]:
    """Statements one by one: `executescript` would commit the transaction they belong to."""
    lines = ""
    for line in script.splitlines(keepends=True):
        lines += line
        if sqlite3.complete_statement(lines):
            yield lines
            lines = ""


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """An immediate transaction: a read that later writes would otherwise fail without waiting its turn."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            with suppress(sqlite3.Error):
                db.execute("ROLLBACK")
        raise


def is_damage(error: BaseException) -> bool:
    return isinstance(error, DamagedError) or _code(error) in _DAMAGE_CODES


def _code(error: BaseException) -> int:
    """SQLite's primary error code, 0 for an error of another origin."""
    code = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else 0


def quarantine(path: Path, damaged_inode: int) -> None:
    """A damaged database is renamed, never deleted: what is in it may still be wanted. Only the file with this inode:
    one that another worker put in its place meanwhile stays."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems lock no folders
            fcntl.flock(folder, fcntl.LOCK_EX)
        if inode(path) != damaged_inode:
            return
        number = 1
        while (damaged_path := path.with_name(f"{path.name}.damaged-{number}")).exists():
            number += 1
        for side in _SIDE:
            part = path.with_name(path.name + side)
            if part.exists():
                part.rename(damaged_path.with_name(damaged_path.name + side))
    finally:
        os.close(folder)


def delete(path: Path) -> None:
    """A database and its side files."""
    for side in _SIDE:
        path.with_name(path.name + side).unlink(missing_ok=True)


# --- read-only ----------------------------------------------------------------------------------------------

READ_S = 2.0
"""Seconds that a reader may use its connection; then what it runs is interrupted."""
_READ_PRAGMAS = (
    "PRAGMA query_only = ON",
    "PRAGMA trusted_schema = OFF",
    "PRAGMA temp_store = MEMORY",  # no message text in temporary files
    "PRAGMA cache_size = -8000",  # 8 MB, for as long as one answer takes
)
_STEPS = 20_000
"""SQLite's own instructions between two looks at the clock: less than a millisecond."""
_ROWS_A_TURN = 64
"""Rows that aiosqlite fetches in its thread at once where a cursor is iterated over."""


class TooSlowError(StoreError):
    """The reader's time is over."""


READ_ERRORS = (sqlite3.Error, StoreError, OSError)
"""What reading a database may raise."""
ReadConnection = sqlite3.Connection
"""What `read_only_blocking` gives: whoever only hands it on need not know SQLite."""


def connect_read_only(path: Path, seconds: float) -> sqlite3.Connection:
    """A connection that can't write and reads one snapshot, so that it never holds up the writer.

    May be used from any thread, one at a time. After so many seconds what it runs is interrupted. Raises
    FileNotFoundError where there is no database, sqlite3.Error or OSError.
    """
    if not path.exists():  # SQLite's own error is the same for a file that may not be read
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    uri = f"{path.absolute().as_uri()}?mode=ro"
    db = sqlite3.connect(uri, timeout=BUSY_S, isolation_level=None, check_same_thread=False, uri=True)
    try:
        interrupt_after(db, seconds)
        for pragma in _READ_PRAGMAS:
            db.execute(pragma)
        db.execute("BEGIN")
    except BaseException:
        db.close()
        raise
    return db


def interrupt_after(db: sqlite3.Connection, seconds: float) -> None:
    """Give a connection so many seconds from now, whatever it was given before."""
    until = time.monotonic() + seconds
    db.set_progress_handler(lambda: int(time.monotonic() > until), _STEPS)


@contextmanager
def read_only_blocking(path: Path, seconds: float = READ_S) -> Iterator[sqlite3.Connection]:
    """`connect_read_only` for a worker thread; closed at the end.

    Raises TooSlowError where the time is over, StoreError for SQLite's other errors, FileNotFoundError or OSError.
    """
    try:
        with closing(connect_read_only(path, seconds)) as db:
            yield db
    except sqlite3.Error as error:
        raise _read_error(error) from None


@asynccontextmanager
async def read_only(path: Path, seconds: float = READ_S) -> AsyncIterator[aiosqlite.Connection]:
    """`connect_read_only` for the event loop: every statement runs in a thread of this connection's own, which ends
    with it.

    Raises as `read_only_blocking`.
    """
    db = _AsyncConnection(partial(connect_read_only, path, seconds), _ROWS_A_TURN)
    opening = asyncio.ensure_future(db.open())
    opening.add_done_callback(read_outcome)
    try:
        # Shielded: whoever is cancelled meanwhile leaves at once, and what was being opened is closed afterwards.
        await asyncio.shield(opening)
        yield db
    except sqlite3.Error as error:
        raise _read_error(error) from None
    finally:
        db.is_wanted = False
        if db.is_open:
            await db.interrupt()  # a statement still runs where the caller was cancelled
            db.stop()
            # Whoever is cancelled once more leaves at once, too.
            await asyncio.shield(asyncio.ensure_future(db.wait_for_end()))


class _AsyncConnection(aiosqlite.Connection):
    """One whose thread can be waited for, also where aiosqlite itself stops it because it can't be opened: the last
    thing that the thread does is to speak to the event loop, which must not have been closed by then."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], rows_a_turn: int) -> None:
        super().__init__(connect, rows_a_turn)
        self.is_open = False
        """Whether it could be opened, and somebody still wanted it then."""
        self.is_wanted = True
        """Whether somebody waits for it to be opened, or uses it."""
        self._end: asyncio.Future[Any] | None = None
        """Done when the thread has closed the connection and ends; None before it is told to."""

    def stop(self) -> asyncio.Future[Any] | None:
        self._end = self._end or super().stop()
        return self._end

    async def open(self) -> None:
        """Opens it. Its thread has ended where this raises, or where nobody wants the connection any more."""
        try:
            await self
            self.is_open = self.is_wanted
            if not self.is_open:
                self.stop()
        finally:
            if not self.is_open:
                await self.wait_for_end()

    async def wait_for_end(self) -> None:
        """Waits until the thread ends that was told to, however often this is cancelled: an event loop that is about to
        be closed cancels all. It takes no longer than a statement that is interrupted, or a database that is busy."""
        while self._end is not None and not self._end.done():
            with suppress(asyncio.CancelledError):
                await asyncio.shield(self._end)


def _read_error(error: sqlite3.Error) -> StoreError:
    if "interrupted" in str(error):
        return TooSlowError("the time is over")
    return StoreError(f"a database can't be read ({error})")
