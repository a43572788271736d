"""Search by a regular expression, in each line by itself, newest message first."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from openmem_hook.store import yielder
from openmem_hook.store.fulltext import LINE_BITS
from openmem_hook.store.search.by_words import escape_like
from openmem_hook.store.search.patterns import OutOfTimeError, Pattern
from openmem_hook.store.search.values import LINES_SHOWN, Filters, Location, Matches
from openmem_hook.store.statements import statement
from openmem_hook.store.yielder import Yielder

_LINES_WITH_LITERAL = statement("search", "lines_with_literal")
_TEXTS = statement("search", "texts")


def search_pattern(db: sqlite3.Connection, pattern: Pattern, filters: Filters, limit: int, until: float) -> Matches:
    """Lines that match, and the messages they stand in, newest first.

    Incomplete where `until` (seconds of the monotonic clock) came, or the connection's own time was over.
    """
    # With a text that every match holds, SQLite leaves few lines to the pattern; else it reads every message.
    ids = _find_lines_with_literal if pattern.literal else _find_lines_in_texts
    matches, lines, counts = Matches(), dict[int, list[int]](), dict[int, int]()
    try:
        for id_ in ids(db, pattern, filters, until):
            seq = id_ >> LINE_BITS
            matches.line_matches += 1
            counts[seq] = counts.get(seq, 0) + 1
            if counts[seq] <= LINES_SHOWN:
                lines.setdefault(seq, []).append(id_)
    except OutOfTimeError:
        matches.is_complete = False
    matches.total = len(counts)
    newest = sorted(counts, reverse=True)[:limit]
    matches.locations = [Location(seq, 0.0, tuple(lines[seq]), counts[seq]) for seq in newest]
    return matches


def _find_lines_with_literal(db: sqlite3.Connection, pattern: Pattern, filters: Filters, until: float) -> Iterator[int]:
    """Ids of the lines that match, in their order. Raises OutOfTimeError."""
    condition, parameters = filters.condition()
    sql = f"{_LINES_WITH_LITERAL} AND {condition} ORDER BY l.id"
    for id_, text in _iterate(db, sql, [escape_like(pattern.literal), *parameters]):
        if pattern.matches(text, until):
            yield id_


def _find_lines_in_texts(db: sqlite3.Connection, pattern: Pattern, filters: Filters, until: float) -> Iterator[int]:
    """Ids of the lines that match, those of the newest message first: time may end the search. Raises
    OutOfTimeError."""
    condition, parameters = filters.condition()
    pause = Yielder(yielder.SEARCH_S)
    for seq, text in _iterate(db, f"{_TEXTS} WHERE {condition} ORDER BY r.seq DESC", parameters):
        at, number = 0, 1
        for begin in pattern.lines_in(text, until):
            number += text.count("\n", at, begin)
            at = begin
            yield seq << LINE_BITS | number
            pause()


def _iterate(db: sqlite3.Connection, sql: str, parameters: list[Any]) -> Iterator[Any]:
    """A statement's rows. Raises OutOfTimeError where SQLite was stopped by the clock."""
    try:
        yield from db.execute(sql, parameters)
    except sqlite3.OperationalError as error:
        if "interrupted" in str(error):
            raise OutOfTimeError from None
        raise
