"""The SQL tool: what an agent needs works, and nothing it writes reaches, makes, holds up or uses up anything else."""

from __future__ import annotations

import asyncio
import hashlib
import re
import resource
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from openmem_hook.store import sandbox
from openmem_hook.store.sandbox import RefusedError, Table
from tests.harness.filled_store import FilledStore, result, said


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FilledStore]:
    made = FilledStore(tmp_path_factory.mktemp("wall") / "context")
    yield made
    made.close()


@pytest.fixture(scope="module")
def session(shelf: FilledStore) -> str:
    long = [result("\n".join(f"line {n} of {m} connection refused" for n in range(400))) for m in range(40)]
    return shelf.put([said("retry the timeout"), said("secret-canary question"), *long])


@pytest.fixture
def ask(shelf: FilledStore, session: str):
    return lambda sql, **more: sandbox.select(shelf.path(session), sql, **more)


# --- what works ---------------------------------------------------------------------------------------------

WORKS = {
    "match": ("SELECT count(*) FROM lines_fts WHERE lines_fts MATCH '\"connection refused\"'", [[16_000]]),
    "match as a function": ("SELECT count(*) FROM messages_fts('retry AND timeout')", [[1]]),
    "prefix": ("SELECT rowid FROM messages_fts WHERE messages_fts MATCH 'retr*'", [[1]]),
    "ranked": ("SELECT rowid, bm25(messages_fts) < 0 FROM messages_fts WHERE messages_fts MATCH 'retry' ORDER BY rank",
               [[1, 1]]),
    "snippet": ("SELECT snippet(messages_fts, 0, '[', ']', '…', 4) FROM messages_fts('timeout')",
                [["retry the [timeout]"]]),
    "highlight": ("SELECT highlight(lines_fts, 0, '<', '>') FROM lines_fts WHERE lines_fts MATCH 'retry'",
                  [["<retry> the timeout"]]),
    "join": ("SELECT l.seq, l.line_no, m.role FROM lines_fts f JOIN lines l ON l.id = f.rowid "
             "JOIN messages m ON m.seq = l.seq WHERE lines_fts MATCH 'retry'", [[1, 1, "user"]]),
    "view": ("SELECT seq, role, kind, tool_name, text, in_context, thread FROM messages WHERE seq = 1",
             [[1, "user", "typed", "", "retry the timeout", 1, "main-1"]]),
    "count of a view": ("SELECT count(*), max(length(text)) > 1000 FROM messages", [[42, 1]]),
    "window": ("SELECT seq, sum(seq) OVER (ORDER BY seq) FROM messages LIMIT 3", [[1, 1], [2, 3], [3, 6]]),
    "cte": ("WITH t AS (SELECT seq, count(*) AS n FROM lines GROUP BY seq) SELECT max(n) FROM t", [[400]]),
    "recursion": ("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 5) SELECT sum(x) FROM c",
                  [[15]]),
    "json": ("SELECT j.value, json_extract('{\"a\": 5}', '$.a') FROM json_each('[1, 2]') AS j", [[1, 5], [2, 5]]),
    "events": ("SELECT count(*) FROM events WHERE json_extract(data, '$.x') IS NULL", [[0]]),
    "like": ("SELECT count(*) FROM lines WHERE text LIKE 'line 7 %'", [[40]]),
    "comment first": ("-- how many\n/* of them */ SELECT 1;", [[1]]),
    "values": ("SELECT x'00ff', NULL, 1.5, 9e999, 'ü'", [["x'00ff'", None, 1.5, "inf", "ü"]]),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKS)
def test_what_agents_ask_for_works(name: str, ask) -> None:
    sql, rows = WORKS[name]
    assert ask(sql).rows == rows


