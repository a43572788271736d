"""The laws as properties of the core alone: whole conversations in three formats, decided and known in memory.

`tests/laws` holds the same laws over hooks, threads and stores. Here the ledger holds edits of every kind: `hidden`
puts splices and inner cuts into it, and says when it may, so that no law is broken but by the core.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmem_hook import fingerprint, tokens
from openmem_hook.compaction import trim
from openmem_hook.compaction.decision import ThreadDecision
from openmem_hook.compaction.draft import Break, Draft
from openmem_hook.compaction.outgoing import with_spliced_facts
from openmem_hook.compaction.pipeline import begin
from openmem_hook.facts import facts_of_message
from openmem_hook.model import HistoryCache
from openmem_hook.tokens import ZERO
from tests.compaction.hidden import HidingSession
from tests.compaction.session import ROOMY, SMALL, MemorySession, decode_body, is_break, messages_of, settings
from tests.kit.builders import FORMATS, Format, Json
from tests.kit.histories import bodies, drift, edit, fork, format_of, growth, rewind, turns_of
from tests.kit.prefix import broken_at, canonical, check, normal, unchanged
from tests.kit.profile import examples

pytestmark = pytest.mark.laws
BIG = 700
"""Characters a text: a generated history then has several times what `SMALL` allows."""
formats = st.sampled_from(FORMATS)
randoms = st.randoms(use_true_random=False)


def drawn_body(data: st.DataObject, fmt: Format) -> Json:
    return data.draw(bodies(fmt, size=BIG, most_turns=3, most_steps=4))


def hiding(rng: Random, **more: Any) -> HidingSession:
    """A session with limits that a history of a few thousand characters reaches, and edits of every kind."""
    limits = replace(SMALL, trim_at=rng.choice((1200, 2500, 4000)), **more)
    return HidingSession(MemorySession(limits, options={"settings": settings(compress_over_tokens=300)}), rng)


def requests_of(body: Json, rng: Random) -> Iterator[Json]:
    """The requests that led to a body. Now and then one was not sent through us, so that more than one exchange comes
    new."""
    requests = growth(body)
    yield from (request for i, request in enumerate(requests) if i == len(requests) - 1 or rng.random() < 0.7)


# --- L1: a request under its limits goes out as it came -----------------------------------------------------


@examples(0.5, shrinks=False)
@given(fmt=formats, data=st.data())
def test_l1_under_its_limits_a_request_is_the_clients_own(fmt: Format, data: st.DataObject) -> None:
    body = drawn_body(data, fmt)
    quiet = settings(standing_instruction=False, compress_over_tokens=0)
    memory = MemorySession(ROOMY, options={"settings": quiet})
    for request in growth(body)[-3:]:
        with unchanged(request):
            decision = memory.send(request)
        assert orjson.dumps(decision.body) == orjson.dumps(request)
        pairs = zip(messages_of(decision.body), messages_of(request), strict=True)
        assert all(ours is theirs for ours, theirs in pairs)


# --- L2: between breaks every request is a prefix of the next ----------------------------------------------


@examples(0.6, shrinks=False)
@given(fmt=formats, data=st.data(), rng=randoms)
def test_l2_between_breaks_every_request_is_a_prefix_of_the_next(fmt: Format, data: st.DataObject, rng: Random) -> None:
    session, before = hiding(rng), None
    for request in requests_of(drawn_body(data, fmt), rng):
        disturb(session, rng)
        decision = session.send(request)
        again = session.memory.send(request)
        assert canonical(again.body) == canonical(decision.body), "L2: a retry was sent in other bytes"
        if before is not None and not session.broke:
            at = broken_at(before, dict(decision.body), fmt)
            assert at is None, f"L2: prefix broken at block {at}"
        before = dict(decision.body)
        if rng.random() < 0.5:
            session.memory.report(decision, rng.randint(200, 4000))


def disturb(session: HidingSession, rng: Random) -> None:
    """What may happen between two requests without moving a byte: a restart, other settings."""
    memory = session.memory
    if rng.random() < 0.3:
        memory.restart()
    if rng.random() < 0.3:
        over, has_note = rng.choice((0, 100, 4000)), rng.random() < 0.5
        memory.options = {"settings": settings(compress_over_tokens=over, standing_instruction=has_note)}
    if rng.random() < 0.1:
        memory.options = {**memory.options, "may_edit": not memory.options.get("may_edit", True)}


# --- L3: what is legal stays legal -------------------------------------------------------------------------


@examples(0.8, shrinks=False)
@given(fmt=formats, data=st.data(), rng=randoms)
def test_l3_a_legal_request_stays_legal(fmt: Format, data: st.DataObject, rng: Random) -> None:
    body = drawn_body(data, fmt)
    session = hiding(rng, hard=rng.choice((None, 1500, 5000)), max_media=rng.choice((1, 2, 90)))
    for request in [*requests_of(body, rng), rewind(body), fork(body, rng)]:
        with unchanged(request):
            decision = session.send(request)
        assert check(dict(decision.body), fmt) == [], "L3: the provider would object"


# --- L4: every message can be read back --------------------------------------------------------------------


@examples(0.5, shrinks=False)
@given(fmt=formats, data=st.data(), rng=randoms)
def test_l4_every_message_has_a_row_whose_body_reads_back_equal(fmt: Format, data: st.DataObject, rng: Random) -> None:
    session, body = hiding(rng), drawn_body(data, fmt)
    for request in [*requests_of(body, rng), edit(body, 0), fork(body, rng)]:
        decision = session.send(request)
        assert all(key in session.memory.rows for key in decision.draft.history.keys), "L4: a message has no row"
        bodies_of_rows = {normal(fingerprint.load(row.body)) for row in session.memory.rows.values()}
        assert all(normal(raw) in bodies_of_rows for raw in messages_of(request)), "L4: a message can't be read back"


# --- L5: a break gets under the limit, or as low as the law allows ------------------------------------------


@examples(0.6, shrinks=False)
@given(fmt=formats, data=st.data(), rng=randoms)
def test_l5_a_break_gets_under_the_limit_or_as_low_as_may_be(fmt: Format, data: st.DataObject, rng: Random) -> None:
    session = hiding(rng)
    session.memory.options = {"settings": settings(standing_instruction=False)}  # no estimate knows of the note
    for request in requests_of(drawn_body(data, fmt), rng):
        decision = session.send(request)
        if not is_break(decision):
            continue
        draft, weight = decision.draft, weight_of(decision)
        assert draft.tokens <= session.memory.limits.trim_at or is_deepest(draft), "L5: more could have gone"
        # What is said of it counts the thinking of messages in the head, whether the head has it or not.
        assert weight * 0.98 <= draft.tokens, "L5: more goes out than was said"
        assert draft.tokens <= weight * 1.02 + thinking_of_head(draft), "L5: less goes out than was said"


def is_deepest(draft: Draft) -> bool:
    """Whether no legal choice would have gone deeper."""
    assert draft.edits.trim is not None
    line = with_spliced_facts(draft.adapter, draft.history, draft.edits.splices, HistoryCache())
    ranges = [(active.start, active.anchor) for active in begin(draft.inputs).edits.inner_cuts]
    *_, deepest = trim.find_choices(line, ranges, strict=False)
    return deepest.anchor == draft.edits.trim.anchor


def weight_of(decision: ThreadDecision) -> float:
    """Tokens of the messages that go out, with system prompt and tools, priced by themselves."""
    draft = decision.draft
    sizes = sum((facts_of_message(draft.adapter, raw, 0).sizes for raw in messages_of(decision.body)), ZERO)
    return tokens.estimate(draft.costs.calibration, sizes) + draft.costs.of_overhead(draft.history)


def thinking_of_head(draft: Draft) -> float:
    assert isinstance(draft.verdict, Break)
    line = with_spliced_facts(draft.adapter, draft.history, draft.edits.splices, HistoryCache())
    return sum(draft.costs.of_thinking(line.facts[i]) for i in draft.verdict.head_indices)


# --- L6: whoever decides, the bytes are the same ------------------------------------------------------------


@examples(0.4, shrinks=False)
@given(fmt=formats, data=st.data(), rng=randoms)
def test_l6_two_that_decide_from_the_same_state_send_and_write_the_same(
    fmt: Format, data: st.DataObject, rng: Random
) -> None:
    session = hiding(rng)
    for request in requests_of(drawn_body(data, fmt), rng):
        decision = session.send(request)
        # Another worker: the same state, nothing cached, and the body parsed by itself.
        memory, state = session.memory, decision.draft.inputs.state
        twin = MemorySession(memory.limits, state, options=memory.options)
        same = twin.decide(orjson.loads(orjson.dumps(request)))
        assert orjson.dumps(same.body) == orjson.dumps(decision.body), "L6: two workers send different bytes"
        assert same.write == decision.write, "L6: two workers write different things"


# --- L7: what is sent follows the history that came ---------------------------------------------------------


@examples(0.4, shrinks=False)
@given(fmt=formats, data=st.data(), rng=randoms)
def test_l7_what_is_sent_follows_the_history_that_came(fmt: Format, data: st.DataObject, rng: Random) -> None:
    session, body = hiding(rng), drawn_body(data, fmt)
    for request in requests_of(body, rng):
        assert_follows(session.send(request))
    at = rng.randrange(len(turns_of(body)))
    for other in (rewind(body), fork(body, rng), edit(body, 0), edit(body, at), body):
        assert_follows(session.send(other))
    assert canonical(session.send(body).body) == canonical(session.send(body).body), "L7: a retry is no retry"


def assert_follows(decision: ThreadDecision) -> None:
    """Edits stand only where their messages are in this history, and the newest words go out."""
    line, edits = decision.draft.history, decision.draft.edits
    places = {i for active in edits.cuts for i in range(active.start, active.anchor + 1)}
    visible = set[int]()
    for active in edits.cuts:
        digests = list(active.cut.shown_digests)
        for i in range(active.start, active.anchor + 1):
            if digests and line.facts[i].digest == digests[0]:
                visible.add(i)
                del digests[0]
        assert not digests, "L7: a head shows what is not in the history"
    for i, splice in edits.splices.items():
        assert line.facts[i].digest == splice.digest, "L7: a splice of another message"
    newest = max((i for i, fact in enumerate(line.facts) if fact.kind == "typed"), default=0)
    assert newest in visible or newest not in places, "L7: the newest words are gone"


# --- L8: small drift finds the same edits -------------------------------------------------------------------


@examples(0.5, shrinks=False)
@given(fmt=formats, data=st.data(), rng=randoms)
def test_l8_drift_finds_the_same_edits_and_sends_the_same_heads(fmt: Format, data: st.DataObject, rng: Random) -> None:
    session, body = hiding(rng), drawn_body(data, fmt)
    for request in requests_of(body, rng):
        straight = session.send(request)
    messages = {normal(raw) for raw in messages_of(body)}
    for _ in range(3):
        other = drift(body, rng)
        messages |= {normal(raw) for raw in messages_of(other)}
        decision = session.send(other)
        assert edits_of(decision) == edits_of(straight), "L8: drift lost an edit"
        head = head_of(straight)
        assert [canonical(raw) for raw in conversation(decision)[: len(head)]] == head, "L8: another head was sent"
    assert len(session.memory.rows) <= 1.2 * len(messages), "L8: drift stored messages again"


def edits_of(decision: ThreadDecision) -> list[str]:
    """Ids of the cuts and splices that stand, in order."""
    edits = decision.draft.edits
    return [*(active.cut.id for active in edits.cuts), *(edits.splices[i].id for i in sorted(edits.splices))]


def head_of(decision: ThreadDecision) -> list[bytes]:
    trim_ = decision.draft.edits.trim
    return [] if trim_ is None else [canonical(raw) for raw in fingerprint.load(trim_.cut.head)]


def conversation(decision: ThreadDecision) -> list[Any]:
    """The messages that go out after the system prompt in message form."""
    return messages_of(decision.body)[decision.draft.history.lead :]


@examples(0.5, shrinks=False)
@given(fmt=formats, data=st.data(), rng=randoms)
def test_l8_an_edit_of_words_that_no_head_shows_finds_the_same_edits(
    fmt: Format, data: st.DataObject, rng: Random
) -> None:
    session, body = hiding(rng), drawn_body(data, fmt)
    for request in requests_of(body, rng):
        straight = session.send(request)
    trim_ = straight.draft.edits.trim
    if trim_ is None:
        return
    line = decode_body(body)
    for turn, at in enumerate(turns_of(body)):
        if at < trim_.anchor - 1 and line.facts[at].digest not in trim_.cut.shown_digests:
            decision = session.send(edit(body, turn))
            assert edits_of(decision) == edits_of(straight), "L8: an edit of what left lost an edit"
            assert format_of(dict(decision.body)) == fmt
