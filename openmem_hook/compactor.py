"""The async shell: load what is known of a session, decide, write, answer; then learn from the response.

All work of a request runs in one worker thread, so that neither SQLite nor a large body holds up the event
loop, and ends at a deadline. What the worker decides is written only while someone still waits for it:
bytes that were never sent are not recorded as sent.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from openmem_hook import tokens
from openmem_hook.compaction import estimate, threads, wording
from openmem_hook.compaction.estimate import Scale
from openmem_hook.compaction.learning import Learned, Sample, learn
from openmem_hook.compaction.pipeline import Draft, Known, Rules, decide, find, finish
from openmem_hook.compaction.record import (
    Adopted,
    Event,
    Savings,
    Thread,
    UsageWrite,
    Write,
    ended_threads,
    events_of,
    rows_of,
    savings_of,
    shown_by_head,
)
from openmem_hook.compaction.threads import derived_id
from openmem_hook.config import Limits, Settings
from openmem_hook.formats import breakpoints
from openmem_hook.formats.decode import decode
from openmem_hook.formats.usage import Usage
from openmem_hook.messages import Adapter, History, Memo
from openmem_hook.store import catalog, names, sessions
from openmem_hook.store.pool import LOCK_S, Live, Pool, SessionBusyError
from openmem_hook.tokens import Calibration

WORKERS = 16
"""Threads for requests in this process: more than cores, since one may wait for a lock."""
CLAIMS = 4
"""Times a decision is made again because another worker wrote first."""
PENDING = 512
"""Requests remembered between the pre-call and the success hook."""
TOUCH_S = 60.0
"""Seconds after which a request renews its session's last-seen time."""
MEMO_SLACK = 2
"""Facts kept a session, as a multiple of its newest history's length."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the edge hands it over. `session_id` is None where the client named none; `tenant` and
    all names in it come from the gateway's authentication; `may_edit` is false where the plugin is off."""

    adapter: Adapter
    body: Mapping[str, Any]
    tenant: str
    session_id: str | None
    agent_thread: str
    agent: str
    model: str
    settings: Settings
    limits: Limits
    call_id: str | None = None
    may_edit: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """The body to send. It is the very object that came in where nothing was to do."""

    body: Mapping[str, Any]
    savings: Savings | None = None
    trimmed: bool = False


@dataclass(frozen=True, slots=True)
class Pending:
    """What the success hook needs to learn from a response."""

    live: Live
    sample: Sample
    new_cut: bool
    thread: Thread
    model: str
    estimate: float
    layout: str
    details: Mapping[str, Any] = field(default_factory=dict)


