"""The model every wire format is decoded into.

A request is a `History`: the client's own message objects and, beside each, frozen `Facts` about it. The
objects are never changed; facts hold no message text, so that a session's facts can stay in memory. `Part`
is the passing view of one message while its facts are made, its row is written or a pointer quotes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from openmem_hook import fingerprint, tokens
from openmem_hook.tokens import Sizes

Raw = Any
"""A message exactly as the client's JSON parsed: usually a dict, in Responses also a bare string."""


@dataclass(frozen=True, slots=True)
class Part:
    """One block of a message.

    `kind`: text, reminder (inserted by a client, no part of identity), notice (client text nobody typed),
    command (a record of our own slash command), recap (a client's summary of its past), summarise (a client
    asking the model for one), thinking, call, result, media, reference (a deferred tool made known), server
    (an item of a tool the provider runs), compaction (a provider's), opaque (not understood).

    `text` is what a search should find. `sealed` is a signature or encrypted reasoning: counted, and what
    tells two of them apart. `identity` is the canonical value this part adds to the digest; None
    adds nothing. `call_id` carries its family ("function:call_1"). `media` counts pictures and documents
    inside. `text_alone` is false for a result with blocks, media aside, that no text can stand for.
    """

    kind: str
    text: str = ""
    identity: Any = None
    call_id: str = ""
    name: str = ""
    index: int = 0
    media: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    signed: bool = False
    sealed: str = ""
    text_alone: bool = True


class ResultSlot(NamedTuple):
    """A tool result that could be shortened: where it stands in its message, whose it is, its characters."""

    at: int
    call_id: str
    chars: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What decisions need to know of one message; no text.

    `role`: system, user, assistant, tool. `kind`: typed, mixed (results with typed text), notice, recap,
    summarise, reply, call, result, reasoning, system, compaction, unknown. A message that takes no part in
    identity (`identifies` false: reasoning, reminder-only) has a digest for its own row only. `chars` maps
    to tokens through `sizes`; `bytes` is the JSON length. `calls` and `answers` are call ids with family.
    """

    role: str
    kind: str
    digest: bytes
    identifies: bool
    sizes: Sizes
    bytes: int
    calls: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    results: tuple[ResultSlot, ...] = ()
    tool_names: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    starts_with_thinking: bool = False
    has_thinking: bool = False
    has_text: bool = False
    forces: bool = False
    signed: bool = False
    media: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """A decoded request.

    `messages`, `facts`, `keys` (row key of each message: its fingerprint, or an aside key) and `chain` (the
    fingerprint after each message) run in parallel. The first `lead` messages are the system prompt in
    message form: they are always sent as the client sent them. Messages from there to `folded` cost nothing: a
    provider's compaction stands there in their place. No new edit touches anything before `fixed`, which is `lead`
    or the end of that compaction. `deferred` are the tools that the model knows only by a reference to them.
    `overhead` are the sizes of system prompt and tools, `overhead_bytes` their JSON length. `format` is the adapter's
    name.
    """

    messages: Sequence[Raw]
    facts: Sequence[Facts]
    keys: Sequence[bytes]
    chain: Sequence[bytes]
    lead: int
    overhead: Sizes
    overhead_bytes: int
    has_tools: bool
    tool_names: frozenset[str]
    deferred: frozenset[str]
    must_start_with_thinking: bool
    folded: int = 0
    fixed: int = 0
    format: str = ""

    def __len__(self) -> int:
        return len(self.keys)


class Named(NamedTuple):
    """A history's facts with the `keys` and `chain` that follow from them. Messages before `first` have no name
    of their own. Nothing in it is ever changed."""

    facts: Sequence[Facts]
    keys: Sequence[bytes]
    chain: Sequence[bytes]
    first: int


Pause = Callable[[], object]
"""Called between two pieces of long work, so that others may run."""


def no_pause() -> None:
    pass


class NamedFile(NamedTuple):
    path: str
    written: bool


@dataclass(slots=True)
class Memo:
    """What was found out about exact bytes: resent messages and tools are hashed, not looked at again.

    The keys are Python's own keyed hashes: a third of the time of a digest, and a whole history is hashed with
    every request. Nothing outside this process and session meets them.

    `named`: the names of the newest history's messages; the next one goes on where it differs. `files`: what the calls
    of an output name, read and written, by the output's digest; every cut goes over all that left before it again.
    """

    facts: dict[int, Facts] = field(default_factory=dict)
    overheads: dict[int, Sizes] = field(default_factory=dict)
    files: dict[bytes, Sequence[NamedFile]] = field(default_factory=dict)
    named: Named = field(default_factory=lambda: Named((), [], [], 0))


class Adapter(Protocol):
    """One wire format, both ways. All pure; nothing given in is ever changed."""

    name: str
    call_types: frozenset[str]
    messages_key: str
    references_define: bool

    def matches(self, body: Mapping[str, Any], named: bool) -> bool: ...
    def lead_of(self, messages: Sequence[Raw]) -> int: ...
    def role_of(self, raw: Raw) -> str: ...
    def parts_of(self, raw: Raw) -> list[Part]: ...
    def system_of(self, body: Mapping[str, Any]) -> Any: ...
    def must_start_with_thinking(self, body: Mapping[str, Any]) -> bool: ...
    def shorten_result(self, raw: Raw, index: int, text: str) -> Raw: ...
    def frozen(self, raw: Raw, keep_thinking: bool) -> Raw | None: ...
    def with_pointer(self, raw: Raw, text: str) -> Raw: ...
    def with_note(self, body: dict[str, Any], messages: list[Raw], note: str) -> dict[str, Any]: ...
    def with_messages(self, body: dict[str, Any], messages: list[Raw]) -> dict[str, Any]: ...
    def with_marker(self, before: Sequence[Raw], after: list[Raw]) -> list[Raw]: ...


FORCING = re.compile(r"\s*/smart-compact(?:\s|$)")
FORCING_RECORD = "<command-name>/smart-compact</command-name>"

RELAYED = "The user sent a new message while you were working:"
"""How Claude Code begins what was typed while the model worked: beside a result, or in a system message of its own."""
BESIDE = ("mixed", "relayed")
"""Kinds of messages that hold a person's words and begin no turn."""

