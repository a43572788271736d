"""The oracles of the suite with real clients: each holds for a sound session and fails for a broken one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openmem_hook.replay.provider.counting import prompt_tokens
from openmem_hook.replay.provider.prompt_cache import AnthropicCache
from tests.clients import __main__ as clients_main
from tests.clients import installs
from tests.clients import session as clients
from tests.clients.drivers import CLIENTS
from tests.clients.installs import InstallError
from tests.clients.recording import Recording
from tests.clients.session import Session, Turn
from tests.kit import builders as a
from tests.walk import normal

CALLS = [f"k_s{step}p0_abc0n{step}" for step in range(3)]


class Told(Session):
    """A session that is only told of: two threads, the main one trimmed before its third request, and a title."""

    def __init__(self) -> None:
        self.client = next(client for client in CLIENTS if client.model == "claude-sonnet-5")
        main = [
            a.user("Begin. " + "A long line, since nothing short is cached. " * 400),
            *(m for call in CALLS for m in (a.assistant(a.tool_use(call)), a.results(a.tool_result(call)))),
        ]
        self.told = [self._turn("main", main[: 1 + 2 * n], main[: 1 + 2 * n]) for n in range(3)]
        self.told.append(self._turn("main", main, [a.user("Pointer. Begin."), *main[5:]]))
        self.told.append(self._turn("sub", [a.user("Look.")], [a.user("Look.")]))
        self.beside = [self._turn("main", [a.user("A title, please.")], [a.user("A title, please.")])]
        self.answer = "#1 seq=4 role=tool"
        self.held = [normal(message) for message in [*main, a.user("Look.")]]
        cache = AnthropicCache()
        for n, turn in enumerate(self.told):
            use = cache.request(turn.sent, 0.0)
            turn.note.update(n=n, cache={"read": use.read, "uncached": use.uncached})

    def _turn(self, thread: str, asked: list[Any], sent: list[Any]) -> Turn:
        bodies = [
            copy.deepcopy(a.body(*said[:-1], {**said[-1], "content": _marked(said[-1])})) for said in (asked, sent)
        ]
        tokens = prompt_tokens(bodies[1], "anthropic")
        return Turn(thread, {}, *bodies, {"route": "anthropic", "prompt_tokens": tokens, "n": -1})

    def turns(self, *, auxiliary: bool = False) -> list[Turn]:
        return self.beside if auxiliary else self.told

    def events(self, kind: str) -> list[Any]:
        return [{}]

    def stores(self) -> list[Path]:
        return [Path()]

    def every(self) -> list[Turn]:
        return [*self.told, *self.beside]

    def ask(self, tool: str, **arguments: Any) -> str:
        return self.answer


def _marked(message: Any) -> list[Any]:
    content = message["content"]
    blocks = [a.text(content)] if isinstance(content, str) else content
    return [*blocks[:-1], a.marked(blocks[-1])]


def too_long(told: Told) -> None:
    told.told[-1].note["prompt_tokens"] = told.client.trim_at * 2


def twice_broken(told: Told) -> None:
    told.told[1].sent["messages"][0]["content"] = "Begun."


def missed(told: Told) -> None:
    told.told[2].note["cache"]["read"] = 0


def mixed(told: Told) -> None:
    told.told[-1].sent["messages"] += told.told[1].sent["messages"][1:]


def touched(told: Told) -> None:
    told.beside[0].sent["messages"][0]["content"] = "Another title."


def lost(told: Told) -> None:
    told.held.pop()


def stored_again(told: Told) -> None:
    told.held.append(told.held[-1])


def not_found(told: Told) -> None:
    told.answer = "#1 seq=44 role=tool"


def unheard_of(told: Told) -> None:
    told.told[1].asked["fresh"] = True


FAULTS: dict[Callable[[Told], None], Callable[[Told], None]] = {
    too_long: Told.bounded,
    twice_broken: Told.cached,
    missed: Told.cached,
    mixed: Told.unmixed,
    touched: Told.untouched,
    lost: Told.kept,
    stored_again: Told.kept,
    not_found: Told.found,
    unheard_of: Told.expected,
}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    made = Told()
    known = frozenset().union(*(clients.traits(turn.headers, turn.asked) for turn in made.every()))
    monkeypatch.setattr(clients, "stored", lambda path: clients.Counter(made.held))
    monkeypatch.setattr(clients, "left", lambda path: [(4, "a line that left")])
    monkeypatch.setattr(clients, "read", lambda client: Recording(known, ()))
    monkeypatch.delenv(clients.RECORDING, raising=False)
    return made


def test_a_sound_session_passes(told: Told) -> None:
    for oracle in dict.fromkeys(FAULTS.values()):
        oracle(told)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(told: Told, fault: Callable[[Told], None]) -> None:
    fault(told)
    with pytest.raises(AssertionError):
        FAULTS[fault](told)


# --- installing ---------------------------------------------------------------------------------------------


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a program in npm's place, on a machine on which nothing is installed."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(installs, "FOLDER", tmp_path / "clients")

    def put(lines: str) -> None:
        program = tmp_path / "bin" / "npm"
        program.write_text(f"#!/bin/sh\n{lines}\n")
        program.chmod(0o755)

    return put


def test_a_machine_without_npm_is_told_so(npm: Callable[[str], None]) -> None:
    with pytest.raises(InstallError, match=r"npm, which comes with Node\.js, is not on the PATH"):
        installs.CODEX.install()
    assert not installs.CODEX.folder.exists()


def test_what_npm_said_is_told_and_nothing_half_made_stays(npm: Callable[[str], None]) -> None:
    npm('echo "npm error network request to the registry failed" >&2; exit 1')
    with pytest.raises(InstallError, match="npm error network request to the registry failed"):
        installs.CODEX.install()
    assert installs.CODEX.missing()
    assert not installs.CODEX.folder.exists()


@pytest.mark.parametrize(("option", "code"), [([], 1), (["--if-installable"], 0)])
def test_what_cannot_be_installed_is_named(
    npm: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: list[str],
    code: int,
) -> None:
    monkeypatch.setattr("sys.argv", ["tests.clients", *option, "codex"])
    assert clients_main.main() == code
    assert "openmem: codex 0.171.0 is not installed: npm, which" in capsys.readouterr().err
