"""Round trips over HTTP through the real `litellm` command: the plugin and its peers, asked in turn in one run.

Each way has a gateway of its own, one worker, and all share the kit's provider in a process. A peer that is a hook runs
in its gateway; one that is a proxy stands between its gateway and the provider. The last requests of a session before
each size; a way that has used up `CUT_OFF_S` at a size, or on one request, is cut off there and then.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from bench.environments import PEERS
from bench.estimates import quantile
from bench.figures import Figure, Section
from bench.peers import CUT_OFF_S, SEED, SIZES_MB, plan
from bench.servers import HEADERS, HUGE, PLUGIN, Server, config, gateway, process, provider

ROUNDS = 15
NO_GROWTH = (1_000_000,) * len(SIZES_MB)
"""As a stride: nothing is sent between the sizes, but the first request."""
TRIM_AT = 125_000


def _nothing(stack: ExitStack, folder: Path, behind: str) -> Server:
    return stack.enter_context(gateway(folder, config(behind, folder, [])))


def _openmem(stack: ExitStack, folder: Path, behind: str) -> Server:
    return stack.enter_context(gateway(folder, config(behind, folder, [PLUGIN])))


def _distil(stack: ExitStack, folder: Path, behind: str) -> Server:
    hook = "distil.integrations.litellm_hook.proxy_handler_instance"
    return stack.enter_context(gateway(folder, config(behind, folder, [hook]), PEERS["distil"].site))


def _litellm(stack: ExitStack, folder: Path, behind: str) -> Server:
    given = {"compression_interception_params": {"enabled": True, "compression_trigger": TRIM_AT}}
    return stack.enter_context(gateway(folder, config(behind, folder, ["compression_interception"], **given)))


def _cliff(stack: ExitStack, folder: Path, behind: str) -> Server:
    threshold = ["--threshold", str(TRIM_AT), "--anthropic-upstream", behind]
    command = [str(PEERS["CliffCompaction"].python), "-m", "cliffcompaction", "serve", "--port", "{port}", *threshold]
    return _behind(stack, folder, process(folder / "proxy", command, "/__cliff__/status"))


def _kompact(stack: ExitStack, folder: Path, behind: str) -> Server:
    own = ["--host", "127.0.0.1", "--port", "{port}", "--no-otel", "--anthropic-base-url", behind]
    command = [str(PEERS["Kompact"].folder / "bin" / "kompact"), "proxy", *own]
    return _behind(stack, folder, process(folder / "proxy", command))


def _behind(stack: ExitStack, folder: Path, proxy: AbstractContextManager[Server]) -> Server:
    """A gateway without a hook, before a proxy."""
    second = stack.enter_context(proxy)
    return replace(_nothing(stack, folder / "gateway", second.address), behind=second)


STARTS = {
    "no hook": _nothing,
    "openmem": _openmem,
    "CliffCompaction": _cliff,
    "distil": _distil,
    "LiteLLM compress": _litellm,
    "Kompact": _kompact,
}
NOT_SERVED = {
    "Headroom": "its guardrail asks a server of its own, which needs a model runtime",
    "openlcm": "it has neither a hook nor a proxy",
}


@dataclass(slots=True)
class Cell:
    taken: list[float] = field(default_factory=list)
    came_in: int = 0
    sent: int = 0
    steps: int = 0
    whole: int = 0
    resident_mb: float = 0.0


@dataclass(slots=True)
class Way:
    name: str
    served: Server | None
    """None: the provider itself."""
    address: str
    cells: list[Cell]
    processes: ExitStack
    before: list[str] = field(default_factory=list)
    ended: str = ""
    ended_at: int | None = None

    def take(self, at: int, raw: bytes, http: httpx.Client, provider_log: str, limit_s: float, warm: bool) -> None:
        if self.ended:
            return
        cell = self.cells[at]
        begun = time.perf_counter()
        try:
            answer = http.post(f"{self.address}/v1/messages", content=raw, timeout=limit_s)
        except httpx.TimeoutException:
            self._end(at, "cut off")
            return
        taken = (time.perf_counter() - begun) * 1000
        if not answer.is_success or b"message_stop" not in answer.content:
            self._end(at, f"status {answer.status_code}" if not answer.is_success else "a broken stream")
            return
        note = http.get(provider_log).json()["requests"][-1]
        blocks = note["blocks"]
        if not warm:
            cell.taken.append(taken)
            cell.came_in += len(raw)
            cell.sent += note["bytes"]
            cell.steps += 1
            cell.whole += blocks[: len(self.before)] == self.before
            cell.resident_mb = self.served.resident_mb() if self.served else 0.0
        self.before = blocks
        if sum(cell.taken) > limit_s * 1000:
            self._end(at, "cut off")

    def _end(self, at: int, why: str) -> None:
        """Its processes end, too: what they still work on would slow the others down."""
        self.ended, self.ended_at = why, at
        self.processes.close()


def run(folder: Path, quick: bool) -> Section:
    sizes = [round(mb * 1e6 / (10 if quick else 1)) for mb in SIZES_MB[: 1 if quick else None]]
    rounds = ROUNDS // 3 if quick else ROUNDS
    limit_s = CUT_OFF_S / 10 if quick else CUT_OFF_S
    left_out = dict(NOT_SERVED)
    with ExitStack() as stack:
        behind = stack.enter_context(provider(folder / "provider.log", "--prompt-limit", str(HUGE)))
        ways = [Way("the provider alone", None, behind, [Cell() for _ in sizes], ExitStack())]
        left_out |= {name: "not installed" for name in STARTS if PEERS[name].version() is None}
        for name, own, served in _started(stack, folder, behind, [name for name in STARTS if name not in left_out]):
            ways.append(Way(name, served, served.address, [Cell() for _ in sizes], own))
        http = stack.enter_context(httpx.Client(trust_env=False, headers=HEADERS))
        last = 0
        for n, (at, raw, warm) in enumerate(_requests(sizes, rounds)):
            for way in [*ways[n % len(ways) :], *ways[: n % len(ways)]]:
                http.headers["x-claude-code-session-id"] = f"bench-{way.name}"
                way.take(at, raw, http, f"{behind}/__log?last=1", limit_s, warm)
            last = len(raw)
        stored = {way.name: way.served.stored_bytes() for way in ways if way.served}
    rows = [row | {"stored_bytes": stored.get(way.name, 0)} for way in ways for row in _rows(way, sizes)]
    made = {
        "seed": SEED,
        "rounds": rounds,
        "cut_off_s": limit_s,
        "peers": {way.name: PEERS[way.name].version() for way in ways if way.served and PEERS[way.name].requirements},
        "left_out": left_out,
    }
    about = f"{rounds} round trips at each size, up to {last / 1e6:.1f} MB, over HTTP and streamed"
    return Section("roundtrips", about, list(_figures(rows)), rows, made)


def _started(
    stack: ExitStack, folder: Path, behind: str, names: Sequence[str]
) -> Iterator[tuple[str, ExitStack, Server]]:
    """Side by side: most of a gateway's start is one core's work."""
    stacks = [stack.enter_context(ExitStack()) for _ in names]
    with ThreadPoolExecutor(len(names)) as pool:
        asked = [
            pool.submit(STARTS[name], own, folder / name.replace(" ", "-"), behind)
            for name, own in zip(names, stacks, strict=True)
        ]
    yield from zip(names, stacks, [one.result() for one in asked], strict=True)


def _requests(sizes: Sequence[int], rounds: int) -> Iterator[tuple[int, bytes, bool]]:
    """Of each size its last requests; the first of them only warms up."""
    before: int | None = None
    for at, raw, in_window in plan(sizes, NO_GROWTH, rounds + 1):
        if in_window:
            yield at, raw, at != before
            before = at


def _rows(way: Way, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    for at, (size, cell) in enumerate(zip(sizes, way.cells, strict=True)):
        done = len(cell.taken)
        yield {
            "way": way.name,
            "mb": size / 1e6,
            "calls": done,
            "ended": way.ended if way.ended_at is not None and at >= way.ended_at else "",
            "median_ms": round(statistics.median(cell.taken), 2) if done else None,
            "p95_ms": round(quantile(cell.taken, 0.95), 2) if done else None,
            "sent_share": round(cell.sent / cell.came_in, 5) if done else None,
            "steps": cell.steps,
            "steps_kept": cell.whole,
            "resident_mb": round(cell.resident_mb, 1) if done and way.served else None,
        }


def _figures(rows: Sequence[Mapping[str, Any]]) -> Iterator[Figure]:
    for row in rows:
        if row["calls"]:
            ended = f" of {row['calls']}, then {row['ended']}" if row["ended"] else ""
            yield Figure(f"{row['way']}, {row['mb']:g} MB: median{ended}", row["median_ms"], "ms")
            yield Figure(f"{row['way']}, {row['mb']:g} MB: bytes sent on", row["sent_share"] * 100, "%")
