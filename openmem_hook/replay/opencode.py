"""OpenCode exports (`opencode export`, one JSON document) as chat requests.

The subset read: `info` with the session id and `parentID`, and `messages` of `{info, parts}`. Parts of the
kinds text, file (pictures), tool, step-start and step-finish make messages; reasoning, patches and snapshots
are never sent to a chat endpoint. A message of the assistant is one response, or several where `step-start`
parts divide it. A user message with a `compaction` part and the answer marked `summary` are the client's own
compaction; an output it pruned later (`time.compacted`) was sent whole before and stays whole here.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from openmem_hook.replay.session import Branches, Message, Record, Recorded, Session, Step
from openmem_hook.replay.transcript import as_count, as_dict, as_text

_LAST_MS = 253_402_300_799_000
"""The end of the year 9999, where Python's dates end."""

LOST_MESSAGE = "[A message that the export does not hold]"
INTERRUPTED = "[Tool execution was interrupted]"


def read(path: Path, document: Record, skipped: Counter[str]) -> Session:
    """The session of one export."""
    info = as_dict(document.get("info"))
    export = _Export(skipped)
    for message in document["messages"]:
        said = as_dict(as_dict(message).get("info"))
        parts = as_dict(message).get("parts")
        if said and isinstance(parts, list):
            export.take(said, [part for part in parts if _is_sound(part)])
            skipped["malformed part"] += sum(not _is_sound(part) for part in parts)
        else:
            skipped["malformed message"] += 1
    return Session(
        path=path,
        client="opencode",
        format="chat",
        session_id=str(info.get("id") or path.name.split(".")[0]),
        version=str(info.get("version") or "1.0.0"),
        steps=tuple(export.steps),
        tools=export.tools,
        skipped=+skipped,
        repaired=export.repaired,
        about={"parent": str(info.get("parentID") or "")},
    )


class _Export:
    """The conversation so far, in a straight line: an export holds no branches."""

    def __init__(self, skipped: Counter[str]) -> None:
        self.steps: list[Step] = []
        self.tools: dict[str, dict[str, Any]] = {}
        self.repaired: Counter[str] = Counter()
        self._skipped = skipped
        self._branches = Branches()
        self._history: list[Message] = []
        self._summary: tuple[int, list[Message]] | None = None
        """Length of the history at the newest compaction, and what was sent in its place."""
        self._segment = 0

    def take(self, info: Record, parts: list[Record]) -> None:
        """Take in the next message."""
        kinds = {part.get("type") for part in parts}
        if info.get("role") == "user":
            if "compaction" in kinds:
                self._skipped["compaction"] += 1
            elif message := _user(parts):
                self._history.append(message)
        elif info.get("role") != "assistant":
            self._skipped[f"message {info.get('role')}"] += 1
        elif info.get("summary") is True:
            text = _said(parts)
            self._summary = len(self._history), [{"role": "user", "content": text}] if text else []
            self._segment += 1
        elif info.get("error") and not kinds & {"text", "tool"}:
            self._skipped["failed request"] += 1
        else:
            self._take_answer(info, parts)

    def _take_answer(self, info: Record, parts: list[Record]) -> None:
        answers = _by_step(parts)
        for answer in answers:
            self._note_tools(answer)
            reply, results = _answer(answer)
            finish = next((part for part in answer if part.get("type") == "step-finish"), {})
            tokens = finish.get("tokens") or (info.get("tokens") if len(answers) == 1 else None)
            if not self._history or self._history[-1]["role"] == "assistant":
                self.repaired["lost message"] += 1
                self._history.append({"role": "user", "content": LOST_MESSAGE})
            messages = list(self._history)
            at, head = self._summary or (0, [])
            parent = len(self.steps) - 1 if self.steps else None
            self.steps.append(
                Step(
                    messages=messages,
                    sent=[*head, *messages[at:]] if self._summary else messages,
                    reply=tuple(reply),
                    recorded=_recorded(tokens),
                    model=as_text(info.get("modelID")),
                    branch=self._branches.place(parent),
                    segment=self._segment,
                    parent=parent,
                    sent_at=_time(info),
                    ids=(str(info.get("id") or ""),),
                )
            )
            self._history += [*reply, *results]

    def _note_tools(self, parts: list[Record]) -> None:
        for part in parts:
            if part.get("type") == "tool":
                about = self.tools.setdefault(str(part.get("tool")), {"arguments": set()})
                about["arguments"].update(as_dict(_state(part).get("input")))
                if _state(part).get("status") not in ("completed", "error"):
                    self.repaired["call without a result"] += 1
            elif part.get("type") not in _KNOWN:
                self._skipped[f"part {part.get('type')}"] += 1


