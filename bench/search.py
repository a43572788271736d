"""The tools: words, patterns and SQL in a 20 MB session, words across 200 sessions, and what a search costs others.

The text is what agents see: log lines, source code, prose, with words from one line to every other. Every figure
is of the whole call, answer text included. What a search costs another tenant is measured on its hook, request
by request, with and without heavy searches running.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.estimates import quantile
from bench.figures import Figure, Section
from bench.growing import CALL_TYPE, KEY, as_gateway, bodies, messages, new_hook
from bench.speed import Heartbeat
from openmem_hook.store import catalog, names
from openmem_hook.store.store import Store
from openmem_hook.tools import Answer, Caller, ToolRunner
from tests.harness.filled_store import NOW, FilledStore, Row, result, said

OWNER = "user:searcher"
SESSION_MB = 20
SESSIONS = 200
EACH_MB = 5
DIFFERENT = 4
"""Sessions made; the others are copies of these files."""
TIMES = 9
SERVICES = tuple(f"service-{n}" for n in range(40))
LEVELS = (*("INFO",) * 8, "WARN", "ERROR")
NAMES = ("parse", "load", "store", "retry", "merge", "split", "cache", "index", "token", "frame", "queue", "lease")

WORDS = (
    "needle-7f3a9", "user-1234", "trace-00ff*", "timeout", '"connection refused"', "retry_cache", "merge index",
    "level=ERROR service=service-7", "refused timeout ERROR", "parse cache lease",
)  # fmt: skip
"""From one line to every tenth; plain ones and ones with signs inside."""
PATTERNS = (
    r"needle-[0-9a-f]{5}",
    r"status=5\d\d .*service-7\b",
    r"def (\w+)_index\(",
    r"(?i)CONNECTION +refused",
    r"took=1\d{3}ms",
)
SQL = "SELECT count(*) FROM lines_fts WHERE lines_fts MATCH 'timeout'"


def rows(draw: random.Random, megabytes: float) -> list[Row]:
    made, chars = [said("needle-7f3a9 is what is looked for")], 0
    while chars < megabytes * 1e6:
        kind = draw.random()
        row = result(_log(draw) if kind < 0.5 else _code(draw)) if kind < 0.9 else said(_prose(draw))
        made.append(row)
        chars += len(row.text)
    return made


def _log(draw: random.Random) -> str:
    return "\n".join(
        f"2026-01-01T10:{draw.randrange(60):02}:{draw.randrange(60):02}Z level={draw.choice(LEVELS)} "
        f"service={draw.choice(SERVICES)} status={draw.choice((200,) * 9 + (503,))} took={draw.randrange(2_000)}ms "
        f"trace-{draw.randrange(1 << 32):08x} user-{draw.randrange(5_000)}"
        + (" connection refused: timeout" if draw.random() < 0.02 else "")
        for _ in range(60)
    )


def _code(draw: random.Random) -> str:
    def name() -> str:
        return f"{draw.choice(NAMES)}_{draw.choice(NAMES)}"

    return "\n".join(
        f"    {draw.randrange(900)}  def {name()}(self, {name()}: int) -> None:\n        self.{name()} = {name()}(x)"
        for _ in range(60)
    )


def _prose(draw: random.Random) -> str:
    return " ".join(f"{draw.choice(NAMES)} the {draw.choice(NAMES)} {draw.randrange(999)}." for _ in range(60))


def run(folder: Path, quick: bool) -> Section:
    one = FilledStore(folder / "one" / "context")
    session = one.put(rows(random.Random(1), SESSION_MB / (8 if quick else 1)), owner=OWNER)
    figures = _one_session(one, session)
    one.close()
    figures += _many_sessions(folder / "many" / "context", 30 if quick else SESSIONS, EACH_MB / (8 if quick else 1))
    figures += asyncio.run(_others(folder / "one" / "context", folder / "hook", session, quick))
    return Section(
        "search", f"a session of {SESSION_MB} MB, {SESSIONS} of {EACH_MB} MB, another tenant's hook", figures
    )


def _one_session(shelf: FilledStore, session: str) -> list[Figure]:
    words = [_timed(lambda q=q: shelf.search(q, owner=OWNER, session_id=session)) for q in WORDS for _ in range(TIMES)]  # type: ignore[misc]
    patterns = [
        _timed(lambda p=p: shelf.ask("smart_compact_search", owner=OWNER, session_id=session, pattern=p))  # type: ignore[misc]
        for p in PATTERNS
        for _ in range(TIMES)
    ]
    sql = [
        _timed(lambda: shelf.ask("smart_compact_sql", owner=OWNER, session_id=session, sql=SQL)) for _ in range(TIMES)
    ]
    return [
        Figure("words, median", quantile(words, 0.5), "ms", 25),
        Figure("words, 95th", quantile(words, 0.95), "ms"),
        Figure("pattern, median", quantile(patterns, 0.5), "ms", 500),
        Figure("pattern, 95th", quantile(patterns, 0.95), "ms"),
        Figure("SQL, a count, median", quantile(sql, 0.5), "ms"),
    ]


def _timed(use: Callable[[], Answer]) -> float:
    begun = time.perf_counter()
    answer = use()
    taken = (time.perf_counter() - begun) * 1000
    if answer.is_error or "incomplete" in answer.text:
        raise RuntimeError(answer.text.splitlines()[0])
    return taken


def _many_sessions(folder: Path, count: int, megabytes: float) -> list[Figure]:
    shelf = FilledStore(folder)
    made = [shelf.put(rows(random.Random(n), megabytes), owner=OWNER, session=f"s{n}") for n in range(DIFFERENT)]
    for name in made:  # whole in their files before they are copied
        shelf.pool.session(names.tenant_folder(OWNER), name).file.close()
    for n in range(DIFFERENT, count):
        name = names.session_name(OWNER, f"s{n}")
        shutil.copy(shelf.path(made[n % DIFFERENT], OWNER), shelf.path(name, OWNER))
        at = NOW + n
        shelf.pool.with_catalog(names.tenant_folder(OWNER), lambda db, n=name, at=at: catalog.touch(db, n, at, "", ""))  # type: ignore[misc]
    taken = [_timed(lambda q=q: shelf.search(q, owner=OWNER)) for q in WORDS for _ in range(TIMES)]  # type: ignore[misc]
    shelf.close()
    return [
        Figure(f"words across {count} sessions, median", quantile(taken, 0.5), "ms", 100),
        Figure(f"words across {count} sessions, 95th", quantile(taken, 0.95), "ms"),
    ]


async def _others(searched: Path, folder: Path, session: str, quick: bool) -> list[Figure]:
    """Another tenant's requests through the hook, alone and beside searches, which come and go a few at a time."""
    hook = new_hook(folder)
    store = Store(searched)
    runner = ToolRunner(store.pool, store.executor)
    raws = list(bodies(messages(60 if quick else 160, 3_000)))
    stop, asked = threading.Event(), list[int]()
    caller = Caller(names.tenant_folder(OWNER))
    alone: list[float] = []
    beside: list[float] = []
    largest = 0.0
    for n, raw in enumerate(raws):
        searching = n % 2 == 1
        stop.clear()
        crowd = asyncio.create_task(_search(runner, caller, session, stop, asked)) if searching else None
        if crowd is not None:
            await asyncio.sleep(0.02)
        body: dict[str, Any] = as_gateway(raw, f"call-{n}", "others")
        async with Heartbeat() as heartbeat:
            begun = time.perf_counter()
            await hook.async_pre_call_hook(KEY, None, body, CALL_TYPE)
            (beside if searching else alone).append((time.perf_counter() - begun) * 1000)
        if crowd is not None:
            largest = max(largest, heartbeat.largest)
            stop.set()
            await crowd
    hook.compactor.close()
    store.executor.close()
    delays = [quantile(beside, at) - quantile(alone, at) for at in (0.5, 0.95)]
    return [
        Figure("another tenant's hook alone, median", quantile(alone, 0.5), "ms"),
        Figure("a search's delay of it, median", delays[0], "ms", 20),
        Figure("a search's delay of it, 95th", delays[1], "ms", 20),
        Figure("largest event-loop gap beside searches", largest, "ms", 20),
        Figure("searches beside it", len(asked)),
    ]


async def _search(runner: ToolRunner, caller: Caller, session: str, stop: threading.Event, asked: list[int]) -> None:
    heavy = [{"pattern": r"[a-z]+_[a-z]+\(zzz"}, {"query": "service"}, {"query": "="}, {"pattern": r"took=1\d{3}ms"}]
    while not stop.is_set():
        for given in heavy:
            await runner.call(caller, "smart_compact_search", {**given, "session_id": session})
            asked.append(1)
            if stop.is_set():
                break
