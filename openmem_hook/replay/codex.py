"""Codex rollout files (JSONL): a step before each run of model outputs, its prompt every item so far.

`response_item` records are the conversation in order. A token count after them reports the request that made
the newest run; the client repeats old counts at the start of a turn and after a compaction, and there the
total does not grow. What a run left open is settled when the next request goes out, so that
what was sent once stays as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openmem_hook.replay.codex_items import OUTPUTS, complete_step, is_output, is_sound, is_typed, settle, user_item
from openmem_hook.replay.records import as_count, as_dict, as_text
from openmem_hook.replay.transcript import Branches, Message, Record, Step, Transcript

_CLIENT_ONLY = frozenset({"metadata", "internal_chat_message_metadata_passthrough"})
"""Fields of the file that no provider is sent."""


def read(path: Path, records: list[Record], omissions: Counter[str]) -> Transcript:
    """The session of one rollout. Encrypted reasoning that a file lost is replaced by as much noise."""
    rollout = _Rollout(omissions)
    for record in records:
        rollout.take(record)
    meta = rollout.meta
    session_id = str(meta.get("session_id") or meta.get("id") or path.name.split(".")[0])
    return Transcript(
        path=path,
        client="codex",
        format="responses",
        session_id=session_id,
        version=str(meta.get("cli_version") or "0.140.0"),
        steps=tuple(rollout.finish()),
        tools=rollout.tools,
        omissions=omissions,
        repairs=rollout.repairs,
        metadata={
            "instructions": _instructions(meta.get("base_instructions")),
            "thread_id": str(meta.get("id") or session_id),
            "parent": _parent_thread(meta.get("source")),
            "originator": str(meta.get("originator") or "codex_cli_rs"),
        },
    )


def _instructions(value: Any) -> str:
    text = value.get("text") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def _parent_thread(source: Any) -> str:
    """The thread that started this one, if it is a sub-agent: `{"subagent": {"thread_spawn": {…}}}`."""
    for key in ("subagent", "thread_spawn"):
        source = source.get(key) if isinstance(source, dict) else None
    return str(source.get("parent_thread_id") or "") if isinstance(source, dict) else ""


class _Rollout:
    """The conversation so far."""

    def __init__(self, omissions: Counter[str]) -> None:
        self.meta: Record = {}
        self.tools: dict[str, dict[str, Any]] = {}
        self.repairs: Counter[str] = Counter()
        self._omissions = omissions
        self._steps: list[Step] = []
        self._branches = Branches()

        self._path: list[int] = []
        """The steps that this conversation went through, without those the person went back from."""

        self._history: list[Message] = []

        self._compaction: tuple[int, list[Message]] | None = None
        """Length of the history at the newest compaction, and what the client put in its place."""

        self._segment = 0

        self._run: list[Message] = []
        """What came since the newest request, not settled yet."""

        self._replying = False
        """Whether the newest item is an output of the model, so that another one is of the same response."""

        self._turn: Record = {}

        self._total = -1
        """Tokens of the session at the newest count."""

        self._usage: Record | None = None
        """The count of the newest request."""

    def take(self, record: Record) -> None:
        """Take in the next record of the file."""
        payload = as_dict(record.get("payload"))
        kind = str(record.get("type"))
        kind = f"event {payload.get('type')}" if kind == "event_msg" else kind
        handler = _RECORDS.get(kind)
        if handler is None:
            self._omissions[f"record {kind}"] += 1
        else:
            handler(self, payload, record)

    def finish(self) -> list[Step]:
        """All steps, the last one with what the file still has of its answer."""
        self._settle()
        return self._steps

    def _take_meta(self, payload: Record, _record: Record) -> None:
        self.meta = self.meta or payload

    def _take_turn(self, payload: Record, _record: Record) -> None:
        self._turn = payload

    def _take_item(self, payload: Record, record: Record) -> None:
        kind = payload.get("type")
        if not is_sound(payload):
            self._omissions["malformed item"] += 1
            return
        if is_output(payload):
            if not self._replying:
                self._send(record)
            self._note_tool(payload)
        elif kind in OUTPUTS or kind == "message":
            self._replying = False
        else:
            self._omissions[f"item {kind}"] += 1
            return
        self._run.append({key: value for key, value in payload.items() if key not in _CLIENT_ONLY})

    def _note_tool(self, item: Record) -> None:
        kind = str(item.get("type"))
        if kind in ("function_call", "custom_tool_call"):
            self.tools.setdefault(str(item.get("name")), {"kind": kind, "namespace": item.get("namespace")})
        elif kind.endswith("_call"):
            self.tools.setdefault(kind.removesuffix("_call"), {"kind": kind})

    def _take_count(self, payload: Record, _record: Record) -> None:
        info = as_dict(payload.get("info"))
        if not info or not self._steps:
            return
        total = as_count(as_dict(info.get("total_token_usage")).get("total_tokens")) or 0
        usage = as_dict(info.get("last_token_usage"))
        if total <= self._total or self._usage or not as_count(usage.get("input_tokens")):
            self._omissions["token count of no request"] += 1
            return
        self._total, self._usage, self._replying = total, usage, False

    def _take_compaction(self, payload: Record, _record: Record) -> None:
        self._settle()
        replacement = payload.get("replacement_history")
        if not isinstance(replacement, list):
            replacement = [user_item(str(payload.get("message") or ""))]
        self._compaction = len(self._history), [item for item in replacement if is_sound(item)]
        self._segment += 1

    def _take_rollback(self, payload: Record, _record: Record) -> None:
        """The person went back some turns: the history ends before the n-th last message they typed."""
        self._settle()
        prompts = [place for place, item in enumerate(self._history) if is_typed(item)]
        turns = payload.get("num_turns")
        if not isinstance(turns, int) or not 0 < turns <= len(prompts):
            self._omissions["rollback out of range"] += 1
            return
        del self._history[prompts[-turns] :]
        if self._compaction and self._compaction[0] > len(self._history):
            self._compaction = None
        while self._path and len(self._steps[self._path[-1]].messages) >= len(self._history):
            self._path.pop()

    def _send(self, record: Record) -> None:
        """A model output begins, so a request with everything so far must have gone out."""
        self._settle()
        messages, compaction = list(self._history), self._compaction
        parent = self._path[-1] if self._path else None
        self._steps.append(
            Step(
                messages=messages,
                actual_messages=[*compaction[1], *messages[compaction[0] :]] if compaction else messages,
                reply=(),
                usage=None,
                model=as_text(self._turn.get("model")) or "gpt-5.5",
                branch=self._branches.add_step(parent),
                segment=self._segment,
                parent=parent,
                sent_at=as_text(record.get("timestamp")) or None,
                ids=(as_text(self._turn.get("turn_id")),),
                extra={"effort": as_text(self._turn.get("effort"))},
            )
        )
        self._path.append(len(self._steps) - 1)
        self._replying = True

    def _settle(self) -> None:
        """Move what came since the last request into the history, mended, and complete that request."""
        items = settle(self._run, self._usage, str(len(self._steps)), self.repairs)
        if self._steps:
            self._steps[-1] = complete_step(self._steps[-1], items, self._usage)
        self._history.extend(items)
        self._run, self._usage, self._replying = [], None, False


_RECORDS: dict[str, Callable[[_Rollout, Record, Record], None]] = {
    "session_meta": _Rollout._take_meta,
    "turn_context": _Rollout._take_turn,
    "response_item": _Rollout._take_item,
    "compacted": _Rollout._take_compaction,
    "event token_count": _Rollout._take_count,
    "event thread_rolled_back": _Rollout._take_rollback,
}
