"""What the tables of the three formats are made of: a raw message, and what an adapter reads in it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from openmem_hook.model import CallFamily, MessageKind, Part, Role


class Example(NamedTuple):
    raw: Any
    role: Role
    """What the adapter says of it, before `Facts` call a message of results alone `tool`."""
    kind: MessageKind
    parts: tuple[Part, ...]
    """Without their identity: what is the same and what is not has tests of its own."""


def example(raw: Any, role: Role, kind: MessageKind, *parts: Part) -> Example:
    return Example(raw, role, kind, parts)


def as_json(value: Any) -> str:
    """The text of a block that nobody understands, as a search finds it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def text(words: str, index: int = 0) -> Part:
    return Part("text", words, index=index)


def blank(words: str = "", index: int = 0) -> Part:
    return Part("blank", words, index=index)


def thinking(words: str = "", signature: str = "", index: int = 0) -> Part:
    return Part("thinking", words, index=index, signature=signature)


def call(family: CallFamily, call_id: str, name: str, arguments: str = "", index: int = 0) -> Part:
    words = f"{name}\n{arguments}".rstrip("\n")
    return Part("call", words, call_id=f"{family}:{call_id}", name=name, index=index)


def result(family: CallFamily, call_id: str, words: str = "", index: int = 0, **fields: Any) -> Part:
    return Part("result", words, call_id=f"{family}:{call_id}", index=index, **fields)


def opaque(block: Any, index: int = 0) -> Part:
    return Part("opaque", as_json(block), index=index)


def server(block: Any, index: int = 0, *, is_signed: bool = False) -> Part:
    return Part("server", as_json(block), index=index, is_signed=is_signed)


def compaction(block: Any, index: int = 0) -> Part:
    return Part("compaction", as_json(block), index=index)


def media(kind: Any, index: int = 0, title: str = "") -> Part:
    return Part("media", title, index=index, media=(kind,))
