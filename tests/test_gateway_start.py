"""The gateway's start: a wrong setting stops it in one line, a right one serves from any folder."""

from __future__ import annotations

import contextlib
import logging
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
from types import MappingProxyType, SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml

from demo.gateway import OFFLINE, free_port
from openmem_hook.compactor import Compactor
from openmem_hook.config import SettingsError
from openmem_hook.gateway import hook, startup

REPO = Path(__file__).parent.parent
START_S = 240
MASTER_KEY = "sk-" + "k" * 40


def proxy_with(*models: Any) -> SimpleNamespace:
    """The gateway's server module, as far as a start looks at it."""
    return SimpleNamespace(
        proxy_config=SimpleNamespace(get_config_state=lambda: MappingProxyType({"model_list": models and list(models)}))
    )


# --- what is checked, without a gateway ---------------------------------------------------------------------

WRONG: dict[str, tuple[Any, dict[str, str], Any, str]] = {
    "an unknown key": ({"openmem": {"trim_at": 1}}, {}, None, "callback_settings.openmem.trim_at: no such setting"),
    "a wrong type": ({"openmem": {"enabled": "maybe"}}, {}, None, "enabled is 'maybe': true or false is allowed"),
    "an empty list": ({"openmem": []}, {}, None, "callback_settings.openmem is []: a mapping"),
    "zero": ({"openmem": 0}, {}, None, "callback_settings.openmem is 0: a mapping"),
    "the environment": (None, {"CONTEXT_STORE_TTL_DAYS": "-1"}, None, "CONTEXT_STORE_TTL_DAYS (ttl_days) is '-1'"),
    "a model's value": (
        {},
        {},
        proxy_with({"model_name": "good"}, {"model_name": "m", "model_info": {"openmem": {"trim_at_tokens": 5}}}),
        "model 'm' model_info.openmem.trim_at_tokens is 5: a whole number of at least 1000",
    ),
    "a model's key that holds for all": (
        {},
        {},
        proxy_with({"model_name": "m", "model_info": {"openmem": {"ttl_days": 5}}}),
        "model 'm' model_info.openmem.ttl_days is 5: it can only be set for the whole gateway",
    ),
    "a model's block of another kind": (
        {},
        {},
        proxy_with({"model_name": "m", "model_info": {"openmem": "on"}}),
        "model 'm' model_info.openmem is 'on': a mapping",
    ),
}


@pytest.mark.parametrize(("given", "environ", "proxy", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told_in_one_line_and_raised(given, environ, proxy, said, capsys, log_filters) -> None:
    with pytest.raises(SettingsError):
        startup.load_settings(given, environ, proxy)
    told = capsys.readouterr().err
    assert told.startswith("openmem: ")
    assert said in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    "proxy",
    [
        None,
        SimpleNamespace(),
        SimpleNamespace(proxy_config=SimpleNamespace()),
        proxy_with(),
        proxy_with("no mapping", {"model_name": "m"}, {"model_info": None}, {"model_info": {"openmem": None}}),
        proxy_with({"model_name": "m", "model_info": {"openmem": {"trim_at_tokens": 5000}}}),
    ],
    ids=["no gateway", "no configuration", "another version", "no models", "models without settings", "good"],
)
def test_a_right_configuration_passes(proxy) -> None:
    base = startup.load_settings({"openmem": {"ttl_days": 3}, "other": 5}, {}, proxy)
    assert base.settings.ttl_days == 3


def test_the_line_is_not_told_again_as_a_traceback(log_filters, capsys) -> None:
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    with pytest.raises(SettingsError) as raised:
        startup.load_settings({"openmem": {"enabled": 3}}, {}, None)
    server = logging.getLogger("uvicorn.error")
    server.addHandler(handler)  # a server that ran in this process may have ended its propagation, and its words
    level, server.disabled = server.level, False
    server.setLevel(logging.ERROR)
    server.error("Traceback (most recent call last):\n ...\nSettingsError: %s", raised.value)
    server.error("Application startup failed. Exiting.")
    server.removeHandler(handler)
    server.setLevel(level)
    assert told == ["Application startup failed. Exiting."]


@pytest.fixture
def log_filters() -> Iterator[None]:
    """Takes away the filters that a refused start leaves on the server's log."""
    yield
    logging.getLogger("uvicorn.error").filters.clear()


def test_a_gateway_whose_mcp_sdk_does_not_fit_goes_without_the_search_tools(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setitem(sys.modules, "openmem_hook.gateway.mcp_route", None)
    monkeypatch.delattr("openmem_hook.gateway.mcp_route", raising=False)  # where another test imported it
    with contextlib.closing(Compactor(tmp_path)) as compactor, caplog.at_level(logging.WARNING, "openmem"):
        hook._serve_tools(compactor, "user")
    assert "openmem: no search tools" in caplog.text


# --- the real gateway ---------------------------------------------------------------------------------------

CONFIG: dict[str, Any] = {
    "model_list": [{"model_name": "m", "litellm_params": {"model": "openai/x", "api_key": "k"}}],
    "litellm_settings": {"callbacks": ["openmem_hook.handler"]},
    "general_settings": {"master_key": MASTER_KEY},
}
BAD_MODEL = [{**CONFIG["model_list"][0], "model_info": {"openmem": {"compress_over_tokens": -4}}}]


@pytest.mark.e2e
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


@pytest.mark.e2e
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
