"""One meaning for every provider's usage: the true prompt, and of it what the cache gave and took.

Anthropic's own counts leave cache reads and writes out of `input_tokens`; OpenAI's and the gateway's converted
ones include them in the prompt. Which it is, is told by the names. Unknown is None, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

MOST = 2**40
"""No request has as many tokens: such a count, like NaN, is a fault, and would not fit the store."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request. `cache_write` is all that was written, `cache_write_1h` the part kept an hour."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    cache_write_1h: int | None = None

    def as_data(self) -> dict[str, int | None]:
        return asdict(self)


def hit_share(usages: list[Usage]) -> float | None:
    """Read of all that was sent, over the requests that have cache counts; None without any."""
    counted = [u for u in usages if u.prompt_tokens and u.cache_read is not None]
    total = sum(u.prompt_tokens or 0 for u in counted)
    return sum(u.cache_read or 0 for u in counted) / total if total else None


def read_usage(given: Any) -> Usage:
    """The usage of a response: its `usage` object or mapping, whatever the provider."""
    told = mapping_of(given)
    if not told:
        return Usage()
    details = mapping_of(told.get("prompt_tokens_details")) or mapping_of(told.get("input_tokens_details"))
    read = _first(
        told.get("cache_read_input_tokens"),
        details.get("cached_tokens"),
        told.get("cacheReadInputTokens"),
        told.get("cached_content_token_count"),
        told.get("cachedContentTokenCount"),
        told.get("prompt_cache_hit_tokens"),
    )
    created = mapping_of(told.get("cache_creation")) or mapping_of(details.get("cache_creation_token_details"))
    hour = _count(created.get("ephemeral_1h_input_tokens"))
    parts = [n for n in (_count(created.get("ephemeral_5m_input_tokens")), hour) if n is not None]
    write = _first(
        told.get("cache_creation_input_tokens"),
        told.get("cacheWriteInputTokens"),
        details.get("cache_creation_tokens"),
        details.get("cache_write_tokens"),
        sum(parts) if parts else None,
    )
    return Usage(_prompt(told, read, write), _output(told), read, write, hour)


def _prompt(told: Mapping[str, Any], read: int | None, write: int | None) -> int | None:
    """The whole prompt. Only Anthropic's and Bedrock's own shapes count it without the cached part."""
    whole = _first(told.get("prompt_tokens"), told.get("prompt_token_count"), told.get("promptTokenCount"))
    if whole is not None:
        return whole or None
    given = _count(told.get("input_tokens"))
    given = None if given == 0 and not read and not write else given
    own = "cache_read_input_tokens" in told or "cache_creation_input_tokens" in told
    if given is not None:
        return given + (read or 0) + (write or 0) if own and "input_tokens_details" not in told else given
    bedrock = _count(told.get("inputTokens"))
    return None if bedrock is None else bedrock + (read or 0) + (write or 0)


def _output(told: Mapping[str, Any]) -> int | None:
    return _first(
        told.get("completion_tokens"),
        told.get("output_tokens"),
        told.get("outputTokens"),
        told.get("candidates_token_count"),
        told.get("candidatesTokenCount"),
    )


def _first(*values: Any) -> int | None:
    return next((n for n in map(_count, values) if n is not None), None)


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < MOST:
        return None
    return int(value)


def mapping_of(value: Any) -> Mapping[str, Any]:
    """A mapping of an object's fields that are set; pydantic models of any version, dicts, plain objects."""
    if isinstance(value, Mapping):
        return value
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        found = dump()
        return found if isinstance(found, Mapping) else {}
    found = getattr(value, "__dict__", None)
    return found if isinstance(found, Mapping) else {}
