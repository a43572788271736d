"""Processes of the demo: the scripted model and the real `litellm` command, on loopback, ended by their ids."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

REPO = Path(__file__).resolve().parent.parent
START_S = 120
"""Seconds a process may take to answer; LiteLLM needs 7 on an idle machine."""
OFFLINE = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    "LITELLM_LOCAL_AUTOROUTER_PRESETS": "True",
    "LITELLM_LOCAL_POLICY_TEMPLATES": "True",
    "PYTHON_DOTENV_DISABLED": "1",
}
"""LiteLLM would ask the network for lists that it also ships, and read a `.env` file above its own folder."""
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH")
"""Of a person's environment; provider keys, databases and settings of theirs are no business of the demo."""


class DemoError(Exception):
    """What went wrong, in one line."""


def free_port() -> int:
    """A port that nobody listens on, below those that outgoing connections are given."""
    while True:
        port = random.SystemRandom().randint(10_000, 32_000)  # whoever seeds `random`, two processes don't meet
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def gateway_config(provider: str, master_key: str, state_dir: Path, trim_at: int) -> dict[str, Any]:
    """The gateway's YAML: one model, one line for the plugin, its settings."""
    return {
        "model_list": [
            {
                "model_name": "claude-demo",
                "litellm_params": {"model": "anthropic/claude-sonnet-5", "api_base": provider, "api_key": "demo"},
                "model_info": {"max_input_tokens": 200_000, "openmem": {"trim_at_tokens": trim_at}},
            }
        ],
        "litellm_settings": {"callbacks": ["openmem_hook.handler"], "num_retries": 0},
        "general_settings": {"master_key": master_key},
        "callback_settings": {"openmem": {"state_dir": str(state_dir)}},
    }


@contextlib.contextmanager
def provider(log: Path, *options: str) -> Iterator[str]:
    """The scripted model, with options of its command; yields its base address."""
    port = free_port()
    command = [sys.executable, "-m", "tests.kit.provider", "--port", str(port), *options]
    with _process(command, log, f"http://127.0.0.1:{port}", "/__log?last=1") as address:
        yield address


@contextlib.contextmanager
def gateway(config: Mapping[str, Any], folder: Path, log: Path) -> Iterator[str]:
    """The gateway with this configuration, started in `folder`; yields its base address."""
    file = folder / "litellm_config.yaml"
    file.write_text(json.dumps(config, indent=2))  # JSON is YAML
    file.chmod(0o600)
    port = free_port()
    litellm = str(Path(sys.executable).with_name("litellm"))
    command = [litellm, "--config", str(file), "--host", "127.0.0.1", "--port", str(port)]
    with _process(command, log, f"http://127.0.0.1:{port}", "/health/liveliness", folder) as address:
        yield address


@contextlib.contextmanager
def _process(command: Sequence[str], log: Path, address: str, probe: str, folder: Path = REPO) -> Iterator[str]:
    environ = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ} | OFFLINE
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=out, stderr=subprocess.STDOUT)
    try:
        wait_for_answer(process, f"{address}{probe}", log)
        yield address
    finally:
        end(process)


def wait_for_answer(process: subprocess.Popen[bytes], url: str, log: Path, seconds: float = START_S) -> None:
    """Returns when the process answers this address. Raises DemoError when it ends or takes longer."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.poll() is not None:
            raise DemoError(f"{_name(process)} ended with code {process.returncode} before it answered; see {log}")
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url, timeout=5, trust_env=False).is_success:
                return
        time.sleep(0.1)
    raise DemoError(f"{_name(process)} did not answer within {seconds:g} seconds; see {log}")


def _name(process: subprocess.Popen[bytes]) -> str:
    return "the gateway" if str(process.args[0]).endswith("litellm") else "the scripted model"  # type: ignore[index]


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process, if need be by force."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