_KNOWN = frozenset({"text", "tool", "step-start", "step-finish", "reasoning", "patch", "snapshot", "file"})


def _is_sound(part: Any) -> bool:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return False
    return part["type"] != "tool" or all(isinstance(part.get(name), str) for name in ("callID", "tool"))


def _state(part: Record) -> Record:
    return as_dict(part.get("state"))


def _said(parts: list[Record]) -> str:
    return "".join(part["text"] for part in parts if _is_text(part))


def _is_text(part: Record) -> bool:
    return part.get("type") == "text" and bool(as_text(part.get("text"))) and not part.get("ignored")


def _user(parts: list[Record]) -> Message | None:
    blocks: list[Message] = []
    for part in parts:
        if _is_text(part):
            blocks.append({"type": "text", "text": part["text"]})
        elif part.get("type") == "file" and str(part.get("mime", "")).startswith("image/"):
            blocks.append({"type": "image_url", "image_url": {"url": part.get("url", "")}})
    if len(blocks) == 1 and blocks[0]["type"] == "text":
        return {"role": "user", "content": blocks[0]["text"]}
    return {"role": "user", "content": blocks} if blocks else None


def _by_step(parts: list[Record]) -> list[list[Record]]:
    steps: list[list[Record]] = [[]]
    for part in parts:
        if part.get("type") == "step-start" and any(p.get("type") != "step-start" for p in steps[-1]):
            steps.append([])
        steps[-1].append(part)
    return steps


def _answer(parts: list[Record]) -> tuple[list[Message], list[Message]]:
    """The assistant's message (none if it said and did nothing) and the results of its calls."""
    tools = [part for part in parts if part["type"] == "tool"]
    calls = [
        {
            "id": part["callID"],
            "type": "function",
            "function": {"name": part.get("tool"), "arguments": _arguments(part)},
        }
        for part in tools
    ]
    text = _said(parts)
    if not text and not calls:
        return [], []
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = calls
    results = [{"role": "tool", "tool_call_id": part["callID"], "content": _result(part)} for part in tools]
    return [message], results


def _arguments(part: Record) -> str:
    return orjson.dumps(as_dict(_state(part).get("input"))).decode()


def _result(part: Record) -> str:
    state = _state(part)
    key = {"completed": "output", "error": "error"}.get(str(state.get("status")))
    return str(state.get(key) or "") if key else INTERRUPTED


def _recorded(tokens: Any) -> Recorded | None:
    """`input` is what the cache had no part in; a message without counts has zeros throughout."""
    counts, cache = as_dict(tokens), as_dict(as_dict(tokens).get("cache"))
    fresh = as_count(counts.get("input"))
    read_, written = as_count(cache.get("read")), as_count(cache.get("write"))
    prompt = (fresh or 0) + (read_ or 0) + (written or 0)
    if fresh is None or not prompt:
        return None
    return Recorded(prompt, read_, written, as_count(counts.get("output")))


def _time(info: Record) -> str | None:
    created = as_count(as_dict(info.get("time")).get("created"))
    if created is None or created > _LAST_MS:
        return None
    return datetime.fromtimestamp(created / 1000, UTC).isoformat().replace("+00:00", "Z")
