"""A conversation through one store, with the laws that hold for every request asserted on the way.

A `CheckedSession` makes its own folder and as many hooks over it as a test wants: workers, restarts, other settings.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import orjson

from openmem_hook import config
from openmem_hook.compactor import Compactor
from openmem_hook.gateway.hook import ContextHook
from openmem_hook.gateway.notices import Notices
from openmem_hook.store.session import unpack
from tests.conftest import CALL_TYPES, make_key
from tests.harness.conversation import SESSION_HEADER, faults
from tests.kit.builders import Json
from tests.kit.histories import format_of
from tests.kit.prefix import broken_at, normal, unchanged

T = TypeVar("T")
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Thousands of small stores are made: in memory where the system offers it."""
SMALL: Json = {"trim_at_tokens": 1200, "compress_over_tokens": 300, "chars_per_token": 2.5}
"""Limits that a generated history of a few thousand characters reaches."""


@contextmanager
def checked_session(**settings: Any) -> Iterator[CheckedSession]:
    with tempfile.TemporaryDirectory(prefix="walk", dir=MEMORY) as folder:
        walk = CheckedSession(Path(folder), settings or SMALL)
        try:
            yield walk
        finally:
            walk.close()


class CheckedSession:
    """Requests of one session; `hooks` are the workers it may reach."""

    def __init__(self, folder: Path, settings: Json) -> None:
        self.folder = folder
        self.hooks = [self.worker(settings)]
        self.calls = 0
        self.loop = asyncio.new_event_loop()
        self.outs: list[tuple[Json, Json]] = []

    def worker(self, settings: Json) -> ContextHook:
        settings = {"deadline_s": 30, **settings}  # what is sent must not depend on how busy the machine is
        base = config.load(settings, {"OPENMEM_STATE_DIR": str(self.folder), "HOME": str(self.folder)})
        return ContextHook(base, Compactor(self.folder / "context"), Notices())

    def restart(self, **settings: Any) -> None:
        """All workers go; a new one comes, with these settings."""
        self._close_hooks()
        self.hooks = [self.worker(settings or SMALL)]

    def join(self, **settings: Any) -> None:
        """One more worker on the same store."""
        self.hooks.append(self.worker(settings or SMALL))

    def close(self) -> None:
        self._close_hooks()
        self.loop.close()

    def _close_hooks(self) -> None:
        for hook in self.hooks:
            hook.compactor.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def data(self, body: Json, session: str = "session-1", **more: Any) -> Json:
        self.calls += 1
        headers = {SESSION_HEADER[format_of(body)]: session} if session else {}
        about = {"headers": headers, "url": "http://gateway", "method": "POST"}
        return {**body, "litellm_call_id": f"call-{self.calls}", "proxy_server_request": about, **more}

    def send(self, body: Json, worker: int = 0, session: str = "session-1", **more: Any) -> Json:
        """What goes to the provider. Asserts L1's second half (nothing mutated) and L3 (still legal)."""
        hook = self.hooks[worker % len(self.hooks)]
        with unchanged(body):
            data = self.data(body, session)
            out = self.run(
                hook.async_pre_call_hook(more.get("key") or make_key(), None, data, CALL_TYPES[format_of(body)])
            )
        assert hook.notices.failures == 0, hook.notices.take_events()
        sent = {k: v for k, v in out.items() if k in body or k in ("system", "instructions")}
        worse = faults(sent) - faults(body)
        assert not worse, f"L3: the provider would object: {dict(worse)}"
        self.outs.append((body, sent))
        return sent

    def report(self, tokens: int, worker: int = 0) -> None:
        kwargs = {"litellm_call_id": f"call-{self.calls}", "call_type": "acompletion"}
        hook = self.hooks[worker % len(self.hooks)]
        self.run(hook.async_log_success_event(kwargs, {"usage": {"prompt_tokens": tokens}}, None, None))

    # --- what the store says -----------------------------------------------------------------------------

    def rows(self, sql: str) -> list[Any]:
        found: list[Any] = []
        for path in sorted(self.folder.glob("context/*/sessions/*.db")):
            db = sqlite3.connect(path)
            found += db.execute(sql).fetchall()
            db.close()
        return found

    def events(self, *kinds: str) -> list[Json]:
        return [
            {"kind": kind, **orjson.loads(data)}
            for kind, data in self.rows("SELECT kind, data FROM events ORDER BY id")
            if not kinds or kind in kinds
        ]

    def stored(self) -> Counter[bytes]:
        sql = "SELECT r.body, m.text FROM records r JOIN messages m USING (seq)"
        return Counter(normal(orjson.loads(unpack(body, text))) for body, text in self.rows(sql))

    def assert_prefix(self, before: Json, after: Json) -> None:
        fmt = format_of(before)
        at = broken_at(before, after, fmt)
        assert at is None, f"L2: prefix broken at block {at}"
