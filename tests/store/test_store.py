"""The store by itself: how databases are opened, what they hold, how they are shared, lost and found again."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openmem_hook import fingerprint
from openmem_hook.compaction.edits import Cut, Edit, Edits, Swap
from openmem_hook.compaction.state import SessionState
from openmem_hook.compaction.threads import Thread
from openmem_hook.compaction.write import Event, NewRow, UsageWrite, Write
from openmem_hook.store import catalog, database, fulltext, names, session
from openmem_hook.store.database import SessionBusyError, StoreError
from openmem_hook.store.database_file import DatabaseFile
from openmem_hook.store.handshake import Handshake, NotWaitedForError, Permission
from openmem_hook.store.open_session import OpenSession
from openmem_hook.store.pool import Pool
from openmem_hook.store.session import pack, unpack
from openmem_hook.text import searchable
from openmem_hook.tokens import Sizes
from tests.compaction.samples import SAMPLES
from tests.harness.outage import Failing, assert_in_step, error, failing, striking

KINDS = ("catalog", "session")
kinds = pytest.mark.parametrize("kind", KINDS)


def row(text: str, n: int = 0, **more: Any) -> NewRow:
    fields: dict[str, Any] = {
        "role": "user",
        "kind": "typed",
        "tool_name": "",
        "in_context": True,
        "format": "chat",
        **more,
    }
    key = names.session_name(text, str(n)).encode()
    body = fingerprint.dump({"role": "user", "content": text})
    return NewRow(key=key, past=b"past", digest=key, text=searchable(text), body=body, **fields)


def thread(**more: Any) -> Thread:
    fields = {"id": 0, "name": "main", "agent": "", "root": b"root", "last_key": b"last", "has_tools": True, **more}
    return Thread(**{"note": 1, "result_chars": 1000, **fields})


def cut(anchor: bytes = b"anchor", **more: Any) -> Cut:
    fields: dict[str, Any] = {"anchor_digest": b"digest", "anchor_unique": True, "before": None}
    fields |= {
        "recent_outputs": (b"output",),
        "head": b"[]",
        "shown_digests": (b"shown",),
        "head_sizes": Sizes(words=3),
    }
    return Cut(id="0" * 16, reason="limit", generation=1, anchor=anchor, **{**fields, **more})


def swap(call_id: str = "tool:1", key: bytes = b"key", **more: Any) -> Swap:
    fields: dict[str, Any] = {"id": "1" * 16, "reason": "size", "text": "short \ud800", **more}
    return Swap(key=key, call_id=call_id, **fields)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tenant" / "sessions" / "a.db"


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(database.connect(path, "session")) as opened:
        yield opened


@contextlib.contextmanager
def open_session(path: Path) -> Iterator[OpenSession]:
    """A session as a worker has it, up to date."""
    worker = OpenSession("tenant", "a", DatabaseFile(path, "session"))
    worker.refresh()
    yield worker
    worker.file.close()


@pytest.fixture
def worker(path: Path) -> Iterator[OpenSession]:
    with open_session(path) as opened:
        yield opened


def claim(worker: OpenSession, *rows: NewRow, edits: Sequence[Edit] = (), **more: Any) -> bool:
    """True where the decision counts."""
    handshake = more.pop("handshake", None) or Handshake()
    write = Write(next(iter(worker.state.threads.values()), None) or thread(), rows, Edits.of(edits), **more)
    assert worker.file.db is not None
    return worker.write(worker.file.db, write, handshake) is not None


def query(worker: OpenSession, sql: str) -> list[Any]:
    assert worker.file.db is not None
    return worker.file.db.execute(sql).fetchall()


def stored(path: Path) -> SessionState:
    """What a worker that comes new loads."""
    with open_session(path) as other:
        return other.state


# --- opening ------------------------------------------------------------------------------------------------


@kinds
def test_a_new_database_is_migrated_and_opens_again_as_it_is(path: Path, kind: str) -> None:
    for _ in range(2):
        with contextlib.closing(database.connect(path, kind)) as db:
            assert db.execute("PRAGMA user_version").fetchone() == (len(database.migrations(kind)),)
            assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@kinds
def test_a_migration_that_fails_leaves_nothing_of_it(path: Path, kind: str, monkeypatch) -> None:
    with contextlib.closing(database.connect(path, kind)):
        pass
    known = database.migrations(kind)
    broken = (*known, "CREATE TABLE half (a);\nCREATE TABLE half (a);\n")
    monkeypatch.setattr(database, "migrations", lambda kind: broken)
    with pytest.raises(sqlite3.OperationalError):
        database.connect(path, kind)
    monkeypatch.setattr(database, "migrations", lambda kind: known)
    with contextlib.closing(database.connect(path, kind)) as db:
        assert db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'half'").fetchone() == (0,)


@kinds
def test_a_later_version_migrates_once_and_an_earlier_one_refuses(path: Path, kind: str, monkeypatch) -> None:
    with contextlib.closing(database.connect(path, kind)):
        pass
    known = database.migrations(kind)
    later = (*known, "CREATE TABLE later (a);\nINSERT INTO later VALUES ('a;b');\n")
    monkeypatch.setattr(database, "migrations", lambda kind: later)
    for _ in range(2):
        with contextlib.closing(database.connect(path, kind)) as db:
            assert db.execute("SELECT a FROM later").fetchall() == [("a;b",)]
    monkeypatch.setattr(database, "migrations", lambda kind: known)
    with pytest.raises(StoreError, match=f"schema {len(later)}, this version of openmem knows {len(known)}"):
        database.connect(path, kind)


def test_a_version_that_came_while_this_one_waited_is_not_lowered(path: Path, monkeypatch) -> None:
    """Two versions of the program start on one new database: the earlier one waited for the later one's lock."""
    with contextlib.closing(database.connect(path, "session")):
        pass
    later = sqlite3.connect(path, isolation_level=None)

    def meanwhile(path: str, sql: str) -> None:
        if sql == "BEGIN IMMEDIATE":
            later.execute("PRAGMA user_version = 99")

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Failing))
    newer = (*database.migrations("session"), "")
    monkeypatch.setattr(database, "migrations", lambda kind: newer)
    with striking(meanwhile), pytest.raises(StoreError, match="schema 99"):
        database.connect(path, "session")
    assert later.execute("PRAGMA user_version").fetchone() == (99,)
    later.close()


