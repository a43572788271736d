"""Which thread a request belongs to: told by fingerprints and the sub-agent's label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from openmem_hook.compaction.threads import (
    Placement,
    Thread,
    begin_thread,
    derive_id,
    extend_thread,
    find_replaced_threads,
    is_auxiliary,
    place,
)
from openmem_hook.model import History
from tests.compaction.sketches import facts_of, history, thread_of

Line = tuple[str, str]
"""A stored line of history with the label of its agent, "" for the main one."""

MAIN, LABEL, OTHER_LABEL = "", "explorer", "reviewer"


def store_lines(*lines: Line) -> tuple[Sequence[Thread], Mapping[bytes, int]]:
    """The threads of these lines, numbered from 1, and the owners of their messages: whoever stored one first."""
    sketches = [history(line) for line, _ in lines]
    threads = [
        thread_of(sketch, n, agent) for n, (sketch, (_, agent)) in enumerate(zip(sketches, lines, strict=True), 1)
    ]
    owners: dict[bytes, int] = {}
    for number, sketch in enumerate(sketches, 1):
        for key in sketch.keys:
            owners.setdefault(key, number)
    return threads, owners


PLACES: dict[str, tuple[list[Line], Line, Placement]] = {
    "nothing is known": ([], ("T1", MAIN), Placement(0, 0, False)),
    "it goes on": ([("T1 C1 R1", MAIN)], ("T1 C1 R1 C2 R2", MAIN), Placement(1, 3, True)),
    "a retry of the newest request": ([("T1 C1 R1", MAIN)], ("T1 C1 R1", MAIN), Placement(1, 3, True)),
    "a retry of an earlier request": ([("T1 C1 R1 C2 R2", MAIN)], ("T1 C1 R1", MAIN), Placement(1, 3, False)),
    "a rewind to other words": ([("T1 A1 T2 A2 T3", MAIN)], ("T1 A1 T9", MAIN), Placement(0, 2, False)),
    "an edit of the first words": ([("T1 A1 T2", MAIN)], ("T9 A1 T2", MAIN), Placement(0, 0, False)),
    "a fork goes on": ([("T1 A1 T2", MAIN), ("T1 A1 T9", MAIN)], ("T1 A1 T9 A9 T10", MAIN), Placement(2, 3, True)),
    "the trunk goes on": ([("T1 A1 T2", MAIN), ("T1 A1 T9", MAIN)], ("T1 A1 T2 A2 T3", MAIN), Placement(1, 3, True)),
    "of two threads in the request the deeper one": (
        [("T1 A1", MAIN), ("T1 A1 T2 A2", MAIN)], ("T1 A1 T2 A2 T3", MAIN), Placement(2, 4, True)),
    "whichever came first": (
        [("T1 A1 T2 A2", MAIN), ("T1 A1", MAIN)], ("T1 A1 T2 A2 T3", MAIN), Placement(1, 4, True)),
    "a sub-agent's first request": ([("T1 C1 R1", MAIN)], ("T8", LABEL), Placement(0, 0, False)),
    "a sub-agent goes on": ([("T1", MAIN), ("T8", LABEL)], ("T8 C8 R8", LABEL), Placement(2, 1, True)),
    "a sub-agent that begins with all of the main agent's messages": (
        [("T1 C1 R1", MAIN)], ("T1 C1 R1", LABEL), Placement(0, 3, False)),
    "and goes on from them": ([("T1 C1 R1", MAIN)], ("T1 C1 R1 C2 R2", LABEL), Placement(0, 3, False)),
    "a sub-agent shares all but the label with another, the first": (
        [("T8 C8 R8", LABEL), ("T8 C8 R8", OTHER_LABEL)], ("T8 C8 R8 C9 R9", LABEL), Placement(1, 3, True)),
    "a sub-agent shares all but the label with another, the second": (
        [("T8 C8 R8", LABEL), ("T8 C8 R8", OTHER_LABEL)], ("T8 C8 R8 C9 R9", OTHER_LABEL), Placement(2, 3, True)),
    "a sub-agent's retry of what another stored first": (
        [("T8 C8 R8 C9 R9", MAIN), ("T8 C8 R8 C9 R9", LABEL)], ("T8 C8 R8", LABEL), Placement(0, 3, False)),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_a_request_belongs_to(name: str) -> None:
    lines, (request, agent), answer = PLACES[name]
    threads, owners = store_lines(*lines)
    assert place(history(request), agent, threads, owners) == answer


def test_the_lead_counts_as_known_and_names_no_thread() -> None:
    line = history("S1 T1 A1", lead=1)
    assert place(line, MAIN, [], {}) == Placement(0, 1, False)
    thread = replace(thread_of(line), last_key=line.keys[0])
    assert not place(line, MAIN, [thread], {}).extends


def test_what_clients_leave_out_the_next_time_ends_no_thread() -> None:
    line = history("T1 A1 T2 N3:unnamed")
    thread = begin_thread(line, MAIN, None, 1, 1000)
    assert thread.last_key == line.keys[2]
    assert place(history("T1 A1 T2 A2 T3"), MAIN, [replace(thread, id=1)], {}).extends


def test_a_thread_begins_with_the_rules_of_its_first_contact() -> None:
    line = history("S1 T1 A1 T2", lead=1)
    thread = begin_thread(line, "", None, 1, 1000)
    assert thread == Thread(0, "main", "", line.keys[1], line.keys[3], True, 1, 1000)
    assert begin_thread(line, LABEL, None, 0, 0).name == "agent"
    assert begin_thread(line, LABEL, None, 0, 0).agent == LABEL


def test_a_thread_that_branches_off_takes_over_its_parents_rules() -> None:
    parent = thread_of(history("T1"), note=3, result_chars=77, offset=12.5)
    thread = begin_thread(history("T1 A1 T9"), MAIN, parent, 1, 1000)
    assert (thread.note, thread.result_chars, thread.offset) == (3, 77, 12.5)
    assert (thread.id, thread.has_tools) == (0, True)


def test_a_thread_of_a_system_prompt_alone_is_rooted_in_it() -> None:
    line = history("S1", lead=1)
    assert begin_thread(line, MAIN, None, 1, 0).root == line.keys[0]


def test_a_thread_goes_on_with_its_newest_message_and_its_own_rules() -> None:
    line = history("T1 A1 T2")
    thread = thread_of(history("T1"), note=3, has_tools=False)
    extension = extend_thread(thread, line, Placement(1, 1, True))
    assert extension == replace(thread, last_key=line.keys[-1], has_tools=True)


def test_an_earlier_request_of_a_thread_leaves_its_newest_message() -> None:
    thread = thread_of(history("T1 A1 T2"))
    line = replace(history("T1"), has_tools=False)
    assert extend_thread(thread, line, Placement(1, 1, False)) == thread


@pytest.mark.parametrize(
    ("line", "has_tools", "threads", "answer"),
    [
        ("T1", True, [], False),
        ("T1", False, [], True),
        ("T1 A1 T2", False, [], False),
        ("T1 A1 T2", False, [True], True),
        ("T1 A1 T2", False, [False], False),
        ("T1 A1 T2", True, [True], False),
        ("T1 A1 Q2", False, [False, True], True),
    ],
    ids=[
        "with tools", "a title", "a talk without tools", "a talk beside an agent's", "a talk beside a talk",
        "an agent's request", "a client's own compaction",
    ],
)  # fmt: skip
def test_a_request_is_auxiliary(line: str, has_tools: bool, threads: list[bool], answer: bool) -> None:
    others = [thread_of(history("T1"), n, has_tools=other) for n, other in enumerate(threads, 1)]
    assert is_auxiliary(history(line, has_tools=has_tools), others) is answer


def replaced_by(line: str, agent: str = MAIN, thread: int = 0, overlap: int = 0) -> tuple[int, ...]:
    """Threads 1 and 2 are the main agent's, 3 is a sub-agent's."""
    threads = [thread_of(history("T1"), n, agent) for n, agent in enumerate((MAIN, MAIN, LABEL), 1)]
    sketch: History = history(line)
    own = replace(thread_of(sketch, thread, agent), id=thread)
    return find_replaced_threads(sketch, own, Placement(thread, overlap, False), threads)


def test_a_clients_own_compaction_replaces_its_agents_threads() -> None:
    assert replaced_by("Y1 T2") == (1, 2)
    assert replaced_by("Y1 T2", LABEL) == (3,)


@pytest.mark.parametrize(
    ("line", "thread", "overlap"),
    [("T1 A1", 0, 0), ("Y1 T2", 1, 0), ("Y1 T2", 0, 1)],
    ids=["no recap", "a thread that goes on", "a history that shares its front"],
)
def test_nothing_else_replaces_threads(line: str, thread: int, overlap: int) -> None:
    assert replaced_by(line, thread=thread, overlap=overlap) == ()


def test_an_id_is_made_of_the_first_words_and_what_answered_them() -> None:
    words, answer = facts_of("T1").digest.hex(), facts_of("A1").digest.hex()
    assert derive_id(history("T1 A1 T2 A2")) == f"derived:{words}:{answer}"
    assert derive_id(history("N0 T1 N1 A1")) == f"derived:{words}:{answer}"
    assert derive_id(history("S1 T1 K1 A1 T2", lead=1)) == f"derived:{words}:{answer}"
    assert derive_id(history("N0 A1 N2")) == f"derived::{answer}"


@pytest.mark.parametrize("line", ["T1", "T1 N1", "T1 K1", "S1 T1"])
def test_there_is_none_before_anything_answered(line: str) -> None:
    assert derive_id(history(line)) is None
