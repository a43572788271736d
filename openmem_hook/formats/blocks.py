"""What the adapters share: how a block becomes a part, and how text is put into content that is a string or a list.

All of it reads whatever JSON a client sent: a value of the wrong type counts as missing, nothing raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from openmem_hook import fingerprint
from openmem_hook.formats.typed import classify
from openmem_hook.model import CallFamily, MediaKind, Part, PartKind, Raw, Role

# --- shapes on the wire -----------------------------------------------------------------------------------


def blocks_of(content: Any, text_type: str = "text") -> list[Any]:
    """A string equals a list of one text block; None equals an empty list, any other value a list of it alone."""
    if isinstance(content, str):
        return [{"type": text_type, "text": content}]
    if isinstance(content, list):
        return content
    return [] if content is None else [content]


def type_of(block: Any) -> str:
    """The `type` of a block, empty where it has none or one that is no name."""
    return string_or_empty(block.get("type")) if isinstance(block, dict) else ""


def text_of(block: Any) -> str:
    return string_or_empty(block.get("text")) if isinstance(block, dict) else ""


def is_text(block: Any) -> bool:
    return type_of(block) == "text"


def string_or_empty(value: Any) -> str:
    return value if isinstance(value, str) else ""


def json_text(value: Any) -> str:
    return fingerprint.dump(value).decode("utf-8", "replace")


def are_messages(value: Any) -> bool:
    """Whether this is a list of objects with at least one in it, as a body's messages have to be."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def role_from(raw: Raw, roles: Mapping[str, Role]) -> Role:
    """The role that this table gives to the message's `role`; `unknown` where the table has none."""
    return roles.get(str(raw.get("role")), "unknown") if isinstance(raw, dict) else "unknown"


def count_leading(messages: Iterable[Raw], roles: tuple[str, ...], types: tuple[str, ...] = ()) -> int:
    """How many messages at the front have one of these roles or of these types."""
    count = 0
    for raw in messages:
        if not isinstance(raw, dict) or not (raw.get("role") in roles or raw.get("type") in types):
            break
        count += 1
    return count


# --- from blocks to parts ---------------------------------------------------------------------------------

_WITHOUT_IDENTITY: frozenset[PartKind] = frozenset(("reminder", "blank"))
"""Kinds of text that clients insert and drop between two requests."""
_RESULT_TEXTS: frozenset[PartKind] = frozenset(("text", "blank", "opaque"))
"""Kinds of parts inside a result whose text is the result's."""


def text_part(text: str, role: Role, index: int) -> Part:
    """White space at its ends and blanks take no part in identity. Only a user message may hold what a client put
    there in a person's stead: everywhere else text is text, whatever it looks like."""
    plain: PartKind = "text" if text.strip() else "blank"
    kind = classify(text) if role == "user" else plain
    identity = None if kind in _WITHOUT_IDENTITY else ["text", text.strip()]
    return Part(kind, text, identity, index=index)


def refusal_part(block: Mapping[str, Any], index: int) -> Part:
    """A model's refusal is its text, even an empty one."""
    text = string_or_empty(block.get("refusal"))
    return Part("text", text, ["text", text.strip()], index=index)


def thinking_part(text: Any, signature: Any, index: int = 0) -> Part:
    """Thinking takes no part in identity: clients drop it. `signature` may be a whole encrypted text."""
    return Part("thinking", string_or_empty(text), index=index, signature=string_or_empty(signature))


def opaque_part(block: Any, index: int, kind: PartKind = "opaque", is_signed: bool = False) -> Part:
    """A block that nobody here understands is carried, counted, and searched by its JSON."""
    return Part(kind, json_text(block), [kind, fingerprint.canonical(block)], index=index, is_signed=is_signed)


def media_part(block: Mapping[str, Any], index: int, kind: MediaKind, title: str = "") -> Part:
    """A picture or document is counted by a fixed budget, never as text, and identified by a hash of its bytes."""
    identity = ["media", fingerprint.digest(fingerprint.canonical(block)).hex()]
    return Part("media", title, identity, index=index, media=(kind,))


def call_part(family: CallFamily, call_id: Any, name: Any, arguments: Any, index: int) -> Part:
    """Arguments that are a JSON string and the same as an object are the same call."""
    call_id, name, arguments = string_or_empty(call_id), string_or_empty(name), parse_arguments(arguments)
    text = f"{name}\n{arguments_text(arguments)}".rstrip("\n")
    identity = ["call", family, call_id, name, fingerprint.canonical(arguments)]
    return Part("call", text, identity, call_id=f"{family}:{call_id}", name=name, index=index)


def parse_arguments(arguments: Any) -> Any:
    """The value of a JSON string; a string that is no JSON without white space at its ends; else what was given."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return orjson.loads(arguments)
    except ValueError:
        return arguments.strip()


def arguments_text(arguments: Any) -> str:
    """Call arguments as a search should find them: one argument a line, strings without JSON escapes."""
    if isinstance(arguments, dict):
        return "\n".join(f"{name}: {value_text(value)}" for name, value in arguments.items())
    return value_text(arguments)


def value_text(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)


def result_part(family: CallFamily, call_id: Any, inner: list[Part], index: int, is_error: bool = False) -> Part:
    """A result is searched by the text of its blocks, identified by all of them, and has their media and references."""
    call_id = string_or_empty(call_id)
    inner_identity = [part.identity for part in inner if part.identity is not None]
    return Part(
        "result",
        "\n".join(part.text for part in inner if part.text and part.kind in _RESULT_TEXTS),
        ["result", family, call_id, inner_identity, is_error],
        call_id=f"{family}:{call_id}",
        index=index,
        media=tuple(kind for part in inner for kind in part.media),
        references=tuple(name for part in inner for name in part.references),
        text_alone=all(part.kind != "opaque" for part in inner),
    )


# --- text in content --------------------------------------------------------------------------------------


def replace_text(content: Any, text: str, is_text: Callable[[Any], bool]) -> Any:
    """Result content with all its text in one block, where the first one was; other blocks keep their places, a string
    stays a string. The last cache breakpoint on a text block moves to the one that is left."""
    if not isinstance(content, list):
        return text
    texts = [i for i, block in enumerate(content) if is_text(block)]
    marker = next((marker for i in reversed(texts) if (marker := content[i].get("cache_control"))), None)
    out: list[Any] = []
    for i, block in enumerate(content):
        if i not in texts:
            out.append(block)
        elif i == texts[0]:
            out.append({**block, "text": text} | ({"cache_control": marker} if marker else {}))
    return out


def put_text_before(content: Any, text: str, text_type: str, at: int = 0) -> Any:
    """Content with a text block before the block at `at`; a string gets the text before its own, with an empty line
    between. Content that is neither holds nothing that the text could stand before: it becomes the text."""
    if isinstance(content, list):
        return [*content[:at], {"type": text_type, "text": text}, *content[at:]]
    return f"{text}\n\n{content}" if isinstance(content, str) and content else text


def put_text_after(content: Any, text: str, text_type: str) -> Any:
    """Content with the text at its end, the very same content where it holds that text already. Content that is
    neither a list nor a string becomes the text."""
    if isinstance(content, list):
        if any(text in text_of(block) for block in content):
            return content
        return [*content, {"type": text_type, "text": text}]
    if isinstance(content, str) and content:
        return content if text in content else f"{content}\n\n{text}"
    return text
