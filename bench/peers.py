"""The hook beside its peers, each in a process of its own, request by request in one run.

One session grows to 8 MB. Each way gets the same body in turn, and who is first changes. The last `WINDOW` requests
before each size are consecutive and make that size's row; between the sizes every so-many-th request is sent, which
makes the curve and keeps what a way remembers warm. A way that has used up `GROWTH_S` between two sizes waits for the
next window; one that has used up `CUT_OFF_S` in a window, or on one call, is cut off there and then.
"""

from __future__ import annotations

import contextlib
import json
import math
import select
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from bench.environments import PEERS, REPO, Peer, environ
from bench.estimates import quantile
from bench.figures import Figure, Section
from bench.growing import bodies, messages
from openmem_hook.replay.provider.canonical import without_breakpoints

SEED = 0
SIZES_MB = (0.4, 2.0, 8.0)
STRIDES = (1, 4, 16)
"""Of the requests between the sizes, every so-many-th."""
WINDOW = 20
RESULT_CHARS = 6_000
CALLED = ("Read", "Bash", "Bash", "Grep", "Bash", "WebFetch", "Read")
"""Some peers leave the results of some tools alone, others only shorten those of some."""
REQUESTS_A_MB = 165
"""A little more than are needed."""
GROWTH_S, CUT_OFF_S = 30.0, 60.0
START_S = 120.0
BINS_A_DOUBLING = 3
"""Points of the curve: the median of the calls in each."""


class CutOffError(Exception):
    """A call took too long, or the way's process ended."""


@dataclass(slots=True)
class Answer:
    ms: float
    resident_mb: float
    messages: list[Any]
    size: int


