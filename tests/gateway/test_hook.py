"""The thin hook: what it hands on for whatever it is called with, what it records of responses, what it tells."""

from __future__ import annotations

import ast
import asyncio
import copy
import enum
import hashlib
import inspect
import logging
import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import openmem_hook
from openmem_hook import compactor, config
from openmem_hook.compaction.wording import NOTE
from openmem_hook.compactor import Compactor
from openmem_hook.gateway.hook import ContextHook
from openmem_hook.gateway.notices import EVERY_S, Notices
from openmem_hook.store import names
from openmem_hook.store import session as session_module
from openmem_hook.store import store as store_module
from tests.conftest import CALL_TYPES, make_key
from tests.harness.outage import (
    FIRST_TRIM,
    FORMATS,
    STRIKES,
    TIGHT,
    Client,
    Store,
    a_file_in_the_place_of,
    from_gateway,
    messages_of,
    sent,
)
from tests.kit.builders import Format, Json, assistant, body, chat, responses, results, tool_result, tool_use, user
from tests.kit.prefix import canonical

formats = pytest.mark.parametrize("fmt", FORMATS)
SECRET = "zq-hidden-words-7431"


async def asked(hook: ContextHook, data: Any, call_type: Any = "acompletion", key: Any = None) -> Any:
    return await hook.async_pre_call_hook(key or make_key(), None, data, call_type)


async def answered(hook: ContextHook, call_id: str | None = "call", usage: Any = None, **more: Any) -> None:
    kwargs = {"call_type": "acompletion", **({} if call_id is None else {"litellm_call_id": call_id}), **more}
    await hook.async_log_success_event(kwargs, {"usage": usage}, None, None)


def usages(store: Store) -> list[Json]:
    return [orjson.loads(data) for (data,) in store.rows("SELECT data FROM events WHERE kind = 'usage' ORDER BY id")]


def catalog_events(store: Store, kind: str = "fail_open", tenant: str = "user:user-1") -> list[Json]:
    db = sqlite3.connect(store.context / names.tenant_folder(tenant) / "catalog.db")
    found = db.execute("SELECT data FROM events WHERE kind = ?", (kind,)).fetchall()
    db.close()
    return [orjson.loads(data) for (data,) in found]


# --- the shape of the class ---------------------------------------------------------------------------------


def test_the_gateway_finds_the_hooks_on_the_class_itself() -> None:
    for name in ("async_pre_call_hook", "async_log_success_event"):
        assert inspect.iscoroutinefunction(vars(ContextHook)[name])


def test_everything_is_caught_in_the_hook_and_nowhere_below_the_edge() -> None:
    root = Path(openmem_hook.__file__).parent
    broad = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ExceptHandler) and (node.type is None or ast.unparse(node.type) == "Exception")
    }
    assert {path for path in broad if not path.startswith("gateway/")} == set()
    assert "gateway/hook.py" in broad


async def test_later_versions_may_pass_more_and_name_their_arguments(new_hook) -> None:
    hook, data = new_hook(), from_gateway(chat.body(chat.user("hi")), "chat", "s", "call")
    named = {"user_api_key_dict": make_key(), "cache": None, "data": data, "call_type": "acompletion"}
    out = await hook.async_pre_call_hook(**named, litellm_version="9", request_data={})
    assert NOTE in str(out["messages"][0])
    await hook.async_log_success_event(
        kwargs={"litellm_call_id": "call"}, response_obj={}, start_time=0, end_time=0, later=1
    )
    assert hook.notices.failures == 0


class Call(str, enum.Enum):  # noqa: UP042 - as the gateway's own
    acompletion = "acompletion"


async def test_a_call_type_may_be_a_member_of_an_enumeration(new_hook) -> None:
    data = from_gateway(chat.body(chat.user("hi")), "chat", "s", "call")
    assert NOTE in str((await asked(new_hook(), data, Call.acompletion))["messages"][0])


# --- calls and bodies that are not ours ---------------------------------------------------------------------

