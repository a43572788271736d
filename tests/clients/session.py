"""A gateway that notes what it is asked, and a client's session at it with what must hold of every one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from openmem_hook.compaction.wording import NOTE
from tests.clients.drivers import Answer, Client, Place, Way
from tests.clients.recording import RECORDING, learn, read, traits
from tests.followed import SLACK, _cached, messages_of
from tests.gateway import UPSTREAM_KEY, Gateway, Upstream, configuration, events, key_of, query, serving, stored
from tests.kit.builders import Format
from tests.kit.prefix import blocks, broken_at, canonical
from tests.kit.provider import running
from tests.kit.provider_state import Reply
from tests.tool_client import ACCEPT, PATH
from tests.walk import normal

Json = dict[str, Any]

RECORD = """
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
CALL_ID = re.compile(rb"[kso]_s?\d+p?\d*_[0-9a-f]+n\d+")
"""Ids that the scripted model gives its tool calls."""


CONVERSATION = ("messages", "input", "system", "instructions")


class Noted(Upstream):
    """The strict provider, noting with each request its body and the gateway's name for it."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies = deque()

    def handle(self, fmt: Format, raw: bytes, headers: dict[str, str], now: float) -> Reply:
        reply = super().handle(fmt, raw, headers, now)
        self.log[-1] |= {"call": headers.get("x-kit-call", ""), "body": self.bodies[-1]}
        return reply


@contextlib.contextmanager
def noting(folder: Path, trim_at: int) -> Iterator[tuple[Gateway, Noted]]:
    """A gateway with the models that clients ask for, and the provider behind it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "record.py").write_text(RECORD)
    provider = Noted()
    with running(provider, clock=lambda: 0.0) as provider.address:
        config = configuration(provider.address, trim_at_tokens=trim_at)
        openai = {"api_base": f"{provider.address}/v1", "api_key": UPSTREAM_KEY}
        anthropic = {"api_base": provider.address, "api_key": UPSTREAM_KEY}
        served = {"anthropic/claude-sonnet-5": anthropic, "anthropic/claude-haiku-4-5": anthropic}
        served |= {"openai/gpt-5.5": openai, "openai/kit": openai}
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


class Session:
    """A client at work in a folder of its own. `say` runs it once; the rest looks at what that left behind."""

    def __init__(self, client: Client, gateway: Gateway, provider: Noted, folder: Path) -> None:
        self.client, self.gateway, self.provider = client, gateway, provider
        for name in ("home", "project"):
            (folder / name).mkdir(parents=True)
        self.place = Place(folder / "home", folder / "project", gateway.address, key_of("alice"))
        self.id = ""
        self.begun = len(provider.log)
        self.logged = gateway.log.stat().st_size
        self.before = set(gateway.sessions())

    def say(self, prompt: str = "", way: Way | None = None) -> Answer:
        """Runs the client with this prompt, the first time anew and then as a resumed session."""
        way = way or (self.client.resume if self.id else self.client.new)
        answer = self.client.run(self.place, way, prompt, self.id)
        assert answer.code == 0, f"exit code {answer.code}: {answer.output[-2000:]}"
        self.id = self.id or answer.session
        return answer

    def work(self, words: str, calls: int, before: str = "") -> Answer:
        """A prompt that makes the model run the client's shell so many times."""
        answer = self.say(f"{words}\n{before}[[calls:{calls} size:6000 tool:{self.client.shell} lead:1]]")
        assert answer.text.startswith("Done after "), answer.output[-2000:]
        return answer

    # --- what is there -----------------------------------------------------------------------------------

    @property
    def requests(self) -> list[Json]:
        return self.provider.log[self.begun :]

    def turns(self, *, auxiliary: bool = False) -> list[Turn]:
        """Requests of threads, or those beside them: without tools and not of a conversation."""
        lines = (self.gateway.folder / "asked.jsonl").read_text().splitlines()
        asked = {line["call"]: line for line in map(json.loads, lines)}
        found = []
        for note in self.requests:
            line = asked[note["call"]]
            if bool(line["body"].get("tools")) is not auxiliary:
                thread = self.client.thread(line["headers"])
                found.append(Turn(thread, line["headers"], line["body"], note["body"], note))
        return found

    def every(self) -> list[Turn]:
        return sorted(self.turns() + self.turns(auxiliary=True), key=lambda turn: turn.note["n"])

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

    # --- what must hold ----------------------------------------------------------------------------------

    def holds(self) -> None:
        self.accepted()
        self.bounded()
        self.cached()
        self.unmixed()
        self.untouched()
        self.kept()
        self.found()
        self.expected()

    def accepted(self) -> None:
        refused = [(note["status"], note["errors"]) for note in self.requests if not note["accepted"]]
        assert not refused, refused
        assert not self.gateway.failures(self.logged)
        assert self.turns()

    def bounded(self) -> None:
        notes = [turn.note for turn in self.turns()]
        limit = self.client.trim_at
        over = [note["prompt_tokens"] for note in notes if note["prompt_tokens"] > limit * SLACK[note["route"]]]
        assert not over, f"prompts over {limit}: {over}"

    def cached(self) -> None:
        """Where the client broke neither its history nor what stands in front of it, each request begins with the one
        before it and the cache holds that, but once for each trim."""
        told = [(a, b) for a, b in self.pairs() if not rewritten(a.asked, b.asked, a.note["route"])]
        broken = [b for a, b in told if broken_at(a.sent, b.sent, a.note["route"]) is not None]
        trims = len(self.events("trim"))
        assert len(broken) <= trims, f"{len(broken)} prefixes broken, {trims} trims"
        steady = [(a, b) for a, b in told if all(a.asked.get(key) == b.asked.get(key) for key in ("tools", "system"))]
        missed = [b for a, b in steady if b.note["cache"]["read"] < cacheable(a.note) <= cacheable(b.note)]
        assert {turn.note["n"] for turn in missed} <= {turn.note["n"] for turn in broken}

    def unmixed(self) -> None:
        """No request has a tool call that its client did not send with it."""
        for turn in self.turns():
            foreign = call_ids(turn.sent) - call_ids(turn.asked)
            assert not foreign, foreign

    def untouched(self) -> None:
        """Titles, probes and the like go out as they came. A compaction of a thread's own history may go out as that
        thread does: whole it might not fit."""
        turns = self.turns()
        for turn in self.turns(auxiliary=True):
            same = all(canonical(turn.sent.get(key)) == canonical(turn.asked.get(key)) for key in CONVERSATION)
            fmt = turn.note["route"]
            assert same or any(
                not rewritten(one.asked, turn.asked, fmt) and not rewritten(noteless(one.sent), turn.sent, fmt)
                for one in turns
            )

    def kept(self) -> None:
        """Every message of every history is stored, and at most once for each past that it followed."""
        held = Counter(nameless(message) for path in self.stores() for message in stored(path).elements())
        sent = histories((turn.thread, turn.asked) for turn in self.turns())
        lost, twice = set(sent) - set(held), held - sent
        assert not lost, f"{len(lost)} of {len(sent)} messages lost: {_shown(lost)}"
        assert not twice, f"{sum(twice.values())} messages stored again: {_shown(twice)}"

    def found(self) -> None:
        """What left a request is found by a line of it, with the gateway's own tools."""
        for path in self.stores():
            for seq, line in left(path):
                answer = self.ask("smart_compact_search", query=f'"{line}"', session_id=path.stem, role="all", limit=50)
                assert f" seq={seq} " in answer, f"message {seq} is not found by {line!r}: {answer[:2000]}"

    def ask(self, tool: str, **arguments: Any) -> str:
        """What a tool answers the client's own key."""
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        headers = {**ACCEPT, "authorization": f"Bearer {self.place.key}"}
        answer = httpx.post(self.gateway.address + PATH, json=body, headers=headers, timeout=30).json()
        return "".join(part["text"] for part in answer["result"]["content"])

    def expected(self) -> None:
        """The client sends nothing that no recording has."""
        seen = set().union(*(traits(turn.headers, turn.asked) for turn in self.every()))
        if os.environ.get(RECORDING):
            learn(self.client.name, seen)
        new = seen - read(self.client.name).traits
        assert not new, f"no recording has {sorted(new)}: see that the plugin is right, then make clients ARGS=--record"


