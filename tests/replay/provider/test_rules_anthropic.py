"""Each rule of the Messages API: a body it refuses, in the provider's words, and the least change it accepts."""

from __future__ import annotations

from typing import Any

import pytest

from openmem_hook.replay.provider.rules_anthropic import BODY_LIMIT, TOO_LARGE, check
from openmem_hook.replay.provider.signatures import SIGNATURE_MARK, SignatureRegistry
from tests.kit.builders import (
    assistant,
    body,
    document,
    image,
    marked,
    mixed,
    picture,
    redacted,
    reference,
    results,
    server_search,
    system,
    text,
    thinking,
    tool,
    tool_result,
    tool_use,
    user,
)

USE, RESULT = tool_use("toolu_1"), tool_result("toolu_1")
ENABLED = {"type": "enabled", "budget_tokens": 1024}
SEARCH, FOUND = server_search("srvtoolu_1")


def turn(*more: Any) -> list[Any]:
    return [user("go"), assistant(USE), results(RESULT), *more]


PAIRS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "a call without a result": (
        body(user("go"), assistant(USE), user("on")),
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_1. "
        "Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
        body(*turn()),
    ),
    "a call at the very end": (
        body(user("go"), assistant(USE)),
        "messages.1: `tool_use` ids were found without",
        body(user("go")),
    ),
    "text before the result": (
        body(user("go"), assistant(USE), results(text("first"), RESULT)),
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_1",
        body(user("go"), assistant(USE), mixed(RESULT, "after")),
    ),
    "half of the parallel results": (
        body(user("go"), assistant(USE, tool_use("toolu_2")), results(RESULT)),
        "immediately after: toolu_2",
        body(user("go"), assistant(USE, tool_use("toolu_2")), results(tool_result("toolu_2"), RESULT)),
    ),
    "a result without its call": (
        body(user("go"), results(RESULT)),
        "messages.1.content.0: unexpected `tool_use_id` found in `tool_result` blocks: toolu_1.",
        body(*turn()),
    ),
    "a result one message late": (
        body(*turn(assistant("so"), results(RESULT))),
        "messages.4.content.0: unexpected `tool_use_id`",
        body(*turn(assistant("so"), user("on"))),
    ),
    "two results for one call": (
        body(user("go"), assistant(USE), results(RESULT, RESULT)),
        "each tool_use must have a single result. Found multiple `tool_result` blocks with id: toolu_1",
        body(*turn()),
    ),
    "a call id used twice": (
        body(*turn(assistant(USE), results(RESULT))),
        "`tool_use` ids must be unique",
        body(*turn(assistant(tool_use("toolu_2")), results(tool_result("toolu_2")))),
    ),
    "a call id with a space": (
        body(user("go"), assistant(tool_use("tool u")), results(tool_result("tool u"))),
        "messages.1.content.0.tool_use.id: String should match pattern",
        body(*turn()),
    ),
    "call input that is a string": (
        body(user("go"), assistant({**USE, "input": "{}"}), results(RESULT)),
        "messages.1.content.0.tool_use.input: Input should be a valid dictionary",
        body(*turn()),
    ),
    "an assistant message first": (
        body(assistant("hello"), user("go")),
        'first message must use the "user" role',
        body(user("go")),
    ),
    "an unknown role": (
        body(user("go"), {"role": "developer", "content": "x"}),
        "messages.1.role: Input should be 'user', 'assistant' or 'system'",
        body(user("go"), system("x")),
    ),
    "no messages": (body(), "messages: at least one message is required", body(user("go"))),
    "empty content list": (
        body(results(), assistant("x"), user("go")),
        "messages.0: all messages must have non-empty content",
        body(user("x"), assistant("x"), user("go")),
    ),
    "empty content string": (
        body(user("go"), assistant(""), user("on")),
        "messages.1: all messages must have non-empty content",
        body(user("go"), assistant("x"), user("on")),
    ),
    "an empty text block": (
        body(user(image(), "")),
        "text content blocks must be non-empty",
        body(user(image())),
    ),
    "a message of spaces": (
        body(user("go"), assistant(" \n"), user("on")),
        "messages.1: text content blocks must contain non-whitespace text",
        body(user("go"), assistant(text(" \n"), USE), results(RESULT)),
    ),
    "an empty text inside a result": (
        body(user("go"), assistant(USE), results(tool_result("toolu_1", [text("")]))),
        "messages.2.content.0.tool_result.content.0: text content blocks must be non-empty",
        body(user("go"), assistant(USE), results(tool_result("toolu_1", ""))),
    ),
    "a prefill that ends in a space": (
        body(user("go"), assistant("So ")),
        "final assistant content cannot end with trailing whitespace",
        body(user("go"), assistant("So")),
    ),
    "a prefill that ends in thinking": (
        body(user("go"), assistant(thinking())),
        "The final block in an assistant message cannot be `thinking`",
        body(user("go"), assistant(thinking(), text("So"))),
    ),
    "a server call without its result": (
        body(user("go"), assistant(SEARCH, text("so")), user("on")),
        "messages.1: `web_search` tool use with id `srvtoolu_1` was found without a corresponding "
        "`web_search_tool_result` block",
        body(user("go"), assistant(SEARCH, FOUND, text("so")), user("on")),
    ),
    "a server call answered by another type": (
        body(user("go"), assistant(SEARCH, {**FOUND, "type": "web_fetch_tool_result"}), user("on")),
        "without a corresponding `web_search_tool_result` block",
        body(user("go"), assistant(SEARCH, FOUND), user("on")),
    ),
    "a pending server call that isn't last": (
        body(user("go"), assistant(SEARCH), user("on")),
        "without a corresponding",
        body(user("go"), assistant(SEARCH)),
    ),
    "a server result without its call": (
        body(user("go"), assistant(FOUND, text("so")), user("on")),
        "messages.1.content.0: unexpected `tool_use_id` found in `web_search_tool_result` blocks: srvtoolu_1",
        body(user("go"), assistant(SEARCH, FOUND, text("so")), user("on")),
    ),
    "a tool result in an assistant message": (
        body(user("go"), assistant(RESULT), user("on")),
        "`tool_result` blocks can only be in `user` messages",
        body(user("go"), assistant("x"), user("on")),
    ),
    "a call in a user message": (
        body(user(USE)),
        "`tool_use` blocks can only be in `assistant` messages",
        body(user("go")),
    ),
    "a block type nobody knows": (
        body(user({"type": "hologram"})),
        "Input tag 'hologram' found using 'type' does not match",
        body(user("go")),
    ),
    "a key nobody knows in a block": (
        body(user({**text("go"), "note": 1})),
        "messages.0.content.0.text.note: Extra inputs are not permitted",
        body(user(text("go"))),
    ),
    "a key nobody knows in a message": (
        body({**user("go"), "id": "m1"}),
        "messages.0.id: Extra inputs are not permitted",
        body(user("go")),
    ),
    "a key nobody knows in the body": (
        body(user("go"), openmem=1),
        "openmem: Extra inputs are not permitted",
        body(user("go")),
    ),
    "metadata with more than a user id": (
        body(user("go"), metadata={"user_id": "u", "session": "s"}),
        "metadata.session: Extra inputs are not permitted",
        body(user("go"), metadata={"user_id": "u"}),
    ),
    "no max_tokens": (body(user("go"), max_tokens=None), "max_tokens: Field required", body(user("go"))),
    "a system message first": (
        body(system("x"), user("go")),
        "messages.0: use the top-level 'system' parameter",
        body(user("go"), system("x")),
    ),
    "a system message after a plain answer": (
        body(user("go"), assistant("so"), system("x")),
        "messages.2: role 'system' must follow a 'user' message or an 'assistant' message ending in a server tool",
        body(user("go"), assistant("so"), user("on"), system("x")),
    ),
    "a system message before a user message": (
        body(user("go"), system("x"), user("on")),
        "messages.1: role 'system' must precede an 'assistant' message or end the array",
        body(user("go"), system("x"), assistant("so"), user("on")),
    ),
    "two system messages in a row": (
        body(user("go"), system("x"), system("y")),
        "messages.2: role 'system' must follow",
        body(user("go"), system("x")),
    ),
    "a system message between call and result": (
        body(user("go"), assistant(USE), system("x"), results(RESULT)),
        "messages.2: role 'system' must",
        body(user("go"), assistant(USE), results(RESULT), system("x")),
    ),
    "an empty system message": (
        body(user("go"), system()),
        "messages.1: system content must contain at least one block",
        body(user("go"), {**system(), "output_config": {"effort": "low"}}),
    ),
    "a picture in a system message": (
        body(user("go"), system(image())),
        "role 'system' supports text, tool_addition, and tool_removal blocks only",
        body(user("go"), system("x")),
    ),
    "an empty block in the system prompt": (
        body(user("go"), system=[text("")]),
        "system: text content blocks must be non-empty",
        body(user("go"), system=""),
    ),
    "five breakpoints": (
        body(user(*(marked(text(f"{at}")) for at in range(5)))),
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
        body(user(*(marked(text(f"{at}")) for at in range(4)))),
    ),
    "breakpoints counted over all places": (
        body(
            user(marked(text("go"))),
            assistant(USE),
            results(tool_result("toolu_1", [marked(text("r"))])),
            tools=[marked(tool("Read"))],
            system=[marked(text("s")), marked(text("t"))],
        ),
        "Found 5.",
        body(
            user(text("go")),
            assistant(USE),
            results(tool_result("toolu_1", [marked(text("r"))])),
            tools=[marked(tool("Read"))],
            system=[marked(text("s")), marked(text("t"))],
        ),
    ),
    "a breakpoint on thinking": (
        body(user("go"), assistant(marked(thinking()), text("so")), user("on")),
        "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted",
        body(user("go"), assistant(thinking(), marked(text("so"))), user("on")),
    ),
    "a breakpoint on empty text": (
        body(user(image(), marked(text("")))),
        "messages.0.content.1.text: cache_control cannot be set for empty text blocks",
        body(user(marked(image()))),
    ),
    "an hour after five minutes": (
        body(user(marked(text("go"), "1h")), system=[marked(text("s"))]),
        "messages.0.content.0.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m'",
        body(user(marked(text("go"), "5m")), system=[marked(text("s"), "1h")]),
    ),
    "a breakpoint of no known kind": (
        body(user(marked(text("go"), "2h"))),
        "cache_control: Input should be",
        body(user(marked(text("go"), "1h"))),
    ),
    "thinking without a signature": (
        body(user("go"), assistant(thinking(signature=""), text("so")), user("on")),
        "messages.1.content.0.thinking.signature: Field required",
        body(user("go"), assistant(thinking(""), text("so")), user("on")),
    ),
    "redacted thinking without data": (
        body(user("go"), assistant(redacted(""), text("so")), user("on")),
        "redacted_thinking.data: Field required",
        body(user("go"), assistant(redacted(), text("so")), user("on")),
    ),
    "a running turn that doesn't open with thinking": (
        body(*turn(), thinking=ENABLED),
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`.",
        body(user("go"), assistant(thinking(), USE), results(RESULT), thinking=ENABLED),
    ),
    "a running turn whose thinking comes after text": (
        body(user("go"), assistant(text("so"), thinking(), USE), results(RESULT), thinking=ENABLED),
        "but found `text`",
        body(user("go"), assistant(redacted(), text("so"), USE), results(RESULT), thinking=ENABLED),
    ),
    "a turn cut down to outputs without thinking": (
        body(
            user("go"),
            assistant(USE),
            mixed(RESULT, "more"),
            assistant(thinking(), tool_use("toolu_2")),
            results(tool_result("toolu_2")),
            thinking=ENABLED,
        ),
        "messages.1.content.0.type: Expected `thinking`",
        body(
            user("go"),
            assistant(USE),
            mixed(RESULT, "more"),
            assistant(thinking(), tool_use("toolu_2")),
            results(tool_result("toolu_2")),
            thinking={"type": "adaptive"},
        ),
    ),
    "a thinking budget above max_tokens": (
        body(user("go"), thinking={"type": "enabled", "budget_tokens": 8192}),
        "`max_tokens` must be greater than `thinking.budget_tokens`",
        body(user("go"), thinking={"type": "enabled", "budget_tokens": 8191}),
    ),
    "a thinking budget too small": (
        body(user("go"), thinking={"type": "enabled", "budget_tokens": 10}),
        "greater than or equal to 1024",
        body(user("go"), thinking=ENABLED),
    ),
    "a reference to a tool that isn't there": (
        body(user("go"), assistant(USE), results(tool_result("toolu_1", [reference("Found")]))),
        "Tool reference 'Found' not found in available tools",
        body(
            user("go"),
            assistant(USE),
            results(tool_result("toolu_1", [reference("Found")])),
            tools=[tool("Read"), tool("Found", defer_loading=True)],
        ),
    ),
    "two tools of one name": (
        body(user("go"), tools=[tool("Read"), tool("Read")]),
        "tools: Tool names must be unique",
        body(user("go"), tools=[tool("Read")]),
    ),
    "a tool without a schema": (
        body(user("go"), tools=[{"name": "Read"}]),
        "tools.0.custom.input_schema: Field required",
        body(user("go"), tools=[{"name": "web_search", "type": "web_search_20250305"}]),
    ),
    "a picture cut in half": (
        body(user(image(picture()[:33]))),
        "messages.0.content.0.image.source.base64.data: Invalid base64 data",
        body(user(image(picture()))),
    ),
    "a picture cut in half inside a result": (
        body(user("go"), assistant(USE), results(tool_result("toolu_1", [image("no base64!")]))),
        "tool_result.content.0.image.source.base64.data: Invalid base64 data",
        body(user("go"), assistant(USE), results(tool_result("toolu_1", [image(), document()]))),
    ),
    "a picture of no known type": (
        body(user(image(media_type="image/tiff"))),
        "media_type: Input should be",
        body(user(image())),
    ),
    "a picture above 5 MB": (
        body(user(image(picture(size=5_300_000)))),
        "image exceeds 5 MB maximum",
        body(user(image(picture(size=5_000_000)))),
    ),
    "too many pictures": (
        body(user(*[image()] * 101)),
        "Too many images and documents: 101 > 100",
        body(user(*[image()] * 100)),
    ),
    "many pictures, one large": (
        body(user(*[image()] * 20, image(picture(side=2001)))),
        "many-image requests: 2000 pixels",
        body(user(*[image()] * 19, image(picture(side=2001)))),
    ),
    "a body above 32 MB": (body(user("x" * BODY_LIMIT)), TOO_LARGE, body(user("x" * (BODY_LIMIT - 2000)))),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_body_is_refused_in_the_providers_words(name: str) -> None:
    refused, words, _ = PAIRS[name]
    assert any(words in fault for fault in check(refused)), check(refused)


@pytest.mark.parametrize("name", PAIRS)
def test_the_least_change_makes_it_accepted(name: str) -> None:
    assert check(PAIRS[name][2]) == []


def test_a_refused_body_has_no_other_faults_than_the_one_it_shows() -> None:
    """Else a rule could be gone and its case would still be refused."""
    twice = {"a call in a user message", "two system messages in a row", "a system message between call and result",
             "a breakpoint on empty text", "two results for one call"}  # fmt: skip
    loud = {name: check(pair[0]) for name, pair in PAIRS.items() if name not in twice and len(check(pair[0])) != 1}
    assert loud == {}


def test_thinking_the_provider_signed_comes_back_unchanged() -> None:
    registry = SignatureRegistry()
    registry.sign(f"{SIGNATURE_MARK}1", "as it was")
    with_thought = [thinking(words, f"{SIGNATURE_MARK}1") for words in ("as it was", "as it wasn't")]
    kept, altered = (body(user("go"), assistant(one, text("so")), user("on")) for one in with_thought)
    assert check(kept, registry) == []
    assert "cannot be modified" in check(altered, registry)[0]
    assert check(altered) == []


def test_a_signature_in_the_providers_hand_that_it_never_gave_is_refused() -> None:
    registry = SignatureRegistry()
    registry.sign(f"{SIGNATURE_MARK}1", "as it was")
    forged = body(user("go"), assistant(thinking("x", f"{SIGNATURE_MARK}2"), text("so")), user("on"))
    foreign = body(user("go"), assistant(thinking("x", "c2lnbmVk"), text("so")), user("on"))
    assert "Invalid `signature` in `thinking` block" in check(forged, registry)[0]
    assert check(foreign, registry) == []
