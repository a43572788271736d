"""A body as a whole: its keys, whatever was decoded before, a provider's compaction, system prompt and tools."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmem_hook import fingerprint, tokens
from openmem_hook.formats import adapter_named
from openmem_hook.formats.decode import MOST_OVERHEADS, decode
from openmem_hook.model import History, HistoryCache
from tests.kit import chat_words as c
from tests.kit import responses_words as r
from tests.kit.builders import (
    FORMATS,
    Format,
    Json,
    assistant,
    body,
    reminder,
    results,
    session,
    text,
    thinking,
    tool,
    tool_result,
    tool_use,
    user,
)
from tests.kit.histories import bodies, drift, edit, growth, rewind
from tests.kit.profile import examples


def read(fmt: Format, request: Json, cache: HistoryCache | None = None) -> History:
    adapter = adapter_named(fmt)
    assert adapter is not None
    return decode(adapter, request, HistoryCache() if cache is None else cache)


# --- keys -----------------------------------------------------------------------------------------------------


def alike(one: History, other: History) -> bool:
    return (one.keys, one.chain, one.facts) == (other.keys, other.chain, other.facts)


@given(st.data(), st.randoms(use_true_random=False))
@examples(0.5)
def test_a_history_has_the_same_names_whatever_was_decoded_before(data: st.DataObject, rng: Random) -> None:
    fmt = data.draw(st.sampled_from(FORMATS))
    base = data.draw(bodies(fmt))
    requests = [*growth(base), drift(base, rng), edit(base, 0), rewind(base)]
    rng.shuffle(requests)
    cache = HistoryCache()
    for request in requests:
        assert alike(read(fmt, request, cache), read(fmt, request))


def test_a_message_that_came_before_is_not_looked_at_again() -> None:
    cache = HistoryCache()
    first = read("anthropic", session("anthropic", exchanges=3), cache)
    again = read("anthropic", session("anthropic", exchanges=4), cache)
    same = len(first) - 1  # the last one of the longer history differs
    assert all(one is other for one, other in zip(first.facts[:same], again.facts, strict=False))


def test_keys_are_those_of_the_new_history_from_where_it_differs() -> None:
    cache = HistoryCache()
    one = read("anthropic", body(user("a"), assistant("b"), user("c")), cache)
    other = read("anthropic", body(user("a"), assistant("x"), user("c")), cache)
    assert one.keys[0] == other.keys[0]
    assert set(one.keys[1:]).isdisjoint(other.keys[1:])


def test_what_has_no_identity_has_a_key_of_its_place_and_leaves_the_chain_as_it_is() -> None:
    plain = read("anthropic", body(user("a"), assistant("b")))
    more = read("anthropic", body(user(reminder()), user("a"), assistant(thinking()), assistant("b"), user(reminder())))
    assert [more.keys[1], more.keys[3]] == list(plain.keys)
    assert list(more.chain) == [fingerprint.ROOT, plain.keys[0], plain.keys[0], plain.keys[1], plain.keys[1]]
    assert len(set(more.keys)) == len(more.keys), "two equal reminders at two places are two rows"


@pytest.mark.parametrize("fmt", ["chat", "responses"])
def test_the_system_prompt_in_message_form_takes_no_part_in_the_chain(fmt: Format) -> None:
    words: Any = c if fmt == "chat" else r
    one = read(fmt, words.body(words.developer("Be brief."), words.user("a")))
    other = read(fmt, words.body(words.developer("Be quick."), words.developer("And kind."), words.user("a")))
    assert (one.lead, other.lead) == (1, 2)
    assert one.keys[-1] == other.keys[-1] == other.chain[-1]
    assert one.keys[0] != other.keys[0]


def test_a_history_with_another_system_prompt_in_front_is_read_anew() -> None:
    cache = HistoryCache()
    messages = [c.system("Be brief."), c.user("a")]
    read("chat", {"messages": messages}, cache)
    request = {"messages": [c.user("a"), c.system("Be brief.")]}
    assert alike(read("chat", request, cache), read("chat", request))


def test_an_input_of_one_string_is_a_history_of_one_message() -> None:
    history = read("responses", {"input": "hi"})
    assert history.messages == ["hi"]
    assert history.keys == read("responses", {"input": [r.user("hi")]}).keys


def test_others_may_run_between_two_messages() -> None:
    pauses: list[None] = []
    adapter = adapter_named("chat")
    assert adapter is not None
    decode(adapter, c.body(c.user("a"), c.assistant("b")), HistoryCache(), lambda: pauses.append(None))
    assert len(pauses) == 3


# --- a provider's compaction ----------------------------------------------------------------------------------

COMPACTION = {"type": "compaction", "content": "So far."}
ITEM = {"type": "compaction", "encrypted_content": "eA=="}
COMPACTIONS: dict[str, tuple[Format, list[Json], tuple[int, int]]] = {
    "none": ("anthropic", [user("a"), assistant("b")], (0, 0)),
    "none behind a system prompt": ("chat", [c.system("s"), c.user("a")], (0, 1)),
    "alone in an output": ("anthropic", [user("a"), assistant(COMPACTION), user("c")], (1, 2)),
    "as the last message": ("anthropic", [user("a"), assistant(COMPACTION)], (1, 2)),
    "the newest of two": (
        "anthropic",
        [user("a"), assistant(COMPACTION), user("c"), assistant(COMPACTION), user("e")],
        (3, 4),
    ),
    "with a call, up to its result": (
        "anthropic",
        [user("a"), assistant(COMPACTION, tool_use("t1")), results(tool_result("t1")), assistant("d")],
        (1, 3),
    ),
    "with a call that nothing answers": ("anthropic", [user("a"), assistant(COMPACTION, tool_use("t1"))], (1, 2)),
    "with two calls, up to the later result": (
        "anthropic",
        [
            user("a"),
            assistant(COMPACTION, tool_use("t1"), tool_use("t2")),
            results(tool_result("t1")),
            results(tool_result("t2")),
            assistant("e"),
        ],
        (1, 4),
    ),
    "before a call of a later output": (
        "anthropic",
        [user("a"), assistant(COMPACTION), assistant(tool_use("t1")), results(tool_result("t1"))],
        (1, 2),
    ),
    "between a call and its result": (
        "responses",
        [r.user("a"), r.call("call_1"), ITEM, r.call("call_2"), r.output("call_1"), r.output("call_2")],
        (2, 6),
    ),
    "behind a call that is the first item": ("responses", [r.call("call_1"), ITEM, r.output("call_1")], (1, 3)),
    "behind a call whose id is used again": (
        "responses",
        [r.call("call_1"), r.output("call_1"), ITEM, r.call("call_1"), r.output("call_1")],
        (2, 3),
    ),
    "an item of its own": ("responses", [r.user("a"), ITEM, r.call("call_1"), r.output("call_1")], (1, 2)),
    "as the first item": ("responses", [ITEM, r.user("a")], (0, 1)),
}


@pytest.mark.parametrize("case", COMPACTIONS)
def test_edits_begin_behind_a_compaction_and_the_results_of_its_calls(case: str) -> None:
    fmt, messages, places = COMPACTIONS[case]
    history = read(fmt, {"input" if fmt == "responses" else "messages": messages})
    assert (history.compaction_at, history.editable_from) == places


# --- system prompt and tools ----------------------------------------------------------------------------------

TOOL_NAMES: list[tuple[Format, Any, set[str], set[str]]] = [
    ("anthropic", None, set(), set()),
    ("anthropic", [], set(), set()),
    ("anthropic", "odd", set(), set()),
    ("anthropic", [tool("Read"), tool("Found", defer_loading=True)], {"Read", "Found"}, {"Found"}),
    ("anthropic", [tool("Read", defer_loading="yes"), {"type": "web_search"}, 7, None], {"Read", ""}, set()),
    ("chat", [c.tool("read"), {"type": "function", "function": {"name": 7}}], {"read", ""}, set()),
    ("chat", [{"type": "function", "function": None, "name": "read"}], {"read"}, set()),
    ("responses", [r.tool("view"), {"type": "web_search"}], {"view", ""}, set()),
]


@pytest.mark.parametrize(("fmt", "tools", "names", "deferred_names"), TOOL_NAMES)
def test_tools_are_known_by_name(fmt: Format, tools: Any, names: set[str], deferred_names: set[str]) -> None:
    request = {"input" if fmt == "responses" else "messages": [{"role": "user", "content": "hi"}], "tools": tools}
    history = read(fmt, request)
    assert history.tool_names == names
    assert history.deferred_tools == deferred_names
    assert history.has_tools is bool(tools)


def test_where_a_reference_defines_its_tool_the_model_knows_it_by_that_alone() -> None:
    output = {"type": "tool_search_output", "call_id": "call_1", "tools": [r.tool("crm_list"), r.tool("view")]}
    assert read("responses", r.body(r.user("a"), output)).deferred_tools == {"crm_list"}
    search = results(tool_result("t1", [{"type": "tool_reference", "tool_name": "Found"}]))
    assert read("anthropic", body(user("a"), search)).deferred_tools == set()


SYSTEM_TEXTS: list[tuple[Any, str]] = [
    (None, ""),
    ("Be brief.", "Be brief."),
    ([text("Be"), text("brief.")], "Be\nbrief."),
    ([text("Be brief."), {"type": "odd"}, "odd"], "Be brief.\n\n"),
    (7, ""),
]


@pytest.mark.parametrize(("system", "words"), SYSTEM_TEXTS)
def test_system_prompt_and_tools_are_measured_together(system: Any, words: str) -> None:
    tools = [tool("Read")]
    payload = fingerprint.dump(tools)
    history = read("anthropic", {"system": system, "tools": tools, "messages": [user("a")]})
    assert history.overhead == tokens.measure("system", f"{words}\n{payload.decode()}")
    assert history.overhead_bytes == len(words) + len(payload)


@pytest.mark.parametrize("tools", [None, []])
def test_without_tools_the_system_prompt_is_measured_alone(tools: Any) -> None:
    history = read("anthropic", {"system": "Be brief.", "tools": tools, "messages": [user("a")]})
    assert history.overhead == tokens.measure("system", "Be brief.\n")
    assert history.overhead_bytes == len("Be brief.")


def test_a_client_that_changes_its_system_prompt_each_time_does_not_fill_the_memory() -> None:
    cache = HistoryCache()
    for number in range(2 * MOST_OVERHEADS + 10):
        read("anthropic", body(user("a"), system=f"Request {number}"), cache)
        assert len(cache.overheads) <= MOST_OVERHEADS + 1
