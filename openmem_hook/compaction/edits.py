"""The ledger of edits and `apply`, the only code that builds an outgoing message list.

An edit is decided once and frozen: a cut holds finished JSON, a swap finished text. New edits and replayed
ones go through the same `apply`, so the two can't differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from openmem_hook import fingerprint
from openmem_hook.model import Adapter, History, Raw
from openmem_hook.tokens import Sizes


@dataclass(frozen=True, slots=True)
class Cut:
    """What a head sends instead of the history from the lead up to its anchor.

    `id`: 16 hex. `anchor`: fingerprint of the last message the head stands for; `anchor_digest`, `before` (the
    identifying digest before it) and `trail` (digests of the last model outputs up to it) find it again after
    drift; `anchor_unique` where the anchor carries call ids. `head`: finished JSON, a list of messages, with its
    sizes in `head_sizes`. `shown`: digests of the messages the head shows, in order. `format`: the wire format of
    the head, which no other request can take ("" was not recorded). `place`: how many messages after the lead the
    anchor stood when the cut was made, None was not recorded.
    """

    id: str
    anchor: bytes
    anchor_digest: bytes
    anchor_unique: bool
    before: bytes | None
    trail: tuple[bytes, ...]
    head: bytes
    shown: tuple[bytes, ...]
    head_sizes: Sizes
    reason: str
    generation: int = 1
    format: str = ""
    place: int | None = None
    kind: str = "cut"
    state: str = "active"


@dataclass(frozen=True, slots=True)
class Swap:
    """One tool result replaced by frozen text. `key`: row key of its message; `id`: what a model asks for."""

    key: bytes
    call_id: str
    id: str
    text: str
    reason: str
    kind: str = "swap"
    state: str = "active"


SwapMap = Mapping[tuple[bytes, str], Swap]


@dataclass(frozen=True, slots=True)
class Standing:
    """A cut that applies to a history, and the index of its anchor there."""

    cut: Cut
    index: int


def sent_message(adapter: Adapter, history: History, index: int, swaps: SwapMap) -> Raw:
    """The message as it goes out: the client's own object unless a result in it was swapped."""
    raw = history.messages[index]
    if not swaps:
        return raw
    for slot in history.facts[index].results:
        swap = swaps.get((history.keys[index], slot.call_id))
        if swap is not None:
            raw = adapter.shorten_result(raw, slot.at, swap.text)
    return raw


def apply(adapter: Adapter, history: History, standing: Standing | None, swaps: SwapMap) -> list[Raw]:
    """The outgoing messages: lead, head, tail. Heads are parsed anew, so that no request shares them."""
    start = history.lead if standing is None else standing.index + 1
    head = [] if standing is None else fingerprint.load(standing.cut.head)
    tail = [sent_message(adapter, history, i, swaps) for i in range(start, len(history))]
    return [*history.messages[: history.lead], *head, *tail]
