"""The short form of a tool result: its first 40 and last 20 lines, within a cap in characters."""

from __future__ import annotations

import re

from openmem_hook.compaction import wording
from openmem_hook.text import split_lines

HEAD_LINES = 40
TAIL_LINES = 20
CLEARLY_SMALLER = 0.8
"""A short form above this share of the original is not worth a header: the original is sent."""

LONGEST_ECHO = 20_000
"""Characters above which what looks like a short form is none of ours: a tool's result may say anything."""
_GAP_ROOM = 80
_DATA_URL = re.compile(r"data:[\w.+-]+/[\w.+-]+(?:;[\w=.+-]+)*;base64,[A-Za-z0-9+/=_-]+")


def shorten(text: str, result_id: str, cap: int) -> str | None:
    """At most `cap` characters standing for `text`; None where that would not be clearly less."""
    if wording.is_short_form(text) and len(text) <= LONGEST_ECHO:
        return None
    plain = _without_data_urls(text)
    lines = split_lines(plain)
    header = wording.short_header(result_id, len(lines), len(text))
    room = max(cap - len(header) - _GAP_ROOM, 0)
    if len(lines) <= HEAD_LINES + TAIL_LINES and len(plain) <= room:
        short = f"{header}\n{plain}"
    else:
        short = "\n".join([header, *_ends(plain, lines, room)])
    return short if len(short) <= len(text) * CLEARLY_SMALLER else None


def _ends(plain: str, lines: list[str], room: int) -> tuple[str, str, str]:
    """Beginning, a word on what is left out, end. The two never overlap: with few lines they are cut from
    one text longer than `room`, with many from different lines."""
    head_room = room * 2 // 3
    tail_room = room - head_room
    many = len(lines) > HEAD_LINES + TAIL_LINES
    head = "\n".join(lines[:HEAD_LINES]) if many else plain
    tail = "\n".join(lines[-TAIL_LINES:]) if many else plain
    head = head[:head_room]
    tail = tail[-tail_room:] if tail_room else ""
    return head, wording.short_gap(len(plain) - len(head) - len(tail)), tail


def _without_data_urls(text: str) -> str:
    """A data URL is told of, never cut in half: half a picture is refused for ever."""
    if ";base64," not in text:
        return text
    return _DATA_URL.sub(lambda m: f"[openmem: data URL of {len(m[0])} characters left out]", text)
