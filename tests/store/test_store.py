"""The store by itself: how databases are opened, what they hold, how they are shared, lost and found again."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sqlite3
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openmem_hook import fingerprint
from openmem_hook.compaction.edits import Cut, Swap
from openmem_hook.compaction.record import Event, NewRow, Thread, UsageWrite, Write
from openmem_hook.store import catalog, database, fulltext, names
from openmem_hook.store import session as sessions
from openmem_hook.store.database import StoreError
from openmem_hook.store.handshake import Handshake
from openmem_hook.store.pool import File, Live, Pool, SessionBusyError
from openmem_hook.store.session import SessionState, pack, unpack
from openmem_hook.text import searchable
from openmem_hook.tokens import Sizes
from tests.harness.outage import Failing, assert_in_step, error, failing, striking

KINDS = ("catalog", "session")
kinds = pytest.mark.parametrize("kind", KINDS)


def row(text: str, n: int = 0, **more: Any) -> NewRow:
    told = {"role": "user", "kind": "typed", "tool_name": "", "in_context": True, "format": "chat", **more}
    key = names.session_name(text, str(n)).encode()
    body = fingerprint.dump({"role": "user", "content": text})
    return NewRow(key=key, past=b"past", digest=key, text=searchable(text), body=body, **told)


def thread(**more: Any) -> Thread:
    told = {"id": 0, "name": "main", "agent": "", "root": b"root", "tip": b"tip", "has_tools": True, **more}
    return Thread(**{"note": 1, "result_chars": 1000, **told})


def cut(anchor: bytes = b"anchor") -> Cut:
    told: dict[str, Any] = {"anchor_digest": b"digest", "anchor_unique": True, "before": None, "trail": (b"trail",)}
    return Cut("0" * 16, anchor, head=b"[]", shown=(b"shown",), head_sizes=Sizes(words=3), reason="limit", **told)


def swap(call_id: str = "tool:1", key: bytes = b"key") -> Swap:
    return Swap(key, call_id, "1" * 16, "short \ud800", "size")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tenant" / "sessions" / "a.db"


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(database.connect(path, "session")) as opened:
        yield opened


def claimed(db: sqlite3.Connection, state: SessionState, *rows: NewRow, **more: Any) -> bool:
    known = next(iter(state.threads.values()), None) or thread()
    return sessions.claim(db, state, Write(known, rows, **more), Handshake())


def loaded(db: sqlite3.Connection) -> SessionState:
    return sessions.refreshed(db, SessionState())


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
    live = pool.session("tenant", "name")
    with live.used() as db:
        claimed(db, live.state, row("a secret"))
    pool.catalog("tenant", lambda db: catalog.touch(db, "name", 1.0, "", ""))
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
    for name in (names.tenant_folder("\ud800/../ada"), names.session_name("ada", "../x"), names.thread_label("x")):
        assert set(name) <= set("0123456789abcdef")
    assert names.thread_label("") == ""


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
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        database._migrate(db, "session")
        rows = [row(text, n) for n, text in enumerate(texts)]
        assert claimed(db, loaded(db), *rows)
        while not fulltext.index(db, 10**6):
            pass
        assert_in_step(db)
        stored = db.execute("SELECT r.body, m.text FROM records r JOIN messages m USING (seq) ORDER BY seq").fetchall()
        assert [unpack(body, text) for body, text in stored] == [made.body for made in rows]
        assert [text for _, text in stored] == [made.text for made in rows]


def test_a_message_is_stored_once_however_often_it_comes(db: sqlite3.Connection) -> None:
    state = loaded(db)
    for _ in range(3):
        assert claimed(db, state, row("one"), row("two", kind="reply"), row("one"))
    assert db.execute("SELECT text FROM messages ORDER BY seq").fetchall() == [("one",), ("two",)]
    assert_in_step(db)


def test_an_edit_of_a_message_that_is_not_stored_makes_it_not_known(db: sqlite3.Connection) -> None:
    """Edits may outlive the database that held the message: it is stored when it comes again."""
    state = loaded(db)
    claimed(db, state, row("one"), swaps=[swap(key=b"of another line")])
    assert list(state.measured) == [row("one").key]


def test_names_from_the_wire_may_hold_what_is_no_utf_8(db: sqlite3.Connection) -> None:
    state = loaded(db)
    edits = {"swaps": [swap("tool:\ud800"), swap("tool:nul\0")], "cuts": [cut()]}
    assert claimed(db, state, row("text", tool_name=searchable("Re\ud800ad")), **edits)
    assert loaded(db).swaps == state.swaps
    assert set(state.swaps) == {(b"key", "tool:\ud800"), (b"key", "tool:nul\0")}


# --- claiming -----------------------------------------------------------------------------------------------


def test_of_two_workers_the_second_one_is_told_to_decide_again(path: Path, db: sqlite3.Connection) -> None:
    with contextlib.closing(database.connect(path, "session")) as other:
        one, two = loaded(db), loaded(other)
        assert claimed(db, one, row("mine"), cuts=[cut()])
        assert not claimed(other, two, row("yours"), cuts=[cut(b"another")])
        assert other.execute("SELECT count(*) FROM records").fetchone() == (1,)
        two = sessions.refreshed(other, two)
        assert list(two.cuts) == [b"anchor"]
        assert claimed(other, two, row("yours"))
        assert sessions.refreshed(db, one).measured.keys() == two.measured.keys()


def test_a_state_is_loaded_anew_only_after_another_worker_wrote(path: Path, db: sqlite3.Connection) -> None:
    state = loaded(db)
    claimed(db, state, row("one"))
    assert sessions.refreshed(db, state) is state
    with contextlib.closing(database.connect(path, "session")) as other:
        claimed(other, loaded(other), row("two"))
    fresh = sessions.refreshed(db, state)
    assert fresh is not state
    assert len(fresh.measured) == 2


def test_memory_knows_after_a_claim_what_a_fresh_worker_loads(path: Path, db: sqlite3.Connection) -> None:
    state = loaded(db)
    events = [Event("trim", {"reason": "limit"})]
    claimed(db, state, row("one"), row("two"), cuts=[cut()], swaps=[swap(key=row("one").key)], events=events)
    with contextlib.closing(database.connect(path, "session")) as other:
        fresh = loaded(other)
    for part in ("measured", "digests", "after", "owner", "cuts", "swaps", "threads"):
        assert getattr(fresh, part) == getattr(state, part), part


def test_a_claim_that_fails_halfway_writes_nothing(db: sqlite3.Connection, monkeypatch) -> None:
    state = loaded(db)
    claimed(db, state, row("one"))
    monkeypatch.setattr(sessions, "_write_edits", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        claimed(db, state, row("two"), cuts=[cut()])
    assert not db.in_transaction
    assert db.execute("SELECT count(*) FROM records").fetchone() == (1,)
    assert len(state.measured) == 1
    assert not state.cuts


def test_a_commit_that_fails_leaves_no_transaction_open(path: Path, monkeypatch) -> None:
    """Else this worker would hold the write lock until it fails again."""
    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Failing))
    with contextlib.closing(database.connect(path, "session")) as db:
        with failing("SQLITE_FULL", "COMMIT"), pytest.raises(sqlite3.OperationalError, match="FULL"):
            claimed(db, loaded(db), row("one"))
        assert not db.in_transaction
        assert not loaded(db).measured


def test_nobody_waiting_means_that_no_edit_is_written(db: sqlite3.Connection) -> None:
    """Sent without the decision: its messages were sent, its edits were not. Gone: nothing was."""
    state, late, gone = loaded(db), Handshake(), Handshake()
    late.give_up(patient=True)
    gone.go()
    for ticket in (late, gone):
        with pytest.raises(sessions.AbandonedError):
            sessions.claim(db, state, Write(thread(), [row(repr(ticket))], [cut()], [swap()]), ticket)
    assert db.execute("SELECT text FROM messages").fetchall() == [(repr(late),)]
    assert db.execute("SELECT count(*) FROM edits").fetchone() == (0,)
    assert not state.cuts
    assert len(state.measured) == 1


def test_an_edit_committed_too_late_is_taken_back_and_stays_so(path: Path, db: sqlite3.Connection) -> None:
    class Late(Ticket):
        def begin(self) -> sessions.Share:
            share = super().begin()
            assert self.give_up(patient=False)
            return share

    state = loaded(db)
    write = Write(thread(), [row("one", in_context=False)], [cut()], [swap()], [Event("trim", {})], now=5.0)
    with pytest.raises(sessions.AbandonedError):
        sessions.claim(db, state, write, Late())
    for known in (state, sessions.refreshed(db, state), loaded(db)):
        assert (len(known.measured), known.cuts, known.swaps) == (1, {}, {})
    assert db.execute("SELECT in_context FROM messages").fetchall() == [(1,)]
    assert db.execute("SELECT count(*) FROM events").fetchone() == (0,)
    assert claimed(db, sessions.refreshed(db, state), cuts=[cut()]), "the next request may make it"
    assert list(loaded(db).cuts) == [b"anchor"]


class Unsent(Ticket):
    """The request went out without its edits while they were committed."""

    def written(self) -> bool:
        return False


def test_a_shorter_form_that_was_committed_too_late_gives_way_to_the_one_that_was_sent(db: sqlite3.Connection) -> None:
    state = loaded(db)
    assert claimed(db, state, row("one", in_context=False), swaps=[swap()])
    shorter = replace(swap(), text="shorter", reason="hard")
    with pytest.raises(sessions.AbandonedError):
        sessions.claim(db, state, Write(next(iter(state.threads.values())), (), (), [shorter]), Unsent())
    assert loaded(db).swaps == state.swaps == {(b"key", "tool:1"): swap()}


def test_a_new_thread_begins_with_its_parents_offset_for_every_worker(db: sqlite3.Connection) -> None:
    state = loaded(db)
    assert sessions.claim(db, state, Write(replace(thread(), offset=2_000.0), [row("one")]), Handshake())
    assert [known.offset for known in loaded(db).threads.values()] == [2_000.0]


def test_another_worker_that_saw_an_edit_before_it_was_taken_back_forgets_it(
    path: Path, db: sqlite3.Connection
) -> None:
    class Late(Ticket):
        def written(self) -> bool:
            self.seen = loaded(other)
            return False

    with contextlib.closing(database.connect(path, "session")) as other:
        ticket = Late()
        with pytest.raises(sessions.AbandonedError):
            sessions.claim(db, loaded(db), Write(thread(), [row("one")], [cut()], [swap()]), ticket)
        assert list(ticket.seen.cuts) == [b"anchor"]
        fresh = sessions.refreshed(other, ticket.seen)
        assert (fresh.cuts, fresh.swaps, fresh.adopted.cuts) == ({}, {}, ())


def test_a_patient_request_waits_for_a_commit_that_has_begun() -> None:
    ticket = Handshake()
    assert ticket.begin() == "all"
    assert not ticket.give_up(patient=True)
    assert ticket.written()
    assert not ticket.give_up(patient=False), "what is written is sent"


def test_a_client_that_goes_while_its_request_is_written_changes_nothing() -> None:
    ticket = Handshake()
    ticket.begin()
    ticket.go()
    assert ticket.written()
    assert not ticket.over


# --- reports ------------------------------------------------------------------------------------------------


def report(call_id: str, **more: Any) -> UsageWrite:
    told = {
        "cut": "",
        "tokens": 100,
        "overhead": 1.0,
        "family_rate": 2.5,
        "measured": [],
        "thread": 1,
        "offset": 2.0,
        "now": 1.0,
    }
    return UsageWrite(call_id=call_id, key=b"key", event=Event("usage", {}), **{**told, **more})


def test_a_report_counts_once(db: sqlite3.Connection) -> None:
    state = loaded(db)
    claimed(db, state, row("one"))
    assert [sessions.record_usage(db, state, report("call", tokens=n)) for n in (100, 200)] == [True, False]
    assert state.reports[(b"key", "")].tokens == 100
    assert state.threads[1].offset == 2.0
    assert db.execute("SELECT count(*) FROM events").fetchone() == (1,)


def test_a_report_on_rows_that_were_lost_makes_no_row_known(db: sqlite3.Connection) -> None:
    """Else the message would never be stored again."""
    state = loaded(db)
    claimed(db, state, row("one"))
    sessions.record_usage(db, state, report("call", measured=[(row("one").key, 5.0), (b"lost", 7.0)]))
    assert state.measured == {row("one").key: 5.0}


def test_unknown_tokens_are_stored_as_unknown(db: sqlite3.Connection) -> None:
    state = loaded(db)
    sessions.record_usage(db, state, report("call", tokens=None))
    assert state.reports == loaded(db).reports == {}


# --- lost and found -----------------------------------------------------------------------------------------


def test_what_was_sent_is_carried_over_to_a_database_that_took_the_place_of_a_lost_one(path: Path) -> None:
    live = Live("tenant", "a", File(path, "session"))
    with live.used() as db:
        claimed(db, live.state, row("one"), cuts=[cut()], swaps=[swap()])
    path.unlink()
    with live.used() as db:
        state = live.state
        assert (state.measured, state.sent) == ({}, {row("one").key})
        assert (state.adopted.cuts, state.adopted.swaps) == ((cut(),), (swap(),))
        assert state.adopted.thread_of([b"new", row("one").key, b"newer"]) == thread(id=1, name="main-1")
        claimed(db, state, row("one"), cuts=state.adopted.cuts, swaps=state.adopted.swaps)
        assert not state.sent
        assert not state.adopted.cuts
        assert list(loaded(db).cuts) == [b"anchor"]
    live.file.close()


def test_a_state_is_whole_or_the_one_before(path: Path, monkeypatch) -> None:
    """A reader that asks memory while a load fails halfway finds what was known."""
    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Failing))
    live = Live("tenant", "a", File(path, "session"))
    with live.used() as db:
        claimed(db, live.state, row("one"), cuts=[cut()])
    before = live.state
    live.file.close()

    def half(path: str, sql: str) -> None:
        if "FROM edits" in sql:
            raise error("SQLITE_IOERR")

    with striking(half), pytest.raises(sqlite3.OperationalError):
        live.database()
    assert live.state is before
    assert list(live.state.cuts) == [b"anchor"]
    live.file.close()


def test_a_damaged_database_is_renamed_and_never_deleted(path: Path) -> None:
    path.parent.mkdir(parents=True)
    for n in (1, 2):
        path.write_bytes(b"not a database" * 400)
        file = File(path, "session")
        assert file.connected()[1]
        file.close()
        assert path.with_name(f"a.db.damaged-{n}").read_bytes() == b"not a database" * 400


def test_a_database_whose_rows_make_no_sense_counts_as_damaged(path: Path) -> None:
    live = Live("tenant", "a", File(path, "session"))
    with live.used() as db:
        claimed(db, live.state, row("one"), cuts=[cut()])
        db.execute("UPDATE edits SET detail = 'garbage'")
    live.file.close()
    with pytest.raises(StoreError, match="can't be read"):
        live.database()
    with live.used():
        assert list(live.state.cuts) == [b"anchor"], "memory knows it still"
    live.file.close()
    assert path.with_name("a.db.damaged-1").exists()


def test_a_new_database_in_the_place_of_a_damaged_one_is_left_alone_by_the_next_worker(path: Path) -> None:
    """Two workers see the same damage; the first one's new database must not be set aside by the second."""
    one, two = File(path, "session"), File(path, "session")
    one.connected()
    two.connected()
    one.failed(error("SQLITE_CORRUPT"))
    db, _ = one.connected()
    db.execute("CREATE TABLE mine (a)")
    two.failed(error("SQLITE_CORRUPT"))
    again, new = two.connected()
    assert new
    assert again.execute("SELECT count(*) FROM mine").fetchone() == (0,)
    assert len(list(path.parent.glob("*.damaged-?"))) == 1
    one.close()
    two.close()


