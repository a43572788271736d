"""A session's database, as the hook uses it: load what decisions need, write a decision in one transaction.

`SessionState` is what memory keeps: keys, edits, threads and reports, never text. It is true while the
database's data version is the one it was loaded at; `claim` writes only then, so that of two workers with the
same history the second one loads the first one's edits and decides again. What was sent outlives a database
that is lost: its edits and raw messages are carried over to the next one.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from openmem_hook.compaction.edits import Cut, Swap
from openmem_hook.compaction.estimate import Report, ReportKey
from openmem_hook.compaction.record import Adopted, Event, Thread, UsageWrite, Write
from openmem_hook.store import database, fulltext
from openmem_hook.store.breather import Breather
from openmem_hook.text import split_lines
from openmem_hook.tokens import Sizes

DICTIONARY_BYTES = 32_768
"""zlib looks back no further."""
CHORES_EVERY = 8
"""Decisions written, after which the indexes are merged and the log is emptied behind the request."""
LOG_PAGES = 4_096
"""Pages of a write-ahead log above which it is cut: 16 MB."""
LOG_PATIENCE_S = 0.2
"""Seconds that writers may wait for that: well inside their own patience."""
REPORTS_KEPT = 4_000
"""Newest reports loaded: forks and rewinds reach back, but not over thousands of requests."""


@dataclass(slots=True)
class SessionState:
    """What is known of a session. `sent`: keys of messages sent that the database doesn't hold; `ended`: edits it
    holds that count no more; `writes`: decisions written since the last chores, `behind`: it is time for them,
    `chore`: the next one. `sights`: id of the cut that a thread's newest request had, "" for none. Dicts that a reader
    without the lock walks through are replaced, not changed."""

    measured: dict[bytes, float | None] = field(default_factory=dict)
    digests: dict[bytes, bytes] = field(default_factory=dict)
    after: dict[bytes, set[bytes]] = field(default_factory=dict)
    owner: dict[bytes, int] = field(default_factory=dict)
    cuts: dict[bytes, Cut] = field(default_factory=dict)
    swaps: dict[tuple[bytes, str], Swap] = field(default_factory=dict)
    threads: dict[int, Thread] = field(default_factory=dict)
    reports: dict[ReportKey, Report] = field(default_factory=dict)
    sent: set[bytes] = field(default_factory=set)
    current: dict[str, int] = field(default_factory=dict)
    sights: dict[int, str] = field(default_factory=dict)
    adopted: Adopted = field(default_factory=Adopted)
    ended: frozenset[tuple[str, bytes, str]] = frozenset()
    behind: bool = False
    writes: int = 0
    chore: int = 0
    version: int = -1

    def followers(self, anchor: bytes) -> frozenset[bytes]:
        return frozenset(self.after.get(anchor, ()))

    def remember(self, key: bytes, past: bytes, digest: bytes, thread: int, tokens: float | None) -> None:
        self.measured[key] = tokens
        self.digests[digest] = key
        self.after.setdefault(past, set()).add(digest)
        self.owner[key] = thread


def version(db: sqlite3.Connection) -> int:
    """Changes whenever another connection committed."""
    return int(db.execute("PRAGMA data_version").fetchone()[0])


def refreshed(db: sqlite3.Connection, state: SessionState) -> SessionState:
    """The state with what other workers committed: the very same, or a new one that is whole. Raises sqlite3.Error,
    or DamagedError where what stands in the database makes no sense."""
    now = version(db)
    if now == state.version:
        return state
    db.execute("BEGIN")
    try:
        fresh = _loaded(db)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise database.DamagedError(f"a session database holds what can't be read ({type(error).__name__})") from None
    finally:
        db.execute("ROLLBACK")
    fresh.version = now
    _carry(state, fresh)
    return fresh


def _carry(old: SessionState, fresh: SessionState) -> None:
    """What memory knows and the database doesn't hold: what was sent stays sent, whatever became of the file."""
    lost = [key for key in old.measured if key not in fresh.measured]
    old.sent.update(lost)
    fresh.sent, fresh.behind, fresh.writes, fresh.sights = old.sent, old.behind, old.writes, old.sights
    cuts = [c for c in old.cuts.values() if c.anchor not in fresh.cuts and ("cut", c.anchor, "") not in fresh.ended]
    swaps = [s for k, s in old.swaps.items() if k not in fresh.swaps and ("swap", *k) not in fresh.ended]
    fresh.cuts.update({cut.anchor: cut for cut in cuts})
    fresh.swaps.update({(swap.key, swap.call_id): swap for swap in swaps})
    owners = ((key, old.threads.get(old.owner.get(key, 0))) for key in lost)
    threads = {**old.adopted.threads, **{key: thread for key, thread in owners if thread is not None}}
    fresh.adopted = Adopted(tuple(cuts), tuple(swaps), threads)


