"""How each client is set up and called: one row a client.

A client runs as a person would run it, but headless: a home and a project folder of its own, nothing of the
environment but PATH, a dummy key, and a proxy that refuses whatever is not loopback.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import installs
from .installs import Install

Json = dict[str, Any]

PATIENCE_S = 300.0
MCP = "/v1/mcp/openmem"
REFUSING = "http://127.0.0.1:9"
"""A proxy that nobody serves: what a client wants of the outside world fails at once."""
BARE = {
    "HTTP_PROXY": REFUSING,
    "HTTPS_PROXY": REFUSING,
    "http_proxy": REFUSING,
    "https_proxy": REFUSING,
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
class Client:
    """`args` for a prompt, with `{session}` for the one to go on with. `subagent` makes the arguments of the tool that
    starts a sub-agent from its prompt; `native` are the arguments that make the client compact by itself."""

    name: str
    install: Install
    model: str
    trim_at: int
    set_up: Callable[[Client, Place], dict[str, str]]
    read: Callable[[str], tuple[str, str]]
    thread: Callable[[Json], str]
    new: tuple[str, ...]
    resume: tuple[str, ...]
    fork: tuple[str, ...] = ()
    shell: str = ""
    agent: str = ""
    agent_args: Callable[[str], Json] = field(default=dict)
    search: str = "smart_compact_search"

    def run(self, place: Place, prompt: str, how: tuple[str, ...], session: str = "", *more: str) -> Answer:
        environ = BARE | {"PATH": os.environ["PATH"], "HOME": str(place.home)} | self.set_up(self, place)
        args = [one.format(session=session, model=self.model) for one in how]
        at = args.index("PROMPT")
        args[at : at + 1] = [*more, prompt]
        return self._started([str(self.install.command), *args], place, environ)

    def _started(self, command: list[str], place: Place, environ: dict[str, str]) -> Answer:
        log = place.home / "client.err"
        with log.open("ab") as err:
            process = subprocess.Popen(
                command, cwd=place.project, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err,
                start_new_session=True,
            )  # fmt: skip
            try:
                out = process.communicate(timeout=PATIENCE_S)[0].decode()
            finally:
                _end(process)
        text, session = self.read(out)
        return Answer(process.returncode, text, session, out)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The client and whatever it left running."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _lines(out: str) -> Iterable[Json]:
    for line in out.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


# --- Claude Code ------------------------------------------------------------------------------------------------


def _claude(client: Client, place: Place) -> dict[str, str]:
    file = place.project / ".mcp.json"
    if not file.exists():
        headers = {"Authorization": f"Bearer {place.key}"}
        file.write_text(json.dumps({"mcpServers": {"openmem": {"type": "http", "url": place.gateway + MCP, "headers": headers}}}))
    return {
        "ANTHROPIC_BASE_URL": place.gateway,
        "ANTHROPIC_AUTH_TOKEN": place.key,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "claude-haiku-4-5",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "MAX_MCP_OUTPUT_TOKENS": "50000",
    }  # fmt: skip


def _claude_said(out: str) -> tuple[str, str]:
    told = [line for line in _lines(out) if line.get("type") == "result"]
    return (str(told[-1].get("result", "")), str(told[-1].get("session_id", ""))) if told else ("", "")


def _claude_thread(headers: Json) -> str:
    return f"{headers.get('x-claude-code-session-id', '')} {headers.get('x-claude-code-agent-id', '')}".strip()


_CLAUDE_ALL = (
    "-p", "PROMPT", "--output-format", "json", "--model", "{model}", "--mcp-config", ".mcp.json",
    "--allowedTools=Bash,Read,Agent,Task,mcp__openmem",
)  # fmt: skip


def _claude_row(install: Install, agent: str, trim_at: int) -> Client:
    return Client(
        name=f"claude-code-{install.version}",
        install=install,
        model="claude-sonnet-5",
        trim_at=trim_at,
        set_up=_claude,
        read=_claude_said,
        thread=_claude_thread,
        new=_CLAUDE_ALL,
        resume=(*_CLAUDE_ALL, "--resume", "{session}"),
        fork=(*_CLAUDE_ALL, "--resume", "{session}", "--fork-session"),
        shell="Bash",
        agent=agent,
        agent_args=lambda prompt: {"description": "look", "prompt": prompt, "subagent_type": "general-purpose"},
    )


# --- Codex ------------------------------------------------------------------------------------------------------

_CODEX = """\
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
    (folder / "config.toml").write_text(_CODEX.format(model=client.model, gateway=place.gateway, mcp=MCP))
    return {"OPENMEM_KEY": place.key}


