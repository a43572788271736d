"""Public bug reports about thinking: echoed byte for byte, and first in a running turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from openmem_hook.gateway.hook import ContextHook
from tests.conftest import make_key
from tests.harness.conversation import Conversation, messages_of
from tests.kit.builders import (
    Json,
    assistant,
    body,
    marked,
    redacted,
    reference,
    reminder,
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
from tests.kit.filler import listing, prose
from tests.kit.prefix import check

SMALL = "trim_at_tokens=4000,compress_over_tokens=0"
ENABLED = {"type": "enabled", "budget_tokens": 2048}
ADAPTIVE = {"type": "adaptive"}
NewHook = Callable[..., ContextHook]


def same(one: Any, other: Any) -> bool:
    return bool(orjson.dumps(one) == orjson.dumps(other))


def thought(step: object) -> Json:
    return thinking(prose(80, "thought", step), f"c2ln{step}AAAA")


def exchange(step: int, *lead: Json, size: int = 400) -> list[Json]:
    call = f"toolu_{step}"
    return [assistant(*lead, tool_use(call, path=call)), results(tool_result(call, listing(size, step)))]


# --- the latest assistant message --------------------------------------------------------------------------

WEIRD: list[Json] = [
    {"thinking": "Zwölf Boxkämpfer\u2028 \u200d🧑\u200d🚀 ﬁ \u0301", "type": "thinking", "signature": "c2lnbmVk"},
    {"text": "  Two  spaces, \ttab and trailing \n", "type": "text"},
    {
        "name": "Write",
        "type": "tool_use",
        "input": {
            "z": 1.0,
            "a": 0.1000000000000000055,
            "big": 12345678901234567890,
            "e": 1e-7,
            "cache_control": {"q": 1},
        },
        "id": "toolu_one",
    },
    {"data": "b3BhcXVl", "type": "redacted_thinking"},
    {"signature": "c2lnbmVkMg==", "thinking": "", "type": "thinking"},
    {"input": {"path": "\\u0041 é \x00"}, "id": "toolu_two", "name": "Read", "type": "tool_use"},
]
ANSWERS = results(tool_result("toolu_one", listing(20_000, 1)), tool_result("toolu_two", [text(listing(20_000, 2))]))
ENDINGS: dict[str, list[Json]] = {
    "results": [{"content": WEIRD, "role": "assistant"}, ANSWERS],
    "two outputs in a row": [assistant(text("Wait.")), {"content": WEIRD, "role": "assistant"}, ANSWERS],
    "typed": [{"role": "assistant", "content": WEIRD[:2]}, user("Go on.")],
    "prefill": [{"role": "assistant", "content": [text("The answer is")]}],
    "prefill as a string": [{"role": "assistant", "content": "The answer is"}],
}
SETTINGS = {
    "nothing to do": "trim_at_tokens=900000",
    "trim": SMALL,
    "compression": "trim_at_tokens=900000,compress_over_tokens=200",
    "both": "trim_at_tokens=4000,compress_over_tokens=200",
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("mark", [False, True])
async def test_the_last_assistant_message_is_echoed_byte_for_byte(
    ending: str, setting: str, mark: bool, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings=SETTINGS[setting])
    task = user(marked(text("Sort out the parser."))) if mark else user("Sort out the parser.")
    history = [task, *(message for step in range(60) for message in exchange(step)), *ENDINGS[ending]]
    out = await line.send(body(*history, system="You are Claude Code."))
    assert line.trims() == (setting in ("trim", "both"))
    last = [message for message in history if message["role"] == "assistant"][-1]
    sent = [message for message in messages_of(out) if message["role"] == "assistant"]
    if ending == "typed" and line.trims():  # a reply in the head leaves its thinking behind, whole
        assert same(sent[-1]["content"], last["content"][1:])
    else:
        assert same(sent[-1], last)


@pytest.mark.parametrize("steps", [1, 7, 40])
async def test_outputs_of_a_client_are_never_merged(steps: int, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    history = [user("Sort out the parser."), *(m for step in range(steps) for m in exchange(step))]
    tail = [assistant(text("One.")), assistant(text("Two.")), user("And now?"), assistant(text("Three."))]
    tail += [assistant(thought("last"), tool_use("toolu_last")), results(tool_result("toolu_last"))]
    out = await line.send(body(*history, *tail, thinking=ENABLED))
    assert same(messages_of(out)[-3:], tail[-3:])


# --- the first output of a running turn ----------------------------------------------------------------------


def running(steps: int, thinks: Callable[[int], bool], *, lead: bool = False) -> list[Json]:
    """A turn of exchanges, some of which begin with thinking, the others with the call or with words."""
    made: list[Json] = []
    for step in range(steps):
        blocks = [thought(step)] if thinks(step) else []
        made += exchange(step, *blocks, *([text("Step.")] if lead else []))
    return made


def carries_thinking(message: Json) -> bool:
    return bool(message["content"][0]["type"] in ("thinking", "redacted_thinking"))


def first_output(out: Json) -> Json:
    """The first output after the newest typed words."""
    messages = messages_of(out)
    at = max(i for i, m in enumerate(messages) if m["role"] == "user" and "tool_result" not in str(m["content"]))
    return next(message for message in messages[at:] if message["role"] == "assistant")


PATTERNS: dict[str, Callable[[int], bool]] = {
    "each": lambda step: True,
    "the first alone": lambda step: step == 0,
    "every fifth": lambda step: step % 5 == 0,
    "the first and one late": lambda step: step in (0, 37),
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("lead", [False, True])
@pytest.mark.parametrize("before", [False, True])
async def test_a_running_turn_that_is_cut_anywhere_still_begins_with_thinking(
    pattern: str, lead: bool, before: bool, new_hook: NewHook
) -> None:
    hook = new_hook()
    done = [user("Hello."), assistant(thought("hello"), text("Hello to you."))] if before else []
    history = [*done, user("Sort out the parser.")]
    turn = running(60, PATTERNS[pattern], lead=lead)
    for trim_at in range(2600, 8000, 500):
        key = make_key(f"user-{trim_at}")  # a fork within a tenant would take its parent's cut
        line = Conversation(hook, key=key, settings=f"trim_at_tokens={trim_at},compress_over_tokens=0")
        out = await line.send(body(*history, *turn, thinking=ENABLED))
        assert line.trims() == 1
        assert carries_thinking(first_output(out))
        assert not check(out, "anthropic")
        assert len(orjson.dumps(messages_of(out))) / 2.5 < trim_at


@pytest.mark.parametrize("pattern", PATTERNS)
async def test_a_turn_grows_through_many_cuts_with_thinking_enabled(pattern: str, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    history = [user("Sort out the parser."), *running(100, PATTERNS[pattern])]
    for end in range(1, len(history) + 1, 2):
        out = await line.send(body(*history[:end], thinking=ENABLED))
        assert len(orjson.dumps(messages_of(out))) / 2.5 < 4000
    assert line.trims() >= 3


@pytest.mark.parametrize("mode", [None, {"type": "disabled"}, ADAPTIVE])
@pytest.mark.parametrize("pattern", PATTERNS)
async def test_without_enabled_thinking_only_the_last_exchanges_are_kept(
    mode: Json | None, pattern: str, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings="trim_at_tokens=2000,compress_over_tokens=0")
    out = await line.send(body(user("Sort out the parser."), *running(60, PATTERNS[pattern]), thinking=mode))
    assert len(messages_of(out)) == 1 + 2 * 3


@pytest.mark.parametrize("pin", ["reference", "search"])
@pytest.mark.parametrize("at", [3, 20, 44])
async def test_what_is_pinned_in_a_running_turn_does_not_stand_first_without_thinking(
    pin: str, at: int, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    turn = running(60, PATTERNS["the first and one late"])
    found = [assistant(tool_use("toolu_pin", "Bash")), results(tool_result("toolu_pin", [reference("Found")]))]
    searched = [assistant(*server_search("srvtoolu_pin"), tool_use("toolu_pin")), results(tool_result("toolu_pin"))]
    turn[2 * at : 2 * at] = found if pin == "reference" else searched
    turn += [assistant(tool_use("toolu_use", "Found")), results(tool_result("toolu_use"))]
    tools = [tool("Read"), tool("Bash"), tool("Found", defer_loading=True)]
    out = await line.send(body(user("Sort out the parser."), *turn, thinking=ENABLED, tools=tools))
    assert line.trims() == 1
    assert "toolu_pin" in orjson.dumps(messages_of(out)).decode()
    assert carries_thinking(first_output(out))


NOTICE = "<task-notification>The agent is done.</task-notification>"
INTERRUPTIONS: dict[str, list[Json]] = {
    "notice": [user(NOTICE)],
    "reminder": [user(reminder())],
    "system": [system("Tools changed.")],
}


@pytest.mark.parametrize("kind", INTERRUPTIONS)
@pytest.mark.parametrize("at", [2, 30, 57])
async def test_what_a_client_puts_into_a_running_turn_changes_nothing_of_the_rule(
    kind: str, at: int, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    turn = running(60, lambda step: step in (0, at))
    turn[2 * at : 2 * at] = INTERRUPTIONS[kind]
    out = await line.send(body(user("Sort out the parser."), *turn, thinking=ENABLED))
    assert line.trims() == 1
    assert not check(out, "anthropic")
    assert len(orjson.dumps(messages_of(out))) / 2.5 < 4000


async def test_redacted_thinking_opens_a_turn_as_well(new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    turn = exchange(0, redacted()) + [m for step in range(1, 60) for m in exchange(step)]
    out = await line.send(body(user("Sort out the parser."), *turn, thinking=ENABLED))
    assert same(first_output(out), turn[0])
    assert not check(out, "anthropic")


async def test_words_typed_beside_a_result_do_not_begin_a_turn_for_this_rule(new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    turn = running(60, lambda step: step == 0)
    turn[81] = {"role": "user", "content": [*turn[81]["content"], text("And be quick.")]}
    out = await line.send(body(user("Sort out the parser."), *turn, thinking=ENABLED))
    assert line.trims() == 1
    assert not check(out, "anthropic")
    assert len(orjson.dumps(messages_of(out))) / 2.5 < 4000
