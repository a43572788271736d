"""Ways to keep a long conversation going: each takes the client's whole request and gives what is sent on.

All stand before the same simulated provider with the same window. A way with tools may be asked for what left.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from openmem_hook import config
from openmem_hook.compactor import Compactor, Request
from openmem_hook.formats import adapter_named
from openmem_hook.formats.usage import Usage
from openmem_hook.gateway import models
from openmem_hook.gateway.prices import shipped_costs
from openmem_hook.limits import derive_limits
from openmem_hook.replay.provider.counting import message_tokens, prompt_tokens
from openmem_hook.replay.provider.prompt_cache import CacheUse
from openmem_hook.store import names
from openmem_hook.tools import Caller, ToolRunner
from tests.harness.filled_store import BlockingRunner

MODEL = "claude-sonnet-4-5"
WINDOW = 200_000
"""Tokens of a prompt that the provider takes."""
TRIM_AT = 125_000
"""The plugin's default; the peer's threshold and the size of the tail, too."""
TENANT = "local"

Body = dict[str, Any]


class Arm(Protocol):
    name: ClassVar[str]
    tool: ClassVar[str]
    """The tool an agent may call, "" for none."""

    async def send(self, body: Body) -> Body: ...
    async def report(self, use: CacheUse) -> None: ...
    def ask(self, given: Mapping[str, Any]) -> str: ...
    def close(self) -> None: ...


class KeepAll:
    """Sends everything: the conversation ends where the window does."""

    name: ClassVar[str] = "keep everything"
    tool: ClassVar[str] = ""

    def __init__(self, folder: Path, now: Callable[[], float]) -> None:
        pass

    async def send(self, body: Body) -> Body:
        return body

    async def report(self, use: CacheUse) -> None:
        pass

    def ask(self, given: Mapping[str, Any]) -> str:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Tail(KeepAll):
    """The newest messages that fit, and no others."""

    name: ClassVar[str] = "tail only"

    async def send(self, body: Body) -> Body:
        messages = body["messages"]
        room = TRIM_AT - prompt_tokens({**body, "messages": []}, "anthropic")
        at = len(messages)
        while at and (room := room - message_tokens(messages[at - 1], "anthropic")) >= 0:
            at -= 1
        while at < len(messages) - 1 and messages[at]["role"] != "user":
            at += 1
        return {**body, "messages": messages[min(at, len(messages) - 1) :]}


class Cliff(KeepAll):
    """CliffCompaction: summaries by rule, without a model, a store or tools."""

    name: ClassVar[str] = "CliffCompaction"

    def __init__(self, folder: Path, now: Callable[[], float]) -> None:
        from cliffcompaction.config import Config
        from cliffcompaction.dialects.anthropic import DIALECT
        from cliffcompaction.engine import Engine

        self.engine, self.dialect = Engine(dataclasses.replace(Config(), threshold_tokens=TRIM_AT)), DIALECT

    async def send(self, body: Body) -> Body:
        return dict(self.engine.prepare(body, self.dialect).outgoing_body())


class Plugin(KeepAll):
    """This plugin with its defaults; the agent calls no tool."""

    name: ClassVar[str] = "openmem, context only"

    def __init__(self, folder: Path, now: Callable[[], float]) -> None:
        self.settings = config.load({"ttl_days": 0, "deadline_s": 60.0}, {}).settings
        self.model = models.read(models.ModelQuery(MODEL), None, shipped_costs())
        self.compactor = Compactor(folder, now)
        self.tools = BlockingRunner(ToolRunner(self.compactor.store.pool, self.compactor.store.executor, now))
        self.calls = 0

    async def send(self, body: Body) -> Body:
        adapter = adapter_named("anthropic")
        assert adapter is not None
        self.calls += 1
        request = Request(
            adapter=adapter,
            body=body,
            tenant=TENANT,
            session_id="recall",
            subagent="",
            agent="claude-code",
            model=self.model.name,
            settings=self.settings,
            limits=derive_limits(self.settings, self.model),
            call_id=f"call-{self.calls}",
        )
        return dict((await self.compactor.compact_request(request)).body)

    async def report(self, use: CacheUse) -> None:
        usage = Usage(use.total, None, use.read, use.written_5m + use.written_1h)
        await self.compactor.record_response(f"call-{self.calls}", usage)

    def ask(self, given: Mapping[str, Any]) -> str:
        answer = self.tools.call(Caller(names.tenant_folder(TENANT)), self.tool, given)
        if answer.is_error:
            raise RuntimeError(answer.text)
        return answer.text

    def close(self) -> None:
        self.tools.close()
        self.compactor.close()


class PluginSearch(Plugin):
    name: ClassVar[str] = "openmem, with search"
    tool: ClassVar[str] = "smart_compact_search"


class PluginSql(Plugin):
    name: ClassVar[str] = "openmem, with SQL"
    tool: ClassVar[str] = "smart_compact_sql"


ARMS: tuple[type[KeepAll], ...] = (PluginSearch, PluginSql, Plugin, KeepAll, Tail, Cliff)
