"""A session's database, as the hook uses it: load what decisions need, write a decision in one transaction.

`SessionState` is what memory keeps: keys, edits, threads and reports, never text. It is true while the
database's data version is the one it was loaded at; `claim` writes only then, so that of two workers with the
same history the second one loads the first one's edits and decides again.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from openmem_hook.compaction.edits import Cut, Swap
from openmem_hook.compaction.estimate import Report, ReportKey
from openmem_hook.compaction.record import Adopted, Event, Thread, UsageWrite, Write
from openmem_hook.messages import split_lines
from openmem_hook.store import database
from openmem_hook.tokens import Sizes

LINE_BITS = 24
DICTIONARY_BYTES = 32_768
"""zlib looks back no further."""
REPORTS_KEPT = 4_000
"""Newest reports loaded: forks and rewinds reach back, but not over thousands of requests."""


@dataclass(slots=True)
class SessionState:
    """What is known of a session. `sent`: keys sent raw while the store could not be written."""

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
    adopted: Adopted | None = None
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


def refresh(db: sqlite3.Connection, state: SessionState) -> None:
    """Bring the state up to what other workers committed."""
    now = version(db)
    if now == state.version:
        return
    db.execute("BEGIN")
    try:
        _load(db, state)
    finally:
        db.execute("ROLLBACK")
    state.version = now


def _load(db: sqlite3.Connection, state: SessionState) -> None:
    state.measured, state.digests, state.after, state.owner = {}, {}, {}, {}
    for row in db.execute("SELECT key, past, digest, thread, tokens FROM records ORDER BY seq"):
        state.remember(*row)
    state.cuts, state.swaps, state.adopted = {}, {}, None
    for row in db.execute(
        "SELECT kind, name, key, call_id, reason, generation, state, payload, detail FROM edits "
        "WHERE state = 'active' ORDER BY id"
    ):
        _take_edit(state, row)
    columns = 'id, name, agent, root, tip, has_tools, note, result_chars, "offset"'
    state.threads = {
        row[0]: Thread(row[0], row[1], row[2], row[3], row[4], bool(row[5]), row[6], row[7], row[8])
        for row in db.execute(f"SELECT {columns} FROM threads ORDER BY id")  # noqa: S608 - names of ours
    }
    for thread in state.threads.values():
        state.current.setdefault(thread.agent, thread.id)
    newest = "SELECT id, key, cut, tokens, overhead FROM reports WHERE tokens >= 0 ORDER BY id DESC LIMIT ?"
    state.reports = {
        (key, cut): Report(tokens, overhead)
        for _, key, cut, tokens, overhead in reversed(db.execute(newest, (REPORTS_KEPT,)).fetchall())
    }


def _take_edit(state: SessionState, row: Sequence[Any]) -> None:
    kind, name, key, call_id, reason, generation, standing, payload, detail = row
    if kind == "cut":
        state.cuts[key] = cut_from(name, key, reason, generation, standing, payload, detail)
    elif kind == "swap":
        state.swaps[(key, call_id)] = Swap(key, call_id, name, payload.decode("utf-8", "surrogatepass"), reason)


def cut_from(name: str, anchor: bytes, reason: str, generation: int, standing: str, payload: bytes, detail: str) -> Cut:
    told = json.loads(detail)
    before = told["before"]
    return Cut(
        id=name,
        anchor=anchor,
        anchor_digest=bytes.fromhex(told["anchor_digest"]),
        anchor_unique=told["anchor_unique"],
        before=None if before is None else bytes.fromhex(before),
        head=payload,
        shown=tuple(map(bytes.fromhex, told["shown"])),
        head_sizes=Sizes(*told["head_sizes"]),
        reason=reason,
        generation=generation,
        state=standing,
    )


def _cut_detail(cut: Cut) -> str:
    return json.dumps(
        {
            "anchor_digest": cut.anchor_digest.hex(),
            "anchor_unique": cut.anchor_unique,
            "before": None if cut.before is None else cut.before.hex(),
            "shown": [digest.hex() for digest in cut.shown],
            "head_sizes": cut.head_sizes.counts(),
        }
    )


class AbandonedError(Exception):
    """Nobody waits for this decision any more; nothing was written."""


def claim(db: sqlite3.Connection, state: SessionState, write: Write, wanted: Callable[[], bool]) -> bool:
    """Write a decision, unless another worker wrote first: then nothing is written, and False says to load
    and decide again. One immediate transaction; afterwards the state knows what was written. `wanted` is asked
    last: raises AbandonedError when the answer is no."""
    with database.transaction(db):
        if version(db) != state.version:
            return False
        thread = _write_thread(db, write)
        _write_rows(db, write, thread)
        _write_edits(db, write)
        _write_context(db, write, thread)
        db.executemany(
            "INSERT INTO events (kind, created_at, data) VALUES (?, ?, ?)",
            [(event.kind, write.now, json.dumps(event.data)) for event in write.events],
        )
        if not wanted():
            raise AbandonedError
    _remember(state, write, thread)
    return True


def _write_thread(db: sqlite3.Connection, write: Write) -> Thread:
    thread = write.thread
    if thread.id:
        db.execute("UPDATE threads SET tip = ?, has_tools = ? WHERE id = ?", (thread.tip, thread.has_tools, thread.id))
        return thread
    values = (thread.name, thread.agent, thread.root, thread.tip, thread.has_tools)
    made = db.execute(
        "INSERT INTO threads (name, agent, root, tip, has_tools, note, result_chars, created_at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (*values, thread.note, thread.result_chars, write.now),
    ).lastrowid
    name = f"{thread.name}-{made}"
    db.execute("UPDATE threads SET name = ? WHERE id = ?", (name, made))
    return replace(thread, id=int(made or 0), name=name)


def _write_rows(db: sqlite3.Connection, write: Write, thread: Thread) -> None:
    """Rows, their lines and both indexes. A key that is there already keeps its row."""
    if not write.rows:
        return
    seq = db.execute("SELECT coalesce(max(seq), 0) FROM records").fetchone()[0]
    for row in write.rows:
        stored = db.execute(
            "INSERT OR IGNORE INTO records (seq, key, past, digest, thread, format, body) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (seq + 1, row.key, row.past, row.digest, thread.id, row.format, pack(row.body, row.text)),
        ).rowcount
        if not stored:
            continue
        seq += 1
        db.execute(
            "INSERT INTO messages (seq, role, kind, tool_name, text, in_context, thread, created_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (seq, row.role, row.kind, row.tool_name, row.text, row.in_context, thread.name, write.now),
        )
        db.execute("INSERT INTO messages_fts (rowid, text) VALUES (?, ?)", (seq, row.text))
        base = seq << LINE_BITS
        lines = [(base | number, line) for number, line in enumerate(split_lines(row.text), 1)]
        db.executemany("INSERT INTO lines (id, text) VALUES (?, ?)", lines)
        db.executemany("INSERT INTO lines_fts (rowid, text) VALUES (?, ?)", lines)


def _write_edits(db: sqlite3.Connection, write: Write) -> None:
    insert = (
        "INSERT OR REPLACE INTO edits (kind, name, key, call_id, reason, generation, state, created_at, payload, "
        "detail) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    generation = max((cut.generation for cut in write.cuts), default=0)
    for swap in write.swaps:
        text = swap.text.encode("utf-8", "surrogatepass")
        values = (swap.kind, swap.id, swap.key, swap.call_id, swap.reason, generation, swap.state)
        db.execute(insert, (*values, write.now, text, "{}"))
        db.execute("UPDATE records SET tokens = NULL WHERE key = ?", (swap.key,))
    for cut in write.cuts:
        values = (cut.kind, cut.id, cut.anchor, "", cut.reason, cut.generation, cut.state)
        db.execute(insert, (*values, write.now, cut.head, _cut_detail(cut)))


def _write_context(db: sqlite3.Connection, write: Write, thread: Thread) -> None:
    place = "(SELECT seq FROM records WHERE key = ? AND thread = ?)"
    for value, keys in ((0, write.hidden), (1, write.shown)):
        db.executemany(
            f"UPDATE messages SET in_context = {value} WHERE seq = {place}",  # noqa: S608 - constants
            [(key, thread.id) for key in keys],
        )
    for ended in write.ended:
        db.execute(
            "UPDATE messages SET in_context = 0 WHERE seq IN (SELECT seq FROM records WHERE thread = ?)", (ended,)
        )


def _remember(state: SessionState, write: Write, thread: Thread) -> None:
    state.threads[thread.id] = thread
    state.current[thread.agent] = thread.id
    for row in write.rows:
        if row.key not in state.measured:
            state.remember(row.key, row.past, row.digest, thread.id, None)
    for swap in write.swaps:
        state.swaps[(swap.key, swap.call_id)] = swap
        state.measured[swap.key] = None
    state.cuts.update({cut.anchor: cut for cut in write.cuts})
    state.adopted = None


def record_usage(db: sqlite3.Connection, state: SessionState, usage: UsageWrite) -> bool:
    """Store a report; False where this call was reported before."""
    with database.transaction(db):
        same = version(db) == state.version
        fresh = db.execute(
            "INSERT OR IGNORE INTO reports (call_id, key, cut, tokens, overhead) VALUES (?, ?, ?, ?, ?)",
            (usage.call_id, usage.key, usage.cut, -1 if usage.tokens is None else usage.tokens, usage.overhead),
        ).rowcount
        if not fresh:
            return False
        db.executemany("UPDATE records SET tokens = ? WHERE key = ?", [(t, key) for key, t in usage.measured])
        if usage.offset is not None:
            db.execute('UPDATE threads SET "offset" = ? WHERE id = ?', (usage.offset, usage.thread))
        db.execute(
            "INSERT INTO events (kind, created_at, data) VALUES (?, ?, ?)",
            (usage.event.kind, usage.now, json.dumps(usage.event.data)),
        )
    if same:
        _remember_usage(state, usage)
    return True


def _remember_usage(state: SessionState, usage: UsageWrite) -> None:
    if usage.tokens is not None:
        state.reports[(usage.key, usage.cut)] = Report(usage.tokens, usage.overhead)
    for key, cost in usage.measured:
        state.measured[key] = cost
    thread = state.threads.get(usage.thread)
    if usage.offset is not None and thread is not None:
        state.threads[usage.thread] = replace(thread, offset=usage.offset)


def add_events(db: sqlite3.Connection, events: Iterable[Event], now: float) -> None:
    with database.transaction(db):
        db.executemany(
            "INSERT INTO events (kind, created_at, data) VALUES (?, ?, ?)",
            [(event.kind, now, json.dumps(event.data)) for event in events],
        )


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


def edits_at(db: sqlite3.Connection, anchor: bytes) -> Cut | None:
    """The active cut with this anchor, for a fork that found it in the catalog."""
    row = db.execute(
        "SELECT name, key, reason, generation, state, payload, detail FROM edits "
        "WHERE kind = 'cut' AND state = 'active' AND key = ?",
        (anchor,),
    ).fetchone()
    return None if row is None else cut_from(*row)


def swaps_for(db: sqlite3.Connection, keys: Sequence[bytes]) -> list[Swap]:
    """Active swaps of these messages, for a fork."""
    found = []
    for key in keys:
        rows = db.execute(
            "SELECT key, call_id, name, payload, reason FROM edits WHERE kind = 'swap' AND state = 'active' AND key = ?",
            (key,),
        )
        found += [Swap(k, call, name, bytes(p).decode("utf-8", "surrogatepass"), why) for k, call, name, p, why in rows]
    return found
