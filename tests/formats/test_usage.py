"""The usage that a provider or LiteLLM reports, in every known shape, read as the same three numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from openmem_hook.formats.usage import Usage, read_usage

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
    report, counts = USAGES[shape]
    usage = read_usage(report)
    assert (usage.prompt_tokens, usage.cache_read, usage.cache_write) == counts


OUTPUTS: list[tuple[Any, int | None]] = [
    ({"prompt_tokens": 5, "completion_tokens": 9}, 9),
    ({"input_tokens": 5, "output_tokens": 9}, 9),
    ({"inputTokens": 5, "outputTokens": 9}, 9),
    ({"prompt_token_count": 5, "candidates_token_count": 9}, 9),
    ({"promptTokenCount": 5, "candidatesTokenCount": 9}, 9),
    ({"completion_tokens": 0}, 0),
    ({"prompt_tokens": 5}, None),
]
HOURS: list[tuple[Any, int | None]] = [
    ({"input_tokens": 5, "cache_creation": SPLIT}, 2_000),
    ({"prompt_tokens": 5, "prompt_tokens_details": {"cache_creation_token_details": SPLIT}}, 2_000),
    ({"input_tokens": 5, "cache_creation": {"ephemeral_5m_input_tokens": 1_000}}, None),
    ({"input_tokens": 5, "cache_creation_input_tokens": 3_000}, None),
]
COUNTS: list[tuple[Any, int | None]] = [
    (7, 7),
    (7.9, 7),
    (0, None),  # no request has an empty prompt: this is what a provider says that doesn't count
    (2**40 - 1, 2**40 - 1),
    (2**40, None),
    (-1, None),
    (float("nan"), None),
    (float("inf"), None),
    (True, None),
    ("7", None),
    ([7], None),
    (None, None),
]


@pytest.mark.parametrize(("report", "count"), OUTPUTS)
def test_the_answer_is_counted_under_every_name(report: Any, count: int | None) -> None:
    assert read_usage(report).output_tokens == count


@pytest.mark.parametrize(("report", "count"), HOURS)
def test_what_is_written_for_an_hour_is_known_only_where_it_is_counted_apart(report: Any, count: int | None) -> None:
    assert read_usage(report).cache_write_1h == count


@pytest.mark.parametrize(("value", "count"), COUNTS)
def test_a_count_is_a_number_that_a_request_can_have(value: Any, count: int | None) -> None:
    assert read_usage({"prompt_tokens": value}).prompt_tokens == count
    assert read_usage({"input_tokens": value}).prompt_tokens == count


ZEROS: list[tuple[Any, int | None]] = [
    ({"input_tokens": 0}, None),
    ({"input_tokens": 0, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}, None),
    ({"input_tokens": 0, "cache_read_input_tokens": 5}, 5),
    ({"input_tokens": 2, "cache_read_input_tokens": None, "cache_creation_input_tokens": None}, 2),
    ({"input_tokens": 9, "cache_read_input_tokens": 5, "input_tokens_details": {"cached_tokens": 5}}, 9),
    ({"prompt_tokens": None, "input_tokens": 9}, 9),
]


@pytest.mark.parametrize(("report", "count"), ZEROS)
def test_a_prompt_of_zero_tokens_is_unknown_unless_all_of_it_was_cached(report: Any, count: int | None) -> None:
    assert read_usage(report).prompt_tokens == count


class Report:
    """A usage object as LiteLLM has it, whatever its version of pydantic."""

    def __init__(self, fields: Any) -> None:
        self.fields = fields

    def model_dump(self) -> Any:
        return self.fields


@pytest.mark.parametrize(
    "report", [{"prompt_tokens": 5}, Report({"prompt_tokens": 5}), SimpleNamespace(prompt_tokens=5)]
)
def test_objects_and_mappings_are_read_alike(report: Any) -> None:
    assert read_usage(report).prompt_tokens == 5


@pytest.mark.parametrize("report", [None, 7, "7", [], [("prompt_tokens", 5)], object(), Report(None), Report([1])])
def test_what_is_no_usage_has_no_counts(report: Any) -> None:
    assert read_usage(report) == Usage()
