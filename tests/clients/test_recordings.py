"""What the agents that people use were seen to send, request by request through the hook, without the agents."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest

from clients import recording
from clients.drivers import CLIENTS, Client
from clients.oracles import goes_on, histories, marks, nameless, pointers, rewritten, same
from clients.recording import KEPT, MASK, TAG, WORD, Scrubber, filled, traits
from clients.scenario import PROMPTS
from clients.session import Row, rows_of
from openmem_hook.gateway.hook import ContextHook
from openmem_hook.gateway.session import agent_of, session_of
from openmem_hook.replay.provider.counting import prompt_tokens
from tests.harness.conversation import Conversation, messages_of
from tests.harness.gateway_process import events
from tests.kit import builders as a
from tests.kit.histories import format_of
from tests.kit.prefix import normal

Json = dict[str, Any]

SHARE = 0.75
"""The limit, as a share of the longest prompt that a client sent."""


class Playback:
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
            session = session_of(headers, body).id or ""
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

    def rows(self) -> list[Row]:
        return rows_of(self.stores())


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
async def played(request: pytest.FixtureRequest, new_hook: Callable[..., ContextHook], state_dir: Path) -> Playback:
    client: Client = request.param
    requests = [filled(held) for held in recording.read(client.name).requests]
    longest = max(tokens(held["body"]) for held in requests)
    made = Playback(client, new_hook(trim_at_tokens=int(longest * SHARE)), state_dir)
    await made.play(requests)
    return made


def tokens(body: Json) -> int:
    return prompt_tokens(body, format_of(body))


async def test_what_was_recorded_goes_through_trimmed_and_in_prefixes(played: Playback) -> None:
    """What has to hold of each request is asserted on its way."""
    reasons = [event["reason"] for path in played.stores() for event in events(path, "trim")]
    assert {"forced", "limit"} <= set(reasons)
    assert reasons.count("forced") <= len(played.client.forced), "a second one may have nothing to gain"
    longest = max(tokens(asked) for turns in played.turns.values() for asked, _ in turns)
    assert all(tokens(out) <= longest * SHARE for turns in played.turns.values() for _, out in turns)


async def test_the_client_s_breakpoints_stay_where_it_set_them_but_at_a_trim(played: Playback) -> None:
    """Frozen messages have none: where the newest one is frozen, its breakpoint goes to the one before."""
    for turns in played.turns.values():
        shown = list[str]()
        for asked, out in turns:
            trimmed, shown = set(pointers(out)) - set(shown), pointers(out)
            kept = len(marks(out)) <= len(marks(asked)) and bool(marks(out)) is bool(marks(asked))
            assert kept if trimmed else marks(out) == marks(asked)


async def test_the_agent_is_known_by_its_headers(played: Playback) -> None:
    for request in recording.read(played.client.name).requests:
        assert agent_of(request["headers"]) == played.client.install.name


async def test_threads_are_told_apart(played: Playback) -> None:
    assert len(played.turns) == 3, "main agent, sub-agent, fork"
    of: dict[bytes, set[str]] = defaultdict(set)
    for thread, turns in played.turns.items():
        for asked, _ in turns:
            for message in messages_of(asked):
                of[normal(message)].add(thread)
    lines: dict[str, set[str]] = defaultdict(set)
    for row in played.rows():
        if len(owners := of[normal(row.raw)]) == 1:
            lines[row.line] |= owners
    assert all(len(owners) == 1 for owners in lines.values()), lines
    assert len(set().union(*lines.values())) >= 2, "a main agent may have nothing that its fork has not"


async def test_what_a_person_typed_is_told_from_what_the_client_wrote(played: Playback) -> None:
    typed = [row.text for row in played.rows() if row.kind in {"typed", "mixed"}]
    said = [*PROMPTS, "/smart-compact"]
    assert [text for text in typed if not any(words in text for words in (*said, *played.client.own))] == []
    assert [words for words in said if not any(words in text for text in typed)] == []


async def test_every_message_is_stored_and_once_for_each_past(played: Playback) -> None:
    held = Counter(nameless(normal(row.raw)) for row in played.rows())
    asked = histories((thread, body) for thread, turns in played.turns.items() for body, _ in turns)
    assert set(asked) == set(held)
    assert held <= asked


async def test_titles_pass_untouched_and_compactions_as_their_thread_does(played: Playback) -> None:
    for asked, out in played.beside:
        assert same(asked, out) or any(goes_on(turn, asked, out) for turns in played.turns.values() for turn in turns)


# --- the recordings themselves ------------------------------------------------------------------------------


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_recording_holds_no_words_of_the_client(client: Client) -> None:
    """Only names without a space, tags in front of texts, and what the plugin itself looks for."""
    for text in strings([*recording.read(client.name).requests]):
        bare = MASK.sub("", KEPT.sub("", TAG.sub("", text, count=1)))
        assert WORD.fullmatch(text) or not re.search(r"[^\W\d_]{2,}", bare), text
        assert not re.search(r"/(?:home|root|tmp|work|usr|mnt)\b(?!>)", bare), text


def strings(value: Any) -> Iterator[str]:
    """All strings, keys and what is JSON inside strings too."""
    if isinstance(value, dict):
        for name, held in value.items():
            yield from (name, *strings(held))
    elif isinstance(value, list):
        for held in value:
            yield from strings(held)
    elif isinstance(value, str):
        yield from strings(orjson.loads(value)) if value.startswith("{") else (value,)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_recording_has_the_client_s_own_compaction(client: Client) -> None:
    threads: dict[str, list[Json]] = defaultdict(list)
    for request in recording.read(client.name).requests:
        if request["body"].get("tools"):
            threads[client.thread(request["headers"])].append(request["body"])
    assert any(
        rewritten(before, after, format_of(after)) for bodies in threads.values() for before, after in pairwise(bodies)
    )


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_recording_names_all_that_its_requests_are_made_of(client: Client) -> None:
    held = recording.read(client.name)
    for request in held.requests:
        assert traits(request["headers"], filled(request["body"])) <= held.traits


SECRET = "The quick brown fox"
ID = "01a22e2d-bb46-7621-8c79-aafb1672c245"
SAMPLE = a.body(
    a.user(a.reminder(SECRET), a.text(f"kit: please begin.\n  {SECRET}\n")),
    a.assistant(a.tool_use("toolu_1", "Read", path="/home/fox/quick.py", status="quick fox", limit=3)),
    a.results(a.tool_result("toolu_1", f'{{"name": "{SECRET}"}}')),
    system=[a.text(f"<{SECRET}> <quick-tag>")],
    tools=[a.tool("Read", description=SECRET)],
    metadata={"user_id": f'{{"session_id": "{ID}", "folders": ["/home/fox"], "at": 1796073678736}}', "told": SECRET},
)
HEADERS = {
    "x-session-id": ID,
    "x-codex-turn-metadata": f'{{"folders": ["/home/fox"], "thread_id": "{ID}"}}',
    "x-about": SECRET,
    "x-api-key": "quick",
    "user-agent": "kit/1 (the quick fox; x64)",
    "host": "fox",
}


def test_scrubbing_keeps_structure_lengths_and_names_but_no_words() -> None:
    made = Scrubber().request(HEADERS, SAMPLE)
    assert not re.search("fox|quick|1796|01a2", orjson.dumps(made).decode())
    assert set(made["headers"]) == {"x-session-id", "x-codex-turn-metadata", "x-about", "user-agent"}
    assert made["headers"]["user-agent"] == "kit/1"
    again = filled(made["body"])
    assert traits(HEADERS, again) == traits(HEADERS, SAMPLE)
    assert traits(made["headers"], made["body"]) == traits(HEADERS, SAMPLE)
    first, call, _ = again["messages"]
    assert first["content"][0]["text"].startswith("<system-reminder>")
    assert len(first["content"][1]["text"]) == len(SAMPLE["messages"][0]["content"][1]["text"])
    assert first["content"][1]["text"].startswith("kit: please begin.\n  ")
    assert call["content"][0]["name"] == "Read"
    assert call["content"][0]["input"]["limit"] == 3


def test_a_list_called_input_is_no_argument_of_a_call() -> None:
    body = {"input": [{"type": "message", "role": "user", "content": SECRET}]}
    (item,) = Scrubber().request({}, body)["body"]["input"]
    assert (item["type"], item["role"]) == ("message", "user")


def test_equal_texts_and_ids_stay_equal_in_a_session() -> None:
    scrubber = Scrubber()
    one, other = scrubber.request(HEADERS, SAMPLE), scrubber.request(HEADERS, SAMPLE)
    assert one == other
    session = one["headers"]["x-session-id"]
    assert session != ID
    assert len(session) == len(ID)
    assert orjson.loads(one["body"]["metadata"]["user_id"])["session_id"] == session
    assert orjson.loads(one["headers"]["x-codex-turn-metadata"])["thread_id"] == session


def test_a_recording_reads_back_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "FOLDER", tmp_path)
    made = recording.Recording(frozenset({"a", "b"}), (Scrubber().request(HEADERS, SAMPLE),) * 2)
    recording.write("kit", made)
    assert recording.read("kit") == made
    recording.learn("kit", {"c"})
    assert recording.read("kit").traits == {"a", "b", "c"}
    assert recording.read("nobody") == recording.Recording(frozenset(), ())


def test_a_trait_tells_type_role_and_tag() -> None:
    found = traits(HEADERS, SAMPLE)
    assert "header x-about" in found
    assert "header host" not in found
    assert "messages[user].content[text].text begins with <system-reminder>" in found
    assert "messages[assistant].content[tool_use].input: dict" in found
    assert "tools.input_schema: schema" in found
