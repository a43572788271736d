"""What a decision or a report writes, as values: the core says it, a store does it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from openmem_hook.compaction.edits import NO_EDITS, Edits
from openmem_hook.compaction.threads import Thread
from openmem_hook.model import Format, MessageKind, Role

EventKind = Literal[
    "trim",
    "forced",  # a trim that a person asked for
    "nothing_to_trim",  # a limit was reached or a person asked, and no legal cut gains enough
    "compression",
    "usage",  # one for each request with a response
    "fail_open",  # a request passed without new edits
    "ignored_setting",  # one that was met at run time and could not be used
    "expired",  # sessions that were deleted for their age
]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that the plugin did, for an operator to count."""

    kind: EventKind
    data: Mapping[str, Any]
    """Numbers and names, never message text."""

    def as_json(self) -> str:
        """Its data without a blank too many: one is written with every request, twice."""
        return json.dumps(self.data, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class NewRow:
    """A message to store."""

    key: bytes
    past: bytes
    """Fingerprint before it."""
    digest: bytes
    role: Role
    kind: MessageKind
    tool_name: str
    """Tools called or answered, comma separated."""
    text: str
    """What is searched."""
    in_context: bool
    """Whether the request shows it whole."""
    format: Format
    body: bytes
    """Its JSON as the client sent it."""


@dataclass(frozen=True, slots=True)
class Write:
    """What a decision writes."""

    thread: Thread
    rows: Sequence[NewRow] = ()
    edits: Edits = NO_EDITS
    """New ones, and those that the session goes by and its database doesn't hold."""
    events: Sequence[Event] = ()
    hidden_keys: Sequence[bytes] = ()
    """Keys of messages that the thread's newest request no longer shows whole."""
    shown_keys: Sequence[bytes] = ()
    """Keys of messages that it shows whole again."""
    replaced_threads: Sequence[int] = ()
    """Threads none of whose messages are shown any more."""
    now: float = 0.0
    """Seconds since 1970."""

    @property
    def is_empty(self) -> bool:
        parts = (self.rows, self.edits, self.events, self.hidden_keys, self.shown_keys, self.replaced_threads)
        return not any(parts)


@dataclass(frozen=True, slots=True)
class UsageWrite:
    """What a report adds."""

    report_id: str
    """Makes it count once."""
    key: bytes
    """Row key of the last message of its request."""
    cut: str
    """`ActiveEdits.cut_id` of its request."""
    tokens: int | None
    """Prompt tokens, None where the provider told none."""
    overhead: float
    """System prompt and tools in tokens, by the steady rate."""
    family_rate: float
    row_tokens: Sequence[tuple[bytes, float]]
    """Tokens of rows."""
    thread: int
    offset: float | None
    event: Event
    now: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Savings:
    """Estimated prompt tokens of a request."""

    before: int
    """Without any edit."""
    after: int
    """With the edits."""
