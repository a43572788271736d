"""The hook in process, beside the fastest peer that cuts histories, request by request in one run.

Both get the same body, parsed anew outside of the measured time. The peer (CliffCompaction, `pip install
'.[bench]'`) stores nothing and runs on the spot; the hook is awaited as the gateway awaits it, all that it
stores included.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from bench.estimates import quantile
from bench.figures import Figure, Section
from bench.growing import CALL_TYPE, KEY, MODEL, as_gateway, bodies, messages, new_hook, report, unharmed
from openmem_hook.gateway.hook import ContextHook

REQUESTS = 320
"""Of a session that ends with 640 messages."""
RESULT_CHARS = 6_000
"""Mean size of a result, so that 640 messages are 2 MB."""
FIRST_CONTACTS = 5
BEAT_S = 0.001
FULL = 2
"""The generation of which a pass of the collector looks at everything."""

Prepare = Callable[[dict[str, Any]], Any]


@dataclass(slots=True)
class Run:
    """Milliseconds of every request, ours and the peer's; of these, those with which we made a new cut."""

    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)
    cutting: list[float] = field(default_factory=list)
    sent: float = 0.0
    held: float = 0.0

    def share(self, at: float) -> float:
        return quantile(self.ours, at) / quantile(self.peer, at)


def peer(threshold_tokens: int) -> Prepare:
    from cliffcompaction.config import Config
    from cliffcompaction.dialects.anthropic import DIALECT
    from cliffcompaction.engine import Engine

    engine = Engine(dataclasses.replace(Config(), threshold_tokens=threshold_tokens))
    return lambda body: engine.prepare(body, DIALECT)


