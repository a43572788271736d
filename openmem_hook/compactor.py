"""The async shell: load what is known of a session, decide, write, answer. `recorder` learns from the response.

All work of a request runs in one worker thread, so that neither SQLite nor a large body holds up the event
loop, and ends at a deadline. What the worker decides is written only while someone still waits for it:
bytes that were never sent are not recorded as sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openmem_hook import tokens
from openmem_hook.compaction import estimate, threads, wording
from openmem_hook.compaction.estimate import Scale
from openmem_hook.compaction.learning import Sample
from openmem_hook.compaction.pipeline import Draft, Known, Rules, decide, find, finish
from openmem_hook.compaction.record import (
    Adopted,
    Event,
    Savings,
    Thread,
    Write,
    ended_threads,
    events_of,
    hidden_by,
    rows_of,
    savings_of,
    shown_whole,
)
from openmem_hook.compaction.standing import find_standing
from openmem_hook.compaction.threads import derived_id
from openmem_hook.formats import breakpoints
from openmem_hook.formats.decode import decode
from openmem_hook.formats.usage import Usage
from openmem_hook.limits import Limits
from openmem_hook.model import Adapter, History, HistoryCache
from openmem_hook.recorder import Pending, Recorder
from openmem_hook.retention import Retention
from openmem_hook.settings import Settings
from openmem_hook.store import catalog, names, sessions
from openmem_hook.store.breather import Breather
from openmem_hook.store.database import StoreError
from openmem_hook.store.pool import LOCK_S, Live, Pool, SessionBusyError
from openmem_hook.store.waiting import Ticket
from openmem_hook.tokens import Calibration

WORKERS = 16
"""Threads for requests in this process: more than cores, since one may wait for a lock."""
REPLAYS = 2
AFTER = 4
"""Threads for what is written behind requests."""
CLAIMS = 50
"""Times a decision is made because another worker wrote first; the deadline comes sooner."""
COMMIT_S = 0.25
"""Seconds beyond the deadline that a decision gets when it is being committed."""
TOUCH_S = 60.0
"""Seconds after which a request renews its session's last-seen time."""
TOUCHES = 2_048
"""Sessions whose last renewal is remembered."""
PLAIN = 2_048
"""Requests remembered that were no part of a thread: the talk without tools that one of them begins has no note."""
MEMO_SLACK = 2
"""Facts kept a session, as a multiple of its newest history's length."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the edge hands it over. `session_id` is None where the client named none; `tenant` and
    all names in it come from the gateway's authentication; `may_edit` is false where the plugin is off; `project` is a
    hash of what the client calls its own, "" for nothing."""

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
    project: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The body to send. It is the very object that came in where nothing was to do. `events` of the session."""

    body: Mapping[str, Any]
    savings: Savings | None = None
    trimmed: bool = False
    session: str = ""
    events: Sequence[Event] = ()


class Compactor:
    """One state folder's decisions. `clock` gives seconds since 1970."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.pool = Pool(folder)
        self.clock = clock
        self._executor = ThreadPoolExecutor(WORKERS, thread_name_prefix="openmem")
        self._replays = ThreadPoolExecutor(REPLAYS, thread_name_prefix="openmem-replay")
        self._after = ThreadPoolExecutor(AFTER, thread_name_prefix="openmem-after")
        self.recorder = Recorder(self.pool, clock, self._after)
        self._touched: dict[tuple[str, str], float] = {}
        self._plain: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        self._retention = Retention(self.pool, clock)
        self.sweeping: asyncio.Future[int] | None = None

    # --- before the call ---------------------------------------------------------------------------------

    async def compact_request(self, request: Request) -> Outcome:
        """Decide and write. Raises sqlite3.Error, OSError, StoreError, SessionBusyError or TimeoutError; then
        nothing was decided and `replay_request` gives what is known."""
        ticket, started = Ticket(), time.perf_counter()
        work = asyncio.get_running_loop().run_in_executor(self._executor, self._compact, request, ticket)
        work.add_done_callback(_ignore_outcome)
        try:
            outcome = await self._in_time(work, ticket, request.settings.deadline_s)
        except asyncio.CancelledError:
            ticket.go()
            raise
        if outcome.events:
            await self._tell(request, outcome, started + request.settings.deadline_s)
        self._sweep(request.settings.ttl_days)
        return outcome

    async def _tell(self, request: Request, outcome: Outcome, until: float) -> None:
        """The tenant's catalog counts events too. The request doesn't wait for it beyond its deadline."""
        folder, now = names.tenant_folder(request.tenant), self.clock()

        def record() -> None:
            self.pool.consult(folder, lambda db: catalog.record(db, outcome.session, outcome.events, now), None)

        work = asyncio.get_running_loop().run_in_executor(self._after, record)
        work.add_done_callback(_ignore_outcome)
        await asyncio.wait({work}, timeout=max(until - time.perf_counter(), 0.0))

    async def _in_time(self, work: asyncio.Future[Outcome], ticket: Ticket, deadline: float) -> Outcome:
        """The outcome when it comes before the deadline, or soon after where it is being committed. Once it is
        committed nothing but memory is left to wait for."""
        for seconds, patient in ((deadline, True), (COMMIT_S, False)):
            await asyncio.wait({work}, timeout=seconds)
            if not work.done() and ticket.give_up(patient):
                raise TimeoutError(f"not decided within {deadline:g} s")
            if work.done():
                break
        return await asyncio.shield(work)

    def _sweep(self, ttl_days: int) -> None:
        """Once an hour, behind the request, old sessions go."""
        if self._retention.due(ttl_days):
            loop = asyncio.get_running_loop()
            self.sweeping = loop.run_in_executor(self._executor, self._retention.sweep, ttl_days)
            self.sweeping.add_done_callback(_ignore_outcome)

    async def replay_request(self, request: Request) -> Outcome:
        """The request with the edits that memory knows: none made, no file touched. It has threads of its own, since
        a store that hangs may hold all others."""
        work = asyncio.get_running_loop().run_in_executor(self._replays, self._replay, request)
        work.add_done_callback(_ignore_outcome)
        return await asyncio.wait_for(asyncio.shield(work), request.settings.deadline_s)

    def _replay(self, request: Request) -> Outcome:
        history = decode(request.adapter, request.body, self._memo(request))
        folder, name = self._place(request, history)
        if name is None:
            return self._without_store(request, history)
        live = self.pool.remembered(folder, name) if request.may_edit else self.pool.peek(folder, name)
        if live is None:
            return Outcome(request.body)
        state = live.state
        if _auxiliary(history, live):
            return self._replayed_aside(request, history, live)
        calibration = self.recorder.remembered_rate(folder, request.model)
        history, place, thread = self._placed(request, history, state, calibration)
        if not (request.may_edit or place.thread or place.shared > history.lead):
            return self._replayed_aside(request, history, live)
        known = _known(state, calibration, thread.offset, request.model)
        draft = find(self._draft(request, history, live.name, known, thread, edits=False, memo=live.memo))
        state.sent.update(key for key in draft.history.keys if key not in state.measured)
        if request.call_id:
            self.recorder.expect(request.call_id, Pending(folder, live.name, thread, request.model))
        return Outcome(finish(draft, request.body), trimmed=draft.standing is not None)

    def _compact(self, request: Request, ticket: Ticket) -> Outcome:
        if ticket.over:
            raise sessions.AbandonedError  # it waited too long for a thread
        started = time.perf_counter()
        history = decode(request.adapter, request.body, self._memo(request), Breather())
        folder, name = self._place(request, history)
        if name is None:
            return self._without_store(request, history)
        if not request.may_edit and self._is_strange(folder, name, history):
            return Outcome(request.body)
        if _auxiliary(history, None) and not self.pool.session_path(folder, name).exists():
            self._pass(request, history)  # a title alone makes no session
            return Outcome(request.body)
        live = self.pool.session(folder, name)
        with live.used():
            return self._with_session(request, history, live, ticket, started)

    def _memo(self, request: Request) -> HistoryCache:
        """Facts remembered for the conversation that this request most likely belongs to."""
        if request.session_id is None:
            return HistoryCache()
        folder = names.tenant_folder(request.tenant)
        live = self.pool.peek(folder, names.session_name(request.tenant, request.session_id))
        return HistoryCache() if live is None else live.memo

    def _place(self, request: Request, history: History) -> tuple[str, str | None]:
        """Folder of the tenant and name of the session; no name before an unnamed conversation is anyone's."""
        folder = names.tenant_folder(request.tenant)
        if request.session_id is not None:
            return folder, names.session_name(request.tenant, request.session_id)
        derived = derived_id(history)
        return folder, None if derived is None else names.session_name(request.tenant, derived)

    def _pass(self, request: Request, history: History, session: str = "") -> None:
        """A request that is no part of a thread, and goes out as it came, has a usage record too."""
        if not history.has_tools:
            self._plain[(request.tenant, history.keys[-1])] = None
            while len(self._plain) > PLAIN:
                self._plain.popitem(last=False)
        if request.call_id:
            about = {"agent": request.agent, "format": request.adapter.name}
            pending = Pending(names.tenant_folder(request.tenant), session, None, request.model, details=about)
            self.recorder.expect(request.call_id, pending)

    def _first_note(self, request: Request, history: History) -> int:
        """The note of a new thread: none where a talk without tools began with a request that went out as it came."""
        began = not history.has_tools and any((request.tenant, key) in self._plain for key in history.keys)
        return 0 if began else _note(request)

    def _without_store(self, request: Request, history: History) -> Outcome:
        """The first request of a conversation without an id: nothing to keep yet that the next won't bring."""
        self._pass(request, history)
        note = _note(request) if history.has_tools else 0
        if not note:
            return Outcome(request.body)
        messages = list(history.messages)
        return Outcome(request.adapter.with_note(dict(request.body), messages, wording.NOTES[note]))

    def _with_session(self, request: Request, history: History, live: Live, ticket: Ticket, started: float) -> Outcome:
        db = live.database()
        live.longest = max(live.longest, len(history))
        if len(live.memo.facts) > MEMO_SLACK * live.longest + 64:
            live.memo.facts.clear()
            live.memo.files.clear()
        if _auxiliary(history, live):
            return self._replayed_aside(request, history, live)
        if self._touch(live, request):
            db = live.database()  # retention may have deleted it until it was told
        calibration = self.recorder.calibration(live.tenant, request.model, request.settings.chars_per_token)
        for _ in range(CLAIMS):
            draft, thread, place = self._decided(request, history, live, calibration)
            write = self._write(request, draft, thread, place, live)
            body = finish(draft, request.body)  # before it is recorded as sent
            if not (write.empty and thread == live.state.threads.get(thread.id)):
                self._index(live, write)
                if not self._claim(db, live, write, ticket):
                    db = live.database()
                    continue
            thread = live.state.threads[live.state.current[thread.agent]] if not thread.id else thread
            live.state.sights[thread.id] = _sight(draft)
            return self._outcome(request, draft, body, live, thread, write.events, started)
        raise SessionBusyError("other workers kept writing to this session")

    def _decided(
        self, request: Request, history: History, live: Live, calibration: Calibration
    ) -> tuple[Draft, Thread, threads.Place]:
        placed, place, thread = self._placed(request, history, live.state, calibration)
        if not place.thread and place.shared <= history.lead and self._adopt(history, live):
            placed, place, thread = self._placed(request, history, live.state, calibration)
        known = _known(live.state, calibration, thread.offset, request.model)
        draft = self._draft(request, placed, live.name, known, thread, edits=request.may_edit, memo=live.memo)
        return decide(draft, Breather()), thread, place

    def _placed(
        self, request: Request, history: History, state: sessions.SessionState, calibration: Calibration
    ) -> tuple[History, threads.Place, Thread]:
        """The history with the names its messages have under the standing cut, and the thread it belongs to."""
        label = names.thread_label(request.agent_thread)
        history, _ = find_standing(history, state.cuts, state.followers, state.digests)
        place = threads.place(history, label, list(state.threads.values()), state.owner)
        return history, place, self._thread(request, history, place, state, calibration)

    def _draft(
        self,
        request: Request,
        history: History,
        name: str,
        known: Known,
        thread: Thread,
        *,
        edits: bool,
        memo: HistoryCache,
    ) -> Draft:
        note = wording.NOTES.get(thread.note)
        rules = Rules(thread.result_chars, note, request.limits, edits)
        return Draft(request.adapter, history, rules, known, name, memo)

    def _adopt(self, history: History, live: Live) -> bool:
        """A history new to this session may be a fork of another of the tenant: its edits carry over. True where
        they do. A parent that can't be read now is no reason to wait: the fork then starts anew."""
        if live.state.cuts:
            return False
        found = self.pool.consult(live.tenant, lambda db: catalog.find_anchor(db, history.chain, live.name), None)
        if found is None or not self.pool.session_path(live.tenant, found[1]).exists():
            return False
        other = self.pool.session(live.tenant, found[1])
        if not other.lock.acquire(timeout=LOCK_S / 2):
            return False
        try:
            other.database()
            return _adopted(history, found[0], other.state, live.state)
        except (sqlite3.Error, OSError, StoreError) as error:
            self.pool.trouble(error)
            return False
        finally:
            other.lock.release()

    def _thread(
        self,
        request: Request,
        history: History,
        place: threads.Place,
        state: sessions.SessionState,
        calibration: Calibration,
    ) -> Thread:
        """The thread a request belongs to, as it will be after it; a new one takes over its parent's rules."""
        tip = _tip(history)
        if place.thread:
            known = state.threads[place.thread]
            return replace(
                known, tip=tip if place.extends else known.tip, has_tools=known.has_tools or history.has_tools
            )
        parent = _parent(history, place, state) or state.adopted.thread_of(history.keys)
        label = names.thread_label(request.agent_thread)
        return Thread(
            id=0,
            name="agent" if label else "main",
            agent=label,
            root=history.keys[min(history.lead, len(history) - 1)],
            tip=tip,
            has_tools=history.has_tools,
            note=self._first_note(request, history) if parent is None else parent.note,
            result_chars=_result_chars(request, calibration) if parent is None else parent.result_chars,
            offset=0.0 if parent is None else parent.offset,
        )

    def _write(self, request: Request, draft: Draft, thread: Thread, place: threads.Place, live: Live) -> Write:
        """What this decision writes: new rows with their visibility, edits, events."""
        state, history = live.state, draft.history
        new = [i for i, key in enumerate(history.keys) if key not in state.measured]
        rows = rows_of(draft, new, shown_whole(draft, new), Breather())
        hidden, shown = hidden_by(draft), list[bytes]()
        went = thread.id and state.sights.get(thread.id) != _sight(draft)  # back, or on again; or nobody here knows
        if went and draft.new_cut is None:
            whole = shown_whole(draft, range(len(history)))
            shown = [key for i, key in enumerate(history.keys) if i in whole]
            hidden = [key for i, key in enumerate(history.keys) if i not in whole]
        cuts = (*state.adopted.cuts, *([] if draft.new_cut is None else [draft.new_cut]))
        swaps = (*state.adopted.swaps, *draft.new_swaps)
        ended = ended_threads(history, thread, place, state.threads.values())
        now = self.clock()
        return Write(
            thread,
            rows,
            cuts,
            swaps,
            events_of(draft, {"model": request.model, "agent": request.agent}),
            hidden,
            shown,
            ended,
            now,
        )

    def _index(self, live: Live, write: Write) -> None:
        """New edits are told to the catalog before they are written. Where it can't be told, all of the session's
        are told again when it can be."""
        anchors = [*(cut.anchor for cut in write.cuts), *(swap.key for swap in write.swaps)]
        results = [swap.id for swap in write.swaps]

        def tell(db: sqlite3.Connection) -> bool:
            catalog.index_edits(db, live.name, anchors, results)
            return True

        if (anchors or results) and not self.pool.consult(live.tenant, tell, False):
            live.catalogued = None

    def _claim(self, db: sqlite3.Connection, live: Live, write: Write, ticket: Ticket) -> bool:
        try:
            return sessions.claim(db, live.state, write, ticket)
        finally:
            if live.state.behind and not live.tidying:
                live.tidying = True
                self._after.submit(self._tidy, live)

    def _tidy(self, live: Live) -> None:
        """What requests left over, behind them. A failure leaves the rest to the session's next request."""
        try:
            with contextlib.suppress(sqlite3.Error, OSError, StoreError, SessionBusyError):
                while live.state.behind:
                    with live.used() as db:  # by pieces: requests of the session come in between
                        sessions.tidy(db, live.state)
        finally:
            live.tidying = False

    def _touch(self, live: Live, request: Request) -> bool:
        """The session is in use: told to the catalog once a minute, before anything is written, so that retention
        never takes it. True where it was told now."""
        now, key = self.clock(), (live.tenant, live.name)
        if now - self._touched.get(key, float("-inf")) < TOUCH_S and live.catalogued is not None:
            return False
        agent, model, state = request.agent, request.model, live.state

        def tell(db: sqlite3.Connection) -> bool:
            catalog.touch(db, live.name, now, agent, model, request.project)
            if live.catalogued is not db:  # a catalog that was lost learns again what this session has
                anchors = [*state.cuts, *(key for key, _ in state.swaps)]
                catalog.index_edits(db, live.name, anchors, [swap.id for swap in state.swaps.values()])
                live.catalogued = db
            return True

        if not self.pool.consult(live.tenant, tell, False):
            return False
        if len(self._touched) > TOUCHES:
            self._touched.clear()
        self._touched[key] = now
        return True

    def _outcome(
        self,
        request: Request,
        draft: Draft,
        body: Mapping[str, Any],
        live: Live,
        thread: Thread,
        events: Sequence[Event],
        started: float,
    ) -> Outcome:
        savings = savings_of(draft)
        if request.call_id:
            self._remember(request, draft, live, thread, body, savings, started)
        return Outcome(body, savings, draft.standing is not None, live.name, tuple(events))

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
            tenant=live.tenant,
            session=live.name,
            sample=Sample(
                history=replace(draft.history, messages=()),
                sent=draft.sent,
                cut="" if draft.standing is None else draft.standing.cut.id,
                start=estimate.first_paid(draft.history, draft.standing),
                full=estimate.full(draft.history, draft.sent, draft.standing, scale),
                scale=replace(scale, reports={}, measured={}),
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
        self.recorder.expect(str(request.call_id), pending)

    def _replayed_aside(self, request: Request, history: History, live: Live | None) -> Outcome:
        """A title, a probe or a client's own compaction: untouched, but for edits it can't fit without."""
        self._pass(request, history, "" if live is None else live.name)
        if live is None or not (live.state.cuts or live.state.swaps):
            return Outcome(request.body)
        known = _known(live.state, tokens.starting(request.model), 0.0, request.model)
        draft = find(
            Draft(request.adapter, history, Rules(0, None, request.limits, False), known, live.name, HistoryCache())
        )
        swapped = {key for key, _ in draft.swaps}
        if draft.standing is None and swapped.isdisjoint(draft.history.keys):
            return Outcome(request.body)
        return Outcome(finish(draft, request.body), trimmed=draft.standing is not None)

    def _is_strange(self, folder: str, name: str, history: History) -> bool:
        """Off, and nothing known of this history: it is not looked at, stored or changed. What is known goes on
        being stored and its edits are replayed, else a trimmed session would no longer fit."""
        if self.pool.session_path(folder, name).exists():
            live = self.pool.session(folder, name)
            with live.held():
                live.database()
                owner, cuts = live.state.owner, live.state.cuts
                if any(key in owner for key in history.keys[history.lead :]):
                    return False
                return find_standing(history, cuts, live.state.followers, live.state.digests)[1] is None
        if not self.pool.catalog_path(folder).exists():
            return True
        return self.pool.consult(folder, lambda db: catalog.find_anchor(db, history.chain, name), None) is None

    async def record_response(self, call_id: str, usage: Usage) -> bool:
        """Store a request's usage and learn from it; False where the call is unknown or was recorded before."""
        return await self.recorder.record_response(call_id, usage)

    def close(self) -> None:
        self._retention.stop()
        for executor in (self._executor, self._replays, self._after):
            executor.shutdown(wait=True)
        self.pool.close()


def _ignore_outcome(work: asyncio.Future[Any]) -> None:
    """Nobody waits any more; reading the outcome keeps asyncio from reporting it as unread."""
    if not work.cancelled():
        work.exception()


def _parent(history: History, place: threads.Place, state: sessions.SessionState) -> Thread | None:
    """The thread that a new one branches off from."""
    if place.shared <= history.lead:
        return None
    return state.threads.get(state.owner.get(history.keys[place.shared - 1], 0))


def _adopted(history: History, known: bytes, parent: sessions.SessionState, state: sessions.SessionState) -> bool:
    """Take over a parent's deepest cut and the short results that this history shares with it. `known`: the newest
    shared message that has an edit."""
    cut = next((parent.cuts[key] for key in reversed(history.chain) if key in parent.cuts), None)
    shared = set(history.keys)
    swaps = {place: swap for place, swap in parent.swaps.items() if place[0] in shared}
    if cut is None and not swaps:
        return False
    cuts = {} if cut is None else {cut.anchor: cut}
    thread = parent.threads.get(parent.owner.get(known, 0))
    state.cuts = {**state.cuts, **cuts}
    state.swaps = {**state.swaps, **swaps}
    told = {} if thread is None else {known: thread}
    state.adopted = Adopted(tuple(cuts.values()), tuple(swaps.values()), {**state.adopted.threads, **told})
    return True


def _sight(draft: Draft) -> str:
    """What decides which stored messages a request shows: the cut that stands, "" for none."""
    return "" if draft.standing is None else draft.standing.cut.id


def _tip(history: History) -> bytes:
    """Key of the newest message that clients don't leave out the next time."""
    named = (key for key, fact in zip(reversed(history.keys), reversed(history.facts), strict=True) if fact.identifies)
    return next(named, history.keys[-1])


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
    probe = tokens.Sizes(words=780, marks=220)  # what real tool results are made of
    return int(over * 1000 / max(tokens.estimate(calibration, probe), 1.0))


def _known(state: sessions.SessionState, calibration: Calibration, offset: float, model: str) -> Known:
    scale = Scale(
        state.reports,
        state.measured,
        offset,
        calibration,
        tokens.family_rate(model),
        tokens.drops_thinking(model),
    )
    return Known(state.digests, state.cuts, state.swaps, state.followers, scale, state.sent)
