"""The recall tasks with a real model, for people who have a key: it reads what is sent on, and calls the tools itself.

    ANTHROPIC_API_KEY=… python -m bench.with_model --model anthropic/claude-haiku-4-5 --task R4000 --way openmem

Batches are acknowledged without the model; every question is at least one call with a whole prompt, so a task of 24
questions costs up to 24 prompts of 125,000 tokens, most of them read from the provider's cache. Prints the rows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.arms import ARMS, Arm, Body
from bench.recall import Agent, converse
from bench.tasks import TAG, TASKS, Question
from openmem_hook.tools import TOOLS

ROUNDS = 8
"""Calls of the model a question, at most."""

Create = Callable[[Body], Awaitable[Mapping[str, Any]]]
"""Sends a body of the Messages API; the answer as that API gives it."""


@dataclass
class Reader(Agent):
    """An agent whose answers are a model's."""

    create: Create = field(kw_only=True)

    async def answer(self, question: Question) -> str | None:
        self.messages.append({"role": "user", "content": question.typed})
        for _ in range(ROUNDS):
            await self.request()
            content = list((await self.create(self._with_tool()))["content"])
            self.messages.append({"role": "assistant", "content": content})
            calls = [block for block in content if block["type"] == "tool_use"]
            if not calls:
                return said(question, "\n".join(block.get("text", "") for block in content))
            self.messages.append({"role": "user", "content": [self._result(call) for call in calls]})
        self.messages.append({"role": "assistant", "content": "I did not find it."})
        return None

    def _with_tool(self) -> Body:
        """The body with the one tool that this way has, if any."""
        tool = TOOLS.get(self.arm.tool)
        known = [] if tool is None else [tool]
        tools = [{"name": one.name, "description": one.description, "input_schema": one.schema} for one in known]
        return {
            **{key: value for key, value in self.sent.items() if key != "tools"},
            **({"tools": tools} if tools else {}),
        }

    def _result(self, call: Mapping[str, Any]) -> Body:
        self.tool_calls += 1
        try:
            told = self.arm.ask(call["input"])
        except RuntimeError as error:
            told = str(error)
        return {"type": "tool_result", "tool_use_id": call["id"], "content": told}


def said(question: Question, text: str) -> str | None:
    """The answer in a model's sentence: the right one where it stands in it, else what it says in its place."""
    if not question.counts:
        stale = (old for old in question.stale if old in text)
        return question.answer if question.answer in text else next(stale, text if TAG.search(text) else None)
    numbers = re.findall(r"\d[\d,]*", text)
    return numbers[-1].replace(",", "") if numbers else None


def through_litellm(model: str) -> Create:
    async def create(body: Body) -> Mapping[str, Any]:
        import litellm

        answer: Mapping[str, Any] = await litellm.anthropic.messages.acreate(**{**body, "model": model})
        return answer

    return create


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="as LiteLLM names it")
    parser.add_argument("--task", default="R4000", help="name of a task, as in docs/benchmarks.md")
    parser.add_argument("--way", default="", help="only ways whose name holds this")
    given = parser.parse_args()
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    task = next((task for task in (make() for make in TASKS) if task.name == given.task), None)
    if task is None:
        parser.error(f"no task {given.task}")
    create = through_litellm(given.model)

    def reader(arm: Arm) -> Reader:
        return Reader(arm, create=create)

    for way in ARMS:
        if given.way in way.name:
            with tempfile.TemporaryDirectory(prefix="openmem-bench-") as folder:
                print(json.dumps(asyncio.run(converse(task, way, Path(folder), reader))), flush=True)


if __name__ == "__main__":
    main()
