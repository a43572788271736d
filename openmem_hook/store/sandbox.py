"""SQL that an agent wrote, in a sandbox: a process of its own, read-only, that ends with the answer.

Nothing else bounds it in full. A progress handler does not stop a single function call, sorting in memory is not
bounded by a length limit, and what takes memory or time in the gateway takes it from everybody. So the statement
runs in a child with limits of the operating system, of SQLite's heap and of lengths; an authorizer lets it read
the public tables and nothing else. The full-text module reads private tables itself, and under the same
authorizer: so the statement is compiled twice, once alone (as EXPLAIN, which runs nothing) under the strict rules,
then to run, where reading is free because what could be asked for has been settled.

This file is also the child's program: it imports nothing outside the standard library.
"""

from __future__ import annotations

import json
import math
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

SECONDS = 2.0
LAST_S = 0.1
"""Seconds after the time is over for a function call that looks at no clock; then the child is ended by its alarm."""
GRACE_S = 2.0
"""Seconds beyond `SECONDS` for the child to start on a busy machine."""
ROWS = 200
CELL_CHARS = 20_000
ANSWER_CHARS = 60_000
LONGEST_SQL = 20_000
"""Characters."""
_HEAP_BYTES = 192_000_000
_ADDRESS_BYTES = 640_000_000
_VALUE_BYTES = 32_000_000
_SIDE_FILE_BYTES = 16_000_000
"""What SQLite's own shared-memory file may grow to; nothing else is ever opened for writing."""

TABLES = ("messages", "lines", "messages_fts", "lines_fts", "events")
_MODULES = ("json_each", "json_tree")
_BEHIND_MESSAGES = {
    "records": {"seq", "role", "kind", "tool_name", "in_context", "created_at", "thread"},
    "threads": {"id", "name"},
}
"""What the view `messages` is made of: these columns, read through it, say nothing private."""
_FUNCTIONS = frozenset(
    """abs acos acosh asin asinh atan atan2 atanh avg bm25 ceil ceiling changes char coalesce concat concat_ws cos cosh
    count cume_dist date datetime degrees dense_rank exp first_value floor format glob group_concat hex highlight
    ifnull iif instr json json_array json_array_length json_extract json_group_array json_group_object json_insert
    json_object json_patch json_quote json_remove json_replace json_set json_type json_valid julianday lag last_value
    lead length like likelihood likely ln log log10 log2 lower ltrim match max min mod nth_value ntile nullif
    octet_length percent_rank pi pow power printf quote radians random randomblob rank regexp replace round row_number
    rtrim sign sin sinh snippet soundex sqrt strftime string_agg substr substring sum tan tanh time timediff total
    trim trunc typeof unhex unicode unixepoch unlikely upper zeroblob -> ->>""".split()  # noqa: SIM905 - a hundred names
)
_FIRST_WORD = re.compile(r"(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?(?:\*/|\Z))*(\w*)", re.DOTALL)

_TOO_SLOW = "the statement took longer than {:g} s: count less, or narrow it with MATCH, seq or LIMIT"
_TOO_MUCH = "the statement needed too much memory: select less, or narrow it with MATCH, seq or LIMIT"
_RULE = f"one SELECT, or WITH … SELECT, over {', '.join(TABLES)} is allowed"


class RefusedError(Exception):
    """Why there is no answer, in one line for the agent."""


@dataclass(frozen=True, slots=True)
class Table:
    """What a statement answers."""

    columns: list[str]
    """Names."""
    rows: list[list[Any]]
    """Cells as JSON has them: null, numbers and strings; bytes as x'…'."""
    more: bool = False
    """Whether there are rows beyond these."""
    cut: bool = False
    """Whether a cell is not whole."""


# --- the gateway's side -------------------------------------------------------------------------------------


