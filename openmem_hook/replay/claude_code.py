"""Claude Code session files (JSONL): one step for each response, its prompt the path from the root to it.

Going up from a response's first line, the first response met is the one it grew from; its prompt is known
already, so a step only adds that response and one user message: the results of its calls, then whatever the
lines in between say. This is how the client sends it (results first, neighbours merged), and it makes
prompts on one branch grow by construction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from openmem_hook.replay.claude_lines import Line, Reply, blocks_of, is_blank, lines_of, replies_of
from openmem_hook.replay.session import Branches, Message, Record, Recorded, Session, Step
from openmem_hook.replay.transcript import as_count, as_dict, as_text

MISSING_RESULT = "[Tool result missing due to internal error]"
ORPHANED_RESULT = "[Orphaned tool result removed due to conversation resume]"
LOST_MESSAGE = "[A message that the transcript does not hold]"


def read(path: Path, records: list[Record], skipped: Counter[str]) -> Session:
    """The session of one file; sub-agents have files of their own, or sidechains in this one."""
    lines = lines_of(records, skipped)
    replies = replies_of(lines)
    climber = _Climber(lines, replies)
    steps = [climber.step(reply) for reply in replies]
    return Session(
        path=path,
        client="claude-code",
        format="anthropic",
        session_id=_first(records, "sessionId") or path.name.split(".")[0],
        version=_first(records, "version") or "2.1.0",
        steps=tuple(steps),
        tools=_tools(replies),
        skipped=skipped,
        repaired=+climber.repaired,
        about={"thinks": _thinks(steps)},
    )


def _first(records: list[Record], key: str) -> str:
    return next((record[key] for record in records if as_text(record.get(key))), "")


class _Climber:
    """Makes the steps, in file order, each from the step it grew from."""

    def __init__(self, lines: list[Line], replies: list[Reply]) -> None:
        self.repaired: Counter[str] = Counter()
        self._lines = lines
        self._steps: list[Step] = []
        self._places = {id(reply): place for place, reply in enumerate(replies)}
        self._owner = {line.place: reply for reply in replies if reply.message for line in reply.lines}
        self._results: dict[tuple[str, str], Line] = {}
        self._branches = Branches()
        self.repaired["blank text dropped"] += sum(reply.blanks for reply in replies)
        for line in lines:
            for call in _answers(line):
                self._results.setdefault((line.thread, call), line)

    def step(self, reply: Reply) -> Step:
        """The next step; replies are to be given in the order in which they began."""
        first = reply.lines[0]
        above, trail = self._climb(first)
        parent = None if above is None else self._places[id(above)]
        messages, sent = self._prompt(above, parent, trail)
        step = Step(
            messages=messages,
            sent=sent,
            reply=(reply.message,) if reply.message else (),
            recorded=_recorded(reply),
            model=as_text(first.record["message"].get("model")),
            branch=self._branches.place(parent, first.thread),
            segment=self._segment(parent, trail),
            parent=parent,
            sent_at=as_text(first.record.get("timestamp")) or None,
            ids=(reply.id, *(line.record["uuid"] for line in reply.lines)),
            agent_id=first.thread.removeprefix("agent-") if first.thread != "main" else "",
        )
        self._steps.append(step)
        return step

    def _climb(self, first: Line) -> tuple[Reply | None, list[Line]]:
        """The reply this line grew from, and the lines in between in order, those inside that reply too."""
        found: Reply | None = None
        trail: list[Line] = []
        place = first.parent
        while place is not None:
            line, owner = self._lines[place], self._owner.get(place)
            found = found or owner
            if owner is None:
                trail.append(line)
            if found and place <= found.lines[0].place:
                break
            place = line.parent
        return found, trail[::-1]

    def _prompt(
        self, above: Reply | None, parent: int | None, trail: list[Line]
    ) -> tuple[list[Message], list[Message]]:
        before = self._steps[parent] if parent is not None else None
        reply = before.reply if before else ()
        calls = above.calls if above else ()
        told = self._with_results(above, [line for line in trail if line.kind == "user"])
        user = self._user(told, calls)
        messages = [*(before.messages if before else ()), *reply, user]
        cut = max((place for place, line in enumerate(trail) if line.kind == "boundary"), default=None)
        if cut is not None:
            return messages, [self._user(trail[cut + 1 :], (), count=False)]
        if (before and before.sent is not before.messages) or any(line.kind == "own" for line in trail):
            whole = self._with_results(above, [line for line in trail if line.kind in ("user", "own")])
            return messages, [*(before.sent if before else ()), *reply, self._user(whole, calls, count=False)]
        return messages, messages

    def _with_results(self, above: Reply | None, told: list[Line]) -> list[Line]:
        """Add the results that hang below other calls of the same response, off this path."""
        answered = {call for line in told for call in _answers(line)}
        thread = above.lines[0].thread if above else ""
        missing = [call for call in (above.calls if above else ()) if call not in answered]
        found = [self._results.get((thread, call)) for call in missing]
        places = {line.place: line for line in [*told, *found] if line is not None}
        return [places[place] for place in sorted(places)]

    def _user(self, lines: list[Line], calls: tuple[str, ...], *, count: bool = True) -> Message:
        message, repairs = user_message([line.content for line in lines if line.content], calls)
        if count:
            self.repaired.update(repairs)
        return message

    def _segment(self, parent: int | None, trail: list[Line]) -> int:
        before = self._steps[parent].segment if parent is not None else 0
        return before + sum(line.kind == "boundary" for line in trail)


def _answers(line: Line) -> list[str]:
    blocks = blocks_of(line.content) if line.kind == "user" else []
    return [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]


def user_message(contents: list[Any], calls: Iterable[str]) -> tuple[Message, list[str]]:
    """One user message of several lines: an answer to each call, then the rest. Also what had to be mended.

    The stand-ins for results, and for a message with nothing left, are those of the client.
    """
    wanted, repairs = tuple(calls), []
    results: dict[str, Any] = {}
    rest: list[Any] = []
    for block in (block for content in contents for block in blocks_of(content)):
        if is_blank(block):
            continue
        if block["type"] != "tool_result":
            rest.append(block)
        elif block["tool_use_id"] in wanted and block["tool_use_id"] not in results:
            results[block["tool_use_id"]] = block
        else:
            repairs.append("result without a call")
    for call in wanted:
        if call not in results:
            repairs.append("call without a result")
            results[call] = _missing(call)
    if not wanted and len(contents) == 1 and isinstance(contents[0], str) and rest:
        return {"role": "user", "content": contents[0]}, repairs
    if not results and not rest:
        orphaned = "result without a call" in repairs
        repairs.append("nothing left of a message" if orphaned else "lost message")
        rest.append({"type": "text", "text": ORPHANED_RESULT if orphaned else LOST_MESSAGE})
    return {"role": "user", "content": [*results.values(), *rest]}, repairs


def _missing(call: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": MISSING_RESULT, "is_error": True}


def _recorded(reply: Reply) -> Recorded | None:
    message = reply.lines[-1].record["message"]
    usage = as_dict(message.get("usage"))
    fresh = as_count(usage.get("input_tokens"))
    if fresh is None:
        return None
    written = as_count(usage.get("cache_creation_input_tokens"))
    read_ = as_count(usage.get("cache_read_input_tokens"))
    return Recorded(
        prompt_tokens=fresh + (written or 0) + (read_ or 0),
        cache_read=read_,
        cache_write=written,
        output_tokens=as_count(usage.get("output_tokens")) if message.get("stop_reason") else None,
        cache_write_1h=as_count(as_dict(usage.get("cache_creation")).get("ephemeral_1h_input_tokens")),
    )


def _tools(replies: list[Reply]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for reply in replies:
        for block in reply.message["content"] if reply.message else ():
            if block["type"] == "tool_use":
                found.setdefault(block["name"], {"arguments": set()})["arguments"].update(block["input"])
    return found


def _thinks(steps: list[Step]) -> bool:
    """Whether every turn's first answer starts with thinking: then the API takes `thinking: enabled`."""
    first = [
        step.reply[0]["content"][0]["type"]
        for step in steps
        if step.reply and blocks_of(step.messages[-1]["content"])[0]["type"] != "tool_result"
    ]
    return bool(first) and all("thinking" in kind for kind in first)
