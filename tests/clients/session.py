"""A gateway that notes what it is asked, and a client's session at it with the oracles of the suite."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.clients.drivers import CLIENTS
from tests.gateway import UPSTREAM_KEY, Gateway, Upstream, configuration, serving
from tests.kit.provider import running

Json = dict[str, Any]

RECORD = """
import json
from pathlib import Path
from litellm.integrations.custom_logger import CustomLogger

class Record(CustomLogger):
    async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
        asked = data.get("proxy_server_request")
        if asked and "litellm_call_id" in data and call_type in {"anthropic_messages", "acompletion", "aresponses"}:
            call = data["litellm_call_id"]
            line = {"call": call, "kind": call_type, "headers": dict(asked["headers"]), "body": asked["body"]}
            with Path(__file__).with_name("asked.jsonl").open("a") as file:
                file.write(json.dumps(line, default=str) + "\\n")
            data["extra_headers"] = {**(data.get("extra_headers") or {}), "x-kit-call": call}
        return data

calls = Record()
"""
"""A callback that notes each request as the client sent it, and names it to the provider."""


class Noted(Upstream):
    """The strict provider, with the gateway's name for each request and all bodies."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies = deque()

    def handle(self, fmt, raw, headers, now):  # type: ignore[no-untyped-def]
        reply = super().handle(fmt, raw, headers, now)
        self.log[-1]["call"] = headers.get("x-kit-call", "")
        self.log[-1]["body"] = self.bodies[-1]
        return reply


def configured(upstream: str) -> Json:
    """The gateway's file with the models that clients ask for by their own names, and a limit for each client's size."""
    config = configuration(upstream)
    config["litellm_settings"]["callbacks"].insert(0, "record.calls")
    openai = {"api_base": f"{upstream}/v1", "api_key": UPSTREAM_KEY}
    anthropic = {"api_base": upstream, "api_key": UPSTREAM_KEY}
    models = {
        "claude-sonnet-5": {"model": "anthropic/claude-sonnet-5", **anthropic},
        "claude-haiku-4-5": {"model": "anthropic/claude-haiku-4-5", **anthropic},
        "gpt-5.5": {"model": "openai/gpt-5.5", **openai},
        "kit": {"model": "openai/kit", **openai},
    }
    config["model_list"] = [
        {"model_name": name, "litellm_params": params, "model_info": {"max_input_tokens": 200_000}}
        for name, params in models.items()
    ]
    return config


@contextlib.contextmanager
def noted_gateway(folder: Path, trim_at: int) -> Iterator[tuple[Gateway, Noted]]:
    provider = Noted()
    with running(provider, clock=lambda: 0.0) as address:
        provider.address = address
        config = configured(address)
        config["callback_settings"]["openmem"]["trim_at_tokens"] = trim_at
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "record.py").write_text(RECORD)
        with serving(Gateway(folder, config)) as gateway:
            yield gateway, provider


def asked(gateway: Gateway) -> list[Json]:
    file = gateway.folder / "asked.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
