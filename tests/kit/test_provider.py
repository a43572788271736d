"""The fake provider over HTTP: strict, counted, cached, scripted, and streaming as the real ones do."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openmem_hook.replay.provider.counting import prompt_tokens
from tests.kit.builders import (
    Format,
    assistant,
    body,
    chat,
    responses,
    results,
    session,
    tool,
    tool_result,
    tool_use,
    user,
)
from tests.kit.provider import PATHS, app, running
from tests.kit.provider_state import Provider
from tests.kit.script import plan_of
from tests.kit.sse import fold_anthropic, fold_chat, fold_responses

FOLD = {"anthropic": fold_anthropic, "chat": fold_chat, "responses": fold_responses}
MADE: dict[Format, Any] = {"anthropic": lambda words, **f: body(user(words), **f),
                           "chat": lambda words, **f: chat.body(chat.user(words), **f),
                           "responses": lambda words, **f: responses.body(responses.user(words), **f)}  # fmt: skip
EVERY = pytest.mark.parametrize("fmt", PATHS)


@pytest.fixture
def provider() -> Provider:
    return Provider(salt="kit")


@pytest.fixture
async def http(provider: Provider) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app(provider, clock=lambda: 0.0))
    async with httpx.AsyncClient(transport=transport, base_url="http://kit") as client:
        yield client


async def post(http: httpx.AsyncClient, fmt: Format, sent: Any) -> httpx.Response:
    return await http.post("/v1" + PATHS[fmt], json=sent)


async def log(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    return list((await http.get("/__log")).json()["requests"])


def data_of(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def stable(answer: Any) -> Any:
    """An answer without its ids and times."""
    if isinstance(answer, dict):
        volatile = {"id", "call_id", "created", "created_at", "signature", "encrypted_content", "item_id"}
        return {key: stable(inner) for key, inner in answer.items() if key not in volatile}
    return [stable(inner) for inner in answer] if isinstance(answer, list) else answer


@EVERY
async def test_a_stream_adds_up_to_the_plain_answer(http: httpx.AsyncClient, fmt: Format) -> None:
    more = {"thinking": {"type": "adaptive"}} if fmt == "anthropic" else {}
    said = MADE[fmt]("go [[calls:1 parallel:2 lead:1 size:700 text:900]]", **more)
    plain = (await post(http, fmt, said)).json()
    usage = {"stream_options": {"include_usage": True}} if fmt == "chat" else {}
    streamed = await post(http, fmt, {**said, "stream": True, **usage})
    folded = FOLD[fmt](data_of(streamed))
    assert streamed.headers["content-type"].startswith("text/event-stream")
    if fmt == "chat":
        assert (
            folded["choices"][0]["message"]["tool_calls"][1]["function"]
            == plain["choices"][0]["message"]["tool_calls"][1]["function"]
        )
        assert folded["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
        assert streamed.text.endswith("data: [DONE]\n\n")
    else:
        key = "content" if fmt == "anthropic" else "output"
        assert stable(folded[key])[1:] == stable(plain[key])[1:]


async def test_the_events_of_a_message_come_in_the_documented_order(http: httpx.AsyncClient) -> None:
    said = body(user("go [[calls:1 lead:1]]"), thinking={"type": "enabled", "budget_tokens": 1024}, stream=True)
    events = data_of(await post(http, "anthropic", said))
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert [e["content_block"]["type"] for e in events if e["type"] == "content_block_start"] == [
        "thinking",
        "text",
        "tool_use",
    ]
    assert [e["delta"]["type"] for e in events if e["type"] == "content_block_delta"][1] == "signature_delta"


async def test_the_events_of_a_response_are_numbered_and_framed(http: httpx.AsyncClient) -> None:
    events = data_of(
        await post(http, "responses", responses.body(responses.user("go [[calls:1 lead:1]]"), stream=True))
    )
    kinds = [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 3


@EVERY
async def test_a_bad_body_is_refused_in_the_providers_style(http: httpx.AsyncClient, fmt: Format) -> None:
    bad = {"anthropic": body(user("go"), assistant(tool_use("toolu_1"))),
           "chat": chat.body(chat.user("go"), chat.result("call_1")),
           "responses": responses.body(responses.user("go"), responses.call("call_1"))}[fmt]  # fmt: skip
    answer = await post(http, fmt, bad)
    noted = (await log(http))[0]
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert noted["accepted"] is False
    assert answer.json()["error"]["message"] == noted["errors"][0]


async def test_a_prompt_over_the_limit_names_both_numbers(http: httpx.AsyncClient, provider: Provider) -> None:
    large = session("anthropic", exchanges=4, size=4000)
    tokens = prompt_tokens(large, "anthropic")
    provider.limits["claude-kit"] = tokens - 1
    answer = await post(http, "anthropic", large)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == f"prompt is too long: {tokens} tokens > {tokens - 1} maximum"
    await http.post("/__script", json={"limits": {"claude-kit": tokens}})
    assert (await post(http, "anthropic", large)).status_code == 200


@pytest.mark.parametrize(
    ("fmt", "words"), [("chat", "maximum context length is 10"), ("responses", "exceeds the context window")]
)
async def test_the_others_say_it_in_their_words(
    http: httpx.AsyncClient, provider: Provider, fmt: Format, words: str
) -> None:
    provider.prompt_limit = 10
    error = (await post(http, fmt, MADE[fmt]("go"))).json()["error"]
    assert words in error["message"]
    assert error["code"] == "context_length_exceeded"


async def test_a_body_over_the_byte_limit_is_413(http: httpx.AsyncClient, provider: Provider) -> None:
    provider.byte_limit = 100
    answer = await post(http, "anthropic", body(user("go" * 100)))
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "request_too_large")


@EVERY
async def test_usage_adds_up_and_the_second_request_reads_the_cache(http: httpx.AsyncClient, fmt: Format) -> None:
    said = session(fmt, exchanges=3, size=4000)
    if fmt == "anthropic":
        said["messages"][-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    answers = [(await post(http, fmt, said)).json()["usage"] for _ in range(2)]
    noted = await log(http)
    total = prompt_tokens(said, fmt)
    assert [entry["prompt_tokens"] for entry in noted] == [total, total]
    if fmt == "anthropic":
        assert answers[0]["cache_creation_input_tokens"] == answers[1]["cache_read_input_tokens"] == total
        assert answers[1]["input_tokens"] == 0
    else:
        name = "prompt_tokens" if fmt == "chat" else "input_tokens"
        assert answers[1][name] == total
        assert total - 128 <= answers[1][f"{name}_details"]["cached_tokens"] <= total
    assert noted[1]["cache"]["read"] > noted[0]["cache"]["read"] == 0


async def test_the_log_tells_prefixes_apart_by_their_blocks(http: httpx.AsyncClient) -> None:
    for said in (body(user("go")), body(user("go"), assistant("so"), user("on")), body(user("no"))):
        await http.post("/v1/messages", json=said, headers={"x-claude-code-session-id": "s1"})
    one, two, three = await log(http)
    assert two["blocks"][:1] == one["blocks"] != three["blocks"]
    assert one["headers"]["x-claude-code-session-id"] == "s1"
    assert "authorization" not in one["headers"]


async def test_the_last_bodies_can_be_fetched(http: httpx.AsyncClient) -> None:
    sent = [body(user(words)) for words in ("one", "two", "three")]
    for said in sent:
        await post(http, "anthropic", said)
    assert (await http.get("/__bodies?last=2")).json()["bodies"] == sent[1:]


async def test_failures_come_in_the_order_they_were_given(http: httpx.AsyncClient) -> None:
    orders = [{"status": 429, "message": "slow down", "headers": {"retry-after": "1"}}, {"status": 529}]
    await http.post("/__script", json={"fail_next": orders})
    answers = [await post(http, "anthropic", body(user("go"))) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [429, 529, 200]
    assert answers[0].headers["retry-after"] == "1"
    assert [answer.json().get("error", {}).get("type") for answer in answers[:2]] == [
        "rate_limit_error",
        "overloaded_error",
    ]


async def test_a_failure_can_be_meant_for_one_route(http: httpx.AsyncClient) -> None:
    await http.post("/__script", json={"fail_next": [{"status": 500, "route": "chat"}]})
    assert (await post(http, "anthropic", body(user("go")))).status_code == 200
    assert (await post(http, "chat", chat.body(chat.user("go")))).status_code == 500


@EVERY
async def test_a_stream_breaks_with_an_error_event_when_told(http: httpx.AsyncClient, fmt: Format) -> None:
    await http.post("/__script", json={"abort_mid_stream": 1})
    broken = await post(http, fmt, MADE[fmt]("go", stream=True))
    with pytest.raises(Exception, match="Overloaded"):
        FOLD[fmt](data_of(broken))
    FOLD[fmt](data_of(await post(http, fmt, MADE[fmt]("go", stream=True))))


async def test_answers_can_be_given_word_for_word(http: httpx.AsyncClient) -> None:
    await http.post(
        "/__script", json={"answers": [{"text": "hm", "calls": [{"name": "Read", "arguments": {"path": "a"}}]}]}
    )
    content = (await post(http, "anthropic", body(user("go")))).json()["content"]
    assert content[0] == {"type": "text", "text": "hm"}
    assert content[1]["input"] == {"path": "a"}


async def test_reset_forgets_log_and_cache_but_not_signatures(http: httpx.AsyncClient, provider: Provider) -> None:
    said = body(user("go"), thinking={"type": "enabled", "budget_tokens": 1024})
    thought = (await post(http, "anthropic", said)).json()["content"][0]
    await http.post("/__reset")
    assert await log(http) == []
    altered = body(
        user("go"), assistant({**thought, "thinking": "changed"}, {"type": "text", "text": "so"}), user("on")
    )
    assert "cannot be modified" in (await post(http, "anthropic", altered)).json()["error"]["message"]


async def test_a_stored_response_can_be_continued(http: httpx.AsyncClient) -> None:
    first = (await post(http, "responses", responses.body(responses.user("go [[calls:1]]"), store=True))).json()
    call = next(item for item in first["output"] if item["type"] == "function_call")
    more = responses.body(responses.output(call["call_id"]), previous_response_id=first["id"])
    second = await post(http, "responses", more)
    assert second.status_code == 200
    assert (await log(http))[1]["prompt_tokens"] > prompt_tokens(more, "responses")
    lost = await post(http, "responses", {**more, "previous_response_id": "resp_lost"})
    assert lost.json()["error"]["message"] == "Previous response with id 'resp_lost' not found."
    orphan = await post(http, "responses", {**more, "input": [responses.output("call_other")]})
    assert "No tool call found" in orphan.json()["error"]["message"]


async def test_tokens_can_be_counted_without_an_answer(http: httpx.AsyncClient) -> None:
    counted = await http.post("/v1/messages/count_tokens", json=body(user("go")))
    assert counted.json() == {"input_tokens": prompt_tokens(body(user("go")), "anthropic")}
    assert await log(http) == []


async def test_step_and_arguments_follow_the_marker(http: httpx.AsyncClient) -> None:
    said = [user("go [[calls:2 parallel:2 size:777 tool:Bash]]")]
    for step in range(3):
        content = (await post(http, "anthropic", body(*said))).json()["content"]
        calls = [block for block in content if block["type"] == "tool_use"]
        assert len(calls) == (2 if step < 2 else 0)
        assert all(call["name"] == "Bash" and call["input"]["size"] == 777 for call in calls)
        said += [assistant(*content), results(*(tool_result(call["id"]) for call in calls))]


async def test_a_turn_goes_on_where_it_was_when_its_oldest_exchanges_are_gone(http: httpx.AsyncClient) -> None:
    said = [user("go [[calls:9]]")]
    for _ in range(5):
        content = (await post(http, "anthropic", body(*said))).json()["content"]
        said += [assistant(*content), results(tool_result(content[-1]["id"]))]
    content = (await post(http, "anthropic", body(said[0], *said[-2:]))).json()["content"]
    assert "_s5p0_" in content[-1]["id"]


async def test_without_tools_the_model_only_talks(http: httpx.AsyncClient) -> None:
    answer = (await post(http, "anthropic", body(user("go [[calls:3]]"), tools=[]))).json()
    assert [block["type"] for block in answer["content"]] == ["text"]


async def test_a_use_marker_calls_that_tool_and_quotes_its_result(http: httpx.AsyncClient) -> None:
    search = tool("mcp__openmem__smart_compact_search")
    said = [user('find it [[use:smart_compact_search {"query": "alpha"}]]')]
    first = (await post(http, "anthropic", body(*said, tools=[search]))).json()["content"][-1]
    assert (first["name"], first["input"]) == (search["name"], {"query": "alpha"})
    said += [assistant(first), results(tool_result(first["id"], "alpha is 42"))]
    last = (await post(http, "anthropic", body(*said, tools=[search]))).json()["content"][-1]
    assert "alpha is 42" in last["text"]


async def test_the_model_looks_for_a_tool_and_calls_it_where_it_was_found(http: httpx.AsyncClient) -> None:
    """As long as the request shows what the search found; the search itself is an item of its own kind."""
    find = {"type": "tool_search", "execution": "client", "parameters": {"type": "object", "properties": {}}}
    said = [responses.user('go [[use:tool_search {"query": "search"}]][[use:smart_search {"query": "alpha"}]]')]
    first = (await post(http, "responses", responses.body(*said, tools=[find]))).json()["output"]
    search = first[-1]
    assert (search["type"], search["arguments"]) == ("tool_search_call", {"query": "search"})
    found = {
        "type": "namespace",
        "name": "mcp__kit",
        "tools": [responses.tool("smart_search") | {"defer_loading": True}],
    }
    said += [
        *first,
        {"type": "tool_search_output", "call_id": search["call_id"], "execution": "client", "tools": [found]},
    ]
    call = (await post(http, "responses", responses.body(*said, tools=[find]))).json()["output"][-1]
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "mcp__kit", "smart_search")


def test_markers_count_only_in_the_last_line() -> None:
    assert plan_of("old [[calls:9]]\nnew words") is None
    assert plan_of("old [[calls:9]]\nnew [[calls:2]]\n").calls == 2  # type: ignore[union-attr]
    assert plan_of('"quoted [[use:x {\\"a\\": 1}]]"').uses == (("x", {"a": 1}),)  # type: ignore[union-attr]


async def test_the_model_says_the_same_to_the_same_question() -> None:
    answers = []
    for _ in range(2):
        transport = httpx.ASGITransport(app(Provider(seed=7, salt="same"), clock=lambda: 0.0))
        async with httpx.AsyncClient(transport=transport, base_url="http://kit") as http:
            answers.append((await post(http, "anthropic", body(user("go")))).json())
    assert answers[0] == answers[1]


def test_it_runs_on_a_real_port_and_cuts_a_stream() -> None:
    with running(Provider(salt="kit")) as address:
        httpx.post(f"{address}/__script", json={"abort_mid_stream": ["cut"]})
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{address}/v1/messages", json=body(user("go [[text:4000]]"), stream=True))
        assert httpx.get(f"{address}/__log").json()["requests"][0]["aborted"] == "cut"


def test_it_starts_as_a_process_and_records(tmp_path: Path) -> None:
    record, root = tmp_path / "log.jsonl", Path(__file__).parents[2]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    options = ["--port", port, "--record", str(record), "--prompt-limit", "50"]
    command = [sys.executable, "-m", "tests.kit.provider", *options]
    process = subprocess.Popen(command, cwd=root)
    try:
        with httpx.Client(transport=httpx.HTTPTransport(retries=8), base_url=f"http://127.0.0.1:{port}") as http:
            answer = http.post("/v1/messages", json=body(user("go")))
    finally:
        process.terminate()
        process.wait()
    assert "prompt is too long" in answer.json()["error"]["message"]
    assert [json.loads(line)["status"] for line in record.read_text().splitlines()] == [400]
