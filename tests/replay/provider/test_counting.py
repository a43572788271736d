"""Counting: close to what text costs, the same for the same words, cheap the second time."""

from __future__ import annotations

import time

import pytest

from openmem_hook.replay.provider.counting import FRAME_TOKENS, MEDIA_TOKENS, count_text, prompt_tokens
from tests.kit.builders import (
    FORMATS,
    Format,
    body,
    chat,
    image,
    marked,
    picture,
    responses,
    session,
    text,
    thinking,
    user,
)
from tests.kit.builders import assistant as said


def test_words_cost_about_a_token_each() -> None:
    assert 8 <= count_text("the quick brown fox jumps over the lazy dog") <= 12


def test_a_prompt_is_tools_and_system_and_messages() -> None:
    whole = body(user("go"))
    for field in ("tools", "system"):
        assert prompt_tokens({**whole, field: []}, "anthropic") < prompt_tokens(whole, "anthropic")
    bare = body(user("go"), tools=None, system=None)
    assert prompt_tokens(bare, "anthropic") == count_text("user\ngo") + FRAME_TOKENS


@pytest.mark.parametrize("fmt", FORMATS)
def test_more_text_is_more_tokens_in_proportion(fmt: Format) -> None:
    small, large = (prompt_tokens(session(fmt, exchanges=5, size=size), fmt) for size in (1000, 10_000))
    assert 6 < large / small < 10


def test_breakpoints_cost_nothing() -> None:
    plain, dressed = body(user(text("go"))), body(user(marked(text("go"))))
    assert prompt_tokens(plain, "anthropic") == prompt_tokens(dressed, "anthropic")


def test_a_picture_costs_its_budget_whatever_its_bytes() -> None:
    costs = {prompt_tokens(body(user(image(picture(size=size)), "x")), "anthropic") for size in (0, 300_000)}
    bare = prompt_tokens(body(user("x")), "anthropic")
    assert len(costs) == 1
    assert MEDIA_TOKENS <= costs.pop() - bare <= MEDIA_TOKENS + 20


def test_pictures_count_in_the_other_formats_too() -> None:
    one = chat.body(chat.user(chat.image(picture(size=90_000)), "x"))
    other = responses.body(responses.user(responses.image(picture(size=90_000)), "x"))
    assert MEDIA_TOKENS < prompt_tokens(one, "chat") < MEDIA_TOKENS + 300
    assert MEDIA_TOKENS < prompt_tokens(other, "responses") < MEDIA_TOKENS + 300


def test_opaque_text_counts_by_its_length() -> None:
    short, long = (
        prompt_tokens(body(user("go"), said(thinking("x", "A" * chars), text("so"))), "anthropic")
        for chars in (40, 4040)
    )
    assert long - short == 1000


def test_a_parameter_of_a_tool_may_be_called_type() -> None:
    offered = responses.tool("spawn")
    offered["parameters"] = {"type": "object", "properties": {"type": {"type": "string"}}}
    found = {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": [offered]}
    assert prompt_tokens(responses.body(responses.user("x"), found), "responses") > 0


@pytest.mark.parametrize("kind", [{"a": 1}, ["text"], 7, None])
def test_a_block_of_a_type_that_is_no_word_is_counted_too(kind: object) -> None:
    assert prompt_tokens(body(user({"type": kind, "text": "go"})), "anthropic") > 0


def test_the_second_count_of_a_large_history_is_cheap() -> None:
    large = session("anthropic", turns=4, exchanges=20, size=10_000, seed="cheap")
    prompt_tokens(large, "anthropic")
    start = time.perf_counter()
    prompt_tokens(large, "anthropic")
    assert time.perf_counter() - start < 0.2
