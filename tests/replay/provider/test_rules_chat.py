"""Each rule of chat completions: a body it refuses, in the provider's words, and the least change it accepts."""

from __future__ import annotations

from typing import Any

import pytest

from openmem_hook.replay.provider.rules_chat import BODY_LIMIT, TOO_LARGE, check
from tests.kit.builders import chat, picture

CALL, RESULT = chat.call("call_1"), chat.result("call_1")
USER, SAID = chat.user("go"), chat.assistant("so")


def exchange(*more: Any) -> dict[str, Any]:
    return chat.body(USER, chat.assistant(None, CALL), RESULT, *more)


def calling(**function: Any) -> dict[str, Any]:
    return chat.body(USER, chat.assistant(None, {**CALL, "function": {**CALL["function"], **function}}), RESULT)


PAIRS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "a call without an answer": (
        chat.body(USER, chat.assistant(None, CALL), chat.user("on")),
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        "The following tool_call_ids did not have response messages: call_1",
        exchange(),
    ),
    "half of the parallel answers": (
        chat.body(USER, chat.assistant(None, CALL, chat.call("call_2")), RESULT),
        "did not have response messages: call_2",
        chat.body(USER, chat.assistant(None, CALL, chat.call("call_2")), chat.result("call_2"), RESULT),
    ),
    "a message between the answers": (
        chat.body(USER, chat.assistant(None, CALL, chat.call("call_2")), RESULT, USER, chat.result("call_2")),
        "did not have response messages: call_2",
        chat.body(USER, chat.assistant(None, CALL, chat.call("call_2")), RESULT, chat.result("call_2"), USER),
    ),
    "an answer without its call": (
        chat.body(USER, RESULT),
        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
        exchange(),
    ),
    "an answer given twice": (exchange(RESULT), "answers 'tool_call_id' call_1 a second time", exchange()),
    "an answer without an id": (
        chat.body(USER, chat.assistant(None, CALL), RESULT, {"role": "tool", "content": "x"}),
        "Missing required parameter: 'messages[4].tool_call_id'",
        exchange(),
    ),
    "a call id used twice": (
        exchange(chat.assistant(None, CALL), RESULT),
        "duplicate tool call id call_1",
        exchange(chat.assistant(None, chat.call("call_2")), chat.result("call_2")),
    ),
    "no user message": (
        chat.body(chat.system("s"), chat.assistant(None, CALL), RESULT),
        "at least one message with role 'user'",
        exchange(),
    ),
    "an assistant message last": (
        chat.body(USER, SAID),
        "the last message must have role 'user' or 'tool'",
        chat.body(USER, SAID, USER),
    ),
    "no messages": ({"model": "m", "messages": []}, "empty array", chat.body(USER)),
    "no model": (chat.body(USER, model=None), "you must provide a model parameter", chat.body(USER)),
    "an unknown role": (
        chat.body(USER, {"role": "critic", "content": "x"}),
        "Invalid value for 'messages[2].role'",
        chat.body(USER, chat.developer("x"), USER),
    ),
    "an empty user message": (
        chat.body(chat.user("")),
        "'messages[1].content': content must not be empty",
        chat.body(USER),
    ),
    "an empty list of parts": (
        chat.body({"role": "user", "content": []}),
        "content must not be empty",
        chat.body(USER),
    ),
    "a null user message": (
        chat.body({"role": "user", "content": None}),
        "expected a string, got null",
        chat.body(USER),
    ),
    "an assistant message with nothing in it": (
        chat.body(USER, chat.assistant(""), USER),
        "must have either 'content' or 'tool_calls'",
        chat.body(USER, SAID, USER),
    ),
    "an empty list of calls": (
        chat.body(USER, SAID | {"tool_calls": []}, USER),
        "'messages[2].tool_calls': empty array",
        chat.body(USER, SAID, USER),
    ),
    "arguments that are an object": (
        calling(arguments={}),
        "function.arguments': expected a string, but got an object",
        calling(arguments="{}"),
    ),
    "arguments cut in half": (
        calling(arguments='{"path": "a'),
        "function.arguments': not a JSON object",
        calling(arguments='{"path": "a"}'),
    ),
    "a call without a name": (calling(name=""), "Missing required parameter", calling(name="read")),
    "an empty text part": (
        chat.body(chat.user(chat.text(""), "x")),
        "text must be a non-empty string",
        chat.body(chat.user(chat.text("x"))),
    ),
    "a picture in an answer": (
        chat.body(USER, chat.assistant(None, CALL), chat.result("call_1", [chat.image(picture())])),
        "Invalid value: 'image_url'",
        chat.body(USER, chat.assistant(None, CALL), chat.result("call_1", [chat.text("x")])),
    ),
    "a data URL cut in half": (
        chat.body(chat.user(chat.image(picture()[:33]))),
        "Invalid base64 image_url",
        chat.body(chat.user(chat.image(picture()))),
    ),
    "a picture address of no known kind": (
        chat.body(chat.user({"type": "image_url", "image_url": {"url": "file:///x.png"}})),
        "Invalid image URL",
        chat.body(chat.user({"type": "image_url", "image_url": {"url": "https://x.org/x.png"}})),
    ),
    "a file cut in half": (
        chat.body(
            chat.user({"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,QQ"}})
        ),
        "Invalid file data",
        chat.body(
            chat.user({"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,QQ=="}})
        ),
    ),
    "too many pictures": (
        chat.body(chat.user(*[chat.image(picture())] * 101)),
        "Too many images in request: 101 > 100",
        chat.body(chat.user(*[chat.image(picture())] * 100)),
    ),
    "a key nobody knows": (
        chat.body(USER, openmem=1),
        "Unrecognized request argument supplied: openmem",
        chat.body(USER),
    ),
    "a body above 32 MB": (
        chat.body(chat.user("x" * BODY_LIMIT)),
        TOO_LARGE,
        chat.body(chat.user("x" * (BODY_LIMIT - 2000))),
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
    twice = {"a message between the answers"}
    loud = {name: check(pair[0]) for name, pair in PAIRS.items() if name not in twice and len(check(pair[0])) != 1}
    assert loud == {}
