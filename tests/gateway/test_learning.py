"""What reports teach: growth is charged to the messages that caused it, whatever the rates learned meanwhile."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from openmem_hook.gateway.hook import ContextHook
from openmem_hook.replay.provider.counting import prompt_tokens
from tests.conftest import make_key
from tests.kit.builders import assistant, results, tool_result, tool_use, user
from tests.kit.filler import listing, prose

SYSTEM = prose(12_000, "system")
"""At 2.5 characters a token it seems twice its true size until a few reports came in."""


def body_of(exchanges: int) -> dict[str, Any]:
    messages = [user("please do the task")]
    for n in range(exchanges):
        messages += [
            assistant(tool_use(f"t{n}", file_path=f"src/{n}.py")),
            results(tool_result(f"t{n}", listing(1600, n))),
        ]
    tools = [{"name": "Read", "description": "Reads a file.", "input_schema": {"type": "object"}}]
    return {"model": "claude-sonnet-5", "max_tokens": 9, "system": SYSTEM, "tools": tools, "messages": messages}


async def send(hook: ContextHook, exchanges: int) -> tuple[float, int]:
    """Estimate and true size of one request, which is then reported."""
    call = f"c{exchanges}"
    told = {"litellm_call_id": call, "proxy_server_request": {"headers": {"x-claude-code-session-id": "s"}}}
    out = await hook.async_pre_call_hook(make_key(), None, body_of(exchanges) | told, "anthropic_messages")
    estimate = hook.compactor.recorder.open_call(call).estimate
    used = prompt_tokens(out, "anthropic")
    await hook.async_log_success_event({"litellm_call_id": call}, {"usage": {"prompt_tokens": used}}, None, None)
    return estimate, used


async def test_messages_are_charged_what_the_prompt_grew_by(new_hook, state_dir: Path) -> None:
    hook = new_hook(standing_instruction=False)
    sizes = [(await send(hook, n))[1] for n in range(12)]
    file = sessions_below(state_dir)[0]
    with closing(sqlite3.connect(file)) as db:
        charged = db.execute("SELECT sum(tokens), count(*) - count(tokens) FROM records").fetchone()
    assert charged == (pytest.approx(sizes[-1] - sizes[0], abs=12), 1)  # the very first message has no report before it


async def test_the_first_cut_of_a_session_is_estimated_from_what_its_messages_cost(new_hook) -> None:
    hook = new_hook(trim_at_tokens=40_000)
    seen = [await send(hook, n) for n in range(90)]
    at = next(n for n in range(1, 90) if seen[n][1] < seen[n - 1][1])
    estimate, used = seen[at]
    assert estimate == pytest.approx(used, rel=0.06)


def sessions_below(state_dir: Path) -> list[Path]:
    return list(state_dir.glob("context/*/sessions/*.db"))


@pytest.mark.parametrize("shared", [True, False])
async def test_a_count_by_another_tokenizer_is_no_base_for_an_estimate(new_hook, shared: bool) -> None:
    """A session that goes on with another family of models is priced by that family's rate."""
    hook = new_hook(standing_instruction=False)
    for n in range(8):
        await send(hook, n)
    model = "claude-sonnet-5" if shared else "gpt-5.5"
    told = {"litellm_call_id": "other", "proxy_server_request": {"headers": {"x-claude-code-session-id": "s"}}}
    body = body_of(8) | told | {"model": model}
    await hook.async_pre_call_hook(make_key(), None, body, "anthropic_messages")
    known, new = (hook.compactor.recorder.open_call("other").estimate, len(json.dumps(body_of(8))) / 3.2)
    assert (known == pytest.approx(new, rel=0.1)) is not shared


async def test_a_rate_set_for_one_request_is_not_the_next_one_s(new_hook) -> None:
    hook = new_hook(standing_instruction=False)
    estimates = []
    for session, setting in (("a", {}), ("b", {"x-openmem": "chars_per_token=0.5"}), ("c", {})):
        headers = {"x-claude-code-session-id": session} | setting
        told = {"litellm_call_id": session, "proxy_server_request": {"headers": headers}}
        await hook.async_pre_call_hook(make_key(), None, body_of(3) | told, "anthropic_messages")
        estimates.append(hook.compactor.recorder.open_call(session).estimate)
    assert estimates[0] == estimates[2] < estimates[1] / 2
