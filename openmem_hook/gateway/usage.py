"""What a provider reported, separated from what the gateway put in its place.

When a stream ends without usage (a server that reports none, a connection that broke), LiteLLM counts the messages
with a tokenizer of its own, leaves the tools out, and puts the sum where the provider's would stand. Taken for a
report, it would make a session with large tools seem to fit where it does not. When the client hangs up, it fills
in zeros for cache counts that nobody reported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from openmem_hook.formats.usage import Usage, mapping_of, read_usage
from openmem_hook.store.executor import Executor

_WRITES = ("cache_creation_tokens", "cache_write_tokens", "cache_creation_token_details")
"""Details of a usage that only a provider with cache writes reports."""

_ZERO_DETAIL = "cached_tokens"
"""The detail that LiteLLM fills in itself."""

_RESPONSES = "litellm.responses.litellm_completion_transformation.transformation"
"""LiteLLM's module that turns Responses input into chat messages."""


async def reported_usage(kwargs: Mapping[str, Any], response: Any, executor: Executor) -> Usage:
    """The usage of a response, or the one put together for a stream; empty where no provider reported it."""
    own = _usage_in(response) if isinstance(response, Mapping) else getattr(response, "usage", None)
    fields = mapping_of(own or kwargs.get("combined_usage_object"))
    usage = read_usage(fields)

    # Only streams of LiteLLM's own shape may have a count that it made up.
    if not (kwargs.get("stream") and usage.prompt_tokens and fields.get("prompt_tokens")):
        return usage

    # A prompt count with nothing beside it may be LiteLLM's own, and is where its tokenizer gives the very same. That
    # takes its time, so it counts in another thread.
    details = {name for name, value in mapping_of(fields.get("prompt_tokens_details")).items() if value is not None}
    is_bare = details <= {_ZERO_DETAIL} and not (usage.cache_read or usage.cache_write)
    if is_bare and await executor.run("after", _litellm_count, kwargs, response) == usage.prompt_tokens:
        return Usage()

    # Zero cache writes, where no detail speaks of writes, are LiteLLM's own: the number is unknown.
    is_zero_invented = fields.get("cache_creation_input_tokens") == 0 and bool(details) and details.isdisjoint(_WRITES)
    return replace(
        usage,
        cache_read=None if is_bare and is_zero_invented else usage.cache_read,
        cache_write=None if is_zero_invented else usage.cache_write,
    )


def _usage_in(response: Mapping[str, Any]) -> Any:
    """The usage in a mapping. A body that was passed through from a host which LiteLLM doesn't know is the text of the
    answer; of a stream it is no JSON, and says nothing."""
    text = response.get("response")
    if response.get("usage") or not (isinstance(text, str) and text.startswith("{") and '"usage"' in text):
        return response.get("usage")
    try:
        answer = orjson.loads(text)
    except ValueError:
        return None
    return answer.get("usage")


def _litellm_count(kwargs: Mapping[str, Any], response: Any) -> int | None:
    """The prompt tokens that LiteLLM makes up: for Responses, of the chat messages that it turns the input into and
    by the tokenizer of the model asked for; else by that of the model that answered."""
    litellm: Any = sys.modules.get("litellm")
    responses: Any = sys.modules.get(_RESPONSES)
    model, messages = kwargs.get("model"), kwargs.get("messages")
    try:
        if kwargs.get("call_type") in ("responses", "aresponses"):
            options = mapping_of(kwargs.get("optional_params"))
            transform = responses.LiteLLMCompletionResponsesConfig.transform_responses_api_input_to_messages
            messages = transform(input=kwargs.get("input"), responses_api_request=options)
        else:
            model = getattr(response, "model", None) or model
        return int(litellm.token_counter(model=model, messages=messages))
    except (ValueError, TypeError, LookupError, AttributeError):
        return None