def test_a_connection_that_failed_is_opened_again_and_other_errors_set_nothing_aside(path: Path) -> None:
    file = File(path, "session")
    first, _ = file.connected()
    assert file.connected() == (first, False)
    file.failed(error("SQLITE_FULL"))
    again, new = file.connected()
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
    """Room for two open sessions, three known ones and five that are not written; for two catalogs."""
    for name, value in (("OPEN", 2), ("KNOWN", 3), ("UNWRITTEN", 5)):
        monkeypatch.setattr(f"openmem_hook.store.pool.{name}_SESSIONS", value)
    monkeypatch.setattr("openmem_hook.store.pool.OPEN_CATALOGS", 2)


def opened(pool: Pool) -> list[str]:
    return [live.name for live in pool.sessions_in_memory() if live.file.db is not None]


def test_the_least_recently_used_sessions_are_closed_then_forgotten(pool: Pool, small: None) -> None:
    for name in "abcde":
        with pool.session("tenant", name).used():
            pass
    assert opened(pool) == ["d", "e"]
    assert [live.name for live in pool.sessions_in_memory()] == ["c", "d", "e"]
    with pool.session("tenant", "c").used():
        assert opened(pool) == ["c"] or opened(pool) == ["e", "c"]


def test_a_session_in_use_is_neither_closed_nor_forgotten(pool: Pool, small: None) -> None:
    with pool.session("tenant", "a").used() as db:
        for name in "bcdef":
            with pool.session("tenant", name).used():
                pass
        assert db.execute("SELECT count(*) FROM records").fetchone() == (0,)
        assert pool.peek("tenant", "a") is not None
    pool.session("tenant", "g")
    assert pool.peek("tenant", "a") is None


