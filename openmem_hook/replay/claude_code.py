"""Claude Code session files (JSONL): one step for each response, its prompt the path from the root to it.

Going up from a response's first line, the first response met is the one it grew from; its prompt is known
already, so a step only adds that response and one user message: the results of its calls, then whatever the
lines in between say. This is how the client sends it (results first, neighbours merged), and it makes
prompts on one branch grow by construction.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from openmem_hook.replay.claude_lines import Line, Reply, blocks_of, is_blank, lines_of, replies_of
from openmem_hook.replay.records import as_count, as_dict, as_text
from openmem_hook.replay.transcript import Branches, Message, Record, ReportedUsage, Step, Transcript

MISSING_RESULT = "[Tool result missing due to internal error]"
ORPHAN_RESULT = "[Orphaned tool result removed due to conversation resume]"
LOST_MESSAGE = "[A message that the transcript does not hold]"


def read(path: Path, records: list[Record], omissions: Counter[str]) -> Transcript:
    """The session of one file; sub-agents have files of their own, or sidechains in this one."""
    lines = lines_of(records, omissions)
    replies = replies_of(lines)
    builder = _StepBuilder(lines, replies)
    steps = [builder.add_step(reply) for reply in replies]
    return Transcript(
        path=path,
        client="claude-code",
        format="anthropic",
        session_id=_first(records, "sessionId") or path.name.split(".")[0],
        version=_first(records, "version") or "2.1.0",
        steps=tuple(steps),
        tools=_tools(replies),
        omissions=omissions,
        repairs=+builder.repairs,
        metadata={"thinks": _thinks(steps)},
    )


def _first(records: list[Record], key: str) -> str:
    return next((record[key] for record in records if as_text(record.get(key))), "")


class _StepBuilder:
    """Makes the steps, in file order, each from the step it grew from."""

    def __init__(self, lines: list[Line], replies: list[Reply]) -> None:
        self.repairs: Counter[str] = Counter()
        self._lines = lines
        self._steps: list[Step] = []
        self._branches = Branches()

        self._positions = {id(reply): position for position, reply in enumerate(replies)}
        """Reply → position of its step."""

        self._owner = {line.place: reply for reply in replies if reply.message for line in reply.lines}
        """Line → the reply that it is part of."""

        self._results: dict[tuple[str, str], Line] = {}
        """Thread and id of a call → the first line with its result."""

        self.repairs["blank text dropped"] += sum(reply.blanks for reply in replies)
        for line in lines:
            for call in _result_ids(line):
                self._results.setdefault((line.thread, call), line)

    def add_step(self, reply: Reply) -> Step:
        """The next step; replies are to be passed in the order in which they began."""
        first = reply.lines[0]
        above, between = self._walk_up(first)
        parent = None if above is None else self._positions[id(above)]
        messages, actual_messages = self._prompt(above, parent, between)
        segment = self._steps[parent].segment if parent is not None else 0
        step = Step(
            messages=messages,
            actual_messages=actual_messages,
            reply=(reply.message,) if reply.message else (),
            usage=_usage(reply),
            model=as_text(first.record["message"].get("model")),
            branch=self._branches.add_step(parent, first.thread),
            segment=segment + sum(line.kind == "boundary" for line in between),
            parent=parent,
            sent_at=as_text(first.record.get("timestamp")) or None,
            ids=(reply.id, *(line.record["uuid"] for line in reply.lines)),
            agent_id=first.thread.removeprefix("agent-") if first.thread != "main" else "",
        )
        self._steps.append(step)
        return step

    def _walk_up(self, first: Line) -> tuple[Reply | None, list[Line]]:
        """The reply this line grew from, and the lines in between in order, those inside that reply too."""
        above: Reply | None = None
        between: list[Line] = []
        place = first.parent
        while place is not None:
            line, owner = self._lines[place], self._owner.get(place)
            above = above or owner
            if owner is None:
                between.append(line)
            if above and place <= above.lines[0].place:
                break
            place = line.parent
        return above, between[::-1]

    def _prompt(
        self, above: Reply | None, parent: int | None, between: list[Line]
    ) -> tuple[list[Message], list[Message]]:
        """The full history, and what the client sent in its place."""
        before = self._steps[parent] if parent is not None else None
        reply = before.reply if before else ()
        calls = above.calls if above else ()

        # The parent's prompt, its reply, and one message of all that came between.
        user = self._user(self._with_results(above, [line for line in between if line.kind == "user"]), calls)
        messages = [*(before.messages if before else ()), *reply, user]

        # After a compaction the client starts anew, with the summary and what followed.
        cut = max((place for place, line in enumerate(between) if line.kind == "boundary"), default=None)
        if cut is not None:
            return messages, [self._user(between[cut + 1 :], (), count=False)]

        # Later on it continues from there. The lines of a typed /compact were sent too.
        is_compacted = before is not None and before.actual_messages is not before.messages
        if is_compacted or any(line.kind == "own" for line in between):
            lines = self._with_results(above, [line for line in between if line.kind in ("user", "own")])
            actual_user = self._user(lines, calls, count=False)
            return messages, [*(before.actual_messages if before else ()), *reply, actual_user]
        return messages, messages

    def _with_results(self, above: Reply | None, lines: list[Line]) -> list[Line]:
        """Add the results that hang below other calls of the same response, off this path."""
        results = {call for line in lines for call in _result_ids(line)}
        thread = above.lines[0].thread if above else ""
        missing = [call for call in (above.calls if above else ()) if call not in results]
        others = [self._results.get((thread, call)) for call in missing]
        by_place = {line.place: line for line in [*lines, *others] if line is not None}
        return [by_place[place] for place in sorted(by_place)]

    def _user(self, lines: list[Line], calls: tuple[str, ...], *, count: bool = True) -> Message:
        message, repairs = user_message([line.content for line in lines if line.content], calls)
        if count:
            self.repairs.update(repairs)
        return message


def _result_ids(line: Line) -> list[str]:
    """Ids of the calls whose results the line holds."""
    blocks = blocks_of(line.content) if line.kind == "user" else []
    return [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]


def user_message(contents: list[Any], calls: tuple[str, ...]) -> tuple[Message, list[str]]:
    """One user message of several lines: an answer to each call, then the rest. Also what had to be mended.

    The stand-ins for results, and for a message with nothing left, are those of the client.
    """
    repairs: list[str] = []

    # The first result of each call; all that is no result, in order.
    results: dict[str, Any] = {}
    rest: list[Any] = []
    for block in (block for content in contents for block in blocks_of(content)):
        if is_blank(block):
            continue
        if block["type"] != "tool_result":
            rest.append(block)
        elif block["tool_use_id"] in calls and block["tool_use_id"] not in results:
            results[block["tool_use_id"]] = block
        else:
            repairs.append("result without a call")

    # A stand-in for each result that is missing.
    for call in calls:
        if call not in results:
            repairs.append("call without a result")
            results[call] = {
                "type": "tool_result",
                "tool_use_id": call,
                "content": MISSING_RESULT,
                "is_error": True,
            }

    # What was typed alone stays the string that it was.
    if not calls and len(contents) == 1 and isinstance(contents[0], str) and rest:
        return {"role": "user", "content": contents[0]}, repairs

    # A message needs a block.
    if not results and not rest:
        has_orphan = "result without a call" in repairs
        repairs.append("nothing left of a message" if has_orphan else "lost message")
        rest.append({"type": "text", "text": ORPHAN_RESULT if has_orphan else LOST_MESSAGE})
    return {"role": "user", "content": [*results.values(), *rest]}, repairs


def _usage(reply: Reply) -> ReportedUsage | None:
    message = reply.lines[-1].record["message"]
    usage = as_dict(message.get("usage"))
    fresh = as_count(usage.get("input_tokens"))
    if fresh is None:
        return None
    write = as_count(usage.get("cache_creation_input_tokens"))
    read_ = as_count(usage.get("cache_read_input_tokens"))
    return ReportedUsage(
        prompt_tokens=fresh + (write or 0) + (read_ or 0),
        cache_read=read_,
        cache_write=write,
        output_tokens=as_count(usage.get("output_tokens")) if message.get("stop_reason") else None,
        cache_write_1h=as_count(as_dict(usage.get("cache_creation")).get("ephemeral_1h_input_tokens")),
    )


def _tools(replies: list[Reply]) -> dict[str, dict[str, Any]]:
    tools: dict[str, dict[str, Any]] = {}
    for reply in replies:
        for block in reply.message["content"] if reply.message else ():
            if block["type"] == "tool_use":
                tools.setdefault(block["name"], {"arguments": set()})["arguments"].update(block["input"])
    return tools


def _thinks(steps: list[Step]) -> bool:
    """Whether every turn's first answer starts with thinking: then the API takes `thinking: enabled`."""
    first = [
        step.reply[0]["content"][0]["type"]
        for step in steps
        if step.reply and blocks_of(step.messages[-1]["content"])[0]["type"] != "tool_result"
    ]
    return bool(first) and all("thinking" in kind for kind in first)
