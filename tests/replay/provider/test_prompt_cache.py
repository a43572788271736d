"""The simulated caches follow the documented rules, time passed in."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from openmem_hook.replay.provider.prompt_cache import MIN_TOKENS, STEP, AnthropicCache, AutomaticCache
from tests.kit.builders import (
    assistant,
    body,
    chat,
    marked,
    responses,
    session,
    text,
    tool,
    tool_result,
    tool_use,
    user,
)
from tests.kit.builders import results as answered
from tests.kit.filler import prose

LONG = prose(8000, "long")


def asked(*messages: Any, ttl: str = "", **fields: Any) -> dict[str, Any]:
    """A body whose last block carries the only breakpoint."""
    made = copy.deepcopy(list(messages))
    content = made[-1]["content"]
    blocks = [text(content)] if isinstance(content, str) else content
    made[-1]["content"] = [*blocks[:-1], marked(blocks[-1], ttl)]
    return body(*made, **fields)


def test_the_first_request_writes_and_the_next_reads_all_of_it() -> None:
    cache = AnthropicCache()
    first = cache.request(asked(user(LONG)), 0)
    second = cache.request(asked(user(LONG), assistant("so"), user("on")), 10)
    assert first.read == 0
    assert first.written_5m == first.total
    assert second.read == first.total
    assert second.fresh == 0
    assert second.written_5m == second.total - first.total


def test_nothing_is_cached_without_a_breakpoint() -> None:
    cache = AnthropicCache()
    assert [cache.request(body(user(LONG)), at).fresh for at in (0, 1)] == [
        cache.request(body(user(LONG)), 2).total
    ] * 2


def test_a_string_and_its_block_are_the_same_prefix() -> None:
    cache = AnthropicCache()
    first = cache.request(asked(user(text(LONG))), 0)
    assert cache.request(asked(user(LONG), assistant("so"), user("on")), 1).read == first.total


@pytest.mark.parametrize("changed", [{"system": "other"}, {"tools": [tool("Other")]}, {"model": "other"},
                                     {"thinking": {"type": "adaptive"}}])  # fmt: skip
def test_a_change_before_the_messages_loses_them(changed: dict[str, Any]) -> None:
    cache = AnthropicCache()
    cache.request(asked(user(LONG)), 0)
    assert cache.request(asked(user(LONG), **changed), 1).read == 0


def test_a_changed_thinking_setting_leaves_tools_and_system_cached() -> None:
    cache, long_system = AnthropicCache(), [marked(text(LONG))]
    cache.request(asked(user("go"), system=long_system), 0)
    assert cache.request(asked(user("go"), system=long_system, thinking={"type": "adaptive"}), 1).read > MIN_TOKENS


def test_a_changed_block_in_the_middle_costs_all_that_follows() -> None:
    cache = AnthropicCache()
    cache.request(asked(user(LONG), assistant("so"), user(LONG)), 0)
    assert cache.request(asked(user(LONG), assistant("no"), user(LONG)), 1).read == 0


def test_an_entry_dies_after_five_minutes_unless_it_is_hit() -> None:
    cache = AnthropicCache()
    request = asked(user(LONG))
    reads = [cache.request(request, now).read > 0 for now in (0, 299, 598, 899)]
    assert reads == [False, True, True, False]


def test_the_hour_lane_lives_an_hour_and_is_counted_apart() -> None:
    cache = AnthropicCache()
    request = asked(user(LONG), ttl="1h")
    first = cache.request(request, 0)
    assert (first.written_1h, first.written_5m) == (first.total, 0)
    assert cache.request(request, 3500).read == first.total
    assert cache.request(request, 3500 + 3700).read == 0


def test_both_lanes_in_one_request() -> None:
    cache = AnthropicCache()
    use = cache.request(asked(user(LONG), system=[marked(text(LONG), "1h")]), 0)
    assert use.written_1h > MIN_TOKENS
    assert use.written_5m > MIN_TOKENS
    assert use.written_1h + use.written_5m == use.total


def test_the_look_back_ends_after_twenty_blocks() -> None:
    def request(blocks: int) -> dict[str, Any]:
        return asked(user(LONG), assistant(*(text(f"b{at}") for at in range(blocks))), user("on"))

    for blocks, found in ((18, True), (19, False)):
        cache = AnthropicCache()
        first = cache.request(asked(user(LONG)), 0)
        assert cache.request(request(blocks), 1).read == (first.total if found else 0)


def test_a_second_breakpoint_in_reach_saves_the_hit() -> None:
    cache = AnthropicCache()
    first = cache.request(asked(user(LONG)), 0)
    far = asked(user(marked(text(LONG))), assistant(*(text(f"b{at}") for at in range(40))), user("on"))
    assert cache.request(far, 1).read == first.total


def test_a_breakpoint_inside_a_result_marks_the_result() -> None:
    def request(*more: Any) -> dict[str, Any]:
        inner = answered(tool_result("toolu_1", [marked(text(LONG))]))
        return body(user("go"), assistant(tool_use("toolu_1")), inner, *more)

    cache = AnthropicCache()
    first = cache.request(request(), 0)
    assert first.written_5m == first.total
    assert cache.request(request(), 1).read == first.total


def test_short_prompts_are_not_cached() -> None:
    cache = AnthropicCache()
    short = asked(user("go"))
    assert [cache.request(short, at).read for at in (0, 1)] == [0, 0]
    assert cache.request(short, 2).written_5m == 0


def test_automatic_hits_come_in_steps_from_1024_tokens() -> None:
    cache = AutomaticCache()
    first = cache.request(chat.body(chat.user(LONG)), "chat", 0)
    second = cache.request(chat.body(chat.user(LONG), chat.assistant("so"), chat.user("on")), "chat", 1)
    assert first.read == 0
    assert second.read % STEP == 0
    assert first.total - STEP <= second.read <= first.total
    assert cache.request(chat.body(chat.user("go")), "chat", 2).read == 0


def test_automatic_hits_end_at_the_first_difference() -> None:
    cache = AutomaticCache()
    cache.request(responses.body(responses.user(LONG), responses.user("x" + LONG)), "responses", 0)
    partly = cache.request(responses.body(responses.user(LONG), responses.user("y" + LONG)), "responses", 1)
    assert MIN_TOKENS <= partly.read < partly.total * 0.6


def test_automatic_entries_are_scoped_and_die() -> None:
    cache, request = AutomaticCache(), session("responses", exchanges=3, size=4000)
    cache.request({**request, "prompt_cache_key": "a"}, "responses", 0)
    assert cache.request({**request, "prompt_cache_key": "b"}, "responses", 1).read == 0
    assert cache.request({**request, "prompt_cache_key": "a"}, "responses", 2).read > 0
    assert cache.request({**request, "prompt_cache_key": "a"}, "responses", 2000).read == 0
