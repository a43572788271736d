"""A gateway that notes what it is asked, and a client's session at it with what must hold of every one."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import orjson

from clients.drivers import Answer, Client, Place, Way
from clients.oracles import (
    cacheable,
    call_ids,
    goes_on,
    histories,
    marks,
    nameless,
    not_said,
    pointers,
    rewritten,
    same,
)
from clients.recording import LEARN, learn, read, traits
from openmem_hook.store.session import unpack
from tests.harness.gateway_process import UPSTREAM_KEY, Gateway, Upstream, configuration, events, key_of, query, serving
from tests.harness.tracked_session import SLACK, messages_of
from tests.kit.builders import Format
from tests.kit.mcp_client import ACCEPT, PATH
from tests.kit.prefix import broken_at, normal
from tests.kit.provider import running
from tests.kit.provider_state import Reply

Json = dict[str, Any]

SUMMARY = "Numbers were counted, and that was all."
"""What the scripted model answers a client that compacts by itself."""
NOTE_CALLS = """
import json
from pathlib import Path
from litellm.integrations.custom_logger import CustomLogger

class Record(CustomLogger):
    async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
        asked = data.get("proxy_server_request")
        if asked and call_type in {"anthropic_messages", "acompletion", "aresponses"}:
            call = data["litellm_call_id"]
            of_gateway = {"metadata"} if call_type == "acompletion" else set()
            body = {k: v for k, v in asked["body"].items() if not k.startswith("litellm_") and k not in of_gateway}
            line = {"call": call, "headers": dict(asked["headers"]), "body": body}
            with Path(__file__).with_name("asked.jsonl").open("a") as file:
                file.write(json.dumps(line, default=str) + "\\n")
            data["extra_headers"] = {**(data.get("extra_headers") or {}), "x-kit-call": call}
        return data

calls = Record()
"""
"""A callback that notes each request as the client sent it, and names it to the provider. Where the gateway keeps its
own notes in the body, it leaves them out."""


class RecordingProvider(Upstream):
    """The strict provider, noting with each request its body and the gateway's name for it."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies = deque()

    def handle(self, fmt: Format, raw: bytes, headers: dict[str, str], now: float) -> Reply:
        reply = super().handle(fmt, raw, headers, now)
        self.log[-1] |= {"call": headers.get("x-kit-call", ""), "body": self.bodies[-1]}
        return reply


@contextlib.contextmanager
def noting(folder: Path, trim_at: int) -> Iterator[tuple[Gateway, RecordingProvider]]:
    """A gateway with the models that clients ask for, and the provider behind it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "record.py").write_text(NOTE_CALLS)
    provider = RecordingProvider()
    with running(provider, clock=lambda: 0.0) as provider.address:
        config = configuration(provider.address, trim_at_tokens=trim_at)
        openai = {"api_base": f"{provider.address}/v1", "api_key": UPSTREAM_KEY}
        anthropic = {"api_base": provider.address, "api_key": UPSTREAM_KEY}
        served = {"anthropic/claude-sonnet-5": anthropic, "anthropic/claude-haiku-4-5": anthropic}
        served |= {"openai/gpt-5.5": openai, "openai/local": openai}
        config["model_list"] = [
            {
                "model_name": model.split("/")[1],
                "litellm_params": {"model": model, **behind},
                "model_info": {"max_input_tokens": 200_000},
            }
            for model, behind in served.items()
        ]
        config["litellm_settings"]["callbacks"].insert(0, "record.calls")
        with serving(Gateway(folder, config)) as gateway:
            yield gateway, provider


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: its headers, what the client asked, what the provider got, and the provider's note about it."""

    thread: str
    headers: Json
    asked: Json
    sent: Json
    note: Json


@dataclass(frozen=True, slots=True)
class Row:
    """A stored message: its line of history, what it was taken for, its text, the client's own JSON."""

    line: str
    kind: str
    text: str
    raw: Any