def test_a_session_that_owes_the_store_something_is_kept_longer(pool: Pool, small: None) -> None:
    for name in "abcdef":
        pool.session("tenant", name).state.sent.add(b"sent raw")
    assert [live.name for live in pool.sessions_in_memory()] == ["b", "c", "d", "e", "f"]


def test_a_forgotten_session_is_loaded_from_its_file(pool: Pool, small: None) -> None:
    with pool.session("tenant", "a").used() as db:
        claimed(db, pool.session("tenant", "a").state, row("one"), cuts=[cut()])
    for name in "bcde":
        with pool.session("tenant", name).used():
            pass
    assert pool.peek("tenant", "a") is None
    with pool.session("tenant", "a").used():
        assert list(pool.session("tenant", "a").state.cuts) == [b"anchor"]


def test_handles_stay_bounded_however_many_sessions_come(pool: Pool, small: None) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for n in range(60):
        with pool.session(f"tenant {n % 7}", f"{n}").used():
            pool.catalog(f"tenant {n % 7}", catalog.names)
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 3 * (2 + 2) + 3


def test_the_same_names_of_two_tenants_are_two_sessions(pool: Pool) -> None:
    with pool.session("one", "a").used() as db:
        claimed(db, pool.session("one", "a").state, row("mine"))
    with pool.session("two", "a").used() as db:
        assert db.execute("SELECT count(*) FROM records").fetchone() == (0,)


