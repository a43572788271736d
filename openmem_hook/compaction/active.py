"""Which edits stand in a history: found by the fingerprints in a request, through small drift too.

An exact anchor is looked for first. Where the chain broke before an anchor, the anchor is found by its own
digest: the messages that the head shows must all still be there, and the last model outputs before it must be the
recorded ones, since no client rewrites those and another branch has others. Then the chain goes on from the
anchor's recorded fingerprint, so that everything after it has its old names again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

from openmem_hook import fingerprint
from openmem_hook.compaction.boundaries import find_closed_places
from openmem_hook.compaction.edits import Cut, Edits, RowEdit, RowEdits, Splice, in_order
from openmem_hook.model import History

RECENT_OUTPUTS = 8
"""Model outputs that tell a line of history from its branches: a branch shares none after it left."""

Followers = Mapping[bytes, frozenset[bytes]]
"""Digests of the messages known to have followed a fingerprint."""


@dataclass(frozen=True, slots=True)
class ActiveCut:
    """A cut at its place in a history."""

    cut: Cut
    start: int
    """Index of the first message that it replaces."""
    anchor: int
    """Index of the last message that it replaces."""

    def shown_indices(self, history: History) -> set[int]:
        """Indices of the messages that its head shows, whose digests are a subsequence of those of its range."""
        places, digests = set[int](), iter(self.cut.shown_digests)
        digest = next(digests, None)
        for i in range(self.start, self.anchor + 1):
            if digest is not None and history.facts[i].digest == digest:
                places.add(i)
                digest = next(digests, None)
        return places


@dataclass(frozen=True)
class ActiveEdits:
    """The edits that stand in one history."""

    cuts: tuple[ActiveCut, ...] = ()
    """Ranges that don't overlap, in order. The first may start at the lead: a trim."""
    row_edits: RowEdits = field(default_factory=dict)
    splices: Mapping[int, Splice] = field(default_factory=dict)
    """By the index of their message."""

    @property
    def trim(self) -> ActiveCut | None:
        """The cut from the lead."""
        return self.cuts[0] if self.cuts and self.cuts[0].cut.start is None else None

    @property
    def inner_cuts(self) -> tuple[ActiveCut, ...]:
        return self.cuts if self.trim is None else self.cuts[1:]

    @cached_property
    def edited_rows(self) -> Mapping[bytes, Sequence[RowEdit]]:
        """The edits of single messages, by row key, as they apply one after the other."""
        by_row: dict[bytes, list[RowEdit]] = {}
        for edit in self.row_edits.values():
            by_row.setdefault(edit.key, []).append(edit)
        # Memory and a database list the same edits in other orders.
        for key, edits in by_row.items():
            if len(edits) > 1:
                by_row[key] = in_order(edits)
        return by_row

    @property
    def cut_id(self) -> str:
        """Names the cuts that stand, "" for none: reports of usage are compared under the same ones only."""
        ids = [active.cut.id for active in self.cuts]
        return "".join(ids) if len(ids) < 2 else fingerprint.short_id(*ids)

    def tail_start(self, history: History) -> int:
        """Index of the first message after the trim."""
        return history.lead if self.trim is None else self.trim.anchor + 1

    def with_trim(self, trim: ActiveCut) -> ActiveEdits:
        """With a new trim, which takes the place of all that stood before its anchor."""
        later = tuple(active for active in self.cuts if active.start > trim.anchor)
        return replace(self, cuts=(trim, *later))


def find_active_edits(
    history: History, edits: Edits, followers: Followers, row_keys: Mapping[bytes, bytes]
) -> tuple[History, ActiveEdits]:
    """The edits that stand, and the history with the names that its messages have under them.

    Of the cuts from the lead it is the deepest that applies, and inner cuts behind it. `row_keys` maps digests of
    stored messages to their row keys.
    """
    # A head is JSON of one wire format: no request in another can take it.
    cuts = [cut for cut in (*edits.trims.values(), *edits.inner_cuts) if cut.format in ("", history.format)]
    active_cuts = tuple[ActiveCut, ...]()
    if cuts:
        # A call that had no answer when it was cut away may get one later: then that cut applies no more.
        closed_at = find_closed_places(history.facts)
        history, active_cuts = _place_cuts(history, cuts, followers, row_keys, closed_at)
    splices = _place_splices(history, edits.splices) if edits.splices else {}
    return history, ActiveEdits(active_cuts, edits.row_edits, splices)


