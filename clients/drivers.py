"""How each client is set up and called: one row a client.

A client runs as a person would run it, but headless: a home and a project folder of its own, nothing of the
environment but PATH, a dummy key, and a proxy that refuses whatever is not loopback.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import installs
from .installs import Install

Json = dict[str, Any]

PATIENCE_S = 300.0
MCP = "/v1/mcp/openmem"
COMMAND = (Path(__file__).parents[1] / "deploy" / "commands" / "smart-compact.md").read_text("utf-8")
REFUSING = "http://127.0.0.1:9"
"""A proxy that nobody serves: what a client wants of the outside world fails at once."""
BARE = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), REFUSING) | {
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client runs, and what it runs against."""

    home: Path
    project: Path
    gateway: str
    key: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a run left: exit code, the final text, and the session's id as the client tells it."""

    code: int
    text: str
    session: str
    output: str


@dataclass(frozen=True, slots=True)
class Way:
    """A way to run the client once: arguments with PROMPT in their midst, `{session}` and `{model}` filled in, a
    prompt where the way itself is one, more environment, and files (under the home) that it needs."""

    args: tuple[str, ...]
    prompt: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


def use(name: str, **arguments: Any) -> str:
    """An order to the scripted model to call this tool."""
    return f"[[use:{name} {json.dumps(arguments)}]]"


@dataclass(frozen=True, slots=True)
class Client:
    """`trim_at` leaves room for the client's own prompt and some exchanges. `said` reads final text and session id from
    what a run printed, `thread` tells threads apart by a request's headers. `read` and `delegate` order the model to
    read a file and to start a sub-agent, for which the main agent `waits` or not; `reach` makes it look for the
    gateway's tools, where they are put off. `own` are words that the client puts into a person's mouth: they count as
    typed, since a person may well type them."""

    name: str
    install: Install
    model: str
    trim_at: int
    set_up: Callable[[Client, Place], dict[str, str]]
    said: Callable[[str], tuple[str, str]]
    thread: Callable[[Json], str]
    new: Way
    resume: Way
    fork: Way
    native: Way
    forced: Mapping[str, Way]
    shell: str
    read: Callable[[Path], str]
    delegate: Callable[[str], str]
    waits: bool = False
    reach: str = ""
    own: tuple[str, ...] = ()

    def run(self, place: Place, way: Way, prompt: str = "", session: str = "") -> Answer:
        for name, text in way.files.items():
            file = place.home / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        environ = BARE | {"PATH": os.environ["PATH"], "HOME": str(place.home)} | self.set_up(self, place)
        args = [arg.format(session=session, model=self.model) for arg in way.args]
        args[args.index("PROMPT")] = way.prompt or prompt
        code, out = _finished([str(self.install.command), *args], place, {**environ, **way.environ})
        return Answer(code, *self.said(out), out)


