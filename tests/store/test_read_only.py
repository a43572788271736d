"""Reading a database beside its writer, from threads and on the event loop: nothing is written, and no thread stays."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from blockbuster import blockbuster_ctx

from openmem_hook.store import database, names
from openmem_hook.store.database import StoreError, TooSlowError, read_only, read_only_blocking
from openmem_hook.tools import Caller
from tests.harness.conversation import Conversation
from tests.harness.filled_store import FilledStore
from tests.kit.builders import assistant, results, tool_result, user

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "session.db"
    with closing(database.connect(path, "session")) as db:
        db.execute("INSERT INTO events (kind, created_at, data) VALUES ('trim', 1.0, '{}')")
    return path


Wait = Callable[[], Awaitable[None]]


@pytest.fixture
def threads_end() -> Wait:
    """Waits until the threads have ended that were not there when the test began: a connection's thread ends soon after
    it was told to."""
    before = set(threading.enumerate())

    async def wait() -> None:
        end = time.monotonic() + 10
        while others := [thread for thread in threading.enumerate() if thread not in before]:
            assert time.monotonic() < end, others
            await asyncio.sleep(0.01)

    return wait


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """Every read-only connection that is opened; opening one takes a moment."""
    connections: list[sqlite3.Connection] = []
    connect = database.connect_read_only

    def slow(path: Path, seconds: float) -> sqlite3.Connection:
        time.sleep(0.1)
        connections.append(connect(path, seconds))
        return connections[-1]

    monkeypatch.setattr(database, "connect_read_only", slow)
    return connections


def is_closed(db: sqlite3.Connection) -> bool:
    try:
        db.execute("SELECT 1")
    except sqlite3.ProgrammingError as error:
        return "closed database" in str(error)
    return False


# --- what both do -------------------------------------------------------------------------------------------


def test_a_reader_sees_one_snapshot_and_can_not_write(path: Path) -> None:
    with read_only_blocking(path) as db, closing(database.connect(path, "session")) as writer:
        assert db.execute("SELECT count(*) FROM events").fetchone() == (1,)
        writer.execute("DELETE FROM events")
        assert db.execute("SELECT count(*) FROM events").fetchone() == (1,)
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            db.execute("DELETE FROM events")
        for pragma, value in (("query_only", 1), ("trusted_schema", 0), ("temp_store", 2), ("cache_size", -8000)):
            assert db.execute(f"PRAGMA {pragma}").fetchone() == (value,)


async def test_on_the_event_loop_it_is_the_same_connection(path: Path, threads_end: Wait) -> None:
    async with read_only(path) as db:
        assert list(await db.execute_fetchall("SELECT kind FROM events")) == [("trim",)]
        for pragma, value in (("query_only", 1), ("trusted_schema", 0), ("temp_store", 2), ("cache_size", -8000)):
            assert list(await db.execute_fetchall(f"PRAGMA {pragma}")) == [(value,)]
        assert db.in_transaction
    await threads_end()


def damage(path: Path) -> Path:
    path.write_bytes(b"no database" * 1000)
    return path


FAULTS: dict[str, tuple[Callable[[Path], Path], str, type[Exception]]] = {
    "not there": (lambda path: path.with_name("gone.db"), "SELECT 1", FileNotFoundError),
    "damaged": (lambda path: damage(path.with_name("bad.db")), "SELECT * FROM events", StoreError),
    "a wrong statement": (lambda path: path, "SELECT nonsuch", StoreError),
    "too slow": (lambda path: path, ENDLESS, TooSlowError),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_errors_are_the_stores_and_leave_no_thread(name: str, path: Path, threads_end: Wait) -> None:
    choose, sql, error = FAULTS[name]
    with pytest.raises(error) as failure, read_only_blocking(choose(path), 0.2) as blocking:
        blocking.execute(sql).fetchall()
    assert type(failure.value) is error
    with pytest.raises(error) as failure:
        async with read_only(choose(path), 0.2) as db:
            await db.execute_fetchall(sql)
    assert type(failure.value) is error
    assert not path.with_name("gone.db").exists()
    await threads_end()


async def test_an_error_of_the_callers_own_passes(path: Path, threads_end: Wait) -> None:
    with pytest.raises(ZeroDivisionError):
        async with read_only(path):
            raise ZeroDivisionError
    await threads_end()


# --- cancelled ----------------------------------------------------------------------------------------------


async def read(path: Path) -> None:
    async with read_only(path, 60) as db:
        await db.execute_fetchall(ENDLESS)


async def by_asyncio(path: Path, after: float) -> None:
    task = asyncio.create_task(read(path))
    await asyncio.sleep(after)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_anyio(path: Path, after: float) -> None:
    """As the MCP SDK does it: every await of what is cancelled is cancelled again."""
    with anyio.move_on_after(after) as scope:
        await read(path)
    assert scope.cancelled_caught


@pytest.mark.parametrize("cancel", [by_asyncio, by_anyio])
@pytest.mark.parametrize("after", [0.0, 0.05, 0.3], ids=["at once", "while it opens", "while it reads"])
async def test_whoever_is_cancelled_leaves_at_once_and_no_thread_stays(
    after: float, cancel, path: Path, connections: list[sqlite3.Connection], threads_end: Wait
) -> None:
    start = time.monotonic()
    await cancel(path, after)
    assert time.monotonic() - start < after + 2
    await threads_end()  # before the connections are looked at: none may be used by two threads at once
    assert all(map(is_closed, connections))


async def test_an_opening_that_fails_when_nobody_waits_any_more_is_no_news(path: Path, threads_end: Wait) -> None:
    news = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: news.append(context))
    await by_asyncio(path.with_name("gone.db"), 0)
    await threads_end()
    await asyncio.sleep(0)
    gc.collect()
    assert not news


async def test_where_no_thread_can_be_started_that_is_the_error(
    path: Path, monkeypatch: pytest.MonkeyPatch, threads_end: Wait
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await asyncio.wait_for(read(path), 5)
    async with read_only(path) as db:
        assert list(await db.execute_fetchall("SELECT 1")) == [(1,)]
    await threads_end()


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def by_asyncio_again_and_again(path: Path, after: float) -> None:
    task = asyncio.create_task(read(path))
    await asyncio.sleep(after)
    for _ in range(4):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_its_end(path: Path, after: float) -> None:
    """The event loop itself cancels what still runs."""
    asyncio.get_running_loop().create_task(read(path))
    await asyncio.sleep(after)


@pytest.mark.parametrize("leave", [by_asyncio, by_asyncio_again_and_again, by_anyio, by_its_end])
@pytest.mark.parametrize("after", [0.0, 0.05, 0.3], ids=["at once", "while it opens", "while it reads"])
@pytest.mark.parametrize("name", ["session.db", "gone.db", "bad.db"])
def test_no_thread_speaks_to_an_event_loop_that_was_closed(
    name: str, after: float, leave, path: Path, connections: list[sqlite3.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = list[threading.ExceptHookArgs]()
    monkeypatch.setattr(threading, "excepthook", failures.append)
    damage(path.with_name("bad.db"))
    before = set(threading.enumerate())
    with slow_threads(), contextlib.suppress(OSError, StoreError):
        asyncio.run(leave(path.with_name(name), after))
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    assert not failures
    assert set(threading.enumerate()) <= before


@contextlib.contextmanager
def slow_threads() -> Iterator[None]:
    """Connections' threads wait before each of their steps, which aiosqlite logs."""
    log, handler = logging.getLogger("aiosqlite"), logging.Handler()
    handler.emit = lambda record: time.sleep(0.03)
    level, propagate = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagate


# --- the tools that use it ----------------------------------------------------------------------------------


@pytest.fixture
def shelf(state_dir: Path) -> Iterator[FilledStore]:
    shelf = FilledStore(state_dir / "context")
    yield shelf
    shelf.close()


async def test_full_texts_and_the_status_never_block_the_event_loop(new_hook, shelf: FilledStore) -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}}
    long = tool_result("toolu_1", "\n".join(f"line {n} of a long result" for n in range(3_000)))
    body = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 100,
        "tools": [{"name": "Read", "input_schema": {"type": "object"}}],
        "messages": [user("read it"), assistant(call), results(long)],
    }
    await Conversation(new_hook()).send(body)
    answer = await shelf.runner.call(
        caller := Caller(names.tenant_folder("user:user-1")), "smart_compact_search", {"pattern": "^line 7 "}
    )
    session, result = (answer.text.partition(f" {name}=")[2][:16] for name in ("session_id", "id"))
    calls = [
        ("smart_compact_get", {"id": result}, False),
        ("smart_compact_get", {"id": result, "session_id": session}, False),
        ("smart_compact_get", {"session_id": session, "seq": 3}, False),
        ("smart_compact_get", {"session_id": "0" * 16, "seq": 3}, True),
        ("smart_compact_get", {"id": "0" * 16}, True),
        ("context_status", {}, False),
    ]
    with blockbuster_ctx(scanned_modules=["openmem_hook"]):
        for tool, arguments, is_error in calls:
            answer = await shelf.runner.call(caller, tool, arguments)
            assert answer.is_error == is_error, answer.text


async def test_calls_that_are_cancelled_leave_no_thread(shelf: FilledStore, threads_end: Wait) -> None:
    session = shelf.put(["some text"])
    caller = Caller(names.tenant_folder("user:alice"))
    tasks = [
        asyncio.create_task(shelf.runner.call(caller, "smart_compact_get", {"session_id": session, "seq": 1}))
        for _ in range(30)
    ]
    for turn, task in enumerate(tasks):
        await asyncio.sleep(0 if turn % 3 else 0.001)
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            assert not (await task).is_error
    await threads_end()