def _place_cuts(
    history: History,
    cuts: Sequence[Cut],
    followers: Followers,
    row_keys: Mapping[bytes, bytes],
    closed_at: Sequence[bool],
) -> tuple[History, tuple[ActiveCut, ...]]:
    trims = {cut.anchor: cut for cut in cuts if cut.start is None}
    inner = [cut for cut in cuts if cut.start is not None]
    trim = _exact_trim(history, trims, history.lead, closed_at)
    # Drift breaks the chain: a cut behind the deepest exact anchor may still be found by its digest. Such a match gives
    # the messages after it their old names, so that exact matching can go on from there, to deeper cuts.
    start = history.lead if trim is None else trim.anchor + 1
    while matches := _drifted_cuts(history, list(trims.values()), start, followers, closed_at):
        deepest = max(matches, key=lambda active: active.anchor)
        history = _rebase(history, deepest, history.lead, row_keys)
        trim = _exact_trim(history, trims, deepest.anchor, closed_at) or deepest
        start = trim.anchor + 1
    # Inner cuts stand behind the trim. From the first to the last, since each gives names to what follows it.
    after = start
    while matches := _drifted_cuts(history, inner, after, followers, closed_at):
        first = min(matches, key=lambda active: active.anchor)
        history = _rebase(history, first, after, row_keys)
        after = first.anchor + 1
    standing = _inner_cuts(history, inner, start, closed_at)
    return history, standing if trim is None else (trim, *standing)


def _exact_trim(
    history: History, trims: Mapping[bytes, Cut], start: int, closed_at: Sequence[bool]
) -> ActiveCut | None:
    """The deepest cut from the lead whose anchor is in the chain, at or after `start`."""
    for i in range(len(history) - 1, start - 1, -1):
        cut = trims.get(history.keys[i])
        if cut is not None and history.facts[i].identifies and closed_at[i + 1]:
            return ActiveCut(cut, history.lead, i)
    return None


def _inner_cuts(history: History, cuts: Iterable[Cut], after: int, closed_at: Sequence[bool]) -> tuple[ActiveCut, ...]:
    """Inner cuts at or after a place. Of those that overlap the one that ends last stands, of those that end together
    the longest."""
    index = {key: i for i, key in enumerate(history.keys) if i >= after}
    candidates = []
    for cut in cuts:
        start, anchor = index.get(cut.start or b""), index.get(cut.anchor)
        if start is not None and anchor is not None and start <= anchor and closed_at[start] and closed_at[anchor + 1]:
            candidates.append(ActiveCut(cut, start, anchor))
    standing: list[ActiveCut] = []
    for active in sorted(candidates, key=lambda active: (-active.anchor, active.start)):
        if not standing or active.anchor < standing[-1].start:
            standing.append(active)
    return tuple(reversed(standing))


def _drifted_cuts(
    history: History, cuts: Collection[Cut], after: int, followers: Followers, closed_at: Sequence[bool]
) -> list[ActiveCut]:
    """Cuts whose anchor is found by its own digest alone, at or after a place."""
    # An exact anchor needs no look-alike.
    exact = set(history.keys) if cuts else ()
    by_digest: dict[bytes, list[Cut]] = {}
    for cut in cuts:
        if cut.anchor not in exact:
            by_digest.setdefault(cut.anchor_digest, []).append(cut)
    # Everywhere that an anchor's digest stands, whether it is the same line of history and its head is still true (L8).
    nearest: dict[tuple[bytes, bytes | None], ActiveCut] = {}
    for i in range(len(history) - 1, history.lead - 1, -1) if by_digest else ():
        fact = history.facts[i]
        for cut in by_digest.get(fact.digest, ()) if fact.identifies and closed_at[i + 1] else ():
            start = history.lead if cut.start is None else _drifted_start(history, cut, i, after, closed_at)
            if start is not None and _is_same_place(history, i, cut, followers) and _is_shown(history, start, i, cut):
                # Of places that look alike, in a history that repeats itself, the nearest to where it stood is the one:
                # drift adds and takes a few messages.
                here, name = ActiveCut(cut, start, i), (cut.anchor, cut.start)
                nearest[name] = min(nearest.get(name, here), here, key=lambda active: _distance(history, active))
    return [active for active in nearest.values() if active.anchor >= after]