OTHER_CALLS = [
    "text_completion", "atext_completion", "embeddings", "aembedding", "image_generation", "moderation", "rerank",
    "audio_transcription", "mcp_call", "call_mcp_tool", "acompact_responses", "_aresponses_websocket",
    "agenerate_content", "next year's", "", None, 7, ["acompletion"], object(),
]  # fmt: skip


@pytest.mark.parametrize(
    "call_type",
    OTHER_CALLS,
    ids=lambda given: type(given).__name__ + str(given)[:24] if isinstance(given, str) else type(given).__name__,
)
async def test_other_calls_come_back_as_the_very_object(new_hook, state_dir, call_type: Any) -> None:
    hook = new_hook()
    for made in (chat.body(chat.user("hi")), responses.body(responses.user("hi")), body(user("hi"))):
        before = copy.deepcopy(made)
        assert await asked(hook, made, call_type) is made
        assert made == before
    assert hook.notices.failures == 0
    assert not state_dir.exists()


OTHER_BODIES: list[Any] = [
    None, [], "text", 7, b"\xff", object(),
    {}, {"model": "m"}, {"messages": None}, {"messages": "hi"}, {"messages": []}, {"messages": {}}, {"messages": 3},
    {"input": None}, {"input": ""}, {"input": []}, {"input": 5}, {"input": {}}, {"input": [1, 2, 3]},
    {"input": [[1, 2], [3]]}, {"input": ["a", "b"]}, {"prompt": "hi"}, {"contents": [{"parts": []}]},
    {"input": "more", "previous_response_id": "resp_1"}, {"messages": [None]}, {"messages": ["hi", 3]},
]  # fmt: skip


@pytest.mark.parametrize("call_type", ["anthropic_messages", "acompletion", "aresponses", "pass_through_endpoint"])
async def test_bodies_without_a_conversation_come_back_as_the_very_object(new_hook, call_type: str) -> None:
    hook = new_hook()
    for made in OTHER_BODIES:
        if isinstance(made, dict) and call_type == "anthropic_messages":
            made = {**made, "max_tokens": 5} if "messages" not in made else made
        assert await asked(hook, made, call_type) is made, made
    assert hook.notices.failures == 0


# --- bodies of any shape ------------------------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=9)
keys = st.sampled_from(
    ["role", "content", "type", "text", "id", "name", "input", "tool_use_id", "tool_calls", "function", "arguments",
     "tool_call_id", "call_id", "output", "thinking", "signature", "source", "summary", "encrypted_content"]
)  # fmt: skip
words = st.sampled_from(
    ["user", "assistant", "system", "tool", "developer", "text", "tool_use", "tool_result", "thinking", "image",
     "message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "compaction", "call_1",
     "input_text", "output_text", "tool_reference", "server_tool_use", "/smart-compact", ""]
)  # fmt: skip
values = st.recursive(
    scalars | words, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)
odd_messages = st.lists(st.dictionaries(keys, values | words, max_size=5), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def odd_hook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContextHook]:
    """One for all examples: each is a session of its own."""
    folder = tmp_path_factory.mktemp("odd")
    base = config.load(TIGHT, {"OPENMEM_STATE_DIR": str(folder), "HOME": str(folder)})
    hook = ContextHook(base, Compactor(folder / "context"), Notices())
    yield hook
    hook.compactor.close()


def odd_body(fmt: Format, messages: list[Any]) -> Json:
    fields = {"anthropic": {"max_tokens": 5}, "chat": {}, "responses": {}}[fmt]
    tools = [None, 3, {}, {"function": "f"}, {"name": ["n"]}]
    return {"model": "m", "tools": tools, **fields, "input" if fmt == "responses" else "messages": messages}


