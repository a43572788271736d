"""Public bug reports about the gateway's side."""

from __future__ import annotations

import copy
import enum
import re
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from openmem_hook.compaction.wording import NOTE
from openmem_hook.formats.usage import Usage
from openmem_hook.gateway.hook import ContextHook
from openmem_hook.gateway.usage import reported_usage
from openmem_hook.store.executor import Executor
from tests.conftest import CALL_TYPES, make_key
from tests.formats.test_usage import USAGES
from tests.harness.conversation import POINTER, Conversation, messages_of
from tests.kit import builders as a
from tests.kit.builders import FORMATS, Format, Json
from tests.kit.histories import growth
from tests.kit.prefix import assert_accepted, assert_untouched

NewHook = Callable[..., ContextHook]
SMALL: Json = {"trim_at_tokens": 4000, "compress_over_tokens": 500, "chars_per_token": 2.5}
formats = pytest.mark.parametrize("fmt", FORMATS)


def over(fmt: Format, seed: object = 0) -> Json:
    """A session that `SMALL` compresses and trims at once."""
    body = a.session(fmt, turns=2, exchanges=12, size=1500, seed=seed)
    return {**body, "model": "claude-sonnet-4-5"}


def trimmed(body: Json) -> bool:
    return orjson.dumps(POINTER)[1:-1] in orjson.dumps(messages_of(body))


# --- the hook is never called -------------------------------------------------------------------------------------


async def test_traffic_that_came_past_no_hook_is_told_of_once_for_each_kind(
    new_hook: NewHook, key: Any, caplog
) -> None:
    hook = new_hook()
    seen = {**a.session("anthropic"), "litellm_call_id": "seen"}
    await hook.async_pre_call_hook(key, None, seen, "anthropic_messages")
    for call_type in ("anthropic_messages", "aresponses", "acompletion", "_aresponses_websocket", "aembedding"):
        for call_id in ("seen", "unseen", "unseen again", None):
            kwargs = {"litellm_call_id": call_id, "call_type": call_type}
            await hook.async_log_success_event(kwargs, {"usage": {"prompt_tokens": 10}}, None, None)
    told = [r.message for r in caplog.records if "without its pre-call hook" in r.message]
    assert len(told) == len(set(told)) == 4
    assert not any("aembedding" in line for line in told)


# --- call types, return values, signatures ----------------------------------------------------------------------

OTHERS = [
    "text_completion", "atext_completion", "embeddings", "aembedding", "embedding", "image_generation",
    "aimage_generation", "moderation", "amoderation", "rerank", "arerank", "audio_transcription", "atranscription",
    "aspeech", "mcp_call", "call_mcp_tool", "list_mcp_tools", "agenerate_content", "agenerate_content_stream",
    "acreate_batch", "afile_content", "acompact_responses", "_aresponses_websocket", "realtime", "acount_tokens",
    "anthropic_count_tokens", "something_of_next_year", "",
]  # fmt: skip
BODIES: dict[str, Any] = {
    "A": a.session("anthropic", exchanges=20, size=4000),
    "C": a.session("chat", exchanges=20, size=4000),
    "R": a.session("responses", exchanges=20, size=4000),
    "prompt": {"model": "x", "prompt": "words " * 50_000},
    "texts to embed": {"model": "x", "input": ["words " * 50_000] * 3},
    "one text to embed": {"model": "x", "input": "words " * 50_000},
    "token ids": {"model": "x", "input": list(range(50_000))},
    "lists of token ids": {"model": "x", "input": [list(range(1_000))] * 50},
}


@pytest.mark.parametrize("call_type", OTHERS)
@pytest.mark.parametrize("body", BODIES)
async def test_calls_of_no_agent_come_back_as_they_are(new_hook: NewHook, key: Any, body: str, call_type: str) -> None:
    hook, data = new_hook(**SMALL), copy.deepcopy(BODIES[body])
    out = await hook.async_pre_call_hook(key, None, data, call_type)
    assert out is data
    assert_untouched(BODIES[body], out)
    assert not hook.compactor.store.pool.folder.exists()


