"""What is said long ago and asked for later: every task of `tasks` by every way of `arms`, by a scripted agent.

The agent answers from what its request still shows, and where that doesn't say it calls the tool that its way has,
once. It reads without fault and never forgets to look: this is the ceiling of each mechanism, no model's behaviour.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.arms import ARMS, MODEL, WINDOW, Arm, Body, KeepAll
from bench.figures import Figure, Section
from bench.tasks import TASKS, Question, Task
from openmem_hook.gateway.prices import cost_entries, price_list, shipped_costs
from openmem_hook.replay.prefix import system_text
from openmem_hook.replay.provider.prompt_cache import AnthropicCache, CacheUse

SECONDS = 20.0
"""Between two requests."""
POINTER = re.compile(r"Session id: ([0-9a-f]{16})")
ROW = re.compile(r"^#\d+ .*\bseq=(\d+) ")
LINE = re.compile(r"^ +(\d+)\| (.*)$")
MARKER = {"type": "ephemeral"}
OPENING = "You will be given records, a batch a message. Say noted; later you will be asked for some of them."
FRONT_TOKENS = 12_000


class RefusedError(Exception):
    """The provider does not take a prompt of this size."""


@dataclass
class Score:
    """Of one kind of question. `lenient` counts the strictly right ones, too."""

    asked: int = 0
    strict: int = 0
    lenient: int = 0
    stale: int = 0

    def add(self, question: Question, said: str | None) -> None:
        self.asked += 1
        self.strict += question.right(said)
        self.lenient += question.near(said)
        self.stale += said in question.stale


@dataclass
class Agent:
    """A conversation by one way. `sent` is what the provider got last, `seen` the text of it."""

    arm: Arm
    cache: AnthropicCache = field(default_factory=AnthropicCache)
    messages: list[Body] = field(default_factory=list)
    uses: list[CacheUse] = field(default_factory=list)
    tool_calls: int = 0
    now: float = 0.0
    sent: Body = field(default_factory=dict)
    seen: str = ""
    _front: Body = field(default_factory=lambda: _front())

    async def request(self) -> None:
        """Raises RefusedError where the prompt is larger than the window."""
        self.now += SECONDS
        out = await self.arm.send({**self._front, "messages": _marked(self.messages)})
        use = self.cache.request(out, self.now)
        if use.total > WINDOW:
            raise RefusedError
        self.uses.append(use)
        await self.arm.report(use)
        self.sent, self.seen = out, _text(out["messages"])

    async def say(self, typed: str, reply: str | None = None) -> None:
        self.messages.append({"role": "user", "content": typed})
        await self.request()
        if reply is not None:
            self.messages.append({"role": "assistant", "content": reply})

    async def answer(self, question: Question) -> str | None:
        await self.say(question.typed)
        said = self._from_context(question)
        session = POINTER.search(self.seen)
        if self.arm.tool and session is not None and (said is None or question.counts):
            said = await self._from_tool(question, session[1])
        self.messages.append({"role": "assistant", "content": said or "I can't see it."})
        return said

    def _from_context(self, question: Question) -> str | None:
        found = question.line.findall(self.seen)
        return str(len(found)) if question.counts else (found[-1] if found else None)

    async def _from_tool(self, question: Question, session: str) -> str | None:
        by_sql = self.arm.tool.endswith("sql")
        given = {"session_id": session, **({"sql": question.sql} if by_sql else question.search)}
        self.tool_calls += 1
        told = self.arm.ask(given)
        call = {"type": "tool_use", "id": f"toolu_{self.tool_calls}", "name": self.arm.tool, "input": given}
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": told}
        self.messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        await self.request()
        return _in_rows(question, told) if by_sql else _in_hits(question, told)


def _in_rows(question: Question, told: str) -> str | None:
    rows = [json.loads(line) for line in told.splitlines() if line.startswith("[")]
    if not rows:
        return None
    cell = str(rows[0][0])
    found = None if question.counts else question.line.match(cell)
    return cell if question.counts else (found[1] if found else None)


def _in_hits(question: Question, told: str) -> str | None:
    """The count that is told; else of the lines that answer, the one that came last into the session."""
    if question.counts:
        counted = re.search(r"^line_matches: (\d+)$", told, re.MULTILINE)
        return counted[1] if counted else None
    seq, found = 0, list[tuple[int, int, str]]()
    for line in told.splitlines():
        if row := ROW.match(line):
            seq = int(row[1])
        elif (stored := LINE.match(line)) and (match := question.line.match(stored[2])):
            found.append((seq, int(stored[1]), match[1]))
    return max(found)[2] if found else None


def _front() -> Body:
    tools = [
        {"name": name, "description": "Looks in what left the context.", "input_schema": {"type": "object"}}
        for name in ("smart_compact_search", "smart_compact_sql")
    ]
    system = {"type": "text", "text": system_text(FRONT_TOKENS), "cache_control": MARKER}
    return {"model": MODEL, "max_tokens": 1_024, "system": [system], "tools": tools}


def _marked(messages: Sequence[Body]) -> list[Body]:
    """The messages with a cache breakpoint on the last one."""
    last = messages[-1]
    content = last["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    blocks[-1] = {**blocks[-1], "cache_control": MARKER}
    return [*messages[:-1], {**last, "content": blocks}]


def _text(messages: Sequence[Body]) -> str:
    """What a model reads of the messages: tool results are no lines of the log, and stand apart by their frames."""
    parts = []
    for message in messages:
        content = message["content"]
        parts += [content] if isinstance(content, str) else [str(block.get("text", "")) for block in content]
    return "\n".join(parts)


async def converse(
    task: Task, way: type[KeepAll], folder: Path, who: Callable[[Arm], Agent] = lambda arm: Agent(arm)
) -> dict[str, Any]:
    """One row: a task done one way."""
    now: Callable[[], float] = lambda: agent.now  # noqa: E731
    arm = way(folder, now)
    agent = who(arm)
    lookups, counts = Score(), Score()
    ended = 0
    try:
        try:
            await agent.say(OPENING, "noted")
            for batch in task.batches:
                await agent.say("\n".join(batch), "noted")
        except RefusedError:
            ended = len(agent.uses) + 1
        for question in task.questions:
            said = None
            if not ended:
                try:
                    said = await agent.answer(question)
                except RefusedError:
                    ended = len(agent.uses) + 1
            (counts if question.counts else lookups).add(question, said)
    finally:
        arm.close()
    return _row(task, agent, lookups, counts, ended)


def _row(task: Task, agent: Agent, lookups: Score, counts: Score, ended: int) -> dict[str, Any]:
    prices = price_list(cost_entries((MODEL,), shipped_costs()))
    total = sum(use.total for use in agent.uses)
    paid = [(use.read, use.written_5m, use.written_1h, use.fresh) for use in agent.uses]
    return {
        "task": task.name,
        "arm": agent.arm.name,
        "lookups": vars(lookups),
        "counts": vars(counts),
        "requests": len(agent.uses),
        "refused_at": ended or None,
        "tool_calls": agent.tool_calls,
        "peak_prompt": max((use.total for use in agent.uses), default=0),
        "hit_share": round(sum(use.read for use in agent.uses) / total, 4) if total else None,
        "dollars": None if prices is None else round(sum(prices.cost(*one) for one in paid), 4),
    }


def run(folder: Path, quick: bool) -> Section:
    rows = []
    for make in TASKS[::4] if quick else TASKS:
        task = make()
        for way in ARMS:
            place = folder / f"{task.name}-{way.name}".replace(" ", "-").replace(",", "")
            rows.append(asyncio.run(converse(task, way, place)))
    figures = [Figure(f"{row['task']}, {row['arm']}: right", _right(row), "%") for row in rows]
    return Section("recall", "questions about what left the context, a scripted agent's answers", figures, rows)


def _right(row: dict[str, Any]) -> float:
    scores = (row["lookups"], row["counts"])
    return 100 * sum(score["strict"] for score in scores) / sum(score["asked"] for score in scores)
