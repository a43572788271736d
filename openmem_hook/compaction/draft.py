"""A decision in the making: what it reads, and what each step adds to it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace

from openmem_hook.compaction.active import ActiveEdits
from openmem_hook.compaction.edits import NO_EDITS, BreakReason, Cut, Edits, RowEdit
from openmem_hook.compaction.estimate import TokenCosts
from openmem_hook.compaction.outgoing import Outgoing
from openmem_hook.compaction.request import Request
from openmem_hook.compaction.state import SessionState
from openmem_hook.compaction.threads import Placement, Thread
from openmem_hook.limits import Limits
from openmem_hook.model import Adapter, History, HistoryCache
from openmem_hook.tokens import Calibration


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that a decision depends on."""

    request: Request
    history: History
    session: str
    """The session's name, as a pointer shows it; "" where nothing is stored for it."""
    subagent_label: str
    """A hash of the client's own name of a sub-agent, "" for the main agent."""
    state: SessionState
    calibration: Calibration
    """Of the request's model, for this tenant."""
    cache: HistoryCache
    """Read and added to; what it holds changes no decision."""
    sent_unstored: Set[bytes] = frozenset()
    """Keys of messages that were sent while no store could take them: raw for good, though no row says so."""
    is_known: bool = True
    """False where the plugin is off and nobody here has seen any of the history."""
    began_outside_thread: bool = False
    """Whether the conversation began with a request that was part of no thread, and so has no note."""
    now: float = 0.0
    """Seconds since 1970, for what is written."""


@dataclass(frozen=True, slots=True)
class NotDue:
    """No break is due: no limit is reached and nobody asked."""


@dataclass(frozen=True, slots=True)
class NoUsefulCut:
    """A break is due, and no legal cut is worth one."""

    reason: BreakReason
    is_notable: bool
    """Whether an event tells it: there was nothing to gain, or a person waits for it."""


@dataclass(frozen=True, slots=True)
class Break:
    """A break with a new cut: bytes that were sent before change."""

    reason: BreakReason
    cut: Cut
    head_indices: tuple[int, ...]
    """Indices of the messages that its head shows."""


Verdict = NotDue | NoUsefulCut | Break


@dataclass(frozen=True, slots=True)
class Draft:
    """What is decided so far about one request. A step takes one and returns the next."""

    inputs: Inputs
    history: History
    """With the names that its messages have under the edits that stand."""
    edits: ActiveEdits
    """Those that stand, new ones with them."""
    placement: Placement
    thread: Thread
    """As it will be after this request."""
    costs: TokenCosts
    new_edits: Edits = NO_EDITS
    """Those that this decision makes: they stand, and are to be written."""
    outgoing: Outgoing = field(default_factory=lambda: Outgoing((), ()))
    """Facts about what goes out; empty before the step `weigh`."""
    tokens_before: float = 0.0
    """Estimated prompt tokens without a new cut."""
    tokens: float = 0.0
    """Estimated prompt tokens of what goes out."""
    verdict: Verdict = field(default_factory=NotDue)
    """What the step `cut` said."""

    @property
    def adapter(self) -> Adapter:
        return self.inputs.request.adapter

    @property
    def limits(self) -> Limits:
        return self.inputs.request.limits

    def undecided_from(self) -> int:
        """Index from which on a message that is not known to have been sent is sent for the first time.

        In a line that is known it is the newest model output before the end: what stands before that was sent, else
        nothing had answered it, and without a row it went past the store, raw.
        """
        facts, keys, lead = self.history.facts, self.history.keys, self.history.lead
        if not any(key in self.inputs.state.row_tokens for key in keys[lead:]):
            return 0
        at = len(facts)
        while at > lead and facts[at - 1].role == "assistant":  # what the client began in the model's stead
            at -= 1
        while at > lead and facts[at - 1].role != "assistant":
            at -= 1
        while at > lead and facts[at - 1].role == "assistant":
            at -= 1
        return at

    def editable_places(self) -> list[int]:
        """Indices of the messages that go out by themselves, behind the trim and what a provider compacted, and are
        not known to have been sent: one that was stays as it was sent, stored or not. Inner cuts take no part: a
        message that one replaces goes out once it stands no more."""
        start, keys = max(self.edits.tail_start(self.history), self.history.editable_from), self.history.keys
        row_tokens, sent_unstored = self.inputs.state.row_tokens, self.inputs.sent_unstored
        return [i for i in range(start, len(keys)) if not (keys[i] in row_tokens or keys[i] in sent_unstored)]

    def with_row_edits(self, edits: Sequence[RowEdit]) -> Draft:
        """With new edits of single messages: they stand, and are to be written."""
        if not edits:
            return self
        active = {**self.edits.row_edits, **{edit.edit_key: edit for edit in edits}}
        new_edits = self.new_edits.merge(Edits.of(edits))
        return replace(self, edits=replace(self.edits, row_edits=active), new_edits=new_edits)
