"""The ledger of edits: what was decided about a history, frozen, and where each decision applies.

An edit is decided once: a cut and a splice hold finished JSON, a swap finished text. Each kind is a class here that
says everything about itself: its payload and detail as a row, its place in the ledger, what the catalog finds it by.
`KINDS` lists them; the store, the merging of ledgers and the carrying over from a lost database know no kind by name.
`Edits` is the ledger as one value, `active` says which of it stands in a history, and `apply` builds what goes out.

Inner cuts, splices and prepared edits are stored, merged, placed and applied like all others, and no step makes one
yet.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

from openmem_hook.model import Editor, Facts, Format, Raw
from openmem_hook.tokens import Sizes

EditKind = Literal["cut", "swap", "splice"]

EditState = Literal["prepared", "active", "abandoned"]
"""`prepared`: made ahead, to be adopted at the next break; `active`: what is sent; `abandoned`: never sent, or lost
against another worker's. Only active edits apply; the others keep their place, so that nobody takes them for lost."""

BreakReason = Literal["limit", "hard", "forced"]
"""Why bytes that were sent before may change: the soft limit, a hard one, a person."""

EditReason = Literal["limit", "hard", "forced", "size", "renamed", "hidden"]
"""A break's (`limit`, `hard`, `forced`), which may also shorten results that stay; else why an edit was made without a
break: a result over its size when it was first sent, the same result under another name, an exchange that the client
does not see."""


class EditKey(NamedTuple):
    """The place of an edit in the ledger: there is one edit at each."""

    kind: EditKind
    key: bytes
    """A cut's anchor, a swap's message, a splice's message by its digest."""
    part: str
    """What tells two edits with the same key apart: the call id of a swap, the start of an inner cut, the past of a
    splice; "" where there is only one."""


