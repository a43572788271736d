"""What goes out under edits: the messages by definition, and facts that say of them what is true."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmem_hook import fingerprint
from openmem_hook.compaction.active import ActiveCut, ActiveEdits
from openmem_hook.compaction.edits import EditKey
from openmem_hook.compaction.outgoing import (
    apply,
    is_edited,
    outgoing_facts,
    outgoing_messages,
    with_spliced_facts,
)
from openmem_hook.facts import facts_of_message
from openmem_hook.model import Adapter, Facts, Format, History, HistoryCache
from openmem_hook.tokens import ZERO, media_count
from tests.compaction import hidden
from tests.compaction.session import adapter_of, decode_body
from tests.compaction.sketches import cut, swap
from tests.kit.builders import FORMATS, Json, session
from tests.kit.histories import bodies, format_of
from tests.kit.prefix import check, unchanged
from tests.kit.profile import examples

PARTS = ("trim", "inner", "swap", "splice")
COMBINATIONS = [set(parts) for count in range(len(PARTS) + 1) for parts in combinations(PARTS, count)]
EVERY_COMBINATION = pytest.mark.parametrize("parts", COMBINATIONS, ids=lambda parts: "+".join(sorted(parts)) or "none")
EVERY_FORMAT = pytest.mark.parametrize("fmt", FORMATS)


def exchanges(line: History) -> list[int]:
    """Places of the calls."""
    return [i for i, fact in enumerate(line.facts) if fact.calls]


def edits_of(line: History, adapter: Adapter, parts: set[str]) -> ActiveEdits:
    """Up to one edit of each kind on a session of two turns: a trim of the first, an inner cut over the second's first
    exchanges, a swap behind it, a splice of its last call."""
    turn = [i for i, fact in enumerate(line.facts) if fact.kind == "typed"][1]
    cuts = []
    if "trim" in parts:
        head = [{"role": "user", "content": "(pointer)"}]
        trim = cut(line, turn, [turn], head=fingerprint.dump(head), head_sizes=sizes_of(adapter, head))
        cuts.append(ActiveCut(trim, line.lead, turn))
    if "inner" in parts:
        first, last = next(span for span in hidden.ranges(line, turn) if line.facts[span[1] + 1].calls)
        cuts.append(ActiveCut(hidden.inner_cut(line, adapter, first, last), first, last))
    late = [i for i in exchanges(line) if i > turn][2:]
    swaps = [swap(line, late[0] + 1, text="(short)")] if "swap" in parts else []
    splices = {late[-1]: hidden.splice_at(line, late[-1], adapter.name, "ours_1")} if "splice" in parts else {}
    return ActiveEdits(tuple(cuts), {edit.edit_key: edit for edit in swaps}, splices)


def sizes_of(adapter: Adapter, messages: list[Any]) -> Any:
    return sum((facts_of_message(adapter, raw, 0).sizes for raw in messages), ZERO)


def by_definition(adapter: Adapter, line: History, edits: ActiveEdits) -> list[Any]:
    """Message by message, what stands for it."""
    out: list[Any] = []
    for i, raw in enumerate(line.messages):
        covering = [active for active in edits.cuts if active.start <= i <= active.anchor]
        short = raw
        for slot in line.facts[i].results:
            if EditKey("swap", line.keys[i], slot.call_id) in edits.row_edits:
                short = adapter.shorten_result(
                    short, slot.at, edits.row_edits[EditKey("swap", line.keys[i], slot.call_id)].text
                )
        if covering:
            out += fingerprint.load(covering[0].cut.head) if i == covering[0].start else []
        elif i in edits.splices:
            out += fingerprint.load(edits.splices[i].messages)
        else:
            out.append(short)
    return out


def example(fmt: Format) -> tuple[Json, History, Adapter]:
    body = session(fmt, turns=2, exchanges=4, size=200)
    return body, decode_body(body), adapter_of(fmt)


@EVERY_FORMAT
@EVERY_COMBINATION
def test_what_goes_out_is_what_stands_for_each_message(fmt: Format, parts: set[str]) -> None:
    body, line, adapter = example(fmt)
    edits = edits_of(line, adapter, parts)
    with unchanged(body):
        out = apply(adapter, line, edits)
    assert out == by_definition(adapter, line, edits)
    assert (out == list(line.messages)) is (not parts)
    assert is_edited(line, edits) is bool(parts)
    assert check(adapter.with_messages(dict(body), out), fmt) == []


@EVERY_FORMAT
@EVERY_COMBINATION
def test_what_is_not_edited_is_the_clients_own_object(fmt: Format, parts: set[str]) -> None:
    _, line, adapter = example(fmt)
    edits = edits_of(line, adapter, parts)
    ours = {id(raw) for raw in apply(adapter, line, edits)}
    short = {i for i, key in enumerate(line.keys) if key in edits.edited_rows}
    behind = {i for active in edits.cuts for i in range(active.start, active.anchor + 1)} | short | set(edits.splices)
    assert {i for i, raw in enumerate(line.messages) if id(raw) in ours} == set(range(len(line))) - behind


@EVERY_FORMAT
def test_heads_and_splices_are_parsed_anew_for_every_request(fmt: Format) -> None:
    _, line, adapter = example(fmt)
    edits = edits_of(line, adapter, {"trim", "inner", "splice"})
    one, other = apply(adapter, line, edits), apply(adapter, line, edits)
    own = {id(raw) for raw in line.messages}
    assert one == other
    assert {id(raw) for raw in one} & {id(raw) for raw in other} <= own


@EVERY_FORMAT
def test_the_lead_goes_out_as_it_came(fmt: Format) -> None:
    _, line, adapter = example(fmt)
    out = apply(adapter, line, edits_of(line, adapter, set(PARTS)))
    assert all(ours is theirs for ours, theirs in zip(out, line.messages[: line.lead], strict=False))


def test_two_results_of_a_message_are_swapped_each_for_itself() -> None:
    body = {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": str(n), "content": "long"} for n in (1, 2, 3)],
            }
        ],
        "max_tokens": 9,
    }
    line, adapter = decode_body(body), adapter_of("anthropic")
    swaps = [swap(line, 0, f"tool:{n}", text=f"short {n}") for n in (1, 3)]
    edits = ActiveEdits((), {edit.edit_key: edit for edit in swaps})
    (message,) = outgoing_messages(adapter, line, range(1), edits)
    assert [block["content"] for block in message["content"]] == ["short 1", "long", "short 3"]


def test_a_swap_of_another_history_changes_nothing() -> None:
    _, line, adapter = example("chat")
    _, other, _ = example("anthropic")
    edits = edits_of(other, adapter_of("anthropic"), {"swap"})
    assert not is_edited(line, edits)
    assert apply(adapter, line, edits) == list(line.messages)


# --- facts --------------------------------------------------------------------------------------------------


def tail_facts(line: History, edits: ActiveEdits, facts: tuple[Facts | None, ...]) -> list[Facts]:
    """Facts of what goes out beside the trim's head."""
    return [fact for fact in (*facts[: line.lead], *facts[edits.tail_start(line) :]) if fact is not None]


