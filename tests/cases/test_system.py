"""Public bug reports about system prompts and roles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from openmem_hook.compaction.wording import NOTE
from openmem_hook.gateway.hook import ContextHook
from openmem_hook.replay.provider.breakpoints import breakpoints
from tests.harness.conversation import Conversation, messages_of
from tests.kit import builders as a
from tests.kit.builders import Json, chat, responses, session
from tests.kit.histories import growth
from tests.kit.prefix import assert_untouched, check

SMALL = "trim_at_tokens=4000,compress_over_tokens=0"
MIDDLE = "trim_at_tokens=8000,compress_over_tokens=0"
NewHook = Callable[..., ContextHook]


def same(one: Any, other: Any) -> bool:
    return bool(orjson.dumps(one) == orjson.dumps(other))


def noted(out: Json) -> int:
    """How often the note is in a request."""
    return orjson.dumps(out).decode().count(NOTE)


# --- the standing note ---------------------------------------------------------------------------------------

BILLING = a.text("x-anthropic-billing-header: cc_version=2.1.332.a1b; cc_entrypoint=cli;")
IDENTITY = a.text("You are Claude Code, Anthropic's official CLI for Claude.")
CLAUDE_CODE = [BILLING, a.marked(IDENTITY, "1h"), a.marked(a.text("Follow the rules of the house."), "1h")]
SYSTEMS: dict[str, Any] = {
    "missing": None,
    "empty": "",
    "empty list": [],
    "identity": IDENTITY["text"],
    "string": f"{IDENTITY['text']}\n\nFollow the rules.\n",
    "one block": [IDENTITY],
    "claude code": CLAUDE_CODE,
}


@pytest.mark.parametrize("shape", SYSTEMS)
@pytest.mark.parametrize("exchanges", [1, 60])
async def test_the_note_ends_the_system_prompt_in_the_shape_the_client_used(
    shape: str, exchanges: int, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    given_body = session("anthropic", exchanges=exchanges) | {"system": SYSTEMS[shape]}
    if SYSTEMS[shape] is None:
        del given_body["system"]
    out = await line.send(given_body)
    theirs, ours = SYSTEMS[shape], out["system"]
    if isinstance(theirs, list):
        assert same(ours, [*theirs, a.text(NOTE)])
    else:
        assert ours == (f"{theirs}\n\n{NOTE}" if theirs else NOTE)
    assert noted(out) == 1
    assert line.trims() == (exchanges > 10)


@pytest.mark.parametrize("named", [True, False])
async def test_a_talk_without_tools_is_not_told_of_tools(named: bool, new_hook: NewHook) -> None:
    line = Conversation(new_hook())
    if not named:
        line._from_gateway = lambda fmt: {}  # type: ignore[method-assign]
    for request in growth(session("anthropic", exchanges=0, turns=4)):
        without = {key: value for key, value in request.items() if key != "tools"}
        assert same(await line.send(without), without)


@pytest.mark.parametrize("shape", SYSTEMS)
async def test_a_body_that_went_through_once_gets_no_second_note(shape: str, new_hook: NewHook) -> None:
    line = Conversation(new_hook())
    out = await line.send({**session("anthropic"), "system": SYSTEMS[shape] or "x"})
    again = await line.send(out)
    assert_untouched(out, again)
    assert noted(again) == 1


@pytest.mark.parametrize("ttl", ["", "5m", "1h"])
async def test_the_note_has_no_breakpoint_and_moves_none(ttl: str, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    given_body = session("anthropic", exchanges=60)
    given_body["system"] = [BILLING, a.marked(IDENTITY, ttl), a.marked(a.text("Rules."), ttl)]
    given_body["tools"][-1] = a.marked(given_body["tools"][-1], ttl)
    given_body["messages"][-1]["content"][-1] = a.marked(given_body["messages"][-1]["content"][-1], ttl)
    out = await line.send(given_body)
    assert [mark.place for mark in breakpoints(out)][:3] == ["tools.1", "system.1", "system.2"]
    assert len(breakpoints(out)) == len(breakpoints(given_body)) == 4
    assert same(out["system"][:3], given_body["system"])


LEADS: dict[str, list[Json]] = {
    "none": [],
    "one": [chat.system("You are an agent.")],
    "two": [chat.system("You are an agent."), chat.system("Rules.")],
    "developer first": [chat.developer("You are an agent."), chat.system("Rules.")],
    "parts": [{"role": "system", "content": [chat.text("You are an agent."), a.marked(chat.text("Rules."))]}],
    "empty": [chat.system("")],
}


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("exchanges", [1, 60])
async def test_in_chat_the_note_ends_the_first_system_message(lead: str, exchanges: int, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    history = [*LEADS[lead], *messages_of(session("chat", exchanges=exchanges))[1:]]
    given_body = {**chat.body(), "messages": history}
    out = await line.send(given_body)
    ours = messages_of(out)
    assert noted(out) == 1
    if lead == "none":
        assert same(ours[0], chat.system(NOTE))
        ours = ours[1:]
    elif lead == "parts":
        assert same(ours[0]["content"], [*LEADS[lead][0]["content"], chat.text(NOTE)])
    else:
        words = LEADS[lead][0]["content"]
        assert ours[0] == {**LEADS[lead][0], "content": f"{words}\n\n{NOTE}" if words else NOTE}
    assert same(ours[1 : len(LEADS[lead])], LEADS[lead][1:])
    assert [m["role"] for m in ours].count("system") + [m["role"] for m in ours].count("developer") == len(LEADS[lead])
    again = await line.send(out)
    assert noted(again) == 1


INSTRUCTIONS: dict[str, Any] = {"absent": ..., "null": None, "empty": "", "string": "You are Codex."}


@pytest.mark.parametrize("shape", INSTRUCTIONS)
@pytest.mark.parametrize("developers", [0, 2])
async def test_in_responses_the_note_ends_instructions_or_the_first_developer_message(
    shape: str, developers: int, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    lead = [responses.developer(f"Rules {n}.") for n in range(developers)]
    given_body = responses.body(*lead, *messages_of(session("responses", exchanges=60)))
    if INSTRUCTIONS[shape] is not ...:
        given_body["instructions"] = INSTRUCTIONS[shape]
    out = await line.send(given_body)
    assert noted(out) == 1
    if INSTRUCTIONS[shape] == "You are Codex.":
        assert out["instructions"] == f"You are Codex.\n\n{NOTE}"
        assert same(messages_of(out)[:developers], lead)
    elif developers:
        assert out.get("instructions") == given_body.get("instructions")
        assert same(messages_of(out)[0]["content"], [*lead[0]["content"], {"type": "input_text", "text": NOTE}])
        assert same(messages_of(out)[1:developers], lead[1:])
    else:
        assert out["instructions"] == NOTE
    assert_untouched(out, await line.send(out))


@pytest.mark.parametrize("content", ["Rules.", [{"type": "input_text", "text": "Rules."}]])
async def test_a_developer_message_keeps_its_shape(content: Any, new_hook: NewHook) -> None:
    line = Conversation(new_hook())
    lead = {"role": "developer", "content": content}
    out = await line.send(responses.body(lead, *messages_of(session("responses"))))
    assert type(messages_of(out)[0]["content"]) is type(content)
    assert noted(out) == 1


async def test_a_delta_without_instructions_gets_none(new_hook: NewHook) -> None:
    line = Conversation(new_hook())
    delta = responses.body(responses.output("call_1"), previous_response_id="resp_1")
    assert_untouched(delta, await line.send(delta))


async def test_instructions_of_a_shape_nobody_knows_are_not_replaced(new_hook: NewHook) -> None:
    line = Conversation(new_hook())
    told = [{"type": "message", "role": "developer", "content": "Rules."}]
    out = await line.send(session("responses") | {"instructions": told})
    assert same(out["instructions"], told)


@pytest.mark.parametrize("fmt", a.FORMATS)
async def test_the_note_is_the_same_in_every_request_of_a_session(fmt: a.Format, new_hook: NewHook) -> None:
    hook = new_hook(trim_at_tokens=4000)
    line = Conversation(hook)
    told = set()
    for exchanges in (1, 5, 30, 60):
        out = await line.send(session(fmt, exchanges=exchanges))
        held = {"anthropic": out.get("system"), "chat": messages_of(out)[0], "responses": out.get("instructions")}
        told.add(orjson.dumps(held[fmt]))
    assert len(told) == 1
    assert line.trims() >= 1


# --- a line that changes on each request -----------------------------------------------------------------------


def rotating(n: int) -> list[Json]:
    """Claude Code's billing line: a hash field and a version that differ from request to request."""
    line = f"x-anthropic-billing-header: cc_version=2.1.{n}.{n * 7919 % 1048576:05x}; cch={n * 104729 % 1048576:05x};"
    return [a.text(line), a.marked(IDENTITY), a.marked(a.text("Follow the rules."))]


