"""Whether pictures and documents in a request are whole: a base64 run cut in half is refused for ever.

Limits are the provider's documented ones: 100 pictures and documents a request, 5 MB a picture, and 2,000
pixels a side once there are more than 20 of them.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

MEDIA_LIMIT = 100
"""Pictures and documents in a request."""

MANY_MEDIA = 20
"""Of these, the number above which a picture's sides are limited to `MANY_MEDIA_PIXELS`."""

MANY_MEDIA_PIXELS = 2000
PICTURE_BYTES = 5 * 1024 * 1024
"""Bytes of one picture."""

PICTURE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"

_DATA_URL = re.compile(r"data:(?P<type>[\w.+/-]+)(?:;[\w=.-]+)*;base64,(?P<data>.*)", re.DOTALL)


def decode_base64(data: object) -> bytes | None:
    """The bytes of a base64 string; None when it isn't whole."""
    if not isinstance(data, str) or not data:
        return None
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None


def png_side(raw: bytes) -> int:
    """The longer side of a PNG in pixels; 0 for anything else."""
    if not raw.startswith(PNG_MAGIC) or len(raw) < 24:
        return 0
    return max(int.from_bytes(raw[16:20], "big"), int.from_bytes(raw[20:24], "big"))


def source_fault(block: dict[str, Any]) -> str:
    """What an Anthropic image or document `source` does wrong; empty when nothing."""
    source = block.get("source")
    if not isinstance(source, dict):
        return "source: Field required"
    kind = source.get("type")
    if kind == "base64":
        return _base64_fault(block, source)
    needs = {"url": "url", "file": "file_id", "text": "data", "content": "content"}
    if kind not in needs or (block.get("type") == "image" and kind in {"text", "content"}):
        return f"source: Input tag '{kind}' found using 'type' does not match any of the expected tags"
    return "" if source.get(needs[kind]) else f"source.{kind}.{needs[kind]}: Field required"


def _base64_fault(block: dict[str, Any], source: dict[str, Any]) -> str:
    raw = decode_base64(source.get("data"))
    if raw is None:
        return "source.base64.data: Invalid base64 data"
    if block.get("type") == "image":
        if source.get("media_type") not in PICTURE_TYPES:
            return "source.base64.media_type: Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'"
        if len(raw) > PICTURE_BYTES:
            return f"source.base64: image exceeds 5 MB maximum: {len(raw)} bytes > {PICTURE_BYTES} bytes"
    return ""


def side_of(block: dict[str, Any]) -> int:
    """The longer side in pixels of a picture in an Anthropic block; 0 for anything but a PNG."""
    source = block.get("source")
    if block.get("type") != "image" or not isinstance(source, dict) or source.get("type") != "base64":
        return 0
    head = decode_base64(str(source.get("data", ""))[:64])
    return png_side(head) if head else 0


def url_fault(url: object) -> str:
    """What an OpenAI picture address does wrong: a data URL has to decode, anything else has to be http."""
    if not isinstance(url, str) or not url:
        return "Invalid type for 'image_url.url': expected a string"
    if not url.startswith("data:"):
        return "" if url.startswith(("http://", "https://")) else "Invalid image URL."
    match = _DATA_URL.fullmatch(url)
    if match is None or decode_base64(match["data"]) is None:
        return "Invalid base64 image_url."
    return ""


def file_fault(data: object) -> str:
    """As `url_fault`, for `file_data`, which may be bare base64."""
    if not isinstance(data, str) or not data:
        return "Invalid file data: expected a base64-encoded string"
    match = _DATA_URL.fullmatch(data)
    return "" if decode_base64(match["data"] if match else data) is not None else "Invalid file data: not base64"