class EditRow(NamedTuple):
    """An edit as a store holds it."""

    kind: str
    name: str
    key: bytes
    part: str
    reason: str
    generation: int
    state: str
    payload: bytes
    detail: str
    """JSON: what finds the edit again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit(ABC):
    """What all kinds have. A new kind is a class below and its line in `KINDS`."""

    kind: ClassVar[EditKind]

    id: str
    """16 hex characters."""
    reason: EditReason
    generation: int = 0
    """A cut's number among its session's, from 1. For any other edit the number of the newest cut when it was stored, 0
    before the first."""
    state: EditState = "active"

    @property
    @abstractmethod
    def edit_key(self) -> EditKey: ...

    @property
    @abstractmethod
    def fingerprints(self) -> tuple[bytes, ...]:
        """Fingerprints in a history's chain by which another session, a fork, finds the edit."""

    @property
    def results(self) -> tuple[str, ...]:
        """Ids by which a model may ask for the full text of a result."""
        return ()

    @property
    def replaced_row(self) -> bytes | None:
        """Key of a row that goes out as something else than before: what reports measured of it counts no more."""
        return None

    @abstractmethod
    def payload(self) -> bytes: ...

    @abstractmethod
    def detail(self) -> Mapping[str, Any]: ...

    @classmethod
    @abstractmethod
    def from_row(cls, row: EditRow) -> Self:
        """The edit in a row. Raises ValueError, LookupError or TypeError where the row makes no sense."""

    def row(self) -> EditRow:
        _, key, part = self.edit_key
        detail = json.dumps(self.detail())
        return EditRow(self.kind, self.id, key, part, self.reason, self.generation, self.state, self.payload(), detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut(Edit):
    """Frozen messages in place of a range of a history, from its start to its anchor.

    A cut from the lead is a trim; one that starts later is an inner cut. The digests find it again after drift.
    """

    kind = "cut"

    anchor: bytes
    """Fingerprint of the last message that it replaces."""
    anchor_digest: bytes
    anchor_unique: bool
    """Whether the anchor carries call ids, which no other message has."""
    before: bytes | None
    """The identifying digest before the anchor."""
    recent_outputs: tuple[bytes, ...]
    """Digests of the last model outputs up to the anchor, newest first."""
    head: bytes
    """Finished JSON: the list of messages that are sent instead."""
    head_sizes: Sizes
    shown_digests: tuple[bytes, ...]
    """Digests of the messages of the range that the head shows, in order."""
    format: Format | Literal[""] = ""
    """Of the head, which no request in another format can take; "" was not recorded."""
    position: int | None = None
    """How many messages after the lead the anchor stood when the cut was made; None was not recorded."""
    start: bytes | None = None
    """Fingerprint of the first message that it replaces; None for the lead's end."""
    start_digest: bytes | None = None

    @property
    def edit_key(self) -> EditKey:
        return EditKey("cut", self.anchor, "" if self.start is None else self.start.hex())

    @property
    def fingerprints(self) -> tuple[bytes, ...]:
        return (self.anchor,)

    def payload(self) -> bytes:
        return self.head

    def detail(self) -> Mapping[str, Any]:
        start = {} if self.start is None else {"start": self.start.hex(), "start_digest": _hex(self.start_digest)}
        return {
            "anchor_digest": self.anchor_digest.hex(),
            "anchor_unique": self.anchor_unique,
            "before": _hex(self.before),
            "trail": [digest.hex() for digest in self.recent_outputs],
            "shown": [digest.hex() for digest in self.shown_digests],
            "head_sizes": self.head_sizes.counts(),
            "format": self.format,
            "place": self.position,
            **start,
        }

    @classmethod
    def from_row(cls, row: EditRow) -> Self:
        detail = json.loads(row.detail)
        return cls(
            **_common(row),
            anchor=row.key,
            anchor_digest=bytes.fromhex(detail["anchor_digest"]),
            anchor_unique=detail["anchor_unique"],
            before=_bytes(detail["before"]),
            recent_outputs=tuple(map(bytes.fromhex, detail["trail"])),
            head=row.payload,
            head_sizes=Sizes(*detail["head_sizes"]),
            shown_digests=tuple(map(bytes.fromhex, detail["shown"])),
            format=detail.get("format", ""),
            position=detail.get("place"),
            start=_bytes(detail.get("start")),
            start_digest=_bytes(detail.get("start_digest")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowEdit(Edit):
    """An edit of one message, which its row key names. It stands wherever that message does."""

    key: bytes
    """Row key of the message."""

    @property
    def part(self) -> str:
        """What tells it from others of its kind at the same message."""
        return ""

    @property
    def edit_key(self) -> EditKey:
        return EditKey(self.kind, self.key, self.part)

    @property
    def fingerprints(self) -> tuple[bytes, ...]:
        return (self.key,)

    @property
    def replaced_row(self) -> bytes:
        return self.key

    @abstractmethod
    def edit_message(self, adapter: Editor, raw: Raw, fact: Facts) -> list[Raw]:
        """What goes out in the message's place. `fact` is about the client's own message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultEdit(RowEdit):
    """Frozen text in place of one tool result. Its `id` is what a model asks for to get the whole."""

    call_id: str
    text: str

    @property
    def part(self) -> str:
        return self.call_id

    @property
    def results(self) -> tuple[str, ...]:
        return (self.id,)

    def edit_message(self, adapter: Editor, raw: Raw, fact: Facts) -> list[Raw]:
        slots = (slot for slot in fact.results if slot.call_id == self.call_id)
        for slot in slots:
            raw = adapter.shorten_result(raw, slot.at, self.text)
        return [raw]

    def payload(self) -> bytes:
        return self.text.encode("utf-8", "surrogatepass")

    def detail(self) -> Mapping[str, Any]:
        return {}

    @classmethod
    def from_row(cls, row: EditRow) -> Self:
        text = row.payload.decode("utf-8", "surrogatepass")
        return cls(**_common(row), key=row.key, call_id=row.part, text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap(ResultEdit):
    """A short form: the beginning and the end of the result."""

    kind = "swap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Splice(Edit):
    """Frozen messages in place of one output of the model: what the provider really saw, where the client was shown one
    message instead of several. Found by the message's digest, where the same past or the same outputs led to it."""

    kind = "splice"

    digest: bytes
    past: bytes
    """Fingerprint before the message."""
    messages: bytes
    """Finished JSON: the list of messages that are sent instead."""
    recent_outputs: tuple[bytes, ...]
    """Digests of the last model outputs up to the message, newest first."""
    format: Format

    @property
    def edit_key(self) -> EditKey:
        return EditKey("splice", self.digest, self.past.hex())

    @property
    def fingerprints(self) -> tuple[bytes, ...]:
        return (self.past,)

    def payload(self) -> bytes:
        return self.messages

    def detail(self) -> Mapping[str, Any]:
        return {"format": self.format, "trail": [digest.hex() for digest in self.recent_outputs]}

    @classmethod
    def from_row(cls, row: EditRow) -> Self:
        detail = json.loads(row.detail)
        return cls(
            **_common(row),
            digest=row.key,
            past=bytes.fromhex(row.part),
            messages=row.payload,
            recent_outputs=tuple(map(bytes.fromhex, detail["trail"])),
            format=detail["format"],
        )


# Written out, so that mypy refuses a class of the table that lacks a method.
KINDS: Mapping[EditKind, type[Edit]] = {"cut": Cut, "swap": Swap, "splice": Splice}
"""Several edits of one message apply in this order, in every worker: of two texts for one result the later stands."""

RESULT_KINDS = tuple(kind for kind, edit in KINDS.items() if issubclass(edit, ResultEdit))

_ORDER: Mapping[EditKind, int] = {kind: place for place, kind in enumerate(KINDS)}


def in_order(edits: Iterable[RowEdit]) -> list[RowEdit]:
    """Edits of one message as they apply to it, one after the other."""
    return sorted(edits, key=lambda edit: _ORDER[edit.kind])


def _common(row: EditRow) -> dict[str, Any]:
    return {"id": row.name, "reason": row.reason, "generation": row.generation, "state": cast(EditState, row.state)}


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else bytes.fromhex(value)


def edit_from(row: EditRow) -> Edit | None:
    """The edit in a row; None for a kind of a later version, which is left alone."""
    kind = KINDS.get(cast(EditKind, row.kind))
    return None if kind is None else kind.from_row(row)


RowEdits = Mapping[EditKey, RowEdit]
"""Edits of single messages."""


@dataclass(frozen=True)
class Edits:
    """A ledger: at most one edit a place, of all kinds and states. Never changed; every operation gives a new one."""

    by_key: Mapping[EditKey, Edit] = field(default_factory=dict)

    @classmethod
    def of(cls, edits: Iterable[Edit]) -> Self:
        """The last of several at one place counts."""
        return cls({edit.edit_key: edit for edit in edits})

    def __bool__(self) -> bool:
        return bool(self.by_key)

    def __len__(self) -> int:
        return len(self.by_key)

    def __iter__(self) -> Iterator[Edit]:
        return iter(self.by_key.values())

    def merge(self, later: Edits) -> Edits:
        """Both, in the order in which they were made; where they share a place, that of `later`."""
        if not later:
            return self
        return Edits({**self.without(later).by_key, **later.by_key}) if self else later

    def without(self, other: Edits) -> Edits:
        """Those at places where `other` has none, whatever its state."""
        if not (self and other):
            return self
        return Edits({key: edit for key, edit in self.by_key.items() if key not in other.by_key})

    def with_state(self, state: EditState) -> Edits:
        return Edits({key: replace(edit, state=state) for key, edit in self.by_key.items()})

    @cached_property
    def _active(self) -> tuple[Edit, ...]:
        return tuple(edit for edit in self.by_key.values() if edit.state == "active")

    @cached_property
    def trims(self) -> Mapping[bytes, Cut]:
        """Active cuts from the lead, by their anchors."""
        return {e.anchor: e for e in self._active if isinstance(e, Cut) and e.start is None}

    @cached_property
    def besides_trims(self) -> tuple[Edit, ...]:
        """All other active edits."""
        return tuple(e for e in self._active if not (isinstance(e, Cut) and e.start is None))

    @cached_property
    def inner_cuts(self) -> tuple[Cut, ...]:
        """Active cuts that start later."""
        return tuple(e for e in self._active if isinstance(e, Cut) and e.start is not None)

    @cached_property
    def row_edits(self) -> RowEdits:
        """Active edits of single messages that their row keys name."""
        return {e.edit_key: e for e in self._active if isinstance(e, RowEdit)}

    @cached_property
    def swaps(self) -> Mapping[tuple[bytes, str], Swap]:
        """Active swaps, by their messages and call ids."""
        return {(e.key, e.call_id): e for e in self._active if isinstance(e, Swap)}

    @cached_property
    def splices(self) -> Mapping[bytes, tuple[Splice, ...]]:
        """Active splices by the digests of their messages."""
        by_digest = dict[bytes, tuple[Splice, ...]]()
        for edit in self._active:
            if isinstance(edit, Splice):
                by_digest[edit.digest] = (*by_digest.get(edit.digest, ()), edit)
        return by_digest

    @cached_property
    def fingerprints(self) -> tuple[bytes, ...]:
        """All that a fork may find the active ones by."""
        return tuple(fingerprint for edit in self._active for fingerprint in edit.fingerprints)

    @cached_property
    def results(self) -> tuple[str, ...]:
        """Ids of the results whose short forms the active ones send."""
        return tuple(result for edit in self._active for result in edit.results)


NO_EDITS = Edits()
