"""Reading what clients write: ids, headers, JSON inside text. Every function takes any value and raises nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_EMPTY_WORDS = frozenset({"", "null", "undefined", "none", "nil", "nan", "[object object]", "{}", "[]"})
"""What programs write where they have no value."""

LONGEST_ID = 200
"""Characters of an id that are kept as they are; real ids have 8 to 60. A longer one becomes its hash."""


def client_value(value: object) -> str | None:
    """An id as the client wrote it, None where it wrote none.

    What is long or holds control characters is replaced by its hash: short, safe to show, and still different
    for different ids. Numbers and other JSON types are no ids.
    """
    text = as_text(value).strip()
    if text.lower() in _EMPTY_WORDS:
        return None
    if len(text) <= LONGEST_ID and text.isprintable():
        return text
    return "sha256:" + hashlib.sha256(encode(text)).hexdigest()


def encode(text: str) -> bytes:
    """UTF-8 that also takes the lone surrogates which JSON may carry. No normal form: NFC and NFD differ."""
    return text.encode("utf-8", "surrogatepass")


def as_text(value: object) -> str:
    """A text or the text in bytes; "" for anything else."""
    if isinstance(value, bytes | bytearray):
        raw = bytes(value)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw.decode("latin-1")
    return value if isinstance(value, str) else ""


def as_mapping(value: object) -> Mapping[Any, Any]:
    """A mapping as it is; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def json_object(value: object) -> Mapping[str, Any]:
    """A JSON object, given as text or parsed; empty for anything else."""
    text = as_text(value)
    if text.lstrip().startswith("{"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return {}
    return as_mapping(value)


def headers_of(data: Mapping[str, Any]) -> dict[str, str]:
    """The client's headers, names in lower case. Empty for pass-through requests, which carry none."""
    request = as_mapping(data.get("proxy_server_request"))
    return lower_names(as_mapping(request.get("headers")))


def lower_names(headers: Mapping[Any, Any]) -> dict[str, str]:
    """Headers as text, their names in lower case; one without a name is left out."""
    pairs = ((as_text(name).lower(), as_text(value)) for name, value in headers.items())
    return {name: value for name, value in pairs if name}