def dated(n: int) -> list[Json]:
    """The date and the state of the work tree in a later block."""
    return [BILLING, IDENTITY, a.text(f"Today is 2031-01-{n + 1:02d}. {n} files changed."), a.marked(a.text("Rules."))]


def as_string(n: int) -> str:
    return f"You are an agent. Today is day {n}."


CHANGING: dict[str, Callable[[int], Any]] = {"billing line": rotating, "date": dated, "string": as_string}


@pytest.mark.parametrize("kind", CHANGING)
async def test_a_system_prompt_that_changes_each_time_changes_nothing_else(kind: str, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=MIDDLE)
    history = messages_of(session("anthropic", exchanges=70))
    heads = set()
    for n in range(10):
        out = await line.send(a.body(*history[: 121 + 2 * n], system=CHANGING[kind](n)))
        theirs = CHANGING[kind](n)
        if isinstance(theirs, list):
            assert same(out["system"][:-1], theirs)
        heads.add(orjson.dumps(messages_of(out)[0]))
    assert (line.trims(), len(heads)) == (1, 1)
    assert {row.thread for row in line.rows()} == {"main-1"}
    assert len(line.rows()) == 121 + 18


@pytest.mark.parametrize("fmt", ["chat", "responses"])
async def test_leading_messages_that_change_each_time_change_nothing_else(fmt: a.Format, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=MIDDLE)
    history = messages_of(session(fmt, exchanges=70))[fmt == "chat" :]
    developer = chat.developer if fmt == "chat" else responses.developer
    heads = set()
    for n in range(10):
        lead = [developer(as_string(n)), developer("Rules.")]
        given_body = {**session(fmt), ("input" if fmt == "responses" else "messages"): [*lead, *history[: 151 + n * 3]]}
        while check(given_body, fmt):
            messages_of(given_body).pop()
        out = await line.send(given_body)
        assert as_string(n) in str(messages_of(out)[0])
        assert same(messages_of(out)[1], lead[1])
        heads.add(orjson.dumps(messages_of(out)[2]))
    assert (line.trims(), len(heads)) == (1, 1)


