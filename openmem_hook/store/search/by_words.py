"""Search by words: what the full-text index finds, and what it can't be asked for, with exact counts at any moment.

The index answers for most messages. Those it can't be trusted with (written without spaces) and those it does not
hold yet are unindexed here: their texts are looked through, by the same rules.
"""

from __future__ import annotations

import itertools
import math
import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from openmem_hook.compaction.freeze import writes
from openmem_hook.store import yielder
from openmem_hook.store.fulltext import LINE_BITS
from openmem_hook.store.search import messages, words
from openmem_hook.store.search.values import LINES_SHOWN, Filters, Location, Match, Matches, Message
from openmem_hook.store.search.words import Piece, Query
from openmem_hook.store.statements import statement
from openmem_hook.store.yielder import Yielder

_MESSAGES = statement("search", "messages_with_words")
_COUNT_OF_MESSAGES = statement("search", "count_of_messages_with_words")
_SCORES_OF_MESSAGES = statement("search", "scores_of_messages_with_words")
_COUNT_OF_LINES = statement("search", "count_of_lines_with_words")
_LINES_BY_MESSAGE = statement("search", "lines_with_words_by_message")
_LINES_OF_MESSAGE = statement("search", "lines_of_message_with_words")
_LINES_WITH_ANY_WORD = statement("search", "lines_of_message_with_any_word")
_HAS_UNSPACED = statement("search", "has_unspaced")
_UNINDEXED_MESSAGES = statement("search", "unindexed_messages")
_NEWEST_MESSAGE = statement("search", "newest_message")
_SYMBOLS_BY_MESSAGE = statement("search", "symbols_by_message")
_SYMBOLS_IN_MESSAGE = statement("search", "symbols_in_message")
_RESULTS_AFTER_CALL = statement("search", "results_after_call")
_RECORD = statement("search", "record")

_NO_LIMIT = 1 << 31
_SHORT_LINES = 200
"""Up to so many lines are looked through faster here than the index finds its matches among them."""
_NEAR_LINES = 5_000
"""Lines of one message that are compared to find those that together show most of a query."""
_SATURATION = 1.2
"""bm25's k1, as FTS5 has it: the more often a text has a word, the less one more time counts."""
_BEHIND_CALL = 50
"""Messages behind an output among which its results are looked for; parallel calls and theirs may be as many rows."""


def search_words(db: sqlite3.Connection, query: Query, filters: Filters, limit: int) -> Matches:
    """Messages that have every piece of the query, by bm25, the newest first where equal; lines that have every piece.

    Raises sqlite3.OperationalError where the time is over.
    """
    if not query.pieces:
        return Matches()
    # Symbols alone are no word to any index: they are looked for in every line.
    if query.is_bare:
        return _search_symbols(db, query, filters, limit)
    # Part of a run without spaces is no word to the index either: then everything it could find is unindexed.
    matches = Matches() if query.runs_on else _Index(db, query, filters).search(limit)
    # The scores of both parts are made by bm25's formula, so that their best can be put in one order.
    others = _search_unindexed(db, query, filters)
    matches.total += others.total
    matches.line_matches += others.line_matches
    locations = sorted(matches.locations + others.locations, key=lambda place: (-place.score, -place.seq))
    matches.locations = locations[:limit]
    return matches


def read_match(db: sqlite3.Connection, location: Location, query: Query | None, filters: Filters) -> Match:
    """A location with its texts; `query` is what it was searched by, None for a pattern."""
    lines, matching = location.lines, location.matching
    if lines is None and query is not None:
        lines, matching = _Index(db, query, filters).find_lines(location.seq)
    texts = [messages.read_line(db, id_) for id_ in lines or ()]
    return Match(messages.read_message(db, location.seq), texts, matching)


