"""Public bug reports about pairs and message shapes."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openmem_hook import config
from openmem_hook.compaction.wording import NOTE
from openmem_hook.compactor import Compactor
from openmem_hook.gateway.hook import ContextHook
from openmem_hook.gateway.notices import Notices
from tests.conftest import make_key
from tests.harness.conversation import Conversation, faults, messages_of, pointers
from tests.kit import builders as a
from tests.kit.builders import FORMATS, Format, Json, chat, responses
from tests.kit.filler import listing, prose
from tests.kit.histories import render, talks
from tests.kit.prefix import assert_untouched, check
from tests.kit.shapes import Talk

SMALL = "trim_at_tokens=4000,compress_over_tokens=0"
NewHook = Callable[..., ContextHook]


def same(one: Any, other: Any) -> bool:
    return bool(orjson.dumps(one) == orjson.dumps(other))


def with_messages(body: Json, messages: list[Any]) -> Json:
    return {**body, ("input" if "input" in body else "messages"): messages}


def calls_in(message: Json) -> list[str]:
    """Ids of the calls a message makes, in any format."""
    content = message.get("content")
    found = [b["id"] for b in content if b.get("type") == "tool_use"] if isinstance(content, list) else []
    found += [call["id"] for call in message.get("tool_calls") or []]
    return found + ([message["call_id"]] if str(message.get("type")).endswith("_call") and "call_id" in message else [])


def answers_in(message: Json) -> list[str]:
    content = message.get("content")
    found = [b["tool_use_id"] for b in content if b.get("type") == "tool_result"] if isinstance(content, list) else []
    found += [message["tool_call_id"]] if "tool_call_id" in message else []
    return found + ([message["call_id"]] if str(message.get("type")).endswith("_output") else [])


def running_exchanges(body: Json) -> list[str]:
    """The exchanges since the newest message that brings no result, newest first, each as JSON."""
    found: list[str] = []
    open_results = ""
    for message in reversed(messages_of(body)):
        told = orjson.dumps(message).decode()
        if message.get("role") == "user" and not answers_in(message):
            break
        if answers_in(message):
            open_results += told
        elif calls_in(message) and open_results:
            found.append(open_results + told)
            open_results = ""
        elif found:
            found[-1] += told
    return found


PINS = ("server_tool_use", "tool_reference")


def exchange(fmt: Format, call: str, size: int = 400, name: str = "Read") -> list[Json]:
    """One call with its result."""
    text = listing(size, call)
    if fmt == "anthropic":
        return [a.assistant(a.tool_use(call, name, path=call)), a.results(a.tool_result(call, text))]
    if fmt == "chat":
        return [chat.assistant(None, chat.call(call, name, path=call)), chat.result(call, text)]
    return [responses.call(call, name, path=call), responses.output(call, text)]


def exchanges(fmt: Format, count: int, prefix: str = "call", size: int = 400) -> list[Json]:
    return [message for n in range(count) for message in exchange(fmt, f"{prefix}_{n}", size)]


def typed(fmt: Format, words: str) -> Json:
    return {"anthropic": a.user, "chat": chat.user, "responses": responses.user}[fmt](words)


def reply(fmt: Format, words: str) -> Json:
    return {"anthropic": a.assistant, "chat": chat.assistant, "responses": responses.assistant}[fmt](words)


def body(fmt: Format, *messages: Json, **fields: Any) -> Json:
    made = {"anthropic": a.body, "chat": chat.body, "responses": responses.body}[fmt]
    return made(*messages, **fields)


# --- a result whose call is gone ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContextHook]:
    """One hook for hundreds of small sessions."""
    state = tmp_path_factory.mktemp("pairing")
    base = config.load({"compress_over_tokens": 0, "deadline_s": 60}, {"OPENMEM_STATE_DIR": str(state)})
    hook = ContextHook(base, Compactor(state / "context"), Notices())
    yield hook
    hook.compactor.close()


numbers = itertools.count()


@pytest.mark.laws
def test_no_cut_of_500_histories_parts_a_result_from_its_call(shared: ContextHook) -> None:
    trimmed = 0

    @settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.sampled_from(FORMATS),
        st.sampled_from((80, 300)).flatmap(lambda size: talks(size=size)),
        st.integers(1000, 8000),
    )
    def every(fmt: Format, talk: Talk, trim_at: int) -> None:
        nonlocal trimmed
        given_body = render(talk, fmt)
        key = make_key(f"user-{next(numbers)}")
        line = Conversation(shared, key=key, settings=f"trim_at_tokens={trim_at}")
        out = asyncio.run(line.send(given_body))
        assert not check(out, fmt)
        for trim in line.events("trim"):
            trimmed += 1
            free = [made for made in running_exchanges(out) if not any(pin in made for pin in PINS)]
            assert trim["tokens_after"] <= trim_at or len(free) <= 3 + (talk.thinking == "enabled")

    every()
    assert trimmed > 100


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("trim_at", [2700, 5100, 9900, 20_000])
async def test_a_session_goes_on_after_any_number_of_cuts(fmt: Format, trim_at: int, new_hook: NewHook) -> None:
    hook = new_hook(trim_at_tokens=trim_at, compress_over_tokens=0)
    history = [typed(fmt, "Read everything.")]
    line = Conversation(hook)
    while line.trims() < 3:
        history += exchanges(fmt, 1, f"call_{len(history)}", size=trim_at // 10)
        out = await line.send(body(fmt, *history))
        assert len(orjson.dumps(messages_of(out))) / 2.5 < trim_at
        assert len(history) < 400


# --- parallel calls ----------------------------------------------------------------------------------------


def parallel(fmt: Format, calls: list[str], order: list[int], big: int, size: int) -> list[Json]:
    """Calls in one output, answers in another order, one of them huge."""
    texts = [listing(size if at == big else 60, call) for at, call in enumerate(calls)]
    if fmt == "anthropic":
        made = [a.tool_result(call, text) for call, text in zip(calls, texts, strict=True)]
        return [a.assistant(*(a.tool_use(call) for call in calls)), a.results(*(made[at] for at in order))]
    if fmt == "chat":
        answered = [chat.result(call, text) for call, text in zip(calls, texts, strict=True)]
        return [
            {**chat.assistant(None, *(chat.call(call) for call in calls)), "content": None},
            *(answered[at] for at in order),
        ]
    outputs = [responses.output(call, text) for call, text in zip(calls, texts, strict=True)]
    return [*(responses.call(call) for call in calls), *(outputs[at] for at in order)]


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]])
@pytest.mark.parametrize("big", [0, 2, 3])
async def test_parallel_calls_are_cut_as_one_and_keep_every_answer(
    fmt: Format, order: list[int], big: int, new_hook: NewHook
) -> None:
    hook = new_hook(trim_at_tokens=4000, compress_over_tokens=300)
    history = [typed(fmt, "Read four at a time.")]
    line = Conversation(hook)
    for step in range(12):
        history += parallel(fmt, [f"call_{step}_{n}" for n in range(4)], order, big, size=4000)
        given_body = body(fmt, *history)
        out = await line.send(given_body)
        ours, theirs = messages_of(out), messages_of(given_body)
        made = [call for message in ours for call in calls_in(message)]
        assert sorted(made) == sorted(call for message in ours for call in answers_in(message))
        answered = [call for message in theirs for call in answers_in(message)]
        assert [call for message in ours for call in answers_in(message)] == answered[-len(made) :]
    assert line.trims() >= 1
    assert line.events("compression")


# --- the client's history is broken already ------------------------------------------------------------------


def dangling(fmt: Format, call: str) -> list[Json]:
    """A call that the person interrupted."""
    return exchange(fmt, call)[:1]


def orphan(fmt: Format, call: str) -> list[Json]:
    """A result whose call never was."""
    return exchange(fmt, call)[1:]


def halves(fmt: Format, call: str) -> list[Json]:
    """Two parallel calls of which one was answered."""
    made = parallel(fmt, [f"{call}_x", f"{call}_y"], [0, 1], 0, 60)
    if fmt == "anthropic":
        return [made[0], a.results(made[1]["content"][0])]
    return made[:-1]


BROKEN = {"dangling": dangling, "orphan": orphan, "half": halves}


def turns(fmt: Format, *places: tuple[int, list[Json]]) -> list[Json]:
    """Eight turns of four exchanges; what is broken is put in before the typed words of the turns named."""
    history: list[Json] = []
    for turn in range(8):
        history += [message for at, broken in places if at == turn for message in broken]
        history += [typed(fmt, f"Task {turn}."), *exchanges(fmt, 4, f"call_{turn}"), reply(fmt, f"Done {turn}.")]
    return history


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("turn", range(1, 8))
async def test_what_is_broken_in_old_history_leaves_with_its_turn(
    fmt: Format, kind: str, turn: int, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    history = [*turns(fmt, (turn, BROKEN[kind](fmt, "broken"))), typed(fmt, "Go on."), *exchanges(fmt, 2, "late")]
    out = await line.send(body(fmt, *history))
    assert line.trims() == 1
    assert not any("broken" in call for message in messages_of(out) for call in calls_in(message) + answers_in(message))
    assert not check(out, fmt)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("kind", BROKEN)
async def test_what_is_broken_in_the_tail_stays_as_the_client_sent_it(
    fmt: Format, kind: str, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    tail = [*exchanges(fmt, 1, "late"), *BROKEN[kind](fmt, "broken"), *exchanges(fmt, 1, "later")]
    given_body = body(fmt, *turns(fmt), typed(fmt, "Go on."), *tail)
    out = await line.send(given_body)
    assert line.trims() == 1
    assert same(messages_of(out)[-len(tail) :], tail)
    assert faults(out) == faults(given_body)
    assert len(line.rows()) == len(messages_of(given_body))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("kind", BROKEN)
async def test_what_is_broken_at_the_very_end_stays_and_the_real_answer_finds_its_call(
    fmt: Format, kind: str, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    end = BROKEN[kind](fmt, "broken")
    history = [*turns(fmt), typed(fmt, "Go on."), *exchanges(fmt, 2, "late"), *end]
    out = await line.send(body(fmt, *history))
    assert same(messages_of(out)[-len(end) :], end)
    if kind == "dangling":
        history += exchange(fmt, "broken")[1:]
        assert not check(await line.send(body(fmt, *history)), fmt)


async def test_an_answer_that_comes_after_its_call_was_cut_away_has_its_call_back(new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    history = [*turns("responses"), *dangling("responses", "late"), responses.user("Never mind.")]
    await line.send(responses.body(*history))
    assert line.trims() == 1
    line.last = None  # the cut no longer stands, which is a break
    answered = [*history, *orphan("responses", "late"), *exchanges("responses", 1, "more")]
    assert not check(await line.send(responses.body(*answered)), "responses")


AMID: dict[str, Json] = {
    "typed": responses.user("Faster, please."),
    "notice": responses.user("<subagent_notification>done</subagent_notification>"),
    "developer": responses.developer("New rule."),
    "reply": responses.assistant("Waiting."),
    "reasoning": responses.reasoning("rs_amid"),
    "unknown": {"type": "brand_new_item", "data": 1},
    "compaction": {"type": "compaction", "encrypted_content": "gAAA"},
}


@pytest.mark.parametrize("kind", AMID)
@pytest.mark.parametrize("at", [1, 2, 3, 4])
@pytest.mark.parametrize("place", ["old", "newest"])
async def test_an_exchange_stays_whole_whatever_stands_among_its_items(
    kind: str, at: int, place: str, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    amid = parallel("responses", ["amid_1", "amid_2", "amid_3"], [2, 1, 0], 0, 60)
    amid[at:at] = [AMID[kind]]
    given_body = responses.body(*turns("responses"), responses.user(TASK), *amid, *exchanges("responses", 40))
    if place == "old":
        messages_of(given_body).extend(
            [responses.assistant("Done."), responses.user("Next."), *exchange("responses", "n")]
        )
    out = await line.send(given_body)
    assert line.trims() == 1
    assert faults(out) <= faults(given_body)
    assert len(pointers(out)) == 1
    assert len(orjson.dumps(messages_of(out))) / 2.5 < 4000
    assert (AMID[kind] in messages_of(out)) or kind != "unknown" or place == "old"


async def test_a_history_that_begins_with_exchanges_is_cut_like_any_other(new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    start = [responses.reasoning("rs_1"), *exchanges("responses", 30, "old")]
    out = await line.send(responses.body(*start, responses.user(TASK), *exchanges("responses", 2, "new")))
    assert line.trims() == 1
    assert pointers(out) == [(0, 0)]
    assert len(messages_of(out)) == 5


# --- where the pointer goes ----------------------------------------------------------------------------------

TASK = "Sort out the parser."
TYPED = {
    "string": TASK,
    "list": [a.text(TASK)],
    "picture first": [a.image(), a.text(TASK)],
    "reminder first": [a.reminder(), a.text(TASK)],
    "several": [a.text("See this:"), a.document(), a.text(TASK), a.reminder()],
}


@pytest.mark.parametrize("shape", TYPED)
@pytest.mark.parametrize("system", [False, True])
async def test_the_pointer_of_a_long_running_turn_stands_in_the_words_that_began_it(
    shape: str, system: bool, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    task = {"role": "user", "content": TYPED[shape]}
    between = [a.system("Tools: Read, Bash.")] if system else []
    out = await line.send(a.body(task, *between, *exchanges("anthropic", 200)))
    assert pointers(out) == [(0, 0)]
    shown = messages_of(out)[0]["content"]
    assert shown.endswith(TASK) if isinstance(shown, str) else same(shown[1:], task["content"])


@pytest.mark.parametrize("fmt", FORMATS)
async def test_the_pointer_is_in_the_newest_typed_message_and_nowhere_else(fmt: Format, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    history = [*turns(fmt), typed(fmt, TASK), *exchanges(fmt, 40, "late")]
    out = await line.send(body(fmt, *history))
    ((at, _),) = pointers(out)
    assert TASK in str(messages_of(out)[at]["content"])


@pytest.mark.parametrize("fmt", ["chat", "responses"])
@pytest.mark.parametrize("shape", ["string", "parts", "picture first"])
async def test_the_pointer_stands_first_in_strings_and_in_parts(fmt: Format, shape: str, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    words = chat if fmt == "chat" else responses
    parts = words.user(TASK, "Now.") if shape == "parts" else words.user(words.image(a.picture()), TASK)
    task = {"role": "user", "content": TASK if shape == "string" else parts["content"]}
    out = await line.send(body(fmt, *turns(fmt), task, *exchanges(fmt, 60)))
    ((at, spot),) = pointers(out)
    shown = messages_of(out)[at]["content"]
    assert spot == 0
    assert shown.endswith(TASK) if shape == "string" else same(shown[1:], task["content"])


async def test_words_typed_beside_a_result_that_open_a_history_keep_the_call_they_answer(new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    start = [a.user("<command-name>/init</command-name>"), a.assistant(a.tool_use("call_first"))]
    beside = a.mixed(a.tool_result("call_first", listing(200, 1)), TASK)
    out = await line.send(a.body(*start, beside, *exchanges("anthropic", 100)))
    assert line.trims() == 1
    for at, spot in pointers(out):
        before = messages_of(out)[at]["content"][:spot] if isinstance(messages_of(out)[at]["content"], list) else []
        after = messages_of(out)[at]["content"][spot:] if isinstance(messages_of(out)[at]["content"], list) else []
        assert not any(block["type"] == "tool_result" for block in after[1:]), before


@pytest.mark.parametrize("begins", ["notice", "recap", "two notices"])
@pytest.mark.parametrize("then", ["running", "mixed", "typed", "typed with system"])
async def test_a_history_that_nobody_typed_at_first_is_cut_all_the_same(
    begins: str, then: str, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    notice = a.user("<command-name>/init</command-name>")
    start = {"notice": [notice], "recap": [a.user(f"{RECAP}x")], "two notices": [notice, notice]}[begins]
    start = [*start, a.system("Tools: Read.")] if then == "typed with system" else start
    history = [*start, *exchanges("anthropic", 30, "init"), a.system("More."), *exchanges("anthropic", 5, "more")]
    if then == "mixed":
        history[-1] = a.mixed(history[-1]["content"][0], TASK)
    if then.startswith("typed"):
        history += [a.user(TASK)]
    out = await line.send(a.body(*history, *exchanges("anthropic", 30)))
    assert line.trims() == 1
    assert not check(out, "anthropic")
    assert len(orjson.dumps(messages_of(out))) / 2.5 < 4000
    assert same(messages_of(out)[: len(start) - 1], start[:-1]) or then == "typed with system"


@pytest.mark.parametrize("step", [1, 3])
async def test_system_and_reminder_messages_amid_a_running_turn_are_no_neighbours(step: int, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings="trim_at_tokens=2500,compress_over_tokens=0")
    turn = exchanges("anthropic", 60)
    for at in range(len(turn), 0, -2 * step):
        turn[at:at] = [a.user(a.reminder(f"Step {at}."))]
    out = await line.send(a.body(a.user(TASK), a.system("Tools: Read."), *turn))
    assert line.trims() == 1
    assert same(messages_of(out)[1], a.system("Tools: Read."))
    assert len(messages_of(out)) < 20


@pytest.mark.parametrize("later", [False, True])
async def test_a_provider_compaction_that_ends_in_a_call_keeps_the_results_after_it(
    later: bool, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    folded = a.assistant({"type": "compaction", "content": "The story so far."}, a.tool_use("call_first"))
    answered = a.results(a.tool_result("call_first", listing(300, 1)))
    more = [a.assistant("Done."), a.user(TASK), *exchanges("anthropic", 50, "last")] if later else []
    out = await line.send(a.body(a.user("Start."), folded, answered, *exchanges("anthropic", 100), *more))
    assert line.trims() == 1
    assert same(messages_of(out)[1:3], [folded, answered])
    ((at, _),) = pointers(out)
    assert at > 2


def folded(fmt: Format, call: str) -> list[Json]:
    """A provider's compaction, with a call in the same output."""
    call_of, answer = exchange(fmt, call)
    if fmt == "responses":
        return [{"type": "compaction", "encrypted_content": "gAAA" + "xY7" * 400}, call_of, answer]
    return [{**call_of, "content": [{"type": "compaction", "content": "The story."}, *call_of["content"]]}, answer]