class Ticket:
    """Whether anyone still waits for a decision. Taken once, by the writer or by the one who gave up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder = ""

    def take(self, who: str) -> bool:
        with self._lock:
            self._holder = self._holder or who
            return self._holder == who


class Compactor:
    """One state folder's decisions. `clock` gives seconds since 1970."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.pool = Pool(folder)
        self.clock = clock
        self._executor = ThreadPoolExecutor(WORKERS, thread_name_prefix="openmem")
        self._pending: OrderedDict[str, Pending] = OrderedDict()
        self._rates: dict[tuple[str, str], Calibration] = {}
        self._touched: dict[tuple[str, str], float] = {}
        self._guard = threading.Lock()

    # --- before the call ---------------------------------------------------------------------------------

    async def compact_request(self, request: Request) -> Outcome:
        """Decide and write. Raises sqlite3.Error, OSError, StoreError, SessionBusyError or TimeoutError; then
        nothing was decided and `replay_request` gives what is known."""
        ticket = Ticket()
        work = asyncio.get_running_loop().run_in_executor(self._executor, self._compact, request, ticket)
        try:
            return await asyncio.wait_for(asyncio.shield(work), request.settings.deadline_s)
        except TimeoutError:
            if not ticket.take("gave up"):
                return await work  # already written: it is being sent this way
            work.add_done_callback(_ignore_outcome)
            raise

    def replay_request(self, request: Request) -> Outcome:
        """The request with the edits that memory knows, none made, nothing written."""
        history = decode(request.adapter, request.body, Memo())
        folder, name = self._place(request, history)
        live = None if name is None else self.pool.peek(folder, name)
        if _auxiliary(history, live):
            return self._replayed_aside(request, history, live)
        state = live.state if live is not None else sessions.SessionState()
        place = threads.place(
            history, names.thread_label(request.agent_thread), list(state.threads.values()), state.owner
        )
        known = _known(state, self._calibration(folder, request), 0.0, request.model)
        thread = self._thread(request, history, place, state, known.scale.calibration)
        draft = find(self._draft(request, history, name or "", replace(known), thread, edits=False, memo=Memo()))
        state.sent.update(key for key in draft.history.keys if key not in state.measured)
        return Outcome(finish(draft, request.body), trimmed=draft.standing is not None)

    def _compact(self, request: Request, ticket: Ticket) -> Outcome:
        started = time.perf_counter()
        live_memo = self._memo(request)
        history = decode(request.adapter, request.body, live_memo)
        folder, name = self._place(request, history)
        if name is None:
            return self._without_store(request, history)
        if not request.may_edit and not self.pool.session_path(folder, name).exists():
            return Outcome(request.body)
        live = self.pool.session(folder, name)
        if not live.lock.acquire(timeout=LOCK_S):
            raise SessionBusyError("another request of this session takes too long")
        try:
            return self._with_session(request, history, live, ticket, started)
        finally:
            live.lock.release()

    def _memo(self, request: Request) -> Memo:
        """Facts remembered for the conversation that this request most likely belongs to."""
        if request.session_id is None:
            return Memo()
        folder = names.tenant_folder(request.tenant)
        live = self.pool.peek(folder, names.session_name(request.tenant, request.session_id))
        return Memo() if live is None else live.memo

    def _place(self, request: Request, history: History) -> tuple[str, str | None]:
        """Folder of the tenant and name of the session; no name before an unnamed conversation is anyone's."""
        folder = names.tenant_folder(request.tenant)
        if request.session_id is not None:
            return folder, names.session_name(request.tenant, request.session_id)
        derived = derived_id(history)
        return folder, None if derived is None else names.session_name(request.tenant, derived)

    def _without_store(self, request: Request, history: History) -> Outcome:
        """The first request of a conversation without an id: nothing to keep yet that the next won't bring."""
        note = _note(request) if history.has_tools else 0
        if not note:
            return Outcome(request.body)
        messages = list(history.messages)
        return Outcome(request.adapter.with_note(dict(request.body), messages, wording.NOTES[note]))

    def _with_session(self, request: Request, history: History, live: Live, ticket: Ticket, started: float) -> Outcome:
        db = live.database()
        if _auxiliary(history, live):
            return self._replayed_aside(request, history, live)
        if not request.may_edit:
            return self._replayed_off(request, history, live)
        calibration = self._calibration(live.tenant, request)
        for _ in range(CLAIMS):
            draft, thread, place = self._decided(request, history, live, calibration)
            write = self._write(request, draft, thread, place, live)
            if not (write.empty and thread.id and thread.tip == write.thread.tip):
                self._index(live, write)
                if not self._claim(db, live, write, ticket):
                    sessions.refresh(db, live.state)
                    continue
            thread = live.state.threads[live.state.current[thread.agent]] if not thread.id else thread
            self._touch(live, request)
            return self._outcome(request, draft, live, thread, started)
        raise SessionBusyError("other workers kept writing to this session")

    def _decided(
        self, request: Request, history: History, live: Live, calibration: Calibration
    ) -> tuple[Draft, Thread, threads.Place]:
        state = live.state
        label = names.thread_label(request.agent_thread)
        place = threads.place(history, label, list(state.threads.values()), state.owner)
        if not place.shared or place.shared <= history.lead:
            self._adopt(history, live)
        thread = self._thread(request, history, place, state, calibration)
        known = _known(state, calibration, thread.offset, request.model)
        draft = decide(self._draft(request, history, live.name, known, thread, edits=request.may_edit, memo=live.memo))
        return draft, thread, place

    def _draft(
        self,
        request: Request,
        history: History,
        name: str,
        known: Known,
        thread: Thread,
        *,
        edits: bool,
        memo: Memo,
    ) -> Draft:
        note = wording.NOTES.get(thread.note)
        rules = Rules(thread.result_chars, note, request.limits, edits)
        return Draft(request.adapter, history, rules, known, name, memo)

    def _adopt(self, history: History, live: Live) -> None:
        """A history new to this session may be a fork of another of the tenant: its cut carries over."""
        if live.state.cuts:
            return
        found = self.pool.catalog(live.tenant, lambda db: catalog.find_anchor(db, history.chain))
        if found is None or found[1] == live.name:
            return
        anchor, parent = found
        other = self.pool.session(live.tenant, parent)
        if not other.lock.acquire(timeout=LOCK_S):
            return
        try:
            source = other.database()
            cut = sessions.edits_at(source, anchor)
            swaps = sessions.swaps_for(source, history.keys)
            inherited = other.state.threads.get(other.state.owner.get(anchor, 0))
        finally:
            other.lock.release()
        if cut is not None:
            live.state.cuts[anchor] = cut
            live.state.swaps.update({(swap.key, swap.call_id): swap for swap in swaps})
            live.state.adopted = Adopted(cut, tuple(swaps), inherited)

    def _thread(
        self,
        request: Request,
        history: History,
        place: threads.Place,
        state: sessions.SessionState,
        calibration: Calibration,
    ) -> Thread:
        """The thread a request belongs to, as it will be after it; a new one takes over its parent's rules."""
        tip = history.keys[-1]
        if place.thread:
            known = state.threads[place.thread]
            return replace(
                known, tip=tip if place.extends else known.tip, has_tools=known.has_tools or history.has_tools
            )
        parent = state.threads.get(state.owner.get(history.keys[place.shared - 1], 0)) if place.shared else None
        if parent is None and state.adopted is not None:
            parent = state.adopted.thread
        label = names.thread_label(request.agent_thread)
        return Thread(
            id=0,
            name="agent" if label else "main",
            agent=label,
            root=history.keys[min(history.lead, len(history) - 1)],
            tip=tip,
            has_tools=history.has_tools,
            note=_note(request) if parent is None else parent.note,
            result_chars=_result_chars(request, calibration) if parent is None else parent.result_chars,
            offset=0.0 if parent is None else parent.offset,
        )

    def _write(self, request: Request, draft: Draft, thread: Thread, place: threads.Place, live: Live) -> Write:
        """What this decision writes: new rows with their visibility, edits, events."""
        state, history = live.state, draft.history
        start = history.lead if draft.standing is None else draft.standing.index + 1
        whole = set(range(history.lead)) | set(draft.kept)
        whole |= {
            i
            for i in range(start, len(history))
            if not any((history.keys[i], slot.call_id) in draft.swaps for slot in history.facts[i].results)
        }
        if draft.standing is not None and draft.new_cut is None:
            whole |= shown_by_head(history, draft.standing.index, draft.standing.cut.shown)
        new = [i for i, key in enumerate(history.keys) if key not in state.measured]
        rows = rows_of(draft, new, whole)
        hidden = [k for i, k in enumerate(history.keys) if i not in whole] if draft.new_cut or draft.new_swaps else []
        adopted = state.adopted
        cuts = [cut for cut in (adopted.cut if adopted else None, draft.new_cut) if cut is not None]
        swaps = (*(adopted.swaps if adopted is not None else ()), *draft.new_swaps)
        ended = ended_threads(history, thread, place, state.threads.values())
        now = self.clock()
        return Write(
            thread,
            rows,
            cuts,
            swaps,
            events_of(draft, {"model": request.model, "agent": request.agent}),
            hidden,
            (),
            ended,
            now,
        )

    def _index(self, live: Live, write: Write) -> None:
        anchors = [cut.anchor for cut in write.cuts]
        results = [swap.id for swap in write.swaps]
        if anchors or results:
            self.pool.catalog(live.tenant, lambda db: catalog.index_edits(db, live.name, anchors, results))

    def _claim(self, db: sqlite3.Connection, live: Live, write: Write, ticket: Ticket) -> bool:
        try:
            written = sessions.claim(db, live.state, write, lambda: ticket.take("writer"))
        except (sqlite3.Error, OSError) as error:
            live.file.failed(error)
            raise
        if written and write.events:
            self.pool.catalog(live.tenant, lambda cat: catalog.record(cat, live.name, write.events, self.clock()))
        return written

    def _touch(self, live: Live, request: Request) -> None:
        """The session is in use: told to the catalog once a minute, so that retention never takes it."""
        now, key = self.clock(), (live.tenant, live.name)
        if now - self._touched.get(key, float("-inf")) < TOUCH_S:
            return
        agent, model = request.agent, request.model
        self.pool.catalog(live.tenant, lambda db: catalog.touch(db, live.name, now, agent, model))
        if len(self._touched) > 4 * PENDING:
            self._touched.clear()
        self._touched[key] = now

    def _outcome(self, request: Request, draft: Draft, live: Live, thread: Thread, started: float) -> Outcome:
        body = finish(draft, request.body)
        if len(live.memo.facts) > MEMO_SLACK * len(draft.history) + 64:
            live.memo.facts.clear()
        savings = savings_of(draft)
        if request.call_id:
            self._remember(request, draft, live, thread, body, savings, started)
        return Outcome(body, savings, draft.standing is not None)

    def _remember(
        self,
        request: Request,
        draft: Draft,
        live: Live,
        thread: Thread,
        body: Mapping[str, Any],
        savings: Savings | None,
        started: float,
    ) -> None:
        scale = draft.known.scale
        pending = Pending(
            live=live,
            sample=Sample(
                history=draft.history,
                sent=draft.sent,
                cut="" if draft.standing is None else draft.standing.cut.id,
                start=draft.history.lead if draft.standing is None else draft.standing.index + 1,
                full=estimate.full(draft.history, draft.sent, draft.standing, scale),
                scale=scale,
            ),
            new_cut=draft.new_cut is not None,
            thread=thread,
            model=request.model,
            estimate=draft.estimate,
            layout=breakpoints.layout(body),
            details={
                "agent": request.agent,
                "format": request.adapter.name,
                "messages_in": len(draft.history),
                "saved": 0 if savings is None else savings.before - savings.after,
                "hook_ms": round((time.perf_counter() - started) * 1000, 2),
            },
        )
        with self._guard:
            self._pending[str(request.call_id)] = pending
            while len(self._pending) > PENDING:
                self._pending.popitem(last=False)

    def _replayed_aside(self, request: Request, history: History, live: Live | None) -> Outcome:
        """A title, a probe or a client's own compaction: untouched, but for a cut it can't fit without."""
        if live is None or not live.state.cuts:
            return Outcome(request.body)
        known = _known(live.state, tokens.starting(request.model), 0.0, request.model)
        draft = find(Draft(request.adapter, history, Rules(0, None, request.limits, False), known, live.name, Memo()))
        if draft.standing is None:
            return Outcome(request.body)
        return Outcome(finish(draft, request.body), trimmed=True)

    def _replayed_off(self, request: Request, history: History, live: Live) -> Outcome:
        """Off makes no new edits; active ones are replayed, else a trimmed session would no longer fit."""
        state = live.state
        label = names.thread_label(request.agent_thread)
        place = threads.place(history, label, list(state.threads.values()), state.owner)
        parent = state.threads.get(state.owner.get(history.keys[place.shared - 1], 0)) if place.shared else None
        thread = state.threads.get(place.thread) or parent
        if thread is None:
            return Outcome(request.body)
        known = _known(state, tokens.starting(request.model), 0.0, request.model)
        draft = find(self._draft(request, history, live.name, known, thread, edits=False, memo=live.memo))
        return Outcome(finish(draft, request.body), trimmed=draft.standing is not None)

    def _calibration(self, tenant: str, request: Request) -> Calibration:
        """What this tenant's reports taught about a model, else what its family starts with."""
        key = (tenant, request.model)
        known = self._rates.get(key)
        if known is None:
            stored = self.pool.catalog(tenant, lambda db: catalog.rate(db, request.model))
            known = _read_rate(stored) or tokens.starting(request.model, request.settings.chars_per_token)
            if len(self._rates) > PENDING:
                self._rates.clear()
            self._rates[key] = known
        return known

    # --- after the call ----------------------------------------------------------------------------------

    async def record_response(self, call_id: str, usage: Usage) -> bool:
        """Store a request's usage and learn from it; False where the call is unknown or was recorded before."""
        with self._guard:
            pending = self._pending.pop(call_id, None)
        if pending is None:
            return False
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._record, call_id, pending, usage)

    def _record(self, call_id: str, pending: Pending, usage: Usage) -> bool:
        live, sample = pending.live, pending.sample
        now = self.clock()
        with live.lock:
            db = live.database()
            learned = learn(pending.sample, live.state.reports, usage.prompt_tokens)
            event = Event("usage", _usage_data(pending, usage))
            report = UsageWrite(
                call_id=call_id,
                key=sample.history.keys[-1],
                cut=sample.cut,
                tokens=usage.prompt_tokens,
                overhead=sample.scale.overhead(sample.history),
                measured=learned.measured,
                thread=pending.thread.id,
                offset=learned.offset,
                event=event,
                now=now,
            )
            try:
                fresh = sessions.record_usage(db, live.state, report)
            except (sqlite3.Error, OSError) as error:
                live.file.failed(error)
                raise
        if fresh:
            rates = self._learned_rates(live, pending, learned)
            lane = "1h" if "1h" in pending.layout else ("5m" if pending.layout else "")
            self.pool.catalog(
                live.tenant, lambda cat: catalog.record(cat, live.name, [event], now, rates, lane, pending.model)
            )
        return fresh

    def _learned_rates(self, live: Live, pending: Pending, learned: Learned) -> dict[str, str]:
        if learned.calibration is None:
            return {}
        self._rates[(live.tenant, pending.model)] = learned.calibration
        return {pending.model: learned.calibration.to_json()}

    async def record_event(self, tenant: str, event: Event) -> None:
        """An event of the tenant that belongs to no session (a fail-open, an ignored setting)."""
        folder, now = names.tenant_folder(tenant), self.clock()

        def write() -> None:
            self.pool.catalog(folder, lambda db: catalog.record(db, "", [event], now))

        await asyncio.get_running_loop().run_in_executor(self._executor, write)

    def close(self) -> None:
        self._executor.shutdown(wait=True)
        self.pool.close()


