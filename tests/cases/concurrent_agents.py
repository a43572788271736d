"""Many agents at once in several processes on one store, and readers that search it without a pause.

`run_agents` starts the processes, lets every agent send its history request by request with usage reported in between,
and returns what each process saw: failures, milliseconds a request, gaps of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from openmem_hook import config
from openmem_hook.compactor import Compactor
from openmem_hook.gateway.hook import ContextHook
from openmem_hook.gateway.notices import Notices
from openmem_hook.store import pool
from tests.conftest import make_key
from tests.kit import builders
from tests.kit.builders import Json
from tests.kit.histories import growth

PROCESSES, AGENTS = 4, 25
SETTINGS: Json = {"trim_at_tokens": 3_000, "compress_over_tokens": 800, "chars_per_token": 2.5, "deadline_s": 30.0}
PATIENCE_S = 180.0
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.cases.concurrent_agents"])


@dataclass(slots=True)
class Measurements:
    failures: list[str] = field(default_factory=list)
    taken: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)


def history(agent: int, exchanges: int) -> list[Json]:
    """The requests of one agent; nobody else's words are in them."""
    body = builders.session("anthropic", exchanges=exchanges, size=2_500, seed=agent)
    return growth({**body, "model": "claude-sonnet-4-5"})


def new_hook(state_dir: Path) -> ContextHook:
    base = config.load(SETTINGS, {"OPENMEM_STATE_DIR": str(state_dir)})
    return ContextHook(base, Compactor(state_dir / "context"), Notices())


def run_agents(state_dir: Path, sessions: int, exchanges: int, seconds: float) -> Measurements:
    """What all processes saw together. The agents spread over so many sessions; each says who it is."""
    pipes: list[Connection] = []
    workers = []
    for process in range(PROCESSES):
        mine, theirs = _FORKS.Pipe()
        worker = _FORKS.Process(
            target=_work, args=(theirs, state_dir, process, sessions, exchanges, seconds), daemon=True
        )
        worker.start()
        theirs.close()
        pipes.append(mine)
        workers.append(worker)
    try:
        for pipe in pipes:
            _answer(pipe)
        for pipe in pipes:
            pipe.send("go")
        told = [_answer(pipe) for pipe in pipes]
    finally:
        for worker in workers:
            worker.join(PATIENCE_S)
            worker.kill()
    seen = Measurements()
    for one in told:
        seen.failures += one.failures
        seen.taken += one.taken
        seen.gaps += one.gaps
    return seen


def _answer(pipe: Connection) -> Any:
    if not pipe.poll(PATIENCE_S):
        raise TimeoutError("a process says nothing")
    return pipe.recv()


def _work(pipe: Connection, state_dir: Path, process: int, sessions: int, exchanges: int, seconds: float) -> None:
    pool.LOCK_S = 30.0  # on a machine that does much else; what is looked for are locks between processes
    hook = new_hook(state_dir)
    agents = [process * AGENTS + n for n in range(AGENTS)]
    bodies = {agent: history(agent, exchanges) for agent in agents}
    pipe.send("ready")
    pipe.recv()
    seen = asyncio.run(_all(hook, bodies, sessions, seconds))
    seen.failures = [str(event.data) for _, event in hook.notices.take_events()]
    hook.compactor.close()
    pipe.send(seen)


async def _all(hook: ContextHook, bodies: dict[int, list[Json]], sessions: int, seconds: float) -> Measurements:
    seen = Measurements()
    beating = asyncio.create_task(_heart(seen))
    await asyncio.gather(*(_agent(hook, seen, agent, found, sessions, seconds) for agent, found in bodies.items()))
    beating.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await beating
    return seen


async def _heart(seen: Measurements) -> None:
    while True:
        begun = time.perf_counter()
        await asyncio.sleep(0.01)
        seen.gaps.append((time.perf_counter() - begun - 0.01) * 1000)


async def _agent(
    hook: ContextHook, seen: Measurements, agent: int, bodies: list[Json], sessions: int, seconds: float
) -> None:
    choose = random.Random(agent)
    headers = {"x-claude-code-session-id": f"session-{agent % sessions}", "x-claude-code-agent-id": f"agent-{agent}"}
    for number, body in enumerate(bodies):
        call = f"call-{agent}-{number}"
        await asyncio.sleep(seconds / len(bodies) * choose.uniform(0.5, 1.5))
        begun = time.perf_counter()
        data = {**body, "litellm_call_id": call, "proxy_server_request": {"headers": headers}}
        await hook.async_pre_call_hook(make_key(), None, data, "anthropic_messages")
        seen.taken.append((time.perf_counter() - begun) * 1000)
        usage = {"usage": {"prompt_tokens": 1_000 + 400 * number}}
        await hook.async_log_success_event({"litellm_call_id": call}, usage, None, None)


@dataclass(slots=True)
class Readers:
    """`longest` is the largest write-ahead log that was seen; `faults` what readers met."""

    reads: int = 0
    longest: int = 0
    faults: list[str] = field(default_factory=list)


@contextlib.contextmanager
def reading(state_dir: Path, count: int = 2) -> Iterator[Readers]:
    """Searches all sessions in turn, without a pause and overlapping, as long as the block lasts."""
    found, ended = Readers(), threading.Event()

    def read() -> None:
        while not ended.is_set():
            for path in sorted(state_dir.glob("context/*/sessions/*.db")):
                found.longest = max(found.longest, size_of(path.with_name(f"{path.name}-wal")))
                try:
                    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as db:
                        db.execute("SELECT count(*) FROM lines_fts WHERE lines_fts MATCH 'parser OR ledger'").fetchone()
                        db.execute("SELECT text FROM messages ORDER BY seq DESC LIMIT 3").fetchall()
                    found.reads += 1
                except sqlite3.Error as error:
                    if "no such table" not in str(error):  # it is being made
                        found.faults.append(str(error))
            time.sleep(0.001)

    threads = [threading.Thread(target=read) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def size_of(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
