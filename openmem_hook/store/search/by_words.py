"""The read side of a session: search by words or pattern with exact counts, full texts, and nothing is ever written.

Every call has a read-only connection of its own and one snapshot, so that it never holds up the writer. The
full-text index answers for most messages. Those it can't be trusted with (written without spaces) and those it
does not hold yet are looked at here, so that counts are exact at any moment.
"""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from openmem_hook.compaction.freeze import writes
from openmem_hook.fingerprint import load
from openmem_hook.formats import adapter_named
from openmem_hook.store import breather, database, fulltext, sessions, words
from openmem_hook.store.breather import Breather
from openmem_hook.store.database import StoreError
from openmem_hook.store.fulltext import LINE_BITS
from openmem_hook.store.patterns import OutOfTimeError, Pattern
from openmem_hook.store.pool import Live
from openmem_hook.store.statements import statement

BUSY_S = 0.8
SEARCH_S = 2.0
"""Seconds a search may take; what was found until then is told as incomplete."""
LINES_SHOWN = 3
"""Matching lines kept of a message."""
_STEPS = 20_000
"""SQLite's own instructions between two looks at the clock: less than a millisecond."""
_FEW_LINES = 5_000
_ALL = 1 << 31
_BEHIND = 50
"""Messages behind an output among which its results are looked for; parallel calls and theirs may be as many rows."""
_SHORT_LINES = 200
"""Up to so many lines are looked through faster here than the index finds its matches among them."""


_NOT_OUR_OWN = (
    "(instr(r.tool_name, 'smart_compact_') = 0 "
    "OR (length(r.tool_name) - length(replace(r.tool_name, ', ', ''))) / 2 + 1 "
    "> (length(r.tool_name) - length(replace(r.tool_name, 'smart_compact_', ''))) / 14)"
)
"""Calls of the search tools and their answers are stored too. Found again, they would be counted again; so a message
counts only where some other tool has part in it."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Which messages count, those of our own tools never. `roles` empty: all. `since` and `until` in seconds since
    1970, both included."""

    roles: tuple[str, ...] = ()
    in_context: bool | None = None
    since: float | None = None
    until: float | None = None

    def sql(self) -> tuple[str, list[Any]]:
        """A condition on `r` (records), and its values."""
        terms, values = [_NOT_OUR_OWN], list[Any]()
        if self.roles:
            terms.append(f"r.role IN ({','.join('?' * len(self.roles))})")
            values += self.roles
        if self.in_context is not None:
            terms.append("r.in_context = ?")
            values.append(int(self.in_context))
        for comparison, bound in ((">=", self.since), ("<=", self.until)):
            if bound is not None:
                terms.append(f"r.created_at {comparison} ?")
                values.append(bound)
        return " AND ".join(terms), values


