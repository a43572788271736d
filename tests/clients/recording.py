"""What each client was seen to send, without its words: structure, order, lengths, names and tags.

A recording holds every *trait* that the suite has met, such as `messages[user].content[tool_result].is_error: bool`,
and the requests of one short session, each text in it replaced by its length and a hash. The suite with real clients
fails on a trait that no recording has; `make clients ARGS="--record codex"` records what they send now.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openmem_hook.formats.typed import TABLE
from openmem_hook.messages import FORCING_RECORD
from tests.kit.filler import prose

Json = dict[str, Any]

FOLDER = Path(__file__).with_name("recorded")
RECORDING = "OPENMEM_CLIENTS_RECORD"
"""Set in the environment, what is new is recorded instead of refused."""
HEADERS = re.compile(r"x-(?!stainless|kit-)|anthropic-beta$|originator$|session-id$|thread-id$|user-agent$")
"""What of the headers may tell a client, a session or a thread."""
PARTS = ("messages", "input", "tools", "system")
"""Lists of a body of which consecutive requests share most elements."""
NAMED = {
    "id", "call_id", "tool_use_id", "tool_call_id", "name", "tool_name", "type", "role", "status", "namespace",
    "execution", "model", "effort", "verbosity", "tool_choice", "include", "keep", "ttl", "prompt_cache_key", "phase",
    "format", "display",
}  # fmt: skip
"""Values under these keys are no words: ids, and names that belong to the wire."""
OPAQUE = {"input_schema", "parameters", "schema", "json_schema"}
"""Of a tool's schema only the size matters."""
METADATA = {"metadata", "client_metadata"}
ARGUMENTS = {"input", "arguments"}
KNOWN = sorted({FORCING_RECORD, "/smart-compact", *(mark for row in TABLE for mark in (row.start, row.end))} - {""})
TAG = r"</?[a-z][a-z_-]{2,}(?: [a-z]+)?>"
PROMPT = r"kit: [\w ]+\."
KEPT = re.compile("|".join([*map(re.escape, reversed(KNOWN)), TAG, PROMPT]))
"""What stays of a text: what the plugin itself knows clients by, tags, and the suite's own prompts."""
MASK = re.compile("\u2039(\\d+):([0-9a-f]+)\u203a")


# --- scrubbing ----------------------------------------------------------------------------------------------


def scrubbed(headers: Json, body: Json) -> Json:
    """A request without its words."""
    told = {name: _without_paths(value) for name, value in headers.items() if HEADERS.match(name)}
    return {"headers": told, "body": {key: _scrub(value, key) for key, value in body.items()}}


def _scrub(value: Any, key: str = "") -> Any:
    if isinstance(value, bool | int | float | None) or (key in NAMED and isinstance(value, str)):
        return value
    if key in METADATA:
        return _without_paths(value)
    if key in OPAQUE:
        return {"type": "object", "description": _mask(json.dumps(value))}
    if isinstance(value, dict):
        return {name: _scrub(held, name) for name, held in value.items()}
    if isinstance(value, list):
        return [_scrub(held, key) for held in value]
    inner = _inner(value)
    return json.dumps(_scrub(inner), ensure_ascii=False) if inner else _without_words(value)


def _without_paths(value: Any) -> Any:
    """Headers and metadata are ids and names; what has a slash may be a folder."""
    if isinstance(value, dict):
        return {_without_paths(name): _without_paths(held) for name, held in value.items()}
    if not isinstance(value, str):
        return value
    if inner := _inner(value):
        return json.dumps(_without_paths(inner))
    return _mask(value) if value.startswith("/") else value


def _inner(text: str) -> Any:
    """The object that a string holds as JSON, if it does."""
    try:
        return json.loads(text) if text.startswith("{") else None
    except json.JSONDecodeError:
        return None


def _without_words(text: str) -> str:
    made, at = [], 0
    for kept in KEPT.finditer(text):
        made += [_mask(text[at : kept.start()]), kept[0]]
        at = kept.end()
    return "".join([*made, _mask(text[at:])])


def _mask(text: str) -> str:
    """Length and hash; white space around stays, since clients differ in it from one request to the next."""
    bare = text.strip()
    if not bare:
        return text
    mark = hashlib.blake2b(bare.encode(), digest_size=4).hexdigest()
    before, _, after = text.partition(bare)
    return f"{before}\u2039{len(bare)}:{mark}\u203a{after}"


def filled(value: Any) -> Any:
    """A scrubbed value with other words of the same length."""
    if isinstance(value, dict):
        return {name: filled(held) for name, held in value.items()}
    if isinstance(value, list):
        return [filled(held) for held in value]
    return MASK.sub(lambda mask: prose(int(mask[1]), mask[2]), value) if isinstance(value, str) else value


# --- traits -------------------------------------------------------------------------------------------------


def traits(headers: Json, body: Json) -> set[str]:
    """What a request is made of: paths with the types of what stands there, headers, tags in front of texts."""
    return {f"header {name}" for name in headers if HEADERS.match(name)} | set(_traits(body, ""))


def _traits(value: Any, path: str, key: str = "") -> Iterator[str]:
    if key in ARGUMENTS and path.count(".") > 1:
        yield f"{path}: {type(value).__name__}"
    elif key in OPAQUE:
        yield f"{path}: schema"
    elif isinstance(value, dict):
        told = [value[name] for name in ("type", "role") if isinstance(value.get(name), str)]
        path += f"[{' '.join(told)}]" if told else ""
        for name, held in value.items():
            yield from _traits(held, f"{path}.{name}".lstrip("."), name)
    elif isinstance(value, list):
        for held in value or [None]:
            yield from _traits(held, path, key)
    else:
        yield f"{path}: {type(value).__name__}"
        if isinstance(value, str) and (tag := re.match(rf"\s*{TAG}", value)):
            yield f"{path} begins with {tag[0].strip()}"


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
