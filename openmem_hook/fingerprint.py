"""Identity of messages: a digest of what one says, a fingerprint of it and its whole past.

The canonical form is JSON with sorted keys, without cache breakpoints at any depth, numbers in one spelling.
What takes part in it is the adapters' business (`Part.identity`); how it becomes bytes is decided here, and
every hash starts with the name of the algorithm, so that a change of rules can't pass for a change of text.
"""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from typing import Any

import orjson

SIZE = 16
"""Bytes of a digest: collisions inside a tenant are out of reach, and a row stays small."""

_DIGEST = b"openmem-digest-1:"
_CHAIN = b"openmem-chain-1:"
_POSITION = b"openmem-aside-1:"  # the word in it is that of the first release, and stays: stores hold such keys
ROOT = blake2b(_CHAIN + b"root", digest_size=SIZE).digest()
"""Fingerprint of the empty history."""

_EXACT_FLOAT = 2**53
"""From here on a float no longer tells two neighbouring integers apart."""
_HUGE = re.compile(rb"[0-9]{19}")
"""A number of so many digits may not fit 64 bits: the fast parser would make a float of it."""


def dump(value: Any) -> bytes:
    """JSON bytes of anything a client's body can hold, lone surrogates and huge numbers included."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, ensure_ascii=True, default=repr, separators=(",", ":")).encode()


def load(payload: bytes) -> Any:
    """The value of JSON bytes that `dump` made. ValueError for anything that is no JSON."""
    # The slower parser keeps huge integers exact, and knows the lone surrogates that the fast one refuses.
    if _HUGE.search(payload):
        return json.loads(payload)
    try:
        return orjson.loads(payload)
    except ValueError:
        return json.loads(payload)


def dump_sorted(value: Any) -> bytes:
    """JSON bytes that are the same for objects with the same keys and values, whatever their order."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return json.dumps(value, ensure_ascii=True, default=repr, sort_keys=True).encode()


def canonical(value: Any) -> Any:
    """The value without what clients vary: cache breakpoints, and 1.0 against 1."""
    if isinstance(value, dict):
        return {str(key): canonical(item) for key, item in value.items() if key != "cache_control"}
    if isinstance(value, list):
        return [canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_FLOAT:
        return int(value)
    return value


def digest(identity: Any) -> bytes:
    """Hash of a canonical value: what a message says, or the bytes of a picture."""
    return blake2b(_DIGEST + dump_sorted(identity), digest_size=SIZE).digest()


def chain(previous: bytes, own: bytes) -> bytes:
    """Fingerprint of a message with this digest after this past."""
    return blake2b(_CHAIN + previous + own, digest_size=SIZE).digest()


def position_key(previous: bytes, own: bytes) -> bytes:
    """Key of a message that takes no part in identity, at its place in the history."""
    return blake2b(_POSITION + previous + own, digest_size=SIZE).digest()


def short_id(*parts: bytes | str) -> str:
    """16 lower-case hex characters that name something inside a tenant."""
    payload = b"\0".join(part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass") for part in parts)
    return blake2b(payload, digest_size=8, person=b"openmem-id").hexdigest()
