"""A provider's usage, told from what the gateway made up in its place.

When a stream ends without usage (a server that tells none, a connection that broke), LiteLLM counts the messages
with a tokenizer of its own, leaves the tools out, and puts the sum where the provider's would stand. Taken for a
report, it would make a session with large tools seem to fit where it does not.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

from openmem_hook.formats.usage import Usage, mapping_of, read_usage

_DETAILS = ("prompt_tokens_details", "input_tokens_details")


async def reported_usage(kwargs: Mapping[str, Any], response: Any) -> Usage:
    """The usage of a response, or the one put together for a stream; empty where no provider said it."""
    own = response.get("usage") if isinstance(response, Mapping) else getattr(response, "usage", None)
    given = own or kwargs.get("combined_usage_object")
    usage = read_usage(given)
    if usage.prompt_tokens and kwargs.get("stream") and _is_bare(given):
        model = getattr(response, "model", None) or kwargs.get("model")
        counted = await asyncio.to_thread(_count, model, kwargs.get("messages"))
        if counted == usage.prompt_tokens:
            return Usage()
    return usage


def _is_bare(given: Any) -> bool:
    """No details but a cached count of zero, which LiteLLM adds by itself: what it makes up looks like that."""
    told = mapping_of(given)
    details = next((mapping_of(told[name]) for name in _DETAILS if told.get(name)), {})
    return not any(value is not None for name, value in details.items() if name != "cached_tokens") and not any(
        (details.get("cached_tokens"), told.get("cache_read_input_tokens"), told.get("cache_creation_input_tokens"))
    )


def _count(model: Any, messages: Any) -> int | None:
    """What LiteLLM's tokenizer makes of these messages."""
    counter = getattr(sys.modules.get("litellm"), "token_counter", None)
    try:
        return None if counter is None else int(counter(model=model, messages=messages))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