# --- several system and developer messages ---------------------------------------------------------------------


def talk_with_developers(fmt: a.Format, turns: int) -> list[Json]:
    """Turns with a developer message after the typed words, or before the next ones."""
    words = chat if fmt == "chat" else responses
    made: list[Json] = []
    for turn in range(turns):
        made += [words.user(f"Task {turn}."), words.developer(f"Rule after {turn}.")]
        for step in range(4):
            call = f"call_{turn}_{step}"
            text = f"{call}\n" * 60
            if fmt == "chat":
                made += [chat.assistant(None, chat.call(call)), chat.result(call, text)]
            else:
                made += [responses.call(call), responses.output(call, text)]
        made += [words.assistant(f"Done {turn}."), words.developer(f"Rule before {turn + 1}.")]
    return [*made, words.user("Last task.")]


def rules_of(messages: list[Json]) -> list[bytes]:
    return [orjson.dumps(m) for m in messages if m.get("role") in ("system", "developer")]


@pytest.mark.parametrize("fmt", ["chat", "responses"])
@pytest.mark.parametrize("turns", [3, 12])
async def test_leading_messages_stay_and_later_ones_keep_their_places(
    fmt: a.Format, turns: int, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings="trim_at_tokens=3000,compress_over_tokens=0")
    developer = chat.developer if fmt == "chat" else responses.developer
    lead = [developer("You are an agent."), chat.system("House rules."), developer("Permissions: all.")]
    history = talk_with_developers(fmt, turns)
    body = {**session(fmt), ("input" if fmt == "responses" else "messages"): [*lead, *history]}
    for _ in range(6):
        out = await line.send(body)
        ours = messages_of(out)
        assert same(ours[1:3], lead[1:])
        assert [m.get("role") for m in ours[:3]] == ["developer", "system", "developer"]
        rules, given = rules_of(ours[3:]), rules_of(history)
        assert rules == [rule for rule in given if rule in rules]
        tail = rules[1:] if rules and rules[0] == given[0] else rules
        assert tail == given[len(given) - len(tail) :]
        more = f"more_{len(history)}"
        if fmt == "chat":
            history += [chat.assistant(None, chat.call(more)), chat.result(more), developer(f"Rule {more}.")]
        else:
            history += [responses.call(more), responses.output(more), developer(f"Rule {more}.")]
        body = {**body, ("input" if fmt == "responses" else "messages"): [*lead, *history]}
    assert line.trims() >= 1


@pytest.mark.parametrize("role", ["developer", "system"])
async def test_a_developer_message_is_no_turn_of_the_person(role: str, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    history = messages_of(session("chat", exchanges=60))[1:]
    history[60:60] = [{"role": role, "content": "Be brief."}]
    out = await line.send(chat.body(chat.system("You are an agent."), *history))
    assert line.trims() == 1
    assert "Task 0" in str(messages_of(out)[1]["content"])
    assert line.rows()[61].role == "system"


async def test_system_messages_amid_an_anthropic_history_keep_their_places(new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings="trim_at_tokens=3000,compress_over_tokens=0")
    history = messages_of(session("anthropic", turns=6, exchanges=4, size=600))
    history[1:1] = [{**a.system(a.text("Tools and skills. " * 20)), "output_config": {"effort": "high"}}]
    history[20:20] = [a.system("Tools changed.")] if history[19]["role"] == "user" else []
    history.append(a.system("One more tool."))
    out = await line.send(a.body(*history))
    assert line.trims() == 1
    assert same(messages_of(out)[1], history[1])
    assert same(messages_of(out)[-1], history[-1])
