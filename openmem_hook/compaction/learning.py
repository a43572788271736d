"""What a provider's count of a request teaches: measured growth, a thread's offset, the model's rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openmem_hook import tokens
from openmem_hook.compaction import estimate
from openmem_hook.compaction.estimate import Report, ReportKey, TokenCosts
from openmem_hook.compaction.outgoing import Outgoing
from openmem_hook.model import History
from openmem_hook.tokens import Calibration, Sizes


@dataclass(frozen=True, slots=True)
class Sample:
    """A request that went out, as far as its report is of use."""

    history: History
    outgoing: Outgoing
    cut_id: str
    """`ActiveEdits.cut_id` of the cuts that stood."""
    first_paid: int
    """Index of the first message after the trim's head."""
    whole: float
    """The request priced message by message, in tokens."""
    costs: TokenCosts


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a report teaches."""

    row_tokens: Sequence[tuple[bytes, float]] = ()
    """Tokens of the rows that it paid for."""
    offset: float | None = None
    """Tokens beyond our estimate of the whole request."""
    calibration: Calibration | None = None
    """The model's rate."""


def learn(sample: Sample, reports: Mapping[ReportKey, Report], prompt_tokens: int | None) -> Lesson:
    """Growth since the last report of the same line under the same cuts, else how far the whole was off."""
    if prompt_tokens is None:
        return Lesson()
    history, costs = sample.history, sample.costs
    offset = prompt_tokens - sample.whole
    # The newest report of a request that is a prefix of this one.
    places = range(len(history) - 2, max(sample.first_paid - 2, -1), -1)
    base = next((i for i in places if (history.keys[i], sample.cut_id) in reports), None)
    if base is None:
        return Lesson(offset=offset)
    report = reports[(history.keys[base], sample.cut_id)]
    if report.family_rate != costs.family_rate:  # what grew between the counts of two tokenizers is no growth
        return Lesson(offset=offset)
    growth = prompt_tokens - report.tokens - round(costs.of_steady_overhead(history) - report.overhead)
    # The growth is shared among the messages in between, less what the provider stopped counting in the same step.
    between = range(base + 1, len(history))
    sizes = [_sizes(sample, i) for i in between]
    dropped_thinking = _dropped_thinking(sample, base)
    shares = tokens.attribute(sizes, growth, costs.calibration, dropped_thinking)
    if shares is None:
        return Lesson(offset=offset)
    keys = [sample.outgoing.keys[i] for i in between]
    row_tokens = [(key, share) for key, share in zip(keys, shares, strict=True) if key is not None]
    return Lesson(
        row_tokens, offset, tokens.learn(costs.calibration, sum(sizes, tokens.ZERO) - dropped_thinking, growth)
    )


def _sizes(sample: Sample, index: int) -> Sizes:
    fact = sample.outgoing.facts[index]
    return tokens.ZERO if fact is None else fact.sizes


def _dropped_thinking(sample: Sample, base: int) -> Sizes:
    """Thinking of finished turns that the provider stopped counting since the report at `base`."""
    if not sample.costs.drops_thinking:
        return tokens.ZERO
    then, now = estimate.find_last_typed(sample.history, base + 1), estimate.find_last_typed(sample.history)
    return sum((_sizes(sample, i).thinking_part() for i in range(then, now)), tokens.ZERO)