async def timed(hook: ContextHook, body: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Milliseconds of one call in a task of its own, as a request is one, and what came back."""
    begun = time.perf_counter()
    out = await asyncio.create_task(hook.async_pre_call_hook(KEY, None, body, CALL_TYPE))
    return (time.perf_counter() - begun) * 1000, out


def timed_peer(prepare: Prepare, body: dict[str, Any]) -> float:
    begun = time.perf_counter()
    prepare(body)
    return (time.perf_counter() - begun) * 1000


@dataclass(frozen=True, slots=True)
class Variant:
    """`events`: success events between the requests; `threshold`: of the peer."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    events: bool = True
    threshold: int = 125_000
    model: str = MODEL


VARIANTS = (
    Variant("with success events"),
    Variant("without events", events=False),
    Variant("nothing compressed", {"compress_over_tokens": 0}),
    Variant("nothing trimmed", {"trim_at_tokens": 950_000}, threshold=950_000, model=f"{MODEL}[1m]"),
)


async def interleaved(hook: ContextHook, raws: list[bytes], variant: Variant) -> Run:
    """Who is first changes from request to request."""
    run, prepare, before = Run(), peer(variant.threshold), 0
    for n, raw in enumerate(raws):
        if n % 2:
            run.peer.append(timed_peer(prepare, orjson.loads(raw)))
        body = as_gateway(raw, f"call-{n}", "speed") | {"model": variant.model}
        taken, out = await timed(hook, body)
        if not n % 2:
            run.peer.append(timed_peer(prepare, orjson.loads(raw)))
        run.ours.append(taken)
        if len(out["messages"]) < before:
            run.cutting.append(taken)
        before = len(out["messages"])
        run.held += len(raw)
        run.sent += len(orjson.dumps(out["messages"]))
        if variant.events:
            await report(hook, f"call-{n}", out)
    return run


class Heartbeat:
    """The largest gap between two turns of an event loop, in milliseconds, while this is entered. A full pass of
    Python's collector is no part of it: it stops every process that has LiteLLM loaded, whoever filled the last free
    place, and `full_pass` tells what it takes."""

    def __init__(self) -> None:
        self.largest = 0.0
        self._counted_to = self._collected = 0.0

    async def __aenter__(self) -> Heartbeat:
        gc.callbacks.append(self._collects)
        self._task = asyncio.create_task(self._beat())
        await asyncio.sleep(10 * BEAT_S)
        self.largest = 0.0
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(2 * BEAT_S)
        self._task.cancel()
        gc.callbacks.remove(self._collects)

    def _collects(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] < FULL:
            return
        if phase == "start":
            self._counted_to = time.perf_counter()
        else:
            self._count()
            self._counted_to = 0.0

    def _count(self) -> None:
        """A pass in another thread may not have said yet that it is over when the loop goes on."""
        if self._counted_to:
            now = time.perf_counter()
            self._collected += now - self._counted_to
            self._counted_to = now

    async def _beat(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(BEAT_S)
            self._count()
            now = time.perf_counter()
            self.largest = max(self.largest, (now - last - BEAT_S - self._collected) * 1000)
            last, self._collected = now, 0.0


async def first_contacts(folder: Path, raw: bytes, times: int) -> list[tuple[float, float]]:
    """Milliseconds until a hook that never saw this session has answered and stored it, and the largest gap."""
    found = []
    for n in range(times):
        hook = new_hook(folder / f"first-{n}")
        body = as_gateway(raw, "call", "first")
        gc.collect()  # what was measured before leaves garbage
        async with Heartbeat() as heartbeat:
            taken, _ = await timed(hook, body)
        found.append((taken, heartbeat.largest))
        unharmed(hook)
        hook.compactor.close()
    return found


async def largest_gap(folder: Path, raws: list[bytes]) -> float:
    """Over a whole session with its success events."""
    hook = new_hook(folder)
    largest = 0.0
    for n, raw in enumerate(raws):
        body = as_gateway(raw, f"call-{n}", "gaps")
        async with Heartbeat() as heartbeat:
            _, out = await timed(hook, body)
            await report(hook, f"call-{n}", out)
        largest = max(largest, heartbeat.largest)
    unharmed(hook)
    hook.compactor.close()
    return largest


def full_pass() -> float:
    """Milliseconds that Python's collector takes to look at everything in this process, mostly LiteLLM's modules."""
    gc.collect()
    begun = time.perf_counter()
    gc.collect()
    return (time.perf_counter() - begun) * 1000


def run(folder: Path, quick: bool) -> Section:
    history = messages(REQUESTS // 8 if quick else REQUESTS, RESULT_CHARS * (8 if quick else 1))
    raws = list(bodies(history))
    figures: list[Figure] = []
    for variant in VARIANTS:
        gc.collect()
        hook = new_hook(folder / variant.name.replace(" ", "-"), **variant.settings)
        found = asyncio.run(interleaved(hook, raws, variant))
        unharmed(hook)
        hook.compactor.close()
        figures += _figures(variant.name, found)
    contacts = asyncio.run(first_contacts(folder, raws[-1], FIRST_CONTACTS))
    figures += [
        Figure("first contact with the whole history, slowest", max(t for t, _ in contacts), "ms", 500),
        Figure("first contact, largest event-loop gap", max(gap for _, gap in contacts), "ms", 20),
        Figure("whole session, largest event-loop gap", asyncio.run(largest_gap(folder / "gaps", raws)), "ms", 20),
        Figure("a full pass of Python's collector, no part of a gap", full_pass(), "ms"),
    ]
    about = f"a session growing to {len(raws[-1]) / 1e6:.1f} MB and {len(history)} messages, beside CliffCompaction"
    return Section("speed", about, figures)


def _figures(name: str, found: Run) -> list[Figure]:
    made = []
    for word, at in (("median", 0.5), ("95th", 0.95)):
        made += [
            Figure(f"{name}: {word}", quantile(found.ours, at), "ms"),
            Figure(f"{name}: {word}, CliffCompaction", quantile(found.peer, at), "ms"),
            Figure(f"{name}: {word}, share of CliffCompaction's", found.share(at), "", 0.5),
        ]
    if found.cutting:
        slowest = Figure(f"{name}: slowest of {len(found.cutting)} cutting requests", max(found.cutting), "ms", 30)
        made.append(slowest)
    made.append(Figure(f"{name}: bytes sent on", found.sent / found.held * 100, "%"))
    return made
