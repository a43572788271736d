"""Turning a choice into a cut: the head as finished JSON, with the pointer and its map."""

from __future__ import annotations

import re
from collections.abc import Sequence

from openmem_hook import fingerprint
from openmem_hook.compaction import wording
from openmem_hook.compaction.active import ActiveEdits, find_digest_before, find_recent_outputs
from openmem_hook.compaction.edits import BreakReason, Cut
from openmem_hook.compaction.outgoing import outgoing_messages
from openmem_hook.compaction.trim import Choice
from openmem_hook.facts import INTERJECTION_PREFIX, facts_of_message
from openmem_hook.model import INTERJECTIONS, Adapter, FileMention, History, HistoryCache, Part, Raw
from openmem_hook.tokens import ZERO

_SEARCH_TOOL = "smart_compact_search"
_PATH = re.compile(r"^(?:file_path|filePath|path|filename|notebook_path|target_file): (.+)$", re.MULTILINE)
_PATCH_FILE = re.compile(r"\*\*\* (?:Update|Add|Delete) File: ([^\n\\]+)")
_WRITES = re.compile(r"write|edit|patch|create|replace", re.IGNORECASE)


def freeze(
    adapter: Adapter,
    history: History,
    choice: Choice,
    edits: ActiveEdits,
    session: str,
    reason: BreakReason,
    generation: int,
    cache: HistoryCache,
) -> Cut:
    """The cut for a choice. Nothing in it depends on anything but its arguments. `cache` is read and added to."""
    text = wording.pointer(session, describe_removal(adapter, history, choice, cache))
    head: list[Raw] = []
    shown_digests: list[bytes] = []
    inner_cuts = {i: active for active in edits.inner_cuts for i in range(active.start, active.anchor + 1)}
    last_inner, has_pointer = None, False
    for i in choice.head_indices:
        # What an inner cut replaced stays so, as a whole, at the first of its messages that stays.
        inner = inner_cuts.get(i)
        if inner is not None:
            if inner is not last_inner:
                head += fingerprint.load(inner.cut.head)
                shown_digests += inner.cut.shown_digests
            last_inner = inner
            continue
        # Finished turns go without thinking. A call keeps it, since a provider may want to see it there again, and so
        # does the running turn.
        keep_thinking = i > choice.turn or history.facts[i].kind in ("call", "result")
        raws = outgoing_messages(adapter, history, range(i, i + 1), edits)
        messages = [message for raw in raws if (message := adapter.freeze_message(raw, keep_thinking)) is not None]
        if messages and i == choice.carrier:
            messages[0], has_pointer = adapter.with_pointer(messages[0], text), True
        head += messages
        if messages and history.facts[i].identifies:
            shown_digests.append(history.facts[i].digest)
    if not has_pointer:
        head.append(adapter.with_pointer({"role": "user", "content": ""}, text))
    payload = fingerprint.dump(head)
    anchor = choice.anchor
    return Cut(
        id=fingerprint.short_id(history.keys[anchor], payload),
        anchor=history.keys[anchor],
        anchor_digest=history.facts[anchor].digest,
        anchor_unique=bool(history.facts[anchor].answers or history.facts[anchor].calls),
        before=find_digest_before(history, anchor),
        recent_outputs=find_recent_outputs(history, anchor),
        head=payload,
        head_sizes=sum((facts_of_message(adapter, raw, 0).sizes for raw in head), ZERO),
        shown_digests=tuple(shown_digests),
        reason=reason,
        generation=generation,
        format=adapter.name,
        position=anchor - history.lead,
    )


def describe_removal(adapter: Adapter, history: History, choice: Choice, cache: HistoryCache) -> wording.Removal:
    """The pointer's map: made by rule from what left, the latest mention of a file last."""
    requests: list[str] = []
    read: dict[str, None] = {}
    edits: dict[str, None] = {}
    removed_indices = choice.removed_indices(history)
    for i in removed_indices:
        fact = history.facts[i]
        if fact.kind == "typed" or fact.kind in INTERJECTIONS:
            requests.append(_typed_words(adapter.parts_of(history.messages[i])))
        elif fact.calls:
            for file in _files_of(adapter, history, i, cache):
                mentions = edits if file.is_written else read
                mentions.pop(file.path, None)
                mentions[file.path] = None
    return wording.Removal(
        messages=len(removed_indices),
        turns=sum(history.facts[i].kind == "typed" for i in removed_indices),
        requests=[words for words in requests if words],
        files_read=[path for path in read if path not in edits],
        files_written=list(edits),
        has_tool=any(_SEARCH_TOOL in name for name in history.tool_names),
    )


def _typed_words(parts: Sequence[Part]) -> str:
    """What a person said in a message, without what a client puts in front of it."""
    texts = (part.text.strip().removeprefix(INTERJECTION_PREFIX).strip() for part in parts if part.kind == "text")
    return " ".join(text for text in texts if text)


def _files_of(adapter: Adapter, history: History, index: int, cache: HistoryCache) -> Sequence[FileMention]:
    """Files that the calls of an output name by an argument or in a patch."""
    digest = history.facts[index].digest
    files = cache.files.get(digest)
    if files is None:
        files = cache.files[digest] = [
            FileMention(path, bool(in_patch) or writes(call.name))
            for call in adapter.parts_of(history.messages[index])
            if call.kind == "call"
            for in_patch in [_PATCH_FILE.findall(call.text)]
            for path in [*in_patch, *_PATH.findall(call.text)]
        ]
    return files


def writes(tool_name: str) -> bool:
    """Whether a tool changes files, by its name."""
    return _WRITES.search(tool_name) is not None
