"""The start of the real gateway: a wrong setting stops it in one line, a right one serves from any folder."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from demo.gateway import OFFLINE, free_port

START_S = 240
MASTER_KEY = "sk-" + "k" * 40

pytestmark = pytest.mark.e2e

CONFIG: dict[str, Any] = {
    "model_list": [{"model_name": "m", "litellm_params": {"model": "openai/x", "api_key": "k"}}],
    "litellm_settings": {"callbacks": ["openmem_hook.handler"]},
    "general_settings": {"master_key": MASTER_KEY},
}
BAD_MODEL = [{**CONFIG["model_list"][0], "model_info": {"openmem": {"compress_over_tokens": -4}}}]


def test_a_wrong_setting_stops_the_gateway_with_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "model_list": BAD_MODEL}))
    command = [litellm(), "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(free_port())]
    ended = subprocess.run(
        command, cwd=tmp_path, env=clean(tmp_path), capture_output=True, text=True, timeout=START_S, check=False
    )
    assert ended.returncode != 0
    ours = [line for line in ended.stderr.splitlines() if line.startswith("openmem: ")]
    assert len(ours) == 1
    assert "model 'm' model_info.openmem.compress_over_tokens is -4" in ours[0]
    assert "Traceback" not in ended.stderr


def test_the_shipped_file_serves_from_another_folder_with_a_key_of_its_own(tmp_path: Path) -> None:
    """The shipped file lies beside the package; the plugin is called and finds its settings."""
    said = [("user", "hello"), ("assistant", "hi"), ("user", "and now?")]
    body = {"model": "local", "max_tokens": 10, "messages": [{"role": r, "content": text} for r, text in said]}
    with serving(tmp_path) as address, httpx.Client(base_url=address, timeout=60, trust_env=False) as http:
        key_file = tmp_path / "state/master_key"
        assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
        ours = {"authorization": f"Bearer {key_file.read_text().strip()}", "x-session-id": "start"}
        listed = {row["id"] for row in http.get("/v1/models", headers=ours).json()["data"]}
        assert {"claude-sonnet-5", "claude-haiku-4-5", "gpt-5.5", "local"} <= listed
        sessions = (tmp_path / "state/context").glob
        assert http.post("/v1/messages", json=body).is_error
        assert list(sessions("*/sessions/*.db")) == []
        assert http.post("/v1/messages", json=body, headers=ours).is_error  # nobody serves that model here
        assert len(list(sessions("*/sessions/*.db"))) == 1


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """`openmem serve` with the shipped file, from an empty folder; ended by its id."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("openmem")), "serve", "--port", str(port)]
    log = (folder / "log").open("wb")
    environ = clean(folder) | {"OPENMEM_STATE_DIR": str(folder / "state")}
    process = subprocess.Popen(command, cwd=folder, env=environ, stdout=log, stderr=log)
    try:
        wait_for(lambda: answers(port) or process.poll() is not None)
        assert process.poll() is None, (folder / "log").read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()
        log.close()


def litellm() -> str:
    return str(Path(sys.executable).with_name("litellm"))


def clean(home: Path) -> dict[str, str]:
    """An environment with nothing in it but the path, an empty home and no wish for the network."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), **OFFLINE}


def answers(port: int) -> bool:
    with suppress(OSError, httpx.TransportError), socket.create_connection(("127.0.0.1", port), 1):
        return httpx.get(f"http://127.0.0.1:{port}/health/liveliness", timeout=5, trust_env=False).is_success
    return False


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + START_S
    while not condition() and time.monotonic() < until:
        time.sleep(0.1)
