"""The oracles about bytes, each shown to fail as well as to pass."""

from __future__ import annotations

import copy
import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests import kit
from tests.kit.builders import FORMATS, Format, assistant, body, marked, responses, session, text, tool_result, user
from tests.kit.builders import results as answered
from tests.kit.prefix import assert_accepted, assert_prefix, assert_untouched, broken_at, unchanged
from tests.kit.variations import growth


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_request_of_a_growing_session_is_a_prefix_of_the_next(fmt: Format) -> None:
    requests = growth(session(fmt, turns=2, exchanges=3))
    assert len(requests) == 8
    for earlier, later in pairwise(requests):
        assert broken_at(earlier, later, fmt) is None
        assert broken_at(later, earlier, fmt) is not None


def test_a_moved_breakpoint_is_no_break() -> None:
    assert broken_at(body(user(marked(text("go")))), body(user("go"), assistant("so"), user("on")), "anthropic") is None


def test_system_and_tools_take_no_part() -> None:
    assert broken_at(body(user("go")), body(user("go"), system="other", tools=[]), "anthropic") is None


@pytest.mark.parametrize(
    ("later", "index"),
    [
        (body(user("Go"), assistant("so")), 0),
        (body(user("go "), assistant("so")), 0),
        (body(user("go"), assistant("no")), 1),
        (body(user("go")), 1),
        (body(user("go", "so")), 1),
        (body(user("go"), user("so")), 1),
    ],
)
def test_a_break_is_found_at_its_block(later: dict[str, object], index: int) -> None:
    earlier = body(user("go"), assistant("so"))
    assert broken_at(earlier, later, "anthropic") == index
    with pytest.raises(AssertionError, match=f"prefix broken at block {index}"):
        assert_prefix(earlier, later, "anthropic")


def test_a_result_as_string_reads_as_its_only_text_block() -> None:
    one, other = answered(tool_result("toolu_1", "x")), answered(tool_result("toolu_1", [text("x")]))
    assert broken_at(body(user("go"), one), body(user("go"), other), "anthropic") is None
    assert broken_at(body(user("go"), one), body(user("go"), answered(tool_result("toolu_1", "y"))), "anthropic") == 1


def test_other_cipher_other_prefix() -> None:
    one, other = (responses.body(responses.user("go"), responses.reasoning("rs_1", blob)) for blob in "ab")
    assert broken_at(one, one, "responses") is None
    assert broken_at(one, other, "responses") == 1


def test_untouched_means_the_order_of_keys_too() -> None:
    assert_untouched({"a": 1, "b": 2}, {"a": 1, "b": 2})
    with pytest.raises(AssertionError, match="the value was changed"):
        assert_untouched({"a": 1, "b": 2}, {"b": 2, "a": 1})


def test_a_mutation_of_what_the_caller_holds_is_seen() -> None:
    held = body(user("go"))
    with unchanged(held):
        copy.deepcopy(held)["messages"].append(user("on"))
    with pytest.raises(AssertionError, match="object 0 was mutated"), unchanged(held):
        held["messages"].append(user("on"))


def test_an_unacceptable_body_is_named() -> None:
    assert_accepted(body(user("go")), "anthropic")
    with pytest.raises(AssertionError, match="the anthropic provider would refuse"):
        assert_accepted(body(assistant("go")), "anthropic")


def test_the_kit_knows_nothing_of_the_project_it_judges() -> None:
    """But for the simulated provider and the name of a format; what that provider imports is a contract of its own."""
    for module in Path(kit.__file__).parent.glob("*.py"):
        imported = re.findall(r"(?:from|import) (openmem_hook\S*)", module.read_text())
        assert [name for name in imported if not name.startswith("openmem_hook.replay.provider")] == [], module.name