def test_workers_that_open_a_new_database_at_once_all_get_it(tmp_path: Path) -> None:
    for n in range(20):
        path, opened, begin = tmp_path / str(n) / "a.db", [], threading.Barrier(4)

        def open_it(path: Path = path, opened: list[Any] = opened, begin: threading.Barrier = begin) -> None:
            begin.wait()
            opened.append(database.connect(path, "session"))

        threads = [threading.Thread(target=open_it) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert len(opened) == 4
        for db in opened:
            db.close()


def test_a_database_that_another_worker_is_just_making_is_waited_for(path: Path, monkeypatch) -> None:
    """SQLite doesn't wait when the journal mode changes: it says busy at once."""
    asked = []

    def busy_twice(path: str, sql: str) -> None:
        if "journal_mode" in sql:
            asked.append(sql)
            if len(asked) < 3:
                raise error("SQLITE_BUSY")

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Failing))
    with striking(busy_twice):
        database.connect(path, "session").close()
    assert len(asked) == 3


def test_only_the_owner_can_read_folders_files_and_side_files(tmp_path: Path) -> None:
    pool = Pool(tmp_path / "state" / "context")
    with pool.session("tenant", "name").in_use():
        claim(pool.session("tenant", "name"), row("a secret"))
    pool.with_catalog("tenant", lambda db: catalog.touch(db, "name", 1.0, "", ""))
    found = list((tmp_path / "state").rglob("*"))
    assert {path.name for path in found if path.is_file()} == {
        f"{name}{side}" for name in ("name.db", "catalog.db") for side in ("", "-wal", "-shm")
    }
    for path in [tmp_path / "state", *found]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    pool.close()


