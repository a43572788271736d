"""The tree in a Claude Code transcript: which line follows which, and which lines are one message.

Each line names its parent, and there are three reasons not to take that at its word: a parent may be a record
that was never written or was stripped (then the line before it in the same thread stands in), a compaction
boundary has none or names it as `logicalParentUuid` (history goes on there as if nothing had happened), and
calls made in parallel hang below one another while each result hangs below its own call, so that most files
branch without anybody having gone back. A parent always stands before its child here, so walks end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from openmem_hook.replay.records import as_dict, as_text
from openmem_hook.replay.transcript import Message, Record

Kind = Literal["reply", "user", "own", "boundary", "summary", "link"]
"""`own`: the client's lines around a typed /compact; `link`: takes part in the tree, was never sent."""

_FIELDS: dict[str, dict[str, type]] = {
    "text": {"text": str},
    "thinking": {"thinking": str, "signature": str},
    "tool_use": {"id": str, "name": str, "input": dict},
    "tool_result": {"tool_use_id": str},
}
"""What a block must have to be of use. Blocks of other types are carried as they are."""

_CAVEAT = "<local-command-caveat>"
_STDOUT = "<local-command-stdout>"
_COMPACT = "<command-name>/compact</command-name>"


@dataclass(frozen=True, slots=True)
class Line:
    """One record of the tree."""

    place: int
    """Its index among the lines."""

    parent: int | None
    """Index of the line it hangs below; None for a root."""

    kind: Kind

    thread: str
    """`main`, `agent-<id>` of a sub-agent, or `sidechain` of one without an id."""

    record: Record

    content: Any = None
    """What it says to the model, as a message's content."""


@dataclass(slots=True)
class Reply:
    """One response: every line with its message id, in order."""

    id: str
    lines: list[Line] = field(default_factory=list)

    message: Message | None = None
    """The response as the client sends it again; None where nothing of it is left. Set by `finish`."""

    calls: tuple[str, ...] = ()
    """Ids of its tool calls."""

    blanks: int = 0
    """Number of blank text blocks that were dropped."""

    def finish(self) -> None:
        """Join the blocks as the client does: no blank text, no thinking at the end, not thinking alone.

        Opus 4.6 opens many answers with a block of two newlines, which the API doesn't take back.
        """
        all_blocks = [block for line in self.lines for block in blocks_of(line.content)]
        blocks = [block for block in all_blocks if not is_blank(block)]
        self.blanks = len(all_blocks) - len(blocks)
        while blocks and blocks[-1]["type"] in ("thinking", "redacted_thinking"):
            blocks.pop()
        if not blocks:
            return
        self.message = {"role": "assistant", "content": blocks}
        self.calls = tuple(block["id"] for block in blocks if block["type"] == "tool_use")


def blocks_of(content: Any) -> list[dict[str, Any]]:
    """A line's content as blocks."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else []


def is_blank(block: dict[str, Any]) -> bool:
    """Text with nothing in it, which the API refuses anywhere."""
    return block.get("type") == "text" and not block["text"].strip()


# --- from records to lines -------------------------------------------------------------------------------


def lines_of(records: list[Record], omissions: Counter[str]) -> list[Line]:
    """The records that take part in the tree, linked; the others are counted."""
    lines: list[Line] = []
    places: dict[str, int] = {}
    latest: dict[str, int] = {}
    for record in records:
        uuid = record.get("uuid")
        if not isinstance(uuid, str):
            omissions[f"record {record.get('type')}"] += 1
            continue
        if uuid in places:
            omissions["line written twice"] += 1
            continue
        kind, content = _classify(record, omissions)
        thread = _thread(record)
        parent = _parent(record, places, latest.get(thread))
        line = Line(len(lines), parent, kind, thread, record, _sound(content, omissions))
        places[uuid] = latest[thread] = line.place
        lines.append(line)
    return _mark_own(lines)


def _classify(record: Record, omissions: Counter[str]) -> tuple[Kind, Any]:
    """The kind of a record and what it says to the model."""
    type_, message = record.get("type"), record.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if type_ == "system" and record.get("subtype") == "compact_boundary":
        return "boundary", None
    if type_ == "system" and record.get("subtype") == "local_command":
        return "user", record.get("content")
    if type_ == "user" and record.get("isCompactSummary"):
        return "summary", content
    if type_ == "user" and content and not record.get("isVisibleInTranscriptOnly"):
        return "user", content
    if type_ == "assistant" and isinstance(message, dict) and not _is_synthetic(record, message):
        return "reply", content
    attachment = as_dict(record.get("attachment"))
    if attachment.get("type") == "queued_command" and attachment.get("prompt"):
        return "user", attachment["prompt"]
    omissions[_reason(record)] += 1
    return "link", None


def _is_synthetic(record: Record, message: dict[str, Any]) -> bool:
    return message.get("model") == "<synthetic>" or bool(record.get("isApiErrorMessage"))


def _reason(record: Record) -> str:
    type_ = record.get("type")
    if type_ == "assistant":
        return "synthetic message"
    if type_ == "user":
        return "empty or hidden user line"
    kind = as_dict(record.get("attachment")).get("type") or record.get("subtype")
    return f"record {type_} {kind}" if kind else f"record {type_}"


def _thread(record: Record) -> str:
    if not record.get("isSidechain"):
        return "main"
    agent = as_text(record.get("agentId"))
    return f"agent-{agent}" if agent else "sidechain"


def _parent(record: Record, places: dict[str, int], before: int | None) -> int | None:
    """The line this record hangs below; `before` is the one before it in its thread."""
    uuid = record.get("parentUuid") or record.get("logicalParentUuid")
    if uuid is None:
        return before if record.get("subtype") == "compact_boundary" else None
    return places.get(as_text(uuid), before)


def _sound(content: Any, omissions: Counter[str]) -> Any:
    """The content without what is no block at all."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    sound = [block for block in content if _is_sound(block)]
    if len(sound) < len(content):
        omissions["malformed block"] += len(content) - len(sound)
        return sound
    return content


def _is_sound(block: Any) -> bool:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        return False
    fields = _FIELDS.get(block["type"], {})
    return all(isinstance(block.get(name), kind) for name, kind in fields.items())


def _mark_own(lines: list[Line]) -> list[Line]:
    """Find the lines of a typed /compact: caveat, command, output. They belong to the compaction."""
    own: set[int] = set()
    for line in lines:
        above = lines[line.parent] if line.parent is not None else None
        if _begins_with(line, _COMPACT):
            own.add(line.place)
            if above and _begins_with(above, _CAVEAT):
                own.add(above.place)
        elif above and above.place in own and _begins_with(line, _STDOUT):
            own.add(line.place)
    return [replace(line, kind="own") if line.place in own else line for line in lines]


def _begins_with(line: Line, start: str) -> bool:
    blocks = blocks_of(line.content) if line.kind == "user" else []
    return bool(blocks) and str(blocks[0].get("text", "")).lstrip().startswith(start)


# --- from lines to responses -----------------------------------------------------------------------------


def replies_of(lines: list[Line]) -> list[Reply]:
    """The responses, in the order in which they began."""
    replies: dict[tuple[str, str], Reply] = {}
    for line in lines:
        if line.kind == "reply":
            name = str(line.record["message"].get("id") or line.record["uuid"])
            replies.setdefault((line.thread, name), Reply(name)).lines.append(line)
    for reply in replies.values():
        reply.finish()
    return list(replies.values())
