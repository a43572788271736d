"""Takes calls of the tools and answers them, whichever way they came in.

A caller is a tenant, known by its folder's name, and everything is looked up inside that folder; so what is another
tenant's and what does not exist can't be told apart. Calls share neither the hook's threads nor its connections.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from openmem_hook.store.database import StoreError, TooSlowError
from openmem_hook.store.pool import Pool, SessionBusyError
from openmem_hook.store.sandbox import RefusedError
from openmem_hook.tools.arguments import ArgumentError, check, make_printable
from openmem_hook.tools.table import TOOLS
from openmem_hook.tools.tool import Answer, Call, Caller, NotFoundError

WORKERS = 4
"""Calls that may block at the same time, and as many that may not: each of these has connections with a thread of
their own."""
SEARCH_WORKERS = 2
"""Threads that all searches over several sessions share: the store answers without the interpreter's lock."""


class ToolRunner:
    """Answers calls from one state folder, for one event loop at a time."""

    def __init__(self, pool: Pool, clock: Callable[[], float] = time.time) -> None:
        """`clock` gives seconds since 1970."""
        self.pool = pool
        self._clock = clock
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="openmem-tools")
        self._search_workers = ThreadPoolExecutor(SEARCH_WORKERS, thread_name_prefix="openmem-search")
        self._on_loop = asyncio.Semaphore(WORKERS)

    async def call(self, caller: Caller, name: str, arguments: Mapping[str, Any] | None) -> Answer:
        """The tool's answer; one that says what to send instead where the call can't be answered."""
        tool = TOOLS.get(name)
        if tool is None:
            return Answer(f"no tool {make_printable(name)}; there are {', '.join(TOOLS)}", is_error=True)
        try:
            call = Call(
                caller,
                check(arguments, tool.properties),
                self.pool,
                self._clock(),
                self._workers,
                self._search_workers,
            )
            text = await self._run(tool.answer, call)
        except (ArgumentError, NotFoundError, RefusedError) as error:
            return Answer(f"{name}: {error}", is_error=True)
        except TooSlowError:
            advice = "it took too long: narrow it with session_id, role or since, or use rarer words"
            return Answer(f"{name}: {advice}", is_error=True)
        except (StoreError, SessionBusyError, OSError):
            return Answer(f"{name}: the store can't be read at this moment; try again", is_error=True)
        # What is stored may hold lone surrogates, which no transport takes.
        return Answer(text.encode("utf-8", "replace").decode())

    async def _run(self, answer: Callable[[Call], str | Awaitable[str]], call: Call) -> str:
        if inspect.iscoroutinefunction(answer):
            async with self._on_loop:
                return str(await answer(call))
        return str(await asyncio.get_running_loop().run_in_executor(self._workers, answer, call))

    def close(self) -> None:
        """Wait for the calls that block, and end their threads."""
        self._workers.shutdown(wait=True)
        self._search_workers.shutdown(wait=True)
