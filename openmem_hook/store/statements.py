"""The fixed SQL statements of the store, by name, from the files in `store/sql`.

A file holds the statements of one subject against one kind of database, which its first line names:

    -- database: session

    -- name: text_of_message
    -- A comment that stands in a line of its own belongs to the reader, and is not sent to SQLite.
    SELECT text FROM messages WHERE seq = :seq;

Modules bind the statements they run to constants, so that a name that no file has ends the import, not a request:

    TEXT_OF_MESSAGE = statement("messages", "text_of_message")
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Literal

_DATABASE = re.compile(r"-- database: (catalog|session)\s*\n")
_NAME = re.compile(r"^-- name: (.*)\n", re.MULTILINE)
_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*")
_COMMENT = re.compile(r"^[ \t]*--.*(?:\n|\Z)", re.MULTILINE)


class StatementError(Exception):
    """A file of statements is missing or malformed, or has no statement of this name: a mistake in this package."""


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements of one file."""

    database: Literal["catalog", "session"]
    """The kind of database that they run against."""
    by_name: Mapping[str, str]
    """Each statement's SQL, without the semicolon at its end, so that conditions can be appended."""


def statement(subject: str, name: str) -> str:
    """The SQL of a statement: `subject` is its file's name without the ending. Raises StatementError."""
    try:
        return statements_of(subject).by_name[name]
    except KeyError:
        raise StatementError(f"sql/{subject}.sql has no statement named {name}") from None


@cache
def statements_of(subject: str) -> Statements:
    """All statements of a file, read once. Raises StatementError."""
    file = resources.files("openmem_hook.store") / "sql" / f"{subject}.sql"
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError:
        raise StatementError(f"there is no file sql/{subject}.sql") from None
    return parse(text, subject)


def parse(text: str, subject: str) -> Statements:
    """The statements in the text of a file. Raises StatementError."""
    head = _DATABASE.match(text)
    if head is None:
        raise StatementError(f"sql/{subject}.sql: the first line has to be -- database: catalog, or session")
    # What stands before the first name, then names and bodies by turns.
    preamble, *parts = _NAME.split(text[head.end() :])
    if _COMMENT.sub("", preamble).strip():
        raise StatementError(f"sql/{subject}.sql: a statement without a name")
    by_name: dict[str, str] = {}
    for name, body in zip(map(str.strip, parts[::2]), parts[1::2], strict=True):
        sql = _COMMENT.sub("", body).strip()
        if not _IDENTIFIER.fullmatch(name) or name in by_name:
            raise StatementError(f"sql/{subject}.sql: {name!r} is no identifier, or stands there twice")
        if not sql.endswith(";"):
            raise StatementError(f"sql/{subject}.sql: {name} has to end in a semicolon")
        by_name[name] = sql[:-1].rstrip()
    return Statements("catalog" if head[1] == "catalog" else "session", MappingProxyType(by_name))
