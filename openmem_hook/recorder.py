"""After the call: a usage record for every request, and what reports teach.

A request leaves word of itself under the gateway's call id; its response joins it there. The record, the measured
growth of the thread and the rate of the model are then written behind the request, in threads of their own.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from openmem_hook import tokens
from openmem_hook.compaction.learning import Learned, Sample, learn
from openmem_hook.compaction.record import Event, Thread, UsageWrite
from openmem_hook.formats.usage import Usage
from openmem_hook.store import catalog, names, sessions
from openmem_hook.store.pool import Pool
from openmem_hook.tokens import Calibration

PENDING = 512
"""Requests remembered between the pre-call and the success hook."""
OWED = 16
"""Reports kept a session while its store can't take them."""


@dataclass(frozen=True, slots=True)
class Pending:
    """What the success hook needs to learn from a response; no sample of a request that went out undecided, no thread
    of one that is part of none. `tenant` and `session` are the store's names for them, `session` "" for none."""

    tenant: str
    session: str
    thread: Thread | None
    model: str
    sample: Sample | None = None
    new_cut: bool = False
    estimate: float | None = None
    layout: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


class Recorder:
    """Reports of one store's sessions. `clock` gives seconds since 1970; writes run in `executor`."""

    def __init__(self, pool: Pool, clock: Callable[[], float], executor: Executor) -> None:
        self.pool = pool
        self.clock = clock
        self._executor = executor
        self._pending: OrderedDict[str, Pending] = OrderedDict()
        self._owed: OrderedDict[tuple[str, str], list[tuple[Pending, Usage]]] = OrderedDict()
        self._rates: dict[tuple[str, str], Calibration] = {}
        self._guard = threading.Lock()

    def expect(self, call_id: str, pending: Pending) -> None:
        """A response to this request may come."""
        with self._guard:
            other = self._pending.pop(call_id, None)
            if other is not None and other.tenant != pending.tenant:
                return  # clients may choose call ids: whose response comes first is not known
            self._pending[call_id] = pending
            while len(self._pending) > PENDING:
                self._pending.popitem(last=False)

    def expected(self) -> Mapping[str, Pending]:
        """Requests without a response so far, by call id."""
        with self._guard:
            return dict(self._pending)

    def remembered_rate(self, tenant: str, model: str) -> Calibration:
        """The rate that memory knows, else the family's: no file is touched."""
        return self._rates.get((tenant, model)) or tokens.starting(model)

    def calibration(self, tenant: str, model: str, chars_per_token: float | None) -> Calibration:
        """What this tenant's reports taught about a model, else the setting, else what its family starts with."""
        key = (tenant, model)
        known = self._rates.get(key)
        if known is None:
            known = _read_rate(self.pool.consult(tenant, lambda db: catalog.rate(db, model), None))
            if known is not None:
                if len(self._rates) > PENDING:
                    self._rates.clear()
                self._rates[key] = known
        return known or tokens.starting(model, chars_per_token)

    async def record_response(self, call_id: str, usage: Usage) -> bool:
        """Store a request's usage and learn from it; False where the call is unknown or was recorded before."""
        with self._guard:
            pending = self._pending.pop(call_id, None)
        if pending is None:
            return False
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._record, pending, usage)

    async def record_event(self, tenant: str, event: Event) -> bool:
        """An event of the tenant that belongs to no session (a fail-open, an ignored setting). False where it can't
        be recorded now."""
        folder, now = names.tenant_folder(tenant), self.clock()

        def record(db: sqlite3.Connection) -> bool:
            catalog.record(db, "", [event], now)
            return True

        return await asyncio.get_running_loop().run_in_executor(
            self._executor, self.pool.consult, folder, record, False
        )

    def _record(self, pending: Pending, usage: Usage) -> bool:
        """This report, after those of the session that its store would not take before."""
        place = (pending.tenant, pending.session)
        with self._guard:
            owed = [*self._owed.pop(place, ()), (pending, usage)]
        try:
            while owed:
                self._report(*owed[0])
                del owed[0]
        finally:
            if owed:
                with self._guard:
                    self._owed[place] = [*owed, *self._owed.pop(place, ())][-OWED:]
                    while len(self._owed) > PENDING:
                        self._owed.popitem(last=False)
        return True

    def _report(self, pending: Pending, usage: Usage) -> None:
        now, learned = self.clock(), Learned()
        event = Event("usage", _usage_data(pending, usage))
        if pending.session:
            learned = self._into_session(pending, usage, event, now)
        rates = self._learned_rates(pending, learned)
        lane = None if pending.thread is None else _lane(pending.layout)
        told = (pending.session, [event], now, rates, lane, pending.model)
        self.pool.consult(pending.tenant, lambda cat: catalog.record(cat, *told), None)

    def _into_session(self, pending: Pending, usage: Usage, event: Event, now: float) -> Learned:
        live = self.pool.session(pending.tenant, pending.session)
        with live.used() as db:
            if pending.sample is None or pending.thread is None:
                sessions.add_events(db, [event], now)
                return Learned()
            learned = learn(pending.sample, live.state.reports, usage.prompt_tokens)
            report = _usage_write(pending.sample, pending.thread.id, usage, learned, event, now)
            sessions.record_usage(db, live.state, report)
            return learned

    def _learned_rates(self, pending: Pending, learned: Learned) -> dict[str, str]:
        if learned.calibration is None:
            return {}
        self._rates[(pending.tenant, pending.model)] = learned.calibration
        return {pending.model: learned.calibration.to_json()}


def _usage_data(pending: Pending, usage: Usage) -> dict[str, Any]:
    return {
        **pending.details,
        **usage.as_data(),
        "model": pending.model,
        "thread": "" if pending.thread is None else pending.thread.name,
        "estimate": None if pending.estimate is None else round(pending.estimate),
        "cut": "" if pending.sample is None else pending.sample.cut,
        "new_cut": pending.new_cut,
        "layout": pending.layout,
    }


def _lane(layout: str) -> str:
    """Where a provider keeps what these breakpoints marked: for an hour, for five minutes, or nowhere that we know."""
    return "1h" if "1h" in layout else ("5m" if layout else "")


def _usage_write(sample: Sample, thread: int, usage: Usage, learned: Learned, event: Event, now: float) -> UsageWrite:
    """Filed under a name of its own: clients may choose call ids, and use one again."""
    return UsageWrite(
        call_id=secrets.token_hex(8),
        key=sample.history.keys[-1],
        cut=sample.cut,
        tokens=usage.prompt_tokens,
        overhead=sample.scale.steady_overhead(sample.history),
        family_rate=sample.scale.family_rate,
        measured=learned.measured,
        thread=thread,
        offset=learned.offset,
        event=event,
        now=now,
    )


def _read_rate(stored: str | None) -> Calibration | None:
    try:
        return None if stored is None else Calibration.from_json(stored)
    except ValueError:
        return None
