"""Workers as processes of their own, over one state folder: asked by pipe, killed without warning.

with workers(state_dir, 2) as (one, two):
    one.ask(body); two.ask(body)
    assert one.answer() == two.answer()
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from openmem_hook import config
from openmem_hook.compactor import Compactor
from openmem_hook.gateway.hook import ContextHook
from openmem_hook.gateway.notices import Notices
from tests.conftest import CALL_TYPES, make_key
from tests.harness.outage import TIGHT, from_gateway, sent
from tests.kit.builders import Json
from tests.kit.histories import format_of

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.gateway.worker_processes"])
PATIENCE_S = 60.0


def _serve(pipe: Connection, state_dir: Path, settings: Json) -> None:
    base = config.load(settings, {"OPENMEM_STATE_DIR": str(state_dir), "HOME": str(state_dir)})
    hook = ContextHook(base, Compactor(state_dir / "context"), Notices())
    with asyncio.Runner() as runner, contextlib.suppress(EOFError):
        while True:
            name, given = pipe.recv()
            pipe.send(runner.run(_WORK[name](hook, *given)))
    hook.compactor.close()


async def _requests(hook: ContextHook, at: float, asked: list[tuple[Json, str, str]]) -> tuple[list[Json], int]:
    """What goes to the provider for bodies that arrive together at this time; how many failed open in all."""
    await asyncio.sleep(at - time.monotonic())
    outs = await asyncio.gather(*(_request(hook, *one) for one in asked))
    return outs, hook.notices.failures


async def _request(hook: ContextHook, body: Json, session: str, agent: str) -> Json:
    fmt = format_of(body)
    data = from_gateway(body, fmt, session, f"{session}{agent}")
    if agent:
        data["proxy_server_request"]["headers"]["x-claude-code-agent-id"] = agent
    return sent(await hook.async_pre_call_hook(make_key(), None, data, CALL_TYPES[fmt]), body)


async def _report(hook: ContextHook, session: str, tokens: int) -> int:
    kwargs = {"litellm_call_id": session, "call_type": "anthropic_messages"}
    await hook.async_log_success_event(kwargs, {"usage": {"prompt_tokens": tokens}}, None, None)
    return hook.notices.failures


async def _hold(hook: ContextHook, path: Path) -> bool:
    """Begin to write and never end."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    db.execute("DELETE FROM edits")
    _HELD.append(db)
    return True


_HELD: list[sqlite3.Connection] = []
_WORK: dict[str, Any] = {"requests": _requests, "report": _report, "hold": _hold}


class Worker:
    def __init__(self, state_dir: Path, settings: Json | None = None) -> None:
        self.pipe, theirs = _FORKS.Pipe()
        self.process = _FORKS.Process(target=_serve, args=(theirs, state_dir, settings or TIGHT), daemon=True)
        self.process.start()
        theirs.close()
        self.failures = 0

    def ask(self, *bodies: Json, session: str = "session-1", agents: tuple[str, ...] = (), at: float = 0.0) -> None:
        """Requests that arrive together; `at` is a time that all processes share."""
        names = agents or ("",) * len(bodies)
        self.pipe.send(("requests", (at, [(body, session, name) for body, name in zip(bodies, names, strict=True)])))

    def answers(self) -> list[Json]:
        outs, self.failures = self._answer()
        found: list[Json] = outs
        return found

    def answer(self) -> Json:
        return self.answers()[0]

    def report(self, tokens: int, session: str = "session-1") -> None:
        self.pipe.send(("report", (session, tokens)))
        self.failures = self._answer()

    def hold(self, path: Path) -> None:
        self.pipe.send(("hold", (path,)))
        self._answer()

    def _answer(self) -> Any:
        if not self.pipe.poll(PATIENCE_S):
            raise TimeoutError("the worker says nothing")
        return self.pipe.recv()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def close(self) -> None:
        """It goes in its own time: connections are closed."""
        self.pipe.close()
        self.process.join(PATIENCE_S)
        self.process.kill()


@contextmanager
def workers(state_dir: Path, count: int, settings: Json | None = None) -> Iterator[list[Worker]]:
    made = [Worker(state_dir, settings) for _ in range(count)]
    try:
        yield made
    finally:
        for worker in made:
            worker.close()
