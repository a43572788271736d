"""L9 for the tools: whoever calls finds what is theirs, and can't tell what is another's from what isn't there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from openmem_hook.gateway.tenant import Authentication, tenant_of
from openmem_hook.store import names
from openmem_hook.tools import TOOLS, Caller
from tests.conftest import make_key
from tests.harness.conversation import Conversation
from tests.harness.filled_store import FilledStore
from tests.kit.builders import assistant, results, tool_result, user

CANARY = "canary-{}-7f3a9"
LONG = "\n".join(f"line {n} of a long result" for n in range(3_000))


@pytest.fixture
def shelf(state_dir: Path) -> Iterator[FilledStore]:
    made = FilledStore(state_dir / "context")
    yield made
    made.close()


def body(canary: str):
    call = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"path": canary}}
    long = results(tool_result("toolu_1", f"{canary} in a result\n{LONG}"))
    return {
        "model": "claude-sonnet-4-5",
        "max_tokens": 100,
        "tools": [{"name": "Read", "input_schema": {"type": "object"}}],
        "messages": [user(f"{canary} typed"), assistant(call), long, assistant(f"{canary} said"), user("go on")],
    }


def caller(key: SimpleNamespace, mode: str = "user") -> Caller:
    return Caller(names.tenant_folder(tenant_of(key, mode, Authentication())))


def everything(shelf: FilledStore, who: Caller, canary: str, ids: list[tuple[str, str]]) -> str:
    """All that this caller is told when it asks for this canary in every way, also with ids of whomever."""
    asked: list[tuple[str, dict[str, object]]] = [
        ("smart_compact_search", {"query": canary, "role": "all", "context": 5, "limit": 50}),
        ("smart_compact_search", {"pattern": "canary-.*", "role": "all"}),
        ("context_status", {}),
    ]
    for session, result in ids:
        asked += [
            ("smart_compact_search", {"query": canary, "session_id": session, "role": "all"}),
            ("smart_compact_sql", {"session_id": session, "sql": "SELECT text FROM lines"}),
            ("smart_compact_get", {"session_id": session, "seq": 1}),
            ("smart_compact_get", {"id": result}),
            ("smart_compact_get", {"id": result, "session_id": session}),
        ]
    return "\n".join(shelf.tools.call(who, tool, given).text for tool, given in asked)


async def stored(hook, key: SimpleNamespace, canary: str, session: str = "the same id") -> tuple[str, str]:
    """Has a conversation; the session's name and the id of its shortened result."""
    talk = Conversation(hook, session, key=key)
    sent = await talk.send(body(canary))
    result = re.search(r"smart_compact_get\(id=\\?\"(\w{16})", str(sent["messages"]))
    assert result is not None
    tenant = tenant_of(key, hook.base.settings.tenant, Authentication())
    return names.session_name(tenant, session), result[1]


async def test_ten_tenants_at_once_find_their_own_and_nobody_elses(new_hook, shelf: FilledStore) -> None:
    keys = [make_key(f"user-{n}", token=f"{n:x}" * 64) for n in range(7)]
    keys += [make_key(None, token="e" * 64), make_key(None, token="f" * 64)]
    keys += [make_key("default_user_id", token="litellm_proxy_master_key")]
    hook = new_hook()
    canaries = [CANARY.format(n) for n in range(len(keys))]
    ids = await asyncio.gather(*(stored(hook, key, canary) for key, canary in zip(keys, canaries, strict=True)))
    assert len(set(ids)) == len(keys)
    for at, key in enumerate(keys):
        told = await asyncio.to_thread(everything, shelf, caller(key), canaries[at], list(ids))
        assert set(re.findall(r"canary-\d+-7f3a9", told)) == {canaries[at]}
        own = set(ids[at])
        others = {part for pair in ids for part in pair} - own
        repeated = re.findall(
            r"\b[0-9a-f]{16}\b", re.sub(r"(no session|no shortened result) \w+|(begin|end) \w+", "", told)
        )
        assert not others & set(repeated), "another tenant's id in a list"


@pytest.mark.parametrize("tool", ["smart_compact_search", "smart_compact_sql", "smart_compact_get"])
async def test_not_allowed_looks_like_not_there(tool: str, new_hook, shelf: FilledStore) -> None:
    session, result = await stored(new_hook(), make_key("alice"), CANARY.format(1))
    bob = caller(make_key("bob", token="b" * 64))
    given = {
        "smart_compact_search": {"query": "x"},
        "smart_compact_sql": {"sql": "SELECT 1"},
        "smart_compact_get": {"seq": 1},
    }
    answers = {
        name: shelf.tools.call(bob, tool, {**given[tool], "session_id": name}) for name in (session, "0123456789abcdef")
    }
    assert len({answer.text.replace(name, "ID") for name, answer in answers.items()}) == 1
    missing = [shelf.tools.call(bob, "smart_compact_get", {"id": name}) for name in (result, "0123456789abcdef")]
    assert missing[0].text.replace(result, "ID") == missing[1].text.replace("0123456789abcdef", "ID")


async def test_a_team_shares_where_the_operator_wants_it(new_hook, shelf: FilledStore) -> None:
    hook = new_hook(tenant="team")
    mate = make_key("mate", token="b" * 64, team_id="red")
    canary = CANARY.format(3)
    ids = [await stored(hook, make_key("alice", team_id="red"), canary)]
    told = everything(shelf, caller(mate, "team"), canary, ids)
    assert f"{canary} typed" in told
    stranger = caller(make_key("mate", token="b" * 64, team_id="blue"), "team")
    assert "typed" not in everything(shelf, stranger, canary, ids)
    assert "typed" not in everything(shelf, caller(mate, "user"), canary, ids)


async def test_a_rotated_key_keeps_what_its_user_has_and_nothing_without_a_user(new_hook, shelf: FilledStore) -> None:
    hook, canary = new_hook(), CANARY.format(4)
    ids = [await stored(hook, make_key("alice", token="a" * 64), canary)]
    assert f"{canary} typed" in everything(shelf, caller(make_key("alice", token="c" * 64)), canary, ids)
    ids = [await stored(hook, make_key(None, token="a" * 64), canary)]
    assert "typed" not in everything(shelf, caller(make_key(None, token="c" * 64)), canary, ids)


def test_asking_makes_nothing_on_disk(shelf: FilledStore) -> None:
    everything(shelf, caller(make_key("nobody")), "x", [("0123456789abcdef", "0123456789abcdef")])
    assert not list(shelf.pool.folder.rglob("*")) if shelf.pool.folder.exists() else True


def test_no_tool_takes_a_tenant_from_its_arguments(shelf: FilledStore) -> None:
    shelf.put(["needle"], owner="user:alice")
    for name in TOOLS:
        assert shelf.ask(name, owner="user:bob", tenant="user:alice").is_error
    assert "needle" not in shelf.search("needle", owner="user:bob").text