@formats
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(messages=odd_messages)
def test_no_shape_of_messages_makes_the_hook_fail(fmt: Format, messages: list[Any], odd_hook: ContextHook) -> None:
    """Sent twice, the same bytes for the same history."""
    made, hook = odd_body(fmt, messages), odd_hook
    before, place = repr(made), hashlib.sha256(repr(made).encode("utf-8", "replace")).hexdigest()

    async def run() -> list[str]:
        outs = [await asked(hook, from_gateway(made, fmt, place, place), CALL_TYPES[fmt]) for _ in range(2)]
        await answered(hook, place, {"prompt_tokens": 5})
        return [repr(sent(out, made)) for out in outs]

    one, two = asyncio.run(run())
    assert hook.notices.failures == 0, hook.notices.take_events()
    assert one == two
    assert repr(made) == before


def nested(depth: int) -> Any:
    made: Any = "bottom"
    for n in range(depth):
        made = {"a": made} if n % 2 else [made]
    return made


HUGE = 123_456_789_012_345_678_901_234_567_890
CONTENTS: dict[str, Any] = {
    "lone surrogate": "a \ud800 b",
    "nul and control characters": "\0\x01\x1b[31m",
    "binary read as text": bytes(range(256)).decode("latin-1"),
    "not a number": math.nan,
    "infinity": -math.inf,
    "huge whole number": HUGE,
    "whole numbers as keys": {1: "a", 2: "b"},
    "bytes": b"\xff\x00",
    "tuple": ("a", "b"),
    "set": {"a"},
    "an object": SimpleNamespace(text="a"),
    "nested 300 deep": nested(300),
}


@pytest.mark.parametrize("name", CONTENTS)
@formats
async def test_any_value_goes_through_the_same_each_time(new_hook, fmt: Format, name: str) -> None:
    """As a call's argument and as a message's content; stored once, though no JSON parser may know the value."""
    value, hook = CONTENTS[name], new_hook(**TIGHT)
    for held in (arguments_of(fmt, value), content_of(fmt, value)):
        outs = [
            await asked(hook, from_gateway(held, fmt, repr(held)[:50], f"call {n}"), CALL_TYPES[fmt]) for n in range(3)
        ]
        assert messages_of(outs[0])[-1] is messages_of(held)[-1]
        assert repr(outs[0].get("messages")) == repr(outs[1].get("messages")) == repr(outs[2].get("messages"))
    assert hook.notices.failures == 0, hook.notices.take_events()


def arguments_of(fmt: Format, value: Any) -> Json:
    if fmt == "anthropic":
        return body(user("go"), assistant(tool_use("c1", value=value)), results(tool_result("c1")))
    if fmt == "chat":
        call = chat.call("c1")
        call["function"]["arguments"] = value
        return chat.body(chat.user("go"), chat.assistant("", call), chat.result("c1"))
    call = {"type": "function_call", "call_id": "c1", "name": "view", "arguments": value}
    return responses.body(responses.user("go"), call, responses.output("c1"))


def content_of(fmt: Format, value: Any) -> Json:
    made = arguments_of(fmt, "x")
    messages_of(made).append({"role": "user", "content": value} | ({"type": "message"} if fmt == "responses" else {}))
    return made


@pytest.mark.parametrize("depth", [600, 20_000])
@formats
async def test_values_too_deep_for_any_parser_are_let_through(new_hook, fmt: Format, depth: int) -> None:
    hook = new_hook(**TIGHT)
    held = arguments_of(fmt, nested(depth))
    out = await asked(hook, from_gateway(held, fmt, "s", "call"), CALL_TYPES[fmt])
    assert messages_of(out)[-2] is messages_of(held)[-2]


@formats
async def test_a_value_that_holds_itself_is_let_through(new_hook, fmt: Format) -> None:
    ring: list[Any] = []
    ring.append(ring)
    hook, held = new_hook(**TIGHT), arguments_of(fmt, ring)
    out = await asked(hook, from_gateway(held, fmt, "s", "call"), CALL_TYPES[fmt])
    assert messages_of(out)[-2] is messages_of(held)[-2]


