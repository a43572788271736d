"""Single messages: what they are, their lines and texts, and the messages beside them.

Searches read them in a worker thread beside their matches; a full text is read on the event loop.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiosqlite

from openmem_hook.compaction.edits import RESULT_KINDS
from openmem_hook.fingerprint import load
from openmem_hook.formats import adapter_named
from openmem_hook.store.search.values import Message
from openmem_hook.store.session import unpack
from openmem_hook.store.statements import statement

_MESSAGE = statement("messages", "message")
_TEXT = statement("messages", "text_of_message")
_MESSAGES_BEFORE = statement("messages", "messages_before")
_MESSAGES_AFTER = statement("messages", "messages_after")
_FIRST_LINE = statement("messages", "first_line")
_FIRST_LINES = statement("messages", "first_lines")
_LINES_BETWEEN = statement("messages", "lines_between")
_LINE = statement("messages", "line")
_SHORTENED_RESULT = statement("messages", "shortened_result")

_RESULT_KINDS = json.dumps(RESULT_KINDS)


def _message_of(row: Sequence[Any]) -> Message:
    seq, role, kind, tool_name, in_context, thread, created_at, result_id = row
    return Message(seq, role, kind, tool_name, bool(in_context), thread, created_at, result_id)


# --- in a worker thread -------------------------------------------------------------------------------------


def read_message(db: sqlite3.Connection, seq: int) -> Message:
    """A message that is there."""
    return _message_of(db.execute(_MESSAGE, {"seq": seq, "result_kinds": _RESULT_KINDS}).fetchone())


def read_text(db: sqlite3.Connection, seq: int) -> str:
    """The whole searchable text of a message that is there."""
    return str(db.execute(_TEXT, {"seq": seq}).fetchone()[0])


def read_line(db: sqlite3.Connection, id_: int) -> tuple[int, str]:
    """Number, from 1, and text of a line that is there."""
    number, text = db.execute(_LINE, {"id": id_}).fetchone()
    return number, text


def read_first_line(db: sqlite3.Connection, seq: int) -> str:
    """The first line of a message that is not blank; "" for none."""
    row = db.execute(_FIRST_LINE, {"seq": seq}).fetchone()
    return row[0] if row else ""


def read_first_lines(db: sqlite3.Connection, seq: int, count: int) -> list[str]:
    """The texts of the first so many lines of a message."""
    return [text for (text,) in db.execute(_FIRST_LINES, {"seq": seq, "count": count})]


def read_lines_around(db: sqlite3.Connection, seq: int, number: int, count: int) -> list[tuple[int, str]]:
    """A line and so many before and after it in its message: numbers and texts."""
    bounds = {"seq": seq, "first": max(number - count, 1), "last": number + count}
    return db.execute(_LINES_BETWEEN, bounds).fetchall()


def read_neighbours(db: sqlite3.Connection, seq: int, count: int) -> list[tuple[Message, str]]:
    """So many messages before and after one in its thread, in their order, with the beginnings of their texts."""
    bounds = {"seq": seq, "count": count}
    seqs = [row[0] for sql in (_MESSAGES_BEFORE, _MESSAGES_AFTER) for row in db.execute(sql, bounds)]
    return [(read_message(db, other), read_first_line(db, other)) for other in sorted(seqs)]


# --- on the event loop --------------------------------------------------------------------------------------


async def read_full_text(db: aiosqlite.Connection, seq: int) -> tuple[Message, str] | None:
    """A message and its whole searchable text; None where there is no such message."""
    rows = list(await db.execute_fetchall(_MESSAGE, {"seq": seq, "result_kinds": _RESULT_KINDS}))
    if not rows:
        return None
    ((text,),) = await db.execute_fetchall(_TEXT, {"seq": seq})
    return _message_of(rows[0]), text


@dataclass(frozen=True, slots=True)
class ShortenedResult:
    """A result that requests show shortened, as the store has it."""

    message: Message
    """The message that holds it."""
    format: str
    """The format of the message's body."""
    body: bytes
    """The message as the client sent it, compressed with its searchable text."""
    text: str
    """The message's searchable text."""
    call_id: str
    """Which of the message's results it is."""

    def read_original(self) -> str | None:
        """The result's text as the client sent it; None where the body doesn't tell. Takes milliseconds for a long one:
        not for the event loop."""
        adapter = adapter_named(self.format)
        if adapter is None:
            return None
        parts = adapter.parts_of(load(unpack(self.body, self.text)))
        return next((part.text for part in parts if part.kind == "result" and part.call_id == self.call_id), None)


async def read_shortened_result(db: aiosqlite.Connection, result_id: str) -> ShortenedResult | None:
    """The shortened result with this id (16 hex characters), None where this session has none."""
    rows = list(await db.execute_fetchall(_SHORTENED_RESULT, {"result_id": result_id, "result_kinds": _RESULT_KINDS}))
    if not rows:
        return None
    seq, format_, body, text, call_id = rows[0]
    if isinstance(call_id, bytes):  # a name with a lone surrogate, which has no UTF-8
        call_id = call_id.decode("utf-8", "surrogatepass")
    (row,) = await db.execute_fetchall(_MESSAGE, {"seq": seq, "result_kinds": _RESULT_KINDS})
    return ShortenedResult(_message_of(row), format_, body, text, call_id)