@dataclass(frozen=True, slots=True)
class Message:
    """What is told of a stored message. `result_id` where its result was compressed."""

    seq: int
    role: str
    kind: str
    tool_name: str
    in_context: bool
    thread: str
    created_at: float
    result_id: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A message that matches. `lines`: ids of its first matching lines, or of those that show most of it where no line
    matches alone; None where the index is still to be asked. `matching`: how many lines match."""

    seq: int
    score: float
    lines: tuple[int, ...] | None = None
    matching: int = 0


@dataclass(frozen=True, slots=True)
class Hit:
    """A match to be shown. `lines`: numbers from 1, and texts."""

    message: Message
    lines: Sequence[tuple[int, str]]
    matching: int


@dataclass(slots=True)
class Found:
    """What a search found in one session, best first."""

    total: int = 0
    line_matches: int = 0
    places: list[Place] = field(default_factory=list)
    complete: bool = True


def connect(path: Path, seconds: float) -> sqlite3.Connection:
    """A read-only connection that gives up after so many seconds. Raises sqlite3.Error."""
    db = sqlite3.connect(
        f"file:{quote(str(path))}?mode=ro", uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
    )
    give(db, seconds)
    for pragma in ("query_only = ON", "trusted_schema = OFF", "temp_store = MEMORY", "cache_size = -8000"):
        db.execute(f"PRAGMA {pragma}")
    return db


def give(db: sqlite3.Connection, seconds: float) -> None:
    """So many seconds from now; then what runs is interrupted."""
    until = time.monotonic() + seconds
    db.set_progress_handler(lambda: int(time.monotonic() > until), _STEPS)


class TooSlowError(StoreError):
    """The time is over."""


FAULTS = (sqlite3.Error, StoreError, OSError)
"""What reading a session may raise."""
Reader = sqlite3.Connection
"""What `reading` gives and the functions below take."""


@contextmanager
def reading(path: Path, seconds: float = SEARCH_S) -> Iterator[Reader]:
    """One snapshot of a database. Raises StoreError, or TooSlowError after so many seconds."""
    try:
        with closing(connect(path, seconds)) as db:
            db.execute("BEGIN")
            yield db
    except sqlite3.Error as error:
        if "interrupted" in str(error):
            raise TooSlowError("the time is over") from None
        raise StoreError(f"a database can't be read ({error})") from None


def catch_up(live: Live, seconds: float) -> bool:
    """Have all of a session in the full-text index; False where that takes longer. Raises StoreError, OSError or
    SessionBusyError."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with live.held():
            try:
                db = live.database()
                with database.transaction(db):
                    done = fulltext.index(db, fulltext.PIECE_CHARS, least=1)
            except sqlite3.Error as error:
                live.file.failed(error)
                raise StoreError(f"the full-text index can't be brought up to date ({error})") from None
        if done:
            return True
    return False


# --- words ------------------------------------------------------------------------------------------------


def search_words(db: Reader, query: words.Query, filters: Filters, limit: int) -> Found:
    """Messages that have every piece of the query, by bm25, the newest first where equal; lines that have every
    piece. Raises sqlite3.OperationalError where the time is over."""
    if not query.pieces:
        return Found()
    if query.bare:
        return _search_bare(db, query, filters, limit)
    found = Found() if query.runs_on else _Indexed(db, query, filters).found(limit)
    aside = _search_aside(db, query, filters)
    found.total += aside.total
    found.line_matches += aside.line_matches
    found.places = sorted(found.places + aside.places, key=lambda place: (-place.score, -place.seq))[:limit]
    return found


def hit(db: Reader, place: Place, query: words.Query | None, filters: Filters) -> Hit:
    """A place with its texts; `query` is what found it, None for a pattern."""
    lines, matching = place.lines, place.matching
    if lines is None and query is not None:
        lines, matching = _Indexed(db, query, filters).lines_of(place.seq)
    return Hit(message(db, place.seq), [_line(db, line) for line in lines or ()], matching)


