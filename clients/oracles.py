"""Comparisons of what a client asked with what went out and what is stored: pure, for one pair or one history."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from openmem_hook.compaction.wording import NOTE
from tests.harness.tracked_session import STEP, messages_of
from tests.kit.builders import Format
from tests.kit.prefix import blocks, broken_at, canonical, normal

Json = dict[str, Any]

CALL_ID = re.compile(rb"[kso]_s?\d+p?\d*_[0-9a-f]+n\d+")
"""Ids that the scripted model gives its tool calls."""
POINTER = re.compile(r"<openmem-pointer>.*?</openmem-pointer>", re.DOTALL)
FRONT = ("system", "instructions")


def rewritten(before: Json, after: Json, fmt: Format) -> bool:
    """Whether the client changed what it had already sent."""
    return broken_at(before, after, fmt) is not None


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


def nameless(message: bytes) -> bytes:
    """Without the id of a Responses message: sub-agents and forks give the same ones anew."""
    held = json.loads(message)
    return canonical({key: value for key, value in held.items() if key != "id" or held.get("type") != "message"})


def noteless(messages: Iterable[Json]) -> list[Json]:
    """Without the standing note, which auxiliary requests don't get."""
    return [
        {**item, "content": [part for part in item["content"] if part.get("text") != NOTE]}
        if isinstance(item.get("content"), list)
        else item
        for item in messages
    ]


def goes_on(thread: tuple[Json, Json], asked: Json, sent: Json) -> bool:
    """Whether a request was sent as its thread (asked, sent) was, with just what the client put behind it."""
    before, after = (_plain(messages_of(body)) for body in thread)
    now, out = _plain(messages_of(asked)), _plain(messages_of(sent))
    return len(now) > len(before) and now[: len(before)] == before and out == after + now[len(before) :]


def _plain(messages: list[Any]) -> list[bytes]:
    """Without the standing note, which auxiliary requests don't get, and without null, which the gateway drops."""
    return [
        normal({key: value for key, value in message.items() if value is not None}) for message in noteless(messages)
    ]


def same(asked: Json, sent: Json) -> bool:
    """Whether a request went out as it came, as far as the gateway itself leaves it alone."""
    keys = ("messages", "input", "tools", "thinking", "tool_choice", *FRONT)
    return all(canonical(sent.get(key) or None) == canonical(asked.get(key) or None) for key in keys)


def marks(body: Json) -> set[tuple[str, int, int]]:
    """Where the cache breakpoints stand: list, message, block. Messages leave at the front and a note comes behind the
    system prompt, so that places count from the end in the one and from the front in the other."""
    found = set()
    for at, block in enumerate(_list(body.get("system"))):
        if "cache_control" in block:
            found.add(("system", at, 0))
    for at, message in enumerate(reversed(_list(body.get("messages")))):
        for spot, block in enumerate(reversed(_list(message.get("content")))):
            if "cache_control" in block:
                found.add(("messages", at, spot))
    return found


def _list(held: Any) -> list[Any]:
    return held if isinstance(held, list) else []


def pointers(body: Json) -> list[str]:
    """The pointers that the model sees."""
    return POINTER.findall(json.dumps(messages_of(body)))


def cacheable(note: Json) -> int:
    """Tokens that the cache holds of a request: with Anthropic, up to the last breakpoint."""
    tokens: int = note["prompt_tokens"]
    return tokens - (note["cache"]["uncached"] if note["route"] == "anthropic" else tokens % STEP)


def call_ids(messages: Iterable[Any]) -> set[bytes]:
    return set(CALL_ID.findall(json.dumps(list(messages)).encode()))


def shown(body: Json, fmt: Format) -> str:
    """All that the model can see of the conversation."""
    return b"\n".join(blocks(body, fmt)).decode()


def not_said(texts: Iterable[str], said: str) -> Iterator[str]:
    """Texts of which no line is in what a person said."""
    for text in texts:
        lines = (line.strip(' "') for line in text.splitlines())
        if not any(line and line in said for line in lines):
            yield text
