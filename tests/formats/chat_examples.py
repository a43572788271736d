"""Messages of Chat Completions and what is read in them: each type of block, each kind of call, each odd shape."""

from __future__ import annotations

from typing import Any

from openmem_hook.model import Part
from tests.formats.examples import Example, as_json, blank, call, example, media, opaque, result, text, thinking
from tests.kit import chat_words as c

FILE = {"type": "file", "file": {"file_id": "file_1"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "eA==", "format": "wav"}}
CUSTOM_CALL = {"id": "call_1", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
OLDER_CALL = {"name": "weather", "arguments": '{"city": "Oslo"}'}
THINKING_BLOCKS = [{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}]
NOTICE = "<environment_context>here</environment_context>"


def of_model(**fields: Any) -> Any:
    return {"role": "assistant", "content": None, **fields}


USER: dict[str, Example] = {
    "words as a string": example(c.user("Fix it."), "user", "typed", text("Fix it.")),
    "words as a block": example(c.user(c.text("Fix it.")), "user", "typed", text("Fix it.")),
    "words with a breakpoint": example(
        c.user(c.text("Fix it.") | {"cache_control": {"type": "ephemeral"}}), "user", "typed", text("Fix it.")
    ),
    "a breakpoint on the message": example(
        c.user("Fix it.") | {"cache_control": {"type": "ephemeral"}}, "user", "typed", text("Fix it.")
    ),
    "a picture": example(c.user(c.image("eA==")), "user", "typed", media("image")),
    "a picture in the words of another API": example(c.user({"type": "image"}), "user", "typed", media("image")),
    "a file": example(c.user(FILE), "user", "typed", media("document")),
    "a sound": example(c.user(AUDIO), "user", "typed", media("audio")),
    "words with a picture": example(c.user("See.", c.image("eA==")), "user", "typed", text("See."), media("image", 1)),
    "a client's notice": example(c.user(NOTICE), "user", "notice", Part("notice", NOTICE)),
    "nothing": example(c.user(""), "user", "notice", blank()),
    "no blocks": example({"role": "user", "content": []}, "user", "typed"),
}

RESULTS: dict[str, Example] = {
    "a result": example(c.result("call_1", "a\nb"), "tool", "result", result("function", "call_1", "a\nb")),
    "a result of blocks": example(
        c.result("call_1", [c.text("a"), c.text("b")]), "tool", "result", result("function", "call_1", "a\nb")
    ),
    "a result with a picture": example(
        c.result("call_1", [c.text("a"), c.image("eA==")]),
        "tool",
        "result",
        result("function", "call_1", "a", media=("image",)),
    ),
    "a result without content": example(
        {"role": "tool", "tool_call_id": "call_1"}, "tool", "result", result("function", "call_1")
    ),
    "what looks like a notice in a result is text": example(
        c.result("call_1", NOTICE), "tool", "result", result("function", "call_1", NOTICE)
    ),
    "a result of the older kind": example(
        {"role": "function", "name": "weather", "content": "sunny"},
        "tool",
        "result",
        result("function_call", "weather", "sunny"),
    ),
}

OUTPUT: dict[str, Example] = {
    "a reply": example(c.assistant("Done."), "assistant", "reply", text("Done.")),
    "a refusal": example(of_model(content=[{"type": "refusal", "refusal": "No."}]), "assistant", "reply", text("No.")),
    "a refusal of no words": example(of_model(content=[{"type": "refusal"}]), "assistant", "reply", text("")),
    "a call": example(
        of_model(tool_calls=[c.call("call_1", path="a.py", lines=[1])]),
        "assistant",
        "call",
        call("function", "call_1", "read", "path: a.py\nlines: [1]"),
    ),
    "a call beside an empty string": example(
        c.assistant("", c.call("call_1")), "assistant", "call", blank(), call("function", "call_1", "read")
    ),
    "words, then two calls": example(
        c.assistant("Let me look.", c.call("call_1", n=1), c.call("call_2", n=2)),
        "assistant",
        "call",
        text("Let me look."),
        call("function", "call_1", "read", "n: 1"),
        call("function", "call_2", "read", "n: 2", 1),
    ),
    "a call of a custom tool": example(
        of_model(tool_calls=[CUSTOM_CALL]), "assistant", "call", call("function", "call_1", "patch", "*** Begin")
    ),
    "a call of the older kind": example(
        of_model(function_call=OLDER_CALL),
        "assistant",
        "call",
        call("function_call", "weather", "weather", "city: Oslo"),
    ),
    "reasoning alone": example(of_model(reasoning_content="Hm."), "assistant", "reasoning", thinking("Hm.")),
    "reasoning under another key": example(of_model(reasoning="Hm."), "assistant", "reasoning", thinking("Hm.")),
    "reasoning with a blank text": example(
        of_model(reasoning="Hm.", content=" "), "assistant", "reply", thinking("Hm."), blank(" ")
    ),
    "thinking blocks alone": example(
        of_model(thinking_blocks=THINKING_BLOCKS), "assistant", "reasoning", thinking("", as_json(THINKING_BLOCKS))
    ),
    "reasoning before words": example(
        of_model(reasoning_content="Hm.", content="Done."), "assistant", "reply", thinking("Hm."), text("Done.")
    ),
    "reasoning before a call": example(
        of_model(reasoning_content="Hm.", thinking_blocks=THINKING_BLOCKS, tool_calls=[c.call("call_1")]),
        "assistant",
        "call",
        thinking("Hm."),
        thinking("", as_json(THINKING_BLOCKS)),
        call("function", "call_1", "read"),
    ),
    "thinking as a block": example(
        of_model(content=[*THINKING_BLOCKS, c.text("Done.")]),
        "assistant",
        "reply",
        thinking("Hm.", "c2ln"),
        text("Done.", 1),
    ),
    "hidden thinking as a block": example(
        of_model(content=[{"type": "redacted_thinking", "data": "b3Bh"}]),
        "assistant",
        "reasoning",
        thinking("", "b3Bh"),
    ),
}

SYSTEM: dict[str, Example] = {
    "a system message": example(c.system("Be brief."), "system", "system", text("Be brief.")),
    "a developer message": example(c.developer("Be brief."), "system", "system", text("Be brief.")),
    "a developer message that looks like a notice": example(c.developer(NOTICE), "system", "system", text(NOTICE)),
}

NEW_BLOCK = {"type": "new_block", "value": 1.5}
ODD: dict[str, Example] = {
    "a block of a new type": example(c.user(NEW_BLOCK), "user", "typed", opaque(NEW_BLOCK)),
    "a block without a type": example(c.user({"text": "hi"}), "user", "typed", opaque({"text": "hi"})),
    "a type that is a list": example(c.user({"type": ["text"]}), "user", "typed", opaque({"type": ["text"]})),
    "a block that is a list": example({"role": "user", "content": [["hi"]]}, "user", "typed", opaque(["hi"])),
    "a block that is null": example({"role": "user", "content": [None]}, "user", "typed", opaque(None)),
    "text that is a number": example(c.user({"type": "text", "text": 7}), "user", "notice", blank()),
    "content that is null": example({"role": "user", "content": None}, "user", "typed"),
    "content that is missing": example({"role": "user"}, "user", "typed"),
    "content that is a number": example({"role": "user", "content": 7}, "user", "typed", opaque(7)),
    "content that is one block": example({"role": "user", "content": c.text("hi")}, "user", "typed", text("hi")),
    "calls that are no list": example(of_model(tool_calls="no", content="hi"), "assistant", "reply", text("hi")),
    "calls that are null": example(of_model(tool_calls=None, content="hi"), "assistant", "reply", text("hi")),
    "a call that is a string": example(of_model(tool_calls=["no"]), "assistant", "reply", opaque("no")),
    "a call without a function": example(
        of_model(tool_calls=[{"id": "call_1"}]), "assistant", "reply", opaque({"id": "call_1"})
    ),
    "a call with a number for an id": example(
        of_model(tool_calls=[{"id": 7, "function": {"name": None}}]),
        "assistant",
        "call",
        call("function", "", "", "null"),
    ),
    "a call with no JSON for arguments": example(
        of_model(tool_calls=[{"id": "call_1", "function": {"name": "read", "arguments": " {half "}}]),
        "assistant",
        "call",
        call("function", "call_1", "read", "{half"),
    ),
    "a call with a list for arguments": example(
        of_model(tool_calls=[{"id": "call_1", "function": {"name": "read", "arguments": "[1]"}}]),
        "assistant",
        "call",
        call("function", "call_1", "read", "[1]"),
    ),
    "a call with an object for arguments": example(
        of_model(tool_calls=[{"id": "call_1", "function": {"name": "read", "arguments": {"a": "b"}}}]),
        "assistant",
        "call",
        call("function", "call_1", "read", "a: b"),
    ),
    "an older call that is a string": example(
        of_model(function_call="auto", content="hi"), "assistant", "reply", text("hi")
    ),
    "a result with a number for an id": example(
        {"role": "tool", "tool_call_id": 7, "content": "ok"}, "tool", "result", result("function", "", "ok")
    ),
    "a result that is a number": example(
        {"role": "tool", "tool_call_id": "call_1", "content": 7},
        "tool",
        "result",
        result("function", "call_1", "7", text_alone=False),
    ),
    "a result with a block that nobody knows": example(
        c.result("call_1", [c.text("a"), NEW_BLOCK]),
        "tool",
        "result",
        result("function", "call_1", f"a\n{as_json(NEW_BLOCK)}", text_alone=False),
    ),
    "calls in a message of a person": example(
        {"role": "user", "content": "hi", "tool_calls": [c.call("call_1")]},
        "user",
        "call",
        text("hi"),
        call("function", "call_1", "read"),
    ),
    "reasoning that is an object": example(of_model(reasoning={"a": 1}), "assistant", "reply"),
    "a reply of nothing": example(of_model(), "assistant", "reply"),
    "a role that is new": example({"role": "root", "content": "hi"}, "unknown", "unknown", text("hi")),
    "a role that is missing": example({"content": "hi"}, "unknown", "unknown", text("hi")),
    "a role that is a list": example({"role": ["user"], "content": "hi"}, "unknown", "unknown", text("hi")),
    "an empty object": example({}, "unknown", "unknown"),
    "a string": example("hi", "unknown", "unknown", opaque("hi")),
    "null": example(None, "unknown", "unknown", opaque(None)),
    "a list": example(["hi"], "unknown", "unknown", opaque(["hi"])),
}

EXAMPLES = USER | RESULTS | OUTPUT | SYSTEM | ODD