def assert_facts_are_true(line: History, adapter: Adapter, edits: ActiveEdits) -> None:
    """The sums over facts, and over the trim's head, are those of the messages that go out."""
    outgoing = outgoing_facts(adapter, line, edits, HistoryCache())
    assert len(outgoing.facts) == len(outgoing.keys) == len(line)
    facts, out = tail_facts(line, edits, tuple(outgoing.facts)), apply(adapter, line, edits)
    real = [facts_of_message(adapter, raw, len(fingerprint.dump(raw))) for raw in out]
    trim = edits.trim
    head_sizes = ZERO if trim is None else trim.cut.head_sizes
    head_bytes = 0 if trim is None else sum(len(fingerprint.dump(raw)) for raw in fingerprint.load(trim.cut.head))
    head_parts = 0 if trim is None else len(fingerprint.load(trim.cut.head))
    assert sum((fact.sizes for fact in facts), head_sizes) == sum((fact.sizes for fact in real), ZERO)
    assert sum(fact.media for fact in facts) + media_count(head_sizes) == sum(fact.media for fact in real)
    assert sum(fact.bytes + 1 for fact in facts) + head_bytes + head_parts == sum(fact.bytes + 1 for fact in real)


@EVERY_FORMAT
@EVERY_COMBINATION
def test_facts_say_what_goes_out(fmt: Format, parts: set[str]) -> None:
    _, line, adapter = example(fmt)
    assert_facts_are_true(line, adapter, edits_of(line, adapter, parts))


