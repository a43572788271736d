"""Every recorded session through the hook: nothing refused, no prefix broken but at a break, all stored once."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from openmem_hook.gateway.hook import ContextHook
from openmem_hook.replay import ReplayRequest, read, requests
from openmem_hook.store.session import unpack
from tests.conftest import CALL_TYPES, make_key
from tests.kit.prefix import broken_at, canonical, check

CORPUS = Path(os.environ.get("OPENMEM_CORPUS") or Path(__file__).parents[3] / "shared/corpus")
FILES = sorted(CORPUS.glob("*/*.jsonl.xz"))
SHORT = ("c2b51eb0",)
"""Sessions that end below the default limit."""

pytestmark = pytest.mark.skipif(not FILES, reason=f"no corpus at {CORPUS}")


def as_sent(request: ReplayRequest) -> dict[str, Any]:
    """The body as the gateway parsed it: nothing shared with the request before."""
    body: dict[str, Any] = orjson.loads(orjson.dumps(request.body))
    body["litellm_call_id"] = f"call-{request.index}"
    body["proxy_server_request"] = {"headers": request.headers, "url": "", "method": "POST"}
    return body


def sent_on(out: dict[str, Any], client: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in out.items() if key in client or key == "instructions"}


def databases(state_dir: Path) -> list[Path]:
    return sorted(state_dir.glob("context/*/sessions/*.db"))


def normal(message: Any) -> bytes:
    """A message as canonical JSON: a string equals a list of one text block, breakpoints aside."""
    if isinstance(message, dict) and isinstance(message.get("content"), str):
        message = {**message, "content": [{"type": "text", "text": message["content"]}]}
    return canonical(message)


def stored(state_dir: Path) -> list[bytes]:
    """Every stored message, read back from its compressed body."""
    bodies = []
    for path in databases(state_dir):
        db = sqlite3.connect(path)
        for body, text in db.execute("SELECT r.body, m.text FROM records r JOIN messages m USING (seq)"):
            bodies.append(normal(orjson.loads(unpack(body, text))))
        db.close()
    return bodies


def cuts_of(hook: ContextHook) -> set[str]:
    """Ids of the cuts made so far in the sessions this worker knows."""
    sessions = hook.compactor.store.pool.sessions_in_memory()
    return {cut.id for session in sessions for cut in session.state.edits.trims.values()}


async def report(hook: ContextHook, request: ReplayRequest, call_id: str) -> None:
    if request.step.usage is not None:
        usage = {"usage": {"prompt_tokens": request.step.usage.prompt_tokens}}
        call = {"litellm_call_id": call_id, "call_type": CALL_TYPES[request.format]}
        await hook.async_log_success_event(call, usage, None, None)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.split(".")[0])
async def test_a_recorded_session_stays_legal_stable_and_whole(
    path: Path, new_hook: Callable[..., ContextHook], state_dir: Path
) -> None:
    hook = new_hook()
    outs: dict[int, dict[str, Any]] = {}
    bodies: dict[int, dict[str, Any]] = {}
    sent_by_client: Counter[bytes] = Counter()
    refused: list[str] = []
    broken: list[str] = []
    known_cuts: set[str] = set()
    said: dict[int, tuple[Any, bytes]] = {}

    def normally(message: Any) -> bytes:
        """`normal`, once for each of the objects that the bodies share."""
        if id(message) not in said:
            said[id(message)] = message, normal(message)
        return said[id(message)][1]

    for request in requests(read(path)):
        body = as_sent(request)
        before = orjson.dumps(request.body)
        fmt = request.format
        out = await hook.async_pre_call_hook(make_key(), None, body, CALL_TYPES[fmt])
        assert orjson.dumps({k: body[k] for k in request.body}) == before, "the caller's body was changed"
        out = sent_on(out, request.body)
        refused += [f"{request.index}: {fault}" for fault in check(out, fmt)]
        cuts = cuts_of(hook)
        same_client = (
            request.step.parent is not None and broken_at(bodies[request.step.parent], request.body, fmt) is None
        )
        if same_client and cuts == known_cuts and request.step.parent is not None:
            at = broken_at(outs[request.step.parent], out, fmt)
            broken += [] if at is None else [f"{request.index} at block {at}"]
        outs[request.index], bodies[request.index], known_cuts = out, request.body, cuts
        sent_by_client |= Counter(map(normally, request.messages))
        await report(hook, request, body["litellm_call_id"])
    assert refused == []
    assert broken == []
    assert hook.notices.failures == 0
    kept = Counter(stored(state_dir))
    assert sent_by_client - kept == Counter(), "a message can't be read back"
    assert kept - sent_by_client == Counter(), "a message was stored twice"
    assert known_cuts or path.name.startswith(SHORT), "nothing was trimmed: this test shows little"
