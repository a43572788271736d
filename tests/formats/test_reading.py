"""What is read in single messages, and which of them are the same message to us."""

from __future__ import annotations

from typing import Any

import pytest

from openmem_hook import fingerprint
from openmem_hook.formats import anthropic, chat, responses
from openmem_hook.model import Adapter
from tests.formats.examples import Example
from tests.formats.tables import every, facts_of, without_identity
from tests.kit import builders as a
from tests.kit import chat_words as c
from tests.kit import responses_words as r

# --- reading --------------------------------------------------------------------------------------------------


@every
def test_a_message_has_its_role_kind_and_parts(adapter: Adapter, row: Example) -> None:
    assert adapter.role_of(row.raw) == row.role
    assert without_identity(adapter.parts_of(row.raw)) == list(row.parts)
    facts = facts_of(adapter, row.raw)
    assert facts.kind == row.kind
    assert facts.role == ("tool" if row.kind == "result" else row.role)


@every
def test_the_facts_are_those_of_the_parts(adapter: Adapter, row: Example) -> None:
    facts = facts_of(adapter, row.raw)
    assert facts.calls == tuple(part.call_id for part in row.parts if part.kind == "call")
    assert facts.tool_names == tuple(part.name for part in row.parts if part.kind == "call")
    assert facts.answers == tuple(part.call_id for part in row.parts if part.kind == "result")
    assert facts.has_thinking == any(part.kind == "thinking" for part in row.parts)
    assert facts.media == sum(len(part.media) for part in row.parts)
    slots = [part for part in row.parts if part.kind == "result" and part.text_alone and not part.references]
    assert [(slot.at, slot.chars) for slot in facts.results] == [(part.index, len(part.text)) for part in slots]


@every
def test_a_message_that_was_stored_is_read_as_before(adapter: Adapter, row: Example) -> None:
    again = fingerprint.load(fingerprint.dump(row.raw))
    assert adapter.parts_of(again) == adapter.parts_of(row.raw)
    assert facts_of(adapter, again) == facts_of(adapter, row.raw)


# --- identity -------------------------------------------------------------------------------------------------

SAME: list[tuple[Adapter, Any, Any]] = [
    (anthropic, a.user("hi"), a.user(a.text("hi"))),
    (anthropic, a.user("hi"), a.user("  hi\n")),
    (anthropic, a.user("hi"), a.user(a.marked(a.text("hi")))),
    (anthropic, a.user("hi"), a.user(a.reminder(), a.text("hi"))),
    (anthropic, a.user("hi"), a.user(a.text("hi"), a.text(" "))),
    (anthropic, a.assistant(a.text("hi")), a.assistant(a.thinking(), a.text("hi"))),
    (anthropic, a.assistant(a.tool_use("t1", a=1, b=2.0)), a.assistant(a.tool_use("t1", b=2, a=1))),
    (anthropic, a.results(a.tool_result("t1", "ok")), a.results(a.tool_result("t1", [a.text(" ok ")]))),
    (
        anthropic,
        a.results(a.tool_result("t1", "ok")),
        a.results(a.marked(a.tool_result("t1", [a.marked(a.text("ok"))]))),
    ),
    (anthropic, a.results(a.tool_result("t1", "")), a.results(a.tool_result("t1", None))),
    (anthropic, a.user(a.image()), a.user(a.marked(a.image()))),
    (chat, c.user("hi"), c.user(c.text("hi"))),
    (chat, c.assistant("", c.call("call_1", a=1)), c.assistant(None, c.call("call_1", a=1)) | {"reasoning": "Hm."}),
    (
        chat,
        {"role": "assistant", "tool_calls": [{"id": "call_1", "function": {"name": "read", "arguments": '{"a":1}'}}]},
        {
            "role": "assistant",
            "tool_calls": [{"id": "call_1", "function": {"name": "read", "arguments": '{ "a": 1.0 }'}}],
        },
    ),
    (chat, c.system("hi"), c.developer("hi")),
    (responses, "hi", r.user("hi")),
    (responses, r.user("hi"), {"role": "user", "content": "hi"}),
    (responses, r.assistant("hi", "msg_1"), r.assistant("hi", "msg_2")),
    (responses, r.web_search("ws_1"), r.web_search("ws_2")),
]
DIFFERENT: list[tuple[Adapter, Any, Any]] = [
    (anthropic, a.user("hi"), a.user("ho")),
    (anthropic, a.user("hi"), a.assistant("hi")),
    (anthropic, a.user("hi"), a.system("hi")),
    (anthropic, a.user("a b"), a.user(a.text("a"), a.text("b"))),
    (anthropic, a.user(a.text("a"), a.text("b")), a.user(a.text("b"), a.text("a"))),
    (anthropic, a.assistant(a.tool_use("t1")), a.assistant(a.tool_use("t2"))),
    (anthropic, a.assistant(a.tool_use("t1", "Read")), a.assistant(a.tool_use("t1", "Edit"))),
    (anthropic, a.assistant(a.tool_use("t1", a=1)), a.assistant(a.tool_use("t1", a="1"))),
    (anthropic, a.results(a.tool_result("t1")), a.results(a.tool_result("t1", is_error=True))),
    (anthropic, a.results(a.tool_result("t1")), a.results(a.tool_result("t2"))),
    (anthropic, a.user(a.image(a.picture(1))), a.user(a.image(a.picture(2)))),
    (anthropic, a.user(a.image()), a.user(a.document())),
    (anthropic, a.assistant(a.thinking(signature="b25l")), a.assistant(a.thinking(signature="dHdv"))),
    (anthropic, a.user(a.reminder("one")), a.user(a.reminder("two"))),
    (chat, c.assistant(None, c.call("x")), {"role": "assistant", "function_call": {"name": "x", "arguments": "{}"}}),
    (chat, c.result("x"), {"role": "function", "name": "x", "content": "ok"}),
    (responses, r.call("call_1", "read"), r.custom_call("call_1", "{}", "read")),
    (responses, r.output("call_1"), r.custom_output("call_1", "ok")),
    (responses, r.reasoning("rs_1", "b25l"), r.reasoning("rs_1", "dHdv")),
]


@pytest.mark.parametrize(("adapter", "one", "other"), SAME)
def test_what_clients_vary_makes_no_other_message(adapter: Adapter, one: Any, other: Any) -> None:
    assert facts_of(adapter, one).digest == facts_of(adapter, other).digest


@pytest.mark.parametrize(("adapter", "one", "other"), DIFFERENT)
def test_what_says_something_else_is_another_message(adapter: Adapter, one: Any, other: Any) -> None:
    assert facts_of(adapter, one).digest != facts_of(adapter, other).digest


@every
def test_only_what_clients_insert_or_drop_has_no_identity(adapter: Adapter, row: Example) -> None:
    varies = bool(row.parts) and {part.kind for part in row.parts} <= {"thinking", "reminder", "blank"}
    assert facts_of(adapter, row.raw).identifies is not varies
