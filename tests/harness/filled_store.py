"""A store filled by hand: sessions of messages with texts of one's choice, as the hook would have stored them."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from openmem_hook.compaction.state import SessionState
from openmem_hook.compaction.threads import Thread
from openmem_hook.compaction.write import Event, NewRow, Write
from openmem_hook.store import catalog, database, fulltext, names
from openmem_hook.store.executor import Executor
from openmem_hook.store.handshake import Handshake
from openmem_hook.store.pool import Pool
from openmem_hook.text import searchable
from openmem_hook.tools import Answer, Caller, ToolRunner

NOW = 1_770_000_000.0
"""2026-02-02T02:40:00Z."""


@dataclass(frozen=True)
class Row:
    """A message. `at`: seconds since 1970."""

    text: str
    role: str = "user"
    kind: str = "typed"
    tool: str = ""
    shown: bool = True
    at: float = NOW


def said(text: str, **more: Any) -> Row:
    return Row(text, **more)


def result(text: str, tool: str = "Bash", **more: Any) -> Row:
    return Row(text, "tool", "result", tool, **more)


def reply(text: str, **more: Any) -> Row:
    return Row(text, "assistant", "reply", **more)


LARGE = result("hay " * fulltext.AT_ONCE_CHARS)
"""A message that no request indexes itself; what is stored after it waits, too."""


class BlockingRunner:
    """A ToolRunner for callers without an event loop, or on one that they may block: it has a loop of its own."""

    def __init__(self, runner: ToolRunner) -> None:
        self.runner = runner
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, caller: Caller, tool: str, arguments: Mapping[str, Any] | None) -> Answer:
        return asyncio.run_coroutine_threadsafe(self.runner.call(caller, tool, arguments), self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class FilledStore:
    """One state folder and the tools that answer from it."""

    def __init__(self, folder: Path) -> None:
        self.pool = Pool(folder)
        self.executor = Executor()
        self.runner = ToolRunner(self.pool, self.executor, lambda: NOW)
        self.tools = BlockingRunner(self.runner)

    def close(self) -> None:
        self.tools.close()
        self.executor.close()
        self.pool.close()

    def put(
        self,
        rows: Sequence[Row | str],
        *,
        owner: str = "user:alice",
        session: str = "s",
        behind: bool = False,
        at: float = NOW,
        project: str = "",
    ) -> str:
        """Stores a session and returns its name. `behind`: only what a request indexes itself is indexed."""
        tenant, name = names.tenant_folder(owner), names.session_name(owner, session)
        worker = self.pool.session(tenant, name)
        with worker.in_use() as db:
            for row in (row if isinstance(row, Row) else said(row) for row in rows):
                worker.write(db, self._write(row, worker.state), Handshake())
            with database.transaction(db):
                assert behind != fulltext.index(db, 0 if behind else 10**9), "behind is not behind"
        self.pool.with_catalog(tenant, lambda db: catalog.touch(db, name, at, "claude-code", "m", project))
        return name

    def _write(self, row: Row, state: SessionState) -> Write:
        past = list(state.row_tokens)[-1] if state.row_tokens else b"\0" * 16
        key = hashlib.blake2b(past + orjson.dumps([row.role, row.text.encode("utf-8", "replace").decode()])).digest()[
            :16
        ]
        body = orjson.dumps({"role": row.role, "content": searchable(row.text)})
        known = next(iter(state.threads.values()), None)
        thread = known or Thread(0, "main", "", key, key, True, 1, 10_000)
        text = searchable(row.text)
        new = NewRow(key, past, key, row.role, row.kind, row.tool, text, row.shown, "chat", body)
        return Write(thread, [new], now=row.at)

    def event(self, kind: str, data: dict[str, Any], *, owner: str = "user:alice", at: float = NOW) -> None:
        tenant = names.tenant_folder(owner)
        self.pool.with_catalog(tenant, lambda db: catalog.record(db, "", [Event(kind, data)], at))

    def ask(self, tool: str, *, owner: str = "user:alice", **arguments: Any) -> Answer:
        return self.tools.call(Caller(names.tenant_folder(owner)), tool, arguments)

    def search(self, query: str = "", **arguments: Any) -> Answer:
        return self.ask("smart_compact_search", **({"query": query} if query else {}), **arguments)

    def path(self, session: str, owner: str = "user:alice") -> Path:
        return self.pool.session_path(names.tenant_folder(owner), session)

    def lines(self, session: str) -> list[str]:
        """Every stored line in order."""
        with closing(sqlite3.connect(self.path(session))) as db:
            return [row[0] for row in db.execute("SELECT text FROM lines ORDER BY id")]


def number(answer: Answer, name: str) -> int:
    """A count that an answer tells."""
    line = next(line for line in answer.text.splitlines() if line.startswith(f"{name}: "))
    return int(line.partition(": ")[2])


def found_lines(answer: Answer) -> list[str]:
    """The stored lines that an answer shows as matching."""
    shown = (line.partition("| ") for line in answer.text.splitlines() if line.startswith("  "))
    return [text for before, bar, text in shown if bar and before.strip().isdigit()]
