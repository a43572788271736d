"""What a provider reported, told from what the gateway put in its place.

When a stream ends without usage (a server that tells none, a connection that broke), LiteLLM counts the messages
with a tokenizer of its own, leaves the tools out, and puts the sum where the provider's would stand. Taken for a
report, it would make a session with large tools seem to fit where it does not. When the client hangs up, it fills
in zeros for cache counts that were not told.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from openmem_hook.formats.usage import Usage, mapping_of, read_usage

_WRITES = ("cache_creation_tokens", "cache_write_tokens", "cache_creation_token_details")
_FILLED_IN = "cached_tokens"
_RESPONSES = "litellm.responses.litellm_completion_transformation.transformation"


async def reported_usage(kwargs: Mapping[str, Any], response: Any) -> Usage:
    """The usage of a response, or the one put together for a stream; empty where no provider said it."""
    own = _passed_through(response) if isinstance(response, Mapping) else getattr(response, "usage", None)
    given = mapping_of(own or kwargs.get("combined_usage_object"))
    usage = read_usage(given)
    if not (kwargs.get("stream") and usage.prompt_tokens and given.get("prompt_tokens")):
        return usage
    details = mapping_of(given.get("prompt_tokens_details"))
    told = {name for name, value in details.items() if value is not None}
    bare = told <= {_FILLED_IN} and not (usage.cache_read or usage.cache_write)
    if bare and await _is_made_up(kwargs, response, usage.prompt_tokens):
        return Usage()
    filled_in = given.get("cache_creation_input_tokens") == 0 and bool(told) and told.isdisjoint(_WRITES)
    return replace(
        usage,
        cache_read=None if bare and filled_in else usage.cache_read,
        cache_write=None if filled_in else usage.cache_write,
    )


def _passed_through(response: Mapping[str, Any]) -> Any:
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


async def _is_made_up(kwargs: Mapping[str, Any], response: Any, prompt_tokens: int) -> bool:
    """True where the count is the very one that LiteLLM's tokenizer gives. It takes its time, so in a thread."""
    return await asyncio.to_thread(_counted, kwargs, response) == prompt_tokens


def _counted(kwargs: Mapping[str, Any], response: Any) -> int | None:
    """The prompt tokens that LiteLLM makes up: for Responses, of the chat messages that it turns the input into and
    by the tokenizer of the model asked for; else by that of the model that answered."""
    litellm: Any = sys.modules.get("litellm")
    responses: Any = sys.modules.get(_RESPONSES)
    model, messages = kwargs.get("model"), kwargs.get("messages")
    try:
        if kwargs.get("call_type") in ("responses", "aresponses"):
            optional = mapping_of(kwargs.get("optional_params"))
            transform = responses.LiteLLMCompletionResponsesConfig.transform_responses_api_input_to_messages
            messages = transform(input=kwargs.get("input"), responses_api_request=optional)
        else:
            model = getattr(response, "model", None) or model
        return int(litellm.token_counter(model=model, messages=messages))
    except (ValueError, TypeError, LookupError, AttributeError):
        return None
