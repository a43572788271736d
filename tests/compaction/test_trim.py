"""Choosing a cut, as lines: what the head shows, a bar, the tail; a star on the message that carries the pointer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmem_hook.compaction import boundaries
from openmem_hook.compaction.trim import POINTER_TOKENS, Choice, Target, Weights, choose, find_choices
from openmem_hook.model import History
from tests.compaction.generated import Sketch, sketches
from tests.compaction.legality import faults
from tests.compaction.sketches import history, index, shape, shapes
from tests.kit.profile import examples

LONG_TURN = "T2 C2 R2 C3 R3 C4 R4 C5 R5 C6 R6"

CHOICES: dict[str, tuple[str, list[str]]] = {
    # What always stays: preamble, the last reply, the last typed message with its turn.
    "only a preamble": ("T1", ["T1* |"]),
    "a first turn": ("T1 C1 R1", ["T1* | C1 R1"]),
    "a turn that begins": ("T1 C1 R1 A1 T2", ["T1 A1 T2* |"]),
    "the reply before it": ("T1 C1 R1 A1 T2 C2 R2 A2 T3 C3 R3", ["T1 A2 T3* | C3 R3"]),
    "a reply in several items": ("T1 C1 R1 K1 A1 A2 T2 C2 R2", ["T1 K1 A1 A2 T2* | C2 R2"]),
    "no reply, a call instead": ("T1 C1 R1 C2 R2 T2 C3 R3", ["T1 T2* | C3 R3"]),
    "all that stood before the first words": ("N1 Y1 T1 C1 R1 A1 T2", ["N1 Y1 T1 A1 T2* |"]),
    "a history that begins with an exchange": ("C1 R1 T1 C2 R2", ["T1* | C2 R2"]),
    "a notice begins no turn": ("T1 C1 R1 A1 N1 C2 R2", ["T1* | C1 R1 A1 N1 C2 R2"]),
    "words among results are the first words": ("N1 C1 R1 M1 T2", ["N1 T2* |"]),
    # Ever deeper: the oldest exchanges of the running turn go, the last three stay.
    "three exchanges stay": ("T1 C1 R1 C2 R2 C3 R3", ["T1* | C1 R1 C2 R2 C3 R3"]),
    "the oldest ones go": (
        "T1 A1 T2 C2 R2 C3 R3 C4 R4 C5 R5 C6 R6",
        [
            "T1 A1 T2* | C2 R2 C3 R3 C4 R4 C5 R5 C6 R6",
            "T1 A1 T2* | C3 R3 C4 R4 C5 R5 C6 R6",
            "T1 A1 T2* | C4 R4 C5 R5 C6 R6",
        ],
    ),
    "parallel calls are one exchange": (
        "T1 C1,2 R1 R2 C3 R3 C4 R4 C5 R5",
        ["T1* | C1,2 R1 R2 C3 R3 C4 R4 C5 R5", "T1* | C3 R3 C4 R4 C5 R5"],
    ),
    "reasoning goes and stays with its output": (
        "T1 K1 C1 R1 K2 C2 R2 C3 R3 C4 R4",
        ["T1* | K1 C1 R1 K2 C2 R2 C3 R3 C4 R4", "T1* | K2 C2 R2 C3 R3 C4 R4"],
    ),
    "answers to notices count as outputs": (
        "T1 A1 N2 A2 N3 A3 N4 A4",
        ["T1* | A1 N2 A2 N3 A3 N4 A4", "T1* | A2 N3 A3 N4 A4"],
    ),
    # No cut parts what belongs together.
    "a call that waits is no boundary": (
        "T1 C1 N1 R1 C2 R2 C3 R3 C4 R4",
        ["T1* | C1 N1 R1 C2 R2 C3 R3 C4 R4", "T1* | C2 R2 C3 R3 C4 R4"],
    ),
    "calls that are answered crosswise are one exchange": (
        "T1 C1 C2 R1 R2 C3 R3 C4 R4 C5 R5",
        ["T1* | C1 C2 R1 R2 C3 R3 C4 R4 C5 R5", "T1* | C3 R3 C4 R4 C5 R5"],
    ),
    "words in the middle of an exchange stay with it, and can't carry the pointer": (
        "T1 C1 R1 A1 N1 C2 T2 R2 C3 R3 C4 R4 C5 R5 C6 R6",
        [
            "T1 A1 C2 T2 R2 * | C3 R3 C4 R4 C5 R5 C6 R6",
            "T1 A1 C2 T2 R2 * | C4 R4 C5 R5 C6 R6",
        ],
    ),
    "words in the middle of the first exchange": ("T1 C1 T2 R1 C2 R2", ["T1 C1 T2 R1 * | C2 R2"]),
    # System messages in between.
    "system messages stay behind the words that they follow": (
        "T1 S1 C1 R1 A1 T2 S2 C2 R2",
        ["T1 S1 A1 T2* S2 | C2 R2"],
    ),
    "an output stays between a system message and the last words": (
        "T1 S1 C1 R1 C2 R2 T2 C3 R3",
        ["T1 S1 C2 R2 T2* | C3 R3"],
    ),
    "a system message inside a turn goes with it": (
        "T1 C1 R1 S1 C2 R2 C3 R3 C4 R4",
        ["T1* | C1 R1 S1 C2 R2 C3 R3 C4 R4", "T1* | C2 R2 C3 R3 C4 R4"],
    ),
    "what the system says behind the last words is followed by an output": (
        "T1 S1 A1 N1 C1 R1 C2 R2 C3 R3",
        ["T1* S1 | A1 N1 C1 R1 C2 R2 C3 R3", "T1* S1 | C1 R1 C2 R2 C3 R3"],
    ),
    # An anchor identifies.
    "a reminder behind the last words stays in the tail": ("T1 A1 T2 N1:unnamed C1 R1", ["T1 A1 T2* | N1 C1 R1"]),
    "a reminder between exchanges stays with the later one": (
        "T1 C1 R1 N1:unnamed C2 R2 C3 R3 C4 R4",
        ["T1* | C1 R1 N1 C2 R2 C3 R3 C4 R4", "T1* | N1 C2 R2 C3 R3 C4 R4"],
    ),
    # What pins an exchange.
    "a reference that the tail uses stays": ("T1 C1 R1:refs=F A1 T2 C2:tool=F R2", ["T1 C1 R1 A1 T2* | C2 R2"]),
    "a reference that nothing uses goes": ("T1 C1 R1:refs=F A1 T2 C2 R2", ["T1 A1 T2* | C2 R2"]),
    "a reference to a tool that is not deferred goes": ("T1 C1 R1:refs=G A1 T2 C2:tool=G R2", ["T1 A1 T2* | C2 R2"]),
    "a reference goes with the last call that used it": (
        "T1 C1 R1:refs=F C2:tool=F R2 C3 R3 C4 R4 C5 R5",
        [
            "T1* | C1 R1 C2 R2 C3 R3 C4 R4 C5 R5",
            "T1* C1 R1 | C2 R2 C3 R3 C4 R4 C5 R5",
            "T1* | C3 R3 C4 R4 C5 R5",
        ],
    ),
    "signed items of a finished turn stay": ("T1 V1:signed N1 A1 T2 C2 R2", ["T1 V1 A1 T2* | C2 R2"]),
    "signed items of the running turn stay with their exchange": (
        "T1 V1:signed C1 R1 C2 R2 C3 R3 C4 R4",
        ["T1* | V1 C1 R1 C2 R2 C3 R3 C4 R4", "T1* V1 C1 R1 | C2 R2 C3 R3 C4 R4"],
    ),
    "an unknown item of the running turn stays with its reasoning": (
        "T1 C1 R1 K1 U1 C2 R2 C3 R3 C4 R4 C5 R5",
        [
            "T1* | C1 R1 K1 U1 C2 R2 C3 R3 C4 R4 C5 R5",
            "T1* | K1 U1 C2 R2 C3 R3 C4 R4 C5 R5",
            "T1* K1 U1 | C3 R3 C4 R4 C5 R5",
        ],
    ),
    "an unknown item of a finished turn goes": ("T1 C1 R1 U1 A1 T2 C2 R2", ["T1 A1 T2* | C2 R2"]),
    # Words that came while the model worked.
    "the newest interjection stays with its exchange": (
        "T1 C1 M1 C2 M2 C3 R3 C4 R4 C5 R5",
        [
            "T1* | C1 M1 C2 M2 C3 R3 C4 R4 C5 R5",
            "T1* | C2 M2 C3 R3 C4 R4 C5 R5",
            "T1* C2 M2 | C3 R3 C4 R4 C5 R5",
        ],
    ),
    "relayed words are an interjection": (
        "T1 C1 R1 W1 C2 R2 C3 R3 C4 R4",
        ["T1* | C1 R1 W1 C2 R2 C3 R3 C4 R4", "T1* C1 R1 W1 | C2 R2 C3 R3 C4 R4"],
    ),
    "an interjection of a finished turn goes": ("T1 C1 M1 A1 T2 C2 R2", ["T1 A1 T2* | C2 R2"]),
    # A provider's compaction.
    "a compaction stays, with the words that a history begins with": (
        "T1 C1 R1 P1 A1 T2 C2 R2",
        ["T1 P1 A1 T2* | C2 R2"],
    ),
    "what belongs to a compaction stays": ("T1 C1 P1 R1 T2 C2 R2", ["T1 C1 P1 R1 T2* | C2 R2"]),
    "behind a compaction without typed words the pointer stands alone": (
        "T1 C1 R1 P1 C2 R2 C3 R3 C4 R4 C5 R5 C6 R6",
        ["T1 P1 * | C3 R3 C4 R4 C5 R5 C6 R6", "T1 P1 * | C4 R4 C5 R5 C6 R6"],
    ),
    "a compaction at the end leaves no choice": ("T1 A1 T2 C1 R1 P1", []),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_the_choices_are(name: str) -> None:
    line, answer = CHOICES[name]
    assert shapes(history(line, deferred_tools="F")) == answer


def test_the_system_prompt_is_no_part_of_a_head() -> None:
    assert shapes(history("S1 S2 T1 S3 C1 R1 A1 T2", lead=2)) == ["T1 S3 A1 T2* |"]


THINKING: dict[str, tuple[str, list[str]]] = {
    "the first exchange that stays starts with thinking": (
        "T1 C1:think R1 C2:think R2 C3 R3 C4 R4",
        ["T1* | C1 R1 C2 R2 C3 R3 C4 R4", "T1* | C2 R2 C3 R3 C4 R4"],
    ),
    "else the nearest one before it that does stays too": (
        "T1 C1:think R1 C2 R2 C3 R3 C4 R4 C5 R5",
        [
            "T1* | C1 R1 C2 R2 C3 R3 C4 R4 C5 R5",
            "T1* C1 R1 | C2 R2 C3 R3 C4 R4 C5 R5",
            "T1* C1 R1 | C3 R3 C4 R4 C5 R5",
        ],
    ),
    "a turn without any thinking needs none": (
        "T1 C1 R1 C2 R2 C3 R3 C4 R4",
        ["T1* | C1 R1 C2 R2 C3 R3 C4 R4", "T1* | C2 R2 C3 R3 C4 R4"],
    ),
    "where none before it does there is no such choice": (
        "T1 C1 R1 C2 R2 C3:think R3 C4 R4",
        ["T1* | C1 R1 C2 R2 C3 R3 C4 R4"],
    ),
    "what is pinned and lacks it brings one along": (
        "T1 C1:think R1 C2:signed R2 C3:think R3 C4 R4 C5 R5",
        [
            "T1* | C1 R1 C2 R2 C3 R3 C4 R4 C5 R5",
            "T1* C1 R1 | C2 R2 C3 R3 C4 R4 C5 R5",
            "T1* C1 R1 C2 R2 | C3 R3 C4 R4 C5 R5",
        ],
    ),
}


@pytest.mark.parametrize("name", THINKING)
def test_where_a_turn_has_to_start_with_thinking(name: str) -> None:
    line, answer = THINKING[name]
    assert shapes(history(line, must_think=True)) == answer


NOT_STRICT: dict[str, tuple[str, list[str]]] = {
    "signed items of a finished turn go": ("T1 V1:signed N1 A1 T2 C2 R2", ["T1 A1 T2* | C2 R2"]),
    "signed items of the running turn stay": (
        "T1 V1:signed C1 R1 C2 R2 C3 R3 C4 R4",
        ["T1* | V1 C1 R1 C2 R2 C3 R3 C4 R4", "T1* V1 C1 R1 | C2 R2 C3 R3 C4 R4"],
    ),
    "interjections go": (
        "T1 C1 M1 C2 R2 C3 R3 C4 R4",
        ["T1* | C1 M1 C2 R2 C3 R3 C4 R4", "T1* | C2 R2 C3 R3 C4 R4"],
    ),
    "references in use stay": ("T1 C1 R1:refs=F A1 T2 C2:tool=F R2", ["T1 C1 R1 A1 T2* | C2 R2"]),
}


@pytest.mark.parametrize("name", NOT_STRICT)
def test_where_a_request_would_not_fit_otherwise(name: str) -> None:
    line, answer = NOT_STRICT[name]
    assert shapes(history(line, deferred_tools="F"), strict=False) == answer


RANGES: dict[str, tuple[str, list[tuple[str, str]], list[str]]] = {
    "the tail starts at none of its inner places": (
        "T1 C1 R1 C2 R2 C3 R3 C4 R4 C5 R5",
        [("C2", "R3")],
        ["T1* | C1 R1 C2 R2 C3 R3 C4 R4 C5 R5", "T1* | C2 R2 C3 R3 C4 R4 C5 R5"],
    ),
    "it counts as one exchange": (
        "T1 C1 R1 C2 R2 C3 R3 C4 R4 C5 R5",
        [("C1", "R2")],
        ["T1* | C1 R1 C2 R2 C3 R3 C4 R4 C5 R5", "T1* | C3 R3 C4 R4 C5 R5"],
    ),
    "a reply inside of one goes with it": ("T1 C1 R1 A1 T2 C2 R2", [("C1", "A1")], ["T1 T2* | C2 R2"]),
    "a reply that is one stays": ("T1 C1 R1 A1 T2 C2 R2", [("A1", "A1")], ["T1 A1 T2* | C2 R2"]),
    "words inside of one stay with it, and can't carry the pointer": (
        "T1 C1 R1 A1 N1 C2 T2 R2 C3 R3",
        [("C2", "R2")],
        ["T1 A1 C2 T2 R2 * | C3 R3"],
    ),
}


@pytest.mark.parametrize("name", RANGES)
def test_what_an_inner_cut_replaced_is_never_split(name: str) -> None:
    line, ranges, answer = RANGES[name]
    sketch = history(line)
    places = [(index(sketch, first), index(sketch, last)) for first, last in ranges]
    assert shapes(sketch, places) == answer


@pytest.mark.parametrize(
    ("line", "pin"),
    [
        ("T1 P1 C1 R1:refs=F C2:tool=F R2 C3 R3 C4 R4", "R1"),
        ("T1 P1 V1:signed C1 R1 C2 R2 C3 R3 C4 R4", "V1"),
        ("T1 P1 U1 C1 R1 C2 R2 C3 R3 C4 R4", "U1"),
    ],
    ids=["a reference in use", "a signed item", "an unknown item"],
)
def test_behind_a_compaction_without_typed_words_stays_what_is_pinned(line: str, pin: str) -> None:
    sketch = history(line, deferred_tools="F")
    for choice in find_choices(sketch):
        assert index(sketch, pin) in choice.head_indices or index(sketch, pin) > choice.anchor, shape(sketch, choice)


# --- choosing one -------------------------------------------------------------------------------------------


def weigh(line: History, each: float = 0, **heavy: Any) -> Weights:
    """Weights in which every message has so many tokens, bytes and media, but for the heavy ones."""
    values = [heavy.get(str(message), each) for message in line.messages]
    return Weights(values, [int(value) for value in values], [int(value) for value in values])


def target(tokens: float = 10**9, limit: float = 10**9, **more: Any) -> Target:
    return Target(tokens + POINTER_TOKENS, limit + POINTER_TOKENS, **more)


def shape_of_choice(
    line: str, weights: Weights, aim: Target, *, ranges: list[tuple[int, int]] | None = None
) -> str | None:
    sketch = history(line, deferred_tools="F")
    choice = choose(sketch, weights, aim, ranges or [])
    return None if choice is None else shape(sketch, choice)


FIRST, SECOND, THIRD, *_ = shapes(history(f"T1 A1 {LONG_TURN}"))


@pytest.mark.parametrize(
    ("tokens", "answer"),
    [(1300, FIRST), (1299, SECOND), (1100, SECOND), (1099, THIRD), (900, THIRD), (0, THIRD)],
)
def test_the_first_choice_that_fits_in_tokens_is_taken_else_the_deepest(tokens: int, answer: str) -> None:
    line = f"T1 A1 {LONG_TURN}"
    assert shape_of_choice(line, weigh(history(line), 100), target(tokens)) == answer


@pytest.mark.parametrize("dimension", ["bytes", "media"])
@pytest.mark.parametrize(("most", "answer"), [(1300, FIRST), (1299, SECOND), (900, THIRD), (0, THIRD)])
def test_it_fits_in_bytes_and_media_where_they_have_a_target(dimension: str, most: int, answer: str) -> None:
    line = f"T1 A1 {LONG_TURN}"
    assert shape_of_choice(line, weigh(history(line), 100), target(**{dimension: most})) == answer


def test_a_head_counts_with_the_tail() -> None:
    line = f"T1 A1 {LONG_TURN}"
    weights = weigh(history(line), 0, T1=500, R2=100, R3=100)
    assert shape_of_choice(line, weights, target(700)) == FIRST
    assert shape_of_choice(line, weights, target(650)) == SECOND


def test_what_leaves_counts_nothing() -> None:
    line = f"T1 C1 R1 A1 {LONG_TURN}"
    assert shape_of_choice(line, weigh(history(line), 1, R1=10_000), target(20)) == FIRST


@pytest.mark.parametrize(
    ("line", "heavy", "fits", "too_much"),
    [
        ("T1 C1 M1 C2 R2 C3 R3 C4 R4", "M1", "T1* C1 M1 | C2 R2 C3 R3 C4 R4", "T1* | C2 R2 C3 R3 C4 R4"),
        ("T1 V1:signed N1 A1 T2 C2 R2", "V1", "T1 V1 A1 T2* | C2 R2", "T1 A1 T2* | C2 R2"),
    ],
    ids=["words that came in between", "signed items of a finished turn"],
)
def test_pins_stay_up_to_the_limit_and_leave_beyond_it(line: str, heavy: str, fits: str, too_much: str) -> None:
    weights = weigh(history(line), 0, **{heavy: 500})
    assert shape_of_choice(line, weights, target(100, limit=500)) == fits
    assert shape_of_choice(line, weights, target(100, limit=499)) == too_much


def test_a_reference_in_use_stays_even_beyond_the_limit() -> None:
    line = "T1 C1 R1:refs=F A1 T2 C2:tool=F R2"
    assert shape_of_choice(line, weigh(history(line), 0, R1=500), target(0, limit=0)) == "T1 C1 R1 A1 T2* | C2 R2"


def test_nothing_to_choose_is_no_choice() -> None:
    line = "T1 A1 T2 C1 R1 P1"
    assert shape_of_choice(line, weigh(history(line), 1), target(0)) is None


def test_a_range_is_weighed_where_it_stands() -> None:
    line = "T1 C1 R1 C2 R2 C3 R3 C4 R4 C5 R5"
    sketch = history(line)
    ranges = [(index(sketch, "C1"), index(sketch, "R2"))]
    assert shape_of_choice(line, weigh(sketch, 0, R2=100), target(99), ranges=ranges) == "T1* | C3 R3 C4 R4 C5 R5"


# --- every choice of every history --------------------------------------------------------------------------


@examples(3)
@given(sketch=sketches(), strict=st.booleans(), data=st.data())
def test_every_choice_is_legal(sketch: Sketch, strict: bool, data: st.DataObject) -> None:
    line = sketch.history()
    ranges = data.draw(closed_ranges(line))
    earlier = -1
    for choice in find_choices(line, ranges, strict):
        assert faults(line, choice, sketch.style, ranges, strict=strict) == [], shape(line, choice)
        assert choice.anchor > earlier, "a later choice is no deeper"
        earlier = choice.anchor


def closed_ranges(line: History) -> st.SearchStrategy[list[tuple[int, int]]]:
    """None, or one range of whole exchanges: what an inner cut may have replaced."""
    outputs = boundaries.find_outputs(line, line.editable_from, boundaries.find_closed_places(line.facts))
    exchanges = [output for output in outputs if line.facts[output.first].role == "assistant"]
    spans = [(one.first, other.end - 1) for one in exchanges for other in exchanges if one.first <= other.first]
    inside = [span for span in spans if not any(line.facts[i].kind == "typed" for i in range(span[0], span[1] + 1))]
    return st.sampled_from([[], *([span] for span in inside)])


@examples(2)
@given(sketch=sketches(), tokens=st.integers(0, 3000), media=st.none() | st.integers(0, 3))
def test_what_is_chosen_is_the_first_that_fits_else_the_deepest(sketch: Sketch, tokens: int, media: int | None) -> None:
    line = sketch.history()
    weights = Weights([100] * len(line), [1] * len(line), [i % 2 for i in range(len(line))])
    aim = Target(tokens + POINTER_TOKENS, tokens + POINTER_TOKENS, media=media)
    candidates = [*find_choices(line)]
    fitting = [one for one in candidates if fits(line, one, weights, tokens, media)]
    choice = choose(line, weights, aim)
    if fitting or choice is None:
        assert choice == next(iter(fitting or candidates), None)
    else:
        loose = [*find_choices(line, strict=False)]
        fitting = [one for one in loose if fits(line, one, weights, tokens, media)]
        assert choice in (candidates[-1], loose[-1], *fitting[:1])


def fits(line: History, choice: Choice, weights: Weights, tokens: int, media: int | None) -> bool:
    places = [*choice.head_indices, *range(choice.anchor + 1, len(line))]
    is_few = media is None or sum(weights.media[i] for i in places) <= media
    return sum(weights.tokens[i] for i in places) <= tokens and is_few
