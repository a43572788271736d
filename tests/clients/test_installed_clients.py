"""The agents that people use, run headless through the real gateway against the strict provider.

    make clients                            installs them and runs this
    pytest -m clients -k codex              one that is installed

The provider plays the model: markers in the prompts drive the clients' own tools (see `tests.kit.script`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from clients.drivers import CLIENTS, Client, use
from clients.oracles import nameless, rewritten, shown
from clients.session import SUMMARY, RecordingProvider, Session, noting
from tests.harness.gateway_process import Gateway
from tests.harness.tracked_session import messages_of
from tests.kit.prefix import normal

pytestmark = pytest.mark.clients

CODE = "7f3a-kit-91"
"""What a file says that the client reads early and is asked for late."""
FORMS = sorted({form for client in CLIENTS for form in client.forced})


@pytest.fixture(scope="module", params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    found: Client = request.param
    if found.install.missing():
        pytest.skip(f"{found.install.name} {found.install.version} is not installed: make clients")
    return found


@pytest.fixture(scope="module")
def behind(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, RecordingProvider]]:
    with noting(tmp_path_factory.mktemp(client.name), client.trim_at) as served:
        yield served


@pytest.fixture
def session(client: Client, behind: tuple[Gateway, RecordingProvider], tmp_path: Path) -> Session:
    return Session(client, *behind, tmp_path)


def test_a_long_session_over_resumes_and_a_restart_finds_what_left_it(session: Session) -> None:
    client, gateway = session.client, session.gateway
    file = session.place.project / "notes.txt"
    file.write_text(f"the vault code is {CODE}\n")
    session.work("Please begin.", 8, client.read(file))
    session.work("Go on.", 8)
    gateway.stop()
    gateway.start()
    session.work("And on.", 8)
    assert len(session.events("trim")) >= 3
    asked = len(session.turns())
    answer = session.say(
        f"What was the vault code?\n{client.reach}{use('smart_compact_search', query='vault code', role='tool')}"
    )
    first = session.turns()[asked]
    assert CODE not in shown(first.sent, first.note["route"])
    assert CODE in answer.text
    assert len(session.threads()) == 1
    session.holds()


def test_a_sub_agent_beside_the_main_one_is_a_thread_of_its_own(session: Session) -> None:
    client = session.client
    theirs = f"tag-sub Look around.\n[[calls:9 size:6000 tool:{client.shell}]]"
    session.work("tag-main Please begin.", 14, client.delegate(theirs))
    session.work("Go on.", 2)
    threads = session.threads()
    assert len(threads) == 2
    main, sub = (
        next(turns for turns in threads.values() if turns[0].note["tag"] == tag) for tag in ("tag-main", "tag-sub")
    )
    assert len(sub) >= 9
    order = [turn.thread for turn in session.turns()]
    first, last = (ends.index(sub[0].thread) for ends in (order, order[::-1]))
    assert (main[0].thread in order[first : len(order) - last]) is not client.waits
    assert not [turn for turn in sub if "tag-main" in shown(turn.sent, turn.note["route"])]
    assert {turn.note["tag"] for turn in main} == {"tag-main"}
    lines = {"tag-main": set[str](), "tag-sub": set[str]()}
    for row in session.rows():
        if row.kind == "typed" and (tag := re.search(r"tag-\w+", row.text)):
            lines[tag[0]].add(row.line)
    assert all(lines.values())
    assert not lines["tag-main"] & lines["tag-sub"]
    assert session.events("trim")
    session.holds()


def test_the_client_s_own_compaction_in_mid_session(session: Session) -> None:
    session.work("Please begin.", 8)
    asked = len(session.turns())
    session.compact()
    session.work("Go on.", 8)
    turns = session.turns()[asked - 1 :]
    assert any(rewritten(a.asked, b.asked, a.note["route"]) for a, b in pairwise(turns))
    assert SUMMARY in shown(turns[-1].asked, turns[-1].note["route"])
    session.holds()


@pytest.mark.parametrize("form", FORMS)
def test_a_person_asks_for_a_trim(session: Session, form: str) -> None:
    if form not in session.client.forced:
        pytest.skip("the client sends nothing for this form")
    session.work("Please begin.", 5)
    before = session.turns()[-1].note["prompt_tokens"]
    session.say(way=session.client.forced[form])
    assert session.turns()[-1].note["prompt_tokens"] < before - 5000
    session.work("Go on.", 2)
    assert [event["reason"] for event in session.events("trim")] == ["forced"]
    session.holds()


def test_a_fork_goes_on_from_what_its_parent_was_sent(session: Session) -> None:
    session.work("Please begin.", 8)
    assert session.events("trim")
    parent = session.turns()[-1]
    session.say("Another way.\n[[calls:2 size:300]]", session.client.fork)
    fork = next(turn for turn in session.turns() if turn.thread != parent.thread)
    assert len(session.events("trim")) == 1
    was, now = ([nameless(normal(message)) for message in messages_of(turn.sent)] for turn in (parent, fork))
    assert now[: len(was)] == was
    session.holds()
