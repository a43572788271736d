"""What the request path asks of the store: load what a request's decision reads, claim what was decided.

All of it blocks and runs in threads of `Executor`; the event loop meets only the few methods at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from openmem_hook.bounded_map import BoundedMap
from openmem_hook.compaction.active import find_active_edits
from openmem_hook.compaction.decision import Decision, Replay, ThreadDecision
from openmem_hook.compaction.draft import Inputs
from openmem_hook.compaction.edits import Edits
from openmem_hook.compaction.record import visible_cut
from openmem_hook.compaction.request import Request
from openmem_hook.compaction.state import SessionState
from openmem_hook.compaction.threads import Thread, derive_id, is_auxiliary
from openmem_hook.compaction.write import Event
from openmem_hook.formats.decode import decode
from openmem_hook.model import History, HistoryCache
from openmem_hook.store import catalog, names
from openmem_hook.store.database import StoreError
from openmem_hook.store.executor import Executor
from openmem_hook.store.handshake import Handshake
from openmem_hook.store.open_session import LOCK_S, OpenSession
from openmem_hook.store.pool import Pool
from openmem_hook.store.rates import Rates
from openmem_hook.store.retention import Retention
from openmem_hook.store.yielder import Yielder
from openmem_hook.tokens import Calibration

TOUCH_S = 60.0
"""Seconds after which a request renews its session's last-seen time."""
TOUCHES = 2_048
"""Sessions whose last renewal is remembered."""
OUTSIDE_THREADS = 2_048
"""Requests remembered that were part of no thread: the talk without tools that one of them begins has no note."""


@dataclass(slots=True)
class RequestContext:
    """One request with what is known of its session. From `Store.load` it is under the session's lock."""

    store: Store
    request: Request
    history: History
    tenant: str
    """The tenant's folder."""
    session: OpenSession | None
    """None where nothing is stored of this conversation, and nothing has to be."""
    calibration: Calibration
    is_known: bool = True
    """False where the plugin is off and nobody here has seen any of the history."""
    db: sqlite3.Connection | None = None
    """The session's connection, while its lock is held."""
    thread: Thread | None = None
    """As it was stored by `claim`."""

    def inputs(self) -> Inputs:
        """All that the decision depends on, as it is now."""
        session, history = self.session, self.history
        return Inputs(
            request=self.request,
            history=history,
            session="" if session is None else session.name,
            subagent_label=names.subagent_label(self.request.subagent),
            state=SessionState() if session is None else session.state,
            calibration=self.calibration,
            cache=HistoryCache() if session is None else session.cache,
            sent_unstored=frozenset() if session is None else frozenset(session.sent_unstored),
            is_known=self.is_known,
            began_outside_thread=not history.has_tools and self.store.began_outside_thread(self.request, history),
            now=self.store.clock(),
        )

    def claim(self, decision: Decision, handshake: Handshake) -> bool:
        """Makes the decision the one that counts; False where another worker wrote first: load and decide again.

        Raises sqlite3.Error, or NotWaitedForError where the request was sent without it.
        """
        if not isinstance(decision, ThreadDecision) or self.session is None or self.db is None:
            return True
        session, write = self.session, decision.write
        self.thread = write.thread
        if not write.is_empty or write.thread != session.state.threads.get(write.thread.id):
            # New edits are told to the catalog before they are written. Where it can't be told, all of the session's
            # are told again when it can be.
            if write.edits and not self.store.index_edits(session, write.edits):
                session.catalog = None
            try:
                self.thread = session.write(self.db, write, handshake)
            finally:
                self.store.tidy_later(session)
            if self.thread is None:
                self.db = session.refresh()
                return False
        session.state = session.state.with_newest_cut(self.thread.id, visible_cut(decision.draft))
        return True

    def remember_sent(self, decision: Decision) -> None:
        """The request goes out although the store couldn't take it: its messages are raw, or short, for good."""
        if isinstance(decision, Replay) and self.session is not None:
            row_tokens = self.session.state.row_tokens
            self.session.sent_unstored.update([key for key in decision.draft.history.keys if key not in row_tokens])