class Worker:
    """A way in its process, ended when this is left."""

    def __init__(self, name: str, peer: Peer, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        worker = str(Path(__file__).with_name("peer_worker.py"))
        self._log = folder.with_suffix(".log").open("wb")
        self._process = subprocess.Popen(
            [str(peer.python), "-P", worker, name, str(folder)],
            cwd=REPO,
            env=environ(peer, folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self.started_mb: float = self._head(START_S)["resident_mb"]

    def ask(self, raw: bytes, seconds: float) -> Answer:
        """CutOffError after so many seconds."""
        source = self._process.stdin
        assert source is not None
        try:
            source.write(b"%d\n" % len(raw) + raw)
            source.flush()
        except BrokenPipeError as error:
            raise CutOffError("failed") from error
        head = self._head(seconds)
        out = self._process.stdout.read(head["bytes"])  # type: ignore[union-attr]
        return Answer(head["ms"], head["resident_mb"], orjson.loads(out), head["bytes"])

    def _head(self, seconds: float) -> dict[str, Any]:
        answers = self._process.stdout
        assert answers is not None
        if not select.select([answers], [], [], seconds)[0]:
            raise CutOffError("cut off")
        line = answers.readline()
        if not line:
            raise CutOffError("failed")
        return dict(json.loads(line))

    def stored_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def close(self) -> None:
        """As often as one likes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]
        self._log.close()


@dataclass(slots=True)
class Cell:
    """What one way did at one size. `window`: milliseconds of its consecutive requests."""

    window: list[float] = field(default_factory=list)
    growth_ms: float = 0.0
    came_in: int = 0
    sent: int = 0
    steps: int = 0
    whole: int = 0
    """Steps after which all that was sent before was sent again unchanged, in front."""
    shown: int = 0
    kept: int = 0
    resident_mb: float = 0.0
    stored_bytes: int = 0


@dataclass(slots=True)
class Way:
    name: str
    worker: Worker
    cells: list[Cell]
    calls: list[tuple[int, float]] = field(default_factory=list)
    """Bytes that came in, and milliseconds."""
    before: list[bytes] = field(default_factory=list)
    cut_at: int | None = None
    """The size at which it ended, and how."""
    ended: str = ""

    def take(self, at: int, raw: bytes, in_window: bool, limit_s: float, growth_s: float) -> None:
        cell = self.cells[at]
        spent = sum(cell.window) if in_window else cell.growth_ms
        if self.cut_at is not None or (not in_window and spent > growth_s * 1000):
            return
        try:
            answer = self.worker.ask(raw, limit_s)
        except CutOffError as error:
            self._cut(at, str(error))
            return
        self.calls.append((len(raw), answer.ms))
        if in_window:
            cell.window.append(answer.ms)
            cell.came_in += len(raw)
            cell.sent += answer.size + FRONT_BYTES
            cell.resident_mb = answer.resident_mb
        else:
            cell.growth_ms += answer.ms
        self._compare(cell, answer)
        if in_window and spent + answer.ms > limit_s * 1000:
            self._cut(at, "cut off")

    def _cut(self, at: int, how: str) -> None:
        """Its process ends, too: what it still works on would slow the others down."""
        self.cut_at, self.ended = at, how
        self.worker.close()

    def _compare(self, cell: Cell, answer: Answer) -> None:
        now = [orjson.dumps(without_breakpoints(message), option=orjson.OPT_SORT_KEYS) for message in answer.messages]
        if self.before:
            pairs = zip(self.before, now, strict=False)
            same = next((n for n, (old, new) in enumerate(pairs) if old != new), min(len(self.before), len(now)))
            cell.steps += 1
            cell.whole += same == len(self.before)
            cell.shown += sum(map(len, self.before))
            cell.kept += sum(map(len, self.before[:same]))
        self.before = now


def _front_bytes() -> int:
    raw = next(bodies(messages(1, 0)))
    return len(raw) - len(orjson.dumps(orjson.loads(raw)["messages"]))


FRONT_BYTES = _front_bytes()
"""System prompt and tools, which no way changes here."""


def plan(sizes: Sequence[int], strides: Sequence[int], window: int) -> Iterator[tuple[int, bytes, bool]]:
    """Requests of one session: which size they lead to, the body, whether they are of its window."""
    raws = bodies(messages(math.ceil(sizes[-1] / 1e6 * REQUESTS_A_MB), RESULT_CHARS, SEED, CALLED))
    at, held = 0, list[bytes]()
    for n, raw in enumerate(raws):
        held.append(raw)
        if len(held) > window:
            early = held.pop(0)
            if n % strides[at] == 0:
                yield at, early, False
        if len(raw) >= sizes[at]:
            yield from ((at, one, True) for one in held)
            held.clear()
            at += 1
            if at == len(sizes):
                return
    raise RuntimeError("the session is too short")


def run(folder: Path, quick: bool) -> Section:
    sizes = [round(mb * 1e6 / (10 if quick else 1)) for mb in SIZES_MB]
    window = WINDOW // 4 if quick else WINDOW
    limits = (CUT_OFF_S / 20, GROWTH_S / 20) if quick else (CUT_OFF_S, GROWTH_S)
    left_out = {name: "not installed" for name, peer in PEERS.items() if peer.version() is None}
    with contextlib.ExitStack() as started:
        ways: list[Way] = []
        for name, peer in PEERS.items():
            if name in left_out:
                continue
            try:
                worker = Worker(name, peer, folder / name.replace(" ", "-"))
            except CutOffError as error:
                left_out[name] = f"it did not start: {error}"
                continue
            started.callback(worker.close)
            ways.append(Way(name, worker, [Cell() for _ in sizes]))
        last = 0
        for n, (at, raw, in_window) in enumerate(plan(sizes, STRIDES, window)):
            for way in [*ways[n % len(ways) :], *ways[: n % len(ways)]]:
                way.take(at, raw, in_window, *limits)
                if in_window:
                    way.cells[at].stored_bytes = way.worker.stored_bytes()
            last = len(raw)
    rows = [row for way in ways for row in rows_of(way, sizes)]
    made = {
        "seed": SEED,
        "window": window,
        "cut_off_s": limits[0],
        "peers": {way.name: PEERS[way.name].version() for way in ways if PEERS[way.name].requirements},
        "left_out": left_out,
    }
    about = f"a session growing to {last / 1e6:.1f} MB, each way in a process of its own"
    return Section("peers", about, list(_figures(rows)), rows, made)


def rows_of(way: Way, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    for at, (size, cell) in enumerate(zip(sizes, way.cells, strict=True)):
        done = len(cell.window)
        yield {
            "kind": "cell",
            "way": way.name,
            "mb": size / 1e6,
            "calls": done,
            "ended": way.ended if way.cut_at is not None and at >= way.cut_at else "",
            "median_ms": round(statistics.median(cell.window), 3) if done else None,
            "p95_ms": round(quantile(cell.window, 0.95), 3) if done else None,
            "sent_share": round(cell.sent / cell.came_in, 5) if done else None,
            "steps": cell.steps,
            "steps_kept": cell.whole,
            "bytes_kept_share": round(cell.kept / cell.shown, 5) if cell.shown else None,
            "started_mb": round(way.worker.started_mb, 1),
            "resident_mb": round(cell.resident_mb, 1) if done else None,
            "stored_bytes": cell.stored_bytes if done else None,
        }
    for size, taken in curve(way.calls):
        yield {"kind": "curve", "way": way.name, "mb": size, "median_ms": taken}


def curve(calls: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """MB and median milliseconds of the calls of about one length."""
    groups: dict[int, list[tuple[int, float]]] = {}
    for size, taken in calls:
        groups.setdefault(math.floor(math.log2(size) * BINS_A_DOUBLING), []).append((size, taken))
    return [
        (round(statistics.median(s for s, _ in group) / 1e6, 4), round(statistics.median(t for _, t in group), 3))
        for _, group in sorted(groups.items())
    ]


def _figures(rows: Sequence[Mapping[str, Any]]) -> Iterator[Figure]:
    for row in rows:
        if row["kind"] != "cell" or not row["calls"]:
            continue
        at = f"{row['way']}, {row['mb']:g} MB"
        cut = f" of {row['calls']} calls, then {row['ended']}" if row["ended"] else ""
        yield Figure(f"{at}: median{cut}", row["median_ms"], "ms")
        yield Figure(f"{at}: bytes sent on", row["sent_share"] * 100, "%")