_TURN_KINDS = ("text", "command", "media", "opaque")
_SIZE_KIND = {"call": "args", "result": "result"}


def sizes_of(parts: Iterable[Part]) -> Sizes:
    total = tokens.ZERO
    for part in parts:
        if part.kind == "thinking":
            total += tokens.thinking(part.text, len(part.sealed))
        elif part.kind == "compaction":
            total += tokens.opaque(len(part.text))
        elif part.text:
            total += tokens.measure(_SIZE_KIND.get(part.kind, "text"), part.text)
        for kind in part.media:
            total += tokens.media(kind)
    return total


def _kind(role: str, kinds: list[str]) -> str:
    """The message's kind from those of its parts; the first rule that holds wins."""
    present = set(kinds)
    typed = any(kind in _TURN_KINDS for kind in kinds)
    rules = (
        ("compaction", "compaction" in present),
        ("system", role == "system"),
        ("summarise", "summarise" in present),
        ("mixed", role in ("user", "tool") and "result" in present and typed),
        ("result", "result" in present and role in ("user", "tool")),
        ("call", "call" in present or ("server" in present and role == "assistant")),
        ("reasoning", bool(kinds) and present <= {"thinking"}),
        ("reply", role == "assistant"),
        ("recap", "recap" in present),
        ("typed", role == "user" and (typed or not kinds)),
        ("notice", role == "user"),
    )
    return next((name for name, holds in rules if holds), "unknown")


def facts_of(role: str, parts: Sequence[Part], size: int) -> Facts:
    """Facts about a message of this role, these parts and this many bytes of JSON."""
    kinds = [part.kind for part in parts]
    kind = "relayed" if role == "system" and any(_relays(part) for part in parts) else _kind(role, kinds)
    said = [part.identity for part in parts if part.identity is not None]
    identifies = bool(said) or not kinds or not set(kinds) <= {"thinking", "reminder", "blank"}
    own = said if identifies else [[p.kind, p.sealed or p.text] for p in parts]
    answered_by = "tool" if kind == "result" else role
    return Facts(
        role=answered_by,
        kind=kind,
        digest=fingerprint.digest([role if role != "tool" else "user", own]),
        identifies=identifies,
        sizes=sizes_of(parts),
        bytes=size,
        calls=tuple(p.call_id for p in parts if p.kind == "call" and p.call_id),
        answers=tuple(p.call_id for p in parts if p.kind == "result" and p.call_id),
        results=tuple(
            ResultSlot(p.index, p.call_id, len(p.text))
            for p in parts
            if p.kind == "result" and p.text_alone and not p.references
        ),
        tool_names=tuple(p.name for p in parts if p.kind == "call" and p.call_id),
        references=tuple(name for p in parts for name in p.references),
        starts_with_thinking=bool(kinds) and kinds[0] == "thinking",
        has_thinking="thinking" in kinds,
        has_text=any(p.kind == "text" and p.text.strip() for p in parts),
        forces=_forces(role, parts),
        signed=any(p.signed for p in parts),
        media=sum(len(p.media) for p in parts),
    )


def _relays(part: Part) -> bool:
    return part.kind == "text" and part.text.lstrip().startswith(RELAYED)


def _forces(role: str, parts: Sequence[Part]) -> bool:
    """True where a person asked for a trim, in the literal form or as the record of a slash command."""
    if role != "user":
        return False
    if any(p.kind == "command" for p in parts):
        return True
    typed = next((p for p in parts if p.kind == "text"), None)
    return typed is not None and FORCING.match(typed.text) is not None


_LINE_END = re.compile(r"\r\n|\r|\n")


def split_lines(text: str) -> list[str]:
    """Lines as the store, the short form of a result and excerpts count them: ended by LF, CRLF or CR."""
    return _LINE_END.split(text) if "\r" in text else text.split("\n")


def searchable(text: str) -> str:
    """The text as the store holds it, line by line: NUL ends a string in SQLite, a lone surrogate has no UTF-8."""
    if "\0" in text:
        text = text.replace("\0", "�")
    if "\r" in text:
        text = "\n".join(split_lines(text))
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def joined(parts: Iterable[Part]) -> str:
    """The message as one searchable text."""
    return searchable("\n".join(part.text for part in parts if part.text))


def facts_about(adapter: Adapter, raw: Raw, size: int) -> Facts:
    return facts_of(adapter.role_of(raw), adapter.parts_of(raw), size)


def remembered(adapter: Adapter, raw: Raw, memo: Memo) -> Facts:
    """The facts about a message, looked up by its bytes. `memo` is read and added to."""
    payload = fingerprint.dump(raw)
    key = hash(payload)
    known = memo.facts.get(key)
    if known is None or known.bytes != len(payload):
        known = memo.facts[key] = facts_about(adapter, raw, len(payload))
    return known