async def test_a_huge_number_in_a_head_is_sent_as_it_came(new_hook, state_dir) -> None:
    """The head is frozen JSON: what is parsed from it is what the client sent, digit by digit."""
    hook, odd = new_hook(**TIGHT), {"type": "text", "text": "The task.", "number": HUGE, "part": 0.1}
    for n, request in enumerate(Client(hook, "anthropic").requests[: FIRST_TRIM + 3]):
        request["messages"][0]["content"] = [odd]
        out = await asked(hook, from_gateway(request, "anthropic", "s", f"call {n}"), "anthropic_messages")
    assert len(messages_of(out)) < len(messages_of(request))
    assert [block for block in messages_of(out)[0]["content"] if block["text"] == "The task."] == [odd]
    assert hook.notices.failures == 0


# --- responses ----------------------------------------------------------------------------------------------

USAGES: dict[str, tuple[Any, int | None]] = {
    "chat": ({"prompt_tokens": 50, "completion_tokens": 5}, 50),
    "Anthropic": ({"input_tokens": 5, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 5}, 50),
    "an object": (SimpleNamespace(prompt_tokens=50, completion_tokens=None), 50),
    "a whole float": ({"prompt_tokens": 50.0}, 50),
    "none": (None, None),
    "empty": ({}, None),
    "a list": ([50], None),
    "text": ("50", None),
    "a number": (50, None),
    "text inside": ({"prompt_tokens": "50"}, None),
    "true": ({"prompt_tokens": True}, None),
    "negative": ({"prompt_tokens": -1}, None),
    "zero": ({"prompt_tokens": 0}, None),
    "not a number": ({"prompt_tokens": math.nan}, None),
    "infinite": ({"prompt_tokens": math.inf}, None),
    "beyond all bounds": ({"prompt_tokens": 10**30}, None),
    "details of another kind": ({"prompt_tokens": 50, "prompt_tokens_details": 3, "cache_creation": [1]}, 50),
}


@pytest.mark.parametrize("name", USAGES)
@formats
async def test_every_shape_of_usage_makes_one_record(new_hook, state_dir, fmt: Format, name: str) -> None:
    usage, prompt = USAGES[name]
    client, store = Client(new_hook(**TIGHT), fmt), Store(state_dir)
    await client.go_on(2)
    await answered(client.hook, "session-1-1", usage)
    found = usages(store)
    assert [one["prompt_tokens"] for one in found] == [prompt]
    assert found[0]["estimate"] > 0
    await client.go_on(2)


async def test_events_in_any_number_and_order_make_one_record(new_hook, state_dir) -> None:
    client, store = Client(new_hook(**TIGHT), "chat"), Store(state_dir)
    for n in range(3):
        await client.go_on()
        kwargs = {"litellm_call_id": f"session-1-{n}", "call_type": "acompletion"}
        hook, response = client.hook, {"usage": {"prompt_tokens": 1000 + n}}
        order = [
            hook.async_log_failure_event,
            hook.async_log_success_event,
            hook.async_log_success_event,
            hook.async_log_failure_event,
        ]
        for event in order[n:] + order[:n]:
            await event(kwargs, response, None, None)
    await asyncio.gather(*(answered(client.hook, "session-1-2", {"prompt_tokens": 9}) for _ in range(5)))
    assert [one["prompt_tokens"] for one in usages(store)] == [1000, 1001, 1002]
    assert client.hook.notices.failures == 0


async def test_events_without_a_request_of_ours_record_nothing(new_hook, state_dir, caplog) -> None:
    hook = new_hook()
    for call_id in (None, "", "never asked", "never asked"):
        await answered(hook, call_id, {"prompt_tokens": 5})
    for kwargs in (None, [], "text", {"litellm_call_id": 7}, {"litellm_params": None}, {"litellm_call_id": ["x"]}):
        await hook.async_log_success_event(kwargs, None, None, None)
    assert not state_dir.exists()
    told = [record.message for record in caplog.records if "without its pre-call hook" in record.message]
    assert told == ["openmem: the gateway ran a acompletion call without its pre-call hook"]
    assert len(caplog.records) == 1