@pytest.mark.parametrize("fmt", ["anthropic", "responses"])
@pytest.mark.parametrize("turn", ["running", "next"])
async def test_a_provider_compaction_in_mid_session_breaks_no_prefix_and_is_never_trimmed(
    fmt: Format, turn: str, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    history = [typed(fmt, TASK), *exchanges(fmt, 40, "before")]
    await line.send(body(fmt, *history))
    compaction = folded(fmt, "call_folded")
    history += compaction
    await line.send(body(fmt, *history))
    assert line.trims() == 1
    history += [reply(fmt, "Done."), typed(fmt, "Go on.")] if turn == "next" else []
    for step in range(40):
        history += exchanges(fmt, 1, f"after_{step}")
        out = await line.send(body(fmt, *history))
    assert line.trims() >= 2
    sent = [orjson.dumps(message) for message in messages_of(out)]
    kept = compaction[:1] if fmt == "responses" else compaction  # there the call is an item of its own
    assert all(orjson.dumps(message) in sent for message in kept)
    assert len({row.thread for row in line.rows()}) == 1


@pytest.mark.parametrize("fmt", ["anthropic", "responses"])
async def test_nothing_before_a_provider_compaction_counts(fmt: Format, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings="trim_at_tokens=6000,compress_over_tokens=0")
    history = [typed(fmt, TASK), *exchanges(fmt, 18, "before"), *folded(fmt, "call_folded")]
    for step in range(18):
        history += exchanges(fmt, 1, f"after_{step}")
        await line.send(body(fmt, *history))
    assert line.trims() == 0
    history += exchanges(fmt, 18, "more")
    await line.send(body(fmt, *history))
    assert line.trims() == 1


# --- item types of Codex -------------------------------------------------------------------------------------

FAMILIES: dict[str, list[Json]] = {
    "function": [responses.call("c_fun"), responses.output("c_fun", listing(300, 1))],
    "custom": [responses.custom_call("c_cus"), responses.custom_output("c_cus", listing(300, 2))],
    "local shell": [responses.shell_call("c_loc"), responses.shell_output("c_loc", listing(300, 3))],
    "local shell by id": [
        responses.shell_call("c_lid"),
        {"type": "local_shell_call_output", "id": "c_lid", "output": listing(300, 4)},
    ],
    "shell": [
        {"type": "shell_call", "call_id": "c_she", "action": {"commands": ["ls"]}, "status": "completed"},
        {"type": "shell_call_output", "call_id": "c_she", "output": [{"stdout": listing(300, 5), "stderr": ""}]},
    ],
    "apply patch": [
        {"type": "apply_patch_call", "call_id": "c_pat", "operation": {"type": "update_file", "diff": "@@"}},
        {"type": "apply_patch_call_output", "call_id": "c_pat", "status": "completed", "output": listing(300, 6)},
    ],
    "computer": [
        {"type": "computer_call", "call_id": "c_com", "action": {"type": "screenshot"}, "status": "completed"},
        {
            "type": "computer_call_output",
            "call_id": "c_com",
            "output": {"type": "computer_screenshot", "image_url": f"data:image/png;base64,{a.picture()}"},
        },
    ],
    "tool search": [
        {"type": "tool_search_call", "call_id": "c_sea", "arguments": {"query": "mail"}, "execution": "client"},
        {"type": "tool_search_output", "call_id": "c_sea", "tools": [responses.tool("mail")], "execution": "client"},
    ],
    "tool search of the provider": [
        {"type": "tool_search_call", "call_id": None, "id": "ts_1", "arguments": {"query": "x"}},
        {"type": "tool_search_output", "call_id": None, "id": "tso_1", "tools": [responses.tool("x")]},
    ],
    "web search": [responses.web_search("ws_1")],
    "phase": [{**responses.assistant("Looking.", "msg_phase"), "phase": "commentary"}],
    "unknown": [{"type": "brand_new_item", "id": "new_1", "data": {"b": 1, "a": [1.50]}}],
    "unknown with call id": [{"type": "brand_new_item", "call_id": "c_fun", "payload": "x"}],
}
LEADING: list[Json] = [
    responses.developer("You are Codex."),
    {"type": "additional_tools", "role": "developer", "tools": [responses.tool("later")]},
    {"type": "additional_tools", "tools": [responses.tool("later still")]},
    responses.developer("Permissions: read only."),
]


@pytest.mark.parametrize("family", FAMILIES)
async def test_items_of_any_family_in_the_tail_stay_byte_for_byte(family: str, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    tail = [*exchanges("responses", 1, "late"), *FAMILIES[family], *exchanges("responses", 1, "later")]
    items = [*LEADING, *turns("responses"), responses.user(TASK), *tail]
    out = await line.send(responses.body(*items))
    assert line.trims() == 1
    assert same(messages_of(out)[-len(tail) :], tail)
    told = messages_of(out)[: len(LEADING)]
    assert same(told[1:], LEADING[1:])
    assert told[0]["content"][0] == LEADING[0]["content"][0]


@pytest.mark.parametrize("family", FAMILIES)
async def test_items_of_any_family_leave_with_their_turn(family: str, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    items = [*LEADING, *turns("responses", (3, FAMILIES[family])), responses.user(TASK), *exchanges("responses", 3)]
    out = await line.send(responses.body(*items))
    assert line.trims() == 1
    assert not any(same(item, gone) for item in messages_of(out) for gone in FAMILIES[family])


@pytest.mark.parametrize("family", ["unknown", "unknown with call id"])
@pytest.mark.parametrize("thought", [False, True])
async def test_an_item_nobody_knows_is_never_taken_out_of_a_running_turn(
    family: str, thought: bool, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    strange = [*([responses.reasoning("rs_strange")] if thought else []), *FAMILIES[family]]
    turn = [*exchanges("responses", 30, "late"), *strange, *exchanges("responses", 30, "later")]
    out = await line.send(responses.body(*turns("responses"), responses.user(TASK), *turn))
    assert line.trims() == 1
    at = messages_of(out).index(strange[0])
    assert same(messages_of(out)[at : at + len(strange)], strange)
    assert len(messages_of(out)) < len(turn) - 40, "what stands around it leaves"
    assert not check(out, "responses")


async def test_an_output_is_matched_with_a_call_of_its_own_family_only(new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    items: list[Json] = [responses.user(TASK)]
    for step in range(40):
        items += [responses.call("same"), responses.output("same", listing(300, step))] if step == 3 else []
        items += [responses.custom_call("same"), responses.custom_output("same")] if step == 37 else []
        items += exchange("responses", f"call_{step}")
    out = await line.send(responses.body(*items))
    assert line.trims() == 1
    assert not check(out, "responses")


# --- encrypted reasoning -------------------------------------------------------------------------------------


def reasoned(turn: int, steps: int = 1) -> list[Json]:
    """A turn whose weight is its reasoning."""
    items = [responses.user(f"Question {turn}")]
    for step in range(steps):
        name = f"{turn}_{step}"
        items += [responses.reasoning(f"rs_{name}", "gAAA" + "xY7" * 2000), *exchange("responses", f"c_{name}", 40)]
    return [*items, responses.reasoning(f"rs_{turn}", "gAAA" + "Qz4" * 2000), responses.assistant(f"Answer {turn}.")]


@pytest.mark.parametrize("steps", [0, 1, 3])
async def test_reasoning_counts_and_leaves_with_its_turn(steps: int, new_hook: NewHook) -> None:
    line = Conversation(new_hook(trim_at_tokens=20_000))
    history: list[Json] = []
    for turn in range(70):
        out = await line.send(responses.body(*history, responses.user(f"Question {turn}")))
        history += reasoned(turn, steps)
    assert line.trims() >= 2
    assert len(orjson.dumps(out)) * 0.19 < 20_000 * 1.5
    held = [item["id"] for item in messages_of(out) if item.get("type") == "reasoning"]
    sent = [item["id"] for item in history if item.get("type") == "reasoning" and item["id"] in held]
    assert held == sent


@pytest.mark.parametrize("steps", [4, 60])
async def test_reasoning_in_a_running_turn_is_never_parted_from_what_it_produced(steps: int, new_hook: NewHook) -> None:
    line = Conversation(new_hook(trim_at_tokens=20_000))
    turn = reasoned(0, steps)[:-2]
    for more in range(10):
        turn += reasoned(more + 1, 1)[1:-2]
        out = await line.send(responses.body(*turn))
        assert not check(out, "responses")
    assert line.trims() >= (steps > 10)


# --- only the new items are sent -------------------------------------------------------------------------------


@pytest.mark.parametrize("given_by", ["previous_response_id", "conversation"])
async def test_a_request_that_only_adds_to_what_the_provider_keeps_is_untouched(
    given_by: str, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings="trim_at_tokens=4000")
    history = [*turns("responses"), responses.user(TASK), *exchanges("responses", 30, "late")]
    first = await line.send(responses.body(*history))
    rows = len(line.rows())
    for step in range(3):
        delta = responses.body(responses.output(f"late_{step}", listing(20_000, step)), **{given_by: "resp_1"})
        assert_untouched(delta, await line.send(delta))
    whole = responses.body(*history, **{given_by: "resp_1"})
    assert_untouched(whole, await line.send(whole))
    assert (line.trims(), len(line.rows())) == (1, rows)
    again = await line.send(responses.body(*history, *exchange("responses", "more")))
    assert line.trims() == 1
    assert same(messages_of(again)[: len(messages_of(first))], messages_of(first))


# --- the client's own summary ----------------------------------------------------------------------------------

SUMMARISE = "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\n" + prose(3000, "summary request")
RECAP = "This session is being continued from a previous conversation that ran out of context. Summary: "


def summary_request(history: list[Json], shape: str) -> list[Json]:
    """Claude Code asks with one more block in its last user message, or a message of its own."""
    if shape == "own message":
        return [*history, a.user(a.text(SUMMARISE))]
    last = history[-1]
    content = [a.text(last["content"])] if isinstance(last["content"], str) else last["content"]
    return [*history[:-1], {**last, "content": [*content, a.text(SUMMARISE)]}]


@pytest.mark.parametrize("shape", ["own message", "beside words", "beside results"])
@pytest.mark.parametrize("trimmed", [False, True])
async def test_a_clients_summary_request_makes_no_cut_and_its_recap_begins_anew(
    shape: str, trimmed: bool, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(trim_at_tokens=12_000, compress_over_tokens=0))
    history = [*turns("anthropic"), a.user("The harbour code is 7741."), *exchanges("anthropic", 60 * trimmed, "mid")]
    await line.send(a.body(*history))
    cuts = line.trims()
    assert cuts == trimmed
    history += [a.assistant("Noted."), a.user(TASK), *exchanges("anthropic", 2, "end", size=20_000)]
    history += [a.assistant("Done."), a.user(TASK)] if shape != "beside results" else []
    await line.send(a.body(*summary_request(history, shape)))
    assert line.trims() == cuts
    await _continued_after_recap(line, cuts)


async def _continued_after_recap(line: Conversation, cuts: int) -> None:
    recap = a.user(RECAP + "parser work.")
    out = await line.send(a.body(recap, a.assistant("Going on."), a.user("Go on.")))
    assert same(messages_of(out), [recap, a.assistant("Going on."), a.user("Go on.")])
    assert line.trims() == cuts
    rows = line.rows()
    assert [row.shown for row in rows if "7741" in row.text] == [0]
    assert [row.kind for row in rows if RECAP in row.text] == ["recap"]
    later = [recap, a.assistant("Going on."), a.user("Go on.")]
    for step in range(0, 100, 10):
        later += exchanges("anthropic", 10, f"after_{step}")
        await line.send(a.body(*later))
    assert line.trims() > cuts


async def test_a_summary_request_is_stored_as_no_turn_of_the_person(new_hook: NewHook) -> None:
    line = Conversation(new_hook())
    history = [a.user(TASK), *exchanges("anthropic", 3)]
    await line.send(a.body(*history))
    await line.send(a.body(*summary_request(history, "beside results")))
    await line.send(a.body(*summary_request(history, "own message")))
    assert [row.kind for row in line.rows() if SUMMARISE in row.text] == ["summarise", "summarise"]


# --- deferred tools --------------------------------------------------------------------------------------------


def found_tool(call: str = "call_search", name: str = "Found") -> list[Json]:
    """A tool search whose result makes a deferred tool known."""
    return [a.assistant(a.tool_use(call, "ToolSearch")), a.results(a.tool_result(call, [a.reference(name)]))]


DEFERRED = [a.tool("Read"), a.tool("ToolSearch"), a.tool("Found", defer_loading=True)]


def references(out: Json) -> list[Json]:
    blocks = [b for m in messages_of(out) if isinstance(m["content"], list) for b in m["content"]]
    inner = [i for b in blocks if isinstance(b.get("content"), list) for i in b["content"]]
    return [block for block in inner if block.get("type") == "tool_reference"]


@pytest.mark.parametrize("turn", ["running", "earlier"])
@pytest.mark.parametrize("thinking", [False, True])
async def test_a_deferred_tool_that_the_tail_uses_keeps_its_reference(
    turn: str, thinking: bool, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    search = found_tool()
    if thinking:
        search[0]["content"].insert(0, a.thinking())
    between = [a.assistant("Found it."), a.user("Use it.")] if turn == "earlier" else []
    tail = exchange("anthropic", "call_use", name="Found")
    history = [a.user(TASK), *exchanges("anthropic", 5, "old"), *search, *exchanges("anthropic", 30), *between]
    given_body = a.body(*history, *exchanges("anthropic", 20, "late"), *tail, tools=DEFERRED)
    out = await line.send(given_body)
    assert line.trims() == 1
    assert references(out) == [a.reference("Found")]
    assert same(out["tools"], DEFERRED)


async def test_a_reference_leaves_when_the_tail_does_not_use_its_tool(new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    history = [a.user(TASK), *found_tool(), *exchanges("anthropic", 60)]
    out = await line.send(a.body(*history, tools=DEFERRED))
    assert references(out) == []


async def test_a_reference_to_a_tool_that_is_gone_leaves_with_its_exchange(new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    use = exchange("anthropic", "call_use", name="Found")
    history = [a.user(TASK), *found_tool(), *exchanges("anthropic", 60), *use]
    out = await line.send(a.body(*history, tools=DEFERRED[:2]))
    assert references(out) == []
    assert not check(out, "anthropic")


async def test_a_result_with_a_reference_is_never_compressed(new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings="compress_over_tokens=100")
    found = a.tool_result("call_search", [a.text(listing(9000, 1)), a.reference("Found")])
    plain = a.tool_result("call_read", [a.text(listing(9000, 2))])
    history = [a.user(TASK), a.assistant(a.tool_use("call_search", "ToolSearch")), a.results(found)]
    history += [a.assistant(a.tool_use("call_read")), a.results(plain)]
    out = await line.send(a.body(*history, tools=DEFERRED))
    assert same(messages_of(out)[2], history[2])
    assert not same(messages_of(out)[4], history[4])


def searched(provider: bool, namespace: bool) -> list[Json]:
    """A tool search of the Responses API, with the definitions in its output."""
    call = None if provider else "call_search"
    found = [responses.tool("crm_list") | {"defer_loading": True}]
    tools = [{"type": "namespace", "name": "crm", "description": "CRM.", "tools": found}] if namespace else found
    return [
        {"type": "tool_search_call", "call_id": call, "id": "tsc_1", "arguments": {"q": "crm"}, "status": "completed"},
        {"type": "tool_search_output", "call_id": call, "id": "tso_1", "tools": tools, "status": "completed"},
    ]


@pytest.mark.parametrize("provider", [False, True])
@pytest.mark.parametrize("namespace", [False, True])
@pytest.mark.parametrize("turn", ["running", "earlier"])
async def test_the_output_of_a_tool_search_stays_while_the_tail_calls_its_tools(
    provider: bool, namespace: bool, turn: str, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings="trim_at_tokens=4000,compress_over_tokens=50")
    search = searched(provider, namespace)
    between = [responses.assistant("Found it."), responses.user("Use it.")] if turn == "earlier" else []
    history = [responses.user(TASK), *exchanges("responses", 5, "old"), *search, *exchanges("responses", 30), *between]
    tail = [*exchanges("responses", 20, "late"), *exchange("responses", "call_use", name="crm_list")]
    out = await line.send(responses.body(*history, *tail))
    assert line.trims() == 1
    assert [item for item in messages_of(out) if str(item.get("type")).startswith("tool_search")] == search


@pytest.mark.parametrize("trim_at", [2500, 3100, 4300])
async def test_an_output_with_a_tool_search_of_the_provider_stays_or_leaves_whole(
    trim_at: int, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings=f"trim_at_tokens={trim_at},compress_over_tokens=0")
    items: list[Json] = [responses.user(TASK)]
    for step in range(40):
        call, output = searched(provider=True, namespace=False)
        items += [responses.reasoning(f"rs_{step}"), {**call, "id": f"tsc_{step}"}, {**output, "id": f"tso_{step}"}]
        items += exchange("responses", f"call_{step}")
    out = await line.send(responses.body(*items))
    assert line.trims() == 1
    kinds = [item["type"] for item in messages_of(out)[1:]]
    whole = ["reasoning", "tool_search_call", "tool_search_output", "function_call", "function_call_output"]
    assert kinds == whole * (len(kinds) // 5)


async def test_the_output_of_a_large_tool_search_keeps_its_shape(new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings="compress_over_tokens=100")
    call, output = searched(provider=False, namespace=False)
    output["tools"] = [responses.tool(f"crm_{n}") for n in range(60)]
    out = await line.send(responses.body(responses.user(TASK), call, output))
    assert same(messages_of(out)[1:], [call, output])


# --- empties ---------------------------------------------------------------------------------------------------

EMPTY_RESULTS = {"string": "", "list": [], "spaces": " \n ", "text of spaces": [a.text(" ")], "none": None}


def empty_result(call: str, shape: str) -> Json:
    block = a.tool_result(call, EMPTY_RESULTS[shape])
    if shape == "none":
        del block["content"]
    return a.results(block)


@pytest.mark.parametrize("shape", EMPTY_RESULTS)
@pytest.mark.parametrize("marked", [False, True])
async def test_empty_results_of_the_client_pass_as_they_are(shape: str, marked: bool, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    tail = [a.assistant(a.tool_use("call_empty")), empty_result("call_empty", shape)]
    start = a.user(a.marked(a.text(TASK))) if marked else a.user(TASK)
    out = await line.send(a.body(start, *exchanges("anthropic", 60), *tail))
    assert line.trims() == 1
    (shown,) = messages_of(out)[-1]["content"]
    assert same({k: v for k, v in shown.items() if k != "cache_control"}, tail[-1]["content"][0])


async def test_a_reply_of_thinking_alone_leaves_whole_with_the_head(new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    history = [a.user("First."), *exchanges("anthropic", 40), a.assistant(a.thinking()), a.user(TASK)]
    out = await line.send(a.body(*history, *exchanges("anthropic", 3, "late")))
    assert line.trims() == 1
    assert all(message["content"] for message in messages_of(out))


@pytest.mark.parametrize("content", [[a.image(), a.text("")], [a.text(""), a.image()], [a.text(TASK), a.text(" ")]])
@pytest.mark.parametrize("last", [False, True])
async def test_empty_blocks_of_the_client_get_no_company(content: list[Json], last: bool, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    history = [a.user(a.marked(a.text("First."))), *exchanges("anthropic", 40), a.assistant("Done.")]
    history += [{"role": "user", "content": content}, *([] if last else exchanges("anthropic", 3, "late"))]
    out = await line.send(a.body(*history))
    assert line.trims() == 1
    ((at, spot),) = pointers(out)
    shown = messages_of(out)[at]["content"]
    assert shown[spot]["text"].endswith("</openmem-pointer>")
    assert [b for b in shown if b["type"] == "text" and not b["text"].strip()] == [
        b for b in content if b["type"] == "text" and not b["text"].strip()
    ]


# --- first and last message ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("ends", ["result", "prefill"])
@pytest.mark.parametrize("before", [0, 3])
async def test_a_request_ends_and_begins_as_the_client_wanted(
    fmt: Format, ends: str, before: int, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    history = [*turns(fmt)[: before * 10], typed(fmt, TASK), *exchanges(fmt, 300)]
    history += [reply(fmt, "The answer is")] if ends == "prefill" else []
    given_body = body(fmt, *history)
    if fmt == "anthropic":
        last = messages_of(given_body)[0]
        last["content"] = [a.marked(a.text(last["content"]))]
    out = await line.send(given_body)
    assert line.trims() == 1
    first, last = messages_of(out)[0], messages_of(out)[-1]
    assert same(
        {k: v for k, v in last.items() if k != "content"}, {k: v for k, v in history[-1].items() if k != "content"}
    )
    assert b"cache_control" in orjson.dumps(last) or same(last, history[-1])
    assert ends == "result" or same(last, history[-1])
    assert first["role"] in ("user", "system")
    assert any(message.get("role") == "user" for message in messages_of(out))


# --- tool history without tools --------------------------------------------------------------------------------

TOOLS: dict[str, Any] = {
    "absent": None,
    "empty": [],
    "without ours": [a.tool("Read")],
    "with ours": [a.tool("Read"), a.tool("mcp__context__smart_compact_search")],
}


def _system_text(out: Json, fmt: Format) -> str:
    held = {"anthropic": out.get("system"), "chat": out.get("messages", [{}])[0], "responses": out.get("instructions")}
    return orjson.dumps(held[fmt]).decode()


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("tools", TOOLS)
async def test_tool_history_passes_with_any_tools_or_none(fmt: Format, tools: str, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    wanted = TOOLS[tools]
    if fmt == "chat" and wanted:
        wanted = [chat.tool(tool["name"]) for tool in wanted]
    if fmt == "responses" and wanted:
        wanted = [responses.tool(tool["name"]) for tool in wanted]
    given_body = body(fmt, *turns(fmt), typed(fmt, TASK), *exchanges(fmt, 40, "late"), tools=wanted)
    out = await line.send(given_body)
    assert line.trims() == 1
    assert ("tools" in out) == ("tools" in given_body)
    assert same(out.get("tools"), given_body.get("tools"))
    assert _system_text(out, fmt).count(NOTE) == 1
    ((at, _),) = pointers(out)
    assert ("not in your list" in str(messages_of(out)[at])) == (tools != "with ours")


@pytest.mark.parametrize("fmt", FORMATS)
async def test_tools_that_are_null_do_no_harm(fmt: Format, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    given_body = {**body(fmt, *turns(fmt), typed(fmt, TASK), *exchanges(fmt, 40, "late")), "tools": None}
    out = await line.send(copy.deepcopy(given_body))
    assert out["tools"] is None
    assert line.trims() == 1
