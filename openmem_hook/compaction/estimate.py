"""What a request will cost in tokens, from the best source there is.

The last reported usage whose request is a prefix of this one; measured growth, stored with the rows it paid
for; a learned rate for what no report covers. Providers that stop counting a turn's thinking once the next
message is typed are followed in that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from openmem_hook import tokens
from openmem_hook.compaction.edits import Standing
from openmem_hook.model import Facts, History
from openmem_hook.tokens import Calibration


@dataclass(frozen=True, slots=True)
class Report:
    """A provider's count of a request: its prompt tokens, its overhead by the steady rate, and the model's
    `tokens.family_rate`: another tokenizer's count says nothing of this one's."""

    tokens: int
    overhead: float
    family_rate: float


_STEADY = tokens.starting("")
"""Never learns. Overheads of two requests are compared by it, so that they differ only when system prompt or
tools do: by the rates of their days, the same 6,000 characters seemed to shrink by 1,200 tokens in between,
which was charged to the messages in between and came back as an error of 16 % after the cut."""

ReportKey = tuple[bytes, str]
"""Row key of the request's last message, id of the cut that stood ("" for none)."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How a session's messages are priced.

    `measured`: tokens that reports attributed to stored rows, None where none did. `offset`: tokens a report
    showed beyond our estimate of the whole request (system prompt, tools and framing we don't see).
    """

    reports: Mapping[ReportKey, Report]
    measured: Mapping[bytes, float | None]
    offset: float
    calibration: Calibration
    family_rate: float
    drops_thinking: bool = False

    def overhead(self, history: History) -> float:
        return tokens.estimate(self.calibration, history.overhead)

    def steady_overhead(self, history: History) -> float:
        return tokens.estimate(_STEADY, history.overhead)

    def cost(self, key: bytes, fact: Facts) -> float:
        known = self.measured.get(key)
        return tokens.estimate(self.calibration, fact.sizes) if known is None else known

    def costs(self, keys: Iterable[bytes], facts: Iterable[Facts]) -> list[float]:
        """`cost` of each."""
        known, calibration = self.measured.get, self.calibration
        return [
            tokens.estimate(calibration, fact.sizes) if (cost := known(key)) is None else cost
            for key, fact in zip(keys, facts, strict=True)
        ]

    def thought(self, fact: Facts) -> float:
        return tokens.estimate(self.calibration, fact.sizes.thinking_part()) if fact.has_thinking else 0.0


def per_message(
    history: History, sent: Sequence[Facts], scale: Scale, start: int = 0, end: int | None = None
) -> list[float]:
    """Tokens of each message from `start` to `end` as it would go out. With `drops_thinking`, turns before the
    last count without; what a compaction stands for costs nothing."""
    edge = last_typed(history) if scale.drops_thinking else 0
    nothing = range(history.lead, history.compaction_at)
    costs = scale.costs(history.keys[start:end], sent[start:end])
    return [
        0.0 if i in nothing else cost - (scale.thought(fact) if i < edge and fact.has_thinking else 0.0)
        for i, (cost, fact) in enumerate(zip(costs, sent[start:end], strict=True), start)
    ]


def last_typed(history: History, end: int | None = None) -> int:
    """Index of the last typed message before `end`, 0 without one."""
    stop = len(history) if end is None else end
    return next((i for i in range(stop - 1, -1, -1) if history.facts[i].kind == "typed"), 0)


def first_paid(history: History, standing: Standing | None) -> int:
    """Index of the first message after the head, or after a compaction, that a report can have paid for."""
    start = history.lead if standing is None else standing.index + 1
    return max(start, history.compaction_at + 1) if history.compaction_at else start


def head(history: History, standing: Standing | None, scale: Scale) -> float:
    """Tokens of what stands in place of the history up to the anchor."""
    if standing is None or standing.index < history.compaction_at:
        return 0.0
    return tokens.estimate(scale.calibration, standing.cut.head_sizes)


def full(history: History, sent: Sequence[Facts], standing: Standing | None, scale: Scale) -> float:
    """The whole request priced message by message, without `offset`."""
    start = history.lead if standing is None else standing.index + 1
    lead = sum(per_message(history, sent, scale, 0, history.lead))
    tail = sum(per_message(history, sent, scale, start))
    return scale.overhead(history) + lead + head(history, standing, scale) + tail


def total(history: History, sent: Sequence[Facts], standing: Standing | None, scale: Scale) -> float:
    """Prompt tokens of the request as it would go out."""
    start = first_paid(history, standing)
    cut_id = "" if standing is None else standing.cut.id
    for i in range(len(history) - 1, max(start - 2, -1), -1):
        report = scale.reports.get((history.keys[i], cut_id))
        if report is not None and report.family_rate != scale.family_rate:
            return max(full(history, sent, standing, replace(scale, measured={})), 0.0)
        if report is not None:
            return max(report.tokens + _growth(history, sent, i, scale) - report.overhead, 0.0)
    return max(full(history, sent, standing, scale) + scale.offset, 0.0)


def _growth(history: History, sent: Sequence[Facts], reported: int, scale: Scale) -> float:
    """Overhead now, and what was added after the reported message less what stopped counting since."""
    keys = history.keys
    added = sum(scale.costs(keys[reported + 1 :], sent[reported + 1 :]))
    gone = 0.0
    if scale.drops_thinking:
        then, now = last_typed(history, reported + 1), last_typed(history)
        gone = sum(scale.thought(sent[i]) for i in range(then, now))
    return scale.steady_overhead(history) + added - gone
