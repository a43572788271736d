"""The async shell of the request path: load, decide, claim, answer. `recorder` learns from the response.

All work of a request runs in one thread, so that neither SQLite nor a large body holds up the event loop, and ends
at a deadline. What is decided is written only while someone still waits for it: bytes that were never sent are not
recorded as sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from openmem_hook.compaction.decision import Auxiliary, Decision, Opening, ThreadDecision, decide, replay
from openmem_hook.compaction.record import measure_savings
from openmem_hook.compaction.request import Request
from openmem_hook.compaction.write import Event, Savings
from openmem_hook.formats.usage import Usage
from openmem_hook.recorder import Recorder
from openmem_hook.store.database import SessionBusyError
from openmem_hook.store.handshake import Handshake
from openmem_hook.store.store import RequestContext, Store
from openmem_hook.store.yielder import Yielder

CLAIMS = 50
"""Times a decision is made because another worker wrote first; the deadline comes sooner."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What goes out."""

    body: Mapping[str, Any]
    """The very object that came in where nothing was to do."""
    savings: Savings | None = None
    is_trimmed: bool = False
    session: str = ""
    """Name of the session that the events belong to."""
    events: Sequence[Event] = ()


class Compactor:
    """One state folder's decisions. `clock` gives seconds since 1970."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.store = Store(folder, clock)
        self.recorder = Recorder(self.store)

    async def compact_request(self, request: Request) -> Outcome:
        """Decides and writes. Raises sqlite3.Error, OSError, StoreError, SessionBusyError or TimeoutError; then
        nothing was decided and `replay_request` gives what is known."""
        start, seconds = time.perf_counter(), request.settings.deadline_s
        outcome = await self.store.executor.run_decision(seconds, partial(self._compact, request))
        if outcome.events:
            seconds_left = start + seconds - time.perf_counter()
            await self.store.record_events(request, outcome.session, outcome.events, seconds_left)
        self.store.sweep_later(request.settings.ttl_days)
        return outcome

    def _compact(self, request: Request, handshake: Handshake) -> Outcome:
        handshake.check()  # it may have waited too long for a thread
        start = time.perf_counter()
        with self.store.load(request) as context:
            for _ in range(CLAIMS):
                decision = decide(context.inputs(), Yielder)
                if context.claim(decision, handshake):
                    return self._answer(context, decision, start)
        raise SessionBusyError("other workers kept writing to this session")

    async def replay_request(self, request: Request) -> Outcome:
        """The request with the edits that memory knows: none made, no file touched. Raises TimeoutError."""
        return await self.store.executor.run_within("replay", request.settings.deadline_s, self._replay, request)

    def _replay(self, request: Request) -> Outcome:
        start = time.perf_counter()
        context = self.store.load_from_memory(request)
        decision = replay(context.inputs())
        context.remember_sent(decision)
        return self._answer(context, decision, start)

    def _answer(self, context: RequestContext, decision: Decision, start: float) -> Outcome:
        """The outcome, after word of the request was left for its response. `start`: by the performance counter."""
        if isinstance(decision, Opening | Auxiliary):
            self.store.remember_outside_thread(context.request, context.history)
        savings = measure_savings(decision.draft) if isinstance(decision, ThreadDecision) else None
        self.recorder.expect_response(context, decision, savings, time.perf_counter() - start)
        if not isinstance(decision, ThreadDecision):
            return Outcome(decision.body, is_trimmed=decision.is_trimmed)
        session, events = decision.draft.inputs.session, tuple(decision.write.events)
        return Outcome(decision.body, savings, decision.is_trimmed, session, events)

    async def record_response(self, call_id: str, usage: Usage) -> bool:
        """Stores a request's usage and learns from it; False where the call is unknown or was recorded before."""
        return await self.recorder.record_response(call_id, usage)

    def close(self) -> None:
        self.store.close()