@examples()
@given(fmt=st.sampled_from(FORMATS), data=st.data(), rng=st.randoms(use_true_random=False))
def test_facts_say_what_goes_out_of_any_history(fmt: Format, data: st.DataObject, rng: Random) -> None:
    body = data.draw(bodies(fmt, most_turns=3, most_steps=4))
    line, adapter = decode_body(body), adapter_of(format_of(body))
    assert_facts_are_true(line, adapter, any_edits(line, adapter, rng))


def any_edits(line: History, adapter: Adapter, rng: Random) -> ActiveEdits:
    """Inner cuts that don't overlap, splices and swaps at random places."""
    cuts: list[ActiveCut] = []
    for first, last in rng.sample(spans := hidden.ranges(line), min(len(spans), 3)):
        if all(last < active.start or active.anchor < first for active in cuts):
            cuts.append(ActiveCut(hidden.inner_cut(line, adapter, first, last), first, last))
    places = [i for i in range(line.lead, len(line)) if hidden.can_splice(line, i) and rng.random() < 0.4]
    splices = {i: hidden.splice_at(line, i, adapter.name, f"ours_{i}") for i in places}
    slots = [(i, slot.call_id) for i, fact in enumerate(line.facts) for slot in fact.results if rng.random() < 0.4]
    swaps = [swap(line, i, call, text="(short)") for i, call in slots]
    cuts.sort(key=lambda active: active.start)
    return ActiveEdits(tuple(cuts), {edit.edit_key: edit for edit in swaps}, splices)


def test_inside_an_inner_cut_nothing_is_known_but_at_its_anchor() -> None:
    _, line, adapter = example("anthropic")
    edits = edits_of(line, adapter, {"inner"})
    (active,) = edits.inner_cuts
    outgoing = outgoing_facts(adapter, line, edits, HistoryCache())
    inside = range(active.start, active.anchor + 1)
    assert [outgoing.facts[i] is None for i in inside] == [i != active.anchor for i in inside]
    assert [outgoing.keys[i] for i in inside] == [None] * len(inside)
    assert [key for i, key in enumerate(outgoing.keys) if i not in inside] == [
        key for i, key in enumerate(line.keys) if i not in inside
    ]


def test_the_place_of_an_inner_cut_keeps_its_anchors_identity() -> None:
    _, line, adapter = example("chat")
    edits = edits_of(line, adapter, {"inner"})
    at = edits.inner_cuts[0].anchor
    fact = outgoing_facts(adapter, line, edits, HistoryCache()).facts[at]
    assert fact is not None
    assert (fact.digest, fact.kind, fact.answers) == (
        line.facts[at].digest,
        line.facts[at].kind,
        line.facts[at].answers,
    )


def test_what_a_trim_replaced_keeps_its_own_facts() -> None:
    _, line, adapter = example("responses")
    edits = edits_of(line, adapter, {"trim", "swap", "splice"})
    outgoing = outgoing_facts(adapter, line, edits, HistoryCache())
    start = edits.tail_start(line)
    assert list(outgoing.facts[:start]) == list(line.facts[:start])
    assert outgoing.keys == line.keys


def test_a_splice_has_the_thinking_and_signatures_of_all_its_messages() -> None:
    body = session("anthropic", exchanges=1)
    thinking = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    content = [thinking, *body["messages"][1]["content"]]
    body["messages"][1] = {"role": "assistant", "content": content}
    line, adapter = decode_body(body), adapter_of("anthropic")
    plain = replace(line.facts[1], has_thinking=False, starts_with_thinking=False)
    splices = {1: hidden.splice_at(line, 1, "anthropic", "ours_1")}
    fact = with_spliced_facts(adapter, line, splices, HistoryCache()).facts[1]
    assert fact.has_thinking
    assert fact.starts_with_thinking
    assert (fact.calls, fact.digest) == (plain.calls, plain.digest)


def test_decisions_see_splices_as_the_provider_does_and_the_history_stays() -> None:
    _, line, adapter = example("chat")
    edits = edits_of(line, adapter, {"splice"})
    (at,) = edits.splices
    sight = with_spliced_facts(adapter, line, edits.splices, HistoryCache())
    assert sight.facts[at].bytes > line.facts[at].bytes
    assert [i for i in range(len(line)) if sight.facts[i] is not line.facts[i]] == [at]
    assert with_spliced_facts(adapter, line, {}, HistoryCache()) is line