def _loaded(db: sqlite3.Connection) -> SessionState:
    state = SessionState()
    for row in db.execute("SELECT key, past, digest, thread, tokens FROM records ORDER BY seq"):
        state.remember(*row)
    for row in db.execute(
        "SELECT kind, name, key, call_id, reason, generation, state, payload, detail FROM edits "
        "WHERE state = 'active' ORDER BY id"
    ):
        _take_edit(state, row)
    ended = db.execute("SELECT kind, key, call_id FROM edits WHERE state <> 'active'")
    state.ended = frozenset((kind, key, _text(call_id)) for kind, key, call_id in ended)
    columns = 'id, name, agent, root, tip, has_tools, note, result_chars, "offset"'
    state.threads = {
        row[0]: Thread(row[0], row[1], row[2], row[3], row[4], bool(row[5]), row[6], row[7], row[8])
        for row in db.execute(f"SELECT {columns} FROM threads ORDER BY id")  # noqa: S608 - names of ours
    }
    for thread in state.threads.values():
        state.current.setdefault(thread.agent, thread.id)
    newest = (
        "SELECT id, key, cut, tokens, overhead, chars_per_token FROM reports WHERE tokens >= 0 ORDER BY id DESC LIMIT ?"
    )
    state.reports = {
        (key, cut): Report(tokens, overhead, rate)
        for _, key, cut, tokens, overhead, rate in reversed(db.execute(newest, (REPORTS_KEPT,)).fetchall())
    }
    return state


def _take_edit(state: SessionState, row: Sequence[Any]) -> None:
    kind, name, key, call_id, reason, generation, standing, payload, detail = row
    if kind == "cut":
        state.cuts[key] = cut_from(name, key, reason, generation, standing, payload, detail)
    elif kind == "swap":
        call_id = _text(call_id)
        state.swaps[(key, call_id)] = Swap(key, call_id, name, payload.decode("utf-8", "surrogatepass"), reason)


