"""What is checked when the gateway starts: a wrong setting is told in one line and stops it."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from openmem_hook.compactor import Compactor
from openmem_hook.config import SettingsError
from openmem_hook.gateway import hook, startup


def proxy_with(*models: Any) -> SimpleNamespace:
    """The gateway's server module, as far as a start looks at it."""
    return SimpleNamespace(
        proxy_config=SimpleNamespace(get_config_state=lambda: MappingProxyType({"model_list": models and list(models)}))
    )


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
