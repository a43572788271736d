"""The suite with real clients: its oracles hold for a sound session and fail for a broken one; installing."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clients import __main__ as clients_main
from clients import installs, page, recording
from clients import session as clients
from clients.drivers import CLIENTS
from clients.installs import InstallError
from clients.oracles import goes_on
from clients.recording import Recording
from clients.session import Row, Session, Turn
from openmem_hook.replay.provider.counting import prompt_tokens
from openmem_hook.replay.provider.prompt_cache import AnthropicCache
from tests.kit import builders as a

POINTER = "<openmem-pointer>4 messages left.</openmem-pointer>"
CALLS = [f"k_s{step}p0_abc0n{step}" for step in range(3)]


class RecordedSession(Session):
    """A session that is only told of: two threads, the main one trimmed before its third request, and a title."""

    def __init__(self) -> None:
        self.client = next(client for client in CLIENTS if client.model == "claude-sonnet-5")
        main = [
            a.user("Begin. " + "A long line, since nothing short is cached. " * 400),
            *(m for call in CALLS for m in (a.assistant(a.tool_use(call)), a.results(a.tool_result(call)))),
        ]
        self.told = [self._turn("main", main[: 1 + 2 * n], main[: 1 + 2 * n]) for n in range(3)]
        self.told.append(self._turn("main", main, [a.user(f"{POINTER} Begin."), *main[5:]]))
        self.told.append(self._turn("sub", [a.user("Look.")], [a.user("Look.")]))
        self.beside = [self._turn("main", [a.user("A title, please.")], [a.user("A title, please.")])]
        self.said = ["Begin. A long line, since", "Look."]
        self.answer = "#1 seq=4 role=tool"
        self.left = [(4, "a line that left")]
        self.lost: Turn | None = None
        self.gateway = SimpleNamespace(failures=lambda begun: self.failed)
        self.logged = 0
        self.failed: list[str] = []
        self.held = [
            Row(line, "typed" if at == 0 else "result", str(message["content"])[:20], message)
            for line, messages in (("one main-1", main), ("one main-2", [a.user("Look.")]))
            for at, message in enumerate(messages)
        ]
        cache = AnthropicCache()
        for n, turn in enumerate(self.told):
            use = cache.request(turn.sent, 0.0)
            turn.note.update(n=n, cache={"read": use.read, "uncached": use.fresh})

    def _turn(self, thread: str, asked: list[Any], sent: list[Any]) -> Turn:
        bodies = [
            copy.deepcopy(a.body(*said[:-1], {**said[-1], "content": _marked(said[-1])})) for said in (asked, sent)
        ]
        tokens = prompt_tokens(bodies[1], "anthropic")
        note = {"route": "anthropic", "prompt_tokens": tokens, "n": -1, "accepted": True, "call": str(id(bodies))}
        return Turn(thread, {}, *bodies, note)

    @property
    def requests(self) -> list[Any]:
        return [turn.note for turn in self.every()]

    def asked(self) -> dict[str, Any]:
        return {turn.note["call"]: {} for turn in [*self.every(), *([self.lost] if self.lost else [])]}

    def rows(self) -> list[Row]:
        return self.held

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


def too_long(told: RecordedSession) -> None:
    told.told[-1].note["prompt_tokens"] = told.client.trim_at * 2


def twice_broken(told: RecordedSession) -> None:
    told.told[1].sent["messages"][0]["content"] = "Begun."


def missed(told: RecordedSession) -> None:
    told.told[2].note["cache"]["read"] = 0


def mixed(told: RecordedSession) -> None:
    told.told[-1].sent["messages"] += told.told[1].sent["messages"][1:]


def stripped(told: RecordedSession) -> None:
    """No breakpoint goes out, and so nothing is cached: every request is as good as the one before."""
    for turn in told.told:
        turn.sent["messages"] = json.loads(json.dumps(turn.sent["messages"]).replace("cache_control", "no_control"))
        for block in turn.sent["messages"][-1]["content"]:
            block.pop("no_control", None)
        turn.note["cache"] = {"read": 0, "uncached": turn.note["prompt_tokens"]}


def broken_for_nothing(told: RecordedSession) -> None:
    """A trim elsewhere is no excuse."""
    told.told[3].sent["messages"][0]["content"] = "Begin."


def stored_together(told: RecordedSession) -> None:
    stray = a.assistant(a.tool_use("k_s9p0_abc0n9"))
    told.told[-1].asked["messages"] += [stray]
    told.told[-1].sent["messages"] += [stray]
    told.held.append(Row("one main-1", "call", "", stray))


def touched(told: RecordedSession) -> None:
    told.beside[0].sent["messages"][0]["content"] = "Another title."


def given_tools(told: RecordedSession) -> None:
    told.beside[0].sent["tools"] = [a.tool("Read")]


def refused(told: RecordedSession) -> None:
    told.told[1].note.update(accepted=False, status=400, errors=["no"])


def never_sent(told: RecordedSession) -> None:
    told.lost = told.told.pop(1)


def failed_open(told: RecordedSession) -> None:
    told.failed.append("a request passed")


def a_long_title(told: RecordedSession) -> None:
    told.beside[0].note["prompt_tokens"] = 10**9


def noise_taken_for_typed(told: RecordedSession) -> None:
    told.held.append(Row("one main-1", "typed", "You are being resumed.", a.user("You are being resumed.")))


def nothing_marked_as_left(told: RecordedSession) -> None:
    told.left = []


def lost(told: RecordedSession) -> None:
    told.held.pop()


def stored_again(told: RecordedSession) -> None:
    told.held.append(told.held[-1])


def not_found(told: RecordedSession) -> None:
    told.answer = "#1 seq=44 role=tool"


def unheard_of(told: RecordedSession) -> None:
    told.told[1].asked["fresh"] = True


FAULTS: dict[Callable[[RecordedSession], None], Callable[[RecordedSession], None]] = {
    refused: RecordedSession.accepted,
    never_sent: RecordedSession.accepted,
    failed_open: RecordedSession.accepted,
    too_long: RecordedSession.bounded,
    a_long_title: RecordedSession.bounded,
    stripped: RecordedSession.cached,
    broken_for_nothing: RecordedSession.cached,
    stored_together: RecordedSession.unmixed,
    given_tools: RecordedSession.untouched,
    noise_taken_for_typed: RecordedSession.typed,
    nothing_marked_as_left: RecordedSession.found,
    twice_broken: RecordedSession.cached,
    missed: RecordedSession.cached,
    mixed: RecordedSession.unmixed,
    touched: RecordedSession.untouched,
    lost: RecordedSession.kept,
    stored_again: RecordedSession.kept,
    not_found: RecordedSession.found,
    unheard_of: RecordedSession.expected,
}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> RecordedSession:
    made = RecordedSession()
    known = frozenset().union(*(recording.traits(turn.headers, turn.asked) for turn in made.every()))
    monkeypatch.setattr(clients, "left", lambda path: made.left)
    monkeypatch.setattr(clients, "read", lambda client: Recording(known, ()))
    monkeypatch.delenv(recording.LEARN, raising=False)
    return made


LONG = a.body(a.user("Begin."), a.assistant("One."), a.user("More."), a.assistant("Two."))
SHORT = a.body(a.user("Pointer."), a.assistant("Two."))
ORDER = a.user("Summarise.")


@pytest.mark.parametrize(
    ("behind", "holds"),
    [([ORDER], True), ([], False), ([a.user("Another order.")], False), ([ORDER, a.user("More.")], False)],
)
def test_a_compaction_goes_on_from_its_thread_with_just_the_client_s_own_words(behind: list[Any], holds: bool) -> None:
    asked, sent = a.body(*LONG["messages"], ORDER), a.body(*SHORT["messages"], *behind)
    assert goes_on((LONG, SHORT), asked, sent) is holds
    assert not goes_on((LONG, SHORT), LONG, sent)


def test_a_sound_session_passes(told: RecordedSession) -> None:
    for oracle in dict.fromkeys(FAULTS.values()):
        oracle(told)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(told: RecordedSession, fault: Callable[[RecordedSession], None]) -> None:
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


def test_an_install_that_was_killed_is_none(npm: Callable[[str], None]) -> None:
    installs.CODEX.command.parent.mkdir(parents=True)
    installs.CODEX.command.touch()
    assert installs.CODEX.missing()
    npm("exit 0")
    installs.CODEX.install()
    assert not installs.CODEX.missing()
    assert not installs.CODEX.command.exists()


NO_REGISTRY = 'echo "npm error code EAI_AGAIN" >&2; exit 1'
NO_VERSION = 'echo "npm error code ETARGET" >&2; exit 1'


@pytest.mark.parametrize(
    ("option", "lines", "code"),
    [
        ([], "", 1),
        (["--if-reachable"], "", 0),
        (["--if-reachable"], NO_REGISTRY, 0),
        (["--if-reachable"], NO_VERSION, 1),
    ],
)
def test_what_cannot_be_installed_is_named(
    npm: Callable[[str], None], capsys: pytest.CaptureFixture[str], option: list[str], lines: str, code: int
) -> None:
    if lines:
        npm(lines)
    assert clients_main.main([*option, "codex"]) == code
    version = installs.CODEX.version
    assert f"openmem: codex {version} is not installed: npm" in capsys.readouterr().err


def test_a_name_that_is_no_client_s_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        clients_main.main(["codex", "typo"])
    assert "unknown: typo. The clients are: claude-code-" in capsys.readouterr().err


def test_the_results_of_rows_that_did_not_run_whole_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RESULTS", "DOCS"):
        copied = tmp_path / name
        copied.write_bytes(getattr(page, name).read_bytes())
        monkeypatch.setattr(page, name, copied)
    before = page.read()
    monkeypatch.setattr(page, "version", lambda name: "9.9.9")
    one, other = list(before)[:2]
    page.write({one: dict.fromkeys(page.CHECKS, "failed"), other: {"fork": "failed"}})
    assert page.read() == {**before, one: {page.LITELLM: "9.9.9", **dict.fromkeys(page.CHECKS, "failed")}}
    assert page.written() == page.table(page.read())