def histories(asked: Iterable[tuple[str, Json]]) -> Counter[bytes]:
    """The messages of all requests (thread and body), each once for each past that it follows."""
    seen, made = set(), Counter[bytes]()
    for thread, body in asked:
        past = thread.encode()
        for message in map(nameless, map(normal, messages_of(body))):
            past = hashlib.blake2b(past + message).digest()
            made[message] += past not in seen
            seen.add(past)
    return made


def rewritten(before: Json, after: Json, fmt: Format) -> bool:
    """Whether the client changed what it had already sent."""
    return broken_at(before, after, fmt) is not None


def nameless(message: bytes) -> bytes:
    """Without the id of a Responses message: sub-agents and forks give the same ones anew."""
    held = json.loads(message)
    return canonical({key: value for key, value in held.items() if key != "id" or held.get("type") != "message"})


def noteless(body: Json) -> Json:
    """Without the standing note, which auxiliary requests don't get."""
    items = [
        {**item, "content": [part for part in item["content"] if part.get("text") != NOTE]}
        if isinstance(item.get("content"), list)
        else item
        for item in messages_of(body)
    ]
    return {**body, "input" if "input" in body else "messages": items}


def cacheable(note: Json) -> int:
    """Tokens that the cache holds of a request: with Anthropic, up to the client's last breakpoint."""
    return _cached(note) - (note["cache"]["uncached"] if note["route"] == "anthropic" else 0)


def left(store: Path, most: int = 20) -> list[tuple[int, str]]:
    """Some messages that left, from the oldest to the newest, each with a line of it. Answers of the search tools are
    never found again, by design."""
    rows = query(
        store,
        "SELECT seq, (SELECT text FROM lines WHERE seq = m.seq AND text NOT LIKE '%\"%' ORDER BY length(text) DESC)"
        " FROM messages m WHERE in_context = 0 AND tool_name NOT LIKE '%smart_compact%' ORDER BY seq",
    )
    told = [(seq, line.strip()[:200].rpartition(" ")[0] or line.strip()) for seq, line in rows if line and line.strip()]
    return told[:: max(1, len(told) // most)]


def call_ids(body: Json) -> set[bytes]:
    return set(CALL_ID.findall(json.dumps(messages_of(body)).encode()))


def shown(body: Json, fmt: Format) -> str:
    """All that the model can see of the conversation."""
    return b"\n".join(blocks(body, fmt)).decode()


def _shown(messages: Iterable[bytes]) -> list[bytes]:
    return [message[:160] for message in list(messages)[:4]]
