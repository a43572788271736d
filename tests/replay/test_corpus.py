"""The readers against real sessions: nothing lost, every body legal, prompts on a branch grow."""

from __future__ import annotations

import json
import lzma
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from openmem_hook.gateway.prices import shipped_costs
from openmem_hook.replay import ReplayRequest, Transcript, growth, read, requests
from openmem_hook.replay.summary import CLOSE, summary
from openmem_hook.replay.trial import run
from tests.kit.prefix import check

CORPUS = Path(os.environ.get("OPENMEM_CORPUS") or Path(__file__).parents[3] / "shared/corpus")
FILES = sorted(CORPUS.glob("*/*.jsonl.xz"))[::2]
"""Every other one: all of them go through the hook in `tests/gateway/test_corpus.py`."""
CLAUDE = [path for path in FILES if path.parent.name == "claude-code"]

pytestmark = pytest.mark.skipif(not FILES, reason=f"no corpus at {CORPUS}")


def each(paths: list[Path]) -> Any:
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.name.split(".")[0])


@cache
def replay(path: Path) -> tuple[Transcript, tuple[ReplayRequest, ...]]:
    session = read(path)
    return session, tuple(requests(session, breakpoints=False))


@cache
def records(path: Path) -> list[dict[str, Any]]:
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@each(FILES)
def test_every_kind_of_record_is_known(path: Path) -> None:
    session, _ = replay(path)
    known = ("record system", "record event context_compacted", "synthetic", "token count of", "silent clearing")
    assert [reason for reason in session.omissions if not reason.startswith(known)] == []


@each(FILES)
def test_every_tenth_request_and_the_last_of_each_branch_is_legal(path: Path) -> None:
    session, made = replay(path)
    last = {request.step.branch: request.index for request in made}
    for request in requests(session):
        if request.index % 10 == 0 or request.index in last.values():
            assert check(request.body, request.format) == [], request.index


@each(FILES)
def test_what_the_client_sent_after_its_compaction_is_legal_too(path: Path) -> None:
    _, made = replay(path)
    for request in made[::10]:
        key = "input" if request.format == "responses" else "messages"
        assert check(request.body | {key: request.step.actual_messages}, request.format) == [], request.index


@each(FILES)
def test_a_request_begins_with_the_one_it_grew_from_and_its_answer(path: Path) -> None:
    _, made = replay(path)
    for request in made:
        if request.step.parent is None:
            continue
        before = made[request.step.parent]
        whole = [*before.messages, *before.step.reply]
        if request.format == "anthropic":
            assert all(a is b for a, b in zip(whole, request.messages, strict=False))
            assert len(request.messages) == len(whole) + 1
        else:
            assert request.messages[: len(before.messages)] == before.messages
            assert len(request.messages) >= len(whole)


@each(FILES)
def test_requests_of_one_branch_stand_in_one_line(path: Path) -> None:
    _, made = replay(path)
    tips: dict[str, int] = {}
    for request in made:
        assert request.step.branch not in tips or tips[request.step.branch] == request.step.parent
        tips[request.step.branch] = request.index


@each(CLAUDE)
def test_every_response_has_one_request_with_its_recorded_prompt(path: Path) -> None:
    _, made = replay(path)
    wanted: dict[str, int] = {}
    for record in records(path):
        message = record.get("message") or {}
        if record["type"] == "assistant" and message["model"] != "<synthetic>":
            usage = message["usage"]
            wanted[message["id"]] = sum(usage[key] or 0 for key in usage if key in PROMPT)
    assert {r.step.ids[0]: r.step.usage.prompt_tokens for r in made if r.step.usage} == wanted
    assert len(made) == len(wanted)


PROMPT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


@each(CLAUDE)
def test_the_last_request_holds_every_call_and_its_result(path: Path) -> None:
    _, made = replay(path)
    held = json.dumps([made[-1].messages, made[-1].step.reply])
    blocks = [
        block
        for record in records(path)
        if isinstance((record.get("message") or {}).get("content"), list)
        for block in record["message"]["content"]
    ]
    calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
    newest = {block.get("id") for message in made[-1].step.reply for block in message["content"]}
    answered = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"} - newest
    assert [id_ for id_ in calls if f'"id": "{id_}"' not in held] == []
    assert [id_ for id_ in calls if id_ in answered and f'"tool_use_id": "{id_}"' not in held] == []


@each(FILES)
def test_recorded_growth_fits_the_messages_in_between(path: Path) -> None:
    """Wrong paths would show at once: in all sessions 2 to 6 characters cost a token."""
    _, made = replay(path)
    steps = [step for step in growth(made) if step.tokens > 0]
    chars = sum(len(json.dumps(_visible(step.messages), ensure_ascii=False)) for step in steps)
    assert 2 < chars / sum(step.tokens for step in steps) < 6
    assert len(steps) > 0.85 * (len(made) - 1)


def _visible(value: Any) -> Any:
    if isinstance(value, dict):
        hidden = ("signature", "encrypted_content")
        return {key: _visible(inner) for key, inner in value.items() if key not in hidden}
    return [_visible(inner) for inner in value] if isinstance(value, list) else value


# --- sent twice: without the plugin and with it ---------------------------------------------------------------
# The shortest ones; `openmem replay` shows the same of all in some minutes.


@each(sorted(FILES, key=lambda path: path.stat().st_size)[:5])
def test_sent_again_it_is_legal_cheaper_and_cached_as_it_was_recorded(path: Path) -> None:
    session, _ = replay(path)
    one = summary(run(session, {}, shipped_costs(), lambda *_: None))
    check_, before, after = one["cache_check"], one["without"], one["with"]
    assert abs(check_["recorded"] - check_["simulated"]) <= CLOSE, check_
    assert (before["refused"], after["refused"]) == (0, 0)
    assert after["misses"] <= before["misses"] + one["trims"]
    assert after["tokens"] < before["tokens"]
    assert after["dollars"] < before["dollars"]
    assert one["estimate_error"]["all"]["median"] < 0.01
