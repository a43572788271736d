"""Turning a choice into a cut: the head as finished JSON, with the pointer and its map."""

from __future__ import annotations

import re
from collections.abc import Sequence

from openmem_hook import fingerprint
from openmem_hook.compaction import wording
from openmem_hook.compaction.edits import Cut, SwapMap, sent_message
from openmem_hook.compaction.standing import trail
from openmem_hook.compaction.trim import Choice
from openmem_hook.facts import INTERJECTION_PREFIX, facts_of_message
from openmem_hook.model import INTERJECTIONS, Adapter, FileMention, History, HistoryCache, Part, Raw
from openmem_hook.tokens import ZERO

_SEARCH_TOOL = "smart_compact_search"
_PATH = re.compile(r"^(?:file_path|filePath|path|filename|notebook_path|target_file): (.+)$", re.MULTILINE)
_PATCHED = re.compile(r"\*\*\* (?:Update|Add|Delete) File: ([^\n\\]+)")
_WRITES = re.compile(r"write|edit|patch|create|replace", re.IGNORECASE)


def freeze(
    adapter: Adapter,
    history: History,
    choice: Choice,
    swaps: SwapMap,
    session: str,
    reason: str,
    generation: int,
    memo: HistoryCache,
) -> Cut:
    """The cut for a choice. Nothing in it depends on anything but its arguments. `memo` is read and added to."""
    text = wording.pointer(session, trimmed(adapter, history, choice, memo))
    head: list[Raw] = []
    shown: list[bytes] = []
    for i in choice.kept:
        whole = i > choice.turn or history.facts[i].kind in ("call", "result")
        raw = adapter.freeze_message(sent_message(adapter, history, i, swaps), keep_thinking=whole)
        if raw is None:
            continue
        head.append(adapter.with_pointer(raw, text) if i == choice.carrier else raw)
        if history.facts[i].identifies:
            shown.append(history.facts[i].digest)
    if choice.carrier is None:
        head.append(adapter.with_pointer({"role": "user", "content": ""}, text))
    payload = fingerprint.dump(head)
    anchor = choice.anchor
    return Cut(
        id=fingerprint.short_id(history.keys[anchor], payload),
        anchor=history.keys[anchor],
        anchor_digest=history.facts[anchor].digest,
        anchor_unique=bool(history.facts[anchor].answers or history.facts[anchor].calls),
        before=_before(history, anchor),
        trail=trail(history, anchor),
        head=payload,
        shown=tuple(shown),
        head_sizes=sum((facts_of_message(adapter, raw, 0).sizes for raw in head), ZERO),
        reason=reason,
        generation=generation,
        format=adapter.name,
        place=anchor - history.lead,
    )


def _before(history: History, anchor: int) -> bytes | None:
    places = range(anchor - 1, history.lead - 1, -1)
    return next((history.facts[i].digest for i in places if history.facts[i].identifies), None)


def trimmed(adapter: Adapter, history: History, choice: Choice, memo: HistoryCache) -> wording.Trimmed:
    """The pointer's map: made by rule from what left, the latest mention of a file last."""
    typed: list[str] = []
    read: dict[str, None] = {}
    written: dict[str, None] = {}
    dropped = choice.dropped(history)
    for i in dropped:
        fact = history.facts[i]
        if fact.kind == "typed" or fact.kind in INTERJECTIONS:
            typed.append(_words(adapter.parts_of(history.messages[i])))
        elif fact.calls:
            for file in _files_of(adapter, history, i, memo):
                target = written if file.is_written else read
                target.pop(file.path, None)
                target[file.path] = None
    return wording.Trimmed(
        messages=len(dropped),
        turns=sum(history.facts[i].kind == "typed" for i in dropped),
        typed=[words for words in typed if words],
        read=[path for path in read if path not in written],
        written=list(written),
        has_tool=any(_SEARCH_TOOL in name for name in history.tool_names),
    )


def _words(parts: Sequence[Part]) -> str:
    """What a person said in a message, without what a client puts in front of it."""
    said = (part.text.strip().removeprefix(INTERJECTION_PREFIX).strip() for part in parts if part.kind == "text")
    return " ".join(text for text in said if text)


def _files_of(adapter: Adapter, history: History, index: int, memo: HistoryCache) -> Sequence[FileMention]:
    digest = history.facts[index].digest
    known = memo.files.get(digest)
    if known is None:
        calls = [part for part in adapter.parts_of(history.messages[index]) if part.kind == "call"]
        known = memo.files[digest] = [file for part in calls for file in _named_files(part)]
    return known


def _named_files(call: Part) -> list[FileMention]:
    """Files that a call names by an argument."""
    patched = _PATCHED.findall(call.text)
    written = bool(patched or writes(call.name))
    return [FileMention(path, written) for path in [*patched, *_PATH.findall(call.text)]]


def writes(tool_name: str) -> bool:
    """Whether a tool changes files, by its name."""
    return _WRITES.search(tool_name) is not None
