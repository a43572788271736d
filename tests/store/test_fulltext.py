"""What a request stores at once and what is done behind it: indexing, merging, emptying the log."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from openmem_hook.gateway.hook import ContextHook
from openmem_hook.store import database, fulltext
from openmem_hook.store.open_session import CHORES_EVERY, OpenSession
from tests.harness.conversation import Conversation
from tests.harness.outage import assert_in_step
from tests.kit.builders import session
from tests.kit.histories import growth

NewHook = Callable[..., ContextHook]
SETTLED_S = 30


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(database.connect(tmp_path / "session.db", "session")) as opened:
        yield opened


def store(db: sqlite3.Connection, *texts: str) -> None:
    """Messages with these texts, one line each, not indexed."""
    made = "INSERT INTO records VALUES (?, ?, '', '', 1, 'user', 'typed', '', 1, 0, NULL, 'anthropic', '')"
    for seq, text in enumerate(texts, 1):
        db.execute(made, (seq, str(seq).encode()))
        db.execute("INSERT INTO lines (id, text) VALUES (?, ?)", (seq << fulltext.LINE_BITS | 1, text))


def indexed(db: sqlite3.Connection) -> list[int]:
    return [seq for (seq,) in db.execute("SELECT id FROM messages_fts_docsize ORDER BY id")]


def only(hook: ContextHook) -> OpenSession:
    (session,) = hook.compactor.store.pool.sessions_in_memory()
    return session


def settle(hook: ContextHook) -> None:
    """Waits for what is done behind the requests."""
    end = time.monotonic() + SETTLED_S
    while only(hook).chores.is_running or only(hook).chores.due:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_messages_are_indexed_in_order_and_none_that_is_too_long_for_now(db: sqlite3.Connection) -> None:
    store(db, "a" * 10, "b" * 10, "c" * 10)
    assert not fulltext.index(db, 25)
    assert indexed(db) == [1, 2]
    assert not fulltext.index(db, 5)
    assert indexed(db) == [1, 2]
    assert fulltext.index(db, 10)
    assert indexed(db) == [1, 2, 3]


def test_a_message_longer_than_a_piece_is_a_piece_of_its_own(db: sqlite3.Connection) -> None:
    store(db, "a" * 100, "b")
    assert not fulltext.index(db, 50, least=1)
    assert indexed(db) == [1]


async def test_a_large_history_is_stored_at_once_and_indexed_behind_the_request(new_hook: NewHook) -> None:
    hook = new_hook()
    talk = Conversation(hook)
    await talk.send(session("anthropic", exchanges=100, size=4_000))
    assert len(talk.rows()) == 201
    settle(hook)
    with closing(sqlite3.connect(only(hook).file.path)) as db:
        assert indexed(db) == list(range(1, 202))
        assert_in_step(db)


async def test_a_request_of_ordinary_size_leaves_nothing_to_index(new_hook: NewHook) -> None:
    hook = new_hook()
    await Conversation(hook).send(session("anthropic", exchanges=3))
    with closing(sqlite3.connect(only(hook).file.path)) as db:
        assert_in_step(db)


async def test_segments_and_log_stay_few_and_small_over_a_session(new_hook: NewHook) -> None:
    hook = new_hook()
    talk = Conversation(hook)
    for body in growth(session("anthropic", exchanges=60, size=3_000)):
        await talk.send(body)
    settle(hook)
    path = only(hook).file.path
    with closing(sqlite3.connect(path)) as db:
        segments = db.execute("SELECT count(DISTINCT segid) FROM lines_fts_idx").fetchone()[0]
        assert_in_step(db)
    assert segments < 2 * CHORES_EVERY
    assert path.with_name(f"{path.name}-wal").stat().st_size < 1_500_000


async def test_what_a_worker_left_over_is_done_by_the_next_one(
    new_hook: NewHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = new_hook()
    monkeypatch.setattr(
        first.compactor.store, "tidy_later", lambda _: None
    )  # a worker that ended right after the request
    *before, last = growth(session("anthropic", exchanges=40, size=4_000))
    await Conversation(first).send(before[-1])
    with closing(sqlite3.connect(only(first).file.path)) as db:
        assert len(indexed(db)) < len(before[-1]["messages"]), "a request indexes only so much itself"
    second = new_hook()
    talk = Conversation(second)
    await talk.send(last)
    settle(second)
    with closing(sqlite3.connect(only(second).file.path)) as db:
        assert_in_step(db)
