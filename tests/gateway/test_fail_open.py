"""L10: whatever fails, the client's request goes through, legal, with the edits already known, and the store is
used again when it can be, without a restart. The checks on every answer are in `outage.Client`."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import orjson
import pytest
from blockbuster import blockbuster_ctx

from openmem_hook import compactor, config, recorder, tokens
from openmem_hook.compaction import decision, estimate, pipeline, record
from openmem_hook.formats import breakpoints
from openmem_hook.formats.decode import decode
from openmem_hook.gateway import client_values, models
from openmem_hook.gateway import session as gateway_session
from openmem_hook.store import catalog, database, executor, fulltext, names
from openmem_hook.store import session as session_module
from openmem_hook.store import store as store_module
from openmem_hook.store.database_file import DatabaseFile
from tests.conftest import CALL_TYPES, make_key
from tests.harness.outage import (
    DAMAGES,
    FIRST_TRIM,
    FORMATS,
    SMALL_CHANGE_S,
    STRIKES,
    TIGHT,
    Client,
    Failing,
    Store,
    a_file_in_the_place_of,
    canonical,
    failing,
    from_gateway,
    messages_of,
    slow,
)  # fmt: skip
from tests.kit.builders import Format, Json, session
from tests.kit.prefix import broken_at

formats = pytest.mark.parametrize("fmt", FORMATS)


def each(name: str, values: Iterable[Any], ids: Callable[[Any], str] | None = None) -> pytest.MarkDecorator:
    """Parametrises by values, each in one format; neighbours in different ones."""
    pairs = [(value, FORMATS[n % len(FORMATS)]) for n, value in enumerate(values)]
    return pytest.mark.parametrize(
        (name, "fmt"), pairs, ids=ids and (lambda given: given if isinstance(given, str) else ids(given))
    )


@pytest.fixture
def failing_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """All connections to the store are `Failing` ones; nothing fails yet."""
    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Failing))


# --- faults of the store ------------------------------------------------------------------------------------


@each("strike", STRIKES)
async def test_a_trimmed_session_goes_on_through_a_fault_and_after_it(
    new_hook, state_dir, fmt: Format, strike: str
) -> None:
    client, store = Client(new_hook(**TIGHT), fmt), Store(state_dir)
    await client.until_trimmed()
    with STRIKES[strike](store), client.in_a_hurry():
        await client.go_on(3)
        assert client.trimmed, "the edits already known were not made"
    await client.go_on(3)
    assert client.trimmed
    assert sorted(store.kept()) == sorted(canonical(m) for m in messages_of(client.requests[client.at - 1]))
    store.assert_sound()


@each("damage", DAMAGES)
async def test_a_trimmed_session_goes_on_after_its_store_was_damaged(
    new_hook, state_dir, fmt: Format, damage: str
) -> None:
    client, store = Client(new_hook(**TIGHT), fmt), Store(state_dir)
    await client.until_trimmed()
    with DAMAGES[damage](store):
        await client.go_on(4)
    assert client.trimmed
    client.hook.compactor.close()
    client.hook = new_hook(**TIGHT)
    await client.go_on(2, breaks="session" in damage)
    newest = {canonical(m) for m in messages_of(client.requests[client.at - 1])}
    assert newest <= set(store.kept()), "what is in the request can be read back from the new store"


@pytest.mark.parametrize("damage", ["the session's file deleted", "garbage over all of the session"])
async def test_edits_outlive_the_database_they_stood_in(new_hook, state_dir, damage: str) -> None:
    """Memory writes them to the new one, and tells the catalog."""
    client, store = Client(new_hook(**TIGHT), "anthropic"), Store(state_dir)
    await client.until_trimmed()
    edits = "SELECT kind, name, key, call_id, payload FROM edits ORDER BY 1, 2"
    before = store.rows(edits)
    with DAMAGES[damage](store):
        await client.go_on(2)
    assert set(before) <= set(store.rows(edits))
    client.hook = new_hook(**TIGHT)
    await client.go_on(2)
    assert client.trimmed


async def test_a_catalog_that_was_lost_learns_again_what_its_sessions_have(new_hook, state_dir, monkeypatch) -> None:
    client, store = Client(new_hook(**TIGHT), "anthropic"), Store(state_dir)
    await client.until_trimmed()
    monkeypatch.setattr(store_module, "TOUCH_S", 0.0)
    with DAMAGES["the catalog deleted"](store):
        await client.go_on()
    forked = Client(client.hook, "anthropic", session="a fork")
    forked.requests, forked.at = client.requests, client.at
    await forked.go_on()
    assert forked.outs[-1] == client.outs[-1] or broken_at(client.outs[-1], forked.outs[-1], "anthropic") is None


@pytest.mark.parametrize("stage", ["BEGIN IMMEDIATE", "INSERT OR IGNORE INTO records", "COMMIT", "PRAGMA", ""])
@pytest.mark.parametrize(
    "name", ["SQLITE_READONLY", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_BUSY", "SQLITE_CANTOPEN", "SQLITE_CORRUPT"]
)
async def test_every_error_of_sqlite_at_every_stage_lets_requests_through(
    new_hook, state_dir, failing_connections, name: str, stage: str
) -> None:
    client, store = Client(new_hook(**TIGHT), "anthropic"), Store(state_dir)
    await client.until_trimmed()
    with failing(name, stage):
        await client.go_on(2)
        assert client.trimmed
        assert client.hook.notices.failures == 2
    await client.go_on(3)
    assert client.trimmed
    assert client.hook.notices.failures == 2
    store.assert_sound()


@formats
async def test_a_first_contact_during_a_fault_has_the_note_and_is_taken_up_after_it(
    new_hook, state_dir, fmt: Format
) -> None:
    state_dir.mkdir()
    client, store = Client(new_hook(**TIGHT), fmt), Store(state_dir)
    store.context.mkdir()
    with a_file_in_the_place_of(store.context):
        await client.go_on(6)
    await client.go_on(3)
    store.assert_sound()
    assert len(store.kept()) == len(messages_of(client.requests[client.at - 1]))
    for _ in range(6):
        await client.go_on(breaks=True)
    assert client.trimmed


async def test_a_folder_that_cannot_be_made_lets_requests_through_and_may_come_later(new_hook, state_dir) -> None:
    state_dir.write_text("in the way")
    client = Client(new_hook(**TIGHT), "chat")
    await client.go_on(3)
    state_dir.unlink()
    await client.go_on(3)
    assert len(Store(state_dir).kept()) == len(messages_of(client.requests[client.at - 1]))


@pytest.mark.parametrize("meanwhile", ["a restart", "another worker"])
@formats
async def test_results_sent_raw_during_a_fault_stay_raw_for_whoever_comes_next(
    new_hook, state_dir, fmt: Format, meanwhile: str
) -> None:
    first, store = new_hook(**TIGHT), Store(state_dir)
    client = Client(first, fmt)
    await client.until_trimmed()
    if meanwhile == "another worker":
        client.hook = new_hook(**TIGHT)
        await client.again()
    second = client.hook
    with STRIKES["a catalog of a newer version"](store), STRIKES["a session of a newer version"](store):
        client.hook = first
        await client.go_on(4)
    assert long_results(client.outs[-1]) == 1
    client.hook = new_hook(**TIGHT) if meanwhile == "a restart" else second
    await client.go_on(3)
    assert long_results(client.outs[-1]) == 1, "only what came after the fault is compressed"


def long_results(body: Json) -> int:
    return sum(len(orjson.dumps(message)) > 2400 for message in messages_of(body))


async def test_a_session_forgotten_by_the_pool_still_knows_what_it_sent_raw(new_hook, state_dir, monkeypatch) -> None:
    """While a store can't be written only memory knows; it is kept beyond the usual number of sessions."""
    monkeypatch.setattr("openmem_hook.store.pool.KNOWN_SESSIONS", 2)
    monkeypatch.setattr("openmem_hook.store.pool.OPEN_SESSIONS", 1)
    hook, store = new_hook(**TIGHT), Store(state_dir)
    client = Client(hook, "anthropic")
    await client.until_trimmed()
    with a_file_in_the_place_of(store.context):
        await client.go_on(4)
        for n in range(5):
            await Client(hook, "anthropic", session=f"another {n}").go_on(2)
        await client.go_on(1)
    await client.go_on(2)


