"""The agents that people use, run headless through the real gateway against the strict provider.

    make clients                            installs them and runs this
    pytest -m clients -k codex              one that is installed

The provider plays the model: markers in the prompts drive the clients' own tools (see `tests.kit.script`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.drivers import CLIENTS, Client, use
from tests.clients.session import Noted, Session, noting, shown
from tests.gateway import Gateway

pytestmark = pytest.mark.clients

CODE = "7f3a-kit-91"
"""What a file says that the client reads early and is asked for late."""
QUIET = "[[calls:0]]"
DEAF = re.compile(r"Result: .*total_matches: [1-9]", re.DOTALL)


@pytest.fixture(scope="module", params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    found: Client = request.param
    if found.install.missing():
        pytest.skip(f"{found.install.name} {found.install.version} is not installed: make clients")
    return found


@pytest.fixture(scope="module")
def behind(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Noted]]:
    with noting(tmp_path_factory.mktemp(client.name), client.trim_at) as served:
        yield served


@pytest.fixture
def session(client: Client, behind: tuple[Gateway, Noted], tmp_path: Path) -> Session:
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
    answer = session.say(f"What was the vault code?\n{client.reach}{use('smart_compact_search', query='vault code', role='tool')}")
    first = session.turns()[asked]
    assert CODE not in shown(first.sent, first.note["route"])
    assert CODE in answer.text
    assert len(session.threads()) == 1
    session.holds()
