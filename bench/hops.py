"""What a hop to a thread costs: a request's statements in one hop with sqlite3, or one hop each with aiosqlite.

The statements are those that a request of a known session runs, recorded from the store itself. Both ways run on
copies of one database, interleaved.
"""

from __future__ import annotations

import asyncio
import functools
import shutil
import sqlite3
import statistics
import time
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import aiosqlite

from bench.figures import Figure, Section
from bench.growing import CALL_TYPE, KEY, as_gateway, bodies, messages, new_hook, unharmed
from openmem_hook.store import database
from openmem_hook.store.executor import Executor

EXCHANGES = 20
RESULT_CHARS = 4_000
ROUNDS = 300
BUSY_ROUNDS = 30
"""Beside a busy event loop a round takes a hundred times as long."""
BUSY_S = 0.001
"""Seconds that a busy event loop works between two looks."""

Statement = tuple[str, str, Any]
"""A method of a connection, its SQL, its values."""


def run(folder: Path, quick: bool) -> Section:
    with mock.patch("sqlite3.connect", functools.partial(sqlite3.connect, factory=Recorder)):
        statements, copies = asyncio.run(_statements_of_a_request(folder))
    figures = [Figure("statements of a request", len(statements), "")]
    for beside, busy_s, rounds in (("an idle event loop", 0.0, ROUNDS), ("a busy event loop", BUSY_S, BUSY_ROUNDS)):
        one, each = asyncio.run(_times(statements, copies, rounds // 10 if quick else rounds, busy_s))
        figures += [
            Figure(f"one hop with sqlite3, beside {beside}", one * 1000, "ms"),
            Figure(f"one hop a statement with aiosqlite, beside {beside}", each * 1000, "ms"),
            Figure("  ratio", each / one, ""),
        ]
    return Section("hops", "one request's statements, each way in turn, medians", figures)


class Recorder(sqlite3.Connection):
    """A connection that notes what is run on a session's database."""

    statements: ClassVar[list[Statement]] = []

    def __init__(self, path: Any, *given: Any, **named: Any) -> None:
        super().__init__(path, *given, **named)
        self.is_session = "/sessions/" in str(path)

    def execute(self, sql: str, values: Any = ()) -> sqlite3.Cursor:  # type: ignore[override]
        self._note("execute", sql, values)
        return super().execute(sql, values)

    def executemany(self, sql: str, values: Any) -> sqlite3.Cursor:  # type: ignore[override]
        values = list(values)
        self._note("executemany", sql, values)
        return super().executemany(sql, values)

    def _note(self, *statement: Any) -> None:
        if self.is_session:
            self.statements.append(statement)


async def _statements_of_a_request(folder: Path) -> tuple[list[Statement], list[Path]]:
    """What the last request runs on its session's database up to its commit, and two copies of the database as it was
    before."""
    hook = new_hook(folder)
    copies = [folder / "one.db", folder / "each.db"]
    *earlier, last = bodies(messages(EXCHANGES, RESULT_CHARS, 0))
    for n, body in enumerate([*earlier, last]):
        if body is last:
            (session,) = hook.compactor.store.pool.sessions_in_memory()
            session.refresh().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            for copy in copies:
                shutil.copy(session.file.path, copy)
            Recorder.statements.clear()
        await hook.async_pre_call_hook(KEY, None, as_gateway(body, f"call-{n}", "session"), CALL_TYPE)
    unharmed(hook)
    hook.compactor.close()
    commit = next(n for n, (_, sql, _) in enumerate(Recorder.statements) if sql == "COMMIT")
    return Recorder.statements[:commit], copies


async def _spin(busy_s: float) -> None:
    """Other requests: the event loop works for so many seconds, then looks what else there is."""
    while busy_s:
        until = time.perf_counter() + busy_s
        while time.perf_counter() < until:
            pass
        await asyncio.sleep(0)


async def _times(statements: list[Statement], copies: list[Path], rounds: int, busy_s: float) -> tuple[float, float]:
    """Seconds of one round: all statements in one hop, and one hop for each. A round ends without its writes, so that
    all do the same work."""
    spin = asyncio.create_task(_spin(busy_s))
    executor, db = Executor(), database.connect(copies[0], "session")
    async with aiosqlite.connect(copies[1], isolation_level=None) as other:

        def work() -> None:
            for method, sql, values in statements:
                getattr(db, method)(sql, values).fetchall()
            db.execute("ROLLBACK")

        async def in_one_hop() -> None:
            await executor.run("request", work)

        async def in_a_hop_each() -> None:
            for method, sql, values in statements:
                if method == "execute":
                    await other.execute_fetchall(sql, values)
                else:
                    await other.executemany(sql, values)
            await other.execute("ROLLBACK")

        seconds: tuple[list[float], list[float]] = [], []
        for _ in range(rounds):
            for way, times in zip((in_one_hop, in_a_hop_each), seconds, strict=True):
                began = time.perf_counter()
                await way()
                times.append(time.perf_counter() - began)
    spin.cancel()
    db.close()
    executor.close()
    return statistics.median(seconds[0]), statistics.median(seconds[1])