# --- faults inside ------------------------------------------------------------------------------------------

BEFORE_MEMORY: list[tuple[Any, str]] = [
    (store_module, "decode"),
    (pipeline, "find_active_edits"),
    (decision, "finish"),
    (pipeline, "place"),
    (names, "session_name"),
    (gateway_session, "session_of"),
    (client_values, "headers_of"),
    (models, "facts_for"),
    (config, "resolve"),
]
"""Without these memory can't be asked either: the request goes out as it came."""

INSIDE: list[tuple[Any, str]] = [
    (compactor, "decide"),
    (record, "_rows"),
    (record, "list_events"),
    (compactor, "measure_savings"),
    (record, "find_replaced_threads"),
    (record, "_hidden_by_new_edits"),
    (tokens, "estimate"),
    (estimate, "estimate_whole"),
    (estimate, "estimate_prompt"),
    (breakpoints, "layout"),
    (session_module, "claim"),
    (session_module, "version"),
    (session_module, "pack"),
    (recorder, "_open_call"),
    (catalog, "touch"),
    (catalog, "read_rate"),
    (catalog, "find_anchor"),
    (catalog, "index_edits"),
    (catalog, "record"),
    (database, "connect"),
    (database, "inode"),
    (database, "transaction"),
    (fulltext, "index"),
]


