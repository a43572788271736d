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
from openmem_hook.replay.session import Format

MIN_TOKENS = 1024
LOOK_BACK = 20
LANES = {"5m": 300.0, "1h": 3600.0}
STEP = 128
AUTOMATIC_SECONDS = 600.0

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Tokens of one prompt by what became of them. `hit_at` is the number of blocks the hit covered."""

    read: int = 0
    written_5m: int = 0
    written_1h: int = 0
    uncached: int = 0
    hit_at: int = 0

    @property
    def total(self) -> int:
        return self.read + self.written_5m + self.written_1h + self.uncached


@dataclass(frozen=True, slots=True)
class _Prefix:
    """A request as the cache sees it: chained hash and tokens up to each block, and lanes by block index."""

    hashes: list[bytes]
    sums: list[int]
    lanes: dict[int, str]


@dataclass(slots=True)
class _Entry:
    lane: str
    until: float


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
        written = {"1h": 0, "5m": 0}
        done = read
        for lane in ("1h", "5m"):
            ends = [prefix.sums[at] for at, name in prefix.lanes.items() if name == lane]
            if ends and max(ends) > done and max(ends) >= MIN_TOKENS:
                written[lane] = max(ends) - done
                done = max(ends)
        self._renew(prefix, hit, now)
        return CacheUse(read, written["5m"], written["1h"], total - done, hit + 1)

    def _hit(self, prefix: _Prefix, now: float) -> int:
        """Index of the last block of the deepest live entry within reach; -1 without one."""
        for start in sorted(prefix.lanes, reverse=True):
            for at in range(start, max(-1, start - LOOK_BACK), -1):
                entry = self.entries.get(prefix.hashes[at])
                if entry is not None and entry.until >= now:
                    return at
        return -1

    def _renew(self, prefix: _Prefix, hit: int, now: float) -> None:
        if hit >= 0:
            entry = self.entries[prefix.hashes[hit]]
            entry.until = now + LANES[entry.lane]
        for at, lane in prefix.lanes.items():
            if prefix.sums[at] < MIN_TOKENS:
                continue
            held = self.entries.get(prefix.hashes[at])
            if held is None or held.until < now or LANES[lane] > LANES[held.lane]:
                self.entries[prefix.hashes[at]] = _Entry(lane, now + LANES[lane])
            else:
                held.until = now + LANES[held.lane]


def _prefix(body: Body) -> _Prefix:
    counted = prompt_blocks(body, "anthropic")
    marks = _marks(body)
    first_message = len(body.get("tools") or []) + _system_blocks(body)
    chain = hashlib.blake2b(str(body.get("model")).encode(), digest_size=16).digest()
    hashes, sums, total = [], [], 0
    for at, (digest, ids) in enumerate(counted):
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
    found: dict[int, str] = {}
    for one in breakpoints(body)[:MAX_BREAKPOINTS]:
        steps = one.place.split(".")
        if steps[0] == "tools":
            found[int(steps[1])] = one.ttl
        elif steps[0] == "system":
            found[tools + int(steps[1])] = one.ttl
        elif steps[0] == "messages":
            found[starts[int(steps[1])] + int(steps[3])] = one.ttl
        elif at:
            found[at - 1] = one.ttl
    return found


@dataclass(slots=True)
class AutomaticCache:
    """One organisation's automatic cache. `known` maps (scope, chained hash of steps) → time it lives
    until.
    """

    known: dict[tuple[str, bytes], float] = field(default_factory=dict)

    def request(self, body: Body, fmt: Format, now: float) -> CacheUse:
        """As `AnthropicCache.request`; nothing counts as written, because these providers don't say."""
        scope = f"{body.get('model')}|{body.get('prompt_cache_key') or ''}"
        stream = b"".join(ids.tobytes() for _, ids in prompt_blocks(body, fmt))
        total, matched = len(stream) // 4, 0
        chain, going = b"", True
        for start in range(0, total - total % STEP, STEP):
            chain = hashlib.blake2b(chain + stream[4 * start : 4 * (start + STEP)], digest_size=16).digest()
            going = going and self.known.get((scope, chain), -1.0) >= now
            matched += STEP if going else 0
            self.known[scope, chain] = now + AUTOMATIC_SECONDS
        read = matched if matched >= MIN_TOKENS else 0
        return CacheUse(read=read, uncached=total - read)
