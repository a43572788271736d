"""Fifty sessions at once through one gateway for a minute, without the plugin and with it.

Each session is an agent's: it grows by an exchange a request, is trimmed on its way, and goes on to a new history when
it ends. Twice: with pauses as tools make them, and without any, which is all that a gateway can do. The gateway,
one worker, the provider and the agents share this machine's cores, as they do for both ways; the ways take turns, each
with a gateway started anew.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import httpx

from bench.estimates import quantile
from bench.figures import Figure, Section
from bench.growing import bodies, messages
from bench.servers import HEADERS, HUGE, PLUGIN, Server, config, gateway, provider

SEED = 0
SESSIONS = 50
SECONDS = 60.0
RAMP_S = 5.0
"""Sessions begin one after the other over this time, which is not measured."""
PACES = {"with pauses": 3.0, "without pauses": 0.0}
"""Mean seconds between an answer and the session's next request."""
WAYS = {"no hook": (), "openmem": (PLUGIN,)}
REQUESTS = (20, 100)
"""A history's first and last request: 80 KB to 400 KB."""
WARM_UP = -1
"""The life of the session that asks first."""
RESULT_CHARS = 4_000
TRIM_AT = 60_000


@dataclass(slots=True)
class Tally:
    """`taken`: milliseconds of the requests that were answered in the measured time. `errors`: all others, by kind."""

    begins: float
    ends: float
    taken: list[float] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    came_in: int = 0

    def failed(self, kind: str) -> None:
        self.errors[kind] = self.errors.get(kind, 0) + 1


class Histories:
    """The messages of each session's first history; later ones are the same under another first line."""

    def __init__(self, sessions: int) -> None:
        self.made = [messages(REQUESTS[1], RESULT_CHARS, f"crowd-{SEED}-{n}") for n in range(sessions)]

    def requests(self, session: int, life: int) -> Iterator[bytes]:
        first, *rest = self.made[session]
        said = {"role": "user", "content": [{"type": "text", "text": f"Life {life} of session {session}."}]}
        history = [{**first, "content": [*said["content"], *first["content"]]}, *rest]
        return bodies(history, first=2 * REQUESTS[0] + 1)


async def agent(address: str, histories: Histories, session: int, pause_s: float, tally: Tally) -> None:
    draw = random.Random(f"{SEED}-{session}")
    life = 0
    requests = histories.requests(session, life)
    for _ in range(draw.randrange(REQUESTS[1] - REQUESTS[0])):  # so that not all are as long at once
        next(requests)
    await asyncio.sleep(RAMP_S * draw.random())
    async with httpx.AsyncClient(timeout=60, trust_env=False, headers=HEADERS) as http:
        while time.perf_counter() < tally.ends:
            raw = next(requests, None)
            if raw is None:
                life += 1
                requests = histories.requests(session, life)
                continue
            http.headers["x-claude-code-session-id"] = f"crowd-{session}-{life}"
            await _ask(http, address, raw, tally)
            if pause_s:
                await asyncio.sleep(pause_s * draw.uniform(0.5, 1.5))


async def _warmed_up(address: str, histories: Histories) -> None:
    """A gateway imports much for its first request. RuntimeError if that is refused."""
    first = Tally(0, float("inf"))
    async with httpx.AsyncClient(timeout=60, trust_env=False, headers=HEADERS) as http:
        await _ask(http, address, next(histories.requests(0, WARM_UP)), first)
    if not first.taken:
        raise RuntimeError(f"the first request was not answered: {first.errors}")


async def _ask(http: httpx.AsyncClient, address: str, raw: bytes, tally: Tally) -> None:
    begun = time.perf_counter()
    try:
        answer = await http.post(f"{address}/v1/messages", content=raw)
    except httpx.HTTPError as error:
        tally.failed(type(error).__name__)
        return
    now = time.perf_counter()
    if not answer.is_success:
        tally.failed(f"status {answer.status_code}")
    elif b"message_stop" not in answer.content:
        tally.failed("a broken stream")
    elif tally.begins <= now <= tally.ends:
        tally.taken.append((now - begun) * 1000)
        tally.came_in += len(raw)


async def served(gateway_: Server, histories: Histories, pause_s: float, seconds: float) -> Tally:
    await _warmed_up(gateway_.address, histories)
    begins = time.perf_counter() + RAMP_S
    tally = Tally(begins, begins + seconds)
    agents = [agent(gateway_.address, histories, n, pause_s, tally) for n in range(len(histories.made))]
    await asyncio.gather(*agents)
    return tally


def run(folder: Path, quick: bool) -> Section:
    seconds, sessions = (4.0, 10) if quick else (SECONDS, SESSIONS)
    histories = Histories(sessions)
    rows = []
    paces = dict(islice(PACES.items(), 1 if quick else None))
    for pace, pause_s in paces.items():
        for way, callbacks in WAYS.items():
            own = folder / f"{way}-{pace}".replace(" ", "-")
            own.mkdir()
            rows.append({"way": way, "pace": pace, **_measured(own, list(callbacks), histories, pause_s, seconds)})
    made = {"seed": SEED, "sessions": sessions, "seconds": seconds, "trim_at_tokens": TRIM_AT, "paces_s": paces}
    return Section("crowd", f"{sessions} sessions at once, {seconds:g} s each way", list(_figures(rows)), rows, made)


def _measured(
    folder: Path, callbacks: list[str], histories: Histories, pause_s: float, seconds: float
) -> dict[str, Any]:
    own = folder / "gateway"
    with (
        provider(folder / "provider.log", "--prompt-limit", str(HUGE)) as behind,
        gateway(own, config(behind, own, callbacks, TRIM_AT)) as running,
    ):
        tally = asyncio.run(served(running, histories, pause_s, seconds))
        gaps = running.gaps(tally.begins, tally.ends)
        resident, stored = running.resident_mb(), running.stored_bytes()
        trims = running.events("trim", "sessions/*.db")
        passed = running.events("fail_open", "catalog.db")
    taken = tally.taken
    if not taken or not gaps:
        raise RuntimeError(f"nothing was measured: {tally.errors}, {len(gaps)} turns of the event loop")
    return {
        "requests": len(tally.taken),
        "a_second": round(len(tally.taken) / seconds, 2),
        "mean_kb": round(tally.came_in / max(len(tally.taken), 1) / 1000, 1),
        "p50_ms": round(quantile(taken, 0.5), 1),
        "p99_ms": round(quantile(taken, 0.99), 1),
        "slowest_ms": round(max(taken), 1),
        "errors": sum(tally.errors.values()),
        "error_kinds": tally.errors,
        "trims": trims,
        "fail_opens": passed,
        "gap_p99_ms": round(quantile(gaps, 0.99), 1),
        "gap_ms": round(max(gaps), 1),
        "resident_mb": round(resident, 1),
        "stored_mb": round(stored / 1e6, 1),
    }


def _figures(rows: list[dict[str, Any]]) -> Iterator[Figure]:
    for row in rows:
        at = f"{row['way']}, {row['pace']}"
        yield Figure(f"{at}: requests a second", row["a_second"])
        yield Figure(f"{at}: median", row["p50_ms"], "ms")
        yield Figure(f"{at}: 99th", row["p99_ms"], "ms")
        yield Figure(f"{at}: errors", row["errors"], "", 0)
        yield Figure(f"{at}: passed without the plugin", row["fail_opens"], "", 0)
        yield Figure(f"{at}: largest event-loop gap", row["gap_ms"], "ms")
