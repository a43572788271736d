"""Prompt tokens as a provider would report them, from a tokenizer the hook has no reason to use.

The vocabulary is the JSON file that ships inside the installed LiteLLM, found without importing that package
(its import takes seconds and asks the network for prices). What counts is the text a model would read, and
a few tokens of framing for each block; pictures cost a fixed budget, opaque text its bytes over four.
Blocks are remembered by digest, so a history of 2 MB is tokenized once and then costs one hash per block.
"""

from __future__ import annotations

import hashlib
import importlib.util
from array import array
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import orjson
from tokenizers import Tokenizer

from openmem_hook.replay.provider.canonical import without_breakpoints
from openmem_hook.replay.transcript import Format

MEDIA_TOKENS = 1600
"""Tokens of a picture or document: Anthropic's figure for the largest picture it doesn't scale down."""

FRAME_TOKENS = 4
"""Tokens of framing for each block. Assumed."""

MAX_BLOCKS = 200_000
"""Blocks whose tokens are remembered."""

MEDIA_TYPES = frozenset({"image", "document", "image_url", "file", "input_image", "input_file", "input_audio"})
OPAQUE_KEYS = frozenset({"signature", "encrypted_content", "data"})
SILENT_KEYS = frozenset({"type", "id", "status", "annotations", "cache_control"})

Ids: TypeAlias = "array[int]"


@lru_cache(maxsize=1)
def tokenizer() -> Tokenizer:
    """The tokenizer of LiteLLM's file. Raises RuntimeError where LiteLLM is not installed."""
    spec = importlib.util.find_spec("litellm")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("litellm is not installed: its tokenizer file is what the kit counts with")
    folder = Path(next(iter(spec.submodule_search_locations))) / "litellm_core_utils" / "tokenizers"
    return Tokenizer.from_file(str(folder / "anthropic_tokenizer.json"))


def count_text(text: str) -> int:
    """Tokens of a text by itself."""
    return len(tokenizer().encode(text, add_special_tokens=False).ids)


def prompt_tokens(body: dict[str, Any], fmt: Format) -> int:
    """Tokens of tools, system prompt and messages together."""
    return sum(len(ids) for _, ids in prompt_blocks(body, fmt))


def prompt_blocks(body: dict[str, Any], fmt: Format) -> list[tuple[bytes, Ids]]:
    """Every block in the order a provider reads it: its digest (breakpoints ignored) and its token ids."""
    return [_count(part) for part in prompt_parts(body, fmt)]


def message_tokens(message: dict[str, Any], fmt: Format) -> int:
    """Tokens of one message (in Responses: one item)."""
    parts = [message] if fmt == "responses" else message_parts(message)
    return sum(len(_count(part)[1]) for part in parts)


def prompt_parts(body: dict[str, Any], fmt: Format) -> Iterator[Any]:
    """Tools, then system prompt, then the blocks of the messages, each with its role beside it."""
    yield from body.get("tools") or []
    if fmt == "responses":
        if body.get("instructions"):
            yield {"role": "system", "text": body["instructions"]}
        items = body.get("input")
        yield from [{"role": "user", "text": items}] if isinstance(items, str) else items or []
        return
    system = body.get("system")
    yield from [{"type": "text", "text": system}] if isinstance(system, str) and system else system or []
    for message in body.get("messages") or []:
        yield from message_parts(message)


def message_parts(message: dict[str, Any]) -> Iterator[Any]:
    """The blocks of a message; a string reads as one text block."""
    role, content = message.get("role"), message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    for block in content or []:
        yield {"role": role, "block": block}
    for call in message.get("tool_calls") or []:
        yield {"role": role, "block": call}


_by_digest: dict[bytes, Ids] = {}
_by_bytes: dict[bytes, tuple[bytes, Ids]] = {}


def _count(part: Any) -> tuple[bytes, Ids]:
    """Digest and ids of a block. First by its bytes, which are mostly the same objects again; then by what a model
    reads of them."""
    raw = hashlib.blake2b(orjson.dumps(part), digest_size=16).digest()
    block = _by_bytes.get(raw)
    if block is None:
        if len(_by_bytes) >= MAX_BLOCKS:
            _by_bytes.clear()
        block = _by_bytes[raw] = _count_canonical(part)
    return block


def _count_canonical(part: Any) -> tuple[bytes, Ids]:
    canonical = orjson.dumps(without_breakpoints(part), option=orjson.OPT_SORT_KEYS)
    digest = hashlib.blake2b(canonical, digest_size=16).digest()
    ids = _by_digest.get(digest)
    if ids is None:
        if len(_by_digest) >= MAX_BLOCKS:
            _by_digest.clear()
        ids = _by_digest[digest] = _tokenize(part, digest)
    return digest, ids


def _tokenize(part: Any, digest: bytes) -> Ids:
    """Ids of the text, then invented ones for framing and opaque values, which the digest makes the block's own."""
    ids: Ids = array("I", tokenizer().encode("\n".join(_texts(part)), add_special_tokens=False).ids)
    ids.extend([int.from_bytes(digest[:4], "big")] * (FRAME_TOKENS + _opaque_tokens(part)))
    return ids


def _texts(value: Any) -> Iterator[str]:
    """All that a model reads of a value: strings at any depth, arguments as JSON, no ids and no media."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, dict) and str(value.get("type")) not in MEDIA_TYPES:
        for key, inner in value.items():
            if key in SILENT_KEYS or key in OPAQUE_KEYS:
                continue
            if key in {"input", "parameters", "input_schema"} and isinstance(inner, dict):
                yield orjson.dumps(inner).decode()
            else:
                yield from _texts(inner)
    elif isinstance(value, int | float):
        yield str(value)


def _opaque_tokens(value: Any) -> int:
    if isinstance(value, list):
        return sum(_opaque_tokens(inner) for inner in value)
    if not isinstance(value, dict):
        return 0
    if str(value.get("type")) in MEDIA_TYPES:
        return MEDIA_TOKENS
    texts = [inner for key, inner in value.items() if key in OPAQUE_KEYS and isinstance(inner, str)]
    return sum(len(text) // 4 for text in texts) + sum(_opaque_tokens(inner) for inner in value.values())
