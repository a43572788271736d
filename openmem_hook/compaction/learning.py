"""What a provider's count of a request teaches: measured growth, a thread's offset, the model's rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openmem_hook import tokens
from openmem_hook.compaction import estimate
from openmem_hook.compaction.estimate import Report, ReportKey, Scale
from openmem_hook.model import Facts, History
from openmem_hook.tokens import Calibration


@dataclass(frozen=True, slots=True)
class Sample:
    """A request that went out. `start`: index of the first message after the head; `cut`: id of the standing
    cut, "" for none; `full`: the whole request priced message by message."""

    history: History
    sent: Sequence[Facts]
    cut: str
    start: int
    full: float
    scale: Scale


@dataclass(frozen=True, slots=True)
class Learned:
    """What a report teaches: tokens of the rows it paid for, a thread's offset, the model's rate."""

    measured: Sequence[tuple[bytes, float]] = ()
    offset: float | None = None
    calibration: Calibration | None = None


def learn(sample: Sample, reports: Mapping[ReportKey, Report], prompt_tokens: int | None) -> Learned:
    """Growth since the last report of the same line under the same cut, else how far the whole was off."""
    if prompt_tokens is None:
        return Learned()
    history, scale = sample.history, sample.scale
    offset = prompt_tokens - sample.full
    places = range(len(history) - 2, max(sample.start - 2, -1), -1)
    base = next((i for i in places if (history.keys[i], sample.cut) in reports), None)
    if base is None:
        return Learned(offset=offset)
    report = reports[(history.keys[base], sample.cut)]
    if report.family_rate != scale.family_rate:  # what grew between the counts of two tokenizers is no growth
        return Learned(offset=offset)
    grown = prompt_tokens - report.tokens - round(scale.steady_overhead(history) - report.overhead)
    between = range(base + 1, len(history))
    left = _left(sample, base)
    sizes = [sample.sent[i].sizes for i in between]
    shares = tokens.attribute(sizes, grown, scale.calibration, left)
    if shares is None:
        return Learned(offset=offset)
    measured = [(history.keys[i], share) for i, share in zip(between, shares, strict=True)]
    learned = tokens.learn(scale.calibration, sum(sizes, tokens.ZERO) - left, grown)
    return Learned(measured, offset, learned)


def _left(sample: Sample, base: int) -> tokens.Sizes:
    """Thinking of finished turns that the provider stopped counting since the report at `base`."""
    if not sample.scale.drops_thinking:
        return tokens.ZERO
    then, now = estimate.last_typed(sample.history, base + 1), estimate.last_typed(sample.history)
    return sum((sample.sent[i].sizes.thinking_part() for i in range(then, now)), tokens.ZERO)
