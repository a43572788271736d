"""What each client was seen to send, without its words: structure, order, lengths and names.

A recording holds every *trait* that the suite has met, such as `messages[user].content[tool_result].is_error: bool`,
and the requests of one short session, each distinct text in it replaced by its length and a number. The suite with real
clients fails on a trait that no recording has; `make clients ARGS="--record codex"` records what they send now.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clients.drivers import CLIENTS
from openmem_hook.facts import TRIM_COMMAND_RECORD
from openmem_hook.formats.typed import CLIENT_TEXTS
from tests.kit.filler import prose

Json = dict[str, Any]

LEARN = "OPENMEM_CLIENTS_LEARN"
"""Set in the environment, new traits are recorded instead of refused."""
FOLDER = Path(__file__).with_name("recorded")
PARTS = ("messages", "input", "tools", "system")
"""Lists of a body of which consecutive requests share most elements."""

OURS = re.compile(r"x-(?!stainless-|kit-|api-key)|anthropic-beta$|originator$|session-id$|thread-id$|user-agent$")
"""Headers whose names are traits."""
TELLING = re.compile(
    r"x-(?:app$|claude-code-|codex-|openai-subagent$|session-|parent-session-|client-request-id$)"
    r"|originator$|session-id$|thread-id$"
)
"""Headers whose values are kept: they tell clients, sessions and threads apart."""
NAMED = {
    "id", "call_id", "tool_use_id", "tool_call_id", "name", "type", "role", "status", "namespace", "execution",
    "model", "effort", "verbosity", "tool_choice", "include", "keep", "ttl", "prompt_cache_key", "phase", "syntax",
    "display",
}  # fmt: skip
"""Values under these keys are no words, where they are one: ids, and names that belong to the wire."""
SCHEMAS = {"input_schema", "parameters", "schema", "json_schema"}
"""Of a tool's schema only the size matters."""
METADATA = {"metadata", "client_metadata"}
ARGUMENTS = {"input", "arguments"}

WORD = re.compile(r"[\w.:@+/-]{1,120}")
ID = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=ses_)\w{12,}|(?<=_)[0-9a-zA-Z]{20,}|\b(?=\w*\d)[0-9a-f]{12,}\b"
)
"""What is random in the name of a session, a thread, an installation or a message."""
CLOCK = 10**11
"""Numbers from here on are times, in milliseconds."""
KNOWN = sorted(
    {TRIM_COMMAND_RECORD, "/smart-compact", *(mark for rule in CLIENT_TEXTS for mark in (rule.start, rule.end) if mark)}
    | {text for client in CLIENTS for text in client.own}
)
PROMPT = r"kit: [\w ]+\."
KEPT = re.compile("|".join([*map(re.escape, reversed(KNOWN)), PROMPT]))
"""What stays of a text: what the plugin itself knows clients by, and the suite's own prompts."""
TAG = re.compile(r"\s*(<[a-z][a-z_-]{2,}(?: [a-z]+)?>)")
"""A tag in front of a text."""
MASK = re.compile("\u2039(\\d+):(\\d+)\u203a")


# --- scrubbing ----------------------------------------------------------------------------------------------


