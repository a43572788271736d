"""Messages of the Messages API and what is read in them: each type of block, and each odd shape of one."""

from __future__ import annotations

from typing import Any

from openmem_hook.facts import INTERJECTION_PREFIX
from openmem_hook.model import Part
from tests.formats.examples import (
    Example,
    blank,
    call,
    compaction,
    example,
    media,
    opaque,
    result,
    server,
    text,
    thinking,
)
from tests.kit import builders as a

CALL, RESULT = a.server_search("srvtoolu_1")
UNSIGNED_RESULT = {"type": "bash_code_execution_tool_result", "tool_use_id": "srvtoolu_2", "content": {"stdout": "ok"}}
MCP_CALL = {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "list", "server_name": "crm", "input": {}}
MCP_RESULT = {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "content": [a.text("ok")]}
COMPACTION = {"type": "compaction", "content": "So far."}
UPLOAD = {"type": "container_upload", "file_id": "file_1"}
SUMMARY_REQUEST = "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\n- No more."
RECAP = "This session is being continued from a previous conversation that ran out of context."
COMMAND = "<command-name>/smart-compact</command-name>"
NOTICE = "<bash-stdout>ok</bash-stdout>"
REMINDER = a.reminder()["text"]


def of_user(*blocks: Any) -> Any:
    return {"role": "user", "content": list(blocks)}


def of_model(*blocks: Any) -> Any:
    return {"role": "assistant", "content": list(blocks)}


USER: dict[str, Example] = {
    "words as a string": example(a.user("Fix it."), "user", "typed", text("Fix it.")),
    "words as a block": example(of_user(a.text("Fix it.")), "user", "typed", text("Fix it.")),
    "white space stays in the text": example(a.user(" Fix it.\n"), "user", "typed", text(" Fix it.\n")),
    "words with a breakpoint": example(of_user(a.marked(a.text("Fix it."))), "user", "typed", text("Fix it.")),
    "two blocks": example(of_user(a.text("one"), a.text("two")), "user", "typed", text("one"), text("two", 1)),
    "a picture": example(of_user(a.image()), "user", "typed", media("image")),
    "a document": example(of_user(a.document()), "user", "typed", media("document")),
    "a document with a title": example(
        of_user(a.document() | {"title": "Plan"}), "user", "typed", media("document", title="Plan")
    ),
    "a document with a number for a title": example(
        of_user(a.document() | {"title": 7}), "user", "typed", media("document")
    ),
    "a reminder before words": example(
        of_user(a.reminder(), a.text("Go.")), "user", "typed", Part("reminder", REMINDER), text("Go.", 1)
    ),
    "a reminder alone": example(of_user(a.reminder()), "user", "notice", Part("reminder", REMINDER)),
    "a client's notice": example(a.user(NOTICE), "user", "notice", Part("notice", NOTICE)),
    "our command": example(a.user(COMMAND), "user", "typed", Part("command", COMMAND)),
    "a summary of the past": example(a.user(RECAP), "user", "recap", Part("recap", RECAP)),
    "a summary of the past beside words": example(
        of_user(a.text(RECAP), a.text("Go.")), "user", "recap", Part("recap", RECAP), text("Go.", 1)
    ),
    "a request for a summary": example(
        a.user(SUMMARY_REQUEST), "user", "summarise", Part("summarise", SUMMARY_REQUEST)
    ),
    "a request for a summary behind a result": example(
        of_user(a.tool_result("t1"), a.text(SUMMARY_REQUEST)),
        "user",
        "summarise",
        result("tool", "t1", "ok"),
        Part("summarise", SUMMARY_REQUEST, index=1),
    ),
    "nothing": example(a.user(""), "user", "notice", blank()),
    "white space": example(a.user(" \n"), "user", "notice", blank(" \n")),
    "no blocks": example(of_user(), "user", "typed"),
}