def test_a_file_or_folder_that_others_could_read_is_closed_to_them(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.parent.chmod(0o755)
    path.touch(0o644)
    database.connect(path, "session").close()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_is_deleted_while_it_is_opened_is_not_made_by_sqlite(path: Path, monkeypatch) -> None:
    """SQLite would make it readable for others."""
    made = database._private_file
    monkeypatch.setattr(database, "_private_file", lambda path: made(path) or path.unlink())
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        database.connect(path, "session")
    assert not path.exists()


@pytest.mark.parametrize("folder", ["a b", "50%", "a?b#c", "ä'\"", "mode=memory"])
def test_a_folder_may_have_any_name(tmp_path: Path, folder: str) -> None:
    path = tmp_path / folder / "a.db"
    database.connect(path, "session").close()
    assert path.exists()
    assert [found.name for found in tmp_path.iterdir()] == [folder]


def test_opening_a_database_again_keeps_the_locks_this_process_has_on_it(path: Path) -> None:
    """Closing any handle of a file drops a process's locks on it: a file that is there is never opened but by
    SQLite. Else another process could take this one's connection for gone, and its log away from it."""
    with contextlib.closing(database.connect(path, "session")):
        before = locks_on(path)
        assert before
        database.connect(path, "session").close()
        assert locks_on(path) == before


def locks_on(path: Path) -> set[str]:
    inode = str(path.stat().st_ino)
    lines = Path("/proc/locks").read_text().splitlines()
    return {line.partition(": ")[2] for line in lines if f":{inode} " in line}


def test_names_on_disk_say_nothing_of_tenant_session_or_agent() -> None:
    assert names.tenant_folder("user:ada") != names.tenant_folder("user:adb")
    assert names.session_name("user:ada", "1") != names.session_name("user:adb", "1")
    assert names.session_name("user:a", "b1") != names.session_name("user:ab", "1")
    for name in (names.tenant_folder("\ud800/../ada"), names.session_name("ada", "../x"), names.subagent_label("x")):
        assert set(name) <= set("0123456789abcdef")
    assert names.subagent_label("") == ""


# --- rows ---------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(codec=None), max_size=400) | st.sampled_from(
    ["", "\n", "a\r\nb\rc\n", "\ud800", "nul \0 in it", "line\n" * 200, "\u2028 and \x85", "\r", "\r\n\r"]
)
LARGE = ["x" * 70_000, "line\n" * 9_000, "\U0001f600" * 20_000, "é" * 40_000]
few = settings(max_examples=60, deadline=None)


@few
@given(st.binary(max_size=2000) | TEXTS.map(lambda text: orjson.dumps(searchable(text))), TEXTS)
def test_what_is_packed_with_a_text_is_unpacked_with_it(body: bytes, text: str) -> None:
    assert unpack(pack(body, text), text) == body


@pytest.mark.parametrize("text", LARGE, ids=lambda text: text[:1])
def test_what_is_packed_with_a_text_beyond_the_reach_of_the_packer_is_unpacked_with_it(text: str) -> None:
    body = orjson.dumps({"content": text + text[:9]})
    assert unpack(pack(body, text), text) == body


def test_a_body_is_packed_to_little_more_than_what_its_text_lacks() -> None:
    text = "".join(chr(97 + n * n % 23) for n in range(20_000))
    assert len(pack(orjson.dumps({"role": "user", "content": text}), text)) < 600


