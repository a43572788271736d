"""Which cut stands: found by the fingerprints in a request, through small drift too.

An exact anchor is looked for first. Where the chain broke before an anchor, the anchor is found by its own
digest: the messages the head shows must all still be there, and the last model outputs before it must be the
recorded ones, since no client rewrites those and another branch has others. Then the chain goes on from the
anchor's recorded fingerprint, so that everything after it has its old names again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from openmem_hook import fingerprint
from openmem_hook.compaction.boundaries import closed
from openmem_hook.compaction.edits import Cut, Standing
from openmem_hook.model import History

TRAIL = 8
"""Model outputs that tell a line of history from its branches: a branch shares none after it left."""

Followers = Callable[[bytes], frozenset[bytes]]
"""Digests of the messages known to have followed a fingerprint."""


def find_standing(
    history: History, cuts: Mapping[bytes, Cut], followers: Followers, known: Mapping[bytes, bytes]
) -> tuple[History, Standing | None]:
    """The deepest cut that applies, and the history with the names its messages have under it.

    `cuts` by anchor fingerprint; those of another wire format don't apply. A call that had no answer when it was cut
    away may get one later: then that cut applies no more. `known` maps digests of stored messages to their row keys.
    """
    cuts = {anchor: cut for anchor, cut in cuts.items() if cut.format in ("", history.format)}
    if not cuts:
        return history, None
    ends = closed(history.facts)
    best = _exact(history, cuts, history.lead, ends)
    while True:
        start = history.lead if best is None else best.index + 1
        found = _drifted(history, cuts.values(), start, followers, ends)
        if found is None:
            return history, best
        history = _rebased(history, found, known)
        best = _exact(history, cuts, found.index, ends) or found


def _exact(history: History, cuts: Mapping[bytes, Cut], start: int, ends: Sequence[bool]) -> Standing | None:
    for i in range(len(history) - 1, start - 1, -1):
        cut = cuts.get(history.keys[i])
        if cut is not None and history.facts[i].identifies and ends[i + 1]:
            return Standing(cut, i)
    return None


def _drifted(
    history: History, cuts: Iterable[Cut], start: int, followers: Followers, ends: Sequence[bool]
) -> Standing | None:
    exact = set(history.keys)
    wanted: dict[bytes, list[Cut]] = {}
    for cut in cuts:
        if cut.anchor not in exact:
            wanted.setdefault(cut.anchor_digest, []).append(cut)
    found: dict[str, Standing] = {}
    for i in range(len(history) - 1, history.lead - 1, -1) if wanted else ():
        fact = history.facts[i]
        for cut in wanted.get(fact.digest, ()) if fact.identifies and ends[i + 1] else ():
            if _same_place(history, i, cut, followers) and _shows(history, i, cut):
                here = Standing(cut, i)
                found[cut.id] = min(found.get(cut.id, here), here, key=lambda standing: _moved(history, standing))
    deeper = (standing for standing in found.values() if standing.index >= start)
    return max(deeper, key=lambda standing: standing.index, default=None)


def _moved(history: History, standing: Standing) -> int:
    """How far an anchor is from where it stood: of places that look alike, in a history that repeats itself, the
    nearest is the one. Drift adds and takes a few messages."""
    place = standing.cut.place
    return 0 if place is None else abs(standing.index - history.lead - place)


def trail(history: History, index: int) -> tuple[bytes, ...]:
    """Digests of the last model outputs up to a message, newest first."""
    facts = history.facts
    said = (i for i in range(index, history.lead - 1, -1) if facts[i].role == "assistant" and facts[i].identifies)
    return tuple(facts[i].digest for i in islice(said, TRAIL))


def _same_place(history: History, index: int, cut: Cut, followers: Followers) -> bool:
    """The same line of history led here. Words are not unique, so a typed anchor must stand between the same
    neighbours too."""
    if trail(history, index) != cut.trail:
        return False
    if cut.anchor_unique:
        return True
    if _neighbour(history, range(index - 1, history.lead - 1, -1)) != cut.before:
        return False
    after = _neighbour(history, range(index + 1, len(history)))
    told = followers(cut.anchor)
    return after is None or not told or after in told


def _neighbour(history: History, places: Iterable[int]) -> bytes | None:
    return next((history.facts[i].digest for i in places if history.facts[i].identifies), None)


def _shows(history: History, index: int, cut: Cut) -> bool:
    """True where every message the head shows is still in the history, in order: else one was edited."""
    there = iter(history.facts[i].digest for i in range(history.lead, index + 1))
    return all(digest in there for digest in cut.shown)


def _rebased(history: History, found: Standing, known: Mapping[bytes, bytes]) -> History:
    """The history named as it was recorded: the anchor's fingerprint, and what follows chained from there."""
    keys, chain = list(history.keys), list(history.chain)
    for i in range(history.lead, found.index):
        keys[i] = known.get(history.facts[i].digest, keys[i])
    past = keys[found.index] = chain[found.index] = found.cut.anchor
    for i in range(found.index + 1, len(history)):
        fact = history.facts[i]
        if fact.identifies:
            past = keys[i] = fingerprint.chain(past, fact.digest)
        else:
            keys[i] = fingerprint.position_key(past, fact.digest)
        chain[i] = past
    return replace(history, keys=keys, chain=chain)
