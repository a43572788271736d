"""What the agents that people use were seen to send, request by request through the hook, without the agents."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from openmem_hook.gateway import identity
from openmem_hook.gateway.hook import ContextHook
from openmem_hook.replay.provider.counting import prompt_tokens
from openmem_hook.store.sessions import unpack
from tests.clients import recording
from tests.clients.drivers import CLIENTS, Client
from tests.clients.recording import KEPT, MASK, NAMED, filled, scrubbed, traits
from tests.clients.scenario import PROMPTS
from tests.clients.session import histories, nameless
from tests.conversation import Conversation, messages_of
from tests.gateway import events, query
from tests.kit import builders as a
from tests.kit.histories import format_of
from tests.kit.prefix import broken_at, canonical
from tests.walk import normal

Json = dict[str, Any]


class Played:
    """A recorded session that went through a hook. `turns` are what was asked and what went out, by thread."""

    def __init__(self, client: Client, hook: ContextHook, folder: Path) -> None:
        self.client, self.hook, self.folder = client, hook, folder
        self.turns: dict[str, list[tuple[Json, Json]]] = defaultdict(list)
        self.beside: list[tuple[Json, Json]] = []

    async def play(self, requests: list[Json]) -> None:
        threads: dict[str, Conversation] = {}
        for n, request in enumerate(requests):
            headers, body = request["headers"], request["body"]
            thread = self.client.thread(headers)
            session = identity.session_of(headers, body).id or ""
            talk = threads.setdefault(thread, Conversation(self.hook, session))
            about = {"headers": headers, "url": "http://gateway", "method": "POST"}
            if body.get("tools"):
                out = await talk.send(body, litellm_call_id=f"call-{n}", proxy_server_request=about)
                self.turns[thread].append((body, out))
            else:
                alone = Conversation(self.hook, talk.session)
                out = await alone.send(body, litellm_call_id=f"call-{n}", proxy_server_request=about)
                self.beside.append((body, out))

    def stores(self) -> list[Path]:
        return sorted(self.folder.glob("context/*/sessions/*.db"))

    def rows(self) -> list[SimpleNamespace]:
        sql = "SELECT m.role, m.kind, m.text, m.thread, r.body FROM messages m JOIN records r USING (seq) ORDER BY seq"
        return [
            SimpleNamespace(
                role=role, kind=kind, text=text, line=(path.stem, thread), raw=orjson.loads(unpack(body, text))
            )
            for path in self.stores()
            for role, kind, text, thread, body in query(path, sql)
        ]


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
async def played(request: pytest.FixtureRequest, new_hook: Callable[..., ContextHook], state_dir: Path) -> Played:
    client: Client = request.param
    requests = [filled(held) for held in recording.read(client.name).requests]
    longest = max(prompt_tokens(held["body"], format_of(held["body"])) for held in requests)
    made = Played(client, new_hook(trim_at_tokens=int(longest * 0.9)), state_dir)
    await made.play(requests)
    return made


async def test_what_was_recorded_goes_through_trimmed_and_in_prefixes(played: Played) -> None:
    """What has to hold of each request is asserted on its way."""
    reasons = [event["reason"] for path in played.stores() for event in events(path, "trim")]
    assert {"forced", "limit"} <= set(reasons)
    assert reasons.count("forced") <= len(played.client.forced), "a second one may have nothing to gain"


async def test_the_agent_is_known_by_its_headers(played: Played) -> None:
    for request in recording.read(played.client.name).requests:
        assert identity.agent_of(request["headers"]) == played.client.install.name


async def test_threads_are_told_apart(played: Played) -> None:
    assert len(played.turns) == 3, "main agent, sub-agent, fork"
    of: dict[bytes, set[str]] = defaultdict(set)
    for thread, turns in played.turns.items():
        for asked, _ in turns:
            for message in messages_of(asked):
                of[normal(message)].add(thread)
    lines: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in played.rows():
        if len(owners := of[normal(row.raw)]) == 1:
            lines[row.line] |= owners
    assert all(len(owners) == 1 for owners in lines.values()), lines
    assert len(set().union(*lines.values())) >= 2, "a main agent may have nothing that its fork has not"


async def test_what_a_person_typed_is_told_from_what_the_client_wrote(played: Played) -> None:
    typed = [row.text for row in played.rows() if row.kind in {"typed", "mixed"}]
    said = [*PROMPTS, "/smart-compact"]
    assert [text for text in typed if not any(words in text for words in said)] == []
    assert [words for words in said if not any(words in text for text in typed)] == []


async def test_every_message_is_stored_and_once_for_each_past(played: Played) -> None:
    held = Counter(nameless(normal(row.raw)) for row in played.rows())
    asked = histories((thread, body) for thread, turns in played.turns.items() for body, _ in turns)
    assert set(asked) == set(held)
    assert held <= asked


async def test_titles_and_the_like_pass_untouched(played: Played) -> None:
    for asked, out in played.beside:
        of_a_thread = any(
            broken_at(body, asked, format_of(asked)) is None for turns in played.turns.values() for body, _ in turns
        )
        assert of_a_thread or canonical(out) == canonical(asked)


# --- the recordings themselves ------------------------------------------------------------------------------


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_recording_holds_no_words_of_the_client(client: Client) -> None:
    for request in recording.read(client.name).requests:
        for key, text in strings(request["body"]):
            if key not in NAMED and key not in recording.METADATA:
                words = re.findall(r"[^\W\d_]{3,}", MASK.sub("", KEPT.sub("", text)))
                assert not words, (key, words)


def strings(value: Any, key: str = "") -> list[tuple[str, str]]:
    if key in recording.METADATA:
        return []
    if isinstance(value, str) and value.startswith("{"):
        return strings(orjson.loads(value))
    if isinstance(value, str):
        return [(key, value)]
    if isinstance(value, dict):
        return [found for name, held in value.items() for found in strings(held, name)]
    return [found for held in value for found in strings(held, key)] if isinstance(value, list) else []


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_recording_names_all_that_its_requests_are_made_of(client: Client) -> None:
    held = recording.read(client.name)
    for request in held.requests:
        assert traits(request["headers"], filled(request["body"])) <= held.traits


SECRET = "The quick brown fox"
SAMPLE = a.body(
    a.user(a.reminder(SECRET), a.text(f"kit: please begin.\n  {SECRET}\n")),
    a.assistant(a.tool_use("toolu_1", "Read", path="/home/fox/quick.py", limit=3)),
    a.results(a.tool_result("toolu_1", f"<content>{SECRET}</content>")),
    tools=[a.tool("Read", description=SECRET)],
)


def test_scrubbing_keeps_structure_lengths_tags_and_names_but_no_words() -> None:
    headers = {"x-session-id": "s", "x-about": '{"folder": "/home/fox"}', "user-agent": "kit/1", "host": "fox"}
    made = scrubbed(headers, SAMPLE)
    assert not re.search("fox|quick", orjson.dumps(made).decode())
    assert set(made["headers"]) == {"x-session-id", "x-about", "user-agent"}
    again = filled(made["body"])
    assert traits(headers, again) == traits(headers, SAMPLE)
    assert traits(headers, made["body"]) == traits(headers, SAMPLE)
    first, call, result = again["messages"]
    assert first["content"][0]["text"].startswith("<system-reminder>")
    assert len(first["content"][1]["text"]) == len(SAMPLE["messages"][0]["content"][1]["text"])
    assert first["content"][1]["text"].startswith("kit: please begin.\n  ")
    assert call["content"][0]["name"] == "Read"
    assert call["content"][0]["input"]["limit"] == 3
    assert result["content"][0]["content"].startswith("<content>")


def test_a_recording_reads_back_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "FOLDER", tmp_path)
    made = recording.Recording(frozenset({"a", "b"}), (scrubbed({"x-session-id": "s"}, SAMPLE),) * 2)
    recording.write("kit", made)
    assert recording.read("kit") == made
    recording.learn("kit", {"c"})
    assert recording.read("kit").traits == {"a", "b", "c"}
    assert recording.read("nobody") == recording.Recording(frozenset(), ())


def test_a_trait_tells_type_role_and_tag() -> None:
    found = traits({"x-session-id": "s", "accept": "*"}, SAMPLE)
    assert "header x-session-id" in found
    assert "header accept" not in found
    assert "messages[user].content[text].text begins with <system-reminder>" in found
    assert "messages[assistant].content[tool_use].input: dict" in found
    assert "tools[custom].input_schema: schema" in found or "tools.input_schema: schema" in found