def _codex_said(out: str) -> tuple[str, str]:
    lines = list(_lines(out))
    said = [line["item"]["text"] for line in lines if line.get("item", {}).get("type") == "agent_message"]
    ids = [line["thread_id"] for line in lines if "thread_id" in line]
    return (said or [""])[-1], (ids or [""])[0]


_CODEX_ALL = ("--json", "--skip-git-repo-check", "PROMPT")


# --- OpenCode ---------------------------------------------------------------------------------------------------


def _opencode(provider: str, npm: str, path: str) -> Callable[[Client, Place], dict[str, str]]:
    def set_up(client: Client, place: Place) -> dict[str, str]:
        remote = {"type": "remote", "url": place.gateway + MCP, "headers": {"Authorization": "Bearer {env:OPENMEM_KEY}"}}
        model = {"name": client.model, "tool_call": True, "limit": {"context": 200_000, "output": 8_000}}
        config = {
            "provider": {
                provider: {
                    "npm": npm,
                    "options": {"baseURL": place.gateway + path, "apiKey": "{env:OPENMEM_KEY}"},
                    "models": {client.model: model},
                }
            },
            "model": f"{provider}/{client.model}",
            "small_model": f"{provider}/{client.model}",
            "mcp": {"openmem": remote},
            "autoupdate": False,
            "share": "disabled",
        }
        (place.project / "opencode.json").write_text(json.dumps(config))
        off = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
        return {"OPENMEM_KEY": place.key} | {f"OPENCODE_DISABLE_{name}": "1" for name in off}

    return set_up


def _opencode_said(out: str) -> tuple[str, str]:
    lines = list(_lines(out))
    said = [line["part"]["text"] for line in lines if line.get("type") == "text"]
    ids = [line["sessionID"] for line in lines if "sessionID" in line]
    return (said or [""])[-1], (ids or [""])[0]


_OPENCODE_ALL = ("run", "--format", "json")


def _opencode_row(name: str, model: str, provider: str, npm: str, trim_at: int) -> Client:
    return Client(
        name=f"opencode-{installs.OPENCODE.version}-{name}",
        install=installs.OPENCODE,
        model=model,
        trim_at=trim_at,
        set_up=_opencode(provider, npm, "/v1"),
        read=_opencode_said,
        thread=lambda headers: str(headers.get("x-session-id", "")),
        new=(*_OPENCODE_ALL, "PROMPT"),
        resume=(*_OPENCODE_ALL, "--session", "{session}", "PROMPT"),
        fork=(*_OPENCODE_ALL, "--session", "{session}", "--fork", "PROMPT"),
        shell="bash",
        agent="task",
        agent_args=lambda prompt: {"description": "look", "prompt": prompt, "subagent_type": "general"},
    )


CLIENTS = (
    _claude_row(installs.CLAUDE_OLD, "Agent", 50_000),
    _claude_row(installs.CLAUDE_NEW, "Agent", 40_000),
    Client(
        name=f"codex-{installs.CODEX.version}",
        install=installs.CODEX,
        model="gpt-5.5",
        trim_at=20_000,
        set_up=_codex,
        read=_codex_said,
        thread=lambda headers: str(headers.get("thread-id", "")),
        new=("exec", *_CODEX_ALL),
        resume=("exec", "resume", "{session}", *_CODEX_ALL),
        fork=("exec", "fork", "{session}", *_CODEX_ALL),
        shell="exec_command",
        agent="spawn_agent",
        agent_args=lambda prompt: {"message": prompt},
    ),
    _opencode_row("anthropic", "claude-sonnet-5", "anthropic", "@ai-sdk/anthropic", 22_000),
    _opencode_row("openai-compatible", "kit", "local", "@ai-sdk/openai-compatible", 22_000),
    _opencode_row("openai", "gpt-5.5", "openai", "@ai-sdk/openai", 22_000),
)