def _drifted_start(history: History, cut: Cut, anchor: int, after: int, closed_at: Sequence[bool]) -> int | None:
    """Where an inner cut with its anchor here starts: the nearest message that looks like its first."""
    places = range(anchor, after - 1, -1)
    return next((i for i in places if history.facts[i].digest == cut.start_digest and closed_at[i]), None)


def _distance(history: History, active: ActiveCut) -> int:
    position = active.cut.position
    return 0 if position is None else abs(active.anchor - history.lead - position)


def find_recent_outputs(history: History, index: int) -> tuple[bytes, ...]:
    """Digests of the last model outputs up to a message, newest first."""
    facts = history.facts
    outputs = (i for i in range(index, history.lead - 1, -1) if facts[i].role == "assistant" and facts[i].identifies)
    return tuple(facts[i].digest for i in islice(outputs, RECENT_OUTPUTS))


def find_digest_before(history: History, index: int) -> bytes | None:
    """The digest of the identifying message before this one."""
    return _first_digest(history, range(index - 1, history.lead - 1, -1))


def _first_digest(history: History, places: Iterable[int]) -> bytes | None:
    return next((history.facts[i].digest for i in places if history.facts[i].identifies), None)


def _is_same_place(history: History, index: int, cut: Cut, followers: Followers) -> bool:
    """True where the same line of history led here. Words are not unique, so an anchor without call ids must stand
    between the same neighbours too."""
    if find_recent_outputs(history, index) != cut.recent_outputs:
        return False
    if cut.anchor_unique:
        return True
    if find_digest_before(history, index) != cut.before:
        return False
    after = _first_digest(history, range(index + 1, len(history)))
    known_after = followers.get(cut.anchor)
    return after is None or not known_after or after in known_after


def _is_shown(history: History, first: int, last: int, cut: Cut) -> bool:
    """True where every message that the head shows is still in the range, in order: else one was edited."""
    digests = iter(history.facts[i].digest for i in range(first, last + 1))
    return all(digest in digests for digest in cut.shown_digests)


def _rebase(history: History, active: ActiveCut, after: int, row_keys: Mapping[bytes, bytes]) -> History:
    """The history named as it was recorded: the anchor's fingerprint, and what follows chained from there. What stands
    before it, from `after` on, gets the names that its rows have."""
    keys, chain = list(history.keys), list(history.chain)
    # Before the anchor only what is stored has an old name, found by its digest.
    for i in range(after, active.anchor):
        keys[i] = row_keys.get(history.facts[i].digest, keys[i])
    if active.cut.start is not None:
        keys[active.start] = active.cut.start
    # From the anchor on all have: the chain goes on as if nothing had changed before it.
    past = keys[active.anchor] = chain[active.anchor] = active.cut.anchor
    for i in range(active.anchor + 1, len(history)):
        fact = history.facts[i]
        if fact.identifies:
            past = keys[i] = fingerprint.chain(past, fact.digest)
        else:
            keys[i] = fingerprint.position_key(past, fact.digest)
        chain[i] = past
    return replace(history, keys=keys, chain=chain)


def _place_splices(history: History, splices: Mapping[bytes, Sequence[Splice]]) -> dict[int, Splice]:
    """Splices by the index of their message: where the past is the recorded one, else where the same outputs led. Each
    stands at one message, and only an output of the model can have one."""
    places = [
        i
        for i in range(history.lead, len(history))
        if history.facts[i].role == "assistant" and history.facts[i].identifies and history.facts[i].digest in splices
    ]
    standing: dict[int, Splice] = {}
    # All exact ones first: in a history that repeats itself a look-alike may come before the very place.
    for is_exact in (True, False):
        for i in places:
            past = history.chain[i - 1] if i else fingerprint.ROOT
            fitting = (
                splice
                for splice in splices[history.facts[i].digest]
                if splice.format == history.format
                and splice not in standing.values()
                and (splice.past == past if is_exact else splice.recent_outputs == find_recent_outputs(history, i))
            )
            splice = None if i in standing else next(fitting, None)
            if splice is not None:
                standing[i] = splice
    return standing
