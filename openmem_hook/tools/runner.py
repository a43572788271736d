"""Takes calls of the tools and answers them, whichever way they came in.

A caller is a tenant, known by its folder's name, and everything is looked up inside that folder; so what is another
tenant's and what does not exist can't be told apart. Calls have lanes of threads and
read-only connections of their own; only SQL over a session whose full-text index lags behind first has the hook's own
connection index it.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from openmem_hook.store.database import SessionBusyError, StoreError, TooSlowError
from openmem_hook.store.executor import Executor
from openmem_hook.store.pool import Pool
from openmem_hook.store.sandbox import RefusedError
from openmem_hook.tools.arguments import ArgumentError, check, make_printable
from openmem_hook.tools.table import TOOLS
from openmem_hook.tools.tool import Answer, Call, Caller, NotFoundError

LOOP_CALLS = 4
"""Calls at the same time that run on the event loop: each of them has connections with a thread of their own."""


class ToolRunner:
    """Answers calls from one state folder, for one event loop at a time."""

    def __init__(self, pool: Pool, executor: Executor, clock: Callable[[], float] = time.time) -> None:
        """`clock` gives seconds since 1970. Calls that block run in the lane `tool`."""
        self.pool = pool
        self._executor = executor
        self._clock = clock
        self._on_loop = asyncio.Semaphore(LOOP_CALLS)

    async def call(self, caller: Caller, name: str, arguments: Mapping[str, Any] | None) -> Answer:
        """The tool's answer; one that says what to send instead where the call can't be answered."""
        tool = TOOLS.get(name)
        if tool is None:
            return Answer(f"no tool {make_printable(name)}; there are {', '.join(TOOLS)}", is_error=True)
        try:
            call = Call(caller, check(arguments, tool.properties), self.pool, self._clock(), self._executor)
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
        return str(await self._executor.run("tool", answer, call))