def select(path: Path, sql: str, seconds: float = SECONDS) -> Table:
    """What one SELECT answers from the session database at this path. Blocks. Raises RefusedError or OSError."""
    # What needs no database to be refused. The authorizer refuses the rest: this makes no statement safe.
    if len(sql) > LONGEST_SQL:
        raise RefusedError(f"the statement has {len(sql)} characters, {LONGEST_SQL} are allowed")
    if "\0" in sql:
        raise RefusedError("a NUL character can't stand in SQL")
    first_word = _FIRST_WORD.match(sql)
    if first_word is None or first_word[1].upper() not in ("SELECT", "WITH"):
        raise RefusedError(_RULE)
    # An empty environment, an empty search path for modules, and nobody's folder.
    request = json.dumps({"path": str(path), "sql": sql, "seconds": seconds}).encode()
    command = [sys.executable, "-I", "-S", "-B", __file__]
    try:
        child = subprocess.run(  # noqa: S603 - this very file
            command, input=request, capture_output=True, timeout=seconds + GRACE_S, cwd="/", env={}, check=False
        )
    except subprocess.TimeoutExpired:
        raise RefusedError(_TOO_SLOW.format(seconds)) from None
    # A child that did not end by itself was ended by a limit: of time by these signals, of memory by any other way.
    if child.returncode:
        is_slow = -child.returncode in (signal.SIGALRM, signal.SIGXCPU)
        raise RefusedError(_TOO_SLOW.format(seconds) if is_slow else _TOO_MUCH)
    answer = json.loads(child.stdout)
    if "refusal" in answer:
        raise RefusedError(answer["refusal"])
    return Table(**answer)


# --- the child ----------------------------------------------------------------------------------------------


def main() -> None:
    """Answers one request from standard input on standard output: a table's fields, or why there is none."""
    request = json.load(sys.stdin)
    answer: dict[str, Any]
    try:
        _limit_process(request["seconds"])
        answer = _answer(request["path"], request["sql"], request["seconds"])
    except RefusedError as error:
        answer = {"refusal": str(error)}
    except MemoryError:
        answer = {"refusal": _TOO_MUCH}
    sys.stdout.buffer.write(json.dumps(answer).encode())


def _limit_process(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds + LAST_S)
    limits = {
        resource.RLIMIT_AS: _ADDRESS_BYTES,
        resource.RLIMIT_CPU: math.ceil(seconds + LAST_S),
        resource.RLIMIT_FSIZE: _SIDE_FILE_BYTES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 32,
    }
    for kind, most in limits.items():
        with suppress(ValueError, OSError):  # a system without this limit, or with a lower one
            resource.setrlimit(kind, (most, most))


def _answer(path: str, sql: str, seconds: float) -> dict[str, Any]:
    """The fields of the table. Raises RefusedError."""
    db = _connect(path, seconds)
    authorizer = Authorizer(db)
    db.set_authorizer(authorizer)
    try:
        # Compiled alone under the strict rules, and not run: what it could ask for is settled by this.
        db.execute(f"EXPLAIN {sql}").fetchall()
        # Compiled again to run, together with what the full-text module needs for it.
        authorizer.is_settled = True
        return _read_table(db.execute(sql))
    except (sqlite3.Error, sqlite3.Warning, OverflowError) as error:
        raise RefusedError(authorizer.refusal or _explain(error, seconds)) from None


def _connect(path: str, seconds: float) -> sqlite3.Connection:
    """A read-only connection within limits, in one snapshot. Raises RefusedError."""
    db = sqlite3.connect(
        f"file:{quote(path)}?mode=ro", uri=True, timeout=0.5, isolation_level=None, cached_statements=0
    )
    try:
        for pragma in ("query_only = ON", "trusted_schema = OFF", "temp_store = MEMORY", "cache_size = -8000"):
            db.execute(f"PRAGMA {pragma}")
        db.execute(f"PRAGMA hard_heap_limit = {_HEAP_BYTES}")
        # Modules set themselves up on their first use, with statements that the authorizer would refuse: now.
        for table in (*TABLES, "json_each('[]')", "json_tree('[]')"):
            db.execute(f"SELECT 1 FROM {table} LIMIT 0").fetchall()  # noqa: S608 - names of ours
        db.execute("BEGIN")
    except sqlite3.Error as error:
        raise RefusedError(f"the session can't be read now ({error}); try again") from None
    limits = {
        sqlite3.SQLITE_LIMIT_LENGTH: _VALUE_BYTES,
        sqlite3.SQLITE_LIMIT_SQL_LENGTH: 4 * LONGEST_SQL + 100,
        sqlite3.SQLITE_LIMIT_COLUMN: 200,
        sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
        sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
        sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1_000,
        sqlite3.SQLITE_LIMIT_ATTACHED: 0,
        sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
    }
    for kind, most in limits.items():
        db.setlimit(kind, most)
    until = time.monotonic() + seconds
    db.set_progress_handler(lambda: int(time.monotonic() > until), 1_000)
    return db


