"""From a file to records: decompress by content, parse line by line, count what can't be parsed.

A transcript is written while an agent runs and is cut off when it dies, so a broken line or a truncated
archive is ordinary and never ends the reading.
"""

from __future__ import annotations

import lzma
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import orjson

from openmem_hook.replay.transcript import Record

_GZIP = b"\x1f\x8b"
_XZ = b"\xfd7zXZ\x00"


def load(path: Path, omissions: Counter[str]) -> bytes:
    """The file's content, unpacked; of a truncated archive as much as can be unpacked."""
    data = path.read_bytes()
    if data.startswith(_GZIP):
        return _gunzip(data, omissions)
    if data.startswith(_XZ):
        return _unxz(data, omissions)
    return data


def _gunzip(data: bytes, omissions: Counter[str]) -> bytes:
    out = b""
    while data.startswith(_GZIP):
        member = zlib.decompressobj(wbits=31)
        try:
            out += member.decompress(data) + member.flush()
        except zlib.error:
            omissions["damaged archive"] += 1
            break
        if not member.eof:
            omissions["damaged archive"] += 1
        data = member.unused_data
    return out


def _unxz(data: bytes, omissions: Counter[str]) -> bytes:
    out = b""
    while data.startswith(_XZ):
        member = lzma.LZMADecompressor()
        try:
            out += member.decompress(data)
        except lzma.LZMAError:
            omissions["damaged archive"] += 1
            break
        if not member.eof:
            omissions["damaged archive"] += 1
            break
        data = member.unused_data.lstrip(b"\x00")
    return out


def read_records(data: bytes, omissions: Counter[str]) -> list[Record]:
    """The records of a JSONL file, in order."""
    records: list[Record] = []
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        record = _parse(line)
        if isinstance(record, dict):
            records.append(record)
        else:
            omissions["broken line"] += 1
    return records


def read_document(data: bytes) -> Record | None:
    """The file as one JSON object, or None if it isn't one.

    `opencode export` prints a line about itself first when its error stream is in the same file.
    """
    start = data.find(b"{")
    document = _parse(data[start:]) if start >= 0 else None
    return document if isinstance(document, dict) else None


def _parse(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def as_dict(value: Any) -> Record:
    """The value if it is an object, else an empty one: fields of a damaged record hold anything."""
    return value if isinstance(value, dict) else {}


def as_text(value: Any) -> str:
    """The value if it is text, else none."""
    return value if isinstance(value, str) else ""


def as_count(value: Any) -> int | None:
    """The value if it is a number of tokens, else None: unknown is not zero."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
