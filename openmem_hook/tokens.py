"""How many tokens a text will cost, without asking anyone.

A text is measured once into `Sizes`: characters per class of character, because letters and marks differ in
cost by a factor of four, while kinds of message differ by less than 1.3. A `Calibration` holds four weights
a model (letters, marks, thinking, all else) and how sure it is of each; every reported usage moves them by
damped recursive least squares. `attribute` gives a reported difference to the messages that caused it, so that sums
over stored rows need no rate at all. Graded by `bench/estimates.py`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import Literal

CHUNK = 32_768
"""Characters measured in one go: no call into C holds the interpreter for more than a millisecond."""

SAMPLE_RUNS = 64
"""Runs of a chunk that are looked at; further ones in it count as alike (wrapped base64 has 430)."""

RUN = 64
"""Unbroken base64 characters that make a dense run: a line of a PEM block. An SHA-256 in hex is just one."""

RUN_SHARE = 0.3
"""Least share of capitals and digits in a dense run. Base64 has 0.56, hex 0.62, long paths 0.05."""

CHARS_PER_TOKEN = 2.5
"""Of a model nothing is known of: the low end of what sessions on Claude 4.5 and 4.6 cost, calls included."""

DENSE_TOKENS = 1 / 1.45
"""Per character. Random base64: 1.39 to 1.46 characters a token in cl100k, o200k and Anthropic's old file."""

WIDE_TOKENS = 0.5
"""Per UTF-8 byte beyond the first of a letter outside ASCII: 1.0 a Chinese character, 0.5 a Cyrillic one,
1.5 an emoji. cl100k, o200k and Anthropic's old file say 0.65 to 0.83, 0.2 to 0.46 and 1.5 to 2.5."""

THINKING_TOKENS = 0.26
"""Per character of thinking. Regression over 12 Claude sessions: 0.194 a character of signature, which is
4/3 of it; see `thinking`."""

OPAQUE_TOKENS = 0.19
"""Per character of encrypted reasoning beyond `OPAQUE_HEAD`. Codex' own estimate of it is (3/4 of the characters
less 650) / 4, so 0.1875; Claude's signatures come to 0.194. No recorded session held any to check."""

OPAQUE_HEAD = 500
"""Characters of wrapping around encrypted reasoning: between Claude's 232 and OpenAI's 867."""

CALL_TOKENS = 80
"""Per tool call with its result, beside their text. Same regression: 75 to 88 (names, ids, wrapping)."""

PART_TOKENS = 10
"""Per block, for roles and separators. Same regression: 10.4."""

IMAGE_TOKENS = 1600
"""Anthropic's figure for the largest picture it doesn't scale down: width x height / 750."""

PAGE_TOKENS = 2000
"""Per page of a document; Anthropic says 1,500 to 3,000 with the text."""

DOCUMENT_PAGES = 5
"""Assumed where nobody counted the pages."""

SIGNATURE_HEAD = 232
"""Characters of a Claude signature that are not the thinking: the rest was 4/3 of the text's bytes in 1,128 of
1,368 recorded ones (padding aside), more in 105 whose text is only a summary of what the signature holds."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of what a message holds. Adds with +, subtracts with - (what left a request is negative)."""

    words: int = 0
    """Characters that are ASCII letters or spaces."""

    marks: int = 0
    """Characters that are digits, punctuation, line ends, arrows or box drawing."""

    wide: int = 0
    """UTF-8 bytes beyond the first of other letters and emoji."""

    dense: int = 0
    """Characters in base64-like runs, which count as neither words nor marks."""

    thinking: int = 0
    """Characters of thinking."""

    opaque: int = 0
    """Characters of encrypted reasoning."""

    images: int = 0
    """Pictures."""

    pages: int = 0
    """Pages of documents."""

    calls: int = 0
    """Tool calls."""

    parts: int = 0
    """Blocks."""

    def __add__(self, other: Sizes) -> Sizes:
        return Sizes(*map(int.__add__, self.counts(), other.counts()))

    def __sub__(self, other: Sizes) -> Sizes:
        return Sizes(*map(int.__sub__, self.counts(), other.counts()))

    def counts(self) -> tuple[int, ...]:
        """All of it in the order of the constructor, for a row or JSON: `Sizes(*counts)` reads it back."""
        return (
            self.words, self.marks, self.wide, self.dense, self.thinking,
            self.opaque, self.images, self.pages, self.calls, self.parts,
        )  # fmt: skip

    def thinking_part(self) -> Sizes:
        """The thinking alone: what a provider that drops earlier turns' thinking stops counting."""
        return Sizes(thinking=self.thinking, opaque=self.opaque)


