"""Round trips over HTTP through the real `litellm` command: with the plugin, and with a hook that does nothing.

Both gateways, one worker each, are asked in turn with the same bodies of 2 MB, each an exchange longer than the
one before, as a session sends them; the kit's provider answers in a process of its own. A third gateway leaves all as
it is: there the plugin can't win back its time by sending less.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

import httpx

from bench.estimates import quantile
from bench.figures import Figure, Section
from bench.growing import MODEL, bodies, messages
from demo import gateway as processes

REQUESTS = 330
"""Of the session; the last `ROUNDS` of them are measured."""
ROUNDS = 60
RESULT_CHARS = 6_000
KEY = "sk-bench"
HUGE = 100_000_000
NOTHING = """
from litellm.integrations.custom_logger import CustomLogger

class Nothing(CustomLogger):
    async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
        return data

nothing = Nothing()
"""
PLUGIN = "openmem_hook.handler"
GATEWAYS: Mapping[str, tuple[str, dict[str, int]]] = {
    "no-op hook": ("nothing.nothing", {}),
    "plugin": (PLUGIN, {"trim_at_tokens": 125_000}),
    "plugin, all left as it is": (PLUGIN, {"trim_at_tokens": HUGE // 2, "compress_over_tokens": 0}),
}
"""Callback and settings of each."""


def run(folder: Path, quick: bool) -> Section:
    rounds = ROUNDS // 10 if quick else ROUNDS
    sent = list(bodies(messages(REQUESTS, RESULT_CHARS)))[-rounds - 1 :]
    with contextlib.ExitStack() as started:
        provider = started.enter_context(processes.provider(folder / "provider.log", "--prompt-limit", str(HUGE)))
        addresses = {"the provider alone": provider}
        for name, (callback, settings) in GATEWAYS.items():
            addresses[name] = started.enter_context(_gateway(folder / name, provider, callback, settings))
        taken = round_trips(addresses, sent)
        forwarded = [note["bytes"] for note in httpx.get(f"{provider}/__log?last={len(addresses)}").json()["requests"]]
    figures = [Figure(f"{name}: median", statistics.median(times), "ms") for name, times in taken.items()]
    idle = taken["no-op hook"]
    for name in ("plugin", "plugin, all left as it is"):
        for word, at in (("median", 0.5), ("95th", 0.95)):
            ratio = quantile(taken[name], at) / quantile(idle, at)
            target = 1.2 if at == 0.5 else None
            figures.append(Figure(f"{name}: {word} against the no-op hook's", ratio, "", target))
    shares = zip(addresses, forwarded, strict=True)
    figures += [Figure(f"{name}: bytes sent on", size / len(sent[-1]) * 100, "%") for name, size in shares]
    return Section("gateway", f"{rounds} round trips of {len(sent[-1]) / 1e6:.1f} MB over HTTP, streamed", figures)


def _gateway(
    folder: Path, provider: str, callback: str, settings: dict[str, int]
) -> contextlib.AbstractContextManager[str]:
    folder.mkdir()
    (folder / "nothing.py").write_text(NOTHING)
    config = processes.gateway_config(provider, KEY, folder / "state", HUGE)
    config["litellm_settings"]["callbacks"] = [callback]
    config["callback_settings"]["openmem"] |= settings
    for model in config["model_list"]:
        model["model_name"] = MODEL
        model["model_info"] = {"max_input_tokens": HUGE}
    return processes.gateway(config, folder, folder / "log")


def round_trips(addresses: Mapping[str, str], sent: list[bytes]) -> dict[str, list[float]]:
    """Milliseconds from each address, in turn; the first body warms up."""
    taken: dict[str, list[float]] = {name: [] for name in addresses}
    headers = {
        "x-api-key": KEY,
        "content-type": "application/json",
        "anthropic-version": "2023-06-01",
        "x-claude-code-session-id": "bench",
        "user-agent": "claude-cli/2.1.332 (external, cli)",
    }
    with httpx.Client(timeout=120, trust_env=False, headers=headers) as http:
        for n, raw in enumerate(sent):
            for name, address in addresses.items():
                begun = time.perf_counter()
                answer = http.post(f"{address}/v1/messages", content=raw)
                spent = (time.perf_counter() - begun) * 1000
                if not answer.is_success or b"message_stop" not in answer.content:
                    raise RuntimeError(f"{name}: {answer.status_code} {answer.text[:200]}")
                if n:
                    taken[name].append(spent)
    return taken
