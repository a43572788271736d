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

from openmem_hook.replay.records import as_count, as_dict, as_text
from openmem_hook.replay.transcript import Branches, Message, Record, ReportedUsage, Step, Transcript

_LAST_MS = 253_402_300_799_000
"""The end of the year 9999, where Python's dates end, in milliseconds since 1970."""

LOST_MESSAGE = "[A message that the export does not hold]"
INTERRUPTION = "[Tool execution was interrupted]"


def read(path: Path, document: Record, omissions: Counter[str]) -> Transcript:
    """The session of one export."""
    info = as_dict(document.get("info"))
    export = _Export(omissions)
    for message in document["messages"]:
        message_info = as_dict(as_dict(message).get("info"))
        parts = as_dict(message).get("parts")
        if message_info and isinstance(parts, list):
            export.take(message_info, [part for part in parts if _is_sound(part)])
            omissions["malformed part"] += sum(not _is_sound(part) for part in parts)
        else:
            omissions["malformed message"] += 1
    return Transcript(
        path=path,
        client="opencode",
        format="chat",
        session_id=str(info.get("id") or path.name.split(".")[0]),
        version=str(info.get("version") or "1.0.0"),
        steps=tuple(export.steps),
        tools=export.tools,
        omissions=+omissions,
        repairs=export.repairs,
        metadata={"parent": str(info.get("parentID") or "")},
    )


class _Export:
    """The conversation so far, in a straight line: an export holds no branches."""

    def __init__(self, omissions: Counter[str]) -> None:
        self.steps: list[Step] = []
        self.tools: dict[str, dict[str, Any]] = {}
        self.repairs: Counter[str] = Counter()
        self._omissions = omissions
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
                self._omissions["compaction"] += 1
            elif message := _user(parts):
                self._history.append(message)
        elif info.get("role") != "assistant":
            self._omissions[f"message {info.get('role')}"] += 1
        elif info.get("summary") is True:
            text = _joined_text(parts)
            self._summary = len(self._history), [{"role": "user", "content": text}] if text else []
            self._segment += 1
        elif info.get("error") and not kinds & {"text", "tool"}:
            self._omissions["failed request"] += 1
        else:
            self._take_answer(info, parts)

    def _take_answer(self, info: Record, parts: list[Record]) -> None:
        """Adds a step for each response of the message: its request ends before it."""
        answers = _by_step(parts)
        for answer in answers:
            self._note_tools(answer)
            reply, results = _answer(answer)

            # The counts of the response, or of the message where it is the only one.
            finish = next((part for part in answer if part.get("type") == "step-finish"), {})
            tokens = finish.get("tokens") or (info.get("tokens") if len(answers) == 1 else None)

            # A request ends with what the model answers.
            if not self._history or self._history[-1]["role"] == "assistant":
                self.repairs["lost message"] += 1
                self._history.append({"role": "user", "content": LOST_MESSAGE})

            messages = list(self._history)
            at, head = self._summary or (0, [])
            parent = len(self.steps) - 1 if self.steps else None
            self.steps.append(
                Step(
                    messages=messages,
                    actual_messages=[*head, *messages[at:]] if self._summary else messages,
                    reply=tuple(reply),
                    usage=_usage(tokens),
                    model=as_text(info.get("modelID")),
                    branch=self._branches.add_step(parent),
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
                tool = self.tools.setdefault(str(part.get("tool")), {"arguments": set()})
                tool["arguments"].update(as_dict(_state(part).get("input")))
                if _state(part).get("status") not in ("completed", "error"):
                    self.repairs["call without a result"] += 1
            elif part.get("type") not in _PART_TYPES:
                self._omissions[f"part {part.get('type')}"] += 1


_PART_TYPES = frozenset({"text", "tool", "step-start", "step-finish", "reasoning", "patch", "snapshot", "file"})


def _is_sound(part: Any) -> bool:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return False
    return part["type"] != "tool" or all(isinstance(part.get(name), str) for name in ("callID", "tool"))


def _state(part: Record) -> Record:
    return as_dict(part.get("state"))


def _joined_text(parts: list[Record]) -> str:
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
    """The assistant's message (none if it holds nothing) and the results of its calls."""
    tools = [part for part in parts if part["type"] == "tool"]
    calls = [
        {
            "id": part["callID"],
            "type": "function",
            "function": {"name": part.get("tool"), "arguments": _arguments(part)},
        }
        for part in tools
    ]
    text = _joined_text(parts)
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
    return str(state.get(key) or "") if key else INTERRUPTION


def _usage(tokens: Any) -> ReportedUsage | None:
    """`input` is what the cache had no part in; a message without counts has zeros throughout."""
    counts, cache = as_dict(tokens), as_dict(as_dict(tokens).get("cache"))
    fresh = as_count(counts.get("input"))
    read_, write = as_count(cache.get("read")), as_count(cache.get("write"))
    prompt = (fresh or 0) + (read_ or 0) + (write or 0)
    if fresh is None or not prompt:
        return None
    return ReportedUsage(prompt, read_, write, as_count(counts.get("output")))


def _time(info: Record) -> str | None:
    milliseconds = as_count(as_dict(info.get("time")).get("created"))
    if milliseconds is None or milliseconds > _LAST_MS:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat().replace("+00:00", "Z")
