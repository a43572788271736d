"""The command line: what `openmem serve` hands to the gateway, and the one line it says when it can't."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import openmem_hook
from openmem_hook import cli

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
def plan(home: dict[str, str], tmp_path: Path) -> Callable[..., cli.Launch]:
    def build(*words: str, **environ: str) -> cli.Launch:
        given = cli.parser().parse_args(["serve", "--port", "0", "--config", str(tmp_path / "gateway.yaml"), *words])
        return cli.plan(given, {**home, **environ})

    return build


def openmem(*words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("openmem")), *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


# --- what is started ----------------------------------------------------------------------------------------


def test_the_gateway_listens_on_loopback_port_4000_unless_told_otherwise() -> None:
    given = cli.parser().parse_args(["serve"])
    assert (given.host, given.port, given.workers) == ("127.0.0.1", 4000, 1)


def test_the_gateway_is_started_with_the_file_address_and_workers_that_were_asked_for(plan, tmp_path) -> None:
    words = plan("--host", "127.0.0.2", "--workers", "2").command
    assert Path(words[0]).name == "litellm"
    pairs = dict(zip(words[1::2], words[2::2], strict=True))
    assert pairs["--config"] == str(tmp_path / "gateway.yaml")
    assert (pairs["--host"], pairs["--port"], pairs["--num_workers"]) == ("127.0.0.2", "0", "2")


def test_words_after_two_dashes_go_to_the_gateway(plan) -> None:
    assert plan("--", "--detailed_debug").command[-1] == "--detailed_debug"


def test_without_a_file_the_one_in_the_current_folder_is_taken_and_else_the_shipped_one(
    home, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = cli.parser().parse_args(["serve", "--port", "0"])
    assert cli.plan(given, home).config == REPO / "litellm_config.yaml"
    (tmp_path / "litellm_config.yaml").write_text(CONFIG)
    assert cli.plan(given, home).config == tmp_path / "litellm_config.yaml"


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
    launch = plan(OPENMEM_STATE_DIR=str(tmp_path / "state"))
    assert launch.key_file == tmp_path / "state/master_key"
    assert launch.key_file.exists()


def test_a_master_key_of_the_environment_is_left_alone(plan, tmp_path) -> None:
    launch = plan(LITELLM_MASTER_KEY="sk-own")
    assert launch.environ["LITELLM_MASTER_KEY"] == "sk-own"
    assert launch.key_file is None
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
    with pytest.raises(cli.CannotServeError, match="can be read by others"):
        plan()


def test_what_is_said_at_the_start_never_holds_a_key(plan) -> None:
    launch = plan(ANTHROPIC_API_KEY="provider-secret")
    said = "\n".join(cli.greeting(launch))
    assert str(launch.key_file) in said
    assert launch.environ["LITELLM_MASTER_KEY"] not in said
    assert "provider-secret" not in said


def test_models_whose_provider_key_is_missing_are_named(plan) -> None:
    assert "ANTHROPIC_API_KEY is not set: no answers from claude" in "\n".join(cli.greeting(plan()))
    assert "ANTHROPIC_API_KEY" not in "\n".join(cli.greeting(plan(ANTHROPIC_API_KEY="x")))


# --- what can't be started ----------------------------------------------------------------------------------

WRONG = {
    "a wrong value": ("ttl_days: 7", "ttl_days: soon", "callback_settings.openmem.ttl_days is 'soon'"),
    "an unknown key": ("ttl_days: 7", "ttl_day: 7", "did you mean 'ttl_days'?"),
    "a model's wrong value": ("trim_at_tokens: 90000", "trim_at_tokens: -1", "model 'claude' model_info.openmem"),
    "a list for a mapping": ("{ttl_days: 7}", "[ttl_days]", "a mapping of settings is allowed"),
    "no YAML": ("model_list:", "model_list: {", "is not readable as YAML: line 3"),
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
    with pytest.raises(cli.CannotServeError, match=r"CONTEXT_TRIM_AT_TOKENS.* is 'lots'"):
        plan(CONTEXT_TRIM_AT_TOKENS="lots")


def test_a_value_that_the_gateway_reads_from_the_environment_is_left_to_the_gateway(plan, tmp_path) -> None:
    (tmp_path / "gateway.yaml").write_text(CONFIG.replace("ttl_days: 7", "state_dir: os.environ/WHERE"))
    assert plan().command


def test_a_missing_file_is_named(plan) -> None:
    with pytest.raises(cli.CannotServeError, match=r"nowhere\.yaml: No such file"):
        plan("--config", "nowhere.yaml")


def test_a_port_in_use_is_named_instead_of_another_one_being_taken(plan) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(cli.CannotServeError, match=f"port {port} on 127.0.0.1 is in use"):
            plan("--port", str(port))


@pytest.mark.parametrize(("words", "said"), [(("--port", "70000"), "70000"), (("--workers", "0"), "0")])
def test_numbers_out_of_range_are_refused(words: tuple[str, ...], said: str, home) -> None:
    done = openmem("serve", *words, env=home)
    assert done.returncode == 2
    assert f"{said} is not allowed" in done.stderr.splitlines()[-1]


def test_a_state_folder_that_can_not_be_written_is_named(plan, tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(cli.CannotServeError, match="master_key: Not a directory"):
        plan(OPENMEM_STATE_DIR=str(tmp_path / "file/below"))


# --- the command as such ------------------------------------------------------------------------------------


def test_the_version_is_the_package_s(home) -> None:
    assert openmem("--version", env=home).stdout == f"openmem {openmem_hook.__version__}\n"


@pytest.mark.parametrize("words", [("--help",), ("serve", "--help")], ids=" ".join)
def test_help_shows_an_example(words: tuple[str, ...], home) -> None:
    done = openmem(*words, env=home)
    assert done.returncode == 0
    assert "openmem serve --" in done.stdout.partition("examples:")[2]


def test_without_a_command_help_is_shown(home) -> None:
    done = openmem(env=home)
    assert done.returncode == 2
    assert "usage: openmem" in done.stderr


def test_the_command_line_never_imports_the_gateway() -> None:
    look = "import sys, openmem_hook.cli; print([m for m in sys.modules if m.startswith('litellm')])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