def named(seam: tuple[Any, str]) -> str:
    return f"{getattr(seam[0], '__name__', seam[0])}.{seam[1]}"


@each("seam", INSIDE, named)
async def test_an_exception_inside_leaves_what_memory_knows(
    new_hook, state_dir, monkeypatch, fmt: Format, seam: tuple[Any, str]
) -> None:
    client, store = Client(new_hook(**TIGHT), fmt), Store(state_dir)
    await client.until_trimmed()
    with monkeypatch.context() as patch:
        patch.setattr(*seam, raising)
        await client.go_on(3)
        assert client.trimmed
    await client.go_on(3)
    assert client.trimmed
    store.assert_sound()
    assert len(store.kept()) == len(messages_of(client.requests[client.at - 1]))


@each("seam", BEFORE_MEMORY, named)
async def test_an_exception_on_the_way_to_memory_leaves_the_body_untouched(
    new_hook, state_dir, monkeypatch, fmt: Format, seam: tuple[Any, str]
) -> None:
    client, store = Client(new_hook(**TIGHT), fmt), Store(state_dir)
    await client.until_trimmed()
    body = from_gateway(client.requests[client.at], fmt, client.session, "call")
    with monkeypatch.context() as patch:
        patch.setattr(*seam, raising)
        assert await client.hook.async_pre_call_hook(client.key, None, body, CALL_TYPES[fmt]) is body
    client.at += 1
    await client.go_on(3)
    assert client.trimmed
    store.assert_sound()


def raising(*given: Any, **named: Any) -> Any:
    raise ZeroDivisionError("a seam gave way")


@pytest.mark.parametrize("seam", [(compactor, "measure_savings"), (recorder, "_open_call")], ids=named)
@formats
async def test_a_failure_after_the_commit_sends_the_bytes_that_were_committed(
    new_hook, state_dir, monkeypatch, fmt: Format, seam: tuple[Any, str]
) -> None:
    """At the very request that makes the first cut: the answer has it, and so has every later one."""
    hook, store = new_hook(**TIGHT), Store(state_dir)
    client = Client(hook, fmt)
    await client.go_on(FIRST_TRIM)
    with monkeypatch.context() as patch:
        patch.setattr(*seam, fails_once(getattr(*seam)))
        await client.go_on(breaks=True)
    assert client.trimmed
    assert store.rows("SELECT count(*) FROM edits WHERE kind = 'cut'") == [(1,)]
    assert hook.notices.failures == 1
    await client.go_on(2)
    await client.report()
    assert store.rows("SELECT count(*) FROM events WHERE kind = 'usage'") == [(1,)]


@formats
async def test_a_body_that_can_not_be_built_is_not_recorded_as_sent(
    new_hook, state_dir, monkeypatch, fmt: Format
) -> None:
    hook, store = new_hook(**TIGHT), Store(state_dir)
    client = Client(hook, fmt)
    await client.go_on(FIRST_TRIM)
    with monkeypatch.context() as patch:
        patch.setattr(decision, "finish", fails_once(decision.finish))
        await client.go_on()
    assert not client.trimmed
    assert store.rows("SELECT count(*) FROM edits WHERE kind = 'cut'") == [(0,)]
    assert hook.notices.failures == 1
    await client.go_on(breaks=True)
    assert client.trimmed


def fails_once(work: Callable[..., Any]) -> Callable[..., Any]:
    left = [1]

    def once(*given: Any, **named: Any) -> Any:
        if left:
            left.pop()
            raise ZeroDivisionError("a step after the commit gave way")
        return work(*given, **named)

    return once


# --- time ---------------------------------------------------------------------------------------------------