def test_a_session_or_catalog_in_use_for_too_long_is_not_waited_for(pool: Pool, monkeypatch) -> None:
    monkeypatch.setattr("openmem_hook.store.pool.LOCK_S", 0.05)
    live, busy = pool.session("tenant", "a"), []
    with live.held(), pytest.raises(SessionBusyError), live.held():
        pass

    def use_again(db: sqlite3.Connection) -> None:
        other = threading.Thread(target=lambda: busy.append(pool.consult("tenant", catalog.names, None)))
        other.start()
        other.join()

    pool.catalog("tenant", use_again)
    assert busy == [None]


def test_a_catalog_that_fails_is_told_once_and_left_alone_for_a_moment(pool: Pool, monkeypatch) -> None:
    told: list[Exception] = []
    pool.trouble = told.append
    pool.folder.parent.mkdir(exist_ok=True)
    pool.folder.write_text("in the way")
    assert [pool.consult("tenant", catalog.names, None) for _ in range(3)] == [None] * 3
    assert [type(one) for one in told] == [NotADirectoryError]
    assert pool.consult("another", catalog.names, None) is None
    pool.folder.unlink()
    monkeypatch.setattr("openmem_hook.store.pool.REST_S", 0.0)
    pool._resting.clear()
    assert pool.consult("tenant", catalog.names, None) == set()


