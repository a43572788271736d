"""The command line. `openmem serve` checks what can be checked in a moment, then becomes the `litellm` command.

LiteLLM takes several seconds to start and is never imported here. Three of its habits are met on the way: it
refuses to run without a master key, it takes a random port when 4000 is in use, and it listens on all
addresses unless told otherwise.
"""

from __future__ import annotations

import argparse
import errno
import os
import secrets
import shlex
import socket
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import dotenv
import yaml

from openmem_hook import __version__, config

CONFIG_NAME = "litellm_config.yaml"
MASTER_KEY = "LITELLM_MASTER_KEY"
_REFERENCE = "os.environ/"
"""How LiteLLM's file names a value of the environment."""

_EXAMPLES = """\
examples:
  openmem serve                                  the file in this folder, or the shipped one
  openmem serve --config gateway.yaml --port 4100
  openmem serve --workers 2 -- --detailed_debug  words after -- go to litellm
  openmem replay session.jsonl --html page.html  what the plugin would have done there
"""
_SERVE = f"""\
Runs the gateway on loopback. Provider keys come from the environment or from .env
in this folder, the master key from {MASTER_KEY}, else from the file
~/.local/share/openmem/master_key (or OPENMEM_STATE_DIR/master_key), which is made
on the first run and is readable by you alone."""

_REPLAY = """\
Sends the sessions in these files once more, as the client sent them and through the
plugin, past a simulated provider and into a store that is thrown away. Reads session
files of Claude Code (~/.claude/projects), Codex (~/.codex/sessions) and OpenCode
(opencode export). Nothing leaves this machine."""


class CannotRunError(Exception):
    """Why a command is not run, in one line."""


class CannotServeError(CannotRunError):
    """Why the gateway is not started."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What is started. `key_file` is None where the master key comes from elsewhere."""

    command: Sequence[str]
    environ: Mapping[str, str]
    config: Path
    address: str
    key_file: Path | None
    missing: Mapping[str, Sequence[str]]
    """Provider variables that are not set, with the models that need them."""


def parser() -> argparse.ArgumentParser:
    described = argparse.RawDescriptionHelpFormatter
    main = argparse.ArgumentParser(
        prog="openmem",
        description="Keeps long sessions of coding agents under their limit, behind a LiteLLM gateway.",
        epilog=_EXAMPLES,
        formatter_class=described,
    )
    main.add_argument("--version", action="version", version=f"openmem {__version__}")
    commands = main.add_subparsers(title="commands", metavar="COMMAND", required=True)
    serve = commands.add_parser(
        "serve",
        help="run the gateway with the plugin",
        description=_SERVE,
        epilog=_EXAMPLES,
        formatter_class=described,
    )
    serve.add_argument("--config", type=Path, metavar="FILE", help=f"gateway configuration (default: {CONFIG_NAME})")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    serve.add_argument("--port", type=_whole(0, 65535), default=4000, help="port to listen on (default: %(default)s)")
    serve.add_argument("--workers", type=_whole(1, 64), default=1, help="worker processes (default: %(default)s)")
    serve.add_argument("rest", nargs="*", metavar="-- ARGS", help="arguments for litellm")
    serve.set_defaults(run=_serve)
    mcp = commands.add_parser(
        "mcp",
        help="serve the search tools over stdio, on the gateway's host",
        description="An MCP server on standard input and output, for agents on this machine. Over HTTP the gateway "
        "serves the same tools at /v1/mcp/openmem.",
    )
    mcp.add_argument(
        "--tenant",
        default="",
        help="whose sessions: user:ID, key:HASH, team:ID, operator, local (default: the only one)",
    )
    mcp.add_argument("--state-dir", default="", help="the gateway's state_dir (default: as the gateway finds it)")
    mcp.set_defaults(run=_mcp)
    replay = commands.add_parser(
        "replay",
        help="see on your own transcripts what the plugin would do",
        description=_REPLAY,
        formatter_class=described,
    )
    replay.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a transcript, plain, .gz or .xz")
    replay.add_argument("--json", action="store_true", help="the figures as JSON instead of tables")
    replay.add_argument("--html", type=Path, metavar="PAGE", help="write a page with charts, too")
    replay.add_argument(
        "--trim-at-tokens", type=_whole(1, 100_000_000), metavar="N", help="the setting trim_at_tokens for this run"
    )
    replay.set_defaults(run=_replay)
    return main


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text} is not allowed: a whole number from {least} to {most} is")
        return int(text)

    return read


