"""How answers are framed: short, exact, and so that nothing they quote can pass for words of ours.

A stored line always stands behind its number and a bar, on one line. Rows of SQL are JSON, one a line. A full text
stands between two marks that hold a hash of it, so that the text itself can't contain them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from openmem_hook.compaction.wording import quote
from openmem_hook.store.search.values import Message

LINE_CHARS = 400
"""Characters that a stored line may take; a longer one is cut around its match."""
NEAR_CHARS = 160
"""Characters shown of a neighbouring message."""
BREAKS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
"""Signs at which some reader may begin a new line, and other control characters."""


def format_line(number: int, text: str, place: int = 0, mark: str = "|") -> str:
    """A stored line behind its number; a long one cut around `place`, an offset in it."""
    flat = BREAKS.sub(" ", text)
    if len(flat) > LINE_CHARS:
        start = max(0, min(place - LINE_CHARS // 3, len(flat) - LINE_CHARS))
        end = start + LINE_CHARS
        before, after = "…" * bool(start), "…" * (end < len(flat))
        flat = f"{before}{flat[start:end]}{after} ({len(flat)} characters)"
    return f"  {number}{mark} {flat}"


def format_heading(at: int, session: str, message: Message) -> str:
    """What a row is, in one line; `at` is its number in the answer."""
    tool = f" tool={quote(message.tool_name, 60)}" if message.tool_name else ""
    short = f" id={message.result_id}" if message.result_id else ""
    in_context = "true" if message.in_context else "false"
    return (
        f"#{at} session_id={session} seq={message.seq} role={message.role} kind={message.kind}{tool} "
        f"in_context={in_context} thread={message.thread} at={format_moment(message.created_at)}{short}"
    )


def format_neighbour(message: Message, text: str) -> str:
    """A neighbouring message, by its beginning."""
    flat = BREAKS.sub(" ", text).strip()
    flat = flat if len(flat) <= NEAR_CHARS else flat[:NEAR_CHARS] + "…"
    return f"  ~ seq={message.seq} role={message.role} kind={message.kind}| {flat}"


def format_moment(seconds: float) -> str:
    """Seconds since 1970 as a time in UTC; "?" where they are none."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, OSError, ValueError):
        return "?"


def take_fitting(blocks: Iterable[str], limit: int) -> tuple[list[str], bool]:
    """As many whole blocks as fit into so many characters, at least one, and whether all did."""
    fitting, chars = list[str](), 0
    for block in blocks:
        chars += len(block) + 1
        if chars > limit and fitting:
            return fitting, False
        fitting.append(block)
    return fitting, True