async def test_a_request_that_failed_open_has_a_record_too_without_an_estimate(
    new_hook, state_dir, monkeypatch
) -> None:
    client, store = Client(new_hook(**TIGHT), "chat"), Store(state_dir)
    await client.go_on(2)
    with monkeypatch.context() as patch:
        patch.setattr(compactor, "decide", lambda *_: 1 / 0)
        await client.go_on()
    await client.report(777)
    found = usages(store)
    assert [(one["prompt_tokens"], one["estimate"], one["cut"]) for one in found] == [(777, None, "")]


async def test_a_client_that_uses_one_call_id_again_has_a_record_a_request(new_hook, state_dir) -> None:
    client, store = Client(new_hook(**TIGHT), "chat"), Store(state_dir)
    for n in range(3):
        data = from_gateway(client.requests[n], "chat", "session-1", "always the same")
        await asked(client.hook, data)
        await answered(client.hook, "always the same", {"prompt_tokens": 100 + n})
    assert [one["prompt_tokens"] for one in usages(store)] == [100, 101, 102]


async def test_a_response_that_could_not_be_recorded_is_told_and_harms_nothing(new_hook, state_dir, caplog) -> None:
    client, store = Client(new_hook(**TIGHT), "chat"), Store(state_dir)
    await client.go_on(2)
    await client.rest()
    with a_file_in_the_place_of(store.context):
        await client.report(800)
    assert client.hook.notices.failures == 0, "no request failed"
    assert [r.message for r in caplog.records if "a response" in r.message] == [
        "openmem: a response was not recorded (NotADirectoryError: Not a directory)"
    ]
    await client.go_on()
    await client.report(900)
    assert [one["prompt_tokens"] for one in usages(store)] == [800, 900], "it is recorded with the next one"


# --- events and the log -------------------------------------------------------------------------------------


async def test_failures_are_events_once_a_request_as_soon_as_the_store_takes_them(new_hook, state_dir) -> None:
    client, store = Client(new_hook(**TIGHT), "chat"), Store(state_dir)
    await client.go_on(2)
    await client.rest()
    with a_file_in_the_place_of(store.context):
        await client.go_on(3)
        await client.report()
        await client.report()
    client.hook.compactor.store.pool._resting_until.clear()
    await client.go_on()
    await client.report()
    assert catalog_events(store) == [{"error": "NotADirectoryError: Not a directory"}] * 3


async def test_a_failure_is_the_event_of_the_tenant_it_happened_to(new_hook, state_dir, monkeypatch) -> None:
    """Also when requests of several tenants are under way at once."""
    hook, store = new_hook(**TIGHT), Store(state_dir)
    clients = [Client(hook, "chat", key=make_key(f"user-{n}")) for n in range(4)]
    with monkeypatch.context() as patch:
        patch.setattr(compactor, "decide", lambda *_: 1 / 0)
        await asyncio.gather(*(client.go_on(n + 1) for n, client in enumerate(clients)))
    await answered(hook, "any")
    for n in range(4):
        assert len(catalog_events(store, tenant=f"user:user-{n}")) == n + 1


@pytest.fixture
def quiet_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO):
        yield caplog


async def test_one_line_a_minute_says_what_is_wrong(new_hook, quiet_log, monkeypatch) -> None:
    now = [100.0]
    hook = new_hook(**TIGHT)
    hook.notices = Notices(lambda: now[0])
    client = Client(hook, "chat")
    monkeypatch.setattr(compactor, "decide", lambda *_: 1 / 0)
    await client.go_on(3)
    now[0] += EVERY_S
    await client.go_on(2)
    told = [record.message for record in quiet_log.records if record.name == "openmem"]
    line = "openmem: a request passed without new changes of ours (ZeroDivisionError)"
    assert [one for one in told if one.startswith(line)] == [line, f"{line}; 2 more like it were not logged"]


