"""Which format a body has, what stands before its messages, and the body that goes out."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from openmem_hook import fingerprint
from openmem_hook.formats import ADAPTERS, adapter_for, adapter_named, anthropic, chat, responses
from openmem_hook.model import Adapter, Format
from tests.kit import builders as a
from tests.kit import chat_words as c
from tests.kit import responses_words as r
from tests.kit.builders import FORMATS, Json

MESSAGES = [a.user("hi")]
EMBEDDING = {"input": [101, 7592, 102], "model": "m"}
PASS = "pass_through_endpoint"

# --- the format -----------------------------------------------------------------------------------------------

FORMAT_OF: list[tuple[str, Json, Format | None]] = [
    ("anthropic_messages", {"messages": MESSAGES}, "anthropic"),
    ("anthropic_messages", {"messages": [c.result("call_1")]}, "anthropic"),
    ("acompletion", {"messages": MESSAGES}, "chat"),
    ("completion", {"messages": MESSAGES, "max_tokens": 5}, "chat"),
    ("responses", {"input": "hi"}, "responses"),
    ("aresponses", {"input": [r.user("hi")]}, "responses"),
    # The call type says nothing: only the shape can tell.
    (PASS, {"messages": MESSAGES, "max_tokens": 5}, "anthropic"),
    (PASS, {"messages": MESSAGES}, "chat"),
    (PASS, {"messages": [*MESSAGES, c.result("call_1")], "max_tokens": 5}, "chat"),
    (PASS, {"messages": [c.developer("hi"), *MESSAGES], "max_tokens": 5}, "chat"),
    (PASS, {"messages": [c.assistant("", c.call("call_1"))], "max_tokens": 5}, "chat"),
    (PASS, {"input": [r.user("hi")]}, "responses"),
    (PASS, {"input": "hi", "messages": MESSAGES}, "chat"),
    # No conversation, or none that shows its history.
    ("anthropic_messages", {"messages": []}, None),
    ("anthropic_messages", {"messages": "hi"}, None),
    ("anthropic_messages", {"messages": [*MESSAGES, "hi"]}, None),
    ("anthropic_messages", {"messages": None}, None),
    ("anthropic_messages", {}, None),
    ("anthropic_messages", {"input": "hi"}, None),
    ("acompletion", {"messages": [[]]}, None),
    ("acompletion", {"messages": {"role": "user"}}, None),
    ("aresponses", {"input": ""}, None),
    ("aresponses", {"input": []}, None),
    ("aresponses", {"input": ["hi"]}, None),
    ("aresponses", EMBEDDING, None),
    ("aresponses", {"input": [r.user("hi")], "previous_response_id": "resp_1"}, None),
    ("aresponses", {"input": [r.user("hi")], "conversation": "conv_1"}, None),
    (PASS, EMBEDDING, None),
    (PASS, {"prompt": "hi"}, None),
    # Call types that are none of ours.
    ("aembedding", {"input": "hi"}, None),
    ("acompletion", {"input": "hi"}, None),
    ("", {"messages": MESSAGES}, None),
]


@pytest.mark.parametrize(("call_type", "request_body", "fmt"), FORMAT_OF)
def test_a_body_has_a_format_by_call_type_and_shape(call_type: str, request_body: Json, fmt: Format | None) -> None:
    adapter = adapter_for(call_type, request_body)
    assert (adapter.name if adapter else None) == fmt


def test_each_format_is_found_by_its_name() -> None:
    assert [adapter_named(fmt) for fmt in FORMATS] == [anthropic, chat, responses]
    assert set(ADAPTERS) == {anthropic, chat, responses}
    assert adapter_named("soap") is None


# --- what stands before ---------------------------------------------------------------------------------------

EXTRA_TOOLS = {"type": "additional_tools", "tools": []}
LEADS: list[tuple[Adapter, list[Any], int]] = [
    (anthropic, [a.system("be brief"), a.user("hi")], 0),
    (chat, [c.user("hi")], 0),
    (chat, [c.system("a"), c.developer("b"), c.user("hi"), c.system("c")], 2),
    (chat, [c.system("a")], 1),
    (responses, ["hi"], 0),
    (responses, [r.developer("a"), EXTRA_TOOLS, {"role": "system", "content": "b"}, r.user("hi")], 3),
    (responses, [EXTRA_TOOLS], 1),
]
SYSTEMS: list[tuple[Adapter, Json, Any]] = [
    (anthropic, {"system": "be brief"}, "be brief"),
    (anthropic, {"system": [a.text("be brief")]}, [a.text("be brief")]),
    (anthropic, {}, None),
    (chat, {"system": "none of this API"}, None),
    (responses, {"instructions": "be brief"}, "be brief"),
    (responses, {}, None),
]
THINKING: list[tuple[Adapter, Any, bool]] = [
    (anthropic, {"type": "enabled", "budget_tokens": 1024}, True),
    (anthropic, {"type": "adaptive"}, False),
    (anthropic, {"type": "disabled"}, False),
    (anthropic, "enabled", False),
    (anthropic, None, False),
    (chat, {"type": "enabled"}, False),
    (responses, {"type": "enabled"}, False),
]


@pytest.mark.parametrize(("adapter", "messages", "count"), LEADS)
def test_the_system_prompt_in_message_form_is_counted(adapter: Adapter, messages: list[Any], count: int) -> None:
    assert adapter.lead_of(messages) == count


@pytest.mark.parametrize(("adapter", "request_body", "system"), SYSTEMS)
def test_the_system_prompt_beside_the_messages_is_read(adapter: Adapter, request_body: Json, system: Any) -> None:
    assert adapter.system_of(request_body) == system


@pytest.mark.parametrize(("adapter", "thinking", "must"), THINKING)
def test_only_messages_with_a_thinking_budget_must_start_with_thinking(
    adapter: Adapter, thinking: Any, must: bool
) -> None:
    assert adapter.must_start_with_thinking({"thinking": thinking}) is must


# --- the note -------------------------------------------------------------------------------------------------

NOTE = "Earlier messages may be left out."
HI = [a.user("hi")]


def system_of_blocks(*texts: str) -> Json:
    return {"system": [a.text(text) for text in texts], "messages": HI}


NOTES: list[tuple[Adapter, Json, Json]] = [
    (anthropic, {"messages": HI}, {"messages": HI, "system": NOTE}),
    (anthropic, {"system": None, "messages": HI}, {"system": NOTE, "messages": HI}),
    (anthropic, {"system": "", "messages": HI}, {"system": NOTE, "messages": HI}),
    (anthropic, {"system": "Be brief.", "messages": HI}, {"system": f"Be brief.\n\n{NOTE}", "messages": HI}),
    (anthropic, system_of_blocks(), system_of_blocks(NOTE)),
    (anthropic, system_of_blocks("Be brief."), system_of_blocks("Be brief.", NOTE)),
    (anthropic, {"system": {"odd": 1}, "messages": HI}, {"system": {"odd": 1}, "messages": HI}),
    (chat, {"messages": HI}, {"messages": [c.system(NOTE), *HI]}),
    (chat, {"messages": [c.system("A."), *HI]}, {"messages": [c.system(f"A.\n\n{NOTE}"), *HI]}),
    (chat, {"messages": [c.developer("A."), *HI]}, {"messages": [c.developer(f"A.\n\n{NOTE}"), *HI]}),
    (chat, {"messages": [c.system(""), *HI]}, {"messages": [c.system(NOTE), *HI]}),
    (
        chat,
        {"messages": [{"role": "system", "content": [c.text("A.")], "name": "x"}, c.system("B."), *HI]},
        {"messages": [{"role": "system", "content": [c.text("A."), c.text(NOTE)], "name": "x"}, c.system("B."), *HI]},
    ),
    (responses, {"input": "hi"}, {"input": "hi", "instructions": NOTE}),
    (responses, {"instructions": "", "input": "hi"}, {"instructions": NOTE, "input": "hi"}),
    (responses, {"instructions": None, "input": "hi"}, {"instructions": NOTE, "input": "hi"}),
    (responses, {"instructions": "A.", "input": "hi"}, {"instructions": f"A.\n\n{NOTE}", "input": "hi"}),
    (responses, {"instructions": [1], "input": "hi"}, {"instructions": [1], "input": "hi"}),
    (
        responses,
        {"instructions": "A.", "input": [r.developer("B."), r.user("hi")]},
        {"instructions": f"A.\n\n{NOTE}", "input": [r.developer("B."), r.user("hi")]},
    ),
    (
        responses,
        {"input": [EXTRA_TOOLS, r.developer("B."), r.developer("C."), r.user("hi")]},
        {"input": [EXTRA_TOOLS, r.user("B.", NOTE) | {"role": "developer"}, r.developer("C."), r.user("hi")]},
    ),
    (
        responses,
        {"input": [{"role": "system", "content": "B."}, r.user("hi")]},
        {"input": [{"role": "system", "content": f"B.\n\n{NOTE}"}, r.user("hi")]},
    ),
    (
        responses,
        {"input": [EXTRA_TOOLS, r.user("hi")]},
        {"input": [EXTRA_TOOLS, r.user("hi")], "instructions": NOTE},
    ),
]


def messages_of(adapter: Adapter, request_body: Json) -> list[Any]:
    messages = request_body[adapter.messages_key]
    return [messages] if isinstance(messages, str) else messages


@pytest.mark.parametrize(("adapter", "request_body", "body_with_note"), NOTES)
def test_the_note_ends_the_system_prompt_in_its_shape_and_only_once(
    adapter: Adapter, request_body: Json, body_with_note: Json
) -> None:
    before = copy.deepcopy(request_body)
    once = adapter.with_note(request_body, messages_of(adapter, request_body), NOTE)
    assert fingerprint.dump(once) == fingerprint.dump(body_with_note)
    twice = adapter.with_note(once, messages_of(adapter, once), NOTE)
    assert fingerprint.dump(twice) == fingerprint.dump(once)
    assert request_body == before


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_note_goes_into_the_system_prompt_of_the_messages_that_go_out(fmt: Format) -> None:
    adapter, request_body = adapter_named(fmt), a.session(fmt, turns=2)
    assert adapter is not None
    shorter = [*messages_of(adapter, request_body)[:2], messages_of(adapter, request_body)[-1]]
    out = adapter.with_note(request_body, shorter, NOTE)
    assert len(messages_of(adapter, out)) == len(shorter)
    assert messages_of(adapter, out)[-1] is shorter[-1]
    prompt = {"system", "instructions", adapter.messages_key}
    assert {k: v for k, v in out.items() if k not in prompt} == {
        k: v for k, v in request_body.items() if k not in prompt
    }


# --- the messages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_body_with_its_own_messages_is_the_same_body(fmt: Format) -> None:
    adapter, request_body = adapter_named(fmt), a.session(fmt)
    assert adapter is not None
    messages = messages_of(adapter, request_body)
    out = adapter.with_messages(request_body, messages)
    assert fingerprint.dump(out) == fingerprint.dump(request_body)
    assert all(one is other for one, other in zip(messages_of(adapter, out), messages, strict=True))


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_body_with_other_messages_differs_in_nothing_else(fmt: Format) -> None:
    adapter, request_body = adapter_named(fmt), a.session(fmt)
    assert adapter is not None
    before = copy.deepcopy(request_body)
    out = adapter.with_messages(request_body, messages_of(adapter, request_body)[:1])
    assert out == {**request_body, adapter.messages_key: messages_of(adapter, request_body)[:1]}
    assert list(out) == list(request_body)
    assert request_body == before


def test_a_bare_string_stays_one_where_nothing_was_put_around_it() -> None:
    text = "hi there"
    assert responses.with_messages({"input": text}, [text]) == {"input": text}
    message = responses.with_pointer(text, "before")
    assert responses.with_messages({"input": text}, [message]) == {"input": [message]}
    assert responses.with_messages({"input": text}, [a.user("head"), text])["input"] == [a.user("head"), text]
