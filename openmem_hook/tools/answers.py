"""What the tools say: short, exact, and framed so that nothing quoted can pass for words of ours.

A stored line always stands behind its number and a bar, on one line. Rows of SQL are JSON, one a line. A full text
stands between two marks that hold a hash of it, so that the text itself can't contain them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from openmem_hook.compaction.wording import quote
from openmem_hook.store.queries import Hit, Message
from openmem_hook.store.wall import Table

LINE_CHARS = 400
NEAR_CHARS = 160
SEARCH_CHARS = 20_000
"""Characters a search's rows may take; the rest is told of."""
_BREAKS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")


def data_line(number: int, text: str, place: int = 0, mark: str = "|", limit: int = LINE_CHARS) -> str:
    """A stored line behind its number; a long one cut around `place`."""
    flat = _BREAKS.sub(" ", text)
    if len(flat) > limit:
        start = max(0, min(place - limit // 3, len(flat) - limit))
        end = start + limit
        before, after = "…" * bool(start), "…" * (end < len(flat))
        flat = f"{before}{flat[start:end]}{after} ({len(flat)} characters)"
    return f"  {number}{mark} {flat}"


def heading(at: int, session: str, message: Message) -> str:
    tool = f" tool={quote(message.tool_name, 60)}" if message.tool_name else ""
    short = f" id={message.result_id}" if message.result_id else ""
    seen = "true" if message.in_context else "false"
    return (
        f"#{at} session_id={session} seq={message.seq} role={message.role} kind={message.kind}{tool} "
        f"in_context={seen} thread={message.thread} at={moment(message.created_at)}{short}"
    )


def more_lines(hit: Hit) -> str | None:
    left = hit.matching - len(hit.lines)
    if hit.matching == 0:
        return "  (no line of it matches alone: these show parts)"
    return f"  (+{left} more matching lines in this message)" if left > 0 else None


def near_line(message: Message, text: str) -> str:
    """A neighbouring message, by its beginning."""
    flat = _BREAKS.sub(" ", text).strip()
    flat = flat if len(flat) <= NEAR_CHARS else flat[:NEAR_CHARS] + "…"
    return f"  ~ seq={message.seq} role={message.role} kind={message.kind}| {flat}"


def table(found: Table) -> str:
    lines = [f"columns: {json.dumps(found.columns, ensure_ascii=False)}"]
    lines += [_json_row(row) for row in found.rows]
    told = f"rows: {len(found.rows)}"
    if found.more:
        told += ", and there are more: count in SQL, or use LIMIT and OFFSET"
    if found.cut:
        told += "; cells that end in … are cut: substr(column, start, length) reads on"
    return "\n".join([*lines, told])


def _json_row(row: Sequence[Any]) -> str:
    told = json.dumps(row, ensure_ascii=False)
    return _BREAKS.sub(lambda found: f"\\u{ord(found[0]):04x}", told)


def full(name: str, message: Message, session: str, text: str, offset: int, limit: int) -> str:
    """A piece of a text, and where the next one begins. `name` are the arguments that call for it again."""
    piece = text[offset : offset + limit]
    end = offset + len(piece)
    tool = f", {quote(message.tool_name, 60)}" if message.tool_name else ""
    about = (
        f"session_id={session} seq={message.seq} ({message.role}, {message.kind}{tool}, {moment(message.created_at)})"
    )
    told = f"characters {offset} to {end} of {len(text)}"
    if end < len(text):
        told += f"; next_offset: {end}, call smart_compact_get({name}, offset={end})"
    mark = _mark(piece)
    return f"{about}\n{told}\n[begin {mark}]\n{piece}\n[end {mark}]"


def _mark(text: str) -> str:
    raw = text.encode("utf-8", "surrogatepass")
    mark = hashlib.blake2b(raw, digest_size=8).hexdigest()
    while mark in text:
        mark = hashlib.blake2b(raw + mark.encode(), digest_size=8).hexdigest()
    return mark


def moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, OSError, ValueError):
        return "?"


def within(lines: Iterable[str], limit: int) -> tuple[list[str], bool]:
    """As many whole blocks as fit, and whether all did."""
    kept, used = list[str](), 0
    for line in lines:
        used += len(line) + 1
        if used > limit and kept:
            return kept, False
        kept.append(line)
    return kept, True
