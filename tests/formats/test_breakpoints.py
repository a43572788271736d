"""Cache breakpoints: what is one, where they are, and the one that is set again after a trim took the last."""

from __future__ import annotations

from openmem_hook.formats.breakpoints import layout, markers, with_marker
from tests.kit.builders import assistant, body, marked, results, text, tool, tool_result, tool_use, user

MARKER = {"type": "ephemeral"}


def test_breakpoints_are_found_on_blocks_and_inside_results_in_order() -> None:
    inner = tool_result("t1", [marked(text("a"), "1h"), text("b")])
    assert markers([user(marked(text("x"))), results(marked(inner))]) == [MARKER, MARKER, MARKER | {"ttl": "1h"}]


def test_what_arguments_and_schemas_hold_under_that_name_is_data() -> None:
    call = assistant(tool_use("t1", "Edit", cache_control=MARKER))
    schema = tool("Edit", input_schema={"type": "object", "properties": {"cache_control": MARKER}})
    assert markers([call, schema]) == []


def test_the_last_breakpoint_stands_again_where_a_trim_removed_all() -> None:
    before = [user(marked(text("a"))), assistant("b"), user(marked(text("c"), "1h"))]
    after = with_marker(before, [user("y"), user("z")])
    assert after == [user("y"), user(marked(text("z"), "1h"))]


def test_nothing_is_set_where_one_is_left_or_none_was() -> None:
    kept = [user(marked(text("a"))), assistant("b")]
    plain = [user("a"), assistant("b")]
    assert with_marker(kept, kept) is kept
    assert with_marker(plain, plain) is plain


def test_the_layout_counts_from_the_front_and_messages_from_the_end() -> None:
    request = body(
        user("a"), user(marked(text("b"))), system=[text("s"), marked(text("t"), "1h")], tools=[marked(tool("Read"))]
    )
    assert layout(request) == "tools:0:5m system:1:1h messages:-1:5m"