class _Index:
    """A query over what the full-text index holds and can be trusted with."""

    def __init__(self, db: sqlite3.Connection, query: Query, filters: Filters) -> None:
        self._db, self._query = db, query
        self._condition, self._parameters = filters.condition()
        # Most sessions have no such message, and then no row needs to be looked up.
        if db.execute(_HAS_UNSPACED).fetchone()[0]:
            self._condition += " AND r.seq NOT IN (SELECT seq FROM unspaced)"
        db.create_function("stands_in", 2, _stands_in, deterministic=True)

    def search(self, limit: int) -> Matches:
        parameters = [self._query.expression(), *self._parameters]
        best_first = f"{_SCORES_OF_MESSAGES} AND {self._condition} ORDER BY f.rank, f.rowid DESC"
        # Of plain words the index knows all there is to know: SQLite counts and ranks.
        if not self._query.verbatim_pieces:
            lines = self._db.execute(f"{_COUNT_OF_LINES} AND {self._condition}", parameters).fetchone()[0]
            total = self._db.execute(f"{_COUNT_OF_MESSAGES} AND {self._condition}", parameters).fetchone()[0]
            rows = self._db.execute(f"{best_first} LIMIT {limit}", parameters)
            return Matches(total, lines, [Location(seq, -rank) for seq, rank in rows])
        # Else the index finds candidates, and the texts of their lines decide.
        counts = self._count_lines(self._query.pieces)
        seqs = set(counts)
        if len(self._query.pieces) > 1:  # all pieces in a message, whether in one line or not
            seqs = {seq for (seq,) in self._db.execute(f"{_MESSAGES} AND {self._condition}", parameters)}
            for piece in self._query.verbatim_pieces:
                seqs &= set(self._count_lines([piece]))
        matches = Matches(len(seqs), sum(counts.values()))
        if seqs:
            ranks = ((seq, rank) for seq, rank in self._db.execute(best_first, parameters) if seq in seqs)
            matches.locations = [Location(seq, -rank) for seq, rank in itertools.islice(ranks, limit)]
        return matches

    def _count_lines(self, pieces: Sequence[Piece]) -> dict[int, int]:
        """How many lines have all of these pieces, for each message that has any such line."""
        checks, needles = _require_verbatim(pieces)
        sql = f"{_LINES_BY_MESSAGE} AND {self._condition}{checks} GROUP BY r.seq"
        expression = " AND ".join(piece.expression for piece in pieces)
        return dict(self._db.execute(sql, [expression, *self._parameters, *needles]).fetchall())

    def find_lines(self, seq: int) -> tuple[tuple[int, ...], int]:
        """The ids of the lines of a message to be shown, and how many match."""
        low, high = seq << LINE_BITS, (seq + 1) << LINE_BITS
        # A short message: its text is at hand faster.
        texts = messages.read_first_lines(self._db, seq, _SHORT_LINES + 1)
        if len(texts) <= _SHORT_LINES:
            numbers, matching = _choose_lines(self._query, texts, [words.fold(text) for text in texts])
            return tuple(low | number for number in numbers), matching
        # A long one: lines that match, by the index.
        checks, needles = _require_verbatim(self._query.pieces)
        sql = f"{_LINES_OF_MESSAGE} AND {self._condition}{checks}"
        rows = self._db.execute(sql, [self._query.expression(), low, high, *self._parameters, *needles])
        ids = [id_ for (id_,) in rows]
        if ids:
            return tuple(ids[:LINES_SHOWN]), len(ids)
        # No line has all pieces: those that together show most of them.
        near = self._db.execute(_LINES_WITH_ANY_WORD, (self._query.expression("OR"), low, high, _NEAR_LINES))
        best = words.choose_best_lines(self._query, [messages.read_line(self._db, id_) for (id_,) in near], LINES_SHOWN)
        return tuple(low | number for number in best), 0


def _require_verbatim(pieces: Sequence[Piece]) -> tuple[str, list[str]]:
    """Conditions on a line `l`, and their parameters, for what the index leaves open: a piece stands there as it is
    written.

    Most often it does so in the very case, and `instr` is the fastest. SQLite's LIKE knows both cases of ASCII letters.
    Lines with other letters, which have more bytes than characters, are compared in Python.
    """
    conditions, parameters = "", list[str]()
    for piece in pieces:
        if piece.is_verbatim:
            other = "length(CAST(l.text AS BLOB)) > length(l.text) AND stands_in(?, l.text)"
            conditions += f" AND (instr(l.text, ?) OR l.text LIKE ? ESCAPE '\\' OR {other})"
            parameters += [piece.text, escape_like(piece.comparable), piece.comparable]
    return conditions, parameters


def escape_like(text: str) -> str:
    """A pattern for LIKE … ESCAPE '\\' that a text matches where it holds this one."""
    for special in "\\%_":
        text = text.replace(special, f"\\{special}")
    return f"%{text}%"


def _stands_in(comparable: str, text: str) -> bool:
    return comparable in words.fold(text)


