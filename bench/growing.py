"""A session of tool exchanges that grows to a wanted size, as Claude Code sends one, and a hook to drive with it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson

from openmem_hook import config
from openmem_hook.compactor import Compactor
from openmem_hook.gateway.hook import ContextHook
from openmem_hook.gateway.notices import Notices
from tests.kit.builders import assistant, marked, results, text, tool, tool_result, tool_use, user
from tests.kit.filler import listing, prose

Json = dict[str, Any]

MODEL = "claude-sonnet-4-5"
CALL_TYPE = "anthropic_messages"
PER_TURN = 40
"""Requests a typed message leads to."""
SPREAD = (0.1, 0.3, 0.5, 0.7, 1.0, 0.4, 1.1, 2.0, 0.8, 3.1)
"""Sizes of ten results in a row as shares of the mean: two of ten are over the limit for compression."""
SYSTEM_CHARS = 12_000
TOOLS = ("Task", "Bash", "Glob", "Grep", "Read", "Edit", "Write", "TodoWrite")
KEY = SimpleNamespace(
    user_id="bench", token="b" * 64, team_id=None, metadata={}, team_metadata=None, api_key="b" * 64, key_alias=None
)


def messages(requests: int, result_chars: int, seed: object = 0, called: Sequence[str] = ("Read",)) -> list[Json]:
    """The history of so many requests, ending where the last of them is sent. Two messages a request; tools are called
    in this order, again and again."""
    made: list[Json] = []
    for n in range(requests):
        turn, step = divmod(n, PER_TURN)
        if not step:
            made.append(user(text(f"Task {turn}: {prose(200, seed, turn)}")))
            continue
        call, path = f"toolu_{seed}_{turn}_{step}", f"src/{turn}/module_{step}.py"
        said = text(f"Step {step}: {prose(120, seed, turn, step)}")
        made.append(assistant(said, tool_use(call, called[n % len(called)], file_path=path)))
        made.append(results(tool_result(call, listing(int(result_chars * SPREAD[n % 10]), seed, turn, step))))
        if step == PER_TURN - 1:
            made.append(assistant(text(f"Task {turn} is done. {prose(300, seed, turn, 'end')}")))
    return made if made[-1]["role"] == "user" else made[:-1]


def front() -> Json:
    """What stays the same in all requests: about 20 KB of system prompt and tools."""
    return {
        "model": MODEL,
        "max_tokens": 32_000,
        "stream": True,
        "system": [marked(text(prose(200, "identity"))), marked(text(prose(SYSTEM_CHARS, "system")))],
        "tools": [tool(name) | {"description": prose(800, name)} for name in TOOLS],
    }


def bodies(history: list[Json], first: int = 1) -> Iterator[bytes]:
    """Every request of a history as JSON, its newest message with the client's moving cache breakpoint."""
    constant = front()
    for end, message in enumerate(history, 1):
        if message["role"] == "user" and end >= first:
            *before, last = message["content"]
            newest = {**message, "content": [*before, marked(last)]}
            yield orjson.dumps(constant | {"messages": [*history[: end - 1], newest]})


def as_gateway(raw: bytes, call_id: str, session: str) -> Json:
    """A body as the gateway hands it to a hook: parsed anew, its own fields beside the client's."""
    return gateway_fields(orjson.loads(raw), call_id, session)


def gateway_fields(body: Json, call_id: str, session: str) -> Json:
    headers = {"x-claude-code-session-id": session, "user-agent": "claude-cli/2.1.332 (external, cli)"}
    body["litellm_call_id"] = call_id
    body["litellm_metadata"] = {"user_api_key": KEY.api_key}
    body["proxy_server_request"] = {"headers": headers, "url": "", "method": "POST"}
    return body


def new_hook(folder: Path, **settings: Any) -> ContextHook:
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    base = config.load(settings, {"OPENMEM_STATE_DIR": str(folder), "HOME": str(folder)})
    return ContextHook(base, Compactor(folder / "context"), Notices())


async def report(hook: ContextHook, call_id: str, out: Json) -> None:
    """The success event of a request that went out like this."""
    sent = len(orjson.dumps([out["system"], out["tools"], out["messages"]]))
    usage = {"prompt_tokens": round(sent / 3.1), "completion_tokens": 60}
    await hook.async_log_success_event(
        {"litellm_call_id": call_id, "call_type": CALL_TYPE}, {"usage": usage}, None, None
    )


def unharmed(hook: ContextHook) -> None:
    """A figure of a hook that failed open would be of something else. RuntimeError where one did."""
    if hook.notices.failures:
        raise RuntimeError(f"the hook failed open {hook.notices.failures} times")