class _Indexed:
    """A query over what the full-text index holds and can be trusted with."""

    def __init__(self, db: Reader, query: words.Query, filters: Filters) -> None:
        self._db, self._query = db, query
        condition, self._values = filters.sql()
        if db.execute("SELECT 1 FROM unspaced LIMIT 1").fetchone():
            condition += " AND r.seq NOT IN (SELECT seq FROM unspaced)"
        self._condition = condition
        db.create_function("stands_in", 2, _stands_in, deterministic=True)

    def found(self, limit: int) -> Found:
        if not self._query.verbatim:
            sql, values = self._lines(self._query.pieces, "count(*)")
            lines = int(self._db.execute(sql, values).fetchone()[0])
            total = self._db.execute(f"SELECT count(*) FROM {self._matching}", self._given).fetchone()  # noqa: S608
            return Found(int(total[0]), lines, self._ranked(limit, None))
        lines, chosen = self._checked()
        return Found(len(chosen), lines, self._ranked(limit, chosen))

    def lines_of(self, seq: int) -> tuple[tuple[int, ...], int]:
        """The lines of a message to be shown, and how many match."""
        low, high = seq << LINE_BITS, (seq + 1) << LINE_BITS
        few = "SELECT id, text FROM lines WHERE id > ? AND id < ? ORDER BY id LIMIT ?"
        texts = [text for _, text in self._db.execute(few, (low, high, _SHORT_LINES + 1))]
        if len(texts) <= _SHORT_LINES:
            chosen, matching = _chosen(self._query, texts, [words.fold(text) for text in texts])
            return tuple(low | number for number in chosen), matching
        sql, values = self._lines(self._query.pieces, "f.rowid")
        ids = [row[0] for row in self._db.execute(f"{sql} AND f.rowid > {low} AND f.rowid < {high}", values)]
        if ids:
            return tuple(ids[:LINES_SHOWN]), len(ids)
        any_of = "SELECT rowid FROM lines_fts WHERE lines_fts MATCH ? AND rowid > ? AND rowid < ? LIMIT ?"
        near = self._db.execute(any_of, (self._query.expression("OR"), low, high, _FEW_LINES))
        best = words.best_lines(self._query, [_line(self._db, row[0]) for row in near], LINES_SHOWN)
        return tuple(low | number for number, _ in best), 0

    def _lines(self, pieces: Sequence[words.Piece], what: str) -> tuple[str, list[Any]]:
        """SQL for the lines that have these pieces."""
        expression = " AND ".join(piece.expression for piece in pieces)
        sql = f"SELECT {what} FROM lines_fts f CROSS JOIN records r ON r.seq = f.rowid >> {LINE_BITS} "  # noqa: S608
        checks, needles = _verbatim(pieces)
        if checks:
            sql += "CROSS JOIN lines l ON l.id = f.rowid "
        return sql + f"WHERE lines_fts MATCH ? AND {self._condition}{checks}", [expression, *self._values, *needles]

    def _checked(self) -> tuple[int, set[int]]:
        """How many lines and which messages match, where the index alone can't tell."""
        pieces = self._query.pieces
        counts = self._counts(pieces)
        chosen, lines = set(counts), sum(counts.values())
        if len(pieces) > 1:  # all pieces in a message, whether in one line or not
            chosen = {row[0] for row in self._db.execute(f"SELECT f.rowid FROM {self._matching}", self._given)}  # noqa: S608
            for piece in self._query.verbatim:
                chosen &= set(self._counts([piece]))
        return lines, chosen

    def _counts(self, pieces: Sequence[words.Piece]) -> dict[int, int]:
        """Matching lines of each message that has any."""
        sql, values = self._lines(pieces, "r.seq, count(*)")
        return dict(self._db.execute(f"{sql} GROUP BY r.seq", values).fetchall())

    @property
    def _matching(self) -> str:
        joined = "messages_fts f CROSS JOIN records r ON r.seq = f.rowid"
        return f"{joined} WHERE messages_fts MATCH ? AND {self._condition}"

    @property
    def _given(self) -> list[Any]:
        return [self._query.expression(), *self._values]

    def _ranked(self, limit: int, chosen: set[int] | None) -> list[Place]:
        sql = f"SELECT f.rowid, f.rank FROM {self._matching} ORDER BY f.rank, f.rowid DESC"  # noqa: S608
        places: list[Place] = []
        if chosen is None:
            sql += f" LIMIT {limit}"
        for seq, rank in self._db.execute(sql, self._given) if chosen != set() else ():
            if chosen is None or seq in chosen:
                places.append(Place(seq, -rank))
            if len(places) == limit:
                break
        return places


def _verbatim(pieces: Sequence[words.Piece]) -> tuple[str, list[str]]:
    """Conditions for what the index leaves open: that a piece stands there as it is written. Most often it does, in the
    very case (`instr` is the fastest). SQLite knows both cases of ASCII letters; other lines are compared here."""
    checks, needles = "", list[str]()
    for piece in pieces:
        if piece.verbatim:
            other = "length(CAST(l.text AS BLOB)) > length(l.text) AND stands_in(?, l.text)"
            checks += f" AND (instr(l.text, ?) OR l.text LIKE ? ESCAPE '\\' OR {other})"
            needles += [piece.text, _like(piece.folded), piece.folded]
    return checks, needles


def _like(text: str) -> str:
    for special in "\\%_":
        text = text.replace(special, f"\\{special}")
    return f"%{text}%"


def _stands_in(folded: str, text: str) -> bool:
    return folded in words.fold(text)


