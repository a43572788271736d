"""The steps of a decision: what is shortened, when a cut is due, and what is done where it is not enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
import pytest

from openmem_hook import tokens
from openmem_hook.compaction import estimate
from openmem_hook.compaction.draft import Break, Draft, Inputs, NotDue, NoUsefulCut
from openmem_hook.compaction.edits import Cut, Edits, ResultEdit, Swap
from openmem_hook.compaction.pipeline import STEPS, begin, run
from openmem_hook.compaction.record import measure_savings
from openmem_hook.compaction.squeeze import RELIEF, SQUEEZE
from openmem_hook.compaction.state import SessionState
from openmem_hook.compaction.trim import REPEATED_GAIN
from openmem_hook.compaction.wording import NOTE, is_short_form
from openmem_hook.limits import Limits
from tests.compaction.session import ROOMY, MemorySession, inputs, is_break, messages_of, settings
from tests.kit.builders import (
    FORMATS,
    Format,
    Json,
    assistant,
    body,
    chat,
    image,
    responses,
    results,
    session,
    text,
    tool_result,
    tool_use,
    user,
)
from tests.kit.filler import listing, prose

FORCE = "/smart-compact"
SUMMARY = "Your task is to create a detailed summary of the conversation so far"
RECAP = "This session is being continued from a previous conversation that ran out of context."


def exchange(call: str, size: int = 0, name: str = "Read") -> list[Json]:
    return [assistant(tool_use(call, name, path=f"{call}.py")), results(tool_result(call, listing(size, call) or "ok"))]


def turn(words: str, *calls: str, size: int = 0) -> list[Json]:
    return [user(words), *(message for call in calls for message in exchange(call, size))]


def short_calls(draft: Draft) -> dict[str, str]:
    """Call ids of the results that a decision shortens, with the reason of each."""
    return {edit.call_id.partition(":")[2]: edit.reason for edit in draft.new_edits if isinstance(edit, Swap)}


def new_cut(draft: Draft) -> Cut | None:
    return next((edit for edit in draft.new_edits if isinstance(edit, Cut)), None)


# --- results that are sent for the first time ---------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS)
def test_results_over_the_limit_are_shortened_when_they_are_first_sent(fmt: Format) -> None:
    request = session(fmt, exchanges=2, size=3000)
    decision = MemorySession(ROOMY).send(request)
    assert list(short_calls(decision.draft).values()) == ["size", "size"]
    assert orjson.dumps(messages_of(decision.body)).count(b"tool result shortened") == 2


def test_results_at_the_limit_are_sent_as_they_came() -> None:
    limit = begin(inputs(body(user("go")))).thread.result_chars
    for size, is_short in ((limit, False), (limit + 1, True)):
        assert bool(short_calls(run(inputs(body(*turn("go", "1", size=size)))))) is is_short


def test_what_was_sent_raw_stays_so_whatever_the_limit_became() -> None:
    memory = MemorySession(ROOMY, options={"settings": settings(compress_over_tokens=4000)})
    request = body(*turn("go", "1", size=3000))
    assert not short_calls(memory.send(request).draft)
    memory.options = {"settings": settings(compress_over_tokens=100)}
    longer = body(*turn("go", "1", "2", size=3000))
    assert not short_calls(memory.send(longer).draft), "the limit of a thread is fixed at its first contact"
    memory.state = replace(memory.state, threads={1: replace(memory.state.threads[1], result_chars=300)})
    longest = body(*turn("go", "1", "2", "3", size=3000))
    assert short_calls(memory.send(longest).draft) == {"3": "size"}


def test_what_went_past_the_store_was_sent_raw_and_stays_so() -> None:
    memory = MemorySession(ROOMY)
    memory.send(body(*turn("go", "1", size=3000)))
    request = body(*turn("go", "1", "2", "3", size=3000))
    assert short_calls(memory.decide(request).draft) == {"3": "size"}, "an output answered the second one"
    keys = frozenset(begin(memory.inputs(request)).history.keys)
    assert short_calls(memory.decide(request, sent_unstored=keys).draft) == {}


@pytest.mark.parametrize(
    "more",
    [{"settings": settings(compress_over_tokens=0)}, {"may_edit": False}],
    ids=["compression is off", "the plugin is off"],
)
def test_switched_off_nothing_is_shortened(more: dict[str, Any]) -> None:
    assert not run(inputs(body(*turn("go", "1", size=9000)), **more)).new_edits


def swap_of(draft: Draft, call_id: str) -> Swap:
    return next(swap for swap in draft.new_edits.swaps.values() if swap.call_id == call_id)


class OtherText(ResultEdit):
    """A kind that nothing decides."""

    kind = "splice"


def test_a_result_that_another_kind_of_text_stands_for_is_not_shortened_too() -> None:
    request = body(*turn("go", "1", "2", size=9000))
    history = begin(inputs(request)).history
    one = OtherText(id="0" * 16, reason="size", key=history.keys[2], call_id=history.facts[2].answers[0], text="other")
    draft = run(inputs(request, SessionState(edits=Edits.of([one]))))
    assert short_calls(draft) == {"2": "size"}
    once_short = replace(swap_of(run(inputs(request)), one.call_id), key=b"its name before a change")
    draft = run(inputs(request, SessionState(edits=Edits.of([one, once_short]))))
    assert short_calls(draft) == {"2": "size"}, "nor is its short form taken over under another name"


def test_switched_off_what_went_out_short_goes_on_so() -> None:
    memory = MemorySession(ROOMY)
    request = body(*turn("go", "1", size=3000))
    first = memory.send(request)
    assert orjson.dumps(memory.send(request, may_edit=False).body) == orjson.dumps(first.body)


@pytest.mark.parametrize("name", ["smart_compact_get", "mcp__openmem__smart_compact_search", "context_status"])
def test_answers_of_our_own_tools_are_not_shortened(name: str) -> None:
    assert not short_calls(run(inputs(body(user("go"), *exchange("1", 9000, name)))))
    assert short_calls(run(inputs(body(user("go"), *exchange("1", 9000, "Read")))))


def test_a_short_form_that_comes_back_is_not_shortened_again() -> None:
    memory = MemorySession(ROOMY)
    echo = messages_of(memory.send(body(*turn("go", "1", size=3000))).body)[2]["content"][0]["content"]
    assert is_short_form(echo)
    request = body(user("go"), assistant(tool_use("9")), results(tool_result("9", echo)))
    assert not short_calls(run(inputs(request, settings=settings(compress_over_tokens=100))))


def test_a_result_keeps_its_short_form_when_something_before_it_changed() -> None:
    memory = MemorySession(ROOMY)
    first = memory.send(body(*turn("go", "1", "2", size=3000)))
    memory.state = replace(memory.state, threads={1: replace(memory.state.threads[1], result_chars=0)})
    second = memory.send(body(user("go on"), *turn("", "1", "2", size=3000)[1:]))
    assert short_calls(second.draft) == {"1": "renamed", "2": "renamed"}
    assert messages_of(second.body)[1:] == messages_of(first.body)[1:]
    assert {edit.id for edit in first.write.edits} == {edit.id for edit in second.write.edits}


def test_a_result_that_changed_has_no_short_form_of_another() -> None:
    memory = MemorySession(ROOMY)
    memory.send(body(*turn("go", "1", size=3000)))
    other = body(user("go on"), assistant(tool_use("1")), results(tool_result("1", prose(3000))))
    assert short_calls(memory.send(other).draft) == {"1": "size"}


def test_results_behind_an_output_that_the_client_began_are_new() -> None:
    memory = MemorySession(ROOMY)
    memory.send(body(*turn("go", "1")))
    request = body(*turn("go", "1"), *exchange("2", 3000), assistant("I will"))
    assert short_calls(memory.decide(request).draft) == {"2": "size"}


def test_results_in_what_a_provider_compacted_are_left_alone() -> None:
    compaction = {"type": "compaction", "encrypted_content": "x" * 900}
    before = [responses.call("1"), responses.output("1", listing(5000))]
    behind = [responses.call("2"), responses.output("2", listing(5000))]
    request = responses.body(responses.user("go"), *before, compaction, *behind)
    assert short_calls(run(inputs(request))) == {"2": "size"}


# --- when a cut is due --------------------------------------------------------------------------------------

CALLS = [str(n) for n in range(1, 9)]
TALK = body(*turn("first", *CALLS[:4], size=900), assistant("done"), *turn("second", *CALLS[4:], size=900))
FULL = run(inputs(TALK)).tokens
"""What the talk costs as it is."""


def limits(trim_at: float, **more: Any) -> Limits:
    return replace(ROOMY, trim_at=round(trim_at), **more)


def decide(request: Json, most: Limits, **more: Any) -> Draft:
    return run(inputs(request, limits=most, **more))


def retry(request: Json, most: Limits, **more: Any) -> Draft:
    """The decision on a request that was sent before, without a cut."""
    memory = MemorySession(ROOMY)
    memory.send(request)
    memory.limits = most
    return memory.decide(request, **more).draft


@pytest.mark.parametrize(
    ("most", "reason"),
    [
        (limits(FULL * 2), None),
        (limits(FULL / 0.994), None),
        (limits(FULL / 0.996), "limit"),
        (limits(FULL / 2), "limit"),
        (limits(FULL * 2, hard=round(FULL - 10)), "hard"),
        (limits(FULL * 2, max_body_bytes=8000), "hard"),
        (limits(FULL / 2, hard=round(FULL / 2)), "hard"),
    ],
    ids=[
        "half of it",
        "surely under it",
        "so near that it may be over",
        "twice of it",
        "over the window",
        "over the size of a body",
        "over both",
    ],
)
def test_a_break_is_due_at_a_limit(most: Limits, reason: str | None) -> None:
    verdict = decide(TALK, most).verdict
    assert isinstance(verdict, NotDue) if reason is None else verdict.reason == reason


def test_media_over_their_count_are_a_hard_limit() -> None:
    pictures = [message for n in range(4) for message in
                (assistant(tool_use(str(n))), results(tool_result(str(n), [image()])))]  # fmt: skip
    request = body(user("go"), *pictures, assistant("done"), user("on"))
    draft = decide(request, limits(10**6, max_media=3))
    assert isinstance(draft.verdict, Break)
    assert draft.verdict.reason == "hard"
    assert sum(fact.media for fact in draft.outgoing.facts[draft.edits.tail_start(draft.history) :] if fact) == 0


def test_the_cut_brings_a_request_under_its_share_of_the_limit() -> None:
    draft = decide(TALK, limits(FULL - 10))
    assert isinstance(draft.verdict, Break)
    assert draft.tokens < FULL
    assert draft.tokens_before == pytest.approx(FULL)
    assert draft.edits.trim is not None
    assert draft.edits.trim.cut is new_cut(draft)


@pytest.mark.parametrize(
    ("most", "is_due"),
    [
        (limits(FULL - 10), False),
        (limits(FULL * 2, hard=round(FULL - 10)), True),
        (limits(FULL * 2, max_body_bytes=8000), True),
    ],
    ids=["the soft limit", "the window", "the size of a body"],
)
def test_a_retry_breaks_only_at_a_hard_limit(most: Limits, is_due: bool) -> None:
    assert isinstance(retry(TALK, most).verdict, Break) is is_due


def test_a_retry_breaks_where_a_person_asks() -> None:
    request = body(*TALK["messages"], assistant("done"), user(FORCE))
    memory = MemorySession(ROOMY)
    memory.send(request, may_edit=False)
    assert is_break(memory.send(request))
    assert not is_break(memory.send(request)), "it was done already"


@pytest.mark.parametrize(("hard", "is_due"), [(None, False), (round(FULL), True)], ids=["soft", "hard"])
def test_a_client_that_asks_for_a_summary_sees_everything_unless_it_does_not_fit(
    hard: int | None, is_due: bool
) -> None:
    request = body(*TALK["messages"], assistant("done"), user(SUMMARY))
    assert (
        isinstance(decide(request, limits(FULL / 2 if hard is None else FULL * 2, hard=hard)).verdict, Break) is is_due
    )


def test_switched_off_no_break_is_due() -> None:
    assert isinstance(decide(TALK, limits(10, hard=10), may_edit=False).verdict, NotDue)


@pytest.mark.parametrize(
    ("ending", "is_due"),
    [
        ([user(FORCE)], True),
        ([user(f"{FORCE} please")], True),
        ([user(f"{FORCE}er")], False),
        ([user(f"do a {FORCE}")], False),
        ([user("<command-name>/smart-compact</command-name>")], True),
        ([user("<command-name>/smart-compact</command-name>"), user("and on")], True),
        ([user(FORCE), assistant("ok"), user("on")], False),
        ([user(FORCE), user("one"), user("two")], False),
        ([user(FORCE), user(RECAP)], False),
        ([user(FORCE), user("<task-notification>done</task-notification>")], True),
    ],
    ids=[
        "in its literal form", "with words", "another command", "in a sentence", "as a record", "as a record and words",
        "answered", "long ago", "before a recap", "before a notice",
    ],
)  # fmt: skip
def test_a_person_asks_for_a_trim(ending: Sequence[Json], is_due: bool) -> None:
    verdict = decide(body(*TALK["messages"], assistant("done"), *ending), ROOMY).verdict
    assert isinstance(verdict, Break) is is_due
    assert isinstance(verdict, NotDue) or verdict.reason == "forced"


# --- whether a cut is worth it ------------------------------------------------------------------------------


def test_there_is_no_cut_where_nothing_would_leave() -> None:
    verdict = decide(body(user(prose(9000))), limits(1000)).verdict
    assert verdict == NoUsefulCut("limit", True)


def test_there_is_no_cut_that_costs_more_than_it_saves() -> None:
    request = body(*turn("first", "1"), assistant("done"), user(prose(9000)))
    assert decide(request, limits(3000)).verdict == NoUsefulCut("limit", True)


START = turn("go", *(f"big{n}" for n in range(8)), size=900) + turn("", "a", "b", "c", size=500)[1:]


def after_a_trim(size: int, *ending: Json, **more: Any) -> tuple[MemorySession, Draft]:
    """A session whose first trim left its last three exchanges, and what is decided once it is over its limit again:
    three more exchanges of this size came. `more`: limits of that decision."""
    memory = MemorySession(limits(4000, trim_to_fraction=0.05))
    assert is_break(memory.send(body(*START)))
    request = body(*START, *turn("", "d", "e", "f", size=size)[1:], *ending)
    now = memory.decide(request).draft.tokens_before
    memory.limits = limits(now, **{name: round(now) - 10 for name in more})
    return memory, memory.decide(request).draft


def test_a_threads_further_breaks_gain_a_fifth_of_the_limit() -> None:
    memory, draft = after_a_trim(900)
    assert not isinstance(draft.verdict, Break)
    assert draft.verdict == NoUsefulCut("limit", False), "and nobody is told"
    request = body(*START, *turn("", *"defghi", size=900)[1:])
    memory.limits = limits(memory.decide(request).draft.tokens_before)
    draft = memory.decide(request).draft
    assert isinstance(draft.verdict, Break)
    assert draft.verdict.cut.generation == 2
    assert draft.tokens_before - draft.tokens >= REPEATED_GAIN * memory.limits.trim_at


def test_at_a_hard_limit_any_gain_counts() -> None:
    _, draft = after_a_trim(50, hard=True)
    assert isinstance(draft.verdict, Break)
    assert draft.verdict.reason == "hard"


def test_a_person_gets_a_further_break_for_any_gain() -> None:
    _, draft = after_a_trim(50, assistant("done"), user(FORCE))
    assert isinstance(draft.verdict, Break)
    assert draft.verdict.reason == "forced"


# --- what leaves with a cut ---------------------------------------------------------------------------------


def test_short_forms_of_results_that_leave_with_a_cut_were_never_sent_and_are_no_edits() -> None:
    request = body(*turn("first", *CALLS[:4], size=3000), assistant("done"), *turn("second", *CALLS[4:], size=3000))
    draft = decide(request, limits(1500))
    assert isinstance(draft.verdict, Break)
    tail = messages_of({"messages": draft.history.messages[draft.edits.tail_start(draft.history) :]})
    in_tail = {block["tool_use_id"] for raw in tail for block in raw["content"] if "tool_use_id" in block}
    assert set(short_calls(draft)) == in_tail


def test_the_estimate_after_a_break_is_that_of_the_next_request_that_sends_the_same() -> None:
    memory = MemorySession(limits(FULL - 10))
    decision = memory.send(TALK)
    assert is_break(decision)
    assert memory.decide(TALK).draft.tokens == pytest.approx(decision.draft.tokens, rel=0.01)


# --- still over a hard limit --------------------------------------------------------------------------------

SMALL_TURN = body(user("go"), *exchange("small", 700), *exchange("large", 9000), *exchange("middle", 5000))
"""Three exchanges, of which none may leave."""
RAW = {"settings": settings(compress_over_tokens=0)}


def hard(share: float, request: Json = SMALL_TURN) -> Limits:
    return limits(10**8, hard=round(run(inputs(request, **RAW)).tokens * share))


def test_over_a_hard_limit_results_that_stay_are_shortened_the_largest_first() -> None:
    draft = decide(SMALL_TURN, hard(0.9), **RAW)
    assert short_calls(draft) == {"large": "hard"}
    assert draft.tokens <= RELIEF * hard(0.9).hard


def test_more_of_them_and_shorter_ones_where_that_is_not_enough() -> None:
    some, all_ = decide(SMALL_TURN, hard(0.5), **RAW), decide(SMALL_TURN, hard(0.25), **RAW)
    assert set(short_calls(some)) == {"large", "middle"}
    shortest = max(len(swap.text) for swap in all_.edits.row_edits.values())
    assert shortest <= SQUEEZE[-1] < max(len(swap.text) for swap in some.edits.row_edits.values())


def test_over_the_size_of_a_body_results_are_shortened_too() -> None:
    size = len(orjson.dumps(SMALL_TURN))
    draft = decide(SMALL_TURN, limits(10**8, max_body_bytes=size - 100), **RAW)
    assert "large" in short_calls(draft)


def test_answers_of_our_own_tools_are_shortened_where_nothing_else_helps() -> None:
    request = body(user("go"), *exchange("1", 9000, "smart_compact_get"))
    assert short_calls(decide(request, hard(0.5, request), **RAW)) == {"1": "hard"}


def test_shorter_results_that_neither_help_nor_gain_much_stay_as_they_were() -> None:
    request = body(user(prose(20_000)), *exchange("1", 1200))
    draft = decide(request, limits(10**8, hard=3000), **RAW)
    assert not draft.new_edits
    assert isinstance(draft.verdict, NoUsefulCut)


def test_pictures_are_no_reason_to_shorten_results() -> None:
    pictures = [image(), image(), image()]
    request = body(user(text("look"), *pictures), *exchange("1", 3000))
    draft = decide(request, limits(10**8, max_media=2), **RAW)
    assert isinstance(draft.verdict, NoUsefulCut)
    assert not draft.new_edits


def test_at_a_soft_limit_results_that_stay_are_left_alone() -> None:
    draft = decide(SMALL_TURN, limits(1000), **RAW)
    assert isinstance(draft.verdict, NoUsefulCut)
    assert not draft.new_edits


@pytest.mark.parametrize("share", [0.9, 0.5, 0.25], ids=["one result", "several", "several times over"])
def test_what_was_measured_of_a_result_says_nothing_of_its_short_form(share: float) -> None:
    memory = MemorySession(ROOMY, options=RAW)
    memory.send(SMALL_TURN)
    measured = dict.fromkeys(memory.state.row_tokens, 4000.0)
    memory.state = replace(memory.state, row_tokens=measured)
    memory.limits = limits(10**8, hard=round(memory.decide(SMALL_TURN).draft.tokens * share))
    draft = memory.decide(SMALL_TURN).draft
    raw, short = draft.history.facts, draft.outgoing.facts
    edited = [i for i, key in enumerate(draft.history.keys) if key in draft.edits.edited_rows]
    assert edited
    unmeasured = dict.fromkeys(draft.history.keys[i] for i in edited)
    assert draft.costs.row_tokens == {**measured, **unmeasured}, "what learns from the request counts it so too"
    count = estimate.estimate_prompt(draft.history, draft.outgoing, draft.edits, draft.costs)
    assert draft.tokens == pytest.approx(count)
    price, savings = partial(tokens.estimate, draft.costs.calibration), measure_savings(draft)
    assert savings is not None
    saved = sum(price(raw[i].sizes) - price(short[i].sizes) for i in edited)
    assert savings.before - savings.after == pytest.approx(saved, abs=1)


def test_squeezed_once_a_request_goes_on_so() -> None:
    memory = MemorySession(hard(0.9), options=RAW)
    first = memory.send(SMALL_TURN)
    again = memory.send(SMALL_TURN)
    assert orjson.dumps(first.body) == orjson.dumps(again.body)
    assert not again.draft.new_edits


# --- threads and notes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_note_of_a_thread_stays_as_it_was_at_its_first_contact(fmt: Format) -> None:
    request = session(fmt, exchanges=1)
    for at_first, later in ((True, False), (False, True)):
        memory = MemorySession(ROOMY, options={"settings": settings(standing_instruction=at_first)})
        first = memory.send(request)
        memory.options = {"settings": settings(standing_instruction=later)}
        again = memory.send(request)
        assert (NOTE in orjson.dumps(first.body).decode()) is at_first
        assert orjson.dumps(again.body) == orjson.dumps(first.body)


def test_a_talk_without_tools_that_began_untouched_goes_on_without_the_note() -> None:
    request = chat.body(chat.user("a"), chat.assistant("b"), chat.user("c"), tools=[])
    for began_outside_thread in (True, False):
        draft = run(inputs(request, began_outside_thread=began_outside_thread))
        assert bool(draft.thread.note) is not began_outside_thread


def test_a_branch_goes_by_the_rules_of_the_thread_that_it_leaves() -> None:
    memory = MemorySession(ROOMY)
    memory.send(TALK)
    memory.options = {"settings": settings(compress_over_tokens=0, standing_instruction=False)}
    other = memory.decide(body(*TALK["messages"][:-3], user("something else")))
    assert other.write.thread.id == 0
    assert other.write.thread.result_chars == memory.state.threads[1].result_chars > 0
    assert other.write.thread.note == 1


def test_a_history_that_shares_nothing_goes_by_the_settings_of_its_day() -> None:
    memory = MemorySession(ROOMY)
    memory.send(TALK)
    memory.options = {"settings": settings(compress_over_tokens=0, standing_instruction=False)}
    thread = memory.decide(body(user("unheard of"))).write.thread
    assert (thread.result_chars, thread.note) == (0, 0)


def test_a_decision_calls_for_a_pause_after_every_step() -> None:
    pauses: list[int] = []
    reads: Inputs = inputs(TALK)
    run(reads, lambda: pauses.append(1))
    assert len(pauses) == len(STEPS)
