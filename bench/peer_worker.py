"""One way of preparing requests, in a process and an environment of its own: `python -P peer_worker.py WAY FOLDER`.

Standard input: a line with a size, then so many bytes of a request's JSON; again and again. For each one line of JSON
(milliseconds of the call, resident MB, bytes) and so many bytes: the messages to send on. The first line, before any
request: resident MB with everything imported. Parsing and printing are outside of the measured time; only the standard
library and the way itself are imported, so that another environment's interpreter can run this file.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

Json = dict[str, Any]

TRIM_AT = 125_000
"""Tokens; for all that have such a setting."""
WINDOW = 200_000
PAGE_MB = 4096 / 1e6


class Nothing:
    """The floor: what the worker itself takes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def dressed(self, body: Json) -> Json:
        """The body as this way is given it; not measured."""
        return body

    async def send(self, body: Json) -> list[Any]:
        return list(body["messages"])

    async def answered(self) -> None:
        """The provider has answered; not measured."""


class Openmem(Nothing):
    """This plugin's hook as the gateway awaits it, with the success event after each answer."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        from bench import growing

        self.kit, self.hook = growing, growing.new_hook(folder, trim_at_tokens=TRIM_AT)
        self.calls, self.out = 0, Json()

    def dressed(self, body: Json) -> Json:
        self.calls += 1
        return self.kit.gateway_fields(body, f"call-{self.calls}", "peers")

    async def send(self, body: Json) -> list[Any]:
        self.out = await self.hook.async_pre_call_hook(self.kit.KEY, None, body, self.kit.CALL_TYPE)
        return list(self.out["messages"])

    async def answered(self) -> None:
        await self.kit.report(self.hook, f"call-{self.calls}", self.out)
        self.kit.unharmed(self.hook)


class Cliff(Nothing):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        import dataclasses

        from cliffcompaction.config import Config
        from cliffcompaction.dialects.anthropic import DIALECT
        from cliffcompaction.engine import Engine

        self.engine, self.dialect = Engine(dataclasses.replace(Config(), threshold_tokens=TRIM_AT)), DIALECT

    async def send(self, body: Json) -> list[Any]:
        return list(self.engine.prepare(body, self.dialect).outgoing_body()["messages"])


class Distil(Nothing):
    """What its LiteLLM hook calls, without the thread it calls it in."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        from distil.integrations.litellm_hook import compress_request

        self.compress = compress_request

    async def send(self, body: Json) -> list[Any]:
        done = self.compress(body, "anthropic_messages", digest=False)
        return list((done[0] if done else body)["messages"])


class LiteLlm(Nothing):
    """What `compression_interception` calls."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        from litellm.compression import compress

        self.compress = compress

    async def send(self, body: Json) -> list[Any]:
        done = self.compress(
            messages=body["messages"],
            model=body["model"],
            call_type="anthropic_messages",
            compression_trigger=TRIM_AT,
        )
        return list(done["messages"])


class Kompact(Nothing):
    """What its proxy calls."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        from kompact.config import KompactConfig
        from kompact.parser.messages import parse_request, serialize_request
        from kompact.transforms.pipeline import run
        from kompact.types import Provider

        self.config, self.provider = KompactConfig(), Provider.ANTHROPIC
        self.parse, self.run, self.serialize = parse_request, run, serialize_request

    async def send(self, body: Json) -> list[Any]:
        return list(self.serialize(self.run(self.parse(body, self.provider), self.config).request)["messages"])


class Headroom(Nothing):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        from headroom import compress

        self.compress = compress

    async def send(self, body: Json) -> list[Any]:
        return list(self.compress(body["messages"], model=body["model"], model_limit=WINDOW).messages)


class OpenLcm(Nothing):
    """As its documents show it: a conversation that it replaces, to which new messages are added. No model: a summary
    is what it falls back on when its model says nothing."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        from openlcm.adapters.anthropic import AnthropicMessages
        from openlcm.core.engine import LCMEngine

        self.words = AnthropicMessages
        self.engine = LCMEngine(summarize_fn=lambda prompt, max_tokens: "", db_path=folder / "lcm.db")
        self.engine.bind_session("peers", context_length=WINDOW)
        self.held: list[Any] = []
        self.seen = 0

    async def send(self, body: Json) -> list[Any]:
        if self.held:  # the client's cache breakpoint moves on
            self.held[-1]["content"][-1].pop("cache_control", None)
        self.held += body["messages"][self.seen :]
        self.seen = len(body["messages"])
        told = self.words.to_lcm(self.held, system="")
        if self.engine.should_compress_preflight(told):
            _, self.held = self.words.from_lcm(await self.engine.compress(told))
        return self.held


WAYS: dict[str, type[Nothing]] = {
    "no hook": Nothing,
    "openmem": Openmem,
    "CliffCompaction": Cliff,
    "distil": Distil,
    "LiteLLM compress": LiteLlm,
    "Kompact": Kompact,
    "Headroom": Headroom,
    "openlcm": OpenLcm,
}


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_MB


async def serve(way: Nothing) -> None:
    source, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a way prints is no answer
    _write(answers, {"resident_mb": resident_mb()})
    while size := source.readline():
        body = way.dressed(json.loads(source.read(int(size))))
        begun = time.perf_counter()
        messages = await asyncio.create_task(way.send(body))
        taken = (time.perf_counter() - begun) * 1000
        resident = resident_mb()
        out = json.dumps(messages, ensure_ascii=False, separators=(",", ":")).encode()
        _write(answers, {"ms": taken, "resident_mb": resident, "bytes": len(out)}, out)
        await way.answered()


def _write(answers: Any, head: Json, out: bytes = b"") -> None:
    answers.write(json.dumps(head).encode() + b"\n" + out)
    answers.flush()


async def _main(name: str, folder: Path) -> None:
    await serve(WAYS[name](folder))


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2])))
