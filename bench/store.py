"""Bytes on disk per byte of distinct message JSON, over every recorded session of the corpus.

All requests of a session go through the hook, each with its success event, as a gateway would see them. A
message counts once a session however often it was resent, without the cache breakpoints that move about.
"""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import orjson

from bench.estimates import corpus_dir
from bench.figures import Figure, Section
from bench.growing import KEY, new_hook, unharmed
from openmem_hook.fingerprint import canonical, dump_sorted
from openmem_hook.gateway.hook import ContextHook
from openmem_hook.replay import ReplayRequest, read, requests

CALL_TYPES = {"anthropic": "anthropic_messages", "chat": "acompletion", "responses": "aresponses"}
QUICK = 2


def run(folder: Path, quick: bool) -> Section:
    files = sorted(corpus_dir().glob("*/*.jsonl*"))
    if not files:
        return Section("store", f"left out: no corpus at {corpus_dir()}", ())
    files = files[:QUICK] if quick else files
    hook = new_hook(folder)
    said = sum(asyncio.run(replayed(hook, path)) for path in files)
    unharmed(hook)
    lying = on_disk(folder)
    hook.compactor.close()
    checkpoint(folder)
    figures = [
        Figure("distinct message JSON", said / 1e6, "MB"),
        Figure("on disk per byte of it", on_disk(folder) / said, "", 3),
        Figure("on disk per byte of it with open side files as they lie", lying / said, ""),
    ]
    return Section("store", f"{len(files)} recorded sessions of one tenant", figures)


async def replayed(hook: ContextHook, path: Path) -> int:
    """The whole session through the hook; bytes of its distinct messages."""
    distinct: set[bytes] = set()
    for request in requests(read(path)):
        await _sent(hook, request)
        distinct.update(dump_sorted(canonical(message)) for message in request.messages)
    return sum(map(len, distinct))


async def _sent(hook: ContextHook, request: ReplayRequest) -> None:
    call = f"{request.headers.get('user-agent')}-{request.step.ids}-{request.index}"
    body: dict[str, Any] = orjson.loads(orjson.dumps(request.body))
    body |= {"litellm_call_id": call, "proxy_server_request": {"headers": request.headers}}
    await hook.async_pre_call_hook(KEY, None, body, CALL_TYPES[request.format])
    if request.step.usage is not None:
        usage = {"prompt_tokens": request.step.usage.prompt_tokens, "completion_tokens": 1}
        about = {"litellm_call_id": call, "call_type": CALL_TYPES[request.format]}
        await hook.async_log_success_event(about, {"usage": usage}, None, None)


def on_disk(state: Path) -> int:
    return sum(path.stat().st_size for path in state.rglob("*") if path.is_file())


def checkpoint(state: Path) -> None:
    for path in state.rglob("*.db"):
        db = sqlite3.connect(path)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.close()
