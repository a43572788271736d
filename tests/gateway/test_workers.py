"""L6: whichever worker answers, the same history is sent in the same bytes; and no worker's death loses anything."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from random import Random

import pytest

from tests.conftest import CALL_TYPES, make_key
from tests.gateway.worker_processes import Worker, workers
from tests.harness.outage import FIRST_TRIM, FORMATS, TIGHT, Store, coding, from_gateway, messages_of, sent
from tests.kit.builders import Format, Json
from tests.kit.histories import growth
from tests.kit.prefix import broken_at, canonical

formats = pytest.mark.parametrize("fmt", FORMATS)
TIMES = 50


@formats
def test_two_processes_with_the_same_history_at_the_same_moment_send_the_same_bytes(
    state_dir: Path, fmt: Format
) -> None:
    requests = growth(coding(fmt, FIRST_TRIM + 5))
    with workers(state_dir, 2) as pair:
        for n in range(TIMES):
            for body in requests[-2:]:
                at = time.monotonic() + 0.005
                for worker in pair:
                    worker.ask(body, session=f"session {n}", at=at)
                one, two = (worker.answer() for worker in pair)
                assert canonical(one) == canonical(two)
                assert len(messages_of(one)) < len(messages_of(body))
        assert [worker.failures for worker in pair] == [0, 0]
    paths = list(state_dir.glob("context/*/sessions/*.db"))
    assert len(paths) == TIMES
    for path in paths:
        store = Store(state_dir, path)
        assert store.rows("SELECT count(*) FROM edits WHERE kind = 'cut'") == [(1,)]
        assert store.rows("SELECT count(*) FROM threads") == [(1,)]
        assert sorted(store.kept()) == sorted(canonical(message) for message in messages_of(requests[-1]))
    Store(state_dir).assert_sound()


@formats
async def test_hooks_of_one_process_and_retries_at_the_same_moment_send_the_same_bytes(
    new_hook, state_dir, fmt: Format
) -> None:
    requests = growth(coding(fmt, FIRST_TRIM + 5))
    hooks = [new_hook(**TIGHT), new_hook(**TIGHT | {"trim_to_fraction": 0.6})]
    for n in range(TIMES // 2):
        for body in requests[-2:]:
            data = [from_gateway(body, fmt, f"session {n}", f"call {call}") for call in range(4)]
            sending = [
                hooks[call % 2].async_pre_call_hook(make_key(), None, data[call], CALL_TYPES[fmt]) for call in range(4)
            ]
            outs = {canonical(sent(out, body)) for out in await asyncio.gather(*sending)}
            assert len(outs) == 1
    assert [hook.notices.failures for hook in hooks] == [0, 0]
    for path in state_dir.glob("context/*/sessions/*.db"):
        store = Store(state_dir, path)
        assert store.rows("SELECT count(*) FROM edits WHERE kind = 'cut'") == [(1,)]
        assert sorted(store.kept()) == sorted(canonical(message) for message in messages_of(requests[-1]))


@formats
def test_a_growing_session_may_reach_any_worker(state_dir: Path, fmt: Format) -> None:
    rng, before, cuts = Random(5), None, 0
    store = Store(state_dir)
    with workers(state_dir, 3) as three:
        for body in growth(coding(fmt, 40)):
            one, other = rng.sample(three, 2)
            for worker in (one, other):
                worker.ask(body)
            out, again = one.answer(), other.answer()
            assert canonical(out) == canonical(again)
            now = store.rows("SELECT count(*) FROM edits WHERE kind = 'cut'")[0][0]
            if before is not None and now == cuts:
                assert broken_at(before, out, fmt) is None
            before, cuts = out, now
            one.report(rng.randint(2000, 6000))
        assert [worker.failures for worker in three] == [0, 0, 0]
    assert cuts > 1
    store.assert_sound()


def test_four_processes_writing_to_one_session_lose_no_race_for_good(state_dir: Path) -> None:
    """Sub-agents of one session, each on a line of its own: a lost race is decided again, never an error."""
    lines = {f"agent-{n}": growth(coding("anthropic", 6, seed=n)) for n in range(32)}
    with workers(state_dir, 4) as four:
        for step in range(6):
            at = time.monotonic() + 0.02
            for n, worker in enumerate(four):
                agents = tuple(list(lines)[n::4])
                worker.ask(*(lines[agent][step] for agent in agents), agents=agents, at=at)
            for worker in four:
                worker.answers()
        assert [worker.failures for worker in four] == [0, 0, 0, 0]
    store = Store(state_dir)
    store.assert_sound()
    last = {canonical(message) for line in lines.values() for message in messages_of(line[5])}
    assert set(store.kept()) == last
    assert store.rows("SELECT count(*) FROM threads") == [(32,)]


def test_many_sessions_at_once_open_the_catalog_together(state_dir: Path) -> None:
    """First contact of every process with a store that is not there yet."""
    requests = growth(coding("chat", 2))
    with workers(state_dir, 4) as four:
        at = time.monotonic() + 0.3
        for n, worker in enumerate(four):
            worker.ask(requests[0], session=f"session {n}", at=at)
        for worker in four:
            worker.answer()
        assert [worker.failures for worker in four] == [0, 0, 0, 0]
    Store(state_dir).assert_sound()


@formats
def test_killed_at_any_moment_another_worker_goes_on(state_dir: Path, fmt: Format) -> None:
    """SIGKILL during a request or between two; the client tries again, as clients do."""
    rng, store = Random(11), Store(state_dir)
    requests = growth(coding(fmt, 40))
    worker, before, kills, cuts = Worker(state_dir), None, 0, 0
    for at, body in enumerate(requests):
        worker.ask(body)
        if at % 4 == 3:
            time.sleep(rng.uniform(0.0, 0.02))
            worker.kill()
            kills += 1
            worker = Worker(state_dir)
            worker.ask(body)
        out = worker.answer()
        now = store.rows("SELECT count(*) FROM edits WHERE kind = 'cut'")[0][0]
        if before is not None and now == cuts:
            assert broken_at(before, out, fmt) is None
        before, cuts = out, now
    worker.kill()
    assert kills == 10
    assert cuts > 1
    with workers(state_dir, 1) as (other,):
        other.ask(requests[-1])
        assert canonical(other.answer()) == canonical(before)
        assert other.failures == 0
    assert sorted(store.kept()) == sorted(canonical(message) for message in messages_of(requests[-1]))
    store.assert_sound()


def test_a_worker_killed_in_the_middle_of_a_write_leaves_nothing_of_it(state_dir: Path) -> None:
    requests, store = growth(coding("anthropic", 24)), Store(state_dir)
    with workers(state_dir, 2) as (one, two):
        for body in requests[: FIRST_TRIM + 3]:
            one.ask(body)
            before = one.answer()
        edits = store.rows("SELECT * FROM edits")
        one.hold(store.session)
        one.kill()
        two.ask(requests[FIRST_TRIM + 3])
        assert broken_at(before, two.answer(), "anthropic") is None
        assert two.failures == 0
        assert store.rows("SELECT * FROM edits")[: len(edits)] == edits
    store.assert_sound()


def test_usage_reported_to_one_worker_is_known_to_the_others(state_dir: Path) -> None:
    requests, store = growth(coding("anthropic", 8)), Store(state_dir)
    with workers(state_dir, 2) as (one, two):
        for n, body in enumerate(requests):
            worker = (one, two)[n % 2]
            worker.ask(body)
            worker.answer()
            worker.report(1000 + 300 * n)
    assert store.rows("SELECT count(*) FROM reports") == [(len(requests),)]
    row_tokens: list[Json] = store.rows("SELECT tokens FROM records WHERE tokens IS NOT NULL")
    assert len(row_tokens) >= len(requests)