RESULTS: dict[str, Example] = {
    "a result as a string": example(
        a.results(a.tool_result("t1", "a\nb")), "user", "result", result("tool", "t1", "a\nb")
    ),
    "a result of blocks": example(
        a.results(a.tool_result("t1", [a.text("a"), a.text("b")])), "user", "result", result("tool", "t1", "a\nb")
    ),
    "a result that failed": example(
        a.results(a.tool_result("t1", "no", is_error=True)), "user", "result", result("tool", "t1", "no")
    ),
    "a result without content": example(
        a.results({"type": "tool_result", "tool_use_id": "t1"}), "user", "result", result("tool", "t1")
    ),
    "a result of nothing": example(a.results(a.tool_result("t1", [])), "user", "result", result("tool", "t1")),
    "a result of white space": example(
        a.results(a.tool_result("t1", [a.text(" ")])), "user", "result", result("tool", "t1", " ")
    ),
    "two results": example(
        a.results(a.tool_result("t1", "a"), a.tool_result("t2", "b")),
        "user",
        "result",
        result("tool", "t1", "a"),
        result("tool", "t2", "b", 1),
    ),
    "a result with a picture": example(
        a.results(a.tool_result("t1", [a.text("see"), a.image()])),
        "user",
        "result",
        result("tool", "t1", "see", media=("image",)),
    ),
    "a result that makes a tool known": example(
        a.results(a.tool_result("t1", [a.reference("Found"), a.reference("Other")])),
        "user",
        "result",
        result("tool", "t1", references=("Found", "Other")),
    ),
    "a result with a block that nobody knows": example(
        a.results(a.tool_result("t1", [a.text("see"), UPLOAD])),
        "user",
        "result",
        result("tool", "t1", f"see\n{opaque(UPLOAD).text}", text_alone=False),
    ),
    "what looks like a reminder in a result is text": example(
        a.results(a.tool_result("t1", REMINDER)), "user", "result", result("tool", "t1", REMINDER)
    ),
    "a result with words behind it": example(
        a.mixed(a.tool_result("t1"), "And the tests."),
        "user",
        "mixed",
        result("tool", "t1", "ok"),
        text("And the tests.", 1),
    ),
    "a result with a reminder behind it": example(
        of_user(a.tool_result("t1"), a.reminder()),
        "user",
        "result",
        result("tool", "t1", "ok"),
        Part("reminder", REMINDER, index=1),
    ),
    "a result with a picture behind it": example(
        of_user(a.tool_result("t1"), a.image()), "user", "mixed", result("tool", "t1", "ok"), media("image", 1)
    ),
}

OUTPUT: dict[str, Example] = {
    "a reply": example(a.assistant("Done."), "assistant", "reply", text("Done.")),
    "a blank reply": example(a.assistant(""), "assistant", "reply", blank()),
    "what looks like a notice in a reply is text": example(a.assistant(NOTICE), "assistant", "reply", text(NOTICE)),
    "a call": example(
        of_model(a.tool_use("t1", "Read", path="a.py", lines=[1, 2])),
        "assistant",
        "call",
        call("tool", "t1", "Read", "path: a.py\nlines: [1,2]"),
    ),
    "a call without arguments": example(of_model(a.tool_use("t1")), "assistant", "call", call("tool", "t1", "Read")),
    "words, then two calls": example(
        of_model(a.text("Let me look."), a.tool_use("t1", n=1), a.tool_use("t2", n=2)),
        "assistant",
        "call",
        text("Let me look."),
        call("tool", "t1", "Read", "n: 1", 1),
        call("tool", "t2", "Read", "n: 2", 2),
    ),
    "thinking": example(of_model(a.thinking("Hm.", "c2ln")), "assistant", "reasoning", thinking("Hm.", "c2ln")),
    "thinking that is hidden": example(of_model(a.redacted("b3Bh")), "assistant", "reasoning", thinking("", "b3Bh")),
    "thinking before words": example(
        of_model(a.thinking("Hm.", "c2ln"), a.text("Done.")),
        "assistant",
        "reply",
        thinking("Hm.", "c2ln"),
        text("Done.", 1),
    ),
    "thinking beside blank text": example(
        of_model(a.thinking("Hm.", "c2ln"), a.text(" ")), "assistant", "reply", thinking("Hm.", "c2ln"), blank(" ", 1)
    ),
    "thinking before a call": example(
        of_model(a.thinking("Hm.", "c2ln"), a.tool_use("t1")),
        "assistant",
        "call",
        thinking("Hm.", "c2ln"),
        call("tool", "t1", "Read", index=1),
    ),
    "a search of the provider": example(
        of_model(CALL, RESULT), "assistant", "call", server(CALL), server(RESULT, 1, is_signed=True)
    ),
    "another result of the provider": example(of_model(UNSIGNED_RESULT), "assistant", "call", server(UNSIGNED_RESULT)),
    "a call of the provider's MCP connector": example(
        of_model(MCP_CALL, MCP_RESULT), "assistant", "call", server(MCP_CALL), server(MCP_RESULT, 1)
    ),
    "a compaction": example(of_model(COMPACTION), "assistant", "compaction", compaction(COMPACTION)),
    "a compaction before a call": example(
        of_model(COMPACTION, a.tool_use("t1")),
        "assistant",
        "compaction",
        compaction(COMPACTION),
        call("tool", "t1", "Read", index=1),
    ),
}

SYSTEM: dict[str, Example] = {
    "a system message": example(a.system("Be brief."), "system", "system", text("Be brief.")),
    "a system message with a reminder is text": example(a.system(REMINDER), "system", "system", text(REMINDER)),
    "what a person said, in a system message": example(
        a.system(f"{INTERJECTION_PREFIX}\nFaster."), "system", "relayed", text(f"{INTERJECTION_PREFIX}\nFaster.")
    ),
}

