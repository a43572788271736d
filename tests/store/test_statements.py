"""SQL in files: every statement has a name, is used, and is one that SQLite takes."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

import openmem_hook
from openmem_hook.store import database, fulltext, statements
from openmem_hook.store.statements import StatementError

PACKAGE = Path(openmem_hook.__file__).parent
SUBJECTS = sorted(path.stem for path in (PACKAGE / "store/sql").glob("*.sql"))
EVERY = [(subject, name) for subject in SUBJECTS for name in statements.statements_of(subject).by_name]


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, sqlite3.Connection]]:
    folder = tmp_path_factory.mktemp("fresh")
    with (
        closing(database.connect(folder / "catalog.db", "catalog")) as catalog,
        closing(database.connect(folder / "session.db", "session")) as session,
    ):
        yield {"catalog": catalog, "session": session}


@pytest.mark.parametrize(("subject", "name"), EVERY, ids=".".join)
def test_every_statement_prepares_against_a_fresh_database(
    subject: str, name: str, databases: dict[str, sqlite3.Connection]
) -> None:
    """EXPLAIN compiles a statement and runs nothing; two statements in one are refused."""
    file = statements.statements_of(subject)
    db, sql = databases[file.database], f"EXPLAIN {file.by_name[name]}"
    parameters = re.findall(r":([a-z]\w*)", sql)
    if parameters:
        db.execute(sql, dict.fromkeys(parameters)).fetchall()
        return
    for count in range(30):  # positional parameters: SQLite tells no number of them beforehand
        with suppress(sqlite3.ProgrammingError):
            db.execute(sql, [None] * count).fetchall()
            return
    pytest.fail(sql)


def test_every_statement_is_used_and_none_is_missing() -> None:
    uses = set[tuple[str, str]]()
    for path in PACKAGE.rglob("*.py"):
        if path.name != "statements.py":
            uses.update(re.findall(r'\bstatement\(\s*"(\w+)",\s*"(\w+)",?\s*\)', path.read_text("utf-8")))
    assert uses == set(EVERY)


def test_a_line_has_the_same_number_in_sql_and_in_python() -> None:
    for subject, name in EVERY:
        sql = statements.statements_of(subject).by_name[name]
        assert set(re.findall(r"(?:<<|>>) *(\d+)", sql)) <= {str(fulltext.LINE_BITS)}, name


# --- the loader ---------------------------------------------------------------------------------------------


def test_a_name_that_is_not_there_is_an_error_at_once() -> None:
    with pytest.raises(StatementError, match="no statement named nonsuch"):
        statements.statement("tenant", "nonsuch")
    with pytest.raises(StatementError, match=r"no file sql/nonsuch\.sql"):
        statements.statement("nonsuch", "events_since")


def test_comments_stay_behind_and_the_semicolon_goes() -> None:
    text = (
        "-- database: session\n\n-- name: one\n-- why\nSELECT 1\n  -- and why\nFROM lines;\n\n-- name: two\nSELECT 2;\n"
    )
    file = statements.parse(text, "x")
    assert file.database == "session"
    assert dict(file.by_name) == {"one": "SELECT 1\nFROM lines", "two": "SELECT 2"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-- name: one\nSELECT 1;\n", "the first line"),
        ("-- database: other\n-- name: one\nSELECT 1;\n", "the first line"),
        ("-- database: session\nSELECT 1;\n", "without a name"),
        ("-- database: session\n-- name: one\nSELECT 1\n", "semicolon"),
        ("-- database: session\n-- name: one\n-- name: two\nSELECT 1;\n", "semicolon"),
        ("-- database: session\n-- name: one\nSELECT 1;\n-- name: one\nSELECT 2;\n", "twice"),
        ("-- database: session\n-- name: One two\nSELECT 1;\n", "identifier"),
    ],
)
def test_a_malformed_file_is_an_error(text: str, message: str) -> None:
    with pytest.raises(StatementError, match=message):
        statements.parse(text, "x")