class Store:
    """One state folder. `clock` gives seconds since 1970."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.pool = Pool(folder)
        self.rates = Rates(self.pool)
        self.executor = Executor()
        self.retention = Retention(self.pool, clock)
        self.sweeping: asyncio.Future[int] | None = None
        self._touched_at = BoundedMap[tuple[str, str], float](TOUCHES)
        self._outside_threads = BoundedMap[tuple[str, bytes], None](OUTSIDE_THREADS)

    # --- load -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def load(self, request: Request) -> Iterator[RequestContext]:
        """The request with its session's state, under the session's lock.

        Raises sqlite3.Error, OSError, StoreError or SessionBusyError.
        """
        history = decode(request.adapter, request.body, self._cache(request), Yielder())
        tenant, name = session_name(request, history)
        # With the plugin off nothing that is new is stored; what is known goes on being stored and its edits are
        # replayed, else a trimmed session would no longer fit. And a title alone makes no session.
        is_known = name is None or request.may_edit or self._knows(history, tenant, name)
        needs_session = name is not None and is_known
        if needs_session and is_auxiliary(history, ()):
            needs_session = self.pool.session_path(tenant, str(name)).exists()
        if name is None or not needs_session:
            calibration = self.rates.in_memory(tenant, request.model)
            yield RequestContext(self, request, history, tenant, None, calibration, is_known)
            return
        session = self.pool.session(tenant, name)
        with session.in_use() as db:
            session.bound_cache(len(history))
            calibration = self.rates.in_memory(tenant, request.model)
            if not is_auxiliary(history, session.state.threads.values()):
                # The catalog hears of the use before anything is written, so that retention never takes the session.
                if self._touch(session, request):
                    db = session.refresh()  # until then it may have deleted it
                calibration = self.rates.of_model(tenant, request.model, request.settings.chars_per_token)
                self._adopt(session, history, names.subagent_label(request.subagent))
            yield RequestContext(self, request, history, tenant, session, calibration, db=db)

    def load_from_memory(self, request: Request) -> RequestContext:
        """The request with what memory knows of its session: no file is touched, no lock is waited for."""
        history = decode(request.adapter, request.body, self._cache(request))
        tenant, name = session_name(request, history)
        session = None
        if name is not None:
            look_up = self.pool.get_or_create if request.may_edit else self.pool.peek
            session = look_up(tenant, name)
        calibration = self.rates.in_memory(tenant, request.model)
        is_known = session is not None or name is None
        return RequestContext(self, request, history, tenant, session, calibration, is_known)

    def _cache(self, request: Request) -> HistoryCache:
        """Facts remembered for the conversation that this request most likely belongs to."""
        if request.session_id is None:
            return HistoryCache()
        name = names.session_name(request.tenant, request.session_id)
        session = self.pool.peek(names.tenant_folder(request.tenant), name)
        return HistoryCache() if session is None else session.cache

    def _knows(self, history: History, tenant: str, name: str) -> bool:
        """Whether this session, or a parent of it, has seen any of the history."""
        if self.pool.session_path(tenant, name).exists():
            session = self.pool.session(tenant, name)
            with session.lock_in_time():
                session.refresh()
                state = session.state
            if any(key in state.owners for key in history.keys[history.lead :]):
                return True
            return find_active_edits(history, state.edits, state.followers, state.row_keys)[1].trim is not None
        if not self.pool.catalog_path(tenant).exists():
            return False
        match = self.pool.try_catalog(tenant, lambda db: catalog.find_anchor(db, history.chain, name), None)
        return match is not None

    def _adopt(self, session: OpenSession, history: History, subagent_label: str) -> None:
        """A history that is new to this session may be a fork of another of the tenant: its edits carry over. A parent
        that can't be read now is no reason to wait: the fork then starts anew."""
        if not session.state.is_new(history, subagent_label):
            return
        tenant, name = session.tenant, session.name
        match = self.pool.try_catalog(tenant, lambda db: catalog.find_anchor(db, history.chain, name), None)
        if match is None or not self.pool.session_path(tenant, match[1]).exists():
            return
        parent = self.pool.session(tenant, match[1])
        if not parent.lock.acquire(timeout=LOCK_S / 2):
            return
        try:
            parent.refresh()
            session.state = session.state.adopt(history, match[0], parent.state)
        except (sqlite3.Error, OSError, StoreError) as error:
            self.pool.on_catalog_error(error)
        finally:
            parent.lock.release()

    # --- the catalog ------------------------------------------------------------------------------------------

    def _touch(self, session: OpenSession, request: Request) -> bool:
        """The session is in use: told to the catalog once a minute. True where it was told now."""
        now, key = self.clock(), (session.tenant, session.name)
        if now - self._touched_at.get(key, float("-inf")) < TOUCH_S and session.catalog is not None:
            return False

        def tell(db: sqlite3.Connection) -> bool:
            catalog.touch(db, session.name, now, request.agent, request.model, request.project)
            if session.catalog is not db:  # a catalog that was lost learns again what this session has
                catalog.index_edits(db, session.name, session.state.edits)
                session.catalog = db
            return True

        if not self.pool.try_catalog(session.tenant, tell, False):
            return False
        self._touched_at.put(key, now)
        return True

    def index_edits(self, session: OpenSession, edits: Edits) -> bool:
        """False where the catalog can't be told now."""

        def tell(db: sqlite3.Connection) -> bool:
            catalog.index_edits(db, session.name, edits)
            return True

        return self.pool.try_catalog(session.tenant, tell, False)

    # --- requests that are part of no thread ------------------------------------------------------------------

    def remember_outside_thread(self, request: Request, history: History) -> None:
        if not history.has_tools:
            self._outside_threads.put((request.tenant, history.keys[-1]), None)

    def began_outside_thread(self, request: Request, history: History) -> bool:
        """Whether the history goes on from a request that was part of no thread."""
        return any((request.tenant, key) in self._outside_threads for key in history.keys)

    # --- behind requests --------------------------------------------------------------------------------------

    def tidy_later(self, session: OpenSession) -> None:
        if session.chores.due and not session.chores.is_running:
            session.chores.is_running = True
            self.executor.submit("after", session.tidy)

    async def record_events(self, request: Request, session: str, events: Sequence[Event], seconds: float) -> None:
        """The tenant's catalog counts events too. The request doesn't wait for it beyond so many seconds."""
        tenant, now = names.tenant_folder(request.tenant), self.clock()
        tell = lambda db: catalog.record(db, session, events, now)  # noqa: E731
        await self.executor.run_briefly("after", seconds, self.pool.try_catalog, tenant, tell, None)

    def sweep_later(self, ttl_days: int) -> None:
        """Once an hour, behind a request, old sessions go."""
        if self.retention.is_due(ttl_days):
            self.sweeping = self.executor.start("sweep", self.retention.sweep, ttl_days)

    def close(self) -> None:
        self.retention.stop()
        self.executor.close()
        self.pool.close()


def session_name(request: Request, history: History) -> tuple[str, str | None]:
    """Folder of the tenant and name of the session; no name before an unnamed conversation is anyone's."""
    tenant = names.tenant_folder(request.tenant)
    client_id = derive_id(history) if request.session_id is None else request.session_id
    return tenant, None if client_id is None else names.session_name(request.tenant, client_id)