ERRORS = [
    ValueError(SECRET), KeyError(SECRET), RuntimeError(f"line\n{SECRET}"), UnicodeEncodeError("x", SECRET, 0, 1, "x"),
    sqlite3.OperationalError(f"Could not decode to UTF-8 column 'text' with text '{SECRET}'"),
    sqlite3.InterfaceError(SECRET), OSError(2, "No such file", f"/{SECRET}"), AssertionError(SECRET),
    RecursionError(SECRET), MemoryError(SECRET),
]  # fmt: skip


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("seam", [(compactor, "decide"), (store_module, "decode")], ids=lambda seam: seam[1])
async def test_no_word_of_a_message_no_key_and_no_id_is_logged_or_kept_in_an_event(
    new_hook, state_dir, quiet_log, monkeypatch, error: Exception, seam: tuple[Any, str]
) -> None:
    def fail(*given: Any, **named: Any) -> Any:
        raise error

    hook, store = new_hook(**TIGHT), Store(state_dir)
    key = make_key(f"user {SECRET}", token=f"sk-{SECRET}")
    held = chat.body(chat.user(SECRET), chat.assistant("", chat.call(SECRET)), chat.result(SECRET, SECRET))
    await asked(hook, from_gateway(held, "chat", SECRET, f"{SECRET} 1"), key=key)
    with monkeypatch.context() as patch:
        patch.setattr(*seam, fail)
        await asked(hook, from_gateway(held, "chat", SECRET, f"{SECRET} 2"), key=key)
        patch.setattr(session_module, "add_events", fail)
        await answered(hook, f"{SECRET} 2", {"prompt_tokens": 5})
    await answered(hook, f"{SECRET} 1", {"prompt_tokens": 5})
    assert hook.notices.failures == 1
    assert quiet_log.records
    assert SECRET not in quiet_log.text
    assert SECRET not in str(catalog_events(store, tenant=f"user:user {SECRET}"))
    assert not [path for path in state_dir.rglob("*") if SECRET in str(path)]


async def test_nothing_is_logged_while_nothing_is_wrong(new_hook, quiet_log) -> None:
    client = Client(new_hook(**TIGHT), "anthropic")
    await client.until_trimmed()
    await client.report()
    assert [record for record in quiet_log.records if record.name.startswith("openmem")] == []


@pytest.mark.parametrize("strike", ["no room on the disk", "a session of a newer version"])
async def test_the_line_names_the_cause(new_hook, state_dir, quiet_log, strike: str) -> None:
    client, store = Client(new_hook(**TIGHT), "anthropic"), Store(state_dir)
    await client.until_trimmed()
    with STRIKES[strike](store):
        await client.go_on(2)
    told = [r.message for r in quiet_log.records if r.message.startswith("openmem: a request passed without new")]
    assert len(told) == 1
    assert any(cause in told[0] for cause in ("disk", "full", "I/O", "schema 99"))


# --- what the gateway gets ----------------------------------------------------------------------------------


@formats
async def test_savings_go_into_the_gateways_own_metadata_and_never_into_the_clients(new_hook, fmt: Format) -> None:
    client = Client(new_hook(**TIGHT), fmt)
    await client.until_trimmed()
    theirs = {"user_id": "client"}
    for ours in ("metadata", "litellm_metadata"):
        held = client.requests[client.at]
        fields = {"metadata": theirs, ours: {"user_api_key": "hash", "tags": ["t"]}}
        data = {**from_gateway(held, fmt, "session-1", ours), **fields}
        before = copy.deepcopy(data)
        out = await asked(client.hook, data, CALL_TYPES[fmt])
        told = out[ours].pop("compression_savings")
        assert told["tokens_saved"] == told["tokens_before"] - told["tokens_after"] > 0
        assert out[ours] == fields[ours]
        assert out["metadata"] == fields["metadata"]
        assert data == before, "the gateway's own objects are not changed"
        assert set(out) == set(data) | ({"instructions"} if fmt == "responses" else set())
        assert canonical(sent(out, held))