class Authorizer:
    """Says for each thing that a statement would do, while SQLite compiles it, whether it may. SQLite calls it with an
    action, two names that depend on the action, the database ("main"; None for what has none), and the view or
    trigger that the thing is done for."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.is_settled = False
        """Whether the agent's statement has been looked at: what is compiled now is that very statement, and what the
        full-text module needs for it."""
        self.refusal = ""
        """Why the first thing that it may not do was refused, for the agent; "" while nothing was."""
        self._is_through_view = False
        self._tables = {name.lower() for (name,) in db.execute("SELECT name FROM sqlite_master")}
        self._checks: dict[int, Callable[[str, str, str | None, str | None], bool]] = {
            sqlite3.SQLITE_SELECT: lambda *_: True,
            sqlite3.SQLITE_RECURSIVE: lambda *_: True,
            sqlite3.SQLITE_READ: self._may_read,
            sqlite3.SQLITE_FUNCTION: self._may_call,
            sqlite3.SQLITE_PRAGMA: self._may_use_pragma,
        }

    def __call__(self, action: int, one: str | None, two: str | None, base: str | None, inside: str | None) -> int:
        check = self._checks.get(action)
        if check is not None and check((one or "").lower(), (two or "").lower(), base, inside):
            return sqlite3.SQLITE_OK
        self.refusal = self.refusal or _RULE
        return sqlite3.SQLITE_DENY

    def _may_read(self, table: str, column: str, base: str | None, inside: str | None) -> bool:
        # Public tables; everything where the full-text module reads for a statement that was settled.
        if self.is_settled or table in TABLES or table in _MODULES:
            return True
        # Private tables through the view `messages`, and of them only the columns that it shows.
        if inside == "messages" and column in _BEHIND_MESSAGES.get(table, ()):
            self._is_through_view = True
            return True
        # How many messages there are: SQLite asks for no column then, and no longer says for which view.
        if self._is_through_view and table == "records" and not base:
            return True
        # A table that the statement itself makes up (WITH); a name that is none of the file's.
        if not base and table not in self._tables and not table.startswith(("sqlite_", "pragma_")):
            return True
        self.refusal = self.refusal or f"no such table: {table}; there are {', '.join(TABLES)}"
        return False

    def _may_call(self, _: str, function: str, base: str | None, inside: str | None) -> bool:  # noqa: ARG002
        if function in _FUNCTIONS:
            return True
        self.refusal = self.refusal or f"the function {function} is not available"
        return False

    def _may_use_pragma(self, pragma: str, value: str, base: str | None, inside: str | None) -> bool:  # noqa: ARG002
        """Only one, which the full-text module reads to see whether its tables have changed."""
        return self.is_settled and pragma == "data_version" and not value


def _read_table(cursor: sqlite3.Cursor) -> dict[str, Any]:
    """As many rows as an answer may have, as the fields of a table."""
    columns = [column[0] for column in cursor.description or ()]
    rows: list[list[Any]] = []
    room, is_cut = ANSWER_CHARS, False
    for row in cursor:
        if len(rows) == ROWS or room <= 0:
            return {"columns": columns, "rows": rows, "more": True, "cut": is_cut}
        cells = list[Any]()
        for value in row:
            # What JSON has no form for, as SQL and Python write it.
            cell = value
            if isinstance(cell, bytes):
                cell = f"x'{cell[: CELL_CHARS + 1].hex()}'"
            if isinstance(cell, float) and not math.isfinite(cell):
                cell = str(cell)
            if isinstance(cell, str) and len(cell) > CELL_CHARS:
                cell, is_cut = cell[:CELL_CHARS] + "…", True
            cells.append(cell)
        rows.append(cells)
        room -= sum(len(str(cell)) for cell in cells)
    return {"columns": columns, "rows": rows, "more": False, "cut": is_cut}


def _explain(error: Exception, seconds: float) -> str:
    """What an error of SQLite means to the agent."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if "interrupted" in text:
        return _TOO_SLOW.format(seconds)
    if "out of memory" in text or "too big" in text:
        return _TOO_MUCH
    if "one statement" in text:
        return _RULE
    return f"SQLite says: {text}"


if __name__ == "__main__":
    main()
