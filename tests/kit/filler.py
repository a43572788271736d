"""Text of a wanted length that looks like what agents read: prose and listings, the same for the same seed.

Drawn from small word lists so that tokenizers and full-text indexes see ordinary words; every line carries a
number of its own, so that no two lines of a session are equal by accident.
"""

from __future__ import annotations

import hashlib

_WORDS = (
    "parser", "token", "buffer", "window", "ledger", "anchor", "session", "worker", "queue", "socket",
    "commit", "branch", "record", "column", "index", "signal", "reader", "writer", "border", "margin",
    "kernel", "driver", "module", "vector", "matrix", "filter", "sample", "target", "source",
)  # fmt: skip
_VERBS = (
    "reads",
    "writes",
    "keeps",
    "drops",
    "moves",
    "finds",
    "opens",
    "closes",
    "checks",
    "loads",
    "sends",
)


def number(*parts: object) -> int:
    """A stable non-negative number made of anything printable."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big")


def prose(chars: int, *seed: object) -> str:
    """Exactly `chars` characters of sentences, never ending in whitespace."""
    start, pieces, length, turn = number(*seed), [], 0, 0
    while length < chars:
        mix = start + turn * 7919
        piece = f"The {_pick(mix)} {_VERBS[mix % len(_VERBS)]} the {_pick(mix // 7)} {mix % 9973}. "
        pieces.append(piece)
        length += len(piece)
        turn += 1
    return _cut("".join(pieces), chars)


def listing(chars: int, *seed: object) -> str:
    """Exactly `chars` characters of numbered lines, as a file viewer or a test run prints them."""
    start, lines, length, turn = number(*seed), [], 0, 1
    while length < chars:
        mix = start + turn * 104729
        line = f"{turn:5d}  {_pick(mix)}_{_pick(mix // 3)} = {_pick(mix // 11)}[{mix % 65521}]\n"
        lines.append(line)
        length += len(line)
        turn += 1
    return _cut("".join(lines), chars)


def _pick(mix: int) -> str:
    return _WORDS[mix % len(_WORDS)]


def _cut(text: str, chars: int) -> str:
    cut = text[:chars]
    bare = cut.rstrip()
    return bare + "." * (len(cut) - len(bare))