class Scrubber:
    """Takes the words out of the requests of one session. Equal texts and ids stay equal."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def request(self, headers: Json, body: Json) -> Json:
        told = {name: self._header(name, value) for name, value in headers.items() if OURS.match(name)}
        return {"headers": told, "body": {key: self._value(value, key) for key, value in body.items()}}

    def _header(self, name: str, value: str) -> str:
        if name == "user-agent":
            return value.split()[0]
        return self._metadata(value) if TELLING.match(name) else self._mask(value)

    def _value(self, value: Any, key: str = "") -> Any:
        if key in SCHEMAS:
            return {"type": "object", "description": self._mask(json.dumps(value))}
        if key in METADATA:
            return self._metadata(value)
        if key in ARGUMENTS and isinstance(value, dict | str):
            return self._arguments(value)
        if isinstance(value, dict):
            return {name: self._value(held, name) for name, held in value.items()}
        if isinstance(value, list):
            return [self._value(held, "" if isinstance(held, dict) else key) for held in value]
        if not isinstance(value, str):
            return value
        return self._named(value) if key in NAMED and WORD.fullmatch(value) else self._text(value)

    def _metadata(self, value: Any) -> Any:
        """Ids and names, often as JSON inside a string; what looks like a folder or a sentence is masked."""
        if isinstance(value, dict):
            return {self._metadata(name): self._metadata(held) for name, held in value.items()}
        if isinstance(value, list):
            return [self._metadata(held) for held in value]
        if isinstance(value, int) and not isinstance(value, bool):
            return min(value, CLOCK)
        if not isinstance(value, str):
            return value
        if value.startswith("{"):
            return json.dumps(self._metadata(json.loads(value)))
        return self._named(value) if WORD.fullmatch(value) and "/" not in value[:-1] else self._mask(value)

    def _arguments(self, value: Any) -> Any:
        """What a tool was called with: the names stay."""
        if isinstance(value, dict):
            return {name: self._arguments(held) for name, held in value.items()}
        if isinstance(value, list):
            return [self._arguments(held) for held in value]
        if not isinstance(value, str):
            return value
        if value.startswith("{"):
            return json.dumps(self._arguments(json.loads(value)), ensure_ascii=False)
        return self._mask(value)

    def _named(self, value: str) -> str:
        return ID.sub(lambda found: self._renamed(found[0]), value)

    def _renamed(self, random: str) -> str:
        """A number in the shape of an id."""
        digits = str(self._number(random)).zfill(12)
        return f"00000000-0000-4000-8000-{digits}" if random.count("-") == 4 else digits.zfill(len(random))

    def _text(self, text: str) -> str:
        tag = TAG.match(text)
        made, at = ([tag[0]], tag.end()) if tag else ([], 0)
        for kept in KEPT.finditer(text):
            if kept.start() >= at:
                made += [self._mask(text[at : kept.start()]), kept[0]]
                at = kept.end()
        return "".join([*made, self._mask(text[at:])])

    def _mask(self, text: str) -> str:
        """Length and number; white space around stays, since clients differ in it from one request to the next."""
        bare = text.strip()
        if not bare:
            return text
        before, _, after = text.partition(bare)
        return f"{before}\u2039{len(bare)}:{self._number(bare)}\u203a{after}"

    def _number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers) + 1)


def filled(value: Any) -> Any:
    """A scrubbed value with other words of the same length."""
    if isinstance(value, dict):
        return {name: filled(held) for name, held in value.items()}
    if isinstance(value, list):
        return [filled(held) for held in value]
    return MASK.sub(lambda mask: prose(int(mask[1]), "filled", mask[2]), value) if isinstance(value, str) else value


# --- traits -------------------------------------------------------------------------------------------------


def traits(headers: Json, body: Json) -> set[str]:
    """What a request is made of: paths with the types of what stands there, headers, tags in front of texts."""
    found = {f"header {name}" for name in headers if OURS.match(name)}
    return found.union(*(_traits(value, key, key) for key, value in body.items()))


def _traits(value: Any, path: str, key: str) -> Iterator[str]:
    if key in SCHEMAS:
        yield f"{path}: schema"
    elif isinstance(value, dict):
        told = [value[name] for name in ("type", "role") if isinstance(value.get(name), str)]
        path += f"[{' '.join(told)}]" if told else ""
        for name, held in value.items():
            if name in ARGUMENTS:
                yield f"{path}.{name}: {type(held).__name__}"
            else:
                yield from _traits(held, f"{path}.{name}", name)
    elif isinstance(value, list):
        for held in value or [None]:
            yield from _traits(held, path, key)
    else:
        yield f"{path}: {type(value).__name__}"
        if isinstance(value, str) and (tag := TAG.match(value)):
            yield f"{path} begins with {tag[1]}"


# --- files --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recording:
    """`requests` have `headers` and `body`, in the order in which they were sent."""

    traits: frozenset[str]
    requests: tuple[Json, ...]


def path_of(client: str) -> Path:
    return FOLDER / f"{client}.json"


def read(client: str) -> Recording:
    """A client that was never recorded has nothing."""
    if not path_of(client).exists():
        return Recording(frozenset(), ())
    held = json.loads(path_of(client).read_text("utf-8"))
    parts = held["parts"]
    requests = tuple(
        {**request, "body": {key: _resolved(key, value, parts) for key, value in request["body"].items()}}
        for request in held["requests"]
    )
    return Recording(frozenset(held["traits"]), requests)


def _resolved(key: str, value: Any, parts: list[Any]) -> Any:
    return [parts[at] for at in value] if key in PARTS and isinstance(value, list) else value


def write(client: str, recording: Recording) -> None:
    """One line for each trait, each distinct element of a list, and each request."""
    parts: dict[str, int] = {}

    def numbered(key: str, value: Any) -> Any:
        if key not in PARTS or not isinstance(value, list):
            return value
        return [parts.setdefault(json.dumps(held, ensure_ascii=False), len(parts)) for held in value]

    requests = [
        {**request, "body": {key: numbered(key, value) for key, value in request["body"].items()}}
        for request in recording.requests
    ]
    sections = {
        "traits": map(json.dumps, sorted(recording.traits)),
        "parts": parts,
        "requests": (json.dumps(request, ensure_ascii=False) for request in requests),
    }
    FOLDER.mkdir(exist_ok=True)
    lines = (f'"{name}": [\n{_joined(held)}\n]' for name, held in sections.items())
    path_of(client).write_text("{" + ",\n".join(lines) + "}\n", "utf-8")


def learn(client: str, seen: set[str]) -> None:
    """Adds traits to a client's recording."""
    held = read(client)
    write(client, replace(held, traits=held.traits | seen))


def _joined(lines: Iterable[str]) -> str:
    return ",\n".join(lines)