NEW_BLOCK = {"type": "new_block", "value": [1.5, None]}
ODD: dict[str, Example] = {
    "a block of a new type": example(of_user(NEW_BLOCK), "user", "typed", opaque(NEW_BLOCK)),
    "a block of a new type in a reply": example(of_model(NEW_BLOCK), "assistant", "reply", opaque(NEW_BLOCK)),
    "a block without a type": example(of_user({"text": "hi"}), "user", "typed", opaque({"text": "hi"})),
    "a type that is a list": example(of_user({"type": ["text"]}), "user", "typed", opaque({"type": ["text"]})),
    "a type that is an object": example(of_user({"type": {}}), "user", "typed", opaque({"type": {}})),
    "a type that is a number": example(of_user({"type": 1}), "user", "typed", opaque({"type": 1})),
    "a block that is a string": example(of_user("hi"), "user", "typed", opaque("hi")),
    "a block that is null": example(of_user(None), "user", "typed", opaque(None)),
    "a block that is a list": example(of_user([a.text("hi")]), "user", "typed", opaque([a.text("hi")])),
    "text that is a number": example(of_user({"type": "text", "text": 7}), "user", "notice", blank()),
    "text that is missing": example(of_user({"type": "text"}), "user", "notice", blank()),
    "content that is null": example({"role": "user", "content": None}, "user", "typed"),
    "content that is missing": example({"role": "user"}, "user", "typed"),
    "content that is a number": example({"role": "user", "content": 7}, "user", "typed", opaque(7)),
    "content that is one block": example({"role": "user", "content": a.text("hi")}, "user", "typed", text("hi")),
    "a call with a number for an id": example(
        of_model({"type": "tool_use", "id": 7, "name": ["x"], "input": None}),
        "assistant",
        "call",
        call("tool", "", "", "null"),
    ),
    "a call without anything": example(
        of_model({"type": "tool_use"}), "assistant", "call", call("tool", "", "", "null")
    ),
    "a call with a string for arguments": example(
        of_model({"type": "tool_use", "id": "t1", "name": "Read", "input": " no JSON "}),
        "assistant",
        "call",
        call("tool", "t1", "Read", "no JSON"),
    ),
    "a call with JSON in a string for arguments": example(
        of_model({"type": "tool_use", "id": "t1", "name": "Read", "input": '{"path": "a.py"}'}),
        "assistant",
        "call",
        call("tool", "t1", "Read", "path: a.py"),
    ),
    "a result with a number for an id": example(
        a.results({"type": "tool_result", "tool_use_id": 7, "content": "ok"}),
        "user",
        "result",
        result("tool", "", "ok"),
    ),
    "a result that is a number": example(
        a.results(a.tool_result("t1", 7)), "user", "result", result("tool", "t1", "7", text_alone=False)
    ),
    "a result that is one block": example(
        a.results(a.tool_result("t1", a.text("ok"))), "user", "result", result("tool", "t1", "ok")
    ),
    "a result of lists": example(
        a.results(a.tool_result("t1", [["ok"]])), "user", "result", result("tool", "t1", '["ok"]', text_alone=False)
    ),
    "a result inside a result": example(
        a.results(a.tool_result("t1", [a.tool_result("t2", "ok")])),
        "user",
        "result",
        result("tool", "t1", opaque(a.tool_result("t2", "ok")).text, text_alone=False),
    ),
    "a reference with a number for a name": example(
        a.results(a.tool_result("t1", [{"type": "tool_reference", "tool_name": 7}])),
        "user",
        "result",
        result("tool", "t1", references=("",)),
    ),
    "a result in a reply": example(of_model(a.tool_result("t1")), "assistant", "reply", result("tool", "t1", "ok")),
    "thinking that is null": example(
        of_model({"type": "thinking", "thinking": None, "signature": 7}), "assistant", "reasoning", thinking()
    ),
    "a role that is new": example({"role": "root", "content": "hi"}, "unknown", "unknown", text("hi")),
    "a role that is missing": example({"content": "hi"}, "unknown", "unknown", text("hi")),
    "a role that is null": example({"role": None, "content": "hi"}, "unknown", "unknown", text("hi")),
    "a role that is a list": example({"role": ["user"], "content": "hi"}, "unknown", "unknown", text("hi")),
    "an empty object": example({}, "unknown", "unknown"),
    "a string": example("hi", "unknown", "unknown", opaque("hi")),
    "null": example(None, "unknown", "unknown", opaque(None)),
    "a number": example(7, "unknown", "unknown", opaque(7)),
    "a list": example([a.text("hi")], "unknown", "unknown", opaque([a.text("hi")])),
}

EXAMPLES = USER | RESULTS | OUTPUT | SYSTEM | ODD