ZERO = Sizes()

_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_WORDS = _LETTERS + _LETTERS.upper() + b" "
_ASCII_AND_TAILS = bytes(range(0xC0))
_SYMBOL_LEAD = b"\xe2"  # U+2000 to U+2FFF: punctuation, arrows, box drawing; priced like ASCII marks
_NOT_WORDS = bytes(set(range(256)) - set(_WORDS))
_IN_RUN = bytes(byte in _LETTERS + _LETTERS.upper() + b"0123456789+/=_-" for byte in range(256))
_NOT_RARE = _LETTERS + b"+/=_-"
_RUN = b"\1" * RUN


SizeKind = Literal["system", "typed", "text", "args", "result", "thinking"]


def measure(kind: SizeKind, text: str) -> Sizes:
    """Sizes of one text. Two kinds count differently: args for a call and what wraps it, thinking as what a provider
    may stop counting. Others are text.
    """
    if kind == "thinking":
        return Sizes(thinking=len(text), parts=1)
    words = marks = wide = dense = 0
    for start in range(0, len(text), CHUNK):
        part = _measure_chunk(text[start : start + CHUNK])
        words, marks, wide, dense = words + part[0], marks + part[1], wide + part[2], dense + part[3]
    return Sizes(words, marks, wide, dense, calls=int(kind == "args"), parts=1)


def _measure_chunk(text: str) -> tuple[int, int, int, int]:
    """Words, marks, wide and dense of a text of at most `CHUNK` characters."""
    raw = text.encode("utf-8", "surrogatepass")

    # Outside ASCII: letters by their bytes beyond the first, symbols like ASCII marks.
    letters = wide = 0
    if len(raw) != len(text):
        leads = raw.translate(None, _ASCII_AND_TAILS)
        symbols = leads.count(_SYMBOL_LEAD)
        letters = len(leads) - symbols
        wide = len(raw) - len(text) - 2 * symbols

    # In ASCII: what is neither a word nor in a dense run is a mark.
    words = len(raw) - len(raw.translate(None, _WORDS))
    run_words, run_marks = _measure_runs(raw) if len(raw) >= RUN else (0, 0)
    marks = max(0, len(text) - letters - words - run_marks)
    return words - run_words, marks, wide, run_words + run_marks


def _measure_runs(raw: bytes) -> tuple[int, int]:
    """Letters and other characters inside base64-like runs of one chunk."""
    flags = raw.translate(_IN_RUN)
    words = marks = end = runs = units = 0
    while runs < SAMPLE_RUNS and (start := flags.find(_RUN, end)) >= 0:
        end = flags.find(b"\0", start + RUN)
        end = len(flags) if end < 0 else end
        run = raw[start:end]
        runs += 1
        units += len(run) // RUN
        # Long names and paths are unbroken too, but have few capitals and digits.
        if len(run.translate(None, _NOT_RARE)) >= RUN_SHARE * len(run):
            other = len(run.translate(None, _WORDS))
            words += len(run) - other
            marks += other
    if runs < SAMPLE_RUNS or not words:
        return words, marks

    # What is dense of the sample is dense of the rest, as far as there are letters for it.
    share = 1 + flags.count(_RUN, end) / units
    most = len(raw.translate(None, _NOT_WORDS))
    return min(int(words * share), most), int(marks * share)