@few
@given(st.lists(TEXTS, min_size=1, max_size=6))
def test_rows_lines_and_both_indexes_keep_step_and_bodies_come_back(texts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder, open_session(Path(folder) / "a.db") as worker:
        rows = [row(text, n) for n, text in enumerate(texts)]
        assert claim(worker, *rows)
        db = worker.refresh()
        while not fulltext.index(db, 10**6):
            pass
        assert_in_step(db)
        sql = "SELECT r.body, m.text FROM records r JOIN messages m USING (seq) ORDER BY seq"
        assert [unpack(body, text) for body, text in query(worker, sql)] == [new.body for new in rows]
        assert [text for _, text in query(worker, sql)] == [new.text for new in rows]


def test_a_message_is_stored_once_however_often_it_comes(worker: OpenSession) -> None:
    for _ in range(3):
        assert claim(worker, row("one"), row("two", kind="reply"), row("one"))
    assert query(worker, "SELECT text FROM messages ORDER BY seq") == [("one",), ("two",)]
    assert_in_step(worker.refresh())


def test_an_edit_of_a_message_that_is_not_stored_makes_it_not_known(worker: OpenSession) -> None:
    """Edits may outlive the database that held the message: it is stored when it comes again."""
    claim(worker, row("one"), edits=[swap(key=b"of another line")])
    assert list(worker.state.row_tokens) == [row("one").key]


def test_names_from_the_wire_may_hold_what_is_no_utf_8(path: Path, worker: OpenSession) -> None:
    edits = [swap("tool:\ud800"), swap("tool:nul\0"), cut()]
    assert claim(worker, row("text", tool_name=searchable("Re\ud800ad")), edits=edits)
    assert stored(path).edits == worker.state.edits
    assert set(worker.state.edits.swaps) == {(b"key", "tool:\ud800"), (b"key", "tool:nul\0")}


# --- claiming -----------------------------------------------------------------------------------------------


def test_of_two_workers_the_second_one_is_told_to_decide_again(path: Path, worker: OpenSession) -> None:
    with open_session(path) as other:
        assert claim(worker, row("mine"), edits=[cut()])
        assert not claim(other, row("yours"), edits=[cut(b"another")])
        assert query(other, "SELECT count(*) FROM records") == [(1,)]
        other.refresh()
        assert list(other.state.edits.trims) == [b"anchor"]
        assert claim(other, row("yours"))
        worker.refresh()
        assert worker.state.row_tokens.keys() == other.state.row_tokens.keys()


def test_a_state_is_loaded_anew_only_after_another_worker_wrote(path: Path, worker: OpenSession) -> None:
    claim(worker, row("one"))
    before = worker.state
    worker.refresh()
    assert worker.state is before
    with open_session(path) as other:
        claim(other, row("two"))
    worker.refresh()
    assert worker.state is not before
    assert len(worker.state.row_tokens) == 2


def test_memory_knows_after_a_claim_what_a_fresh_worker_loads(path: Path, worker: OpenSession) -> None:
    events = [Event("trim", {"reason": "limit"})]
    claim(worker, row("one"), row("two"), edits=[cut(), swap(key=row("one").key)], events=events)
    assert stored(path) == worker.state


def test_a_claim_that_fails_halfway_writes_nothing(worker: OpenSession, monkeypatch) -> None:
    claim(worker, row("one"))
    monkeypatch.setattr(session, "_write_edits", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        claim(worker, row("two"), edits=[cut()])
    assert not worker.refresh().in_transaction
    assert query(worker, "SELECT count(*) FROM records") == [(1,)]
    assert len(worker.state.row_tokens) == 1
    assert not worker.state.edits


def test_a_commit_that_fails_leaves_no_transaction_open(path: Path, monkeypatch) -> None:
    """Else this worker would hold the write lock until it fails again."""
    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Failing))
    with open_session(path) as worker:
        with failing("SQLITE_FULL", "COMMIT"), pytest.raises(sqlite3.OperationalError, match="FULL"):
            claim(worker, row("one"))
        assert not worker.refresh().in_transaction
        assert not stored(path).row_tokens


def test_nobody_waiting_means_that_no_edit_is_written(worker: OpenSession) -> None:
    """Sent without the decision: its messages were sent, its edits were not. The client left: nothing was."""
    late, left = Handshake(), Handshake()
    late.give_up(grace=True)
    left.leave()
    for handshake in (late, left):
        with pytest.raises(NotWaitedForError):
            claim(worker, row(repr(handshake)), edits=[cut(), swap()], handshake=handshake)
    assert query(worker, "SELECT text FROM messages") == [(repr(late),)]
    assert query(worker, "SELECT count(*) FROM edits") == [(0,)]
    assert not worker.state.edits
    assert len(worker.state.row_tokens) == 1


