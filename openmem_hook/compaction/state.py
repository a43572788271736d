"""What is known of a session, as one value: decisions read it, a store loads it and keeps it up to date.

Never changed: what a decision wrote or a report taught gives a new state, so that whoever holds an older one, in
another thread, still sees a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from openmem_hook.compaction.edits import NO_EDITS, Edits
from openmem_hook.compaction.estimate import Report, ReportKey
from openmem_hook.compaction.threads import Thread, place
from openmem_hook.compaction.write import NewRow, UsageWrite, Write
from openmem_hook.model import History

REPORTS_KEPT = 4_000
"""Newest reports known of a session: estimates look for the last one."""


class RowName(NamedTuple):
    """A stored message, by what decisions know of it."""

    key: bytes
    past: bytes
    """Fingerprint before it."""
    digest: bytes
    thread: int
    """The one that stored it first."""
    tokens: float | None
    """What reports attributed to it."""


@dataclass(frozen=True, slots=True)
class SessionState:
    """Keys, edits, threads and reports of a session, never text."""

    row_tokens: Mapping[bytes, float | None] = field(default_factory=dict)
    """Row key of every stored message, with the tokens that reports attributed to it."""
    row_keys: Mapping[bytes, bytes] = field(default_factory=dict)
    """Digest of every stored message, with the key of its newest row."""
    followers: Mapping[bytes, frozenset[bytes]] = field(default_factory=dict)
    """Digests of the messages that followed a fingerprint."""
    owners: Mapping[bytes, int] = field(default_factory=dict)
    """Row key of every stored message, with the thread that stored it first."""
    threads: Mapping[int, Thread] = field(default_factory=dict)
    reports: Mapping[ReportKey, Report] = field(default_factory=dict)
    edits: Edits = NO_EDITS
    unstored_edits: Edits = NO_EDITS
    """Those of `edits` that the session's database doesn't hold: a fork's parent's, or of a database that was lost."""
    origins: Mapping[bytes, Thread] = field(default_factory=dict)
    """Threads that the database doesn't hold and whose rules hold, by the keys of their messages."""
    newest_cut_ids: Mapping[int, str] = field(default_factory=dict)
    """Id of the trim that a thread's newest request had, "" for none. Known for the threads that were seen here."""

    @classmethod
    def of_rows(cls, rows: Iterable[RowName]) -> SessionState:
        return cls().with_rows(rows)

    def with_rows(self, rows: Iterable[RowName]) -> SessionState:
        """With these rows, as far as their keys are new."""
        row_tokens, row_keys = dict(self.row_tokens), dict(self.row_keys)
        followers, owners = dict(self.followers), dict(self.owners)
        for row in rows:
            if row.key not in row_tokens:
                row_tokens[row.key], row_keys[row.digest], owners[row.key] = row.tokens, row.key, row.thread
                followers[row.past] = followers.get(row.past, frozenset()) | {row.digest}
        return replace(self, row_tokens=row_tokens, row_keys=row_keys, followers=followers, owners=owners)

    def after(self, write: Write, thread: Thread) -> SessionState:
        """After a decision was written; `thread` is the stored one."""
        state = self if not write.rows else self.with_rows(row_name(row, thread.id) for row in write.rows)
        replaced_rows = (edit.replaced_row for edit in write.edits)
        forget = {key: None for key in replaced_rows if key is not None and state.row_tokens.get(key) is not None}
        return replace(
            state,
            threads={**state.threads, thread.id: thread},
            row_tokens={**state.row_tokens, **forget} if forget else state.row_tokens,
            edits=state.edits.merge(write.edits),
            unstored_edits=NO_EDITS if write.edits else state.unstored_edits,
        )

    def after_report(self, usage: UsageWrite) -> SessionState:
        """After a report was stored."""
        reports, threads = self.reports, self.threads
        if usage.tokens is not None:
            report = Report(usage.tokens, usage.overhead, usage.family_rate)
            reports = {**reports, (usage.key, usage.cut): report}
            if len(reports) > REPORTS_KEPT:
                del reports[next(iter(reports))]
        costs = {key: cost for key, cost in usage.row_tokens if key in self.row_tokens}  # else the row was lost since
        thread = threads.get(usage.thread)
        if usage.offset is not None and thread is not None:
            threads = {**threads, thread.id: replace(thread, offset=usage.offset)}
        row_tokens = {**self.row_tokens, **costs} if costs else self.row_tokens
        return replace(self, reports=reports, row_tokens=row_tokens, threads=threads)

    def with_newest_cut(self, thread: int, cut_id: str) -> SessionState:
        if self.newest_cut_ids.get(thread) == cut_id:
            return self
        return replace(self, newest_cut_ids={**self.newest_cut_ids, thread: cut_id})

    def carry_over(self, fresh: SessionState) -> SessionState:
        """The state that was read anew, with what this one knows and the database doesn't hold: what was sent stays
        sent, and what is prepared stays so, whatever became of the file."""
        owners = ((key, self.threads.get(self.owners.get(key, 0))) for key in self.lost_rows(fresh))
        # An edit that the database calls abandoned has its place there, and is not carried over.
        unstored_edits = Edits.of(edit for edit in self.edits.without(fresh.edits) if edit.state != "abandoned")
        return replace(
            fresh,
            edits=fresh.edits.merge(unstored_edits),
            unstored_edits=unstored_edits,
            origins={**self.origins, **{key: thread for key, thread in owners if thread is not None}},
            newest_cut_ids=self.newest_cut_ids,
        )

    def lost_rows(self, fresh: SessionState) -> list[bytes]:
        """Keys of messages that were stored and are not in the state that was read anew."""
        return [key for key in self.row_tokens if key not in fresh.row_tokens]

    def is_new(self, history: History, agent: str) -> bool:
        """Whether a history may be a fork of another session: this one has no trim, has not stored the history's first
        message and has no thread that it belongs to. `agent` is the sub-agent's label."""
        if self.edits.trims or any(key in self.owners for key in history.keys[history.lead : history.lead + 1]):
            return False
        return not place(history, agent, self.threads.values(), self.owners).thread

    def adopt(self, history: History, shared_key: bytes, parent: SessionState) -> SessionState:
        """With the edits that this history shares with a parent's: its deepest cut from the lead, and what stands at
        the messages of both. `shared_key`: the newest shared message that has an edit."""
        # L2: what the parent sent of these messages, the fork sends too. Of its trims only the deepest can stand.
        trims, names = parent.edits.trims, {*history.keys, *history.chain}
        deepest = next((trims[key] for key in reversed(history.chain) if key in trims), None)
        others = (edit for edit in parent.edits.besides_trims if names.intersection(edit.fingerprints))
        edits = Edits.of([*others, *([] if deepest is None else [deepest])])
        if not edits:
            return self
        # They are unstored here, so that the next claim writes them; and the parent's rules hold on.
        thread = parent.threads.get(parent.owners.get(shared_key, 0))
        return replace(
            self,
            edits=self.edits.merge(edits),
            unstored_edits=self.unstored_edits.merge(edits),
            origins=self.origins if thread is None else {**self.origins, shared_key: thread},
        )

    def origin_of(self, keys: Sequence[bytes]) -> Thread | None:
        """The thread of the newest of these messages that `origins` knows."""
        return next((self.origins[key] for key in reversed(keys) if key in self.origins), None)


def row_name(row: NewRow, thread: int) -> RowName:
    return RowName(row.key, row.past, row.digest, thread, None)