SHAPES: dict[str, Any] = {
    "messages as text": {"messages": "hello"},
    "messages as an object": {"messages": {"role": "user"}},
    "no messages": {"messages": []},
    "messages of null": {"messages": None},
    "messages of texts": {"messages": ["hello", "there"]},
    "messages of numbers": {"messages": [1, None]},
    "missing": {"model": "x"},
    "empty": {},
    "input of token ids": {"input": [1, 2, 3]},
    "input of lists": {"input": [[1, 2], [3]]},
    "input of texts": {"input": ["hello"]},
    "input of nothing": {"input": []},
    "input of null": {"input": None},
    "input as a number": {"input": 7},
    "a prompt": {"prompt": "hello"},
    "both": {"messages": [{"role": "user", "content": "hi"}], "input": [{"role": "user", "content": "hi"}]},
    "contents of numbers": {"messages": [{"role": "user", "content": 7}], "max_tokens": 5},
    "no roles": {"messages": [{"content": "hi"}], "max_tokens": 5},
    "roles of lists": {"messages": [{"role": ["user"], "content": [["hi"]]}], "max_tokens": 5},
    "items without anything": {"input": [{}]},
    "items of numbers as types": {"input": [{"type": 7, "content": {"a": 1}}]},
}
AGENT_CALLS = ["anthropic_messages", "completion", "acompletion", "responses", "aresponses", "pass_through_endpoint"]


@pytest.mark.parametrize("call_type", AGENT_CALLS)
@pytest.mark.parametrize("shape", SHAPES)
async def test_bodies_of_any_shape_pass_without_an_exception(
    new_hook: NewHook, key: Any, shape: str, call_type: str
) -> None:
    hook, data = new_hook(**SMALL), copy.deepcopy(SHAPES[shape])
    out = await hook.async_pre_call_hook(key, None, data, call_type)
    assert isinstance(out, dict)
    assert hook.notices.failures == 0
    assert_untouched(data, SHAPES[shape])
    kept = {k: v for k, v in out.items() if k not in ("messages", "input", "system", "instructions")}
    assert kept == {k: v for k, v in data.items() if k in kept}


@pytest.mark.parametrize("data", [None, "text", [], 7])
async def test_data_that_is_no_body_comes_back(new_hook: NewHook, key: Any, data: Any) -> None:
    assert await new_hook().async_pre_call_hook(key, None, data, "acompletion") is data


NAMES = {
    "anthropic": ["anthropic_messages", "pass_through_endpoint"],
    "chat": ["completion", "acompletion", "pass_through_endpoint"],
    "responses": ["responses", "aresponses", "pass_through_endpoint"],
}


@pytest.mark.parametrize(("fmt", "call_type"), [(fmt, name) for fmt, found in NAMES.items() for name in found])
async def test_every_name_of_an_agents_call_is_served_as_text_or_as_a_member(
    new_hook, key, fmt: Format, call_type: str
) -> None:
    member = enum.Enum("Calls", {"member": call_type}).member
    for named in (call_type, member):
        out = await new_hook(**SMALL).async_pre_call_hook(key, None, over(fmt), named)
        assert trimmed(out)
        assert_accepted({k: v for k, v in out.items() if not k.startswith("litellm")}, fmt)


@formats
async def test_arguments_that_later_versions_may_add_do_no_harm(new_hook: NewHook, key: Any, fmt: Format) -> None:
    hook = new_hook(**SMALL)
    named: Json = {"user_api_key_dict": key, "cache": None, "data": over(fmt), "call_type": CALL_TYPES[fmt]}
    assert trimmed(await hook.async_pre_call_hook(**named, request=None, route="/v1/x"))
    event: Json = {"kwargs": {}, "response_obj": None, "start_time": None, "end_time": None}
    await hook.async_log_success_event(**event, cache_hit=False)


# --- token counting requests -----------------------------------------------------------------------------------


