"""Measuring beside peers: the plan of requests, what is counted, and who is cut off."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import sys
import time
from pathlib import Path

import orjson
import pytest

from bench import peers, servers
from bench.charts import PEERS as LINES
from bench.environments import PEERS, Peer
from bench.peer_worker import WAYS
from bench.peers import Answer, Cell, CutOffError, Way, Worker, plan


def test_a_window_is_the_last_requests_before_its_size_one_after_the_other() -> None:
    sizes = [40_000, 90_000]
    made = list(plan(sizes, (1, 3), 4))
    for at, size in enumerate(sizes):
        window = [orjson.loads(raw)["messages"] for where, raw, in_window in made if in_window and where == at]
        lengths = [len(messages) for messages in window]
        assert len(window) == 4 or at == 1
        assert lengths == list(range(lengths[0], lengths[0] + 2 * len(lengths), 2))
        longest = max(len(raw) for where, raw, _ in made if where == at)
        assert size <= longest < size + 25_000


def test_every_peer_has_a_worker_an_environment_and_a_line() -> None:
    assert set(PEERS) == set(WAYS) == {*LINES, "no hook"}


def test_a_worker_answers_with_time_memory_and_what_would_be_sent(tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}]}
    worker = Worker("no hook", PEERS["no hook"], tmp_path / "own")
    try:
        for _ in range(2):
            answer = worker.ask(orjson.dumps(body), 30)
            assert answer.messages == body["messages"]
            assert answer.ms >= 0
            assert answer.resident_mb > 1
    finally:
        worker.close()


def test_a_worker_that_fails_or_takes_too_long_is_cut_off(tmp_path: Path) -> None:
    worker = Worker("no hook", PEERS["no hook"], tmp_path / "own")
    with pytest.raises(CutOffError, match="failed"):
        worker.ask(b"{}", 30)  # no messages: its process ends
    worker.close()
    slow = tmp_path / "slow"
    slow.write_text(f"#!{sys.executable}\nimport time\nprint('{{\"resident_mb\": 1}}', flush=True)\ntime.sleep(60)\n")
    slow.chmod(0o700)

    class Slow(Peer):
        @property
        def python(self) -> Path:
            return slow

    worker = Worker("slow", Slow("slow"), tmp_path / "second")
    with pytest.raises(CutOffError, match="cut off"):
        worker.ask(b"{}", 0.1)
    worker.close()


async def test_what_watches_the_event_loop_tells_how_long_it_stood_still(tmp_path: Path) -> None:
    (tmp_path / "beat.py").write_text(servers.BEAT.replace("TOLD_S = 0.005, 0.5", "TOLD_S = 0.005, 0.1"))
    spec = importlib.util.spec_from_file_location("beat", tmp_path / "beat.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    begun = time.perf_counter()
    assert await module.beat.async_pre_call_hook(None, None, {"model": "m"}, "acompletion") == {"model": "m"}
    await asyncio.sleep(0.05)
    time.sleep(0.08)  # noqa: ASYNC251 - what is to be seen
    await asyncio.sleep(0.15)
    module.beat.task.cancel()
    gateway = servers.Server("", 0, tmp_path)
    assert max(gateway.gaps(begun, time.perf_counter())) > 70
    assert gateway.gaps(0, begun) == []


@dataclasses.dataclass
class ScriptedWorker:
    """A worker that says what it was told to."""

    answers: list[Answer | None]
    closed: bool = False

    def ask(self, raw: bytes, seconds: float) -> Answer:
        answer = self.answers.pop(0)
        if answer is None:
            raise CutOffError
        return answer

    def close(self) -> None:
        self.closed = True


def way(*answers: Answer | None) -> Way:
    return Way("scripted", ScriptedWorker(list(answers)), [Cell(), Cell()])  # type: ignore[arg-type]


def said(ms: float, *texts: str) -> Answer:
    messages = [{"role": "user", "content": text} for text in texts]
    return Answer(ms, 10.0, messages, len(orjson.dumps(messages)))


def test_a_prefix_is_kept_when_all_before_is_there_again_cache_breakpoints_aside() -> None:
    marked = Answer(1, 10, [{"role": "user", "content": "a", "cache_control": {"type": "ephemeral"}}], 9)
    taken = way(marked, said(1, "a", "b"), said(1, "a", "x", "c"))
    for _ in range(3):
        taken.take(0, b"{}", True, 60, 30)
    cell = taken.cells[0]
    assert (cell.steps, cell.whole) == (2, 1)
    assert 0 < cell.kept < cell.shown


def test_a_way_over_its_time_is_ended_and_asked_no_more() -> None:
    taken = way(said(40_000, "a"), said(40_000, "a"))
    for _ in range(4):
        taken.take(0, b"{}", True, 60, 30)
    taken.take(1, b"{}", True, 60, 30)
    assert (taken.cut_at, len(taken.cells[0].window), taken.worker.closed) == (0, 2, True)
    rows = [
        row for row in peers.rows_of(dataclasses.replace(taken, worker=_RowsOnly()), [1, 2]) if row["kind"] == "cell"
    ]
    assert [(row["calls"], row["ended"]) for row in rows] == [(2, "cut off"), (0, "cut off")]


class _RowsOnly:
    started_mb = 1.0


def test_a_slow_way_waits_for_the_next_window_once_its_time_between_is_gone() -> None:
    taken = way(said(20_000, "a"), said(20_000, "a"), said(5, "a"))
    for _ in range(4):
        taken.take(0, b"{}", False, 60, 30)
    taken.take(0, b"{}", True, 60, 30)
    assert taken.cut_at is None
    assert taken.cells[0].window == [5]


def test_a_curve_has_a_point_for_requests_of_about_one_length() -> None:
    assert peers.curve([(1_000_000, 5.0), (1_010_000, 7.0), (1_020_000, 6.0), (8_000_000, 50.0)]) == [
        (1.01, 6.0),
        (8.0, 50.0),
    ]
