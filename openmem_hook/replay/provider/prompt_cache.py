"""Simulated prompt caches, so that a broken prefix shows up as tokens paid twice.

Anthropic: an entry exists only where a client set a breakpoint. A request looks from each of its breakpoints,
latest first, back over at most 20 blocks for an entry with the same chained hash; what follows the hit is
written, up to the last breakpoint of either lane. A hit renews the entry for its lane's time.
OpenAI: no breakpoints; the longest known run of 128-token steps counts once it reaches 1,024 tokens.
Time is an argument, in seconds; nothing here reads a clock.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import orjson

from openmem_hook.replay.provider.breakpoints import MAX_BREAKPOINTS, breakpoints
from openmem_hook.replay.provider.counting import prompt_blocks
from openmem_hook.replay.transcript import Format

MIN_TOKENS = 1024
"""Tokens of the shortest prefix that is cached: both providers' figure for most models."""

LOOK_BACK = 20
"""Blocks before a breakpoint in which Anthropic looks for an entry."""

LANES = {"5m": 300.0, "1h": 3600.0}
"""Lifetime of an entry, as a breakpoint names it, in seconds."""

STEP = 128
"""Tokens by which OpenAI's cached prefix grows."""

AUTOMATIC_SECONDS = 600.0
"""Seconds that OpenAI's cache keeps a prefix: it documents five to ten minutes."""

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Tokens of one prompt by what became of them."""

    read: int = 0
    """Read from the cache."""

    written_5m: int = 0
    """Written to the cache for five minutes."""

    written_1h: int = 0
    """Written to the cache for an hour."""

    fresh: int = 0
    """Neither read nor written."""

    hit_at: int = 0
    """Blocks that the hit covered; no tokens."""

    @property
    def total(self) -> int:
        """Tokens of the whole prompt."""
        return self.read + self.written_5m + self.written_1h + self.fresh


@dataclass(frozen=True, slots=True)
class _Prefix:
    """A request as the cache sees it."""

    hashes: list[bytes]
    """Chained hash up to each block."""

    sums: list[int]
    """Tokens up to each block."""

    lanes: dict[int, str]
    """Lane of each breakpoint, by the index of its block."""


@dataclass(slots=True)
class _Entry:
    lane: str
    until: float
    """Seconds, by the clock of the requests."""


@dataclass(slots=True)
class AnthropicCache:
    """One organisation's cache; models don't share entries."""

    entries: dict[bytes, _Entry] = field(default_factory=dict)

    def request(self, body: Body, now: float) -> CacheUse:
        """Answers one request at time `now` and remembers what it wrote."""
        prefix = _prefix(body)
        hit = self._hit(prefix, now)
        read = prefix.sums[hit] if hit >= 0 else 0
        total = prefix.sums[-1] if prefix.sums else 0

        # What follows the hit is written up to the last breakpoint of each lane; the longer lane stands first.
        writes = {"1h": 0, "5m": 0}
        end = read
        for lane in ("1h", "5m"):
            ends = [prefix.sums[at] for at, name in prefix.lanes.items() if name == lane]
            if ends and max(ends) > end and max(ends) >= MIN_TOKENS:
                writes[lane] = max(ends) - end
                end = max(ends)
        self._renew(prefix, hit, now)
        return CacheUse(read, writes["5m"], writes["1h"], total - end, hit + 1)

    def _hit(self, prefix: _Prefix, now: float) -> int:
        """Index of the last block of the deepest live entry within reach; -1 without one."""
        for start in sorted(prefix.lanes, reverse=True):
            for at in range(start, max(-1, start - LOOK_BACK), -1):
                entry = self.entries.get(prefix.hashes[at])
                if entry is not None and entry.until >= now:
                    return at
        return -1

    def _renew(self, prefix: _Prefix, hit: int, now: float) -> None:
        """Renews the entry of the hit and those at the breakpoints; a longer lane replaces a shorter one."""
        if hit >= 0:
            source = self.entries[prefix.hashes[hit]]
            source.until = now + LANES[source.lane]
        for at, lane in prefix.lanes.items():
            if prefix.sums[at] < MIN_TOKENS:
                continue
            entry = self.entries.get(prefix.hashes[at])
            if entry is None or entry.until < now or LANES[lane] > LANES[entry.lane]:
                self.entries[prefix.hashes[at]] = _Entry(lane, now + LANES[lane])
            else:
                entry.until = now + LANES[entry.lane]


def _prefix(body: Body) -> _Prefix:
    marks = _marks(body)
    first_message = len(body.get("tools") or []) + _system_blocks(body)
    chain = hashlib.blake2b(str(body.get("model")).encode(), digest_size=16).digest()
    hashes, sums, total = [], [], 0
    for at, (digest, ids) in enumerate(prompt_blocks(body, "anthropic")):
        if at == first_message:
            chain = hashlib.blake2b(chain + _message_level(body), digest_size=16).digest()
        chain = hashlib.blake2b(chain + digest, digest_size=16).digest()
        total += len(ids)
        hashes.append(chain)
        sums.append(total)
    return _Prefix(hashes, sums, {at: ttl for at, ttl in marks.items() if at < len(hashes)})


def _message_level(body: Body) -> bytes:
    """Settings whose change leaves tools and system cached but not the messages."""
    return orjson.dumps([body.get("thinking"), body.get("tool_choice")], option=orjson.OPT_SORT_KEYS)


def _system_blocks(body: Body) -> int:
    system = body.get("system")
    return len(system) if isinstance(system, list) else int(bool(system))


def _marks(body: Body) -> dict[int, str]:
    """Block index in the order of `prompt_parts` → lane, for each breakpoint."""
    tools, system = len(body.get("tools") or []), _system_blocks(body)
    starts, at = [], tools + system
    for message in body.get("messages") or []:
        starts.append(at)
        content = message.get("content")
        at += len(content) if isinstance(content, list) else int(bool(content))
    lanes: dict[int, str] = {}
    for one in breakpoints(body)[:MAX_BREAKPOINTS]:
        steps = one.place.split(".")
        if steps[0] == "tools":
            lanes[int(steps[1])] = one.ttl
        elif steps[0] == "system":
            lanes[tools + int(steps[1])] = one.ttl
        elif steps[0] == "messages":
            lanes[starts[int(steps[1])] + int(steps[3])] = one.ttl
        elif at:
            lanes[at - 1] = one.ttl
    return lanes


@dataclass(slots=True)
class AutomaticCache:
    """One organisation's automatic cache."""

    until: dict[tuple[str, bytes], float] = field(default_factory=dict)
    """Scope and chained hash of steps → the second until which it lives."""

    def request(self, body: Body, fmt: Format, now: float) -> CacheUse:
        """As `AnthropicCache.request`; nothing counts as written, because these providers don't say."""
        scope = f"{body.get('model')}|{body.get('prompt_cache_key') or ''}"
        stream = b"".join(ids.tobytes() for _, ids in prompt_blocks(body, fmt))
        total, match = len(stream) // 4, 0
        chain, going = b"", True
        for start in range(0, total - total % STEP, STEP):
            chain = hashlib.blake2b(chain + stream[4 * start : 4 * (start + STEP)], digest_size=16).digest()
            going = going and self.until.get((scope, chain), -1.0) >= now
            match += STEP if going else 0
            self.until[scope, chain] = now + AUTOMATIC_SECONDS
        read = match if match >= MIN_TOKENS else 0
        return CacheUse(read=read, fresh=total - read)