def _stored(text: str) -> str | bytes:
    """A name from the wire as SQLite can hold it: a lone surrogate has no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def _text(stored: str | bytes) -> str:
    return stored if isinstance(stored, str) else stored.decode("utf-8", "surrogatepass")


def cut_from(name: str, anchor: bytes, reason: str, generation: int, standing: str, payload: bytes, detail: str) -> Cut:
    told = json.loads(detail)
    before = told["before"]
    return Cut(
        id=name,
        anchor=anchor,
        anchor_digest=bytes.fromhex(told["anchor_digest"]),
        anchor_unique=told["anchor_unique"],
        before=None if before is None else bytes.fromhex(before),
        trail=tuple(map(bytes.fromhex, told["trail"])),
        head=payload,
        shown=tuple(map(bytes.fromhex, told["shown"])),
        head_sizes=Sizes(*told["head_sizes"]),
        reason=reason,
        generation=generation,
        format=told.get("format", ""),
        place=told.get("place"),
        state=standing,
    )


def _cut_detail(cut: Cut) -> str:
    return json.dumps(
        {
            "anchor_digest": cut.anchor_digest.hex(),
            "anchor_unique": cut.anchor_unique,
            "before": None if cut.before is None else cut.before.hex(),
            "trail": [digest.hex() for digest in cut.trail],
            "shown": [digest.hex() for digest in cut.shown],
            "head_sizes": cut.head_sizes.counts(),
            "format": cut.format,
            "place": cut.place,
        }
    )


class AbandonedError(Exception):
    """Nobody waits for this decision any more; none of its edits was recorded."""


Share = Literal["all", "rows", "nothing"]
"""What of a decision may be written: "rows" where its messages were sent without its edits."""


class Waiting(Protocol):
    """Who waits for a decision. `begin` is asked before edits are written, `written` after the commit: False where
    the request was sent without the edits meanwhile."""

    def begin(self) -> Share: ...
    def written(self) -> bool: ...


def claim(db: sqlite3.Connection, state: SessionState, write: Write, waiting: Waiting) -> bool:
    """Write a decision, unless another worker wrote first: then nothing is written, and False says to load
    and decide again. One immediate transaction; afterwards the state knows what was written. Raises
    AbandonedError where nobody waits: rows are kept then if they were sent, edits never."""
    with database.transaction(db):
        if version(db) != state.version:
            return False
        thread = _write_thread(db, write)
        _write_rows(db, write, thread)
        behind = not fulltext.index(db, fulltext.AT_ONCE_CHARS)
        share = waiting.begin()
        if share == "nothing":
            raise AbandonedError
        if share == "all":
            _write_edits(db, write)
            _write_context(db, write, thread)
            _write_events(db, write.events, write.now)
        else:
            _show(db, [row.key for row in write.rows])
    state.writes += 1
    state.behind |= behind or state.writes >= CHORES_EVERY
    state.chore = 0 if behind else state.chore
    if share == "all" and not waiting.written():
        _retract(db, state, write)
        share = "rows"
    if share == "all":
        _remember(state, write, thread)
        return True
    _remember(state, replace(write, cuts=(), swaps=()), thread)
    raise AbandonedError


def _index_more(db: sqlite3.Connection) -> bool:
    with database.transaction(db):
        return fulltext.index(db, fulltext.PIECE_CHARS, least=1)


def _merge_more(db: sqlite3.Connection) -> bool:
    with database.transaction(db):
        return fulltext.merge(db)


def _empty_log(db: sqlite3.Connection) -> bool:
    """Its pages go into the database and its file gets short, so that a store takes little more room while its sessions
    are in use. Where readers come without a pause the log never gets to start anew by itself: once it is long, writers
    wait a moment for it, in which the readers that are there leave and new ones need the log no more."""
    _, pages, copied = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    long = pages > LOG_PAGES
    if long or pages == copied:
        with database.patience(db, LOG_PATIENCE_S if long else 0.0):
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return True


CHORES: tuple[Callable[[sqlite3.Connection], bool], ...] = (_index_more, _merge_more, _empty_log)
"""What requests leave over, in order: each done in pieces, until it says that nothing is left. In a request, merging
or emptying the log would cost one in eight 20 ms."""


def tidy(db: sqlite3.Connection, state: SessionState) -> None:
    """Do a piece of what requests left over; afterwards `behind` says whether there is more."""
    state.chore += CHORES[state.chore](db)
    if state.chore == len(CHORES):
        state.chore, state.writes, state.behind = 0, 0, False


def _show(db: sqlite3.Connection, keys: Iterable[bytes]) -> None:
    db.executemany("UPDATE records SET in_context = 1 WHERE key = ?", [(key,) for key in keys])


def _retract(db: sqlite3.Connection, state: SessionState, write: Write) -> None:
    """The commit took so long that the request was sent without its edits: they never were. Those that memory
    knew before were sent, and stay."""
    new = [("cut", c.anchor, "") for c in write.cuts if c.anchor not in state.cuts]
    new += [("swap", s.key, s.call_id) for s in write.swaps if (s.key, s.call_id) not in state.swaps]
    ended = "UPDATE edits SET state = 'abandoned' WHERE kind = ? AND key = ? AND call_id = ?"
    again = [held for s in write.swaps if (held := state.swaps.get((s.key, s.call_id))) is not None]
    restored = "UPDATE edits SET payload = ?, reason = ? WHERE kind = 'swap' AND key = ? AND call_id = ?"
    with database.transaction(db):
        db.executemany(ended, [(kind, key, _stored(call_id)) for kind, key, call_id in new])
        texts = ((s.text.encode("utf-8", "surrogatepass"), s.reason, s.key, _stored(s.call_id)) for s in again)
        db.executemany(restored, texts)
        _show(db, [*(row.key for row in write.rows), *write.hidden])
        db.execute("DELETE FROM events WHERE created_at = ? AND kind <> 'usage'", (write.now,))


def _write_events(db: sqlite3.Connection, events: Iterable[Event], now: float) -> None:
    db.executemany(
        "INSERT INTO events (kind, created_at, data) VALUES (?, ?, ?)",
        [(event.kind, now, event.as_json()) for event in events],
    )


def _write_thread(db: sqlite3.Connection, write: Write) -> Thread:
    thread = write.thread
    if thread.id:
        db.execute("UPDATE threads SET tip = ?, has_tools = ? WHERE id = ?", (thread.tip, thread.has_tools, thread.id))
        return thread
    values = (thread.name, thread.agent, thread.root, thread.tip, thread.has_tools)
    made = db.execute(
        'INSERT INTO threads (name, agent, root, tip, has_tools, note, result_chars, "offset", created_at) '
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*values, thread.note, thread.result_chars, thread.offset, write.now),
    ).lastrowid
    name = f"{thread.name}-{made}"
    db.execute("UPDATE threads SET name = ? WHERE id = ?", (name, made))
    return replace(thread, id=int(made or 0), name=name)


def _write_rows(db: sqlite3.Connection, write: Write, thread: Thread) -> None:
    """Rows and their lines. A key that is there already keeps its row."""
    if not write.rows:
        return
    insert = (
        "INSERT OR IGNORE INTO records (seq, key, past, digest, thread, role, kind, tool_name, in_context, created_at, "
        "format, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    seq, breathe = db.execute("SELECT coalesce(max(seq), 0) FROM records").fetchone()[0], Breather()
    for row in write.rows:
        breathe()
        names = (row.key, row.past, row.digest, thread.id, row.role, row.kind, row.tool_name, row.in_context)
        values = (seq + 1, *names, write.now, row.format, pack(row.body, row.text))
        if db.execute(insert, values).rowcount:
            seq += 1
            base = seq << fulltext.LINE_BITS
            lines = [(base | number, line) for number, line in enumerate(split_lines(row.text), 1)]
            db.executemany("INSERT INTO lines (id, text) VALUES (?, ?)", lines)


def _write_edits(db: sqlite3.Connection, write: Write) -> None:
    insert = (
        "INSERT OR REPLACE INTO edits (kind, name, key, call_id, reason, generation, state, created_at, payload, "
        "detail) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    generation = max((cut.generation for cut in write.cuts), default=0)
    for swap in write.swaps:
        text = swap.text.encode("utf-8", "surrogatepass")
        values = (swap.kind, swap.id, swap.key, _stored(swap.call_id), swap.reason, generation, swap.state)
        db.execute(insert, (*values, write.now, text, "{}"))
        db.execute("UPDATE records SET tokens = NULL WHERE key = ?", (swap.key,))
    for cut in write.cuts:
        values = (cut.kind, cut.id, cut.anchor, "", cut.reason, cut.generation, cut.state)
        db.execute(insert, (*values, write.now, cut.head, _cut_detail(cut)))


def _write_context(db: sqlite3.Connection, write: Write, thread: Thread) -> None:
    change = (
        "UPDATE records SET in_context = ?1 WHERE key = ?2 AND in_context <> ?1 "
        "AND thread IN (SELECT id FROM threads WHERE agent = ?3)"  # an agent's line may have begun as another thread
    )
    for value, keys in ((0, write.hidden), (1, write.shown)):
        db.executemany(change, [(value, key, thread.agent) for key in keys])
    for ended in write.ended:
        db.execute("UPDATE records SET in_context = 0 WHERE thread = ? AND in_context <> 0", (ended,))


def _remember(state: SessionState, write: Write, thread: Thread) -> None:
    state.threads = {**state.threads, thread.id: thread}
    state.current[thread.agent] = thread.id
    for row in write.rows:
        if row.key not in state.measured:
            state.remember(row.key, row.past, row.digest, thread.id, None)
    state.swaps = {**state.swaps, **{(swap.key, swap.call_id): swap for swap in write.swaps}}
    for swap in write.swaps:
        if swap.key in state.measured:
            state.measured[swap.key] = None
    state.cuts = {**state.cuts, **{cut.anchor: cut for cut in write.cuts}}
    if write.cuts or write.swaps:
        state.adopted = Adopted(threads=state.adopted.threads)
    state.sent.difference_update(row.key for row in write.rows)


def record_usage(db: sqlite3.Connection, state: SessionState, usage: UsageWrite) -> bool:
    """Store a report; False where one was stored under this call id before."""
    with database.transaction(db):
        same = version(db) == state.version
        counted = -1 if usage.tokens is None else usage.tokens
        fresh = db.execute(
            "INSERT OR IGNORE INTO reports (call_id, key, cut, tokens, overhead, chars_per_token) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (usage.call_id, usage.key, usage.cut, counted, usage.overhead, usage.family_rate),
        ).rowcount
        if not fresh:
            return False
        db.executemany("UPDATE records SET tokens = ? WHERE key = ?", [(t, key) for key, t in usage.measured])
        if usage.offset is not None:
            db.execute('UPDATE threads SET "offset" = ? WHERE id = ?', (usage.offset, usage.thread))
        _write_events(db, [usage.event], usage.now)
    if same:
        _remember_usage(state, usage)
    return True


def _remember_usage(state: SessionState, usage: UsageWrite) -> None:
    if usage.tokens is not None:
        state.reports[(usage.key, usage.cut)] = Report(usage.tokens, usage.overhead, usage.family_rate)
    for key, cost in usage.measured:
        if key in state.measured:  # else its row was lost since
            state.measured[key] = cost
    thread = state.threads.get(usage.thread)
    if usage.offset is not None and thread is not None:
        state.threads[usage.thread] = replace(thread, offset=usage.offset)


def add_events(db: sqlite3.Connection, events: Iterable[Event], now: float) -> None:
    with database.transaction(db):
        _write_events(db, events, now)


def pack(body: bytes, text: str) -> bytes:
    """The body compressed, with the text stored beside it as dictionary: little more than what differs."""
    words = text.encode("utf-8", "surrogatepass")[-DICTIONARY_BYTES:]
    packer = zlib.compressobj(1, zlib.DEFLATED, -15, 9, zlib.Z_DEFAULT_STRATEGY, words)
    return packer.compress(body) + packer.flush()


def unpack(packed: bytes, text: str) -> bytes:
    """What `pack` was given; needs the very text it was given."""
    words = text.encode("utf-8", "surrogatepass")[-DICTIONARY_BYTES:]
    unpacker = zlib.decompressobj(-15, words)
    return unpacker.decompress(packed) + unpacker.flush()
