"""What goes out in place of a history: its messages under the edits that stand, and the facts about them.

`apply` is the only code that builds an outgoing list, for new edits and replayed ones alike, so the two can't
differ. `outgoing_facts` says of the same list what decisions need to know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from openmem_hook import fingerprint
from openmem_hook.compaction.active import ActiveEdits
from openmem_hook.compaction.edits import Splice
from openmem_hook.facts import cached_facts
from openmem_hook.model import Adapter, Facts, History, HistoryCache, Raw
from openmem_hook.tokens import ZERO


def outgoing_messages(adapter: Adapter, history: History, places: range, edits: ActiveEdits) -> list[Raw]:
    """What these messages go out as, range cuts aside: the client's own objects, but for those that were edited."""
    out, edited_rows = list[Raw](), edits.edited_rows
    for i in places:
        if i in edits.splices or history.keys[i] in edited_rows:
            out += _outgoing_message(adapter, history, i, edits)
        else:
            out.append(history.messages[i])
    return out


def _outgoing_message(adapter: Adapter, history: History, index: int, edits: ActiveEdits) -> list[Raw]:
    """What one message goes out as: what the provider saw of it, or the client's own with its edits applied."""
    splice = edits.splices.get(index)
    if splice is not None:
        messages: list[Raw] = fingerprint.load(splice.messages)
        return messages
    messages = [history.messages[index]]
    for edit in edits.edited_rows.get(history.keys[index], ()):
        messages = [message for raw in messages for message in edit.edit_message(adapter, raw, history.facts[index])]
    return messages


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
    return bool(edits.cuts or edits.splices) or not edits.edited_rows.keys().isdisjoint(history.keys)


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
    facts: list[Facts | None] = list(history.facts)
    keys: Sequence[bytes | None] = history.keys
    # An edited message is still the row that a report pays for. What was measured of it was forgotten with the edit;
    # a spliced one was never sent otherwise.
    for i in range(edits.tail_start(history), len(history)):
        if i in edits.splices or history.keys[i] in edits.edited_rows:
            messages = _outgoing_message(adapter, history, i, edits)
            parts = [cached_facts(adapter, raw, cache) for raw in messages]
            facts[i] = parts[0] if len(parts) == 1 else _together(history.facts[i], parts)
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


def _together(fact: Facts, parts: Sequence[Facts]) -> Facts | None:
    """The fact with the size of several messages in its place; None for no message."""
    if not parts:
        return None
    return replace(
        fact,
        sizes=sum((part.sizes for part in parts), ZERO),
        bytes=sum(part.bytes for part in parts) + len(parts) - 1,
        media=sum(part.media for part in parts),
        has_thinking=any(part.has_thinking for part in parts),
        starts_with_thinking=parts[0].starts_with_thinking,
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
        messages = [cached_facts(adapter, raw, cache) for raw in fingerprint.load(splice.messages)]
        facts[i] = _together(facts[i], messages) or facts[i]
    return replace(history, facts=facts)
