"""After the call: a usage record for every request, and what reports teach.

A request leaves word of itself under the gateway's call id; its response joins it there. The record, the measured
growth of the thread and the rate of the model are then written behind the request.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from openmem_hook.bounded_map import BoundedMap
from openmem_hook.compaction import estimate
from openmem_hook.compaction.decision import Auxiliary, Decision, Opening, Passthrough, Replay, ThreadDecision
from openmem_hook.compaction.draft import Break, Draft
from openmem_hook.compaction.learning import Lesson, Sample, learn
from openmem_hook.compaction.threads import Thread
from openmem_hook.compaction.write import Event, Savings, UsageWrite
from openmem_hook.formats import breakpoints
from openmem_hook.formats.usage import Usage
from openmem_hook.store import catalog, names, session
from openmem_hook.store.pool import CATALOG_ERRORS
from openmem_hook.store.store import RequestContext, Store

OPEN_CALLS = 512
"""Requests remembered between the pre-call and the success hook."""
UNSTORED_REPORTS = 16
"""Reports kept a session while its store can't take them."""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A request without a response so far: what its report will be recorded under, and what it teaches."""

    tenant: str
    """The tenant's folder."""
    session: str
    """The session's name, "" for none."""
    thread: Thread | None
    """None for a request that is part of none."""
    model: str
    report_id: str = ""
    """Files its report, once: clients may choose call ids, and use one again."""
    sample: Sample | None = None
    """None for a request that went out undecided."""
    new_cut: bool = False
    estimate: float | None = None
    """Prompt tokens."""
    layout: str = ""
    """Where its cache breakpoints are."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What else its usage record says."""


class Recorder:
    """Reports of one store's sessions."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._calls = BoundedMap[str, OpenCall](OPEN_CALLS)
        self._reports = BoundedMap[tuple[str, str], list[tuple[OpenCall, Usage]]](OPEN_CALLS)

    # --- before the call --------------------------------------------------------------------------------------

    def expect_response(
        self, context: RequestContext, decision: Decision, savings: Savings | None, hook_s: float
    ) -> None:
        """A response to this request may come. `savings`: of a thread's request; `hook_s`: seconds that the decision
        took."""
        request = context.request
        if not request.call_id or isinstance(decision, Passthrough):
            return
        tenant, name = context.tenant, "" if context.session is None else context.session.name
        about = {"agent": request.agent, "format": request.adapter.name}
        match decision:
            case ThreadDecision(_, draft, _):
                call = _open_call(context, draft, breakpoints.layout(decision.body), savings, hook_s)
            case Replay(_, draft):
                call = OpenCall(tenant, name, draft.thread, request.model)
            case Opening() | Auxiliary():
                call = OpenCall(tenant, name, None, request.model, details=about)
        call = replace(call, report_id=secrets.token_hex(8))
        with self._lock:
            other = self._calls.pop(request.call_id)
            if other is None or other.tenant == tenant:
                self._calls.put(request.call_id, call)
            # Else clients chose the same id: whose response comes first is not known.

    def open_call(self, call_id: str) -> OpenCall | None:
        """The request of this id, if no response to it was recorded yet."""
        return self._calls.get(call_id)

    # --- after it ---------------------------------------------------------------------------------------------

    async def record_response(self, call_id: str, usage: Usage) -> bool:
        """Store a request's usage and learn from it; False where the call is unknown or was recorded before."""
        call = self._calls.pop(call_id)
        return call is not None and await self._store.executor.run("after", self._record, call, usage)

    async def record_event(self, tenant: str, event: Event) -> bool:
        """An event of the tenant that belongs to no session (a fail-open, an ignored setting). False where it can't
        be recorded now."""
        folder, now = names.tenant_folder(tenant), self._store.clock()

        def record(db: sqlite3.Connection) -> bool:
            catalog.record(db, "", [event], now)
            return True

        return await self._store.executor.run("after", self._store.pool.try_catalog, folder, record, False)

    def _record(self, call: OpenCall, usage: Usage) -> bool:
        """This report, after those of the session that its store would not take before."""
        place = (call.tenant, call.session)
        with self._lock:
            waiting = [*self._reports.pop(place, []), (call, usage)]
        try:
            while waiting:
                self._record_one(*waiting[0])
                del waiting[0]
        except CATALOG_ERRORS:
            with self._lock:
                self._reports.put(place, [*waiting, *self._reports.pop(place, [])][-UNSTORED_REPORTS:])
            raise
        return True

    def _record_one(self, call: OpenCall, usage: Usage) -> None:
        now, lesson = self._store.clock(), Lesson()
        event = Event("usage", _usage_data(call, usage))
        if call.session:
            lesson = self._record_in_session(call, usage, event, now)
        rates = {}
        if lesson.calibration is not None:
            self._store.rates.remember(call.tenant, call.model, lesson.calibration)
            rates[call.model] = lesson.calibration.to_json()
        lane = None if call.thread is None else _lane(call.layout)
        entry = (call.session, [event], now, rates, lane, call.model)
        self._store.pool.try_catalog(call.tenant, lambda db: catalog.record(db, *entry), None)

    def _record_in_session(self, call: OpenCall, usage: Usage, event: Event, now: float) -> Lesson:
        open_session = self._store.pool.session(call.tenant, call.session)
        with open_session.in_use() as db:
            if call.sample is None or call.thread is None:
                session.add_events(db, [event], now)
                return Lesson()
            lesson = learn(call.sample, open_session.state.reports, usage.prompt_tokens)
            report = _usage_write(call.report_id, call.sample, call.thread.id, usage, lesson, event, now)
            open_session.record_usage(db, report)
            return lesson