# --- the catalog --------------------------------------------------------------------------------------------


def test_the_deepest_anchor_of_another_session_is_found(pool: Pool) -> None:
    chain = [bytes([n]) * 16 for n in range(200)]

    def use(db: sqlite3.Connection) -> Any:
        catalog.index_edits(db, "parent", [chain[3], chain[150]], ["r"])
        catalog.index_edits(db, "fork", [chain[150], chain[160]], [])
        asked = [catalog.find_anchor(db, chain, own) for own in ("new", "fork", "parent")]
        return [*asked, catalog.find_anchor(db, chain[:3], "new"), catalog.session_of_result(db, "r")]

    assert pool.catalog("tenant", use) == [
        (chain[160], "fork"),
        (chain[150], "parent"),
        (chain[160], "fork"),
        None,
        "parent",
    ]


def test_of_several_sessions_with_the_same_edit_the_newest_is_found(pool: Pool) -> None:
    def use(db: sqlite3.Connection) -> Any:
        found = []
        for names_by_age in (["a", "b"], ["b", "a"]):
            for age, name in enumerate(names_by_age):
                catalog.touch(db, name, 1_000.0 * len(found) + age, "", "")
                catalog.index_edits(db, name, [b"anchor"], [])
            found.append(catalog.find_anchor(db, [b"anchor"], "new"))
        return found

    assert pool.catalog("tenant", use) == [(b"anchor", "b"), (b"anchor", "a")]


async def test_a_chore_is_begun_by_one_of_many_workers(tmp_path: Path) -> None:
    pools = [Pool(tmp_path) for _ in range(4)]
    begin = lambda pool: pool.catalog("tenant", lambda db: catalog.begin_chore(db, "sweep", 100.0, 60.0))  # noqa: E731
    assert sorted(await asyncio.gather(*(asyncio.to_thread(begin, pool) for pool in pools))) == [False] * 3 + [True]
    for pool in pools:
        pool.close()