def _finished(command: list[str], place: Place, environ: dict[str, str]) -> tuple[int, str]:
    """Exit code and what was printed; whatever the client left running ends with it."""
    told = place.home / "client.out"
    with told.open("wb") as out, (place.home / "client.err").open("ab") as err:
        process = subprocess.Popen(
            command, cwd=place.project, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(PATIENCE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, told.read_text("utf-8")


def _lines(out: str) -> Iterator[Json]:
    for line in out.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def _last(found: list[Any]) -> str:
    return str(found[-1]) if found else ""


# --- Claude Code ------------------------------------------------------------------------------------------------


CLAUDE_EXPORTS = {"ANTHROPIC_BASE_URL": "{gateway}", "ANTHROPIC_AUTH_TOKEN": "{key}"}


def claude_adds(gateway: str) -> tuple[str, ...]:
    """The arguments that make the gateway's tools known."""
    headers = {"Authorization": "Bearer ${OPENMEM_KEY}"}
    server = {"type": "http", "url": gateway + MCP, "headers": headers, "alwaysLoad": True}
    return "mcp", "add-json", "--scope", "user", "openmem", json.dumps(server)


def _claude(client: Client, place: Place) -> dict[str, str]:
    if not (place.home / ".claude.json").exists():
        command = [str(client.install.command), *claude_adds(place.gateway)]
        code, out = _finished(command, place, BARE | {"PATH": os.environ["PATH"], "HOME": str(place.home)})
        assert code == 0, out
    return {
        **{name: value.format(gateway=place.gateway, key=place.key) for name, value in CLAUDE_EXPORTS.items()},
        "OPENMEM_KEY": place.key,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "claude-haiku-4-5",
        "DISABLE_AUTOUPDATER": "1",
        "MAX_MCP_OUTPUT_TOKENS": "50000",
    }


def _claude_said(out: str) -> tuple[str, str]:
    told = [line for line in _lines(out) if line.get("type") == "result"]
    return _last([line.get("result", "") for line in told]), _last([line.get("session_id", "") for line in told])


def _claude_thread(headers: Json) -> str:
    return f"{headers.get('x-claude-code-session-id', '')} {headers.get('x-claude-code-agent-id', '')}".strip()


_CLAUDE = (
    "-p", "PROMPT", "--output-format", "json", "--model", "{model}",
    "--allowedTools=Bash,Read,Agent,mcp__openmem",
)  # fmt: skip
_CLAUDE_ON = (*_CLAUDE, "--resume", "{session}")
_CLAUDE_FILE = {".claude/commands/smart-compact.md": COMMAND}
_CLAUDE_FORCED = {"command file": Way(_CLAUDE_ON, "/smart-compact", files=_CLAUDE_FILE)}


def _claude_row(install: Install, trim_at: int, forced: Mapping[str, Way]) -> Client:
    return Client(
        name=f"{install.name}-{install.version}",
        install=install,
        model="claude-sonnet-5",
        trim_at=trim_at,
        set_up=_claude,
        said=_claude_said,
        thread=_claude_thread,
        new=Way(_CLAUDE),
        resume=Way(_CLAUDE_ON),
        fork=Way((*_CLAUDE_ON, "--fork-session")),
        native=Way(_CLAUDE_ON, "/compact"),
        forced=forced,
        shell="Bash",
        read=lambda file: use("Read", file_path=str(file)),
        delegate=lambda prompt: use(
            "Agent", description="look", prompt=prompt, subagent_type="general-purpose", run_in_background=True
        ),
        own=("Continue from where you left off.",),
    )


# --- Codex ------------------------------------------------------------------------------------------------------

CODEX_FILE = """\
model = "{model}"
model_provider = "openmem"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.openmem]
name = "openmem"
base_url = "{gateway}/v1"
env_key = "OPENMEM_KEY"
wire_api = "responses"

[mcp_servers.openmem]
url = "{gateway}{mcp}"
bearer_token_env_var = "OPENMEM_KEY"
"""


def _codex(client: Client, place: Place) -> dict[str, str]:
    folder = place.home / ".codex"
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(CODEX_FILE.format(model=client.model, gateway=place.gateway, mcp=MCP))
    return {"OPENMEM_KEY": place.key}


def _codex_said(out: str) -> tuple[str, str]:
    lines = list(_lines(out))
    said = [line["item"]["text"] for line in lines if line.get("item", {}).get("type") == "agent_message"]
    return _last(said), _last([line["thread_id"] for line in lines if "thread_id" in line][:1])


_CODEX = ("--json", "--skip-git-repo-check", "PROMPT")
_CODEX_ON = ("exec", "resume", "{session}", *_CODEX)
_CODEX_ROW = Client(
    name=f"codex-{installs.CODEX.version}",
    install=installs.CODEX,
    model="gpt-5.5",
    trim_at=30_000,
    set_up=_codex,
    said=_codex_said,
    thread=lambda headers: str(headers.get("thread-id", "")),
    new=Way(("exec", *_CODEX)),
    resume=Way(_CODEX_ON),
    fork=Way(("exec", "fork", "{session}", *_CODEX)),
    native=Way(
        (*_CODEX_ON[:3], "-c", "model_auto_compact_token_limit=12000", *_CODEX), "kit: go on.\n[[calls:2 size:300]]"
    ),
    forced={"typed": Way(_CODEX_ON, "/smart-compact")},
    shell="exec_command",
    read=lambda file: use("exec_command", cmd=f"cat {file}"),
    delegate=lambda prompt: use("tool_search", query="spawn_agent sub-agent") + use("spawn_agent", message=prompt),
    reach=use("tool_search", query="smart_compact_search"),
)


# --- OpenCode ---------------------------------------------------------------------------------------------------


def opencode_file(client: Client, place: Place, provider: str, npm: str) -> Json:
    model = {"name": client.model, "tool_call": True, "limit": {"context": 65_536, "output": 8_000}}
    bearer = {"Authorization": "Bearer {env:OPENMEM_KEY}"}
    return {
        "provider": {
            provider: {
                "npm": npm,
                "options": {"baseURL": f"{place.gateway}/v1", "apiKey": "{env:OPENMEM_KEY}"},
                "models": {client.model: model},
            }
        },
        "model": f"{provider}/{client.model}",
        "small_model": f"{provider}/{client.model}",
        "mcp": {"openmem": {"type": "remote", "url": place.gateway + MCP, "headers": bearer}},
        "autoupdate": False,
        "share": "disabled",
    }


def _opencode_said(out: str) -> tuple[str, str]:
    lines = list(_lines(out))
    said = [line["part"]["text"] for line in lines if line.get("type") == "text"]
    return _last(said), _last([line["sessionID"] for line in lines if "sessionID" in line][:1])


_OPENCODE = ("run", "--format", "json")
_OPENCODE_ON = (*_OPENCODE, "--session", "{session}")
_OPENCODE_OFF = {f"OPENCODE_DISABLE_{name}": "1" for name in ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD")}
_OPENCODE_FILE = {".config/opencode/command/smart-compact.md": "/smart-compact\n"}


def _opencode_row(name: str, model: str, provider: str, npm: str) -> Client:
    def set_up(client: Client, place: Place) -> dict[str, str]:
        (place.project / "opencode.json").write_text(json.dumps(opencode_file(client, place, provider, npm)))
        return {"OPENMEM_KEY": place.key, **_OPENCODE_OFF}

    small = {
        "provider": {provider: {"models": {model: {"limit": {"context": 20_000, "input": 20_000, "output": 8_000}}}}}
    }
    return Client(
        name=f"opencode-{installs.OPENCODE.version}-{name}",
        install=installs.OPENCODE,
        model=model,
        trim_at=30_000,
        set_up=set_up,
        said=_opencode_said,
        thread=lambda headers: str(headers.get("x-session-id", "")),
        new=Way((*_OPENCODE, "PROMPT")),
        resume=Way((*_OPENCODE_ON, "PROMPT")),
        fork=Way((*_OPENCODE_ON, "--fork", "PROMPT")),
        native=Way(
            (*_OPENCODE_ON, "PROMPT"),
            "kit: go on.\n[[calls:2 size:300]]",
            environ={"OPENCODE_CONFIG_CONTENT": json.dumps(small)},
        ),
        forced={
            "typed": Way((*_OPENCODE_ON, "PROMPT"), "/smart-compact"),
            "command file": Way((*_OPENCODE_ON, "--command", "smart-compact", "PROMPT"), "now", files=_OPENCODE_FILE),
        },
        shell="bash",
        read=lambda file: use("read", filePath=str(file)),
        delegate=lambda prompt: use("task", description="look", prompt=prompt, subagent_type="general"),
        waits=True,
        own=("What did we do so far?",),
    )


CLIENTS = (
    _claude_row(installs.CLAUDE_OLD, 50_000, _CLAUDE_FORCED),
    _claude_row(installs.CLAUDE_NEW, 40_000, {"typed": Way(_CLAUDE_ON, "/smart-compact"), **_CLAUDE_FORCED}),
    _CODEX_ROW,
    _opencode_row("anthropic", "claude-sonnet-5", "anthropic", "@ai-sdk/anthropic"),
    _opencode_row("openai-compatible", "local", "local", "@ai-sdk/openai-compatible"),
    _opencode_row("openai", "gpt-5.5", "openai", "@ai-sdk/openai"),
)