def test_every_example_of_the_documented_schema_is_let_through(ask) -> None:
    text = (Path(__file__).parents[2] / "docs/schema.md").read_text("utf-8")
    examples = re.findall(r"^```sql\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(examples) > 5
    for sql in examples:
        assert isinstance(ask(sql), Table)


# --- the wall -----------------------------------------------------------------------------------------------

PRIVATE = (
    "records",
    "edits",
    "threads",
    "reports",
    "unspaced",
    "messages_fts_data",
    "messages_fts_idx",
    "lines_fts_config",
    "lines_fts_docsize",
    "sqlite_master",
    "sqlite_schema",
    "sqlite_temp_master",
    "sqlite_sequence",
    "pragma_table_list",
    "pragma_database_list",
    "pragma_query_only",
    "pragma_journal_mode",
    "dbstat",
    "sqlite_dbpage",
    "sqlite_stmt",
    "bytecode",
)


@pytest.mark.parametrize("table", PRIVATE)
def test_private_tables_are_out_of_sight(table: str, ask) -> None:
    ways = (
        "SELECT * FROM {0}",
        "SELECT count(*) FROM main.{0}",
        "SELECT (SELECT 1 FROM {0})",
        "WITH messages AS (SELECT * FROM {0}) SELECT * FROM messages",
        "SELECT 1 UNION SELECT count(*) FROM {0} AS lines",
    )
    for way in ways:
        with pytest.raises(RefusedError):
            ask(way.format(table))


def test_through_the_view_only_public_columns_are_read(ask) -> None:
    for column in ("body", "key", "past", "digest", "tokens", "format"):
        for way in ("SELECT {0} FROM messages", "WITH messages AS (SELECT {0} FROM records) SELECT {0} FROM messages"):
            with pytest.raises(RefusedError):
                ask(way.format(column))


@pytest.fixture
def elsewhere(shelf: FilledStore, tmp_path: Path) -> Path:
    """Another database, as another tenant's would be."""
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript("CREATE TABLE t (x); INSERT INTO t VALUES ('other-canary');")
    return path


STATEMENTS = (
    "ATTACH '{other}' AS o",
    "SELECT 1; ATTACH '{other}' AS o",
    "VACUUM INTO '{new}'",
    "VACUUM",
    "DETACH main",
    "PRAGMA query_only = OFF",
    "SELECT 1; PRAGMA query_only = OFF",
    "PRAGMA database_list",
    "PRAGMA journal_mode = DELETE",
    "SELECT * FROM pragma_query_only(0)",
    "INSERT INTO events VALUES (1, 'x', 1, '')",
    "UPDATE lines SET text = ''",
    "WITH a AS (SELECT 1) DELETE FROM lines",
    "WITH a AS (SELECT 1) INSERT INTO events SELECT 9, 'x', 1, ''",
    "WITH a AS (SELECT 1) UPDATE events SET kind = ''",
    "REPLACE INTO events VALUES (1, 'x', 1, '')",
    "DROP TABLE lines",
    "CREATE TABLE x (y)",
    "CREATE TEMP TABLE x (y)",
    "CREATE VIRTUAL TABLE temp.v USING fts5vocab(main, lines_fts, row)",
    "INSERT INTO lines_fts (lines_fts) VALUES ('delete-all')",
    "INSERT INTO lines_fts (lines_fts) VALUES ('rebuild')",
    "BEGIN IMMEDIATE",
    "SAVEPOINT s",
    "COMMIT",
    "ROLLBACK",
    "REINDEX",
    "ANALYZE",
    "EXPLAIN SELECT 1",
    "EXPLAIN QUERY PLAN SELECT 1",
    "VALUES (1)",
    "",
    ";",
    "SELECT",
    "SELECT load_extension('{other}')",
    "SELECT readfile('{other}')",
    "SELECT writefile('{new}', 'x')",
    "SELECT edit('x')",
    "SELECT fts3_tokenizer('simple')",
    "SELECT fts5(1)",
    "SELECT sqlite_compileoption_get(1)",
    'SELECT * FROM "{other}"',
    "SELECT * FROM '{other}'.t",
    "SELECT 1\0; ATTACH '{other}' AS o",
    "SELECT 1 /*",
    "SELECT ?1 FROM t",
)


@pytest.mark.parametrize("statement", STATEMENTS, ids=range(len(STATEMENTS)))
def test_nothing_is_written_and_no_other_file_is_reached_or_made(
    statement: str, ask, shelf: FilledStore, session: str, elsewhere: Path, tmp_path: Path
) -> None:
    path = shelf.path(session)
    before = (hashlib.sha256(path.read_bytes()).digest(), {p.name for p in tmp_path.iterdir()})
    with pytest.raises(RefusedError) as refused:
        ask(statement.format(other=elsewhere, new=tmp_path / "new.db"))
    assert "canary" not in str(refused.value)
    assert "\n" not in str(refused.value)
    files = {p.name for p in tmp_path.iterdir()}
    assert (hashlib.sha256(path.read_bytes()).digest(), files) == before
    assert {p.suffix for p in path.parent.iterdir()} <= {".db", ".db-wal", ".db-shm"}


GREEDY = {
    "one call of 2 GB": "SELECT length(printf('%.*c', 2000000000, 'x'))",
    "one call of 400 MB, hex": "SELECT length(hex(zeroblob(200000000)))",
    "repeated replace": "SELECT length(replace(hex(zeroblob(15000000)), '0', 'aaaaa'))",
    "a sorter of 8 GB": "WITH RECURSIVE t(x) AS (SELECT hex(zeroblob(4000000)) UNION ALL "
    "SELECT hex(zeroblob(4000000)) FROM t LIMIT 1000) SELECT length(x) FROM t ORDER BY x",
    "a concatenation": "SELECT length(group_concat(a.text || b.text)) FROM lines a, lines b",
    "wide rows": f"SELECT {', '.join(['zeroblob(30000000)'] * 60)}",
    "without end": "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c",
    "a cross join": "SELECT count(*) FROM lines a, lines b WHERE a.text <> b.text || 'x'",
    "one slow call": "SELECT instr(hex(zeroblob(15000000)), hex(zeroblob(7000000)) || '1')",
}  # fmt: skip


@pytest.mark.parametrize("name", GREEDY)
def test_time_and_memory_are_bounded(name: str, ask) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    largest_child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # of other tests in this process
    started = time.monotonic()
    with pytest.raises(RefusedError, match=r"took longer than|too much memory"):
        ask(GREEDY[name])
    assert time.monotonic() - started < 6
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000, "the gateway's own memory grew"
    most = max(largest_child, sandbox._ADDRESS_BYTES / 1024)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= most


def test_rows_and_characters_are_bounded_and_the_answer_says_so(ask) -> None:
    many = ask("SELECT id FROM lines")
    assert (len(many.rows), many.more) == (sandbox.ROWS, True)
    long = ask("SELECT printf('%.*c', 1000000, 'x') FROM lines LIMIT 50")
    assert (long.more, long.cut) == (True, True)
    assert sum(len(row[0]) for row in long.rows) < 2 * sandbox.ANSWER_CHARS
    whole = ask("SELECT id FROM lines LIMIT 200")
    assert (len(whole.rows), whole.more, whole.cut) == (200, False, False)


async def test_the_writer_is_never_blocked(shelf: FilledStore, session: str) -> None:
    """A statement that runs for its two seconds, and commits beside it."""
    slow = asyncio.to_thread(sandbox.select, shelf.path(session), GREEDY["without end"])
    running = asyncio.create_task(slow)
    slowest = 0.0
    with closing(sqlite3.connect(shelf.path(session), timeout=0)) as db:
        while not running.done():
            begun = time.monotonic()
            db.execute("INSERT INTO events (kind, created_at, data) VALUES ('x', 1, '{}')")
            db.commit()
            slowest = max(slowest, time.monotonic() - begun)
            await asyncio.sleep(0.02)
    with pytest.raises(RefusedError):
        await running
    assert slowest < 0.5


def test_a_missing_or_damaged_database_is_an_answer_not_a_crash(tmp_path: Path) -> None:
    (tmp_path / "bad.db").write_bytes(b"no database at all" * 100)
    for name in ("bad.db", "gone.db"):
        with pytest.raises(RefusedError):
            sandbox.select(tmp_path / name, "SELECT 1 FROM lines")
    assert not (tmp_path / "gone.db").exists()
