"""What LiteLLM puts where a provider's usage would stand, as seen on 1.108.7, is not taken for a report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import litellm
import pytest
from litellm.responses import streaming_iterator

from openmem_hook.formats.usage import Usage
from openmem_hook.gateway.usage import reported_usage
from openmem_hook.store.executor import Executor

EXECUTOR = Executor()
MESSAGES = [{"role": "user", "content": "Please read the file and tell me what it says."}]
COUNTED = litellm.token_counter(model="kit", messages=MESSAGES)
"""What LiteLLM makes of these messages by itself."""
ZEROS = {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
DETAILS = {"audio_tokens": 0, "cached_tokens": 0, "text_tokens": None}
ANTHROPIC = {"cached_tokens": 0, "cache_creation_tokens": 0, "text_tokens": 182}

STREAMS: dict[str, tuple[dict[str, Any], Usage]] = {
    "made up": ({"prompt_tokens": COUNTED, "prompt_tokens_details": None}, Usage()),
    "made up for a client that hung up": (
        {"prompt_tokens": COUNTED, "prompt_tokens_details": {"cached_tokens": 0}, **ZEROS},
        Usage(),
    ),
    "a server without details": ({"prompt_tokens": COUNTED + 900}, Usage(COUNTED + 900)),
    "the same, client hung up": (
        {"prompt_tokens": COUNTED + 900, "prompt_tokens_details": {"cached_tokens": 0}, **ZEROS},
        Usage(COUNTED + 900),
    ),
    "details": ({"prompt_tokens": COUNTED, "prompt_tokens_details": DETAILS}, Usage(COUNTED, cache_read=0)),
    "details, client hung up": (
        {"prompt_tokens": 184, "prompt_tokens_details": DETAILS, **ZEROS},
        Usage(184, cache_read=0),
    ),
    "Anthropic by way of LiteLLM": (
        {"prompt_tokens": 182, "prompt_tokens_details": ANTHROPIC, **ZEROS},
        Usage(182, cache_read=0, cache_write=0),
    ),
    "Anthropic's own": ({"input_tokens": 182, **ZEROS}, Usage(182, cache_read=0, cache_write=0)),
    "nothing": ({}, Usage()),
}


def response(usage: dict[str, Any]) -> Any:
    return SimpleNamespace(model="kit", usage=usage)


@pytest.mark.parametrize(("given", "expected"), STREAMS.values(), ids=STREAMS)
async def test_of_a_stream_only_what_the_provider_said_is_taken(given: dict[str, Any], expected: Usage) -> None:
    kwargs = {"stream": True, "messages": MESSAGES, "model": "kit"}
    assert await reported_usage(kwargs, response(given), EXECUTOR) == expected


INPUT = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Please read the file."}]},
    {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": '{"command": "cat file"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "nothing of note"},
]
ASKED = {"instructions": "You are an agent.", "tools": [{"type": "function", "name": "shell", "parameters": {}}]}


@pytest.mark.parametrize("optional", [{}, ASKED], ids=["bare", "with instructions"])
@pytest.mark.parametrize("apart", [0, 1], ids=["made up", "reported"])
async def test_of_a_responses_stream_too(optional: dict[str, Any], apart: int) -> None:
    """The count is the one of LiteLLM's own, as it puts it in; the tokenizer is that of the model asked for."""
    guessed = streaming_iterator._estimate_usage_from_text("gpt-5.5", INPUT, {"input": INPUT, **optional}, "the answer")
    told = {"prompt_tokens": guessed.input_tokens + apart, "prompt_tokens_details": None}
    kwargs = {"stream": True, "call_type": "aresponses", "model": "gpt-5.5", "input": INPUT, "messages": INPUT}
    found = await reported_usage(kwargs | {"optional_params": optional}, response(told), EXECUTOR)
    assert found == (Usage(guessed.input_tokens + 1) if apart else Usage())


async def test_a_whole_answer_is_taken_at_its_word() -> None:
    found = await reported_usage({"messages": MESSAGES}, response({"prompt_tokens": COUNTED}), EXECUTOR)
    assert found == Usage(COUNTED)


async def test_a_count_that_can_not_be_made_is_no_reason_to_doubt() -> None:
    found = await reported_usage({"stream": True, "messages": 5}, response({"prompt_tokens": COUNTED}), EXECUTOR)
    assert found == Usage(COUNTED)


async def test_a_response_without_usage_has_the_one_put_together_for_it() -> None:
    kwargs = {"combined_usage_object": {"prompt_tokens": 7}}
    assert await reported_usage(kwargs, SimpleNamespace(), EXECUTOR) == Usage(7)
