"""Codex rollout files (JSONL): a step before each run of model outputs, its prompt every item so far.

`response_item` records are the conversation in order. A token count after them reports the request that made
the newest run; the client repeats old counts at the start of a turn and after a compaction, and those are
told by a total that did not grow. What a run left open is settled when the next request goes out, so that
what was sent once stays as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openmem_hook.replay.codex_items import OUTPUTS, answered, is_output, is_sound, is_typed, settle, user
from openmem_hook.replay.session import Branches, Message, Record, Session, Step
from openmem_hook.replay.transcript import as_count, as_dict, as_text

_CLIENT_ONLY = frozenset({"metadata", "internal_chat_message_metadata_passthrough"})
"""Fields of the file that no provider is sent."""


def read(path: Path, records: list[Record], skipped: Counter[str]) -> Session:
    """The session of one rollout. Encrypted reasoning that a file lost is replaced by as much noise."""
    rollout = _Rollout(skipped)
    for record in records:
        rollout.take(record)
    meta = rollout.meta
    session_id = str(meta.get("session_id") or meta.get("id") or path.name.split(".")[0])
    return Session(
        path=path,
        client="codex",
        format="responses",
        session_id=session_id,
        version=str(meta.get("cli_version") or "0.140.0"),
        steps=tuple(rollout.finish()),
        tools=rollout.tools,
        skipped=skipped,
        repaired=rollout.repaired,
        about={
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
    """The conversation so far. `_run` is what came since the newest request, not settled yet."""

    def __init__(self, skipped: Counter[str]) -> None:
        self.meta: Record = {}
        self.tools: dict[str, dict[str, Any]] = {}
        self.repaired: Counter[str] = Counter()
        self._skipped = skipped
        self._steps: list[Step] = []
        self._branches = Branches()
        self._path: list[int] = []
        """The steps that this conversation went through, without those the person went back from."""
        self._history: list[Message] = []
        self._compacted: tuple[int, list[Message]] | None = None
        """Length of the history at the newest compaction, and what the client put in its place."""
        self._segment = 0
        self._run: list[Message] = []
        self._replying = False
        self._turn: Record = {}
        self._total = -1
        self._usage: Record | None = None

    def take(self, record: Record) -> None:
        """Take in the next record of the file."""
        payload = as_dict(record.get("payload"))
        kind = str(record.get("type"))
        kind = f"event {payload.get('type')}" if kind == "event_msg" else kind
        handler = _RECORDS.get(kind)
        if handler is None:
            self._skipped[f"record {kind}"] += 1
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
            self._skipped["malformed item"] += 1
            return
        if is_output(payload):
            if not self._replying:
                self._send(record)
            self._note_tool(payload)
        elif kind in OUTPUTS or kind == "message":
            self._replying = False
        else:
            self._skipped[f"item {kind}"] += 1
            return
        self._run.append({key: value for key, value in payload.items() if key not in _CLIENT_ONLY})

    def _note_tool(self, item: Record) -> None:
        kind = str(item.get("type"))
        if kind in ("function_call", "custom_tool_call"):
            about = {"kind": kind, "namespace": item.get("namespace")}
            self.tools.setdefault(str(item.get("name")), about)
        elif kind.endswith("_call"):
            self.tools.setdefault(kind.removesuffix("_call"), {"kind": kind})

    def _take_count(self, payload: Record, _record: Record) -> None:
        info = as_dict(payload.get("info"))
        if not info or not self._steps:
            return
        total = as_count(as_dict(info.get("total_token_usage")).get("total_tokens")) or 0
        usage = as_dict(info.get("last_token_usage"))
        if total <= self._total or self._usage or not as_count(usage.get("input_tokens")):
            self._skipped["token count of no request"] += 1
            return
        self._total, self._usage, self._replying = total, usage, False

    def _take_compaction(self, payload: Record, _record: Record) -> None:
        self._settle()
        replaced = payload.get("replacement_history")
        if not isinstance(replaced, list):
            replaced = [user(str(payload.get("message") or ""))]
        self._compacted = len(self._history), [item for item in replaced if is_sound(item)]
        self._segment += 1

    def _take_rollback(self, payload: Record, _record: Record) -> None:
        """The person went back some turns: the history ends before the n-th last message they typed."""
        self._settle()
        typed = [place for place, item in enumerate(self._history) if is_typed(item)]
        turns = payload.get("num_turns")
        if not isinstance(turns, int) or not 0 < turns <= len(typed):
            self._skipped["rollback out of range"] += 1
            return
        del self._history[typed[-turns] :]
        if self._compacted and self._compacted[0] > len(self._history):
            self._compacted = None
        while self._path and len(self._steps[self._path[-1]].messages) >= len(self._history):
            self._path.pop()

    def _send(self, record: Record) -> None:
        """A model output begins, so a request with everything so far must have gone out."""
        self._settle()
        messages, compacted = list(self._history), self._compacted
        parent = self._path[-1] if self._path else None
        self._steps.append(
            Step(
                messages=messages,
                sent=[*compacted[1], *messages[compacted[0] :]] if compacted else messages,
                reply=(),
                recorded=None,
                model=as_text(self._turn.get("model")) or "gpt-5.5",
                branch=self._branches.place(parent),
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
        items = settle(self._run, self._usage, str(len(self._steps)), self.repaired)
        if self._steps:
            self._steps[-1] = answered(self._steps[-1], items, self._usage)
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