def _usage_data(pending: Pending, usage: Usage) -> dict[str, Any]:
    return {
        **pending.details,
        **usage.as_data(),
        "model": pending.model,
        "thread": pending.thread.name,
        "estimate": round(pending.estimate),
        "cut": pending.sample.cut,
        "new_cut": pending.new_cut,
        "layout": pending.layout,
    }


def _ignore_outcome(work: asyncio.Future[Outcome]) -> None:
    """Nobody waits any more; reading the outcome keeps asyncio from reporting it as unread."""
    if not work.cancelled():
        work.exception()


def _auxiliary(history: History, live: Live | None) -> bool:
    """Titles, probes, a client's own compaction: no tools, and no conversation of its own."""
    if history.has_tools:
        return False
    if live is not None and any(thread.has_tools for thread in live.state.threads.values()):
        return True
    return not any(fact.role == "assistant" for fact in history.facts)


def _note(request: Request) -> int:
    return wording.VERSION if request.settings.standing_instruction and request.may_edit else 0


def _result_chars(request: Request, calibration: Calibration) -> int:
    """The compression limit in characters, fixed for a thread at its first contact."""
    over = request.settings.compress_over_tokens
    if not over or not request.may_edit:
        return 0
    probe = tokens.Sizes(words=1000)
    return int(over * 1000 / max(tokens.estimate(calibration, probe), 1.0))


def _known(state: sessions.SessionState, calibration: Calibration, offset: float, model: str) -> Known:
    scale = Scale(state.reports, state.measured, offset, calibration, tokens.drops_thinking(model))
    return Known(state.digests, state.cuts, state.swaps, state.followers, scale, state.sent)


def _read_rate(stored: str | None) -> Calibration | None:
    try:
        return None if stored is None else Calibration.from_json(stored)
    except ValueError:
        return None