def _search_aside(db: Reader, query: words.Query, filters: Filters) -> Found:
    """The same over messages that the index does not hold yet or can't be trusted with."""
    found, breathe = Found(), Breather(breather.SEARCH_S)
    for seq in _aside(db, filters):
        text = _text(db, seq)
        folded = words.fold(text)
        breathe()
        if not query.in_all(folded):
            continue
        found.total += 1
        numbers, matching = _chosen(query, text.split("\n"), folded.split("\n"))
        found.line_matches += matching
        often = sum(folded.count(piece.folded) for piece in query.pieces)
        lines = tuple(seq << LINE_BITS | number for number in numbers)
        found.places.append(Place(seq, often * 2.2 / (often + 1.2), lines, matching))
    stored = int(db.execute("SELECT max(seq) FROM records").fetchone()[0] or 0)
    rarity = max(math.log(max(stored - found.total + 0.5, 1.0) / (found.total + 0.5)), 1e-6)
    found.places = [replace(place, score=place.score * rarity) for place in found.places]
    return found


def _chosen(query: words.Query, lines: Sequence[str], folded: Sequence[str]) -> tuple[list[int], int]:
    """Numbers, from 1, of the lines of a message to be shown, and how many match."""
    matching = words.lines_with(query, folded)
    numbers = [at + 1 for at in matching[:LINES_SHOWN]]
    return numbers or [n for n, _ in words.best_lines(query, enumerate(lines, 1), LINES_SHOWN)], len(matching)


def _aside(db: Reader, filters: Filters) -> list[int]:
    condition, values = filters.sql()
    sql = (
        "WITH aside (seq) AS (SELECT seq FROM unspaced UNION SELECT seq FROM records "  # noqa: S608
        "WHERE seq > (SELECT coalesce(max(id), 0) FROM messages_fts_docsize)) "
        f"SELECT r.seq FROM aside CROSS JOIN records r ON r.seq = aside.seq WHERE {condition} ORDER BY r.seq"
    )
    return [row[0] for row in db.execute(sql, values)]


def _search_bare(db: Reader, query: words.Query, filters: Filters, limit: int) -> Found:
    """Symbols that no index holds, in every line. Newest first."""
    condition, values = filters.sql()
    given = [*values, *(piece.text for piece in query.pieces)]
    lines = f"lines l CROSS JOIN records r ON r.seq = l.id >> {LINE_BITS} WHERE {condition}"
    lines += " AND instr(l.text, ?)" * len(query.pieces)
    counted = f"SELECT r.seq, count(*) FROM {lines} GROUP BY r.seq ORDER BY r.seq"  # noqa: S608
    rows = db.execute(counted, given).fetchall()
    found = Found(len(rows), sum(row[1] for row in rows))
    for seq, count in rows[: -limit - 1 : -1]:
        first = f"SELECT l.id FROM {lines} AND l.id > ? AND l.id < ? LIMIT {LINES_SHOWN}"  # noqa: S608
        shown = db.execute(first, [*given, seq << LINE_BITS, (seq + 1) << LINE_BITS])
        found.places.append(Place(seq, 0.0, tuple(row[0] for row in shown), count))
    return found


def _by_message(ids: Iterator[int], limit: int) -> Found:
    """Places from matching lines alone, newest first."""
    found, lines, counts = Found(), dict[int, list[int]](), dict[int, int]()
    try:
        for line in ids:
            seq = line >> LINE_BITS
            found.line_matches += 1
            counts[seq] = counts.get(seq, 0) + 1
            if counts[seq] <= LINES_SHOWN:
                lines.setdefault(seq, []).append(line)
    except OutOfTimeError:
        found.complete = False
    found.total = len(counts)
    newest = sorted(counts, reverse=True)[:limit]
    found.places = [Place(seq, 0.0, tuple(lines[seq]), counts[seq]) for seq in newest]
    return found


# --- patterns ---------------------------------------------------------------------------------------------


