"""What the adapters share: content that is a string or a list of blocks, and its media and JSON arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import orjson

from openmem_hook import fingerprint
from openmem_hook.formats.typed import classify
from openmem_hook.model import Part, PartKind, Raw, Role


def blocks_of(content: Any, text_type: str = "text") -> list[Any]:
    """Content as a list of blocks: a string equals a list of one text block."""
    if isinstance(content, str):
        return [{"type": text_type, "text": content}]
    if isinstance(content, list):
        return content
    return [] if content is None else [content]


def text_of(block: Any) -> str:
    text = block.get("text") if isinstance(block, dict) else None
    return text if isinstance(text, str) else ""


def is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "text"


def kind_of_text(text: str, role: Role) -> PartKind:
    """What a text block is: only a user message may hold what a client put there in a person's stead."""
    if role == "user":
        return classify(text)
    return "text" if text.strip() else "blank"


def text_part(text: str, kind: PartKind, index: int) -> Part:
    """A text block; white space at its ends and blanks take no part in identity."""
    identity = None if kind in ("reminder", "blank") else ["text", text.strip()]
    return Part(kind, text, identity, index=index)


def opaque_part(block: Any, index: int, kind: PartKind = "opaque", signed: bool = False) -> Part:
    """A block nobody here understands: carried, counted, found by its JSON."""
    text = fingerprint.dump(block).decode("utf-8", "replace")
    return Part(kind, text, [kind, fingerprint.canonical(block)], index=index, is_signed=signed)


def media_part(block: dict[str, Any], index: int, kind: str, name: str = "") -> Part:
    """A picture or document: counted by a fixed budget, never as text, identified by its bytes."""
    return Part(
        "media",
        name,
        ["media", fingerprint.digest(fingerprint.canonical(block)).hex()],
        index=index,
        media=(kind,),
    )


def string_id(value: Any) -> str:
    return value if isinstance(value, str) else ""


def arguments_text(arguments: Any) -> str:
    """Call arguments as a search should find them: one argument a line, strings without JSON escapes."""
    value = parsed(arguments)
    if not isinstance(value, dict):
        return value if isinstance(value, str) else fingerprint.dump(value).decode("utf-8", "replace")
    lines = (f"{k}: {v if isinstance(v, str) else as_json(v)}" for k, v in value.items())
    return "\n".join(lines)


def as_json(value: Any) -> str:
    return fingerprint.dump(value).decode("utf-8", "replace")


def parsed(arguments: Any) -> Any:
    """Arguments that are a JSON string, parsed; anything else as it is."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return orjson.loads(arguments)
    except ValueError:
        return arguments.strip()


def call_part(family: str, call_id: Any, name: Any, arguments: Any, index: int) -> Part:
    name = string_id(name)
    text = f"{name}\n{arguments_text(arguments)}".rstrip("\n")
    identity = ["call", family, string_id(call_id), name, fingerprint.canonical(parsed(arguments))]
    return Part("call", text, identity, call_id=f"{family}:{string_id(call_id)}", name=name, index=index)


def result_part(family: str, call_id: Any, inner: list[Part], index: int, failed: bool = False) -> Part:
    """A result with what its blocks say; a text block inside counts as it is, white space at its ends aside."""
    said = [part.identity for part in inner if part.identity is not None]
    return Part(
        "result",
        "\n".join(part.text for part in inner if part.text and part.kind in ("text", "blank", "opaque")),
        ["result", family, string_id(call_id), said, failed],
        call_id=f"{family}:{string_id(call_id)}",
        index=index,
        media=tuple(kind for part in inner for kind in part.media),
        references=tuple(name for part in inner for name in part.references),
        text_alone=all(part.kind != "opaque" for part in inner),
    )


def unmarked(value: Any) -> Any:
    """A message without cache breakpoints, on itself, its blocks and those inside; the very same object where
    there is none. What a call's arguments hold under that name is data."""
    if isinstance(value, list):
        items = [unmarked(v) for v in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    if not isinstance(value, dict):
        return value
    inside = unmarked(value.get("content"))
    if "cache_control" not in value and inside is value.get("content"):
        return value
    return {k: inside if k == "content" else v for k, v in value.items() if k != "cache_control"}


def map_content(raw: Raw, key: str, change: Callable[[list[Any]], list[Any]]) -> Raw:
    """A copy of the message whose block list went through `change`."""
    return {**raw, key: change(list(raw[key]))}


def replaced_text(content: Any, text: str, is_text: Callable[[Any], bool]) -> Any:
    """Result content with its text parts replaced by one, in the same shape, other parts in their places. A cache
    breakpoint on one of them stays, on the one that is left."""
    if not isinstance(content, list):
        return text
    texts = [i for i, block in enumerate(content) if is_text(block)]
    marker = next((m for i in reversed(texts) if (m := content[i].get("cache_control"))), None)
    out: list[Any] = []
    for i, block in enumerate(content):
        if i not in texts:
            out.append(block)
        elif i == texts[0]:
            out.append({**block, "text": text} | ({"cache_control": marker} if marker else {}))
    return out


def leading(messages: Iterable[Raw], roles: tuple[str, ...]) -> int:
    """How many messages at the front have one of these roles."""
    count = 0
    for raw in messages:
        if not isinstance(raw, dict) or raw.get("role") not in roles:
            break
        count += 1
    return count


def noted(raw: Raw, note: str, text_type: str) -> Raw:
    """A system message with the note at its end, once."""
    content = raw.get("content")
    if isinstance(content, list):
        if any(note in text_of(b) for b in content):
            return raw
        return {**raw, "content": [*content, {"type": text_type, "text": note}]}
    if isinstance(content, str) and content:
        return raw if note in content else {**raw, "content": f"{content}\n\n{note}"}
    return {**raw, "content": note}
