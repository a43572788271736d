"""A session sent twice: as the client sent it, and through the plugin into a store that is thrown away.

Both ways go past the simulated provider: its rules, its count and its prompt cache, at the times of the transcript.
The plugin hears of each request what a provider would report: the recorded count, moved by what the counted sizes of
the two bodies differ in. So it learns and decides as it would have in the gateway. Without it, the client compacts
its history by itself, as the transcript tells; with it the whole history goes on, because a client compacts by the
count that comes back.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import orjson

from openmem_hook import config
from openmem_hook.compactor import Compactor, Outcome
from openmem_hook.compactor import Request as Asked
from openmem_hook.formats import adapter_named
from openmem_hook.formats.usage import Usage
from openmem_hook.gateway import models, session
from openmem_hook.gateway.prices import PriceList, cost_entries, price_list
from openmem_hook.limits import derive_limits
from openmem_hook.replay.bodies import requests
from openmem_hook.replay.provider import check
from openmem_hook.replay.provider.prompt_cache import AnthropicCache, AutomaticCache, CacheUse
from openmem_hook.replay.scale import Scale, scale_of
from openmem_hook.replay.session import Format, Request, Session
from openmem_hook.settings import Settings
from openmem_hook.store.pool import SessionBusyError

TENANT = "local"
PATIENCE = 20
"""Times that a session is asked for again while the plugin still writes to it; each is a wait of its own."""
STEP_S = 10.0
"""Seconds between two requests of which no time was recorded."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One request one way, in the provider's tokens. `missed`: the cache did not give all that the request before on
    the branch had sent; None for a branch's first. `dollars` is None without a list price."""

    tokens: float
    bytes: int
    read: float
    written: float
    missed: bool | None
    dollars: float | None
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One request both ways. `recorded` and `recorded_read`: tokens as the transcript has them. `compared`: the
    plugin sent the client's own history, so that `estimate` can be held against a recorded count."""

    model: str
    without: Sent
    through: Sent
    recorded: int | None
    recorded_read: int | None
    estimate: float | None
    compared: bool
    trims: int
    hook_s: float


@dataclass(frozen=True, slots=True)
class Trial:
    session: Session
    scale: Scale
    rows: tuple[Row, ...]
    cleared: int
    """Requests whose old results the client had cleared silently: what they held is not known."""


Seen = Callable[[Request, Mapping[str, Any], Compactor], None]
"""Called after each request: what the client sent, what the plugin made of it, and the plugin as it then is."""


def run(session: Session, settings: Mapping[str, object], costs: Mapping[str, Any], seen: Seen) -> Trial:
    """Replays a session; `settings` as in the gateway's file.

    Raises SettingsError, and whatever a compactor raises: nothing fails open here.
    """
    base = config.load({"ttl_days": 0, "deadline_s": 60.0, **settings}, {}).settings
    scale = scale_of(session)
    with tempfile.TemporaryDirectory(prefix="openmem-replay-") as folder:
        both = _Both(session, scale, base, costs, Path(folder))
        asyncio.run(both.run(seen))  # which must return nothing: asyncio writes a task's whole result out, unseen
        return Trial(session, scale, tuple(both.rows), both.cleared)


class _Clock:
    """The transcript's time, which never runs backwards."""

    def __init__(self) -> None:
        self.now = 0.0

    def at(self, sent_at: str | None) -> float:
        try:
            told = datetime.fromisoformat(sent_at).timestamp() if sent_at else self.now + STEP_S
        except ValueError:
            told = self.now + STEP_S
        self.now = max(self.now, told)
        return self.now


@dataclass(slots=True)
class _Way:
    """One way to the provider: its cache, and the counted tokens of each request so far."""

    cache: AnthropicCache | AutomaticCache
    counted: dict[int, int] = field(default_factory=dict)

    @classmethod
    def new(cls, fmt: Format) -> Self:
        return cls(AnthropicCache() if fmt == "anthropic" else AutomaticCache())

    def use(self, body: dict[str, Any], fmt: Format, now: float) -> CacheUse:
        if isinstance(self.cache, AnthropicCache):
            return self.cache.request(body, now)
        return self.cache.request(body, fmt, now)


