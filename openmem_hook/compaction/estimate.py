"""What a request will cost in tokens, from the best source there is.

The last reported usage whose request is a prefix of this one; measured growth, stored with the rows it paid
for; a learned rate for what no report covers. Providers that stop counting a turn's thinking once the next
message is typed are followed in that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from openmem_hook import tokens
from openmem_hook.compaction.active import ActiveEdits
from openmem_hook.compaction.outgoing import Outgoing
from openmem_hook.model import Facts, History
from openmem_hook.tokens import Calibration


@dataclass(frozen=True, slots=True)
class Report:
    """A provider's count of a request."""

    tokens: int
    """Of the whole prompt."""
    overhead: float
    """Of its system prompt and tools, by the steady rate."""
    family_rate: float
    """The model's `tokens.family_rate`: another tokenizer's count says nothing of this one's."""


_STEADY = tokens.starting("")
"""Never learns. Overheads of two requests are compared by it, so that they differ only when system prompt or
tools do: by the rates of their days, the same 6,000 characters seemed to shrink by 1,200 tokens in between,
which was charged to the messages in between and came back as an error of 16 % after the cut."""

ReportKey = tuple[bytes, str]
"""Row key of the request's last message, `ActiveEdits.cut_id` of the cuts that stood."""


@dataclass(frozen=True, slots=True)
class TokenCosts:
    """How a thread's messages are priced, in tokens."""

    reports: Mapping[ReportKey, Report]
    row_tokens: Mapping[bytes, float | None]
    """Tokens that reports attributed to stored rows, None where none did."""
    offset: float
    """Tokens that a report showed beyond our estimate of the whole request: system prompt, tools, unseen framing."""
    calibration: Calibration
    family_rate: float
    drops_thinking: bool = False
    """Whether the provider stops counting a turn's thinking once the next message is typed."""

    def of_overhead(self, history: History) -> float:
        return tokens.estimate(self.calibration, history.overhead)

    def of_steady_overhead(self, history: History) -> float:
        return tokens.estimate(_STEADY, history.overhead)

    def of_each(self, keys: Iterable[bytes | None], facts: Iterable[Facts | None]) -> list[float]:
        """Tokens of each message: measured where its row was, else estimated."""
        row_tokens, calibration = self.row_tokens.get, self.calibration
        return [
            0.0
            if fact is None
            else tokens.estimate(calibration, fact.sizes)
            if key is None or (cost := row_tokens(key)) is None
            else cost
            for key, fact in zip(keys, facts, strict=True)
        ]

    def of_thinking(self, fact: Facts | None) -> float:
        return tokens.estimate(self.calibration, fact.sizes.thinking_part()) if fact and fact.has_thinking else 0.0


def estimate_each(
    history: History, outgoing: Outgoing, costs: TokenCosts, start: int = 0, end: int | None = None
) -> list[float]:
    """Tokens of each message from `start` to `end` as it would go out. With `drops_thinking`, turns before the
    last count without; what a compaction stands for costs nothing."""
    last_turn = find_last_typed(history) if costs.drops_thinking else 0
    free = range(history.lead, history.compaction_at)
    facts = outgoing.facts[start:end]
    each = costs.of_each(outgoing.keys[start:end], facts)
    return [
        0.0 if i in free else cost - (costs.of_thinking(fact) if i < last_turn else 0.0)
        for i, (cost, fact) in enumerate(zip(each, facts, strict=True), start)
    ]


def find_last_typed(history: History, end: int | None = None) -> int:
    """Index of the last typed message before `end`, 0 without one."""
    stop = len(history) if end is None else end
    return next((i for i in range(stop - 1, -1, -1) if history.facts[i].kind == "typed"), 0)


def find_first_paid(history: History, edits: ActiveEdits) -> int:
    """Index of the first message after the trim's head, or after a compaction, that a report can have paid for."""
    start = edits.tail_start(history)
    return max(start, history.compaction_at + 1) if history.compaction_at else start


def estimate_head(history: History, edits: ActiveEdits, costs: TokenCosts) -> float:
    """Tokens of what the trim sends in place of the history up to its anchor."""
    trim = edits.trim
    if trim is None or trim.anchor < history.compaction_at:
        return 0.0
    return tokens.estimate(costs.calibration, trim.cut.head_sizes)


def estimate_whole(history: History, outgoing: Outgoing, edits: ActiveEdits, costs: TokenCosts) -> float:
    """The whole request priced message by message, without `offset`."""
    lead = sum(estimate_each(history, outgoing, costs, 0, history.lead))
    tail = sum(estimate_each(history, outgoing, costs, edits.tail_start(history)))
    return costs.of_overhead(history) + lead + estimate_head(history, edits, costs) + tail


def estimate_prompt(history: History, outgoing: Outgoing, edits: ActiveEdits, costs: TokenCosts) -> float:
    """Prompt tokens of the request as it would go out."""
    start, cut_id = find_first_paid(history, edits), edits.cut_id
    # The newest report of a request that is a prefix of this one, under the same cuts, and what was added since.
    for i in range(len(history) - 1, max(start - 2, -1), -1):
        report = costs.reports.get((history.keys[i], cut_id))
        if report is not None and report.family_rate != costs.family_rate:
            return max(estimate_whole(history, outgoing, edits, replace(costs, row_tokens={})), 0.0)
        if report is not None:
            return max(report.tokens + _growth(history, outgoing, i, costs) - report.overhead, 0.0)
    return max(estimate_whole(history, outgoing, edits, costs) + costs.offset, 0.0)


def _growth(history: History, outgoing: Outgoing, report_at: int, costs: TokenCosts) -> float:
    """Overhead now, and what was added after the reported message less what stopped counting since."""
    after = report_at + 1
    growth = sum(costs.of_each(outgoing.keys[after:], outgoing.facts[after:]))
    dropped_thinking = 0.0
    if costs.drops_thinking:
        then, now = find_last_typed(history, after), find_last_typed(history)
        dropped_thinking = sum(costs.of_thinking(fact) for fact in outgoing.facts[then:now])
    return costs.of_steady_overhead(history) + growth - dropped_thinking