def test_an_edit_committed_too_late_is_taken_back_and_stays_so(path: Path, worker: OpenSession) -> None:
    class Late(Handshake):
        def begin(self) -> Permission:
            permission = super().begin()
            assert self.give_up(grace=False)
            return permission

    late = {"edits": [cut(), swap()], "events": [Event("trim", {})], "now": 5.0, "handshake": Late()}
    with pytest.raises(NotWaitedForError):
        claim(worker, row("one", in_context=False), **late)
    with open_session(path) as other:
        for state in (worker.state, other.state):
            assert (len(state.row_tokens), state.edits.trims, state.edits.swaps) == (1, {}, {})
    assert query(worker, "SELECT in_context FROM messages") == [(1,)]
    assert query(worker, "SELECT count(*) FROM events") == [(0,)]
    assert claim(worker, edits=[cut()]), "the next request may make it"
    assert list(stored(path).edits.trims) == [b"anchor"]


class Unsent(Handshake):
    """The request went out without its edits while they were committed."""

    def commit(self) -> bool:
        return False


SENT = {name: edit for name, edit in SAMPLES.items() if edit.state == "active"}


@pytest.mark.parametrize("edit", SENT.values(), ids=SENT)
def test_every_kind_of_edit_that_was_committed_too_late_is_abandoned(
    path: Path, worker: OpenSession, edit: Edit
) -> None:
    with pytest.raises(NotWaitedForError):
        claim(worker, row("one"), edits=[edit], handshake=Unsent())
    assert [known.state for known in stored(path).edits] == ["abandoned"]
    assert claim(worker, edits=[edit])
    assert list(stored(path).edits) == [edit]


def test_a_shorter_form_that_was_committed_too_late_gives_way_to_the_one_that_was_sent(
    path: Path, worker: OpenSession
) -> None:
    assert claim(worker, row("one", in_context=False), edits=[swap()])
    with pytest.raises(NotWaitedForError):
        claim(worker, edits=[swap(text="shorter", reason="hard")], handshake=Unsent())
    assert stored(path).edits == worker.state.edits == Edits.of([swap()])


def test_a_new_thread_begins_with_its_parents_offset_for_every_worker(path: Path, worker: OpenSession) -> None:
    write = Write(replace(thread(), offset=2_000.0), [row("one")])
    assert worker.write(worker.refresh(), write, Handshake()) is not None
    assert [known.offset for known in stored(path).threads.values()] == [2_000.0]


def test_another_worker_that_saw_an_edit_before_it_was_taken_back_forgets_it(path: Path, worker: OpenSession) -> None:
    class Late(Handshake):
        def commit(self) -> bool:
            other.refresh()
            assert list(other.state.edits.trims) == [b"anchor"]
            return False

    with open_session(path) as other:
        with pytest.raises(NotWaitedForError):
            claim(worker, row("one"), edits=[cut(), swap()], handshake=Late())
        other.refresh()
        assert (other.state.edits.trims, other.state.edits.swaps) == ({}, {})
        assert not other.state.unstored_edits


def test_a_patient_request_waits_for_a_commit_that_has_begun() -> None:
    handshake = Handshake()
    assert handshake.begin() == "all"
    assert not handshake.give_up(grace=True)
    assert handshake.commit()
    assert not handshake.give_up(grace=False), "what is written is sent"


def test_a_client_that_goes_while_its_request_is_written_changes_nothing() -> None:
    handshake = Handshake()
    handshake.begin()
    handshake.leave()
    assert handshake.commit()
    handshake.check()


# --- states of edits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["prepared", "active", "abandoned"])
def test_an_edit_keeps_its_state_and_only_an_active_one_stands(path: Path, worker: OpenSession, state: str) -> None:
    assert claim(worker, row("one"), edits=[cut(state=state)])
    for known in (worker.state, stored(path)):
        assert [edit.state for edit in known.edits] == [state]
        assert list(known.edits.trims) == [b"anchor"] * (state == "active")


@pytest.mark.parametrize(("state", "carried"), [("prepared", True), ("active", True), ("abandoned", False)])
def test_what_is_sent_or_prepared_outlives_its_database(path: Path, state: str, carried: bool) -> None:
    with open_session(path) as worker:
        assert claim(worker, row("one"), edits=[cut(state=state)])
        path.unlink()
        worker.refresh()
        assert [edit.state for edit in worker.state.unstored_edits] == [state] * carried


