"""A session sent twice: as the client sent it, and through the plugin into a store that is thrown away.

Both arms go past the simulated provider: its rules, its count and its prompt cache, at the times of the transcript.
The plugin hears of each request what a provider would report: the reported count, moved by what the counted sizes of
the two bodies differ in. So it learns and decides as it would have in the gateway. Without it, the client compacts
its history by itself, as the transcript shows; with it the whole history goes on, because a client compacts by the
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
from openmem_hook.compaction.request import Request
from openmem_hook.compactor import Compactor, Outcome
from openmem_hook.formats import adapter_named
from openmem_hook.formats.usage import Usage
from openmem_hook.gateway import models, session
from openmem_hook.gateway.prices import PriceList, cost_entries, price_list
from openmem_hook.limits import derive_limits
from openmem_hook.replay.bodies import requests
from openmem_hook.replay.provider import check
from openmem_hook.replay.provider.prompt_cache import AnthropicCache, AutomaticCache, CacheUse
from openmem_hook.replay.scale import Scale, scale_of
from openmem_hook.replay.transcript import Format, ReplayRequest, Transcript
from openmem_hook.settings import Settings
from openmem_hook.store.database import SessionBusyError

TENANT = "local"
RETRIES = 20
"""Times that a request is tried again while the plugin still writes to its session; each waits for a while itself."""
STEP_S = 10.0
"""Seconds between two requests of which the transcript has no time."""
MISS_SHARE = 0.02
"""Share of the request before that a cache may leave out without a miss: automatic caches count in steps, and a
breakpoint may stand a block before the end."""


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """One request in one arm, in the provider's tokens."""

    tokens: float
    """The whole prompt."""

    bytes: int
    """The body's JSON."""

    read: float
    """Read from the cache."""

    write: float
    """Written to the cache, for whatever time."""

    is_miss: bool | None
    """Whether the cache did not give all that the request before on the branch had sent; None for a branch's first."""

    dollars: float | None
    """Cost of the prompt; None without a list price."""

    faults: tuple[str, ...]
    """The provider's objections."""


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """One request in both arms."""

    model: str
    without: ArmFigures
    through: ArmFigures

    reported_tokens: int | None
    """The prompt as the transcript has it."""

    reported_read: int | None
    """Of it, what the cache gave, as the transcript has it."""

    estimate: float | None
    """The plugin's estimate of the prompt it sent; None where it made none."""

    is_comparable: bool
    """Whether the plugin sent the client's own history, so that the estimate compares with a reported count."""

    trims: int

    hook_s: float
    """Seconds that the plugin took."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of a transcript."""

    transcript: Transcript
    scale: Scale
    requests: tuple[RequestFigures, ...]

    clearings: int
    """Requests whose old results the client had cleared silently: what they held is not known."""


Observer = Callable[[ReplayRequest, Mapping[str, Any], Compactor], None]
"""Called after each request: what the client sent, what the plugin made of it, and the plugin as it then is."""


def run(transcript: Transcript, settings: Mapping[str, object], costs: Mapping[str, Any], observe: Observer) -> Trial:
    """Replays a transcript; `settings` as in the gateway's file, `costs` is LiteLLM's cost map.

    Raises SettingsError, and whatever a compactor raises: nothing fails open here.
    """
    base = config.load({"ttl_days": 0, "deadline_s": 60.0, **settings}, {}).settings
    scale = scale_of(transcript)
    with tempfile.TemporaryDirectory(prefix="openmem-replay-") as folder:
        replay = _Replay(transcript, scale, base, costs, Path(folder))
        asyncio.run(replay.run(observe))  # which must return nothing: asyncio writes a task's whole result out, unseen
        return Trial(transcript, scale, tuple(replay.figures), replay.clearings)


class _Clock:
    """The transcript's time in seconds since 1970, which never runs backwards."""

    def __init__(self) -> None:
        self.now = 0.0

    def move_to(self, sent_at: str | None) -> float:
        try:
            then = datetime.fromisoformat(sent_at).timestamp() if sent_at else self.now + STEP_S
        except ValueError:
            then = self.now + STEP_S
        self.now = max(self.now, then)
        return self.now


@dataclass(slots=True)
class _Arm:
    """One way to the provider."""

    cache: AnthropicCache | AutomaticCache

    counts: dict[int, int] = field(default_factory=dict)
    """Counted tokens of each request so far, by its index."""

    @classmethod
    def new(cls, fmt: Format) -> Self:
        return cls(AnthropicCache() if fmt == "anthropic" else AutomaticCache())

    def send(self, body: dict[str, Any], fmt: Format, now: float) -> CacheUse:
        if isinstance(self.cache, AnthropicCache):
            return self.cache.request(body, now)
        return self.cache.request(body, fmt, now)


