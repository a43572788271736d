"""The one way from the event loop to threads: lanes of executor threads, deadlines, work behind requests.

SQLite blocks and a large body takes the processor for milliseconds, so neither has a place on the event loop. A
request takes one hop, `await executor.run_decision(seconds, work)`, and all of its work happens there. Lanes keep one
kind of work from waiting behind another: a store that hangs holds the threads of its lane, and memory still answers.
But for `aiosqlite`, whose connections bring a thread each, nothing else on the request path starts one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, Literal, TypeVar

from openmem_hook.store.handshake import Handshake

T = TypeVar("T")
U = TypeVar("U")

Lane = Literal["request", "replay", "after", "sweep", "tool", "search"]
"""`request`: decisions; `replay`: requests answered from memory alone, while the store holds all threads of the first;
`after`: what is written behind requests; `sweep`: retention, which takes its time; `tool`: agents' calls; `search`:
sessions looked through for one of these."""

THREADS: Mapping[Lane, int] = {"request": 16, "replay": 2, "after": 4, "sweep": 1, "tool": 4, "search": 2}
"""Threads of each lane, made on first use. More than cores for requests, since one may wait for a lock; two for search,
which holds the interpreter between SQLite's answers."""
COMMIT_GRACE_S = 0.25
"""Seconds beyond its deadline that a decision gets when it is being committed."""


class Executor:
    """All threads of one store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[Lane, ThreadPoolExecutor] = {}
        self._is_closed = False

    def start(self, lane: Lane, work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Work that somebody may wait for, from the event loop."""
        future = asyncio.get_running_loop().run_in_executor(self._pool(lane), work, *arguments)
        future.add_done_callback(read_outcome)
        return future

    async def run(self, lane: Lane, work: Callable[..., T], *arguments: Any) -> T:
        """What `work` returns or raises. It goes on to its end where the caller is cancelled."""
        return await asyncio.shield(self.start(lane, work, *arguments))

    async def run_within(self, lane: Lane, seconds: float, work: Callable[..., T], *arguments: Any) -> T:
        """As `run`; raises TimeoutError after so many seconds, and the work's end interests nobody then."""
        return await asyncio.wait_for(asyncio.shield(self.start(lane, work, *arguments)), seconds)

    async def run_decision(self, seconds: float, work: Callable[[Handshake], T]) -> T:
        """What a decision returns when it comes within so many seconds, or soon after where it is being committed.

        Raises TimeoutError where it does not; then it leaves no edits. Once it is committed nothing but memory is left
        to wait for.
        """
        handshake = Handshake()
        future = self.start("request", work, handshake)
        try:
            for timeout, grace in ((seconds, True), (COMMIT_GRACE_S, False)):
                await asyncio.wait({future}, timeout=timeout)
                if not future.done() and handshake.give_up(grace=grace):
                    raise TimeoutError(f"not decided within {seconds:g} s")
                if future.done():
                    break
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            handshake.leave()
            raise

    async def run_briefly(self, lane: Lane, seconds: float, work: Callable[..., object], *arguments: Any) -> None:
        """Waits for work that matters to nobody's answer, but not longer than so many seconds."""
        await asyncio.wait({self.start(lane, work, *arguments)}, timeout=max(seconds, 0.0))

    def submit(self, lane: Lane, work: Callable[..., object], *arguments: Any) -> Future[Any]:
        """Work that nobody waits for, from any thread."""
        return self._pool(lane).submit(work, *arguments)

    def map(self, lane: Lane, work: Callable[[T], U], items: Iterable[T]) -> list[U]:
        """`work` for each, side by side, in their order. Blocks until all have ended, also when one fails: what they
        use is closed after this."""
        futures = [self._pool(lane).submit(work, item) for item in items]
        wait(futures)
        return [future.result() for future in futures]

    def close(self) -> None:
        """Waits for all work under way. Work that is asked for later raises RuntimeError."""
        with self._lock:
            self._is_closed = True
            pools = list(self._pools.values())
        for pool in pools:
            pool.shutdown(wait=True)

    def _pool(self, lane: Lane) -> ThreadPoolExecutor:
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the store is closed")
            if lane not in self._pools:
                self._pools[lane] = ThreadPoolExecutor(THREADS[lane], thread_name_prefix=f"openmem-{lane}")
            return self._pools[lane]


def read_outcome(future: asyncio.Future[Any]) -> None:
    """Nobody may wait any more; reading the outcome keeps asyncio from reporting it as unread."""
    with suppress(asyncio.CancelledError):
        future.exception()
