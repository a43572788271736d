"""What the operator is told: one rate-limited line about what is wrong, and events kept until the store takes them.

No message text, key or id is ever logged: an error is told by its class and, where it is one of ours or
SQLite's, by its own words, which hold none.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

from openmem_hook.compaction.record import Event
from openmem_hook.config import IgnoredSetting
from openmem_hook.limits import ModelFacts
from openmem_hook.store.database import StoreError
from openmem_hook.store.pool import SessionBusyError

LOG = logging.getLogger("openmem")
EVERY_S = 60.0
"""Seconds between two lines about the same kind of failure."""
REMEMBERED = 4096
AGENT_CALLS = frozenset(
    {"anthropic_messages", "acompletion", "completion", "aresponses", "responses", "_aresponses_websocket"}
)
NOBODY = "local"
"""Whose a failure is that came before anyone was known: the tenant of gateways without authentication."""
_TENANT: ContextVar[str] = ContextVar("openmem_tenant", default=NOBODY)
_TELLING = (sqlite3.Error, StoreError, SessionBusyError, OSError, TimeoutError)


class Watch:
    """Counts and tells, thread-safe by single operations only; `clock` in seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[str, float] = {}
        self._quiet: dict[str, int] = {}
        self._asked: OrderedDict[str, None] = OrderedDict()
        self._events: deque[tuple[str, Event]] = deque(maxlen=256)
        self.failures = 0

    def failed(self, error: BaseException) -> None:
        """A request goes out as far as memory knows it. One line a minute and kind."""
        self.failures += 1
        words = _words(error)
        self._events.append((_TENANT.get(), Event("fail_open", {"error": words})))
        self.tell(f"failed:{type(error).__name__}", f"openmem: a request passed without new changes of ours ({words})")

    def failed_again(self, error: BaseException) -> None:
        """Memory was of no help either: the same request goes out as it came."""
        self.tell(f"again:{type(error).__name__}", f"openmem: a request passed untouched ({_words(error)})")

    def missed(self, error: BaseException) -> None:
        """A response could not be recorded."""
        self.tell(f"missed:{type(error).__name__}", f"openmem: a response was not recorded ({_words(error)})")

    def troubled(self, error: Exception) -> None:
        """The tenant's catalog could not be used; the request does without it."""
        self.tell(f"catalog:{type(error).__name__}", f"openmem: the catalog could not be used ({_words(error)})")

    def tell(self, kind: str, line: str) -> None:
        now = self._clock()
        if now - self._told.get(kind, float("-inf")) < EVERY_S:
            self._quiet[kind] = self._quiet.get(kind, 0) + 1
            return
        more = self._quiet.pop(kind, 0)
        self._told[kind] = now
        LOG.warning("%s%s", line, f"; {more} more like it were not logged" if more else "")

    def asked(self, call_id: str | None) -> None:
        _TENANT.set(NOBODY)
        if call_id is not None:
            self._asked[call_id] = None
            if len(self._asked) > REMEMBERED:
                self._asked.popitem(last=False)

    def answered(self, call_id: str | None, call_type: str) -> None:
        """Traffic that never came past the pre-call hook is trimmed by nobody: said once per call type."""
        if call_id is not None and call_id not in self._asked and call_type in AGENT_CALLS:
            self._once(f"unseen:{call_type}", f"openmem: the gateway ran a {call_type} call without its pre-call hook")

    def met(self, tenant: str, ignored: Sequence[IgnoredSetting], model: ModelFacts) -> None:
        """What a request's settings and model showed: said once each."""
        _TENANT.set(tenant)
        for item in ignored:
            line = f"openmem: {item.where}: {item.key or 'a setting'} ignored: {item.reason}"
            if self._once(f"ignored:{item.where}:{item.key}:{item.reason}", line):
                data = {"where": item.where, "key": item.key, "reason": item.reason}
                self._events.append((tenant, Event("ignored_setting", data)))
        if model.window is None:
            line = f"openmem: no context window known for model {_shown(model.name)}; default limits apply"
            self._once(f"model:{model.name}", line)

    def _once(self, kind: str, line: str) -> bool:
        if kind in self._told or len(self._told) > REMEMBERED:
            return False
        self._told[kind] = self._clock()
        LOG.warning(line)
        return True

    def taken(self) -> list[tuple[str, Event]]:
        """The events kept so far; the caller stores them."""
        found = []
        while self._events:
            found.append(self._events.popleft())
        return found

    def keep(self, events: Sequence[tuple[str, Event]]) -> None:
        """Those that the store didn't take, for later."""
        self._events.extendleft(reversed(events))


def _words(error: BaseException) -> str:
    told = str(error).splitlines()[0][:200] if isinstance(error, _TELLING) and str(error) else ""
    if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", None) is None:
        told = ""  # Python's own words, which may quote a value
    if isinstance(error, OSError) and error.errno is not None:
        told = error.strerror or ""
    return f"{type(error).__name__}: {told}" if told else type(error).__name__


def _shown(name: Any) -> str:
    return "".join(c if c.isprintable() else "?" for c in str(name)[:80])
