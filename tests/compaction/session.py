"""Requests of a session without a gateway, threads or a store: what a decision writes is applied in memory.

`MemorySession` does with a decision what the compactor and its store do: decide, write, know it afterwards. `restart`
gives it only what a database holds, as a worker that comes new has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from openmem_hook import tokens
from openmem_hook.compaction import estimate
from openmem_hook.compaction.decision import ThreadDecision, decide
from openmem_hook.compaction.draft import Break, Draft, Inputs
from openmem_hook.compaction.edits import Cut, Edit, Edits, Splice, Swap, edit_from
from openmem_hook.compaction.learning import Lesson, Sample, learn
from openmem_hook.compaction.record import visible_cut
from openmem_hook.compaction.request import Request
from openmem_hook.compaction.state import RowName, SessionState
from openmem_hook.compaction.write import Event, NewRow, UsageWrite
from openmem_hook.formats import adapter_named
from openmem_hook.formats.decode import decode
from openmem_hook.limits import Limits
from openmem_hook.model import Adapter, Format, History, HistoryCache
from openmem_hook.settings import Settings
from openmem_hook.tokens import Calibration
from tests.kit.builders import Json
from tests.kit.histories import format_of

ROOMY = Limits(trim_at=10**9, hard=None, max_body_bytes=10**9, max_media=10**4, trim_to_fraction=0.3)
"""Limits that no test reaches."""
SMALL = Limits(trim_at=1200, hard=None, max_body_bytes=10**9, max_media=90, trim_to_fraction=0.3)
"""Limits that a history of a few thousand characters reaches."""
RATE = tokens.starting("", 2.5)
"""A calibration of 2.5 characters a token."""


def adapter_of(fmt: Format) -> Adapter:
    adapter = adapter_named(fmt)
    assert adapter is not None
    return adapter


def decode_body(body: Json, cache: HistoryCache | None = None) -> History:
    return decode(adapter_of(format_of(body)), body, cache or HistoryCache())


def settings(**more: Any) -> Settings:
    """Results are compressed above a thousand characters at 2.5 characters a token, unless said otherwise."""
    return Settings(**{"compress_over_tokens": 400, **more})


def request(body: Json, limits: Limits = ROOMY, **more: Any) -> Request:
    """A request of a main agent with all switched on."""
    fields: dict[str, Any] = {
        "tenant": "tenant",
        "session_id": "session-1",
        "subagent": "",
        "agent": "claude-code",
        "model": "test-model",
        "settings": settings(),
        **more,
    }
    return Request(adapter=adapter_of(format_of(body)), body=body, limits=limits, **fields)


def inputs(body: Json, state: SessionState | None = None, limits: Limits = ROOMY, **more: Any) -> Inputs:
    """What a decision on this body reads. Fields of `Request` in `more` go there, the others into `Inputs`."""
    of_request = {name: more.pop(name) for name in Request.__dataclass_fields__ if name in more}
    cache = more.pop("cache", None) or HistoryCache()
    fields: dict[str, Any] = {"session": "name-1", "subagent_label": "", "calibration": RATE, **more}
    return Inputs(
        request=request(body, limits, **of_request),
        history=decode_body(body, cache),
        state=state or SessionState(),
        cache=cache,
        **fields,
    )


@dataclass(slots=True)
class MemorySession:
    """One session's ledger, rows and events."""

    limits: Limits = SMALL
    state: SessionState = field(default_factory=SessionState)
    rows: dict[bytes, NewRow] = field(default_factory=dict)
    """What was stored first of each message, by row key."""
    events: list[Event] = field(default_factory=list)
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every request and its inputs."""
    cache: HistoryCache = field(default_factory=HistoryCache)
    calibration: Calibration = RATE

    def inputs(self, body: Json, **more: Any) -> Inputs:
        fields = {"calibration": self.calibration, "cache": self.cache, **self.options, **more}
        return inputs(body, self.state, self.limits, **fields)

    def decide(self, body: Json, **more: Any) -> ThreadDecision:
        """The decision on a request that belongs to a thread; nothing is written."""
        decision = decide(self.inputs(body, **more))
        assert isinstance(decision, ThreadDecision)
        return decision

    def send(self, body: Json, **more: Any) -> ThreadDecision:
        decision = self.decide(body, **more)
        self.write(decision)
        return decision

    def write(self, decision: ThreadDecision) -> None:
        """What a store does with a decision; a new thread gets its number."""
        write, thread = decision.write, decision.write.thread
        if not thread.id:
            number = len(self.state.threads) + 1
            thread = replace(thread, id=number, name=f"{thread.name}-{number}")
        for row in write.rows:
            self.rows.setdefault(row.key, row)
        self.events += write.events
        self.state = self.state.after(write, thread).with_newest_cut(thread.id, visible_cut(decision.draft))

    def insert(self, *edits: Edit) -> None:
        """Edits that nobody decides yet."""
        self.state = replace(self.state, edits=self.state.edits.merge(Edits.of(edits)))

    def report(self, decision: ThreadDecision, prompt_tokens: int) -> Lesson:
        """The provider's count of a request; what it teaches is known from then on."""
        sample = sample_of(decision.draft)
        lesson = learn(sample, self.state.reports, prompt_tokens)
        self.state = self.state.after_report(usage_of(sample, lesson, prompt_tokens, self._thread_of(decision)))
        self.calibration = lesson.calibration or self.calibration
        return lesson

    def _thread_of(self, decision: ThreadDecision) -> int:
        return decision.write.thread.id or len(self.state.threads)

    def restart(self) -> None:
        """Only what a database holds is known, in a cache that is empty."""
        state = self.state
        names = (
            RowName(row.key, row.past, row.digest, state.owners[row.key], state.row_tokens[row.key])
            for row in self.rows.values()
        )
        edits = Edits.of(edit for old in state.edits if (edit := edit_from(old.row())) is not None)
        fresh = replace(SessionState.of_rows(names), edits=edits, threads=state.threads, reports=state.reports)
        self.state, self.cache = fresh, HistoryCache()

    def count(self, kind: type[Cut] | type[Swap] | type[Splice]) -> int:
        return sum(isinstance(edit, kind) for edit in self.state.edits)


def sample_of(draft: Draft) -> Sample:
    """What the recorder keeps of a request until its report comes."""
    return Sample(
        history=replace(draft.history, messages=()),
        outgoing=draft.outgoing,
        cut_id=draft.edits.cut_id,
        first_paid=estimate.find_first_paid(draft.history, draft.edits),
        whole=estimate.estimate_whole(draft.history, draft.outgoing, draft.edits, draft.costs),
        costs=replace(draft.costs, reports={}, row_tokens={}),
    )


def usage_of(sample: Sample, lesson: Lesson, prompt_tokens: int | None, thread: int) -> UsageWrite:
    """What the recorder writes of a report."""
    return UsageWrite(
        report_id="call",
        key=sample.history.keys[-1],
        cut=sample.cut_id,
        tokens=prompt_tokens,
        overhead=sample.costs.of_steady_overhead(sample.history),
        family_rate=sample.costs.family_rate,
        row_tokens=lesson.row_tokens,
        thread=thread,
        offset=lesson.offset,
        event=Event("usage", {}),
        now=0.0,
    )


def messages_of(body: Mapping[str, Any]) -> list[Any]:
    """The messages or items of a body."""
    messages: list[Any] = body["input"] if "input" in body else body["messages"]
    return messages


def is_break(decision: ThreadDecision) -> bool:
    return isinstance(decision.draft.verdict, Break)
