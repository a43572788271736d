"""The command line: what `openmem serve` hands to the gateway, and the one line it says when it can't."""

from __future__ import annotations

import errno
import io
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

import openmem_hook
from openmem_hook import cli
from openmem_hook.cli import launch, serve
from openmem_hook.cli.base import CannotRunError, WholeNumber

REPO = Path(__file__).parents[2]
CONFIG = """
model_list:
  - model_name: claude
    litellm_params: {model: anthropic/claude-sonnet-5, api_key: os.environ/ANTHROPIC_API_KEY}
    model_info: {openmem: {trim_at_tokens: 90000}}
litellm_settings: {callbacks: ["openmem_hook.handler"]}
general_settings: {master_key: os.environ/LITELLM_MASTER_KEY}
callback_settings: {openmem: {ttl_days: 7}}
"""


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty home and no keys, and a gateway configuration in that home."""
    (tmp_path / "gateway.yaml").write_text(CONFIG)
    return {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}


@pytest.fixture
def plan(home: dict[str, str], tmp_path: Path) -> Callable[..., launch.Launch]:
    def build(*words: str, **environ: str) -> launch.Launch:
        words = ("--port", "0", "--config", str(tmp_path / "gateway.yaml"), *words)
        return launch.plan(serve_options(*words), {**home, **environ})

    return build


def serve_options(*words: str) -> launch.ServeOptions:
    parent = cli.openmem.make_context("openmem", [])
    return launch.ServeOptions(**serve.command.make_context("serve", list(words), parent).params)


def openmem(*words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("openmem")), *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


# --- what is started ----------------------------------------------------------------------------------------


def test_the_gateway_listens_on_loopback_port_4000_unless_told_otherwise() -> None:
    assert serve_options() == launch.ServeOptions(None, "127.0.0.1", 4000, 1, ())


def test_the_gateway_is_started_with_the_file_address_and_workers_that_were_asked_for(plan, tmp_path) -> None:
    words = plan("--host", "127.0.0.2", "--workers", "2").command
    assert Path(words[0]).name == "litellm"
    pairs = dict(zip(words[1::2], words[2::2], strict=True))
    assert pairs["--config"] == str(tmp_path / "gateway.yaml")
    assert (pairs["--host"], pairs["--port"], pairs["--num_workers"]) == ("127.0.0.2", "0", "2")


def test_words_after_two_dashes_go_to_the_gateway(plan) -> None:
    assert plan("--", "--detailed_debug").command[-1] == "--detailed_debug"
    assert plan("--", "--host", "x", "--", "--y").command[-4:] == ["--host", "x", "--", "--y"]


def test_without_a_file_the_one_in_the_current_folder_is_taken_and_else_the_shipped_one(
    home, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = serve_options("--port", "0")
    assert launch.plan(options, home).config == REPO / "litellm_config.yaml"
    (tmp_path / "litellm_config.yaml").write_text(CONFIG)
    assert launch.plan(options, home).config == tmp_path / "litellm_config.yaml"


# --- the master key -----------------------------------------------------------------------------------------


def test_a_master_key_is_made_once_and_only_its_owner_can_read_it(plan, tmp_path) -> None:
    key = plan().environ["LITELLM_MASTER_KEY"]
    file = tmp_path / ".local/share/openmem/master_key"
    assert key.startswith("sk-")
    assert len(key) > 40
    assert file.read_text().strip() == key
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert plan().environ["LITELLM_MASTER_KEY"] == key


def test_the_key_file_lies_in_the_state_folder(plan, tmp_path) -> None:
    start = plan(OPENMEM_STATE_DIR=str(tmp_path / "state"))
    assert start.key_file == tmp_path / "state/master_key"
    assert start.key_file.exists()


def test_a_master_key_of_the_environment_is_left_alone(plan, tmp_path) -> None:
    start = plan(LITELLM_MASTER_KEY="sk-own")
    assert start.environ["LITELLM_MASTER_KEY"] == "sk-own"
    assert start.key_file is None
    assert not (tmp_path / ".local").exists()


def test_a_master_key_written_in_the_file_is_left_alone(plan, tmp_path) -> None:
    (tmp_path / "gateway.yaml").write_text(CONFIG.replace("os.environ/LITELLM_MASTER_KEY", "sk-in-the-file"))
    assert "LITELLM_MASTER_KEY" not in plan().environ


def test_keys_in_a_file_named_env_count_as_set_below_the_environment(home, tmp_path, monkeypatch) -> None:
    (tmp_path / ".env").write_text("LITELLM_MASTER_KEY=sk-dotenv\nANTHROPIC_API_KEY=dotenv\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", {**home, "ANTHROPIC_API_KEY": "exported"})
    started: list[dict[str, str]] = []
    monkeypatch.setattr(os, "execve", lambda path, words, environ: started.append(environ) or sys.exit(0))
    with pytest.raises(SystemExit):
        cli.main(["serve", "--port", "0", "--config", "gateway.yaml"])
    assert (started[0]["LITELLM_MASTER_KEY"], started[0]["ANTHROPIC_API_KEY"]) == ("sk-dotenv", "exported")


def test_a_key_file_that_others_can_read_is_refused(plan, tmp_path) -> None:
    plan()
    (tmp_path / ".local/share/openmem/master_key").chmod(0o644)
    with pytest.raises(CannotRunError, match="can be read by others"):
        plan()


def test_what_is_said_at_the_start_never_holds_a_key(plan) -> None:
    start = plan(ANTHROPIC_API_KEY="provider-secret")
    said = "\n".join(launch.greeting(start))
    assert str(start.key_file) in said
    assert start.environ["LITELLM_MASTER_KEY"] not in said
    assert "provider-secret" not in said


def test_models_whose_provider_key_is_missing_are_named(plan) -> None:
    assert "ANTHROPIC_API_KEY is not set: no answers from claude" in "\n".join(launch.greeting(plan()))
    assert "ANTHROPIC_API_KEY" not in "\n".join(launch.greeting(plan(ANTHROPIC_API_KEY="x")))


# --- what can't be started ----------------------------------------------------------------------------------

WRONG = {
    "a wrong value": ("ttl_days: 7", "ttl_days: soon", "callback_settings.openmem.ttl_days is 'soon'"),
    "an unknown key": ("ttl_days: 7", "ttl_day: 7", "did you mean 'ttl_days'?"),
    "a model's wrong value": ("trim_at_tokens: 90000", "trim_at_tokens: -1", "model 'claude' model_info.openmem"),
    "a list for a mapping": ("{ttl_days: 7}", "[ttl_days]", "a mapping of settings is allowed"),
    "no YAML": ("model_list:", "model_list: {", "is not readable as YAML: line 3"),
    "a day that can't be": ("ttl_days: 7", "ttl_days: 2001-99-99", "is not readable as YAML"),
    "a number of 5,000 digits": ("ttl_days: 7", f"ttl_days: {'9' * 5000}", "is not readable as YAML"),
    "no number": ("ttl_days: 7", "ttl_days: !!float x", "is not readable as YAML"),
    "no truth": ("ttl_days: 7", "ttl_days: !!bool x", "is not readable as YAML"),
    "no time": ("ttl_days: 7", "ttl_days: !!timestamp x", "is not readable as YAML"),
    "a depth that can't be": ("{ttl_days: 7}", "[" * 2000 + "]" * 2000, "is not readable as YAML"),
    "no mapping": (CONFIG, "- a\n", "is no gateway configuration"),
}


@pytest.mark.parametrize(("old", "new", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_refused_in_one_line(old: str, new: str, said: str, home, tmp_path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIG.replace(old, new))
    done = openmem("serve", "--config", str(file), "--port", "0", env=home)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.startswith("openmem: ")
    assert done.stderr.count("\n") == 1


def test_a_wrong_environment_is_refused_in_one_line(plan) -> None:
    with pytest.raises(CannotRunError, match=r"CONTEXT_TRIM_AT_TOKENS.* is 'lots'"):
        plan(CONTEXT_TRIM_AT_TOKENS="lots")


def test_a_value_that_the_gateway_reads_from_the_environment_is_left_to_the_gateway(plan, tmp_path) -> None:
    (tmp_path / "gateway.yaml").write_text(CONFIG.replace("ttl_days: 7", "state_dir: os.environ/WHERE"))
    assert plan().command


def test_a_missing_file_is_named(plan) -> None:
    with pytest.raises(CannotRunError, match=r"nowhere\.yaml: No such file"):
        plan("--config", "nowhere.yaml")


def test_a_port_in_use_is_named_instead_of_another_one_being_taken(plan) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotRunError, match=f"port {port} on 127.0.0.1 is in use"):
            plan("--port", str(port))


@pytest.mark.parametrize("host", ["no such host", "xn--\u2028", "a" * 300, "::ffff:nowhere", "a\0b"])
def test_a_host_that_is_none_is_named(plan, host: str) -> None:
    with pytest.raises(CannotRunError, match="can't listen on"):
        plan("--host", host)


BYTES_THAT_ARE_NO_TEXT = b"OPENMEM=\xff\xfe\n"


def test_files_that_are_no_text_are_named(plan, home, tmp_path, monkeypatch) -> None:
    key_file = plan().key_file
    assert key_file is not None
    key_file.write_bytes(BYTES_THAT_ARE_NO_TEXT)
    with pytest.raises(CannotRunError, match="master_key holds no key: delete it"):
        plan()
    (tmp_path / ".env").write_bytes(BYTES_THAT_ARE_NO_TEXT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", home)
    assert run("serve") == Run(2, "", "openmem: .env is not readable as UTF-8\n")


def test_a_key_that_no_environment_can_hold_is_refused(home, tmp_path, monkeypatch) -> None:
    (tmp_path / ".env").write_text("LITELLM_MASTER_KEY='sk-\0'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", home)
    done = run("serve", "--port", "0", "--config", "gateway.yaml")
    assert (done.exit_code, done.stderr) == (2, "openmem: the gateway can't be started: embedded null byte\n")


@pytest.mark.parametrize(
    ("option", "value", "limits"),
    [
        ("--port", "70000", "0 to 65535"),
        ("--port", "-1", "0 to 65535"),
        ("--port", "http", "0 to 65535"),
        ("--workers", "0", "1 to 64"),
        ("--workers", "65", "1 to 64"),
    ],
)
def test_numbers_out_of_range_are_refused(option: str, value: str, limits: str) -> None:
    result = run("serve", option, value)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == (
        f"Error: Invalid value for '{option}': {value} is not allowed: a whole number from {limits} is"
    )


@pytest.mark.parametrize("text", ["+5", " 5", "1_0", "5.0", "", "9" * 10_000])
def test_a_number_is_plain_digits(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not allowed: a whole number from 0 to 99 is"):
        WholeNumber(0, 99).convert(text, None, None)


def test_a_state_folder_that_can_not_be_written_is_named(plan, tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotRunError, match="master_key: Not a directory"):
        plan(OPENMEM_STATE_DIR=str(tmp_path / "file/below"))


def test_the_home_of_nobody_is_named(plan) -> None:
    with pytest.raises(CannotRunError, match="OPENMEM_STATE_DIR is ~nosuchuser/x: there is no such user"):
        plan(OPENMEM_STATE_DIR="~nosuchuser/x")


# --- the command as such ------------------------------------------------------------------------------------

HELP_PAGES = [(), *((name,) for name in cli.COMMANDS)]
LIBRARIES = {"dotenv", "litellm", "mcp", "openmem_hook.mcp_server", "openmem_hook.replay", "pydantic", "rich", "yaml"}
"""What takes long to import."""


@dataclass(frozen=True)
class Run:
    exit_code: int
    stdout: str
    stderr: str


def run(*words: str) -> Run:
    """Runs the command line in this process. click's own CliRunner would leave out `main`."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        exit_code = cli.main(words)
    return Run(exit_code, out.getvalue(), err.getvalue())


