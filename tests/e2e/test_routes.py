"""Who calls, by which route, and what for: identities, titles, sub-agents, forks, pass-through, forced trims."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from openmem_hook.compaction.wording import NOTE
from tests.harness.gateway_process import IDENTITIES, Gateway, Upstream, bearer, events, query, stored, texts, until
from tests.harness.tracked_session import TrackedSession
from tests.kit.builders import reminder, text
from tests.kit.clients import ClaudeCode

pytestmark = pytest.mark.e2e

COMMAND = (Path(__file__).parents[2] / "deploy/commands/smart-compact.md").read_text().rpartition("---\n")[2]
FORCED: dict[str, tuple[str, list[Any]]] = {
    "typed, with a reminder": ("claude", [reminder("Be brief."), text("/smart-compact")]),
    "a command's record, with its file's text": (
        "claude",
        [
            text("<command-message>smart-compact</command-message>\n<command-name>/smart-compact</command-name>"),
            text(COMMAND),
        ],
    ),
    "typed in Codex": ("codex", []),
    "typed in OpenCode": ("opencode", []),
}


class PassThrough(ClaudeCode):
    """Claude Code with the gateway's pass-through route as its provider."""

    path = "/anthropic/v1/messages?beta=true"


@pytest.mark.parametrize("stream", [True, False])
async def test_the_pass_through_route_is_trimmed_too(follow, stream: bool) -> None:
    session = follow(PassThrough, f"tag-through-{stream}", model="claude-sonnet-5", stream=stream)
    await session.turns(3)
    session.holds()
    assert session.events("trim")


@pytest.mark.parametrize(("client", "content"), FORCED.values(), ids=FORCED)
async def test_a_person_asks_for_a_trim_once(follow, client: str, content: list[Any], request) -> None:
    session = follow(client, f"tag-forced-{abs(hash(request.node.name))}")
    await session.turns(2, "calls:5 size:1500")
    before = session.answered[-1]["prompt_tokens"]
    if content:
        session.agent.history.append({"role": "user", "content": content})
        await session.agent.resume()
    else:
        await session.agent.say("/smart-compact")
    assert session.answered[-1]["prompt_tokens"] < before / 2
    await session.turns(1, "calls:5 size:1500")
    session.holds()
    assert [event["reason"] for event in session.events("trim")] == ["forced"]
    assert len(session.events("forced")) == 1


async def test_identities_with_the_same_session_id_share_nothing(follow, gateway: Gateway, upstream: Upstream) -> None:
    """Same header, same words, same tool calls: only what the tools returned tells the four apart."""
    running = {who: follow("claude", "tag-same", who, run=secretive(who)) for who in IDENTITIES}
    await asyncio.gather(*(session.turns(3) for session in running.values()))
    paths = gateway.sessions_with("tag-same")
    assert len({path.parent.parent for path in paths}) == len(IDENTITIES)
    owners = {}
    for path in paths:
        held = " ".join(texts(path))
        (owners[path],) = [who for who in IDENTITIES if f"secret-of-{who}" in held]
        assert stored(path) == running[owners[path]].sent()
        assert events(path, "trim")
    assert sorted(owners.values()) == sorted(IDENTITIES)
    for body in upstream.bodies:
        sent = orjson.dumps(body).decode()
        if "tag-same" in sent:
            assert len([who for who in IDENTITIES if f"secret-of-{who}" in sent]) <= 1
            assert {p.stem for p in paths if p.stem in sent} <= {
                p.stem for p in paths if f"secret-of-{owners[p]}" in sent
            }


def secretive(who: str) -> Any:
    """Tools whose results hold a word of their owner's."""
    return lambda name, arguments: f"secret-of-{who}\n" + "a line of output\n" * 90


async def test_a_history_with_another_identity_s_cut_is_cut_anew(follow, gateway: Gateway, upstream: Upstream) -> None:
    """Bob sends, word for word, what Alice sent: her cut's anchor is in his request."""
    mine = follow("claude", "tag-stolen", "alice")
    await mine.turns(3)
    (hers,) = [event["cut"] for event in mine.events("trim")]
    headers = {**mine.agent.headers(), **bearer("bob")}
    answer = await mine.agent.http.post(
        mine.agent.path, json=mine.agent.bodies[-1] | {"stream": False}, headers=headers
    )
    assert answer.status_code == 200
    his = [
        path for path in gateway.sessions() if path != mine_path(mine, hers) and "tag-stolen" in " ".join(texts(path))
    ]
    assert len(his) == 1
    sent = orjson.dumps(upstream.bodies[-1]).decode()
    assert his[0].stem in sent
    assert mine_path(mine, hers).stem not in sent