class _Both:
    """The state of a replay: two ways, one plugin, one clock."""

    def __init__(
        self, session: Session, scale: Scale, settings: Settings, costs: Mapping[str, Any], folder: Path
    ) -> None:
        self.session, self.scale, self.settings, self.costs = session, scale, settings, costs
        self.format = session.format
        self.clock = _Clock()
        self.compactor = Compactor(folder, lambda: self.clock.now)
        self.without, self.through = _Way.new(session.format), _Way.new(session.format)
        self.residual = 0.0
        self.prices: dict[str, PriceList | None] = {}
        self.rows: list[Row] = []
        self.cleared = 0

    async def run(self, seen: Seen) -> None:
        try:
            for request in requests(self.session, prefix_tokens=self.scale.front):
                self.rows.append(await self._row(request, seen))
                self.cleared += not request.sent_known
        finally:
            self.compactor.close()

    async def _row(self, request: Request, seen: Seen) -> Row:
        now, call = self.clock.at(request.sent_at), f"replay-{request.index}"
        begun = time.perf_counter()
        outcome = await self._outcome(self._asked(request, call))
        took = time.perf_counter() - begun
        pending = self.compactor.recorder.expected().get(call)
        out = dict(outcome.body)
        uses = self.without.use(request.sent_body, self.format, now), self.through.use(out, self.format, now)
        paid, pays = self._paid(request, *uses)
        before = self._sent(request, self.without, request.sent_body, uses[0], paid)
        after = self._sent(request, self.through, out, uses[1], pays)
        told = Usage(round(after.tokens), None, round(after.read), round(after.written))
        with suppress(SessionBusyError):  # then the report waits for the next one
            await self.compactor.record_response(call, told)
        seen(request, out, self.compactor)
        recorded = request.recorded
        return Row(
            model=request.model,
            without=before,
            through=after,
            recorded=recorded.prompt_tokens if recorded else None,
            recorded_read=recorded.cache_read if recorded else None,
            estimate=None if pending is None else pending.estimate,
            compared=recorded is not None and request.sent_known and not request.segment and _untouched(outcome),
            trims=sum(event.kind == "trim" for event in outcome.events),
            hook_s=took,
        )

    async def _outcome(self, asked: Asked) -> Outcome:
        """The plugin's answer, with more patience than an agent has: a machine may be busy with other things."""
        for _ in range(PATIENCE):
            with suppress(SessionBusyError):
                return await self.compactor.compact_request(asked)
        return await self.compactor.compact_request(asked)

    def _asked(self, request: Request, call: str) -> Asked:
        adapter = adapter_named(request.format)
        assert adapter is not None
        seen = session.session_of(request.headers, request.body)
        model = models.read(models.ModelQuery(request.model), None, self.costs)
        return Asked(
            adapter=adapter,
            body=request.body,
            tenant=TENANT,
            session_id=seen.id,
            agent_thread=seen.agent_thread,
            agent=seen.agent,
            model=model.name,
            settings=self.settings,
            limits=derive_limits(self.settings, model),
            call_id=call,
            may_edit=self.settings.enabled_for(seen.agent),
        )

    def _paid(self, request: Request, without: CacheUse, through: CacheUse) -> tuple[float, float]:
        """The provider's count of the request without and with the plugin."""
        rate = self.scale.rate(request.model)
        own = rate * without.total
        if request.recorded is not None and request.sent_known:
            self.residual = request.recorded.prompt_tokens - own
        pays = max(rate * through.total + self.residual, 1.0)
        if request.recorded is not None:
            return float(request.recorded.prompt_tokens), pays
        return max(own + self.residual, 1.0), pays

    def _sent(self, request: Request, way: _Way, body: dict[str, Any], use: CacheUse, tokens: float) -> Sent:
        way.counted[request.index] = use.total
        scale = tokens / max(use.total, 1)
        scaled = [scale * part for part in (use.read, use.written_5m, use.written_1h, use.fresh)]
        prices = self._prices(request.model)
        return Sent(
            tokens=tokens,
            bytes=len(orjson.dumps(body)),
            read=scaled[0],
            written=scaled[1] + scaled[2],
            missed=_missed(way, request, use),
            dollars=None if prices is None else prices.cost(*scaled),
            faults=tuple(check(body, self.format)),
        )

    def _prices(self, model: str) -> PriceList | None:
        if model not in self.prices:
            self.prices[model] = price_list(cost_entries((model,), self.costs))
        return self.prices[model]


MISS_SHARE = 0.02
"""Of the request before: automatic caches count in steps, and a breakpoint may stand a block before the end."""


def _missed(way: _Way, request: Request, use: CacheUse) -> bool | None:
    if request.parent is None:
        return None
    return use.read < way.counted[request.parent] * (1 - MISS_SHARE)


def _untouched(outcome: Outcome) -> bool:
    return outcome.savings is None and not outcome.trimmed