def _search_unindexed(db: sqlite3.Connection, query: Query, filters: Filters) -> Matches:
    """The same search over the messages that the index does not hold yet or can't be trusted with."""
    matches, pause = Matches(), Yielder(yielder.SEARCH_S)
    condition, parameters = filters.condition()
    seqs = db.execute(f"{_UNINDEXED_MESSAGES} WHERE {condition} ORDER BY r.seq", parameters).fetchall()
    for (seq,) in seqs:
        text = messages.read_text(db, seq)
        comparable = words.fold(text)
        pause()
        if not query.is_in(comparable):
            continue
        numbers, matching = _choose_lines(query, text.split("\n"), comparable.split("\n"))
        matches.total += 1
        matches.line_matches += matching
        # bm25 without the length of the text, for all pieces as one word; how rare they are follows below.
        often = sum(comparable.count(piece.comparable) for piece in query.pieces)
        score = often * (1 + _SATURATION) / (often + _SATURATION)
        matches.locations.append(Location(seq, score, tuple(seq << LINE_BITS | n for n in numbers), matching))
    newest = db.execute(_NEWEST_MESSAGE).fetchone()[0]
    rarity = max(math.log(max(newest - matches.total + 0.5, 1.0) / (matches.total + 0.5)), 1e-6)
    matches.locations = [replace(place, score=place.score * rarity) for place in matches.locations]
    return matches


def _choose_lines(query: Query, lines: Sequence[str], comparable: Sequence[str]) -> tuple[list[int], int]:
    """Numbers, from 1, of the lines of a message to be shown, and how many match. `comparable`: the lines folded."""
    matching = [number for number, line in enumerate(comparable, 1) if query.is_in(line)]
    return matching[:LINES_SHOWN] or words.choose_best_lines(query, enumerate(lines, 1), LINES_SHOWN), len(matching)


def _search_symbols(db: sqlite3.Connection, query: Query, filters: Filters, limit: int) -> Matches:
    """Symbols that no index holds, in every line. Newest first."""
    first, *others = [piece.text for piece in query.pieces]
    more = " AND instr(l.text, ?)" * len(others)
    condition, parameters = filters.condition()
    sql = f"{_SYMBOLS_BY_MESSAGE}{more} AND {condition} GROUP BY r.seq ORDER BY r.seq"
    rows = db.execute(sql, [first, *others, *parameters]).fetchall()
    matches = Matches(len(rows), sum(count for _, count in rows))
    for seq, count in rows[: -limit - 1 : -1]:
        low, high = seq << LINE_BITS, (seq + 1) << LINE_BITS
        sql = f"{_SYMBOLS_IN_MESSAGE}{more} ORDER BY id LIMIT {LINES_SHOWN}"
        ids = db.execute(sql, [low, high, first, *others])
        matches.locations.append(Location(seq, 0.0, tuple(id_ for (id_,) in ids), count))
    return matches


def read_results_of_calls(
    db: sqlite3.Connection, query: Query, filters: Filters, most: int
) -> list[tuple[Message, str]]:
    """Results of the calls that match, newest first, with the beginnings of their texts. A result's own text seldom
    says which file it is of: its call does. Calls that write tell only that they did, and are left out."""
    calls_only = replace(filters, roles=("assistant",), in_context=None)
    seqs = [location.seq for location in search_words(db, query, calls_only, _NO_LIMIT).locations]
    results = list[tuple[Message, str]]()
    for call in (messages.read_message(db, seq) for seq in sorted(seqs, reverse=True)):
        if call.kind == "call" and not writes(call.tool_name):
            results += _read_results_of_call(db, call.seq, filters)
        if len(results) >= most:
            break
    return results[:most]


def _read_results_of_call(db: sqlite3.Connection, call: int, filters: Filters) -> list[tuple[Message, str]]:
    """The results behind an output, as far as they count. Other calls of it may stand between as rows of their own."""
    rows = iter(db.execute(_RESULTS_AFTER_CALL, (call, _BEHIND_CALL)).fetchall())
    after_calls = itertools.dropwhile(lambda row: row[1] in ("call", "reasoning"), rows)
    results = itertools.takewhile(lambda row: row[1] in ("result", "mixed"), after_calls)
    condition, parameters = filters.condition()
    seqs = [seq for seq, _ in results if db.execute(f"{_RECORD} AND {condition}", [seq, *parameters]).fetchone()]
    return [(messages.read_message(db, seq), messages.read_first_line(db, seq)) for seq in seqs]