COUNTED = [
    "/anthropic/v1/messages/count_tokens",
    "/v1/messages/count_tokens",
    "/vertex_ai/v1/projects/p/locations/l/publishers/anthropic/models/count-tokens:rawPredict",
    "/openai_passthrough/v1/responses/input_tokens",
    "/openai_passthrough/v1/responses/compact",
    "/openai/v1/responses/compact/",
]


@pytest.mark.parametrize("route", COUNTED)
@formats
async def test_a_passed_through_history_that_is_no_turn_is_not_looked_at(
    new_hook: NewHook, fmt: Format, route: str
) -> None:
    hook, data = new_hook(**SMALL), over(fmt)
    out = await hook.async_pre_call_hook(make_key(request_route=route), None, data, "pass_through_endpoint")
    assert out is data
    assert not hook.compactor.store.pool.folder.exists()
    turn = make_key(request_route="/anthropic/v1/messages")
    assert trimmed(await hook.async_pre_call_hook(turn, None, data, "pass_through_endpoint"))


# --- fallback after the hook has run -----------------------------------------------------------------------------


def spoil(value: Any) -> None:
    """Changes everything in reach, as conversions of several attempts on one object do."""
    if isinstance(value, dict):
        for inner in list(value.values()):
            spoil(inner)
        value["spoilt"] = True
        value.pop("content", None)
        value.pop("output", None)
    elif isinstance(value, list):
        for inner in value:
            spoil(inner)
        value.append({"role": "user", "content": "spoilt"})


@formats
async def test_what_the_router_does_to_a_body_reaches_neither_store_nor_next_request(
    new_hook: NewHook, fmt: Format
) -> None:
    requests = growth(over(fmt))
    spoilt, whole = Conversation(new_hook(**SMALL), "spoilt"), Conversation(new_hook(**SMALL), "whole!")
    for request in requests:
        out = await whole.send(copy.deepcopy(request))
        data = copy.deepcopy(request)
        held = copy.copy(messages_of(data))
        sent = await spoilt.send(data)
        assert re.sub(rb"[0-9a-f]{16}", b"", orjson.dumps(sent)) == re.sub(rb"[0-9a-f]{16}", b"", orjson.dumps(out))
        spoil(sent)
        assert len(messages_of(data)) == len(held), "the caller's own list stays"
        spoilt.last = None
    assert trimmed(out)
    assert [row.raw for row in spoilt.rows()] == [row.raw for row in whole.rows()]


@pytest.mark.parametrize("turns", [1, 2, 3])
@formats
async def test_the_hook_changes_nothing_in_what_it_has_made(
    new_hook: NewHook, key: Any, fmt: Format, turns: int
) -> None:
    body = {**a.session(fmt, turns=turns, exchanges=16, size=1500), "model": "claude-sonnet-4-5"}
    hook, nested = new_hook(**SMALL), new_hook(**SMALL)
    same = {"proxy_server_request": {"headers": {"x-session-id": "one"}}}
    once = await hook.async_pre_call_hook(key, None, body | same, CALL_TYPES[fmt])
    assert trimmed(once)
    assert_untouched(once, await hook.async_pre_call_hook(key, None, copy.deepcopy(once), CALL_TYPES[fmt]))
    other = make_key("the gateway before")
    assert_untouched(once, await nested.async_pre_call_hook(other, None, copy.deepcopy(once), CALL_TYPES[fmt]))
    assert orjson.dumps(once).count(orjson.dumps(NOTE)[1:-1]) == 1


# --- usage fields mean different things --------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [name for name, (_, expected) in USAGES.items() if expected[0]])
async def test_a_report_of_any_shape_is_recorded_and_teaches_the_size(new_hook: NewHook, shape: str) -> None:
    talk = Conversation(new_hook(trim_at_tokens=60_000), "one")
    requests = growth(a.session("anthropic", exchanges=6))
    await talk.send(requests[-2])
    kwargs = {"litellm_call_id": "one-1", "call_type": "anthropic_messages"}
    await talk.hook.async_log_success_event(kwargs, {"usage": USAGES[shape][0]}, None, None)
    (event,) = talk.events("usage")
    assert (event["prompt_tokens"], event["cache_read"], event["cache_write"]) == USAGES[shape][1]
    await talk.send(requests[-1])
    await talk.report(50_300)
    assert abs(talk.events("usage")[1]["estimate"] - 50_300) < 300