def test_an_edit_that_the_database_calls_abandoned_is_not_carried_over(path: Path, worker: OpenSession) -> None:
    with open_session(path) as other:
        assert claim(worker, row("one"), edits=[cut()])
        other.refresh()
        query(worker, "UPDATE edits SET state = 'abandoned'")
        other.refresh()
        assert not other.state.edits.trims
        assert not other.state.unstored_edits


def test_an_edit_of_a_kind_of_a_later_version_is_left_alone(path: Path, worker: OpenSession) -> None:
    assert claim(worker, row("one"), edits=[cut()])
    query(worker, "UPDATE edits SET kind = 'later'")
    assert not stored(path).edits
    with open_session(path) as other:
        assert claim(other, row("two"))
        assert query(other, "SELECT kind FROM edits") == [("later",)]


# --- reports ------------------------------------------------------------------------------------------------


def report(worker: OpenSession, call_id: str, **more: Any) -> None:
    fields = {"cut": "", "tokens": 100, "overhead": 1.0, "family_rate": 2.5, "row_tokens": [], "thread": 1, "now": 1.0}
    usage = UsageWrite(report_id=call_id, key=b"key", event=Event("usage", {}), **{**fields, "offset": 2.0, **more})
    worker.record_usage(worker.refresh(), usage)


def test_a_report_counts_once(worker: OpenSession) -> None:
    claim(worker, row("one"))
    for tokens in (100, 200):
        report(worker, "call", tokens=tokens)
    assert worker.state.reports[(b"key", "")].tokens == 100
    assert worker.state.threads[1].offset == 2.0
    assert query(worker, "SELECT count(*) FROM events") == [(1,)]


def test_a_report_on_rows_that_were_lost_makes_no_row_known(worker: OpenSession) -> None:
    """Else the message would never be stored again."""
    claim(worker, row("one"))
    report(worker, "call", row_tokens=[(row("one").key, 5.0), (b"lost", 7.0)])
    assert worker.state.row_tokens == {row("one").key: 5.0}


def test_unknown_tokens_are_stored_as_unknown(path: Path, worker: OpenSession) -> None:
    report(worker, "call", tokens=None)
    assert worker.state.reports == stored(path).reports == {}


# --- lost and found -----------------------------------------------------------------------------------------


def test_what_was_sent_is_carried_over_to_a_database_that_took_the_place_of_a_lost_one(
    path: Path, worker: OpenSession
) -> None:
    claim(worker, row("one"), edits=[cut(), swap()])
    path.unlink()
    worker.refresh()
    assert (worker.state.row_tokens, worker.sent_unstored) == ({}, {row("one").key})
    assert list(worker.state.unstored_edits) == [cut(), swap()]
    assert worker.state.origin_of([b"new", row("one").key, b"newer"]) == thread(id=1, name="main-1")
    claim(worker, row("one"), edits=list(worker.state.unstored_edits))
    assert not worker.sent_unstored
    assert not worker.state.unstored_edits
    assert list(stored(path).edits.trims) == [b"anchor"]


def test_a_state_is_whole_or_the_one_before(path: Path, monkeypatch) -> None:
    """A reader that asks memory while a load fails halfway finds what was known."""
    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Failing))
    with open_session(path) as worker:
        claim(worker, row("one"), edits=[cut()])
        before = worker.state
        worker.file.close()

        def half(path: str, sql: str) -> None:
            if "FROM edits" in sql:
                raise error("SQLITE_IOERR")

        with striking(half), pytest.raises(sqlite3.OperationalError):
            worker.refresh()
        assert worker.state is before
        assert list(worker.state.edits.trims) == [b"anchor"]


def test_a_damaged_database_is_renamed_and_never_deleted(path: Path) -> None:
    path.parent.mkdir(parents=True)
    for n in (1, 2):
        path.write_bytes(b"not a database" * 400)
        file = DatabaseFile(path, "session")
        assert file.connection()[1]
        file.close()
        assert path.with_name(f"a.db.damaged-{n}").read_bytes() == b"not a database" * 400