class _Replay:
    """The state of a replay: two arms, one plugin, one clock."""

    def __init__(
        self, transcript: Transcript, scale: Scale, settings: Settings, costs: Mapping[str, Any], folder: Path
    ) -> None:
        self.transcript, self.scale, self.settings, self.costs = transcript, scale, settings, costs
        self.format = transcript.format
        self.clock = _Clock()
        self.compactor = Compactor(folder, lambda: self.clock.now)
        self.without, self.through = _Arm.new(transcript.format), _Arm.new(transcript.format)

        self.residual = 0.0
        """What the provider's newest count was more than the scale says of the same body, in its tokens."""

        self.prices: dict[str, PriceList | None] = {}
        self.figures: list[RequestFigures] = []
        self.clearings = 0

    async def run(self, observe: Observer) -> None:
        try:
            for request in requests(self.transcript, prefix_tokens=self.scale.front):
                self.figures.append(await self._send(request, observe))
                self.clearings += not request.step.is_actual_known
        finally:
            self.compactor.close()

    async def _send(self, request: ReplayRequest, observe: Observer) -> RequestFigures:
        step = request.step

        # The plugin decides at the transcript's time.
        now, call_id = self.clock.move_to(step.sent_at), f"replay-{request.index}"
        start = time.perf_counter()
        outcome = await self._compact(request, call_id)
        hook_s = time.perf_counter() - start
        pending = self.compactor.recorder.open_call(call_id)
        body = dict(outcome.body)

        # Both bodies go to the provider, each to the cache of its arm.
        uses = self.without.send(request.actual_body, self.format, now), self.through.send(body, self.format, now)
        tokens_without, tokens_through = self._count(request, *uses)
        without = self._arm_figures(request, self.without, request.actual_body, uses[0], tokens_without)
        through = self._arm_figures(request, self.through, body, uses[1], tokens_through)

        # What the provider reports, the plugin learns from.
        report = Usage(round(through.tokens), None, round(through.read), round(through.write))
        with suppress(SessionBusyError):  # then the report waits for the next one
            await self.compactor.record_response(call_id, report)
        observe(request, body, self.compactor)

        is_untouched = outcome.savings is None and not outcome.is_trimmed
        return RequestFigures(
            model=step.model,
            without=without,
            through=through,
            reported_tokens=step.usage.prompt_tokens if step.usage else None,
            reported_read=step.usage.cache_read if step.usage else None,
            estimate=None if pending is None else pending.estimate,
            is_comparable=step.usage is not None and step.is_actual_known and not step.segment and is_untouched,
            trims=sum(event.kind == "trim" for event in outcome.events),
            hook_s=hook_s,
        )

    async def _compact(self, request: ReplayRequest, call_id: str) -> Outcome:
        """The plugin's answer, with more patience than an agent has: a machine may be busy with other things."""
        adapter = adapter_named(request.format)
        assert adapter is not None
        identity = session.session_of(request.headers, request.body)
        model = models.read(models.ModelQuery(request.step.model), None, self.costs)
        compactor_request = Request(
            adapter=adapter,
            body=request.body,
            tenant=TENANT,
            session_id=identity.id,
            subagent=identity.subagent,
            agent=identity.agent,
            model=model.name,
            settings=self.settings,
            limits=derive_limits(self.settings, model),
            call_id=call_id,
            may_edit=self.settings.enabled_for(identity.agent),
        )
        for _ in range(RETRIES):
            with suppress(SessionBusyError):
                return await self.compactor.compact_request(compactor_request)
        return await self.compactor.compact_request(compactor_request)

    def _count(self, request: ReplayRequest, without: CacheUse, through: CacheUse) -> tuple[float, float]:
        """The provider's count of the request without and with the plugin, in its tokens."""
        step = request.step
        rate = self.scale.rate(step.model)
        own = rate * without.total

        # What a reported count has beyond the scale, the other arm's body has too, and so have the next ones.
        if step.usage is not None and step.is_actual_known:
            self.residual = step.usage.prompt_tokens - own
        tokens_through = max(rate * through.total + self.residual, 1.0)
        if step.usage is not None:
            return float(step.usage.prompt_tokens), tokens_through
        return max(own + self.residual, 1.0), tokens_through

    def _arm_figures(
        self, request: ReplayRequest, arm: _Arm, body: dict[str, Any], use: CacheUse, tokens: float
    ) -> ArmFigures:
        arm.counts[request.index] = use.total
        scale = tokens / max(use.total, 1)
        read, write_5m, write_1h, fresh = (
            scale * part for part in (use.read, use.written_5m, use.written_1h, use.fresh)
        )
        prices = self._prices(request.step.model)
        parent = request.step.parent
        return ArmFigures(
            tokens=tokens,
            bytes=len(orjson.dumps(body)),
            read=read,
            write=write_5m + write_1h,
            is_miss=None if parent is None else use.read < arm.counts[parent] * (1 - MISS_SHARE),
            dollars=None if prices is None else prices.cost(read, write_5m, write_1h, fresh),
            faults=tuple(check(body, self.format)),
        )

    def _prices(self, model: str) -> PriceList | None:
        if model not in self.prices:
            self.prices[model] = price_list(cost_entries((model,), self.costs))
        return self.prices[model]
