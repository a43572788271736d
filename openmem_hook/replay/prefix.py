"""The constant front of a request that no transcript holds: pseudo-text and tool descriptions.

Deterministic, so that two runs send the same bytes. Common words with names as code has them in between, so
that characters and tokens stand in the proportion of real instructions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

CHARS_PER_TOKEN = 3.5
"""Of tool JSON and instructions: 110 KB of a real client's front cost about 32,000 tokens."""

SYSTEM_SHARE = 0.3
"""Of the front in characters; the rest are tool descriptions (27 KB to 75 KB in a real client)."""

_TEXT = (
    "the file and change a test of command to read before result in path when message with output for list "
    "write not value each code from line return error state only call user between project search directory "
    "never should default check branch after content option run process field report table always keep small "
    "explain because needed review answer question agent tool context number other same first last version "
    "function module name type build system input support follow given current existing without whole"
)
_WORDS = tuple(_TEXT.split(" "))


@lru_cache(maxsize=256)
def prose(chars: int, seed: int = 1) -> str:
    """About `chars` characters of sentences; the same for the same arguments, never empty."""
    numbers = _numbers(seed)
    lines: list[str] = []
    size = 0
    while size < max(chars, 1):
        words = [_word(next(numbers)) for _ in range(8 + next(numbers) % 9)]
        lines.append(" ".join(words).capitalize() + ".")
        size += len(lines[-1]) + 1
    return "\n".join(lines)


def _numbers(seed: int) -> Iterator[int]:
    state = seed * 2_654_435_761 % 2**32
    while True:
        state = (state * 1_664_525 + 1_013_904_223) % 2**32
        yield state >> 12


def _word(number: int) -> str:
    """A word, or every fourth time a name as code has them: instructions are full of these."""
    word = _WORDS[number % len(_WORDS)]
    if number // 128 % 4:
        return word
    return f"`{word}_{number % 97}.{_WORDS[number // 7 % len(_WORDS)]}`"


def system_text(prefix_tokens: int, instructions: str = "") -> str:
    """The system prompt's share of a front of `prefix_tokens`, starting with what the transcript holds of it."""
    room = int(prefix_tokens * CHARS_PER_TOKEN * SYSTEM_SHARE) - len(instructions)
    return f"{instructions}\n\n{prose(room)}".strip() if room > 0 else instructions


def descriptions(names: Iterable[str], chars: int) -> dict[str, str]:
    """A description for each tool, together about `chars` characters."""
    names = list(names)
    each = chars // max(len(names), 1)
    return {name: prose(each, seed=place + 2) for place, name in enumerate(names)}


def schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A schema that admits every call of the tool in the transcript."""
    properties: dict[str, Any] = {name: {} for name in sorted(tool.get("arguments", ()))}
    return {"type": "object", "properties": properties, "additionalProperties": True}
