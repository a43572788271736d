"""What the operator hears: a rate-limited line about what is wrong, and events that wait until the store takes them.

No message text, key or id is ever logged: an error is named by its class and, where it is one of ours or SQLite's, by
its own words, which hold none.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

from openmem_hook.bounded_map import BoundedMap
from openmem_hook.compaction.write import Event
from openmem_hook.config import IgnoredSetting
from openmem_hook.gateway import tenant
from openmem_hook.limits import ModelFacts
from openmem_hook.store.database import SessionBusyError, StoreError

LOG = logging.getLogger("openmem")
EVERY_S = 60.0
"""Seconds between two lines about the same kind of failure."""

KINDS = 4096
"""Kinds of lines whose last time is remembered. Clients choose names of models: beyond it no new kind is logged."""

CALLS = 4096
"""Calls remembered between the pre-call and the success hook."""

EVENTS = 256
"""Events that wait for the store; the oldest go first."""

AGENT_CALLS = frozenset(
    {"anthropic_messages", "acompletion", "completion", "aresponses", "responses", "_aresponses_websocket"}
)
"""LiteLLM's types of calls that carry the conversation of an agent."""

_TENANT: ContextVar[str] = ContextVar("openmem_tenant", default=tenant.LOCAL)
"""Whose the request of this task is. A failure before that is known is that of gateways without authentication."""

_WITH_SAFE_WORDS = (sqlite3.Error, StoreError, SessionBusyError, OSError, TimeoutError)
"""Errors whose words hold nothing of a request."""


class Notices:
    """Counts failures, logs lines and keeps events. `clock` gives seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.failures = 0
        """Requests that passed without new changes because something failed."""

        self._clock = clock
        self._logged_at: BoundedMap[str, float] = BoundedMap(KINDS)
        self._not_logged: BoundedMap[str, int] = BoundedMap(KINDS)
        self._calls: BoundedMap[str, None] = BoundedMap(CALLS)
        self._events: deque[tuple[str, Event]] = deque(maxlen=EVENTS)

    # --- failures --------------------------------------------------------------------------------------------

    def report_compaction_failure(self, error: BaseException) -> None:
        """A request goes out as far as memory knows it. One line a minute and kind."""
        self.failures += 1
        words = _words(error)
        self._events.append((_TENANT.get(), Event("fail_open", {"error": words})))
        self._warn(f"failed:{type(error).__name__}", f"openmem: a request passed without new changes of ours ({words})")

    def report_replay_failure(self, error: BaseException) -> None:
        """Memory was of no help either: the same request goes out as it came."""
        self._warn(f"again:{type(error).__name__}", f"openmem: a request passed untouched ({_words(error)})")

    def report_response_failure(self, error: BaseException) -> None:
        """A response could not be recorded."""
        self._warn(f"missed:{type(error).__name__}", f"openmem: a response was not recorded ({_words(error)})")

    def report_catalog_failure(self, error: Exception) -> None:
        """The tenant's catalog could not be used; the request does without it."""
        self._warn(f"catalog:{type(error).__name__}", f"openmem: the catalog could not be used ({_words(error)})")

    def _warn(self, kind: str, line: str) -> None:
        """Logs the line, unless one of its kind was logged within the last minute."""
        now = self._clock()
        if now - self._logged_at.get(kind, float("-inf")) < EVERY_S:
            self._not_logged.put(kind, self._not_logged.get(kind, 0) + 1)
            return
        more = self._not_logged.pop(kind, 0)
        self._logged_at.put(kind, now)
        LOG.warning("%s%s", line, f"; {more} more like it were not logged" if more else "")

    # --- what requests show ----------------------------------------------------------------------------------

    def begin_request(self, call_id: str | None) -> None:
        """The gateway called the pre-call hook; whose the request is, is not known yet."""
        _TENANT.set(tenant.LOCAL)
        if call_id is not None:
            self._calls.put(call_id, None)

    def check_call(self, call_id: str | None, call_type: str) -> None:
        """Traffic that never came past the pre-call hook is trimmed by nobody: logged once per call type."""
        if call_id is not None and call_id not in self._calls and call_type in AGENT_CALLS:
            line = f"openmem: the gateway ran a {call_type} call without its pre-call hook"
            self._warn_once(f"unseen:{call_type}", line)

    def check_request(self, owner: str, ignored_settings: Sequence[IgnoredSetting], model: ModelFacts) -> None:
        """The request is this tenant's. What is wrong with its settings, or unknown of its model, is logged once."""
        _TENANT.set(owner)
        for item in ignored_settings:
            line = f"openmem: {item.where}: {item.key or 'a setting'} ignored: {item.reason}"
            if self._warn_once(f"ignored:{item.where}:{item.key}:{item.reason}", line):
                data = {"where": item.where, "key": item.key, "reason": item.reason}
                self._events.append((owner, Event("ignored_setting", data)))
        if model.window is None:
            line = f"openmem: no context window known for model {_printable(model.name)}; default limits apply"
            self._warn_once(f"model:{model.name}", line)

    def _warn_once(self, kind: str, line: str) -> bool:
        """Logs the line where none of its kind was logged before; whether it did."""
        if kind in self._logged_at or len(self._logged_at) >= KINDS:
            return False
        self._logged_at.put(kind, self._clock())
        LOG.warning(line)
        return True

    # --- events ----------------------------------------------------------------------------------------------

    def take_events(self) -> list[tuple[str, Event]]:
        """Tenant and event of all that waits, the oldest first; the caller stores them."""
        events = []
        while self._events:
            events.append(self._events.popleft())
        return events

    def return_events(self, events: Sequence[tuple[str, Event]]) -> None:
        """Those that the store didn't take, for later; where there are too many the oldest go."""
        self._events.extendleft(list(reversed(events))[: EVENTS - len(self._events)])


def _words(error: BaseException) -> str:
    """Class and words of an error, without anything a request may hold."""
    words = str(error).splitlines()[0][:200] if isinstance(error, _WITH_SAFE_WORDS) and str(error) else ""
    if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", None) is None:
        words = ""  # Python's own words, which may quote a value
    if isinstance(error, OSError) and error.errno is not None:
        words = error.strerror or ""  # without the path
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _printable(name: Any) -> str:
    return "".join(c if c.isprintable() else "?" for c in str(name)[:80])
