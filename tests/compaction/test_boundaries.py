"""Where a history may be cut: the marks below stand between the messages, so that a row shows the whole answer."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmem_hook.compaction.boundaries import find_closed_places, find_outputs, find_tail_starts
from openmem_hook.model import History
from tests.compaction.generated import Sketch, sketches
from tests.compaction.legality import pairs
from tests.compaction.sketches import history, index
from tests.kit.profile import examples

ids = st.lists(st.sampled_from("abcd"), max_size=3).map(tuple)


def by_definition(facts: Sequence[Any]) -> list[bool]:
    """No call before the place is answered at or after it."""
    crossings = pairs(SimpleNamespace(facts=facts))  # type: ignore[arg-type]
    return [not any(call < place <= answer for call, answer in crossings) for place in range(len(facts) + 1)]


@given(st.lists(st.builds(SimpleNamespace, calls=ids, answers=ids), max_size=12))
def test_a_place_is_closed_where_no_call_before_it_is_answered_after_it(facts: list[Any]) -> None:
    assert find_closed_places(facts) == by_definition(facts)


def with_marks(line: str, places: Sequence[bool], mark: str) -> str:
    """The line with a mark at each of these places."""
    words = [mark] if places[0] else []
    for token, is_marked in zip(line.split(), places[1:], strict=True):
        words += [token, mark] if is_marked else [token]
    return " ".join(words)


CLOSED_PLACES = {
    "nothing waits": "/ T1 / A1 / T2 /",
    "an exchange is whole": "/ T1 / C1 R1 / A1 /",
    "parallel calls close with the last answer": "/ T1 / C1,2 R1 R2 / C3 R3 /",
    "calls across each other": "/ C1 C2 R1 R2 / T1 /",
    "words in between stay inside": "/ C1 T1 R1 / T2 /",
    "a call that nothing answers does not wait": "/ T1 / C1 / A1 / T2 /",
    "a result that answers nothing": "/ R1 / T1 / C1 /",
    "of two calls with an id the newest is answered": "/ C1 / C1 R1 / T1 /",
    "and then the one before it": "/ C1 C1 R1 R1 / T1 /",
    "mixed messages answer": "/ C1 M1 / C2 R2 /",
}


@pytest.mark.parametrize("name", CLOSED_PLACES)
def test_a_place_is_closed(name: str) -> None:
    line = CLOSED_PLACES[name].replace("/", "")
    assert with_marks(line, find_closed_places(history(line).facts), "/") == CLOSED_PLACES[name]


RANGES = {
    "its inner places are not closed": ("C1", "R2", "/ T1 / C1 R1 C2 R2 / A1 /"),
    "a single message has none": ("A1", "A1", "/ T1 / C1 R1 / C2 R2 / A1 /"),
    "it may end with the history": ("C2", "A1", "/ T1 / C1 R1 / C2 R2 A1 /"),
}


@pytest.mark.parametrize("name", RANGES)
def test_a_range_that_was_replaced_is_one_piece(name: str) -> None:
    first, last, answer = RANGES[name]
    line = history(answer.replace("/", ""))
    assert (
        with_marks(
            answer.replace("/", ""), find_closed_places(line.facts, [(index(line, first), index(line, last))]), "/"
        )
        == answer
    )


TAILS = {
    "before an output, behind words or results": "| T1 | C1 R1 | C2 R2 | A1 | T2 |",
    "behind the last message": "| T1 | A1 |",
    "not between items of an output": "| T1 | V1 A1 C1 R1 |",
    "not between reasoning and its item": "| T1 | K1 C1 R1 |",
    "not behind reasoning that words follow": "| T1 | K1 T2 |",
    "not before a result that answers nothing": "| T1 R1 |",
    "not before a system message, but behind it": "| T1 S1 | A1 |",
    "before notices, recaps and asked summaries": "| T1 | N1 | Y1 | Q1 |",
    "not before results with words": "| T1 | C1 M1 |",
    "neither before nor behind what nobody knows": "| T1 U1 A1 | T2 U2 T3 |",
    "not before relayed words": "| T1 | C1 R1 W1 | C2 R2 |",
    "not inside an exchange": "| T1 | C1 T2 R1 | T3 |",
}


@pytest.mark.parametrize("name", TAILS)
def test_a_tail_may_start(name: str) -> None:
    line = TAILS[name].replace("|", "")
    sketch = history(line)
    assert with_marks(line, find_tail_starts(sketch, find_closed_places(sketch.facts)), "|") == TAILS[name]


@pytest.mark.parametrize(
    ("line", "lead", "answer"),
    [
        ("S1 T1 A1", 1, "S1 | T1 | A1 |"),
        ("T1 C1 R1 P1 A1 T2", 0, "T1 C1 R1 P1 A1 | T2 |"),
        ("T1 A1 T2 P1", 0, "T1 A1 T2 P1 |"),
    ],
    ids=["not in the lead", "behind a compaction", "behind one at the end"],
)
def test_no_tail_starts_where_no_edit_may_be(line: str, lead: int, answer: str) -> None:
    sketch = history(line, lead=lead)
    assert with_marks(line, find_tail_starts(sketch, find_closed_places(sketch.facts)), "|") == answer


OUTPUTS = {
    "an output is a run of the model's messages with their answers": ("T1 K1 V1 C1 C2 R1 R2 A1 T2", "K1-R2 A1-A1"),
    "a reply is one": ("T1 A1 T2", "A1-A1"),
    "words inside an exchange belong to it": ("T1 C1 T2 R1 C2 R2", "C1-R1 C2-R2"),
    "what follows an exchange does not": ("T1 C1 R1 N1 C2 R2", "C1-R1 C2-R2"),
    "a call that nothing answers ends with itself": ("T1 C1 T2 A1", "C1-C1 A1-A1"),
    "there are none": ("T1 N1 T2", ""),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs(name: str) -> None:
    line, answer = OUTPUTS[name]
    assert spans(history(line)) == answer


def spans(line: History, start: int = 0, ranges: Sequence[tuple[int, int]] = ()) -> str:
    exchanges = find_outputs(line, start, find_closed_places(line.facts, ranges))
    return " ".join(f"{line.messages[output.first]}-{line.messages[output.end - 1]}" for output in exchanges)


def test_outputs_are_looked_for_from_a_place_on() -> None:
    assert spans(history("T1 A1 T2 C1 R1 A2"), 2) == "C1-R1 A2-A2"


def test_a_range_that_begins_with_an_output_is_one_output() -> None:
    assert spans(history("T1 C1 R1 C2 R2 A1"), 0, [(1, 4)]) == "C1-R2 A1-A1"


@examples()
@given(sketch=sketches())
def test_outputs_never_overlap_and_hold_whole_exchanges(sketch: Sketch) -> None:
    line = sketch.history()
    places = find_closed_places(line.facts)
    earlier = 0
    for output in find_outputs(line, 0, places):
        assert earlier <= output.first < output.end
        assert places[output.end] or output.end == len(line)
        assert all(line.facts[i].role != "assistant" for i in range(earlier, output.first))
        earlier = output.end
