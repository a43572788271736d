"""Resident memory of one worker that serves a thousand sessions, each trimmed, after the hundredth and the last."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.figures import Figure, Section, resident_mb
from bench.growing import CALL_TYPE, KEY, as_gateway, bodies, messages, new_hook, report, unharmed
from openmem_hook.gateway.hook import ContextHook

SESSIONS = 1_000
FIRST = 100
EXCHANGES = 30
RESULT_CHARS = 4_000
TRIM_AT = 30_000


def run(folder: Path, quick: bool) -> Section:
    hook = new_hook(folder, trim_at_tokens=TRIM_AT)
    sessions = SESSIONS // 5 if quick else SESSIONS
    first, last, trims = asyncio.run(served(hook, sessions))
    unharmed(hook)
    hook.compactor.close()
    figures = [
        Figure(f"resident after session {FIRST}", first, "MB"),
        Figure(f"resident after session {sessions}", last, "MB"),
        Figure("growth", last - first, "MB", 50),
        Figure("trims a session", trims / sessions, ""),
    ]
    return Section("memory", f"{sessions} sessions of {EXCHANGES} requests, one after the other", figures)


async def served(hook: ContextHook, sessions: int) -> tuple[float, float, int]:
    """Resident memory after the first sessions and after the last, and how many trims there were."""
    first, trims = 0.0, 0
    for n in range(sessions):
        trims += await _session(hook, n)
        if n + 1 == FIRST:
            first = resident_mb()
    return first, resident_mb(), trims


async def _session(hook: ContextHook, number: int) -> int:
    trims, before = 0, 0
    for turn, raw in enumerate(bodies(messages(EXCHANGES, RESULT_CHARS, number))):
        call = f"call-{number}-{turn}"
        body = as_gateway(raw, call, f"session-{number}")
        out = await hook.async_pre_call_hook(KEY, None, body, CALL_TYPE)
        await report(hook, call, out)
        trims += len(out["messages"]) < before
        before = len(out["messages"])
    return trims