def search_pattern(db: Reader, pattern: Pattern, filters: Filters, limit: int, until: float) -> Found:
    """Lines that match, and the messages they stand in, newest first. Incomplete where `until` (monotonic) came."""
    ids = _with_literal(db, pattern, filters, until) if pattern.literal else _in_messages(db, pattern, filters, until)
    return _by_message(ids, limit)


def _with_literal(db: Reader, pattern: Pattern, filters: Filters, until: float) -> Iterator[int]:
    condition, values = filters.sql()
    sql = (
        f"SELECT l.id, l.text FROM lines l CROSS JOIN records r ON r.seq = l.id >> {LINE_BITS} "  # noqa: S608
        f"WHERE l.text LIKE ? ESCAPE '\\' AND {condition} ORDER BY l.id"
    )
    for line, text in _in_time(db.execute(sql, [_like(pattern.literal), *values])):
        if pattern.matches(text, until):
            yield line


def _in_messages(db: Reader, pattern: Pattern, filters: Filters, until: float) -> Iterator[int]:
    condition, values = filters.sql()
    sql = (
        "SELECT m.seq, m.text FROM records r CROSS JOIN messages m ON m.seq = r.seq "  # noqa: S608
        f"WHERE {condition} ORDER BY r.seq DESC"
    )
    breathe = Breather(breather.SEARCH_S)
    for seq, text in _in_time(db.execute(sql, values)):
        at, number = 0, 1
        for begin in pattern.lines_in(text, until):
            number += text.count("\n", at, begin)
            at = begin
            yield seq << LINE_BITS | number
            breathe()


def _in_time(rows: Iterator[Any]) -> Iterator[Any]:
    """The rows; OutOfTimeError where SQLite was stopped by the clock."""
    try:
        yield from rows
    except sqlite3.OperationalError as error:
        if "interrupted" in str(error):
            raise OutOfTimeError from None
        raise


# --- single messages --------------------------------------------------------------------------------------


def message(db: Reader, seq: int) -> Message:
    row = db.execute(
        "SELECT r.seq, r.role, r.kind, r.tool_name, r.in_context, (SELECT name FROM threads WHERE id = r.thread), "
        "r.created_at, coalesce((SELECT max(name) FROM edits WHERE kind = 'swap' AND key = r.key), '') "
        "FROM records r WHERE r.seq = ?",
        (seq,),
    ).fetchone()
    return Message(row[0], row[1], row[2], row[3], bool(row[4]), row[5] or "", row[6], row[7])


def neighbours(db: Reader, seq: int, count: int) -> list[tuple[Message, str]]:
    """So many messages before and after one in its thread, with the beginnings of their texts."""
    near: list[int] = []
    for comparison, order in (("<", "DESC"), (">", "ASC")):
        sql = (
            f"SELECT seq FROM records WHERE seq {comparison} ?1 "  # noqa: S608 - words of ours
            f"AND thread = (SELECT thread FROM records WHERE seq = ?1) ORDER BY seq {order} LIMIT ?2"
        )
        near += [row[0] for row in db.execute(sql, (seq, count))]
    return [(message(db, other), _first_line(db, other)) for other in sorted(near)]


def _first_line(db: Reader, seq: int) -> str:
    first = "SELECT text FROM lines WHERE id > ? AND id < ? AND trim(text) <> '' ORDER BY id LIMIT 1"
    row = db.execute(first, (seq << LINE_BITS, (seq + 1) << LINE_BITS)).fetchone()
    return row[0] if row else ""


def lines_around(db: Reader, seq: int, number: int, count: int) -> list[tuple[int, str]]:
    sql = "SELECT id, text FROM lines WHERE id >= ? AND id <= ? ORDER BY id"
    base = seq << LINE_BITS
    rows = db.execute(sql, (base + max(number - count, 1), base + number + count))
    return [(_number(row[0]), row[1]) for row in rows]


def full_text(db: Reader, seq: int) -> tuple[Message, str] | None:
    if db.execute("SELECT 1 FROM records WHERE seq = ?", (seq,)).fetchone() is None:
        return None
    return message(db, seq), _text(db, seq)


