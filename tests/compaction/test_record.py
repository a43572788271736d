"""What a decision writes: rows with their visibility, edits, events, and what was saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest

from openmem_hook import fingerprint
from openmem_hook.compaction.decision import ThreadDecision
from openmem_hook.compaction.edits import Cut, Edits, Swap
from openmem_hook.compaction.record import measure_savings, visible_cut
from openmem_hook.compaction.threads import Thread
from openmem_hook.limits import Limits
from tests.compaction import hidden
from tests.compaction.samples import SPLICE
from tests.compaction.session import ROOMY, SMALL, MemorySession, decode_body, is_break, messages_of, settings
from tests.kit.builders import (
    FORMATS,
    Format,
    Json,
    assistant,
    body,
    chat,
    mixed,
    reminder,
    responses,
    results,
    session,
    system,
    text,
    tool_result,
    tool_use,
    user,
)
from tests.kit.filler import prose
from tests.kit.histories import rewind

LONG = prose(5000)
TALK = body(
    user("go"),
    assistant(text("looking"), tool_use("1", "Read", path="a.py")),
    results(tool_result("1", "content of a")),
)
HEAVY = session("anthropic", turns=3, exchanges=5, size=900)
TIGHT = replace(SMALL, trim_at=4000)
"""Half of what it costs."""


def send_once(request: Json, limits: Limits = ROOMY, **more: Any) -> tuple[MemorySession, ThreadDecision]:
    memory = MemorySession(limits, options=more)
    return memory, memory.send(request)


def visibility(memory: MemorySession, *decisions: ThreadDecision) -> Mapping[bytes, bool]:
    """Whether each stored message is shown whole after these decisions, as the columns of a store have it."""
    columns = dict[bytes, bool]()
    for decision in decisions:
        for row in decision.write.rows:
            columns.setdefault(row.key, row.in_context)
        columns |= dict.fromkeys(decision.write.hidden_keys, False) | dict.fromkeys(decision.write.shown_keys, True)
    return columns


def whole_in(decision: ThreadDecision) -> list[bool]:
    """Whether each message of a request goes out whole: by its text, in order."""
    history = decision.draft.history
    out = [fingerprint.dump_sorted(raw) for raw in messages_of(decision.body)]
    return [plain(raw) in out or ends_with_words(raw, out) for raw in history.messages]


def plain(raw: Any) -> bytes:
    return fingerprint.dump_sorted(raw)


def ends_with_words(raw: Json, out: list[bytes]) -> bool:
    """The carrier of the pointer has its own words behind it."""
    words = raw.get("content")
    return isinstance(words, str) and any(
        message.endswith(orjson.dumps(words)[1:-1] + b'","role":"user"}') for message in out
    )


# --- rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_new_message_has_a_row_whose_body_reads_back_equal(fmt: Format) -> None:
    request = session(fmt, turns=2, exchanges=2)
    memory, decision = send_once(request)
    assert [fingerprint.load(row.body) for row in decision.write.rows] == messages_of(request)
    assert [row.key for row in decision.write.rows] == list(decision.draft.history.keys)
    assert {row.format for row in decision.write.rows} == {fmt}
    assert memory.send(request).write.rows == []


def test_rows_of_a_history_that_grew_are_those_of_its_new_messages() -> None:
    memory, _ = send_once(TALK)
    longer = body(*TALK["messages"], assistant("done"), user("thanks"))
    rows = memory.send(longer).write.rows
    assert [row.text for row in rows] == ["done", "thanks"]
    assert [row.past for row in rows] == list(decode_body(longer).chain[2:4])


def test_a_row_says_what_its_message_is() -> None:
    rows = send_once(TALK)[1].write.rows
    assert [(row.role, row.kind) for row in rows] == [("user", "typed"), ("assistant", "call"), ("tool", "result")]
    assert [row.tool_name for row in rows] == ["", "Read", "Read"]
    assert [row.text for row in rows] == ["go", "looking\nRead\npath: a.py", "content of a"]
    assert rows[0].past == fingerprint.ROOT


def test_a_row_names_each_tool_once() -> None:
    calls = [tool_use("1", "Read"), tool_use("2", "Bash"), tool_use("3", "Read")]
    answers = [tool_result(str(n)) for n in (1, 2, 3)]
    rows = send_once(body(user("go"), assistant(*calls), results(*answers)))[1].write.rows
    assert [row.tool_name for row in rows] == ["", "Read, Bash", "Read, Bash"]


def test_words_that_a_client_relays_are_a_users() -> None:
    words = "The user sent a new message while you were working: stop"
    rows = send_once(body(*TALK["messages"], system(words)))[1].write.rows
    assert (rows[-1].role, rows[-1].kind) == ("user", "relayed")


def test_a_message_without_identity_is_stored_too() -> None:
    rows = send_once(body(user("go"), user(reminder())))[1].write.rows
    assert len({row.key for row in rows}) == 2


# --- visibility ---------------------------------------------------------------------------------------------


def test_a_request_without_edits_shows_all_rows() -> None:
    memory, decision = send_once(TALK)
    assert all(visibility(memory, decision).values())
    assert not decision.write.hidden_keys


def test_a_shortened_result_is_not_whole() -> None:
    request = body(user("go"), assistant(tool_use("1")), results(tool_result("1", LONG)))
    decision = send_once(request)[1]
    assert [row.in_context for row in decision.write.rows] == [True, True, False]
    assert decision.write.hidden_keys == [decision.draft.history.keys[2]]


def test_a_trim_hides_what_its_head_does_not_show() -> None:
    memory, decision = send_once(HEAVY, TIGHT)
    assert decision.is_trimmed
    assert list(visibility(memory, decision).values()) == whole_in(decision)
    assert 0 < sum(whole_in(decision)) < len(decision.write.rows)


def test_between_breaks_nothing_is_written_of_what_was_shown() -> None:
    memory, _ = send_once(HEAVY, TIGHT)
    again = memory.send(HEAVY)
    assert again.write.is_empty
    assert (again.write.hidden_keys, again.write.shown_keys) == ([], [])


def test_after_a_rewind_what_is_sent_again_is_shown_again() -> None:
    memory, first = send_once(HEAVY, TIGHT)
    back = {**HEAVY, "messages": HEAVY["messages"][:5]}
    second = memory.send(back)
    assert not second.is_trimmed
    columns = visibility(memory, first, second)
    assert all(columns[key] for key in second.draft.history.keys)
    third = memory.send(HEAVY)
    columns = visibility(memory, first, second, third)
    assert [columns[key] for key in third.draft.history.keys] == whole_in(third)


def test_an_inner_cut_hides_its_range_but_for_what_its_head_shows() -> None:
    request = session("chat", exchanges=4, size=200)
    memory = MemorySession(ROOMY)
    line = decode_body(request)
    first, last = hidden.ranges(line)[1]
    edit = hidden.inner_cut(line, memory.inputs(request).request.adapter, first, last)
    memory.insert(edit)
    decision = memory.send(request)
    columns = visibility(memory, decision)
    inside = range(first, last + 1)
    digests = set(edit.shown_digests)
    assert [columns[line.keys[i]] for i in inside] == [line.facts[i].digest in digests for i in inside]
    assert all(columns[key] for i, key in enumerate(line.keys) if i not in inside)


def test_a_clients_own_compaction_hides_the_threads_that_it_replaced() -> None:
    memory, first = send_once(TALK)
    recap = body(
        user("This session is being continued from a previous conversation that ran out."), assistant("ok"), user("on")
    )
    assert memory.send(recap).write.replaced_threads == (first.write.thread.id or 1,)


# --- edits --------------------------------------------------------------------------------------------------


def test_swaps_belong_to_the_cut_that_they_came_with() -> None:
    request = session("anthropic", turns=2, exchanges=5, size=1500)
    write = send_once(request, SMALL)[1].write
    swaps = [edit for edit in write.edits if isinstance(edit, Swap)]
    assert swaps
    assert {edit.generation for edit in write.edits} == {1}


def test_edits_that_the_database_does_not_hold_are_written_before_new_ones() -> None:
    memory, _ = send_once(HEAVY, TIGHT)
    memory.state = replace(memory.state, unstored_edits=memory.state.edits)
    assert set(memory.decide(HEAVY).write.edits) == set(memory.state.edits)


def test_an_edit_of_any_kind_belongs_to_the_newest_cut_and_is_written_before_it() -> None:
    memory, _ = send_once(HEAVY, TIGHT)
    memory.state = replace(memory.state, unstored_edits=Edits.of([*memory.state.edits, SPLICE]))
    edits = list(memory.decide(HEAVY).write.edits)
    assert {edit.generation for edit in edits} == {1}
    assert [isinstance(edit, Cut) for edit in edits] == sorted(isinstance(edit, Cut) for edit in edits)


def test_the_visible_cut_is_that_of_all_cuts_that_stand() -> None:
    memory, decision = send_once(HEAVY, TIGHT)
    assert visible_cut(decision.draft) == decision.draft.edits.cut_id != ""
    assert dict(memory.state.newest_cut_ids) == {1: decision.draft.edits.cut_id}


# --- events and savings -------------------------------------------------------------------------------------


def kinds(decision: ThreadDecision) -> list[str]:
    return [event.kind for event in decision.write.events]


def test_nothing_done_is_no_event() -> None:
    assert kinds(send_once(TALK)[1]) == []


def test_a_shortened_result_is_an_event_with_its_sizes() -> None:
    request = body(user("go"), assistant(tool_use("1")), results(tool_result("1", LONG)))
    (event,) = send_once(request)[1].write.events
    assert (event.kind, event.data["chars_before"]) == ("compression", 5000)
    assert event.data["chars_after"] < 1000


def test_a_trim_is_an_event_with_its_numbers() -> None:
    decision = send_once(HEAVY, TIGHT)[1]
    (event,) = [event for event in decision.write.events if event.kind == "trim"]
    (cut,) = decision.draft.edits.cuts
    assert event.data["reason"] == "limit"
    assert event.data["cut"] == cut.cut.id
    assert event.data["generation"] == 1
    assert event.data["trim_at"] == TIGHT.trim_at
    assert event.data["tokens_before"] > TIGHT.trim_at > event.data["tokens_after"]
    assert event.data["messages_left"] == len(decision.write.rows) - sum(whole_in(decision))


def test_a_trim_that_a_person_asked_for_is_told_twice() -> None:
    request = body(*HEAVY["messages"], assistant("done"), user("/smart-compact"))
    assert kinds(send_once(request)[1]) == ["trim", "forced"]


def test_a_person_who_asks_in_vain_is_told() -> None:
    memory, decision = send_once(body(user("/smart-compact")))
    assert kinds(decision) == ["nothing_to_trim"]
    assert kinds(memory.send(body(user("/smart-compact")))) == [], "a retry is no second event"


def test_events_never_hold_message_text() -> None:
    secret = "canary" * 2000
    request = body(
        user(secret), assistant(tool_use("1")), results(tool_result("1", secret)), assistant(secret), user(secret)
    )
    decision = send_once(request, SMALL)[1]
    assert decision.write.events
    assert all("canary" not in event.as_json() for event in decision.write.events)


def test_savings_are_what_edits_keep_out() -> None:
    _, decision = send_once(HEAVY, TIGHT)
    savings = measure_savings(decision.draft)
    assert savings is not None
    assert savings.after == round(decision.draft.tokens)
    raw = MemorySession(ROOMY, options={"settings": settings(compress_over_tokens=0)}).send(HEAVY)
    assert savings.before == pytest.approx(raw.draft.tokens, rel=0.02)
    assert measure_savings(raw.draft) is None


def test_savings_of_a_shortened_result() -> None:
    request = body(user("go"), assistant(tool_use("1")), results(tool_result("1", LONG)))
    savings = measure_savings(send_once(request)[1].draft)
    assert savings is not None
    assert 1000 < savings.before - savings.after < 2000


def test_a_decision_on_a_known_thread_keeps_its_number() -> None:
    memory, first = send_once(TALK)
    thread: Thread = memory.send(TALK).write.thread
    assert (first.write.thread.id, thread.id, thread.name) == (0, 1, "main-1")


@pytest.mark.parametrize("request_body", [chat.body(chat.user("a")), responses.body(responses.user("a"))])
def test_a_rewind_to_other_words_is_a_new_thread(request_body: Json) -> None:
    memory, _ = send_once(request_body)
    assert memory.send(rewind(request_body)).write.thread.id == 0


def test_a_shortened_result_in_a_head_is_not_whole_after_a_restart_either() -> None:
    """Words beside a long result keep their exchange in the head, and the result goes out short there."""
    memory = MemorySession(replace(SMALL, trim_at=3000), options={"settings": settings(compress_over_tokens=300)})
    history = [user("go")]
    for n in range(3):
        history += [assistant(tool_use(f"t{n}")), results(tool_result(f"t{n}", "word " * 400))]
    history += [assistant(tool_use("m")), mixed(tool_result("m", "word " * 1500), "please hurry")]
    memory.send(body(*history))
    for n in range(10, 22):
        history += [assistant(tool_use(f"t{n}")), results(tool_result(f"t{n}", "word " * 400))]
        decision = memory.send(body(*history))
        if is_break(decision):
            break
    memory.restart()
    history += [assistant(tool_use("last")), results(tool_result("last", "short"))]
    decision = memory.send(body(*history))
    line = decision.draft.history
    short = {i for i, key in enumerate(line.keys) if key in decision.draft.edits.edited_rows}
    in_head = {i for i in short if i < decision.draft.edits.tail_start(line)}
    assert in_head
    assert not {line.keys[i] for i in short}.intersection(decision.write.shown_keys)
