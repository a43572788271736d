"""Public bug reports about the gateway's side (BC-57 to BC-63), each as this project owes it."""

from __future__ import annotations

import copy
import enum
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import orjson
import pytest

from openmem_hook.compaction.wording import NOTE
from openmem_hook.formats.usage import Usage, read_usage
from openmem_hook.gateway.hook import ContextHook
from openmem_hook.gateway.usage import reported_usage
from openmem_hook.replay.provider.counting import prompt_tokens
from tests import routes
from tests.conftest import CALL_TYPES, make_key
from tests.conversation import POINTER, Conversation, messages_of
from tests.gateway import Gateway, Upstream, bearer, query, until
from tests.kit import builders as a
from tests.kit.builders import FORMATS, Format, Json
from tests.kit.histories import growth
from tests.kit.prefix import assert_accepted, assert_untouched
from tests.routes import Everything

NewHook = Callable[..., ContextHook]
SMALL: Json = {"trim_at_tokens": 4000, "compress_over_tokens": 500, "chars_per_token": 2.5}
formats = pytest.mark.parametrize("fmt", FORMATS)


def over(fmt: Format, seed: object = 0) -> Json:
    """A session that `SMALL` compresses and trims at once."""
    body = a.session(fmt, turns=2, exchanges=12, size=1500, seed=seed)
    return {**body, "model": "claude-sonnet-4-5"}


def trimmed(body: Json) -> bool:
    return orjson.dumps(POINTER)[1:-1] in orjson.dumps(messages_of(body))


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    with routes.everything(tmp_path_factory.mktemp("everything")) as provider:
        yield provider


