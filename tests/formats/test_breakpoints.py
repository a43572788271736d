"""Cache breakpoints: what is one, where they are, and the one that is set again after a trim took the last."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import pytest
from hypothesis import given

from openmem_hook.facts import facts_of_message
from openmem_hook.formats import anthropic
from openmem_hook.formats.breakpoints import layout, markers, with_marker, without_markers
from tests.kit.builders import (
    Json,
    assistant,
    body,
    image,
    marked,
    redacted,
    results,
    text,
    thinking,
    tool,
    tool_result,
    tool_use,
    user,
)
from tests.kit.chat_words import result as chat_result
from tests.kit.histories import bodies, randoms
from tests.kit.profile import examples

MARKER = {"type": "ephemeral"}
HOUR = MARKER | {"ttl": "1h"}


# --- which there are ------------------------------------------------------------------------------------------

MARKERS: list[tuple[Any, list[Json]]] = [
    ([], []),
    ([user("x")], []),
    ([user(marked(text("x")))], [MARKER]),
    ([user("x") | {"cache_control": MARKER}], [MARKER]),
    ([user(marked(text("x"))), results(marked(tool_result("t1", [marked(text("a"), "1h")])))], [MARKER, MARKER, HOUR]),
    ([marked(tool("Read"), "1h")], [HOUR]),
    # What arguments and schemas hold under that name is data.
    ([assistant(tool_use("t1", "Edit", cache_control=MARKER))], []),
    ([tool("Edit", input_schema={"properties": {"cache_control": MARKER}})], []),
    # Nothing that is no object is a breakpoint, or holds one.
    ([user(text("x") | {"cache_control": None}), user(text("x") | {"cache_control": "on"})], []),
    (["x", None, 7, [marked(text("x"))]], []),
]


@pytest.mark.parametrize(("items", "in_order"), MARKERS)
def test_breakpoints_are_on_tools_messages_blocks_and_inside_results(items: list[Any], in_order: list[Json]) -> None:
    assert markers(items) == in_order
    assert markers(without_markers(items)) == []


def test_without_breakpoints_a_message_is_the_very_same_object_where_it_has_none() -> None:
    message = results(tool_result("t1", [text("a")]), text("b"))
    assert without_markers(message) is message
    call = assistant(tool_use("t1", "Edit", cache_control=MARKER))
    assert without_markers(call) is call
    assert without_markers(results(marked(tool_result("t1", [marked(text("a"))])))) == results(
        tool_result("t1", [text("a")])
    )


LAYOUTS: list[tuple[Json, str]] = [
    (body(user("a")), ""),
    (body(user(marked(text("a"), "1h"))), "messages:-1:1h"),
    (body(user(marked(text("a"))), assistant("b"), user("c")), "messages:-3:5m"),
    (
        body(
            user("a"),
            user(marked(text("b"))),
            system=[text("s"), marked(text("t"), "1h")],
            tools=[marked(tool("Read")), tool("Edit")],
        ),
        "tools:0:5m system:1:1h messages:-1:5m",
    ),
    (body(user(marked(text("a")), marked(text("b")))), "messages:-1:5m messages:-1:5m"),
    (body(user("a"), system="one string", tools={"odd": 1}), ""),
    ({"messages": [user(marked(text("a")))], "tools": None}, "messages:-1:5m"),
]


@pytest.mark.parametrize(("request_body", "places"), LAYOUTS)
def test_the_layout_counts_from_the_front_and_messages_from_the_end(request_body: Json, places: str) -> None:
    assert layout(request_body) == places


def test_the_layout_names_no_more_than_eight_places() -> None:
    assert layout(body(*(user(marked(text("a"))) for _ in range(20)))).count(" ") == 7


# --- the one that is set again --------------------------------------------------------------------------------

BEFORE = [user(marked(text("a"))), assistant("b"), user(marked(text("c"), "1h"))]
AGAIN: dict[str, tuple[list[Json], list[Json]]] = {
    "on the last message": ([user("y"), user("z")], [user("y"), user(marked(text("z"), "1h"))]),
    "on the last block": (
        [results(tool_result("t1"), tool_result("t2"))],
        [results(tool_result("t1"), marked(tool_result("t2"), "1h"))],
    ),
    "on a picture": ([user(text("y"), image())], [user(text("y"), marked(image(), "1h"))]),
    "behind no blank block": ([user(text("y"), text(" "))], [user(marked(text("y"), "1h"), text(" "))]),
    "on no blank message": ([user("y"), user(" ")], [user(marked(text("y"), "1h")), user(" ")]),
    "on no empty message": ([user("y"), results()], [user(marked(text("y"), "1h")), results()]),
    "on nothing that a model wrote": ([user("y"), assistant("z")], [user(marked(text("y"), "1h")), assistant("z")]),
    "on no block that may have none": (
        [user("y"), results(thinking(), redacted(), {"type": "compaction"})],
        [user(marked(text("y"), "1h")), results(thinking(), redacted(), {"type": "compaction"})],
    ),
    "on a result of chat completions": (
        [user("y"), chat_result("call_1", "z")],
        [user("y"), chat_result("call_1", [marked(text("z"), "1h")])],
    ),
    "nowhere, where there is no place": ([assistant("y"), user(" ")], [assistant("y"), user(" ")]),
    "nowhere, where one is left": ([user(marked(text("y"))), user("z")], [user(marked(text("y"))), user("z")]),
    "nowhere, where one is left inside a result": (
        [results(tool_result("t1", [marked(text("y"))])), user("z")],
        [results(tool_result("t1", [marked(text("y"))])), user("z")],
    ),
}


@pytest.mark.parametrize("case", AGAIN)
def test_the_last_breakpoint_is_set_again_where_a_trim_removed_all(case: str) -> None:
    after, out = AGAIN[case]
    original = copy.deepcopy(after)
    assert with_marker(BEFORE, after) == out
    assert after == original


def test_no_breakpoint_is_set_where_the_client_set_none() -> None:
    plain = [user("a"), assistant("b")]
    assert with_marker(plain, plain) is plain


@given(bodies("anthropic"), randoms(use_true_random=False))
@examples(0.5)
def test_there_are_never_more_breakpoints_than_the_client_set(request: Json, rng: Random) -> None:
    before: list[Json] = request["messages"]
    after = [without_markers(message) if rng.random() < 0.7 else message for message in before if rng.random() < 0.7]
    out = with_marker(before, after)
    theirs, ours = markers(before), markers(out)
    assert len(ours) <= len(theirs)
    assert [meaning(message) for message in out] == [meaning(message) for message in after]
    if theirs and any(message["role"] == "user" for message in after):
        assert ours == (markers(after) or theirs[-1:])


def meaning(message: Json) -> bytes:
    return facts_of_message(anthropic, message, 0).digest