@each("stage", ["BEGIN IMMEDIATE", "INSERT OR IGNORE INTO records", "INSERT OR REPLACE INTO edits"])
async def test_what_was_not_decided_in_time_is_not_recorded_as_sent(
    new_hook, state_dir, failing_connections, fmt: Format, stage: str
) -> None:
    """At the request that would make the first cut: it goes out without, and none stands in the store."""
    client, store = Client(new_hook(**TIGHT), fmt), Store(state_dir)
    await client.go_on(FIRST_TRIM)
    edits = store.rows("SELECT * FROM edits")
    with slow(1.5, stage), client.in_a_hurry():
        await client.go_on()
        assert not client.trimmed
        await settled(client)
    assert [edit for edit in store.rows("SELECT * FROM edits WHERE state = 'active'") if edit not in edits] == []
    assert store.rows("SELECT count(*) FROM events WHERE kind = 'trim'") == [(0,)]
    assert store.rows("SELECT count(*) FROM messages WHERE NOT in_context AND kind <> 'result'") == [(0,)]
    await client.go_on(2, breaks=True)
    assert client.trimmed


@each("stage", ["BEGIN IMMEDIATE", "COMMIT", "COMMIT"])
async def test_results_of_a_request_that_was_not_decided_in_time_stay_raw(
    new_hook, state_dir, failing_connections, fmt: Format, stage: str
) -> None:
    client, store = Client(new_hook(**TIGHT), fmt), Store(state_dir)
    await client.go_on(4)
    with slow(1.5, stage), client.in_a_hurry():
        await client.go_on()
        await settled(client)
    assert long_results(client.outs[-1]) == 1
    client.hook = new_hook(**TIGHT)
    await client.go_on(2)
    assert long_results(client.outs[-1]) == 1
    store.assert_sound()


async def settled(client: Client) -> None:
    """The worker that was given up on is done."""
    session = client.hook.compactor.store.pool.sessions_in_memory()[0]
    await asyncio.sleep(0.05)
    await asyncio.to_thread(session.lock.acquire)
    session.lock.release()


async def test_a_commit_that_comes_soon_after_the_deadline_is_waited_for(
    new_hook, state_dir, failing_connections, monkeypatch
) -> None:
    monkeypatch.setattr(executor, "COMMIT_GRACE_S", 5.0)
    client = Client(new_hook(**TIGHT), "anthropic")
    await client.go_on(FIRST_TRIM)
    with slow(1.0, "COMMIT"), client.in_a_hurry():
        await client.go_on(breaks=True)
    assert client.trimmed
    assert client.hook.notices.failures == 0


async def test_a_large_history_that_is_not_stored_in_time_is_there_the_next_time(
    new_hook, state_dir, monkeypatch
) -> None:
    """Else a disk that is always too slow would keep a session from ever being trimmed."""
    client, store = Client(new_hook(**TIGHT), "anthropic"), Store(state_dir)
    client.at = FIRST_TRIM - 2
    with monkeypatch.context() as patch, client.in_a_hurry():
        patch.setattr(fulltext, "index", lambda *given, **named: time.sleep(1.0) is None)
        await client.go_on()
        await settled(client)
    assert len(store.kept()) == len(messages_of(client.requests[client.at - 1]))
    assert client.hook.notices.failures == 1


async def test_a_store_that_hangs_holds_up_no_other_session_beyond_its_deadline(
    new_hook, state_dir, failing_connections
) -> None:
    hook = new_hook(**TIGHT | {"deadline_s": 0.5})
    clients = [Client(hook, "anthropic", session=f"session {n}", most=2) for n in range(24)]
    with slow(0.3, "", of=""):
        await asyncio.gather(*(client.go_on(2) for client in clients))
    assert max(max(client.took) for client in clients) < 0.5 + SMALL_CHANGE_S


@formats
async def test_nothing_of_ours_blocks_the_event_loop(new_hook, state_dir, fmt: Format) -> None:
    client, store = Client(new_hook(**TIGHT), fmt), Store(state_dir)
    with blockbuster_ctx(scanned_modules=["openmem_hook"]):
        await client.until_trimmed()
        await client.report()
    with a_file_in_the_place_of(store.context), blockbuster_ctx(scanned_modules=["openmem_hook"]):
        await client.go_on(2)
        await client.report()
    with blockbuster_ctx(scanned_modules=["openmem_hook"]):
        await client.go_on(2)