class Session:
    """A client at work in a folder of its own. `say` runs it once; the rest looks at what that left behind."""

    def __init__(self, client: Client, gateway: Gateway, provider: RecordingProvider, folder: Path) -> None:
        self.client, self.gateway, self.provider = client, gateway, provider
        for name in ("home", "project"):
            (folder / name).mkdir(parents=True)
        self.place = Place(folder / "home", folder / "project", gateway.address, key_of("alice"))
        self.id = ""
        self.said: list[str] = []
        self.begun = len(provider.log)
        self.logged = gateway.log.stat().st_size
        self.notes = gateway.folder / "asked.jsonl"
        self.noted = self.notes.stat().st_size if self.notes.exists() else 0
        self.before = set(gateway.sessions())

    def say(self, prompt: str = "", way: Way | None = None) -> Answer:
        """Runs the client with this prompt, the first time anew and then as a resumed session."""
        way = way or (self.client.resume if self.id else self.client.new)
        self.said += [way.prompt or prompt, *way.files.values()]
        answer = self.client.run(self.place, way, prompt, self.id)
        assert answer.code == 0, f"exit code {answer.code}: {answer.output[-2000:]}"
        assert answer.session, f"no session: {answer.output[-2000:]}"
        self.id = self.id or answer.session
        return answer

    def work(self, words: str, calls: int, before: str = "") -> Answer:
        """A prompt that makes the model run the client's shell so many times."""
        answer = self.say(f"{words}\n{before}[[calls:{calls} size:6000 tool:{self.client.shell} lead:1]]")
        assert re.fullmatch(rf"Done after {calls} exchanges\.(?: Result: .*)?", answer.text, re.DOTALL), answer.text
        return answer

    def compact(self) -> None:
        """The client's own compaction, with a summary that the scripted model gives it."""
        self.provider.order({"answers": [{"text": f"<summary>{SUMMARY}</summary>"}]})
        self.say(way=self.client.native)
        assert not self.provider.orders.answers, "the client asked for no summary"

    # --- what is there -----------------------------------------------------------------------------------

    @property
    def requests(self) -> list[Json]:
        return self.provider.log[self.begun :]

    def asked(self) -> dict[str, Json]:
        """What the gateway was asked, by its own name for the call."""
        with self.notes.open("rb") as file:
            file.seek(self.noted)
            return {line["call"]: line for line in map(orjson.loads, file)}

    def every(self) -> list[Turn]:
        """All requests, in the order in which they reached the provider."""
        asked = self.asked()
        return [
            Turn(self.client.thread(line["headers"]), line["headers"], line["body"], note["body"], note)
            for note in self.requests
            for line in [asked[note["call"]]]
        ]

    def turns(self, *, auxiliary: bool = False) -> list[Turn]:
        """Requests of threads, or those beside them: without tools and not of a conversation."""
        return [turn for turn in self.every() if bool(turn.asked.get("tools")) is not auxiliary]

    def threads(self) -> dict[str, list[Turn]]:
        found: dict[str, list[Turn]] = defaultdict(list)
        for turn in self.turns():
            found[turn.thread].append(turn)
        return found

    def pairs(self) -> Iterator[tuple[Turn, Turn]]:
        for turns in self.threads().values():
            yield from pairwise(turns)

    def stores(self) -> list[Path]:
        return [path for path in self.gateway.sessions() if path not in self.before]

    def events(self, kind: str) -> list[Json]:
        return [event for path in self.stores() for event in events(path, kind)]

    def rows(self) -> list[Row]:
        """All that is stored of it."""
        return rows_of(self.stores())

    # --- what must hold ----------------------------------------------------------------------------------

    def holds(self) -> None:
        self.accepted()
        self.bounded()
        self.cached()
        self.unmixed()
        self.untouched()
        self.kept()
        self.typed()
        self.found()
        self.expected()

    def accepted(self) -> None:
        """All that the client asked went to the provider, which refused nothing."""
        refused = [(note["status"], note["errors"]) for note in self.requests if not note["accepted"]]
        assert not refused, refused
        assert not self.gateway.failures(self.logged)
        assert self.turns()
        assert set(self.asked()) == {note["call"] for note in self.requests}

    def bounded(self) -> None:
        limit = self.client.trim_at
        over = [
            turn.note["prompt_tokens"]
            for turn in self.every()
            if turn.note["prompt_tokens"] > limit * SLACK[turn.note["route"]]
        ]
        assert not over, f"prompts over {limit}: {over}"

    def cached(self) -> None:
        """Where the client broke neither its history nor what stands in front of it, each request begins with the one
        before it, has the client's breakpoints, and the cache holds what was marked. Else there is a new pointer."""
        told = [(a, b) for a, b in self.pairs() if not rewritten(a.asked, b.asked, a.note["route"])]
        broken = [(a, b) for a, b in told if broken_at(a.sent, b.sent, a.note["route"]) is not None]
        assert len(broken) <= len(self.events("trim"))
        for a, b in broken:
            assert set(pointers(b.sent)) - set(pointers(a.sent)), "a prefix was broken without a trim"
        for a, b in told:
            if (a, b) in broken or any(a.asked.get(key) != b.asked.get(key) for key in ("tools", "system")):
                continue
            assert marks(b.sent) == marks(b.asked)
            read = b.note["cache"]["read"]
            assert read > 0
            assert read >= cacheable(a.note) or cacheable(a.note) > cacheable(b.note)

    def unmixed(self) -> None:
        """No request has a tool call that its client did not send with it, and no stored line the calls of two."""
        for turn in self.turns():
            foreign = call_ids(messages_of(turn.sent)) - call_ids(messages_of(turn.asked))
            assert not foreign, foreign
        lines: dict[str, set[bytes]] = defaultdict(set)
        for row in self.rows():
            lines[row.line] |= call_ids([row.raw])
        theirs = [
            set().union(*(call_ids(messages_of(turn.asked)) for turn in turns)) for turns in self.threads().values()
        ]
        for line, calls in lines.items():
            assert any(calls <= own for own in theirs), f"{line} holds the calls of several threads"

    def untouched(self) -> None:
        """Titles, probes and the like go out as they came. A compaction of a thread's own history may go out as that
        thread does: whole it might not fit."""
        turns = self.turns()
        for turn in self.turns(auxiliary=True):
            assert same(turn.asked, turn.sent) or any(
                goes_on((one.asked, one.sent), turn.asked, turn.sent) for one in turns
            )

    def kept(self) -> None:
        """Every message of every history is stored, and at most once for each past that it followed."""
        held = Counter(nameless(normal(row.raw)) for row in self.rows())
        sent = histories((turn.thread, turn.asked) for turn in self.turns())
        lost, twice = set(sent) - set(held), held - sent
        assert not lost, f"{len(lost)} of {len(sent)} messages lost: {_shown(lost)}"
        assert not twice, f"{sum(twice.values())} messages stored again: {_shown(twice)}"

    def typed(self) -> None:
        """Nothing counts as typed that nobody said: a client's own words are known as such."""
        typed = [row.text for row in self.rows() if row.kind in {"typed", "mixed"}]
        assert typed
        unsaid = list(not_said(typed, "\n".join([*self.said, *self.client.own])))
        assert not unsaid, f"taken for typed: {unsaid}"

    def found(self) -> None:
        """What left a request is found by a line of it, with the gateway's own tools."""
        looked = 0
        for path in self.stores():
            for seq, line in left(path):
                answer = self.ask("smart_compact_search", query=f'"{line}"', session_id=path.stem, role="all", limit=50)
                assert f" seq={seq} " in answer, f"message {seq} is not found by {line!r}: {answer[:2000]}"
                looked += 1
        assert looked or not self.events("trim"), "messages left, and none is marked so"

    def ask(self, tool: str, **arguments: Any) -> str:
        """What a tool answers the client's own key."""
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        headers = {**ACCEPT, "authorization": f"Bearer {self.place.key}"}
        with httpx.Client(trust_env=False, timeout=30) as http:
            answer = http.post(self.gateway.address + PATH, json=body, headers=headers).json()
        return "".join(part["text"] for part in answer["result"]["content"])

    def expected(self) -> None:
        """The client sends nothing that no recording has."""
        seen = set().union(*(traits(turn.headers, turn.asked) for turn in self.every()))
        if os.environ.get(LEARN):
            learn(self.client.name, seen)
        new = seen - read(self.client.name).traits
        assert not new, f"no recording has {sorted(new)}: see that the plugin is right, then make clients ARGS=--record"


def rows_of(stores: Iterable[Path]) -> list[Row]:
    """All that these hold."""
    sql = "SELECT m.thread, m.kind, m.text, r.body FROM messages m JOIN records r USING (seq) ORDER BY seq"
    return [
        Row(f"{path.stem} {thread}", kind, text or "", orjson.loads(unpack(body, text)))
        for path in stores
        for thread, kind, text, body in query(path, sql)
    ]


def left(store: Path, most: int = 20) -> list[tuple[int, str]]:
    """Some messages that left, from the oldest to the newest, each with a line of it. A search leaves out the
    answers of the search tools."""
    rows = query(
        store,
        "SELECT seq, (SELECT text FROM lines WHERE seq = m.seq AND text NOT LIKE '%\"%' ORDER BY length(text) DESC)"
        " FROM messages m WHERE in_context = 0 AND tool_name NOT LIKE '%smart_compact%' ORDER BY seq",
    )
    told = [(seq, line.strip()[:200].rpartition(" ")[0] or line.strip()) for seq, line in rows if line and line.strip()]
    return told[:: max(1, len(told) // most)]


def _shown(messages: Iterable[bytes]) -> list[bytes]:
    return [message[:160] for message in list(messages)[:4]]
