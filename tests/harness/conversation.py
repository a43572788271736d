"""One conversation through the hook in process, with the oracles that hold for every request of it.

`send` hands a body to the hook as the gateway does and returns what would go to the provider. On the way:
nothing failed open, the caller's objects are as they were, the strict provider objects to nothing it did not
object to before, and the request before is a prefix of this one unless a trim was recorded.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from types import SimpleNamespace
from typing import Any

import orjson

from openmem_hook.gateway.hook import ContextHook
from openmem_hook.gateway.tenant import authentication_of, tenant_of
from openmem_hook.store import names
from openmem_hook.store.session import unpack
from tests.conftest import CALL_TYPES, make_key
from tests.kit.builders import Json
from tests.kit.histories import format_of
from tests.kit.prefix import assert_prefix, broken_at, check, unchanged

SESSION_HEADER = {"anthropic": "x-claude-code-session-id", "chat": "x-session-id", "responses": "session-id"}
POINTER = "<openmem-pointer>\n"
"""How a pointer begins; the standing note only names the tag."""


class Conversation:
    """A client's session. `settings` goes into the header that overrides settings for one request."""

    def __init__(
        self, hook: ContextHook, session: str = "session-1", *, key: SimpleNamespace | None = None, settings: str = ""
    ) -> None:
        self.hook, self.session, self.settings = hook, session, settings
        self.key = key or make_key()
        self.calls = 0
        self.last: tuple[Json, Json] | None = None

    async def send(self, body: Json, **fields: Any) -> Json:
        """What goes to the provider for this body; `fields` are what only the gateway adds."""
        fmt = format_of(body)
        before = self.trims()
        with unchanged(body):
            data = {**body, **self._from_gateway(fmt), **fields}
            out = await self.hook.async_pre_call_hook(self.key, None, data, CALL_TYPES[fmt])
        assert self.hook.notices.failures == 0, self.hook.notices.take_events()
        sent = {k: v for k, v in out.items() if k in body or k in ("system", "instructions")}
        worse = faults(sent) - faults(body)
        assert not worse, f"the provider would object: {worse}"
        if not any(body.get(key) for key in ("previous_response_id", "conversation")):
            if self.last is not None and self.trims() == before and broken_at(self.last[0], body, fmt) is None:
                assert_prefix(self.last[1], sent, fmt)
            self.last = (body, sent)
        return sent

    async def report(self, prompt_tokens: int) -> None:
        """The provider's count of the request sent last."""
        kwargs = {"litellm_call_id": self._call_id(), "call_type": "anthropic_messages"}
        await self.hook.async_log_success_event(kwargs, {"usage": {"prompt_tokens": prompt_tokens}}, None, None)

    def _call_id(self) -> str:
        return f"{self.session}-{self.calls}"

    def _from_gateway(self, fmt: str) -> Json:
        self.calls += 1
        headers = {SESSION_HEADER[fmt]: self.session} | ({"x-openmem": self.settings} if self.settings else {})
        return {
            "litellm_call_id": self._call_id(),
            "proxy_server_request": {"headers": headers, "url": "http://gateway", "method": "POST"},
        }

    # --- what the store says -----------------------------------------------------------------------------

    def _all(self, sql: str) -> list[Any]:
        tenant = tenant_of(self.key, "user", authentication_of(None))
        folder, name = names.tenant_folder(tenant), names.session_name(tenant, self.session)
        path = self.hook.compactor.store.pool.session_path(folder, name)
        if not path.exists():
            return []
        db = sqlite3.connect(path)
        try:
            return db.execute(sql).fetchall()
        finally:
            db.close()

    def events(self, kind: str) -> list[Json]:
        return [orjson.loads(data) for k, data in self._all("SELECT kind, data FROM events ORDER BY id") if k == kind]

    def trims(self) -> int:
        return len(self.events("trim"))

    def rows(self) -> list[SimpleNamespace]:
        """Stored messages in order: what a search sees, and the client's own JSON."""
        columns = "m.role, m.kind, m.text, m.in_context, m.thread, r.body"
        found = self._all(f"SELECT {columns} FROM messages m JOIN records r USING (seq) ORDER BY seq")
        return [
            SimpleNamespace(role=role, kind=kind, text=text, shown=shown, thread=thread, raw=_raw(body, text))
            for role, kind, text, shown, thread, body in found
        ]


def _raw(body: bytes, text: str) -> Any:
    return orjson.loads(unpack(body, text))


def faults(body: Json) -> Counter[str]:
    """The provider's objections by what they say, places in the request aside."""
    return Counter(re.sub(r"\.\d+|\[\d+\]", "", fault) for fault in check(body, format_of(body)))


def messages_of(body: Json) -> list[Any]:
    held: list[Any] = body["input"] if "input" in body else body["messages"]
    return held


def pointers(body: Json) -> list[tuple[int, int]]:
    """Message and block of each pointer; block 0 for string content."""
    found = []
    for at, message in enumerate(messages_of(body)):
        content = message.get("content")
        blocks = [{"text": content}] if isinstance(content, str) else content or []
        found += [(at, spot) for spot, block in enumerate(blocks) if POINTER in str(block.get("text", ""))]
    return found