async def test_the_answer_of_a_host_that_litellm_does_not_know_is_read_for_its_usage() -> None:
    usage = {"prompt_tokens": 50_000, "prompt_tokens_details": {"cached_tokens": 45_000}}
    answer = orjson.dumps({"id": "x", "choices": [], "usage": usage}).decode()
    assert (await reported_usage({}, {"response": answer}, Executor())).prompt_tokens == 50_000
    for text in ('cannot parse chunks: "usage"', '{"usage"', "[]", '{"usage": 7}', 7, {"usage": usage}, None):
        assert await reported_usage({}, {"response": text}, Executor()) == Usage()


# --- our state must not leak into the request ---------------------------------------------------------------------

METADATA: dict[str, Json] = {
    "none": {},
    "a user": {"metadata": {"user_id": "ada"}},
    "a session": {"metadata": {"user_id": '{"device_id": "d", "account_uuid": "", "session_id": "s-1"}'}},
    "extra keys": {"metadata": {"user_id": "ada", "team": "blue", "nested": {"a": [1, 2.50, None]}}},
    "the gateway's beside it": {"metadata": {"user_id": "ada"}, "litellm_metadata": {"user_api_key": "x", "tags": []}},
    "the gateway's without a key": {"litellm_metadata": {"tags": ["a"]}},
    "the gateway's in it": {"metadata": {"user_api_key": "x", "requester_metadata": {}}},
}
MANAGED: dict[str, Json] = {
    "none": {},
    "clearing": {
        "context_management": {
            "edits": [
                {"type": "clear_thinking_20251015", "keep": "all"},
                {"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 100000}},
            ]
        }
    },
    "compaction": {"context_management": {"edits": [{"type": "compact_20260112"}]}},
}


@pytest.mark.parametrize("managed", MANAGED)
@pytest.mark.parametrize("metadata", METADATA)
@formats
async def test_nothing_of_ours_is_left_in_a_request(
    new_hook: NewHook, fmt: Format, metadata: str, managed: str
) -> None:
    talk = Conversation(new_hook(**SMALL), "one")
    given: Json = {**METADATA[metadata], **MANAGED[managed]}
    plain = {**over(fmt), **copy.deepcopy(given)}
    data = {**plain, "litellm_call_id": "one-1", "proxy_server_request": {"headers": {"x-session-id": "one"}}}
    out = await talk.hook.async_pre_call_hook(talk.key, None, data, CALL_TYPES[fmt])
    assert trimmed(out)
    assert set(out) - set(data) <= {"instructions"}, "the note of a request without a system prompt"
    assert {k: v for k, v in plain.items() if k in given} == given
    for key, value in given.items():
        told = dict(out[key])
        if "user_api_key" in value:
            saved = told.pop("compression_savings")
            assert saved["tokens_before"] - saved["tokens_after"] == saved["tokens_saved"] > 0
        assert_untouched(told, value)


@formats
async def test_requests_between_call_and_answer_are_remembered_within_bounds(
    new_hook: NewHook, fmt: Format, key: Any
) -> None:
    hook = new_hook()
    body = a.session(fmt)
    for number in range(1_100):
        said = {"litellm_call_id": f"call-{number}", "proxy_server_request": {"headers": {"x-session-id": "one"}}}
        await hook.async_pre_call_hook(key, None, body | said, CALL_TYPES[fmt])
    waiting = [n for n in range(1_100) if hook.compactor.recorder.open_call(f"call-{n}") is not None]
    assert waiting == list(range(1_100 - 512, 1_100))