def test_a_database_whose_rows_make_no_sense_counts_as_damaged(path: Path, worker: OpenSession) -> None:
    claim(worker, row("one"), edits=[cut()])
    query(worker, "UPDATE edits SET detail = 'garbage'")
    worker.file.close()
    with pytest.raises(StoreError, match="can't be read"):
        worker.refresh()
    worker.refresh()
    assert list(worker.state.edits.trims) == [b"anchor"], "memory knows it still"
    worker.file.close()
    assert path.with_name("a.db.damaged-1").exists()


def test_a_new_database_in_the_place_of_a_damaged_one_is_left_alone_by_the_next_worker(path: Path) -> None:
    """Two workers see the same damage; the first one's new database must not be put in quarantine by the second."""
    one, two = DatabaseFile(path, "session"), DatabaseFile(path, "session")
    one.connection()
    two.connection()
    one.fail(error("SQLITE_CORRUPT"))
    db, _ = one.connection()
    db.execute("CREATE TABLE mine (a)")
    two.fail(error("SQLITE_CORRUPT"))
    again, new = two.connection()
    assert new
    assert again.execute("SELECT count(*) FROM mine").fetchone() == (0,)
    assert len(list(path.parent.glob("*.damaged-?"))) == 1
    one.close()
    two.close()


def test_a_connection_that_failed_is_opened_again_and_other_errors_set_nothing_aside(path: Path) -> None:
    file = DatabaseFile(path, "session")
    first, _ = file.connection()
    assert file.connection() == (first, False)
    file.fail(error("SQLITE_FULL"))
    again, new = file.connection()
    assert new
    assert again is not first
    assert not list(path.parent.glob("*.damaged-*"))
    file.close()