def thinking(text: str, signature_chars: int = 0) -> Sizes:
    """A thinking block with a signature of so many characters, or encrypted reasoning and its summary.

    A Claude signature holds the whole thinking, of which the text is sometimes a summary, and the provider
    counts the whole: so it decides where it is there, and the text only where there is none.
    """
    if not signature_chars:
        return measure("thinking", text)
    if not text:
        return opaque(signature_chars)
    return Sizes(thinking=max(len(text), (signature_chars - SIGNATURE_HEAD) * 3 // 4), parts=1)


def opaque(chars: int) -> Sizes:
    """So many characters of encrypted reasoning, or of anything else that nobody here can read."""
    return Sizes(opaque=max(chars - OPAQUE_HEAD, 0), parts=1)


def media(kind: str, pages: int = DOCUMENT_PAGES) -> Sizes:
    """A "document" (PDF) of so many pages, or else a picture: a fixed budget, whatever its bytes."""
    return Sizes(pages=pages, parts=1) if kind == "document" else Sizes(images=1, parts=1)


def media_count(sizes: Sizes) -> int:
    """Pictures and documents in what was counted by `media`."""
    return sizes.images + sizes.pages // DOCUMENT_PAGES


Vector = tuple[float, ...]
Matrix = tuple[Vector, ...]

LOWEST: Vector = (0.04, 0.08, 0.2, 0.2)
HIGHEST: Vector = (1.5, 2.5, 4.0, 4.0)
"""Bounds of the weights, about five times either way from what fits Claude 4.5 (0.19, 0.85, 1, 1), so that no
report, however absurd, leads further."""

DOUBT: Vector = (0.25, 0.5, 0.3, 0.2)
"""How sure a start is: standard deviations of the weights."""

DRIFT: Vector = (0.004, 0.008, 0.006, 0.004)
"""Doubt regained with each observation, so that a model that changed behind its name is learned again: within
60 of them to 4 %. Half or one and a half times as much changes the grades by a tenth."""

NOISE = 0.2
"""Standard deviation of one observation as a share of it: the median error of a single exchange is 0.07."""

NOISE_FLOOR = 100.0
"""The same in tokens: reminders and ids that come and go."""

OUTLIER = 3.0
"""Standard deviations beyond which a surprise counts as just so much."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was learned of one model."""

    weights: Vector
    """Tokens per word character, per mark, and per token of the prices above for thinking and for all else."""

    doubt: Matrix
    """Covariance of the weights."""

    evidence: float = 0.0
    """Tokens learned from so far."""

    def to_json(self) -> str:
        """As the catalog keeps it; `from_json` reads it back."""
        return json.dumps({"weights": self.weights, "doubt": self.doubt, "seen": self.evidence})

    @classmethod
    def from_json(cls, text: str) -> Calibration:
        """ValueError where the text is no calibration that `learn` could have left."""
        try:
            data = json.loads(text)
            weights = tuple(float(weight) for weight in data["weights"])
            doubt = tuple(tuple(float(value) for value in row) for row in data["doubt"])
            evidence = float(data["seen"])
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError("not a calibration") from error
        if not (_is_bounded(weights) and _is_covariance(doubt) and math.isfinite(evidence)):
            raise ValueError("a calibration out of bounds")
        return cls(weights, doubt, evidence)


def _is_bounded(weights: Vector) -> bool:
    return len(weights) == len(LOWEST) and all(
        low <= weight <= high for low, weight, high in zip(LOWEST, weights, HIGHEST, strict=True)
    )


def _is_covariance(doubt: Matrix) -> bool:
    """Square, symmetric, finite, and no correlation above one."""
    axes = range(len(LOWEST))
    return (
        [len(row) for row in doubt] == [len(LOWEST)] * len(LOWEST)
        and all(doubt[i][i] > 0 and doubt[i][i] * doubt[i][i] < math.inf for i in axes)
        and all(
            doubt[i][j] == doubt[j][i] and doubt[i][j] * doubt[i][j] <= doubt[i][i] * doubt[j][j]
            for i in axes
            for j in range(i)
        )
    )


_CLAUDE = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")


def _claude_version(model: str) -> tuple[int, int] | None:
    match = _CLAUDE.search(model.lower())
    return (int(match[1]), int(match[2] or 0)) if match else None


def family_rate(model: str) -> float:
    """Characters a token of a model's family. Measured on real sessions, all that they hold against their text: Claude
    to 4.6, later Claude, Codex."""
    version = _claude_version(model)
    if version:
        return 1.75 if version >= (4, 7) else 2.6
    return 3.2 if re.search(r"gpt-[5-9]|codex", model.lower()) else CHARS_PER_TOKEN


def starting(model: str, chars_per_token: float | None = None) -> Calibration:
    """What is assumed before anything was reported; an explicit `chars_per_token` wins over the family's.

    All characters cost the same at first: that errs on the dear side for prose, and a few reports later letters
    and marks have rates of their own. ValueError for a rate that is not positive.
    """
    chars = family_rate(model) if chars_per_token is None else chars_per_token
    if not (math.isfinite(chars) and chars > 0):
        raise ValueError("chars_per_token must be positive")
    rate = 1 / chars
    other = rate * CHARS_PER_TOKEN
    doubt = tuple(tuple(sd**2 * (i == j) for j in range(len(DOUBT))) for i, sd in enumerate(DOUBT))
    return Calibration(_within((rate, rate, other, other)), doubt)


def _within(weights: Sequence[float]) -> Vector:
    bounds = zip(LOWEST, weights, HIGHEST, strict=True)
    return tuple(min(high, max(low, weight)) for low, weight, high in bounds)


def drops_thinking(model: str) -> bool:
    """Whether a turn's thinking is no longer counted once the next message is typed, though it is sent.

    Observed on Sonnet 4.5 and Codex; Opus 4.5 and 4.6 keep it. Anthropic's documentation draws the same line.
    """
    version = _claude_version(model)
    if version is None:
        return bool(re.search(r"gpt-[5-9]|codex|(?:^|/)o[1-9]\b", model.lower()))
    return version < (4, 5) or (version == (4, 5) and "opus" not in model.lower())


def _constant_tokens(sizes: Sizes) -> float:
    """Tokens whose price is not learned: a rate learned on code must not make a megabyte of base64 cheap."""
    return sizes.dense * DENSE_TOKENS + sizes.images * IMAGE_TOKENS + sizes.pages * PAGE_TOKENS


def _vector(sizes: Sizes) -> Vector:
    thinking = sizes.thinking * THINKING_TOKENS + sizes.opaque * OPAQUE_TOKENS
    other = sizes.wide * WIDE_TOKENS + sizes.calls * CALL_TOKENS + sizes.parts * PART_TOKENS
    return sizes.words, sizes.marks, thinking, other


def _dot(one: Sequence[float], two: Sequence[float]) -> float:
    return sum(map(mul, one, two), 0.0)


def estimate(calibration: Calibration, sizes: Sizes) -> float:
    """Tokens these sizes will cost. Linear: the estimate of a sum is the sum of the estimates."""
    # `_dot` written out: this is asked of every message of a history, several times a request.
    words, marks, thinking, other = calibration.weights
    x = _vector(sizes)
    return words * x[0] + marks * x[1] + thinking * x[2] + other * x[3] + _constant_tokens(sizes)


def learn(calibration: Calibration, sizes: Sizes, tokens: int) -> Calibration:
    """One observation: messages of these sizes cost these tokens. Nonsense leaves the calibration as it was:
    media in the span, mostly dense text, or a cost that no weights within the bounds could explain.
    """
    # What the weights have to explain; an observation that they can't explain teaches nothing.
    x = _vector(sizes)
    cost = tokens - _constant_tokens(sizes)
    possible = min(x) >= 0 and cost > 0 and _dot(LOWEST, x) <= cost <= _dot(HIGHEST, x)
    if not possible or sizes.images or sizes.pages or cost < tokens / 2:
        return calibration

    # Recursive least squares: the step towards the observation, weighed by doubt against noise, damped for outliers.
    pull = [_dot(row, x) for row in calibration.doubt]
    prediction = _dot(calibration.weights, x)
    spread = _dot(pull, x) + (NOISE * max(prediction, cost)) ** 2 + NOISE_FLOOR**2
    limit = OUTLIER * math.sqrt(spread)
    step = max(-limit, min(limit, cost - prediction)) / spread
    weights = _within([weight + gain * step for weight, gain in zip(calibration.weights, pull, strict=True)])
    return Calibration(weights, _surer(calibration.doubt, pull, spread), calibration.evidence + tokens)


def _surer(doubt: Matrix, pull: Sequence[float], spread: float) -> Matrix:
    """The covariance after an observation. `DRIFT` adds to a variance only below the start's, so it stays."""
    rows = [
        [was - a * b / spread for was, b in zip(row, pull, strict=True)] for row, a in zip(doubt, pull, strict=True)
    ]
    for i, (sure, drift) in enumerate(zip(DOUBT, DRIFT, strict=True)):
        rows[i][i] = max(rows[i][i], 1e-12) + drift**2 * (rows[i][i] < sure**2)
    return tuple(map(tuple, rows))


TINY = 1500
"""Tokens of difference between report and estimate that a reminder or a tool list explains."""

ABSURD = 4.0
"""Times the estimate, either way, beyond which a difference was not caused by the messages in between."""


def attribute(
    sizes_between: Sequence[Sizes], delta: int, calibration: Calibration, old_thinking: Sizes = ZERO
) -> tuple[float, ...] | None:
    """A reported difference of prompt tokens, spread over the messages in between by their estimates.

    `old_thinking` is what the provider stopped counting in the same step (that of a finished turn): its
    estimate is added back, so that new messages are not charged with the old ones' leaving. None where the
    difference can't be theirs: a client that cleared or compacted its history, another system prompt.
    """
    weights = [max(estimate(calibration, sizes), 1.0) for sizes in sizes_between]
    total = sum(weights)
    cost = delta + estimate(calibration, old_thinking)
    off = abs(cost - total) > TINY and not 1 / ABSURD <= cost / total <= ABSURD if weights else True
    if off or cost <= 0:
        return None
    return tuple(weight * cost / total for weight in weights)
