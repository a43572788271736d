"""Each rule of the Responses API: a body it refuses, in the provider's words, and the least change it accepts."""

from __future__ import annotations

from typing import Any

import pytest

from openmem_hook.replay.provider.rules_responses import BODY_LIMIT, FAMILIES, TOO_LARGE, check
from openmem_hook.replay.provider.signatures import CIPHER_MARK, SignatureRegistry
from tests.kit.builders import picture
from tests.kit.builders import responses as r

USER, CALL, OUTPUT, THOUGHT = r.user("go"), r.call("call_1"), r.output("call_1"), r.reasoning("rs_1")
REQUIRED = "Item 'rs_1' of type 'reasoning' was provided without its required following item."


def family(kind: str, call: str = "call_1") -> tuple[dict[str, Any], dict[str, Any]]:
    """A call and an output of one family, as small as they may be."""
    output = "tool_search_output" if kind == "tool_search_call" else f"{kind}_output"
    return (
        {"type": kind, "call_id": call, "name": "x", "arguments": "{}", "input": "x"},
        {"type": output, "call_id": call, "output": "ok"},
    )


PAIRS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "a call without an output": (
        r.body(USER, CALL),
        "No tool output found for function call call_1.",
        r.body(USER, CALL, OUTPUT),
    ),
    "an output without its call": (
        r.body(USER, OUTPUT),
        "No tool call found for function call output with call_id call_1.",
        r.body(USER, CALL, OUTPUT),
    ),
    "an output before its call": (
        r.body(USER, OUTPUT, CALL, r.output("call_1")),
        "No tool call found",
        r.body(USER, CALL, OUTPUT),
    ),
    "an output of another family": (
        r.body(USER, CALL, OUTPUT, r.custom_call("call_2"), r.output("call_2"), r.custom_output("call_2")),
        "No tool call found for function call output with call_id call_2.",
        r.body(USER, CALL, OUTPUT, r.custom_call("call_2"), r.custom_output("call_2")),
    ),
    "two outputs for one call": (
        r.body(USER, CALL, OUTPUT, OUTPUT),
        "Multiple tool outputs found for function call call_1.",
        r.body(USER, CALL, OUTPUT),
    ),
    "a call id used twice": (
        r.body(USER, CALL, OUTPUT, CALL, OUTPUT),
        "Duplicate call_id found in input: call_1.",
        r.body(USER, CALL, OUTPUT, r.call("call_2"), r.output("call_2")),
    ),
    "a call without an id": (
        r.body(USER, {"type": "function_call", "name": "x", "arguments": "{}"}),
        "Missing required parameter: 'input[1].call_id'.",
        r.body(USER, CALL, OUTPUT),
    ),
    "an item id used twice": (
        r.body(USER, r.assistant("a", "msg_1"), r.assistant("b", "msg_1")),
        "Duplicate item found with id msg_1.",
        r.body(USER, r.assistant("a", "msg_1"), r.assistant("b", "msg_2")),
    ),
    "reasoning at the end": (r.body(USER, THOUGHT), REQUIRED, r.body(USER, THOUGHT, r.assistant("so"))),
    "reasoning before a user message": (
        r.body(USER, THOUGHT, r.user("on")),
        REQUIRED,
        r.body(USER, THOUGHT, r.assistant("so"), r.user("on")),
    ),
    "reasoning before an output": (
        r.body(USER, CALL, THOUGHT, OUTPUT),
        REQUIRED,
        r.body(USER, THOUGHT, CALL, OUTPUT),
    ),
    "a run of reasoning with nothing after it": (
        r.body(USER, THOUGHT, r.reasoning("rs_2"), USER),
        REQUIRED,
        r.body(USER, THOUGHT, r.reasoning("rs_2"), CALL, OUTPUT),
    ),
    "an empty message": (r.body(USER, r.user()), "'input[1].content': content must not be empty.", r.body(USER)),
    "an empty text part": (r.body(r.user("")), "text must be a non-empty string", r.body(USER)),
    "an unknown role": (
        r.body(USER, {"role": "critic", "content": "x"}),
        "Invalid value: 'critic'",
        r.body(USER, r.developer("x")),
    ),
    "input text from an assistant": (
        r.body(USER, {"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}),
        "Supported values are: 'output_text', 'refusal'.",
        r.body(USER, r.assistant("x")),
    ),
    "output text from a user": (
        r.body({"role": "user", "content": [{"type": "output_text", "text": "x"}]}),
        "Invalid value: 'output_text'",
        r.body(USER),
    ),
    "arguments that are an object": (
        r.body(USER, {**CALL, "arguments": {}}, OUTPUT),
        "'input[1].arguments': expected a string, but got an object",
        r.body(USER, CALL, OUTPUT),
    ),
    "an output without content": (
        r.body(USER, CALL, {"type": "function_call_output", "call_id": "call_1"}),
        "Missing required parameter: 'input[2].output'.",
        r.body(USER, CALL, r.output("call_1", "")),
    ),
    "a picture cut in half in an output": (
        r.body(USER, CALL, r.output("call_1", [r.image(picture()[:33])])),
        "Invalid base64 image_url",
        r.body(USER, CALL, r.output("call_1", [r.image(picture())])),
    ),
    "a file cut in half": (
        r.body(r.user({"type": "input_file", "file_data": "QQ"})),
        "Invalid file data",
        r.body(r.user({"type": "input_file", "file_data": "QQ=="})),
    ),
    "too many pictures": (
        r.body(r.user(*[r.image(picture())] * 101)),
        "Too many images in request: 101 > 100",
        r.body(r.user(*[r.image(picture())] * 100)),
    ),
    "no input": (r.body(), "Missing required parameter: 'input'.", r.body(USER)),
    "no model": (r.body(USER, model=None), "Missing required parameter: 'model'.", r.body(USER)),
    "a key nobody knows": (r.body(USER, openmem=1), "Unknown parameter: 'openmem'.", r.body(USER)),
    "an item without a type": (
        r.body(USER, {"note": 1}),
        "Missing required parameter: 'input[1].type'.",
        r.body(USER),
    ),
    "a compaction item emptied": (
        r.body({"type": "compaction", "encrypted_content": ""}, USER),
        "'input[0].encrypted_content'",
        r.body({"type": "compaction", "encrypted_content": "x"}, USER),
    ),
    "a body above 32 MB": (
        r.body(r.user("x" * BODY_LIMIT)),
        TOO_LARGE,
        r.body(r.user("x" * (BODY_LIMIT - 2000))),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_body_is_refused_in_the_providers_words(name: str) -> None:
    refused, words, _ = PAIRS[name]
    assert any(words in fault for fault in check(refused)), check(refused)


@pytest.mark.parametrize("name", PAIRS)
def test_the_least_change_makes_it_accepted(name: str) -> None:
    assert check(PAIRS[name][2]) == []


def test_a_refused_body_has_no_other_faults_than_the_one_it_shows() -> None:
    twice = {"an output before its call", "a call id used twice", "a run of reasoning with nothing after it"}
    loud = {name: check(pair[0]) for name, pair in PAIRS.items() if name not in twice and len(check(pair[0])) != 1}
    assert loud == {}


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_needs_its_own_output(kind: str) -> None:
    call, output = family(kind)
    other = family("custom_tool_call" if kind != "custom_tool_call" else "shell_call")[1]
    assert check(r.body(USER, call, output)) == []
    assert check(r.body(USER, call)) == [f"No tool output found for {FAMILIES[kind]} call_1."]
    assert len(check(r.body(USER, call, other))) == 2


@pytest.mark.parametrize("kind", ["web_search_call", "image_generation_call", "mcp_call", "file_search_call"])
def test_what_the_provider_ran_itself_needs_no_output(kind: str) -> None:
    assert check(r.body(USER, THOUGHT, {"type": kind, "id": "x_1"})) == []


def test_codex_answers_a_local_shell_call_with_a_function_output() -> None:
    assert check(r.body(USER, r.shell_call("call_1"), OUTPUT)) == []


def test_an_item_of_a_type_not_yet_invented_is_let_through() -> None:
    assert (
        check(r.body(USER, {"type": "brand_new_item", "call_id": "call_9"}, THOUGHT, {"type": "brand_new_item"})) == []
    )


def test_an_id_that_is_no_word_is_an_id_too() -> None:
    odd = {"type": "brand_new_item", "id": {"a": 1}}
    assert check(r.body(USER, odd)) == []
    assert "Duplicate item found" in check(r.body(USER, odd, odd))[0]


def test_a_lone_output_is_fine_after_a_previous_response() -> None:
    assert check(r.body(OUTPUT, previous_response_id="resp_1")) == []
    assert check(r.body(OUTPUT)) != []


def test_encrypted_content_comes_back_byte_for_byte() -> None:
    registry = SignatureRegistry()
    registry.encrypt("rs_1", f"{CIPHER_MARK}abc")
    kept, altered = (r.body(USER, r.reasoning("rs_1", f"{CIPHER_MARK}{end}"), CALL, OUTPUT) for end in ("abc", "abd"))
    nameless = r.body(USER, {**r.reasoning("", f"{CIPHER_MARK}abd"), "id": None}, CALL, OUTPUT)
    assert check(kept, registry) == []
    assert "The encrypted content for item rs_1 could not be verified" in check(altered, registry)[0]
    assert "could not be verified" in check(nameless, registry)[0]
    assert check(altered) == []


def test_reasoning_and_what_it_was_produced_with_stay_together() -> None:
    registry = SignatureRegistry()
    registry.encrypt("rs_1", "x")
    registry.encrypt("rs_2", "y")
    registry.respond("resp_1", ["rs_1", "fc_1"])
    registry.respond("resp_2", ["rs_2", "msg_2"])
    call, said = {**CALL, "id": "fc_1"}, r.assistant("so", "msg_2")
    one, two = r.reasoning("rs_1", "x"), r.reasoning("rs_2", "y")
    assert check(r.body(USER, one, call, OUTPUT, two, said), registry) == []
    assert "required 'reasoning' item: 'rs_1'" in check(r.body(USER, call, OUTPUT, two, said), registry)[0]
    assert REQUIRED in check(r.body(USER, call, OUTPUT, one, said, two), registry)
    assert check(r.body(USER, CALL, OUTPUT, two, said), registry) == []
    assert check(r.body(USER, {**one, "id": None}, call, OUTPUT), registry) == []