# --- the pool -----------------------------------------------------------------------------------------------


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    made = Pool(tmp_path / "context")
    yield made
    made.close()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for two open sessions, three known ones and five that are not stored; for two catalogs."""
    for name, value in (("OPEN", 2), ("KNOWN", 3), ("UNSTORED", 5)):
        monkeypatch.setattr(f"openmem_hook.store.pool.{name}_SESSIONS", value)
    monkeypatch.setattr("openmem_hook.store.pool.OPEN_CATALOGS", 2)


def opened(pool: Pool) -> list[str]:
    return [one.name for one in pool.sessions_in_memory() if one.file.db is not None]


def test_the_least_recently_used_sessions_are_closed_then_forgotten(pool: Pool, small: None) -> None:
    for name in "abcde":
        with pool.session("tenant", name).in_use():
            pass
    assert opened(pool) == ["d", "e"]
    assert [one.name for one in pool.sessions_in_memory()] == ["c", "d", "e"]
    with pool.session("tenant", "c").in_use():
        assert opened(pool) == ["c"] or opened(pool) == ["e", "c"]


def test_a_session_in_use_is_neither_closed_nor_forgotten(pool: Pool, small: None) -> None:
    with pool.session("tenant", "a").in_use() as db:
        for name in "bcdef":
            with pool.session("tenant", name).in_use():
                pass
        assert db.execute("SELECT count(*) FROM records").fetchone() == (0,)
        assert pool.peek("tenant", "a") is not None
    pool.session("tenant", "g")
    assert pool.peek("tenant", "a") is None


def test_a_session_that_owes_the_store_something_is_kept_longer(pool: Pool, small: None) -> None:
    for name in "abcdef":
        pool.session("tenant", name).sent_unstored.add(b"sent raw")
    assert [one.name for one in pool.sessions_in_memory()] == ["b", "c", "d", "e", "f"]


def test_a_forgotten_session_is_loaded_from_its_file(pool: Pool, small: None) -> None:
    with pool.session("tenant", "a").in_use():
        claim(pool.session("tenant", "a"), row("one"), edits=[cut()])
    for name in "bcde":
        with pool.session("tenant", name).in_use():
            pass
    assert pool.peek("tenant", "a") is None
    with pool.session("tenant", "a").in_use():
        assert list(pool.session("tenant", "a").state.edits.trims) == [b"anchor"]


def test_handles_stay_bounded_however_many_sessions_come(pool: Pool, small: None) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for n in range(60):
        with pool.session(f"tenant {n % 7}", f"{n}").in_use():
            pool.with_catalog(f"tenant {n % 7}", catalog.read_names)
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 3 * (2 + 2) + 3


def test_the_same_names_of_two_tenants_are_two_sessions(pool: Pool) -> None:
    with pool.session("one", "a").in_use():
        claim(pool.session("one", "a"), row("mine"))
    with pool.session("two", "a").in_use() as db:
        assert db.execute("SELECT count(*) FROM records").fetchone() == (0,)


def test_a_session_or_catalog_in_use_for_too_long_is_not_waited_for(pool: Pool, monkeypatch) -> None:
    for module in ("pool", "open_session"):
        monkeypatch.setattr(f"openmem_hook.store.{module}.LOCK_S", 0.05)
    worker, busy = pool.session("tenant", "a"), []
    with worker.lock_in_time(), pytest.raises(SessionBusyError), worker.lock_in_time():
        pass

    def use_again(db: sqlite3.Connection) -> None:
        other = threading.Thread(target=lambda: busy.append(pool.try_catalog("tenant", catalog.read_names, None)))
        other.start()
        other.join()

    pool.with_catalog("tenant", use_again)
    assert busy == [None]


def test_a_catalog_that_fails_is_told_once_and_left_alone_for_a_moment(pool: Pool, monkeypatch) -> None:
    told: list[Exception] = []
    pool.on_catalog_error = told.append
    pool.folder.parent.mkdir(exist_ok=True)
    pool.folder.write_text("in the way")
    assert [pool.try_catalog("tenant", catalog.read_names, None) for _ in range(3)] == [None] * 3
    assert [type(one) for one in told] == [NotADirectoryError]
    assert pool.try_catalog("another", catalog.read_names, None) is None
    pool.folder.unlink()
    monkeypatch.setattr("openmem_hook.store.pool.REST_S", 0.0)
    pool._resting_until.clear()
    assert pool.try_catalog("tenant", catalog.read_names, None) == set()


# --- the catalog --------------------------------------------------------------------------------------------


def test_the_deepest_anchor_of_another_session_is_found(pool: Pool) -> None:
    chain = [bytes([n]) * 16 for n in range(200)]

    def use(db: sqlite3.Connection) -> Any:
        catalog.index_edits(db, "parent", Edits.of([cut(chain[3]), cut(chain[150])]))
        catalog.index_edits(db, "fork", Edits.of([cut(chain[150]), cut(chain[160])]))
        asked = [catalog.find_anchor(db, chain, own) for own in ("new", "fork", "parent")]
        return [*asked, catalog.find_anchor(db, chain[:3], "new")]

    assert pool.with_catalog("tenant", use) == [
        (chain[160], "fork"),
        (chain[150], "parent"),
        (chain[160], "fork"),
        None,
    ]


def test_of_several_sessions_with_the_same_edit_the_newest_is_found(pool: Pool) -> None:
    def use(db: sqlite3.Connection) -> Any:
        found = []
        for names_by_age in (["a", "b"], ["b", "a"]):
            for age, name in enumerate(names_by_age):
                catalog.touch(db, name, 1_000.0 * len(found) + age, "", "")
                catalog.index_edits(db, name, Edits.of([cut()]))
            found.append(catalog.find_anchor(db, [b"anchor"], "new"))
        return found

    assert pool.with_catalog("tenant", use) == [(b"anchor", "b"), (b"anchor", "a")]


async def test_a_chore_is_begun_by_one_of_many_workers(tmp_path: Path) -> None:
    pools = [Pool(tmp_path) for _ in range(4)]
    begin = lambda pool: pool.with_catalog("tenant", lambda db: catalog.begin_chore(db, "sweep", 100.0, 60.0))  # noqa: E731
    assert sorted(await asyncio.gather(*(asyncio.to_thread(begin, pool) for pool in pools))) == [False] * 3 + [True]
    for pool in pools:
        pool.close()