def test_the_version_is_the_package_s(home) -> None:
    assert openmem("--version", env=home).stdout == f"openmem {openmem_hook.__version__}\n"


@pytest.mark.parametrize("words", HELP_PAGES, ids=lambda words: " ".join(words) or "openmem")
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_names_every_option_and_shows_examples_in_80_columns(
    words: tuple[str, ...], option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = run(*words, option)
    assert (result.exit_code, result.stderr) == (0, "")
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "openmem" in result.stdout.partition("\nExamples:\n")[2]
    for parameter in command_of(*words).params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter
            for name in parameter.opts:
                assert name in result.stdout
        else:
            assert (parameter.metavar or "").strip("[]- .") in result.stdout.partition("\n")[2]


def command_of(name: str = "") -> click.Command:
    lazy = cli.openmem.commands.get(name)
    return lazy.load() if isinstance(lazy, cli.LazyCommand) else cli.openmem


def test_the_help_of_serve_has_the_names_that_are_used() -> None:
    text = run("serve", "--help").stdout
    for name in (launch.gateway_config.CONFIG_NAME, launch.master_key.VARIABLE):
        assert name in text


@pytest.mark.parametrize("words", HELP_PAGES, ids=lambda words: " ".join(words) or "openmem")
def test_help_imports_nothing_that_takes_long(words: tuple[str, ...]) -> None:
    look = f"import sys; from openmem_hook import cli; print(cli.main({[*words, '--help']})); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    code, modules = done.stdout.splitlines()[-2:]
    assert code == "0"
    assert LIBRARIES & set(modules.split()) == set()


def test_listing_the_commands_imports_none_of_them() -> None:
    look = "import sys; from openmem_hook import cli; cli.main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    modules = set(done.stdout.splitlines()[-1].split())
    assert {name for name in modules if name.startswith("openmem_hook.cli")} == {
        "openmem_hook.cli",
        "openmem_hook.cli.base",
    }


def test_without_a_command_help_is_shown(home) -> None:
    done = openmem(env=home)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == openmem("--help", env=home).stdout


@pytest.mark.parametrize(
    ("words", "usage", "error"),
    [
        (("--verson",), "openmem [OPTIONS] COMMAND", "--version"),
        (("serve", "--prt", "1"), "openmem serve [OPTIONS]", "--port"),
        (("serve", "--host"), "openmem serve [OPTIONS]", "Option '--host' requires an argument."),
        (("nonsense",), "openmem [OPTIONS] COMMAND", "No such command 'nonsense'"),
        (("mcp", "extra"), "openmem mcp [OPTIONS]", "Got unexpected extra argument (extra)"),
        (("replay",), "openmem replay [OPTIONS] FILE...", "Missing argument 'FILE...'."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_can_not_be_parsed_shows_the_usage_and_the_error(words: tuple[str, ...], usage: str, error: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"Usage: {usage}")
    assert error in result.stderr.splitlines()[-1]


def test_ctrl_c_ends_a_command_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "plan", interrupt)
    assert run("serve").exit_code == 130


def test_output_that_nobody_takes_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cli.openmem, "main", fail)
    assert run("--help") == Run(1, "", "openmem: No space left on device\n")


def test_the_command_line_never_imports_the_gateway() -> None:
    look = "import sys, openmem_hook.cli; print([m for m in sys.modules if m.startswith('litellm')])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
