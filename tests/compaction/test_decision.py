"""What becomes of a request: each class of the sum, with the body that goes out."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from openmem_hook.compaction.decision import (
    Auxiliary,
    Decision,
    Opening,
    Passthrough,
    Replay,
    ThreadDecision,
    decide,
    replay,
)
from openmem_hook.compaction.state import SessionState
from openmem_hook.compaction.wording import NOTE
from tests.compaction.session import RATE, ROOMY, SMALL, MemorySession, inputs, messages_of, settings
from tests.kit.builders import FORMATS, Format, Json, assistant, body, chat, responses, session, user

LONG = session("anthropic", turns=2, exchanges=5, size=1200)
TITLE = body(user("A title for this, please."), tools=None)


def trimmed_session() -> MemorySession:
    """A session whose history was trimmed."""
    memory = MemorySession(SMALL)
    assert memory.send(LONG).is_trimmed
    return memory


def name_of(decision: Decision) -> str:
    return type(decision).__name__


@pytest.mark.parametrize(
    ("request_body", "more", "name"),
    [
        (LONG, {}, "ThreadDecision"),
        (LONG, {"may_edit": False}, "ThreadDecision"),
        (LONG, {"is_known": False, "may_edit": False}, "Passthrough"),
        (TITLE, {}, "Auxiliary"),
        (LONG, {"session": ""}, "Auxiliary"),
        (body(user("go")), {"session_id": None}, "Opening"),
        (body(user("go"), assistant("ok"), user("on")), {"session_id": None}, "ThreadDecision"),
    ],
    ids=[
        "an agent's request", "switched off, in a session that is known", "switched off, of an unknown history",
        "a title", "nothing is stored of it", "an unnamed conversation begins", "an unnamed conversation goes on",
    ],
)  # fmt: skip
def test_a_request_is(request_body: Json, more: dict[str, Any], name: str) -> None:
    assert name_of(decide(inputs(request_body, **more))) == name


def test_an_untouched_body_is_the_clients_own_object() -> None:
    decision = decide(inputs(LONG, is_known=False))
    assert isinstance(decision, Passthrough)
    assert decision.body is LONG
    assert not decision.is_trimmed


@pytest.mark.parametrize(
    ("request_body", "on", "has_note"),
    [(body(user("go")), True, True), (body(user("go")), False, False), (TITLE, True, False)],
    ids=["with tools", "without the setting", "without tools"],
)
def test_an_opening_has_the_note_that_its_thread_will_have(request_body: Json, on: bool, has_note: bool) -> None:
    decision = decide(inputs(request_body, session_id=None, settings=settings(standing_instruction=on)))
    assert isinstance(decision, Opening)
    assert (NOTE in orjson.dumps(decision.body).decode()) is has_note
    assert has_note or decision.body is request_body


def test_an_auxiliary_request_without_edits_is_the_clients_own_object() -> None:
    decision = decide(inputs(TITLE))
    assert isinstance(decision, Auxiliary)
    assert decision.body is TITLE


def test_an_auxiliary_request_has_the_edits_of_its_session_and_no_note() -> None:
    memory = trimmed_session()
    summary = {
        **LONG,
        "messages": [*LONG["messages"], user("Provide a detailed prompt for continuing our conversation above")],
    }
    summary.pop("tools")
    decision = decide(memory.inputs(summary))
    assert isinstance(decision, Auxiliary)
    assert decision.is_trimmed
    assert len(messages_of(decision.body)) < len(messages_of(summary))
    assert NOTE not in orjson.dumps(decision.body).decode()


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_decided_body_has_all_the_clients_fields(fmt: Format) -> None:
    request = {**session(fmt, exchanges=1), "temperature": 1}
    decision = decide(inputs(request))
    assert isinstance(decision, ThreadDecision)
    own = {"system", "instructions", "messages", "input"}
    assert {key: decision.body[key] for key in request if key not in own} == {
        key: value for key, value in request.items() if key not in own
    }


def test_what_is_written_of_a_decision_is_made_with_it() -> None:
    decision = decide(inputs(LONG))
    assert isinstance(decision, ThreadDecision)
    assert len(decision.write.rows) == len(LONG["messages"])
    assert decision.write.thread == decision.draft.thread


# --- while no store can be reached --------------------------------------------------------------------------


def test_a_replayed_request_has_the_edits_that_are_known_and_no_new_ones() -> None:
    memory = trimmed_session()
    decision = replay(memory.inputs(LONG))
    assert isinstance(decision, Replay)
    assert decision.is_trimmed
    assert orjson.dumps(decision.body) == orjson.dumps(memory.decide(LONG).body)
    assert not decision.draft.new_edits


def test_a_replay_of_what_nobody_knows_is_not_trimmed() -> None:
    decision = replay(inputs(LONG, limits=SMALL))
    assert isinstance(decision, Replay)
    assert not decision.is_trimmed
    assert messages_of(decision.body) == LONG["messages"]


def test_switched_off_a_history_that_nobody_knows_is_auxiliary() -> None:
    decision = replay(inputs(LONG, limits=SMALL, may_edit=False))
    assert isinstance(decision, Auxiliary)
    assert decision.body is LONG


def test_switched_off_a_thread_that_is_known_is_replayed_with_its_note() -> None:
    decision = replay(trimmed_session().inputs(LONG, may_edit=False))
    assert isinstance(decision, Replay)
    assert NOTE in orjson.dumps(decision.body).decode()


@pytest.mark.parametrize("act", [decide, replay])
def test_both_tell_requests_outside_a_thread_alike(act: Any) -> None:
    assert name_of(act(inputs(TITLE))) == "Auxiliary"
    assert name_of(act(inputs(LONG, is_known=False))) == "Passthrough"
    assert name_of(act(inputs(body(user("go")), session_id=None))) == "Opening"


@pytest.mark.parametrize(
    "request_body",
    [body(user("go")), chat.body(chat.user("go")), responses.body(responses.user("go"))],
    ids=FORMATS,
)
def test_the_client_s_body_is_never_changed(request_body: Json) -> None:
    before = orjson.dumps(request_body)
    decide(inputs(request_body, limits=ROOMY, calibration=RATE, state=SessionState()))
    assert orjson.dumps(request_body) == before
