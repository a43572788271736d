"""Text as the store holds it and as lines are counted everywhere."""

from __future__ import annotations

import re
from collections.abc import Iterable

from openmem_hook.model import Part

_LINE_END = re.compile(r"\r\n|\r|\n")


def split_lines(text: str) -> list[str]:
    """Lines as the store, the short form of a result and excerpts count them: ended by LF, CRLF or CR."""
    return _LINE_END.split(text) if "\r" in text else text.split("\n")


def searchable(text: str) -> str:
    """The text as the store holds it, line by line: NUL ends a string in SQLite, a lone surrogate has no UTF-8."""
    if "\0" in text:
        text = text.replace("\0", "�")
    if "\r" in text:
        text = "\n".join(split_lines(text))
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def searchable_text(parts: Iterable[Part]) -> str:
    """The message as one searchable text."""
    return searchable("\n".join(part.text for part in parts if part.text))
