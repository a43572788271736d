"""What goes out in place of a history: its messages under the edits that stand, and the facts about them.

`apply` is the only code that builds an outgoing list, for new edits and replayed ones alike, so the two can't
differ. `outgoing_facts` says of the same list what decisions need to know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from openmem_hook import fingerprint
from openmem_hook.compaction.active import ActiveEdits
from openmem_hook.compaction.edits import Splice, SwapMap
from openmem_hook.facts import cached_facts
from openmem_hook.model import Adapter, Facts, History, HistoryCache, Raw
from openmem_hook.tokens import ZERO


def outgoing_messages(adapter: Adapter, history: History, places: range, edits: ActiveEdits) -> list[Raw]:
    """What these messages go out as, range cuts aside: the client's own objects, but for those in which a result was
    swapped and those that were spliced."""
    swapped_rows = edits.swapped_rows
    out: list[Raw] = []
    for i in places:
        if i in edits.splices:
            out += fingerprint.load(edits.splices[i].messages)
        elif history.keys[i] in swapped_rows:
            out.append(_swap_results(adapter, history, i, edits.swaps))
        else:
            out.append(history.messages[i])
    return out


def _swap_results(adapter: Adapter, history: History, index: int, swaps: SwapMap) -> Raw:
    raw = history.messages[index]
    for slot in history.facts[index].results:
        swap = swaps.get((history.keys[index], slot.call_id))
        if swap is not None:
            raw = adapter.shorten_result(raw, slot.at, swap.text)
    return raw


def apply(adapter: Adapter, history: History, edits: ActiveEdits) -> list[Raw]:
    """The outgoing messages. Heads are parsed anew, so that no two requests share them."""
    out: list[Raw] = list(history.messages[: history.lead])
    at = history.lead
    for active in edits.cuts:
        out += outgoing_messages(adapter, history, range(at, active.start), edits)
        out += fingerprint.load(active.cut.head)
        at = active.anchor + 1
    return out + outgoing_messages(adapter, history, range(at, len(history)), edits)


def is_edited(history: History, edits: ActiveEdits) -> bool:
    """Whether anything else goes out than the client sent."""
    return bool(edits.cuts or edits.splices) or not edits.swapped_rows.isdisjoint(history.keys)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Facts about what goes out, a place for each message of the history. What a trim replaced keeps its own: a trim's
    head is weighed by itself."""

    facts: Sequence[Facts | None]
    """None where nothing goes out: inside the range of an inner cut."""
    keys: Sequence[bytes | None]
    """The row whose tokens a report may have measured; None where something else goes out than a row holds."""


def outgoing_facts(adapter: Adapter, history: History, edits: ActiveEdits, cache: HistoryCache) -> Outgoing:
    """`cache` is read and added to."""
    start = edits.tail_start(history)
    facts: list[Facts | None] = list(history.facts)
    keys: Sequence[bytes | None] = history.keys
    # Swapped: the same row with a shorter text. Its measured tokens were forgotten when the swap was made.
    swapped_rows = edits.swapped_rows
    for i in range(start, len(history)):
        if history.keys[i] in swapped_rows:
            facts[i] = cached_facts(adapter, _swap_results(adapter, history, i, edits.swaps), cache)
    # Spliced: still the row that a report pays for, with all that the provider really saw.
    for i, splice in edits.splices.items():
        if i >= start:
            facts[i] = spliced_facts(adapter, history.facts[i], splice, cache)
    # An inner cut: its head stands at the place of its anchor, which no row's tokens are for.
    if edits.inner_cuts:
        keys = list(history.keys)
        for active in edits.inner_cuts:
            places = range(active.start, active.anchor + 1)
            keys[active.start : active.anchor + 1] = [None] * len(places)
            facts[active.start : active.anchor + 1] = [None] * len(places)
            head = [cached_facts(adapter, raw, cache) for raw in fingerprint.load(active.cut.head)]
            facts[active.anchor] = _together(history.facts[active.anchor], head)
    return Outgoing(tuple(facts), keys)


def spliced_facts(adapter: Adapter, fact: Facts, splice: Splice, cache: HistoryCache) -> Facts:
    """Facts about the messages of a splice as if they were one, with the client's own calls and identity."""
    return _together(fact, [cached_facts(adapter, raw, cache) for raw in fingerprint.load(splice.messages)])


def _together(fact: Facts, parts: Sequence[Facts]) -> Facts:
    """The fact with the size of several messages in its place."""
    return replace(
        fact,
        sizes=sum((part.sizes for part in parts), ZERO),
        bytes=sum(part.bytes for part in parts) + max(len(parts) - 1, 0),
        media=sum(part.media for part in parts),
        has_thinking=any(part.has_thinking for part in parts),
        starts_with_thinking=bool(parts) and parts[0].starts_with_thinking,
        is_signed=any(part.is_signed for part in parts),
    )


def with_spliced_facts(
    adapter: Adapter, history: History, splices: Mapping[int, Splice], cache: HistoryCache
) -> History:
    """The history as decisions about cuts have to see it: thinking and signatures as the provider saw them."""
    if not splices:
        return history
    facts = list(history.facts)
    for i, splice in splices.items():
        facts[i] = spliced_facts(adapter, facts[i], splice, cache)
    return replace(history, facts=facts)