def mine_path(session: TrackedSession, cut: str) -> Path:
    """The file that holds this cut."""
    found = [p for p in session.gateway.sessions() if query(p, f"SELECT 1 FROM edits WHERE name = '{cut}'")]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("client", ["claude", "opencode"])
async def test_titles_beside_a_session_pass_untouched(
    follow, gateway: Gateway, upstream: Upstream, client: str
) -> None:
    session = follow(client, f"tag-titled-{client}")

    async def ask(number: int) -> Any:
        agent = session.agent
        words = f"tag-title-{client}-{number}: five words for a talk that begins: {session.tag} turn 0, please go on"
        body = {"model": agent.model, "max_tokens": 60, "messages": [{"role": "user", "content": words}]}
        if client == "claude":
            body["system"] = [text("Name this conversation.")]
        else:
            body["messages"].insert(0, {"role": "system", "content": "Name this conversation."})
        headers = {**agent.headers(), **agent.extra_headers}
        answer = await agent.http.post(agent.path, json=body, headers=headers)
        assert answer.status_code == 200
        (sent,) = upstream.sent(f"tag-title-{client}-{number}:")
        assert sent["messages"] == body["messages"]
        assert sent.get("system") == body.get("system")

    async def ask_now_and_then() -> None:
        for number in range(12):
            await ask(number)
            await asyncio.sleep(0.05)

    await asyncio.gather(ask_now_and_then(), session.turns(3))
    session.holds()
    assert not gateway.sessions_with("tag-title-")


async def test_sub_agents_of_one_session_are_threads_of_their_own(follow) -> None:
    main = follow("claude", "tag-main")
    subs = [
        follow(
            "claude",
            f"tag-sub-{n}",
            session="tag-main",
            headers={**bearer("alice"), "x-claude-code-agent-id": f"sub-{n}"},
        )
        for n in range(2)
    ]
    together = [main, *subs]
    await asyncio.gather(*(session.turns(3) for session in together))
    assert {session.store for session in together} == {main.store}
    names = [name.split("-") for (name,) in query(main.store, "SELECT DISTINCT thread FROM messages")]
    assert sorted(kind for kind, _ in names) == ["agent", "agent", "main"]
    assert sorted(number for _, number in names) == ["1", "2", "3"]
    assert sum(len(session.missed()) for session in together) == len(main.events("trim")) >= 3
    assert stored(main.store) == main.sent() + subs[0].sent() + subs[1].sent()
    for session in together:
        session.accepted()
        session.bounded()


async def test_a_fork_under_a_new_session_id_finds_its_parent_s_cut(follow, gateway: Gateway) -> None:
    parent = follow("claude", "tag-parent")
    await parent.turns(3)
    asked = len(parent.answered)
    twin = parent.agent.fork("tag-twin")
    await twin.say("tag-parent, now another way\n[[calls:3 size:1500]]")
    paths = gateway.sessions_with("tag-parent")
    trims = [event for path in paths for event in events(path, "trim")]
    assert len(paths) == 2
    assert asked not in parent.missed()
    assert len(parent.answered) == asked + 4
    assert len(parent.missed()) == len(trims)


@pytest.mark.parametrize("client", ["claude", "codex", "opencode"])
async def test_the_gateway_s_own_report_shows_what_was_saved(follow, gateway: Gateway, client: str) -> None:
    session = follow(client, f"tag-saving-{client}")
    await session.turns(3)
    rows = gateway.folder / "spend.jsonl"

    def mine() -> list[Any]:
        told = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
        return [row["compression_savings"] for row in told if row["session"] == session.agent.session]

    until(lambda: len(mine()) == len(session.answered), "spend rows")
    saved = [row for row in mine() if row]
    assert {row["source"] for row in saved} == {"openmem"}
    assert all(row["tokens_saved"] == row["tokens_before"] - row["tokens_after"] > 0 for row in saved)
    assert 0 < len(saved) < len(mine())
    assert sum(row["tokens_saved"] for row in saved) == sum(usage["saved"] for usage in session.events("usage"))


async def test_the_note_is_sent_once_and_nothing_of_ours_besides(follow, upstream: Upstream) -> None:
    """Keys of the request are the client's; its metadata is as it was."""
    session = follow("claude", "tag-keys", stream=False)
    await session.turns(1, "calls:2 size:300")
    (first,) = session.agent.bodies[:1]
    sent = upstream.sent("tag-keys")[0]
    assert set(sent) <= set(first)
    assert sent["metadata"] == first["metadata"]
    assert json.dumps(sent).count(json.dumps(NOTE)) == 1
    assert sent["system"][:-1] == first["system"]
