"""What a tool is, who calls it, and what it answers a call from."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

from openmem_hook.store.executor import Executor
from openmem_hook.store.pool import Pool

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SESSION = {"type": "string", "description": "16 hex characters, from the <openmem-pointer> or a search's answer"}
"""The schema of an argument that is a session's name."""
META = {"anthropic/alwaysLoad": True}
"""Asks clients not to put the tool off until the model looks for it."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, as the way in has established it."""

    tenant: str
    """The folder of the tenant's store, never what the caller says of itself."""
    session: str = ""
    """The name of the caller's own session where its client tells it; it is searched first."""
    project: str = ""
    """The caller's project as a hash, where its client tells it; sessions of it are searched before others."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call is answered with."""

    text: str
    is_error: bool = False
    """Whether the text says why there is no answer, and what to send instead."""


class NotFoundError(Exception):
    """What a call names isn't there, for this caller; says what to send instead."""


def no_session_error(name: str) -> NotFoundError:
    """The error for a session that isn't there or is another tenant's, which can't be told apart."""
    return NotFoundError(
        f"no session {name} is stored for you: take the id from an <openmem-pointer>, or leave session_id out "
        "of smart_compact_search to look in your recent sessions"
    )


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool, and what it is answered from."""

    caller: Caller
    arguments: Mapping[str, Any]
    """Those that say something, all of them of the tool's schema by name; the tool reads their values."""
    pool: Pool
    now: float
    """Seconds since 1970."""
    executor: Executor
    """Threads for work that is too much for the event loop, and for searches over several sessions."""

    @property
    def catalog_path(self) -> Path:
        """The caller's catalog, which may not exist."""
        return self.pool.catalog_path(self.caller.tenant)

    def session_path(self, name: str) -> Path:
        """A session of the caller's tenant, which may not exist."""
        return self.pool.session_path(self.caller.tenant, name)

    def existing_session_path(self, name: str) -> Path:
        """A session of the caller's tenant. Looks at the disk: not for the event loop. Raises NotFoundError."""
        path = self.session_path(name)
        if not path.exists():
            raise no_session_error(name)
        return path

    async def run_in_worker(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """What a function returns that takes too long for the event loop."""
        return await self.executor.run("tool", function, *args)


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as clients list it, and its behaviour."""

    name: str
    description: str
    properties: Mapping[str, Any]
    """JSON Schema of each argument."""
    answer: Callable[[Call], str] | Callable[[Call], Coroutine[Any, Any, str]]
    """The text for a call. A plain function may block: it runs in a worker thread. A coroutine function may not: it
    runs on the event loop. Both raise ArgumentError, NotFoundError, RefusedError, or what reading the store raises."""
    required: Sequence[str] = ()
    """Arguments that every call has to have."""
    meta: Mapping[str, Any] = field(default_factory=lambda: META)
    """What the list of tools says to clients beside the schema (`_meta`)."""

    @property
    def schema(self) -> dict[str, Any]:
        """JSON Schema of all arguments."""
        return {"type": "object", "properties": dict(self.properties), "required": list(self.required)}