async def test_memory_is_asked_without_touching_a_file(new_hook, monkeypatch) -> None:
    """Also not those of other sessions, which it may be time to close: a disk that hangs holds up no answer."""
    monkeypatch.setattr("openmem_hook.store.pool.OPEN_SESSIONS", 1)
    hook = new_hook(**TIGHT)
    clients = [Client(hook, "chat", session=f"session {n}", most=5) for n in range(3)]
    for client in clients:
        await client.go_on(3)
    touched: list[Any] = []
    for name in ("inode", "connect", "transaction"):
        monkeypatch.setattr(database, name, lambda *given: touched.append(given) or raising())
    monkeypatch.setattr(DatabaseFile, "close", touched.append)
    monkeypatch.setattr(hook.compactor, "_compact", raising)
    for client in clients:
        await client.go_on(2)
    assert touched == []
    monkeypatch.undo()


async def test_a_body_is_taken_apart_off_the_event_loop_when_memory_is_asked_too(new_hook, monkeypatch) -> None:
    client, where = Client(new_hook(**TIGHT), "chat"), []

    def noticed(*given: Any) -> Any:
        where.append(threading.current_thread())
        return decode(*given)

    monkeypatch.setattr(store_module, "decode", noticed)
    monkeypatch.setattr(compactor, "decide", raising)
    await client.go_on()
    assert len(where) == 2
    assert threading.main_thread() not in where


async def test_the_event_loop_is_never_held_for_long_while_the_store_is_slow(
    new_hook, state_dir, failing_connections
) -> None:
    """A megabyte of history, failing and replayed; best of five."""
    hook = new_hook(**TIGHT | {"deadline_s": 0.2})
    body = from_gateway(session("anthropic", exchanges=300, size=3000), "anthropic", "large", "call")
    gaps = []
    with slow(0.3, "PRAGMA data_version"):
        for _ in range(5):
            gaps.append(await longest_gap(hook.async_pre_call_hook(make_key(), None, body, "anthropic_messages")))
            if gaps[-1] < 0.02:
                break
    assert hook.notices.failures == len(gaps)
    assert min(gaps) < 0.02


async def longest_gap(work: Any) -> float:
    """Seconds the loop was away at most while the work was done, as far as this process was computing."""
    gaps, last = [0.0], (time.perf_counter(), time.process_time())
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.sleep(0.001)
        now = (time.perf_counter(), time.process_time())
        gaps.append(min(now[0] - last[0] - 0.001, now[1] - last[1]))
        last = now
    await task
    return max(gaps)


# --- cancellation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["BEGIN IMMEDIATE", "COMMIT"])
async def test_cancellation_is_raised_again_and_leaves_a_whole_store(
    new_hook, state_dir, failing_connections, stage: str
) -> None:
    client, store = Client(new_hook(**TIGHT), "anthropic"), Store(state_dir)
    await client.go_on(FIRST_TRIM)
    before = len(store.kept())
    with slow(0.3, stage):
        sending = asyncio.ensure_future(client.go_on())
        await asyncio.sleep(0.1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await settled(client)
    assert client.hook.notices.failures == 0
    assert len(store.kept()) == (before if stage == "BEGIN IMMEDIATE" else before + 2)
    await client.go_on(2, breaks=True)
    assert client.trimmed
    store.assert_sound()


async def test_cancellation_during_a_replay_is_raised_again(new_hook, state_dir, monkeypatch) -> None:
    client = Client(new_hook(**TIGHT), "anthropic")
    await client.go_on(3)
    with monkeypatch.context() as patch:
        patch.setattr(compactor, "decide", raising)
        patch.setattr(compactor, "replay", lambda inputs: time.sleep(0.3))
        sending = asyncio.ensure_future(client.go_on())
        await asyncio.sleep(0.1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
    await client.go_on(2)


async def test_a_replay_has_a_deadline_too(new_hook, state_dir, monkeypatch) -> None:
    """Memory alone answers, but its threads may be taken: the client's own body goes out then."""
    client = Client(new_hook(**{**TIGHT, "deadline_s": 0.2}), "anthropic")
    await client.go_on(2)
    ended = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(compactor, "decide", raising)
        patch.setattr(client.hook.compactor, "_replay", lambda request: ended.wait(30))
        body = from_gateway(session("anthropic", exchanges=2), "anthropic", "session-1", "late")
        begun = time.monotonic()
        out = await client.hook.async_pre_call_hook(make_key(), None, body, "anthropic_messages")
        taken = time.monotonic() - begun
        ended.set()
    assert out is body
    assert taken < 15