@pytest.fixture(scope="module")
def special(everything: Everything, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with routes.special(tmp_path_factory.mktemp("special"), everything) as started:
        yield started


# --- BC-57: the hook is never called ------------------------------------------------------------------------------


@pytest.mark.e2e
async def test_the_page_about_routes_says_what_the_gateway_does(
    gateway: Gateway, upstream: Upstream, special: Gateway, everything: Everything
) -> None:
    found = await routes.measure_all(gateway, upstream, special, everything)
    assert routes.DOCS.read_text() == routes.page(found, measured_with()), "python -m tests.routes writes it anew"
    for row, seen in found.items():
        assert all(one.trimmed == one.noted for one in seen), row
    assert unseen(gateway) == []
    assert unseen(special) == ["openmem: the gateway ran a _aresponses_websocket call without its pre-call hook"]


def measured_with() -> str:
    """The version that the page names: what holds for it has to hold for the one installed."""
    found = re.search(r"LiteLLM (\S+)", routes.DOCS.read_text())
    return found[1] if found else ""


def unseen(gateway: Gateway) -> list[str]:
    told = re.findall(r"openmem: the gateway ran a \w+ call without its pre-call hook", gateway.log.read_text())
    return [str(line) for line in told]


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


# --- BC-58: call types, return values, signatures ---------------------------------------------------------------

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
    assert not hook.compactor.pool.folder.exists()


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


# --- BC-59: token counting requests ----------------------------------------------------------------------------


def kept(gateway: Gateway) -> dict[str, Any]:
    """What the store holds: rows, edits and events of every session, and the catalogs' own."""
    tables = {"sessions": ("records", "edits", "events", "threads", "reports"), "catalog.db": ("sessions", "events")}
    return {
        f"{path.relative_to(gateway.store)} {table}": query(path, f"SELECT count(*) FROM {table}")
        for path in gateway.store.rglob("*.db")
        for table in tables.get(path.parent.name, tables["catalog.db"])
    }


@pytest.mark.e2e
@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/anthropic/v1/messages/count_tokens"])
async def test_counting_gives_the_whole_history_and_leaves_no_trace(
    special: Gateway, everything: Everything, path: str
) -> None:
    tag = f"tag-count-{path.count('/')}"
    model = "claude-sonnet-5" if path.startswith("/anthropic") else "claude-kit"
    body = {**routes.long_session("anthropic", tag), "model": model}
    counted = {key: value for key, value in body.items() if key != "max_tokens"}
    session = bearer("alice") | {"x-claude-code-session-id": tag}
    small = {**counted, "messages": [a.user(f"{tag} a single file")], "tools": None}
    small = {key: value for key, value in small.items() if value is not None}
    async with httpx.AsyncClient(base_url=special.address, timeout=120, trust_env=False) as http:

        async def count(what: Json) -> int:
            return int((await http.post(path, json=what, headers=session)).json()["input_tokens"])

        before = [await count(counted), await count(small)]
        assert not any(tag in str(row) for row in everything.log)
        answer = await http.post("/v1/messages", json={**body, "model": "claude-kit"}, headers=session)
        assert answer.status_code == 200
        until(lambda: special.session_with(tag) and events_of(special, tag, "usage"), "the usage")
        store = kept(special)
        after = [await count(counted), await count(small), await count(counted)]
        assert after == [*before, before[0]]
        assert before[0] == prompt_tokens(counted, "anthropic")
        assert kept(special) == store
        again = await http.post("/v1/messages", json={**body, "model": "claude-kit"}, headers=session)
        assert again.status_code == 200
    sent = [raw for raw in everything.forwarded(tag) if "max_tokens" in raw]
    assert len(sent) == 2
    assert len(events_of(special, tag, "trim")) == 1


def events_of(gateway: Gateway, tag: str, kind: str) -> list[Any]:
    return query(gateway.session_with(tag), f"SELECT data FROM events WHERE kind = '{kind}'")


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
    assert not hook.compactor.pool.folder.exists()
    turn = make_key(request_route="/anthropic/v1/messages")
    assert trimmed(await hook.async_pre_call_hook(turn, None, data, "pass_through_endpoint"))


# --- BC-60: fallback after the hook has run ----------------------------------------------------------------------


@pytest.mark.e2e
@pytest.mark.parametrize("stream", [False, True])
async def test_a_fallback_to_a_smaller_model_is_accepted(
    special: Gateway, everything: Everything, stream: bool
) -> None:
    tag = f"tag-fallback-{stream}"
    overloaded = {"status": 529, "message": "Overloaded"}
    everything.order({"fail_next": [overloaded], "limits": {"claude-haiku-4-5": routes.SMALL_WINDOW}})
    body = {**routes.long_session("anthropic", tag), "model": "claude-big", "stream": stream}
    assert prompt_tokens(body, "anthropic") > routes.SMALL_WINDOW
    settings = {"x-openmem": "trim_at_tokens=100000", "x-claude-code-session-id": tag}
    async with httpx.AsyncClient(base_url=special.address, timeout=120, trust_env=False) as http:
        answer = await http.post("/v1/messages", json=body, headers=bearer("alice") | settings)
    assert answer.status_code == 200, answer.text
    tried = everything.requests(tag)
    assert (tried[0]["model"], tried[0]["status"]) == ("claude-opus-4-5", 529)
    assert (tried[-1]["model"], tried[-1]["status"]) == ("claude-haiku-4-5", 200)
    assert tried[-1]["prompt_tokens"] <= routes.SMALL_WINDOW


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


# --- BC-62: usage fields mean different things -------------------------------------------------------------------

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
    assert (await reported_usage({}, {"response": answer})).prompt_tokens == 50_000
    for text in ('cannot parse chunks: "usage"', '{"usage"', "[]", '{"usage": 7}', 7, {"usage": usage}, None):
        assert await reported_usage({}, {"response": text}) == Usage()


# --- BC-63: our state must not leak into the request --------------------------------------------------------------

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
    assert len(hook.compactor.recorder.expected()) <= 512


KEYS = {"anthropic": set(), "chat": {"stream_options"}, "responses": set()}
"""What LiteLLM itself adds to a request on its way to a provider of the same API."""


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("fmt", "path", "model"),
    [
        ("anthropic", "/v1/messages", "claude-kit"),
        ("chat", "/v1/chat/completions", "local-kit"),
        ("responses", "/v1/responses", "gpt-kit"),
    ],
)
async def test_the_provider_gets_the_clients_own_keys_and_metadata(
    gateway: Gateway, upstream: Upstream, http: httpx.AsyncClient, fmt: Format, path: str, model: str
) -> None:
    tag = f"tag-leak-{fmt}"
    body: Json = {**routes.long_session(fmt, tag), "model": model, "stream": True}
    if fmt == "anthropic":
        body |= {"metadata": {"user_id": "ada"}, **MANAGED["clearing"]}
    answer = await http.post(path, json=body, headers=bearer("alice") | {"x-session-id": tag})
    assert answer.status_code == 200, answer.text
    sent = next(one for one in reversed(upstream.bodies) if tag in orjson.dumps(one).decode())
    assert trimmed(sent)
    assert set(sent) - set(body) <= KEYS[fmt] | ({"instructions"} if fmt == "responses" else set())
    for key in ("metadata", "context_management"):
        assert sent.get(key) == body.get(key)
    assert b"compression_savings" not in orjson.dumps(sent)