def main(argv: Sequence[str] | None = None) -> int:
    given = parser().parse_args(argv)
    try:
        return int(given.run(given))
    except CannotRunError as error:
        print(f"openmem: {str(error).removeprefix('openmem: ')}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _serve(given: argparse.Namespace) -> NoReturn:
    launch = plan(given, _environment())
    print("\n".join(greeting(launch)), flush=True)
    os.execve(launch.command[0], list(launch.command), dict(launch.environ))  # noqa: S606 - no shell wanted


def _mcp(given: argparse.Namespace) -> NoReturn:
    """Becomes the server, an edge of its own. Agents start it in a project's folder: nothing is imported from there
    (-P), no `.env` is read."""
    command = [sys.executable, "-P", "-m", "openmem_hook.mcp_server", "--tenant", given.tenant]
    command += ["--state-dir", given.state_dir] if given.state_dir else []
    os.execv(command[0], command)  # noqa: S606 - no shell wanted


def _replay(given: argparse.Namespace) -> int:
    from openmem_hook.replay import command  # the other commands do without what it imports

    settings = {} if given.trim_at_tokens is None else {"trim_at_tokens": given.trim_at_tokens}
    try:
        return command.replay(given.files, settings, given.json, given.html)
    except (command.NoPageError, config.SettingsError) as error:
        raise CannotRunError(str(error)) from error


def _environment() -> dict[str, str]:
    """The environment over a `.env` file in this folder, where LiteLLM's own advice puts keys."""
    return {key: value for key, value in dotenv.dotenv_values(".env").items() if value} | dict(os.environ)


def plan(given: argparse.Namespace, environ: Mapping[str, str]) -> Launch:
    """What `openmem serve` will start. Makes the master key file. Raises CannotServeError."""
    file = given.config or _default_config()
    said = _read(file)
    _check_settings(said, environ)
    _check_port(given.host, given.port)
    key_file = None if _has_master_key(said, environ) else _key_file(environ)
    own = {} if key_file is None else {MASTER_KEY: _master_key(key_file)}
    words = ["--config", str(file), "--host", given.host, "--port", str(given.port)]
    if given.workers > 1:
        # A worker imports for seconds before it answers; uvicorn's 5 s would kill it again and again.
        words += ["--num_workers", str(given.workers), "--timeout_worker_healthcheck", "120"]
    return Launch(
        command=[_litellm(), *words, *given.rest],
        environ={**environ, **own},
        config=file,
        address=f"http://{given.host}:{given.port}",
        key_file=key_file,
        missing=_missing(said, environ),
    )


def greeting(launch: Launch) -> Iterator[str]:
    """What a person reads before the gateway's own lines. Never a key."""
    yield f"openmem {__version__}: gateway on {launch.address} with {launch.config}"
    key = f"${MASTER_KEY}" if launch.environ.get(MASTER_KEY) else "…"
    if launch.key_file is not None:
        yield f"master key: in {launch.key_file} (mode 600)"
        key = f"$(cat {shlex.quote(str(launch.key_file))})"
    yield f'Claude Code: export OPENMEM_KEY="{key}"'
    yield f'             ANTHROPIC_BASE_URL={launch.address} ANTHROPIC_AUTH_TOKEN="$OPENMEM_KEY" claude'
    for variable, models in launch.missing.items():
        yield f"{variable} is not set: no answers from {', '.join(models)}"


# --- the file -----------------------------------------------------------------------------------------------


def _default_config() -> Path:
    """The file in the current folder, else the shipped one: beside the package, or inside it when installed."""
    package = Path(__file__).resolve().parent
    places = [Path.cwd(), package.parent, package]
    return next((place / CONFIG_NAME for place in places if (place / CONFIG_NAME).is_file()), Path(CONFIG_NAME))


def _read(file: Path) -> Mapping[Any, Any]:
    try:
        said = yaml.safe_load(file.read_text("utf-8"))
    except OSError as error:
        raise CannotServeError(f"{file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f": line {mark.line + 1}, {getattr(error, 'problem', '')}" if mark else ""
        raise CannotServeError(f"{file} is not readable as YAML{where}") from error
    if not isinstance(said, Mapping):
        raise CannotServeError(f"{file} is no gateway configuration: a mapping is allowed")
    return said


def _check_settings(said: Mapping[Any, Any], environ: Mapping[str, str]) -> None:
    """The check that the gateway makes too, seconds earlier. What it reads from the environment is left to it."""
    try:
        config.load(_own(_part(said, "callback_settings").get("openmem")), environ)
        for name, row in _models(said):
            config.check_model(name, _own(_part(row, "model_info").get("openmem")))
    except config.SettingsError as error:
        raise CannotServeError(str(error)) from error


def _own(block: object) -> object:
    if not isinstance(block, Mapping):
        return block
    return {key: value for key, value in block.items() if not str(value).startswith(_REFERENCE)}


def _part(holder: Mapping[Any, Any], name: str) -> Mapping[Any, Any]:
    value = holder.get(name)
    return value if isinstance(value, Mapping) else {}


def _models(said: Mapping[Any, Any]) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    rows = said.get("model_list")
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, Mapping):
            yield str(row.get("model_name")), row


def _missing(said: Mapping[Any, Any], environ: Mapping[str, str]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, row in _models(said):
        for value in _part(row, "litellm_params").values():
            variable = _variable(value)
            if variable and not environ.get(variable) and name not in found.setdefault(variable, []):
                found[variable].append(name)
    return {variable: names for variable, names in found.items() if names}


def _variable(value: object) -> str:
    return value.removeprefix(_REFERENCE) if isinstance(value, str) and value.startswith(_REFERENCE) else ""


# --- the master key -----------------------------------------------------------------------------------------


def _has_master_key(said: Mapping[Any, Any], environ: Mapping[str, str]) -> bool:
    """Whether someone else chose the key: in the environment or, literally or by another name, in the file."""
    written = _part(said, "general_settings").get("master_key")
    return bool(environ.get(MASTER_KEY)) or (bool(written) and _variable(written) != MASTER_KEY)


def _key_file(environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME") or str(Path.home())
    folder = environ.get("OPENMEM_STATE_DIR") or f"{home}/.local/share/openmem"
    return Path(folder).expanduser() / "master_key"


def _master_key(file: Path) -> str:
    """The key in this file, which is made where it is missing. Two that start at once get the same one."""
    try:
        if not file.exists():
            _make_key(file)
        if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise CannotServeError(f"{file} can be read by others: chmod 600 it, or delete it to get a new key")
        key = file.read_text("utf-8").strip()
    except OSError as error:
        raise CannotServeError(f"{file}: {error.strerror}") from error
    if not key:
        raise CannotServeError(f"{file} is empty: delete it to get a new key")
    return key


def _make_key(file: Path) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = file.with_name(f".master_key.{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(handle, f"sk-{secrets.token_urlsafe(32)}\n".encode())
        os.link(draft, file)
    except FileExistsError:
        pass  # someone else was first; theirs counts
    finally:
        os.close(handle)
        draft.unlink()


# --- the gateway --------------------------------------------------------------------------------------------


def _check_port(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CannotServeError(f"port {port} on {host} is in use: choose another with --port") from error
            raise CannotServeError(f"can't listen on {host} port {port}: {error.strerror}") from error


def _litellm() -> str:
    """The `litellm` command of this very environment."""
    command = Path(sys.executable).with_name("litellm")
    if not os.access(command, os.X_OK):
        raise CannotServeError(f"{command} is missing: pip install 'litellm[proxy]'")
    return str(command)
