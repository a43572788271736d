"""What freezing, shortening and pointing change in a single message, and what they leave as it was."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from openmem_hook import fingerprint
from openmem_hook.formats import anthropic, chat, responses
from openmem_hook.formats.breakpoints import markers
from openmem_hook.model import Adapter
from tests.formats.examples import Example
from tests.formats.tables import every, every_object, facts_of, without_identity
from tests.kit import builders as a
from tests.kit import chat_words as c
from tests.kit import responses_words as r

MARKER = {"type": "ephemeral"}


# --- freezing -------------------------------------------------------------------------------------------------


@every_object
@pytest.mark.parametrize("keep_thinking", [True, False])
def test_a_message_keeps_its_identity_in_a_head(adapter: Adapter, row: Example, keep_thinking: bool) -> None:
    before = copy.deepcopy(row.raw)
    head_form = adapter.freeze_message(row.raw, keep_thinking)
    assert row.raw == before
    if head_form is None:
        assert not keep_thinking
        assert {part.kind for part in row.parts} <= {"thinking", "blank"}
        return
    facts = facts_of(adapter, row.raw)
    assert not facts.identifies or facts_of(adapter, head_form).digest == facts.digest
    assert adapter is responses or markers([head_form]) == []
    assert adapter.freeze_message(head_form, keep_thinking) == head_form


HEAD_FORMS: list[tuple[Adapter, Any, Any]] = [
    (anthropic, a.assistant(a.thinking(), a.text("hi")), a.assistant(a.text("hi"))),
    (anthropic, a.assistant(a.redacted(), a.tool_use("t1")), a.assistant(a.tool_use("t1"))),
    (anthropic, a.assistant(a.thinking()), None),
    (anthropic, a.assistant(a.thinking(), a.text(" ")), None),
    (anthropic, a.assistant(a.text(" "), a.text("")), a.assistant(a.text(" "), a.text(""))),
    (anthropic, a.user(""), a.user("")),
    (anthropic, a.user(a.marked(a.text("hi"))), a.user(a.text("hi"))),
    (
        anthropic,
        a.results(a.marked(a.tool_result("t1", [a.marked(a.text("ok"))]))),
        a.results(a.tool_result("t1", [a.text("ok")])),
    ),
    (
        anthropic,
        a.assistant(a.tool_use("t1", cache_control=MARKER)),
        a.assistant(a.tool_use("t1", cache_control=MARKER)),
    ),
    (chat, c.assistant("hi") | {"reasoning_content": "Hm."}, c.assistant("hi")),
    (chat, c.assistant("", c.call("call_1")) | {"reasoning": "Hm."}, c.assistant("", c.call("call_1"))),
    (chat, {"role": "assistant", "content": None, "thinking_blocks": [a.thinking()]}, None),
    (chat, {"role": "assistant", "content": " ", "reasoning": "Hm."}, None),
    (chat, {"role": "assistant", "reasoning": "Hm."}, None),
    (chat, c.assistant(None), c.assistant(None)),
    (chat, c.user(c.text("hi") | {"cache_control": MARKER}) | {"cache_control": MARKER}, c.user(c.text("hi"))),
    (responses, r.reasoning("rs_1"), r.reasoning("rs_1")),
    (responses, r.assistant("hi", "msg_1"), r.assistant("hi", "msg_1")),
]


@pytest.mark.parametrize(("adapter", "raw", "head_form"), HEAD_FORMS)
def test_a_head_shows_a_message_without_thinking_and_breakpoints(adapter: Adapter, raw: Any, head_form: Any) -> None:
    assert adapter.freeze_message(raw, keep_thinking=False) == head_form


def test_a_head_that_may_hold_thinking_shows_a_message_without_breakpoints_alone() -> None:
    raw = a.assistant(a.thinking(), a.marked(a.text("hi")))
    assert anthropic.freeze_message(raw, keep_thinking=True) == a.assistant(a.thinking(), a.text("hi"))
    reply = c.assistant("hi") | {"reasoning": "Hm."}
    assert chat.freeze_message(reply, keep_thinking=True) is reply


# --- shortening -----------------------------------------------------------------------------------------------

SHORT = "short"


@every
def test_a_result_is_shortened_in_its_text_alone(adapter: Adapter, row: Example) -> None:
    facts = facts_of(adapter, row.raw)
    for slot in facts.results:
        if not slot.chars:
            continue
        before = copy.deepcopy(row.raw)
        raw = adapter.shorten_result(row.raw, slot.at, SHORT)
        assert row.raw == before
        assert without_identity(adapter.parts_of(raw)) == [
            replace(part, text=SHORT) if part.kind == "result" and part.index == slot.at else part for part in row.parts
        ]
        assert facts_of(adapter, raw).answers == facts.answers
        assert len(markers([raw])) == len(markers([row.raw]))


SHORT_FORMS: list[tuple[Adapter, Any, int, Any]] = [
    (anthropic, a.results(a.tool_result("t1", "long")), 0, a.results(a.tool_result("t1", SHORT))),
    (
        anthropic,
        a.results(a.marked(a.tool_result("t1", "long", is_error=True)) | {"x": 1}),
        0,
        a.results(a.marked(a.tool_result("t1", SHORT, is_error=True)) | {"x": 1}),
    ),
    (
        anthropic,
        a.results(a.tool_result("t1", "long"), a.tool_result("t2", "long"), a.text("go"), a.image()) | {"x": 1},
        1,
        a.results(a.tool_result("t1", "long"), a.tool_result("t2", SHORT), a.text("go"), a.image()) | {"x": 1},
    ),
    (
        anthropic,
        a.results(a.tool_result("t1", [a.image(), a.text("long"), a.document(), a.text("long")])),
        0,
        a.results(a.tool_result("t1", [a.image(), a.text(SHORT), a.document()])),
    ),
    (
        anthropic,
        a.results(a.tool_result("t1", [a.text("long"), a.marked(a.text("long"), "1h")])),
        0,
        a.results(a.tool_result("t1", [a.marked(a.text(SHORT), "1h")])),
    ),
    (
        anthropic,
        a.results(a.tool_result("t1", [a.marked(a.text("long")) | {"citations": []}, a.image()])),
        0,
        a.results(a.tool_result("t1", [a.marked(a.text(SHORT)) | {"citations": []}, a.image()])),
    ),
    (chat, c.result("call_1", "long") | {"name": "read"}, 0, c.result("call_1", SHORT) | {"name": "read"}),
    (chat, c.result("call_1", [c.text("long"), c.text("long")]), 0, c.result("call_1", [c.text(SHORT)])),
    (
        chat,
        {"role": "function", "name": "weather", "content": "long"},
        0,
        {"role": "function", "name": "weather", "content": SHORT},
    ),
    (responses, r.output("call_1", "long") | {"id": "fco_1"}, 0, r.output("call_1", SHORT) | {"id": "fco_1"}),
    (
        responses,
        r.output("call_1", [r.image("eA=="), {"type": "input_text", "text": "long"}]),
        0,
        r.output("call_1", [r.image("eA=="), {"type": "input_text", "text": SHORT}]),
    ),
    (responses, r.custom_output("call_1", "long"), 0, r.custom_output("call_1", SHORT)),
]


@pytest.mark.parametrize(("adapter", "raw", "index", "short_form"), SHORT_FORMS)
def test_ids_flags_other_blocks_and_the_breakpoint_stay(
    adapter: Adapter, raw: Any, index: int, short_form: Any
) -> None:
    assert fingerprint.dump(adapter.shorten_result(raw, index, SHORT)) == fingerprint.dump(short_form)


# --- the pointer ----------------------------------------------------------------------------------------------

POINTER = "<openmem-pointer>\n3 messages left.\n</openmem-pointer>"


@every_object
def test_the_pointer_stands_before_the_words_and_never_before_a_result(adapter: Adapter, row: Example) -> None:
    if row.kind not in ("typed", "mixed", "notice", "recap") or not isinstance(row.raw.get("content", ""), (str, list)):
        return
    before, content = copy.deepcopy(row.raw), row.raw.get("content")
    raw = adapter.with_pointer(row.raw, POINTER)
    assert row.raw == before
    parts = adapter.parts_of(raw)
    at = next(i for i, part in enumerate(parts) if part.text.startswith(POINTER))
    assert {part.kind for part in parts[:at]} <= {"result"}
    assert "result" not in {part.kind for part in parts[at:]}
    if isinstance(content, list):
        assert [*raw["content"][:at], *raw["content"][at + 1 :]] == content
    else:
        assert raw["content"] == (f"{POINTER}\n\n{content}" if content else POINTER)


POINTERS: list[tuple[Adapter, Any, Any]] = [
    (anthropic, a.user("hi"), a.user(f"{POINTER}\n\nhi")),
    (anthropic, a.user(""), a.user(POINTER)),
    (anthropic, {"role": "user", "content": None}, a.user(POINTER)),
    (anthropic, a.user(a.marked(a.text("hi"))), a.user(a.text(POINTER), a.marked(a.text("hi")))),
    (anthropic, a.user(a.image(), a.text("hi")), a.user(a.text(POINTER), a.image(), a.text("hi"))),
    (
        anthropic,
        a.results(a.tool_result("t1"), a.tool_result("t2"), a.text("hi")),
        a.results(a.tool_result("t1"), a.tool_result("t2"), a.text(POINTER), a.text("hi")),
    ),
    (
        anthropic,
        a.results(a.text("odd"), a.tool_result("t1")),
        a.results(a.text("odd"), a.tool_result("t1"), a.text(POINTER)),
    ),
    (chat, c.user("hi"), c.user(f"{POINTER}\n\nhi")),
    (chat, c.user(""), c.user(POINTER)),
    (chat, c.user("hi", c.image("eA==")), c.user(POINTER, c.text("hi"), c.image("eA=="))),
    (responses, "hi", r.user(f"{POINTER}\n\nhi")),
    (responses, {"role": "user", "content": "hi"}, {"role": "user", "content": f"{POINTER}\n\nhi"}),
    (responses, r.user("hi"), r.user(POINTER, "hi")),
]


@pytest.mark.parametrize(("adapter", "raw", "with_pointer"), POINTERS)
def test_the_pointer_comes_in_the_shape_of_the_message(adapter: Adapter, raw: Any, with_pointer: Any) -> None:
    assert fingerprint.dump(adapter.with_pointer(raw, POINTER)) == fingerprint.dump(with_pointer)