def result_text(db: Reader, result_id: str) -> tuple[Message, str] | None:
    """The full text of a compressed result, as the client sent it."""
    row = db.execute(
        "SELECT r.seq, r.format, r.body, e.call_id FROM edits e JOIN records r ON r.key = e.key "
        "WHERE e.kind = 'swap' AND e.name = ?",
        (result_id,),
    ).fetchone()
    adapter = None if row is None else adapter_named(row[1])
    if adapter is None:
        return None
    call_id = row[3] if isinstance(row[3], str) else row[3].decode("utf-8", "surrogatepass")
    raw = load(sessions.unpack(row[2], _text(db, row[0])))
    text = next((p.text for p in adapter.parts_of(raw) if p.kind == "result" and p.call_id == call_id), None)
    return None if text is None else (message(db, row[0]), text)


def _text(db: Reader, seq: int) -> str:
    return str(db.execute("SELECT text FROM messages WHERE seq = ?", (seq,)).fetchone()[0] or "")


def _line(db: Reader, line: int) -> tuple[int, str]:
    row = db.execute("SELECT text FROM lines WHERE id = ?", (line,)).fetchone()
    return _number(line), row[0]


def _number(line: int) -> int:
    return line & ((1 << LINE_BITS) - 1)


def results_of_calls(db: Reader, query: words.Query, filters: Filters, most: int) -> list[tuple[Message, str]]:
    """Results of the calls that match, newest first, with the beginnings of their texts. A result's own text seldom
    says which file it is of: its call does. Calls that write tell only that they did, and are left out."""
    found = search_words(db, query, replace(filters, roles=("assistant",), in_context=None), _ALL)
    calls = sorted((place.seq for place in found.places), reverse=True)
    results = list[tuple[Message, str]]()
    for call in (message(db, seq) for seq in calls):
        if call.kind == "call" and not writes(call.tool_name):
            results += _answers(db, call.seq, filters)
        if len(results) >= most:
            break
    return results[:most]


def _answers(db: Reader, call: int, filters: Filters) -> list[tuple[Message, str]]:
    """The results behind an output, as far as they count. Other calls of it may stand between as rows of their own."""
    condition, values = filters.sql()
    behind = (
        f"SELECT r.seq, r.kind, {condition} FROM records r WHERE r.seq > ? "  # noqa: S608 - words of ours
        "AND r.thread = (SELECT thread FROM records WHERE seq = ?) ORDER BY r.seq LIMIT ?"
    )
    rows = iter(db.execute(behind, (*values, call, call, _BEHIND)).fetchall())
    after_calls = itertools.dropwhile(lambda row: row[1] in ("call", "reasoning"), rows)
    results = itertools.takewhile(lambda row: row[1] in ("result", "mixed"), after_calls)
    return [(message(db, seq), _first_line(db, seq)) for seq, _, counts in results if counts]


# --- a tenant's catalog -----------------------------------------------------------------------------------


_RECENT_SESSIONS = statement("tenant", "recent_sessions")
_SESSIONS_OF_RESULT = statement("tenant", "sessions_of_result")
_EVENTS_SINCE = statement("tenant", "events_since")


def recent_sessions(db: Reader, limit: int, project: str = "") -> list[str]:
    """The sessions used last, those of this project first."""
    return [row[0] for row in db.execute(_RECENT_SESSIONS, {"project": project, "limit": limit})]


def sessions_of_result(db: Reader, result_id: str) -> list[str]:
    """Those that hold this compressed result, a fork and its parent for one, the one used last first."""
    return [row[0] for row in db.execute(_SESSIONS_OF_RESULT, {"result_id": result_id})]


def events_since(db: Reader, since: float) -> list[tuple[str, float, dict[str, Any]]]:
    rows = db.execute(_EVENTS_SINCE, {"since": since})
    return [(kind, at, json.loads(data)) for kind, at, data in rows]


def behind(db: Reader) -> bool:
    """Whether some messages of a session are not in the full-text index yet."""
    last = (
        "SELECT coalesce((SELECT max(seq) FROM records), 0) > coalesce((SELECT max(id) FROM messages_fts_docsize), 0)"
    )
    return bool(db.execute(last).fetchone()[0])
