"""Four workers on one store: a hundred agents that share a hundred sessions, each asking about once a second.

Workers meet in the same sessions, at different points of their histories, as restarts, forks and retries make
them. What counts is that no request passes without the plugin, and how long the slowest take.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.estimates import quantile
from bench.figures import Figure, Section
from bench.growing import CALL_TYPE, KEY, as_gateway, bodies, messages, new_hook, report
from openmem_hook.gateway.hook import ContextHook

WORKERS = 4
AGENTS = 25
"""In each worker."""
SESSIONS = 100
SECONDS = 30.0
PAUSE_S = 1.0
RAMP_S = 5.0
REQUESTS = 40
RESULT_CHARS = 3_000
TRIM_AT = 20_000


def run(folder: Path, quick: bool) -> Section:
    seconds = SECONDS / 6 if quick else SECONDS
    command = [sys.executable, "-m", "bench.load", str(folder), str(seconds)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen([*command, str(seed)], **pipes) for seed in range(WORKERS)]
    for worker in workers:
        worker.stdout.readline()  # it has made its histories
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    largest = 0
    while any(worker.poll() is None for worker in workers):
        largest = max(largest, max((path.stat().st_size for path in _logs(folder)), default=0))
        time.sleep(0.5)
    told = [json.loads(worker.communicate()[0]) for worker in workers]
    taken = [ms for one in told for ms in one["taken"]]
    figures = [
        Figure("requests a second", len(taken) / seconds, ""),
        Figure("passed without the plugin", sum(one["failures"] for one in told), "", 0),
        Figure("median", quantile(taken, 0.5), "ms"),
        Figure("99th", quantile(taken, 0.99), "ms"),
        Figure("slowest", max(taken), "ms"),
        Figure("largest write-ahead log", largest / 1e6, "MB"),
    ]
    return Section("load", f"{WORKERS} processes, {WORKERS * AGENTS} agents, {SESSIONS} sessions", figures)


def _logs(folder: Path) -> list[Path]:
    return [path for path in folder.glob("context/*/**/*-wal") if path.exists()]


class Histories:
    """The requests of each session, made when first asked for."""

    def __init__(self) -> None:
        self._made: dict[int, list[bytes]] = {}

    def request(self, session: int, at: int) -> bytes:
        if session not in self._made:
            self._made[session] = list(bodies(messages(REQUESTS, RESULT_CHARS, session)))
        return self._made[session][at % REQUESTS]


async def agent(hook: ContextHook, histories: Histories, seed: int, until: float) -> list[float]:
    """Works on a session for some requests, then on another. Milliseconds of every request."""
    choose = random.Random(seed)
    taken: list[float] = []
    session, at = choose.randrange(SESSIONS), choose.randrange(REQUESTS)
    await asyncio.sleep(RAMP_S * choose.random())
    while time.monotonic() < until:
        if choose.random() < 0.1:
            session, at = choose.randrange(SESSIONS), choose.randrange(REQUESTS)
        call = f"call-{seed}-{len(taken)}"
        body = as_gateway(histories.request(session, at), call, f"session-{session}")
        begun = time.perf_counter()
        out: dict[str, Any] = await hook.async_pre_call_hook(KEY, None, body, CALL_TYPE)
        taken.append((time.perf_counter() - begun) * 1000)
        await asyncio.sleep(PAUSE_S * choose.uniform(0.5, 1.5))
        await report(hook, call, out)
        at += 1
    return taken


async def _worker(folder: Path, seconds: float, seed: int) -> dict[str, Any]:
    hook, histories = new_hook(folder, trim_at_tokens=TRIM_AT), Histories()
    for session in range(SESSIONS):
        histories.request(session, 0)
    print("ready", flush=True)
    sys.stdin.readline()  # so that no worker is measured while another one prepares
    until = time.monotonic() + seconds
    agents = [agent(hook, histories, seed * AGENTS + n, until) for n in range(AGENTS)]
    taken = [ms for times in await asyncio.gather(*agents) for ms in times]
    hook.compactor.close()
    return {"taken": taken, "failures": hook.notices.failures}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_worker(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))))