def _open_call(context: RequestContext, draft: Draft, layout: str, savings: Savings | None, hook_s: float) -> OpenCall:
    request = context.request
    # Kept until the response comes: without the messages, and without the session's maps, which the state has then.
    sample = Sample(
        history=replace(draft.history, messages=()),
        outgoing=draft.outgoing,
        cut_id=draft.edits.cut_id,
        first_paid=estimate.find_first_paid(draft.history, draft.edits),
        whole=estimate.estimate_whole(draft.history, draft.outgoing, draft.edits, draft.costs),
        costs=replace(draft.costs, reports={}, row_tokens={}),
    )
    return OpenCall(
        tenant=context.tenant,
        session=draft.inputs.session,
        thread=context.thread,
        model=request.model,
        sample=sample,
        new_cut=isinstance(draft.verdict, Break),
        estimate=draft.tokens,
        layout=layout,
        details={
            "agent": request.agent,
            "format": request.adapter.name,
            "messages_in": len(draft.history),
            "saved": 0 if savings is None else savings.before - savings.after,
            "hook_ms": round(hook_s * 1000, 2),
        },
    )


def _usage_data(call: OpenCall, usage: Usage) -> dict[str, Any]:
    return {
        **call.details,
        **usage.as_data(),
        "model": call.model,
        "thread": "" if call.thread is None else call.thread.name,
        "estimate": None if call.estimate is None else round(call.estimate),
        "cut": "" if call.sample is None else call.sample.cut_id,
        "new_cut": call.new_cut,
        "layout": call.layout,
    }


def _lane(layout: str) -> str:
    """Where a provider keeps what these breakpoints marked: for an hour, for five minutes, or nowhere that we know."""
    return "1h" if "1h" in layout else ("5m" if layout else "")


def _usage_write(
    report_id: str, sample: Sample, thread: int, usage: Usage, lesson: Lesson, event: Event, now: float
) -> UsageWrite:
    return UsageWrite(
        report_id=report_id,
        key=sample.history.keys[-1],
        cut=sample.cut_id,
        tokens=usage.prompt_tokens,
        overhead=sample.costs.of_steady_overhead(sample.history),
        family_rate=sample.costs.family_rate,
        row_tokens=lesson.row_tokens,
        thread=thread,
        offset=lesson.offset,
        event=event,
        now=now,
    )
