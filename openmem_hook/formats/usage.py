"""One meaning for every provider's usage: the true prompt, and of it what the cache gave and took.

Anthropic's own counts leave cache reads and writes out of `input_tokens`; OpenAI's and the gateway's converted
ones include them in the prompt. The names say which it is. Unknown is None, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

LARGEST = 2**40
"""No request has as many tokens: such a count, like NaN, is a fault, and would not fit the store."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request."""

    prompt_tokens: int | None = None
    """The whole prompt, whatever the cache did with it."""

    output_tokens: int | None = None
    """The answer."""

    cache_read: int | None = None
    """Of the prompt, what was read from the cache."""

    cache_write: int | None = None
    """Of the prompt, all that was written to the cache."""

    cache_write_1h: int | None = None
    """Of these writes, the part that is kept for an hour."""

    def as_data(self) -> dict[str, int | None]:
        """The fields of a usage event."""
        return asdict(self)


def read_usage(usage: Any) -> Usage:
    """The usage of a response: its `usage` object or mapping, whatever the provider."""
    fields = mapping_of(usage)
    if not fields:
        return Usage()
    details = mapping_of(fields.get("prompt_tokens_details")) or mapping_of(fields.get("input_tokens_details"))
    read = _first(
        fields.get("cache_read_input_tokens"),
        details.get("cached_tokens"),
        fields.get("cacheReadInputTokens"),
        fields.get("cached_content_token_count"),
        fields.get("cachedContentTokenCount"),
        fields.get("prompt_cache_hit_tokens"),
    )

    # All writes, where they are counted together; else the sum over the lifetimes.
    by_lifetime = mapping_of(fields.get("cache_creation")) or mapping_of(details.get("cache_creation_token_details"))
    hour = _count(by_lifetime.get("ephemeral_1h_input_tokens"))
    parts = [n for n in (_count(by_lifetime.get("ephemeral_5m_input_tokens")), hour) if n is not None]
    write = _first(
        fields.get("cache_creation_input_tokens"),
        fields.get("cacheWriteInputTokens"),
        details.get("cache_creation_tokens"),
        details.get("cache_write_tokens"),
        sum(parts) if parts else None,
    )

    output = _first(
        fields.get("completion_tokens"),
        fields.get("output_tokens"),
        fields.get("outputTokens"),
        fields.get("candidates_token_count"),
        fields.get("candidatesTokenCount"),
    )
    return Usage(_prompt(fields, read, write), output, read, write, hour)


def _prompt(fields: Mapping[str, Any], read: int | None, write: int | None) -> int | None:
    """The whole prompt."""
    # OpenAI's, the gateway's and Google's names count it with the cache. Zero is no count.
    whole = _first(fields.get("prompt_tokens"), fields.get("prompt_token_count"), fields.get("promptTokenCount"))
    if whole is not None:
        return whole or None

    # `input_tokens` is Anthropic's count without the cache where Anthropic's cache counts stand beside it.
    fresh = _count(fields.get("input_tokens"))
    if fresh or (fresh == 0 and (read or write)):
        has_anthropic_counts = "cache_read_input_tokens" in fields or "cache_creation_input_tokens" in fields
        is_whole = not has_anthropic_counts or "input_tokens_details" in fields
        return fresh if is_whole else fresh + (read or 0) + (write or 0)

    # Bedrock's own shape counts it without the cache, too.
    bedrock = _count(fields.get("inputTokens"))
    return None if bedrock is None else bedrock + (read or 0) + (write or 0)


def _first(*values: Any) -> int | None:
    return next((n for n in map(_count, values) if n is not None), None)


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < LARGEST:
        return None
    return int(value)


def mapping_of(value: Any) -> Mapping[str, Any]:
    """A mapping of an object's fields that are set; pydantic models of any version, dicts, plain objects."""
    if isinstance(value, Mapping):
        return value
    dump = getattr(value, "model_dump", None)
    fields = dump() if callable(dump) else getattr(value, "__dict__", None)
    return fields if isinstance(fields, Mapping) else {}
