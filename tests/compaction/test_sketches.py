"""The notation of histories says what decoding says of real bodies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmem_hook.formats import adapter_named
from openmem_hook.formats.decode import decode
from openmem_hook.model import History, HistoryCache
from tests.compaction.sketches import LETTERS, compaction, cut, facts_of, history, index, keys_and_chain, shapes
from tests.kit.builders import (
    FORMATS,
    Format,
    Json,
    assistant,
    body,
    reminder,
    responses,
    results,
    system,
    text,
    thinking,
    tool_result,
    tool_use,
    user,
)
from tests.kit.histories import bodies
from tests.kit.profile import examples


def decode_body(fmt: Format, request: Json) -> History:
    adapter = adapter_named(fmt)
    assert adapter is not None
    return decode(adapter, request, HistoryCache())


@examples(0.5)
@given(st.data())
def test_keys_and_chain_are_those_of_decoding(data: st.DataObject) -> None:
    fmt = data.draw(st.sampled_from(FORMATS))
    real = decode_body(fmt, data.draw(bodies(fmt)))
    assert keys_and_chain(real.facts, real.lead) == (list(real.keys), list(real.chain))


COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "x" * 600}


@pytest.mark.parametrize(
    "items",
    [
        [responses.user("a")],
        [responses.user("a"), COMPACTION, responses.user("b")],
        [responses.user("a"), responses.call("1"), responses.output("1"), COMPACTION, responses.user("b")],
        [responses.user("a"), responses.call("1"), COMPACTION, responses.output("1"), responses.user("b")],
        [responses.user("a"), COMPACTION, COMPACTION, responses.call("1"), responses.output("1")],
    ],
    ids=["none", "alone", "after an exchange", "inside an exchange", "two"],
)
def test_a_compaction_is_where_decoding_has_it(items: list[Json]) -> None:
    real = decode_body("responses", responses.body(*items))
    assert compaction(real.facts, real.lead) == (real.compaction_at, real.editable_from)


ANTHROPIC = {
    "T": user("go"),
    "A": assistant("ok"),
    "C": assistant(tool_use("1", "read")),
    "R": results(tool_result("1")),
    "M": results(tool_result("1"), text("and more")),
    "N": user("<task-notification>done</task-notification>"),
    "Y": user("This session is being continued from a previous conversation"),
    "Q": user("Your task is to create a detailed summary of the conversation so far"),
    "S": system("be brief"),
    "W": system("The user sent a new message while you were working: stop"),
    "K": assistant(thinking()),
}
RESPONSES = {
    "P": COMPACTION,
    "V": responses.web_search("ws_1"),
    "U": {"type": "hologram"},
    "K": responses.reasoning("rs_1"),
}


@pytest.mark.parametrize(
    ("letter", "message", "fmt"),
    [*((letter, raw, "anthropic") for letter, raw in ANTHROPIC.items()),
     *((letter, raw, "responses") for letter, raw in RESPONSES.items())],
)  # fmt: skip
def test_a_letter_stands_for_the_facts_of_a_real_message(letter: str, message: Any, fmt: Format) -> None:
    request = body(message) if fmt == "anthropic" else responses.body(message)
    real, sketch = decode_body(fmt, request).facts[0], facts_of(f"{letter}1")
    for name in ("role", "kind", "identifies", "has_text", "starts_with_thinking", "has_thinking"):
        assert getattr(sketch, name) == getattr(real, name), name
    for name in ("calls", "answers", "results", "tool_names"):
        assert len(getattr(sketch, name)) == len(getattr(real, name)), name


def test_every_letter_is_compared_with_a_real_message() -> None:
    assert set(LETTERS) == set(ANTHROPIC) | set(RESPONSES)


def test_an_unnamed_message_is_a_reminder() -> None:
    assert not decode_body("anthropic", body(user(reminder()))).facts[0].identifies
    assert not facts_of("N1:unnamed").identifies


def test_the_same_label_is_the_same_message_and_modifiers_take_no_part_in_it() -> None:
    one, other = history("T1 C1,2:think R1,2 A1"), history("T9 C1,2 R1,2 A1")
    assert [fact.digest for fact in one.facts[1:]] == [fact.digest for fact in other.facts[1:]]
    assert set(one.keys).isdisjoint(other.keys)
    assert one.facts[1].calls == other.facts[2].answers == ("1", "2")


def test_a_prime_is_another_message_with_the_same_ids() -> None:
    assert facts_of("R1'").answers == facts_of("R1").answers
    assert facts_of("R1'").digest != facts_of("R1").digest


@pytest.mark.parametrize("token", ["X1", "T1:shiny"])
def test_what_no_table_knows_is_refused(token: str) -> None:
    with pytest.raises(KeyError):
        history(token)


def test_shapes_show_the_head_the_carrier_and_the_tail() -> None:
    assert shapes(history("T1 C1 R1 A1 T2 C2 R2")) == ["T1 A1 T2* | C2 R2"]
    assert shapes(history("T1 P1 C2 R2 C3 R3 C4 R4 C5 R5"))[0] == "T1 P1 * | C3 R3 C4 R4 C5 R5"


def test_a_cut_is_recorded_at_the_last_message_of_its_name() -> None:
    line = history("T1 A1 T1 A1 T2")
    assert index(line, "A1") == 3
    assert cut(line, "A1").anchor == cut(line, 3).anchor == line.keys[3]
