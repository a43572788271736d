"""The usage that a provider or LiteLLM reports, in every known shape, read as the same three numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from openmem_hook.formats.usage import read_usage

SPLIT = {"ephemeral_5m_input_tokens": 1_000, "ephemeral_1h_input_tokens": 2_000}
FULL, NO_CACHE = (50_000, 45_000, 3_000), (50_000, None, None)
USAGES: dict[str, tuple[Any, tuple[int | None, int | None, int | None]]] = {
    "anthropic": (
        {
            "input_tokens": 2_000,
            "cache_read_input_tokens": 45_000,
            "cache_creation_input_tokens": 3_000,
            "output_tokens": 9,
        },
        FULL,
    ),
    "anthropic with lanes": (
        {
            "input_tokens": 2_000,
            "cache_read_input_tokens": 45_000,
            "cache_creation_input_tokens": 3_000,
            "cache_creation": SPLIT,
        },
        FULL,
    ),
    "anthropic with lanes alone": (
        {"input_tokens": 2_000, "cache_read_input_tokens": 45_000, "cache_creation": SPLIT},
        FULL,
    ),
    "litellm from anthropic": (
        {
            "prompt_tokens": 50_000,
            "completion_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 45_000, "cache_creation_tokens": 3_000},
            "cache_read_input_tokens": 45_000,
            "cache_creation_input_tokens": 3_000,
        },
        FULL,
    ),
    "litellm from anthropic, as an object": (
        SimpleNamespace(
            prompt_tokens=50_000,
            completion_tokens=9,
            prompt_tokens_details=SimpleNamespace(cached_tokens=45_000, cache_creation_token_details=SPLIT),
        ),
        FULL,
    ),
    "openai chat": (
        {"prompt_tokens": 50_000, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 45_000}},
        (50_000, 45_000, None),
    ),
    "openai responses": (
        {"input_tokens": 50_000, "output_tokens": 9, "input_tokens_details": {"cached_tokens": 45_000}},
        (50_000, 45_000, None),
    ),
    "openai that writes": (
        {"prompt_tokens": 50_000, "prompt_tokens_details": {"cached_tokens": 45_000, "cache_write_tokens": 3_000}},
        FULL,
    ),
    "bedrock": (
        {"inputTokens": 2_000, "cacheReadInputTokens": 45_000, "cacheWriteInputTokens": 3_000, "outputTokens": 9},
        FULL,
    ),
    "vertex": (
        {"promptTokenCount": 50_000, "cachedContentTokenCount": 45_000, "candidatesTokenCount": 9},
        (50_000, 45_000, None),
    ),
    "deepseek": (
        {"prompt_tokens": 50_000, "prompt_cache_hit_tokens": 45_000, "prompt_cache_miss_tokens": 5_000},
        (50_000, 45_000, None),
    ),
    "vllm without a cache report": (
        {"prompt_tokens": 50_000, "completion_tokens": 9, "prompt_tokens_details": None},
        NO_CACHE,
    ),
    "vllm with a zero": ({"prompt_tokens": 50_000, "prompt_tokens_details": {"cached_tokens": 0}}, (50_000, 0, None)),
    "responses of anyone": ({"input_tokens": 50_000, "output_tokens": 9}, NO_CACHE),
    "totals alone": ({"total_tokens": 50_009}, (None, None, None)),
    "nothing": ({}, (None, None, None)),
    "null": (None, (None, None, None)),
    "words": ({"prompt_tokens": "many", "cache_read_input_tokens": True}, (None, None, None)),
}


@pytest.mark.parametrize("shape", USAGES)
def test_every_provider_s_usage_has_one_meaning(shape: str) -> None:
    given, expected = USAGES[shape]
    usage = read_usage(given)
    assert (usage.prompt_tokens, usage.cache_read, usage.cache_write) == expected
