"""Grades the estimates of `openmem_hook.tokens` against what providers reported: `python -m bench.estimates`.

Next request: the last report on the branch plus the learned rate for what is new. After a cut, which no provider
counted: for each request i of at least 95k tokens and each earlier k on its branch where first prompt + growth
(k to i) is 25 to 55 % of i, that growth is estimated from the reports before i, every fifth of them withheld;
with measured growth (`attribute`) and with the learned rate alone. A model is learned within the session,
from the constants ("cold") or from what the other sessions of the same model left behind ("carried").
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from openmem_hook import tokens
from openmem_hook.facts import facts_of
from openmem_hook.facts import sizes_of as product_sizes
from openmem_hook.formats import adapter_named
from openmem_hook.model import Adapter, Part
from openmem_hook.replay import Step, Transcript, read
from openmem_hook.tokens import ZERO, Calibration, Sizes

CORPUS = Path(__file__).parents[2] / "shared" / "corpus"
LEAST_PROMPT = 95_000
SHARE = (0.25, 0.55)
HELD_EVERY = 5

Measure = Callable[[str, str], Sizes]
Start = Callable[[str], Calibration]


@dataclass(frozen=True, slots=True)
class Point:
    """A recorded request: its prompt tokens, the sizes of the messages since the point before, the thinking of
    all finished turns the provider no longer counts, and what the model's own answer before it was reported at."""

    prompt: int
    new: tuple[Sizes, ...]
    left: Sizes
    before: Point | None
    place: int
    answered: int | None = None
    answer: Sizes = ZERO


@dataclass(slots=True)
class GradedSession:
    """The points of one session and model, and the relative errors found for it."""

    session: str
    model: str
    points: list[Point]
    errors: dict[str, list[float]] = field(default_factory=dict)


def corpus_dir(given: str | None = None) -> Path:
    return Path(given or os.environ.get("OPENMEM_CORPUS") or CORPUS)


def sizes_of(parts: Sequence[Part], measure: Measure) -> Sizes:
    """As the product does it, but with another measure."""
    kinds = {"call": "args", "result": "result"}
    total = ZERO
    for part in parts:
        if part.kind == "thinking":
            total += tokens.thinking(part.text, part.length)
        elif part.text:
            total += measure(kinds.get(part.kind, "text"), part.text)
        for kind in part.media:
            total += tokens.media(kind)
    return total


class _Measurement:
    """Sizes and turn starts of messages, each message object looked at once."""

    def __init__(self, adapter: Adapter, measure: Measure) -> None:
        self.adapter, self.measure = adapter, measure
        self.known: dict[int, tuple[Sizes, bool, Any]] = {}

    def __call__(self, raw: Any) -> tuple[Sizes, bool]:
        if id(raw) not in self.known:
            parts = self.adapter.parts_of(raw)
            starts = facts_of(self.adapter.role_of(raw), parts, 0).role == "user"
            own = self.measure is tokens.measure
            sizes = product_sizes(parts) if own else sizes_of(parts, self.measure)
            self.known[id(raw)] = sizes, starts, raw
        return self.known[id(raw)][:2]


def _total(sizes: Sequence[Sizes]) -> Sizes:
    return sum(sizes, ZERO)


def _left(messages: Sequence[Any], measured: _Measurement, model: str) -> Sizes:
    """Thinking of the turns before the last one, where the provider drops it."""
    if not tokens.drops_thinking(model):
        return ZERO
    starts = [place for place, raw in enumerate(messages) if measured(raw)[1]]
    return _total([measured(raw)[0].thinking_part() for raw in messages[: starts[-1]]]) if starts else ZERO


def points(session: Transcript, measure: Measure) -> Iterator[GradedSession]:
    """The session's recorded requests, one `GradedSession` a model."""
    adapter = adapter_named(session.format)
    assert adapter is not None
    measured = _Measurement(adapter, measure)
    found: dict[int, Point] = {}
    by_model: dict[str, GradedSession] = {}
    for index, step in enumerate(session.steps):
        if step.usage is None or not step.usage.prompt_tokens:
            continue
        at = _ancestor(session.steps, step, found)
        since = session.steps[at] if at is not None else None
        fresh = step.messages[len(since.messages) :] if since else []
        reply = len(since.reply) if since else 0
        found[index] = Point(
            step.usage.prompt_tokens,
            tuple(measured(raw)[0] for raw in fresh),
            _left(step.messages, measured, step.model),
            found[at] if at is not None else None,
            found[at].place + 1 if at is not None else 0,
            since.usage.output_tokens if since and since.usage else None,
            _total([measured(raw)[0] for raw in fresh[:reply]]),
        )
        graded = by_model.setdefault(step.model, GradedSession(session.path.name.split(".")[0], step.model, []))
        graded.points.append(found[index])
    yield from by_model.values()


def _ancestor(steps: Sequence[Step], step: Step, found: dict[int, Point]) -> int | None:
    """The nearest recorded request this one grew from, with nothing else changed in between."""
    at = step.parent
    while at is not None and (steps[at].segment, steps[at].model) == (step.segment, step.model):
        if at in found:
            return at
        at = steps[at].parent
    return None


def _chain(point: Point) -> list[Point]:
    chain = [point]
    while (before := chain[-1].before) is not None:
        chain.append(before)
    return chain[::-1]


def _learn(calibration: Calibration, span: Sequence[Point], since: Point) -> Calibration:
    sizes = _total([size for point in span for size in point.new]) - (span[-1].left - since.left)
    return tokens.learn(calibration, sizes, span[-1].prompt - since.prompt)


def next_request(graded: GradedSession, start: Calibration, reported_answer: bool = False) -> list[float]:
    """Relative errors of every request's estimate, made from the reports before it."""
    learned: dict[int, Calibration] = {}
    errors = []
    for point in graded.points:
        if point.before is None:
            learned[id(point)] = start
            continue
        calibration, since = learned[id(point.before)], point.before
        new = _total(point.new) - (point.left - since.left)
        estimate = since.prompt + tokens.estimate(calibration, new)
        if reported_answer and point.answered is not None:
            estimate += point.answered - tokens.estimate(calibration, point.answer)
        errors.append(abs(estimate - point.prompt) / point.prompt)
        learned[id(point)] = _learn(calibration, [point], since)
    return errors


@dataclass(slots=True)
class _Ledger:
    """What one branch knows when its last report has come in: costs per point (None: not measured)."""

    calibration: Calibration
    costs: list[float | None]
    known: int = 0

    def report(self, chain: Sequence[Point]) -> None:
        span, since = chain[self.known + 1 :], chain[self.known]
        sizes = [size for point in span for size in point.new]
        delta = span[-1].prompt - since.prompt
        shares = tokens.attribute(sizes, delta, self.calibration, span[-1].left - since.left)
        if shares is not None:
            given = iter(shares)
            for place, point in enumerate(span, self.known + 1):
                self.costs[place] = sum(next(given) for _ in point.new)
        self.calibration = _learn(self.calibration, span, since)
        self.known = len(chain) - 1


def _ledgers(graded: GradedSession, start: Calibration, offset: int) -> Iterator[tuple[list[Point], _Ledger]]:
    """Each request with the ledger as it stood before its own report, every fifth report of a branch lost."""
    after: dict[int, _Ledger] = {}
    for point in graded.points:
        chain = _chain(point)
        above = after[id(point.before)] if point.before else _Ledger(start, [])
        ledger = _Ledger(above.calibration, [*above.costs, None], above.known)
        yield chain, ledger
        ledger = after[id(point)] = _Ledger(ledger.calibration, list(ledger.costs), ledger.known)
        if len(chain) > 1 and point.place % HELD_EVERY != offset:
            ledger.report(chain)


def after_cut(graded: GradedSession, start: Calibration, measured: bool, offset: int = HELD_EVERY - 1) -> list[float]:
    """Relative errors of the size after every cut that is graded."""
    errors: list[float] = []
    for chain, ledger in _ledgers(graded, start, offset):
        if chain[-1].prompt >= LEAST_PROMPT:
            errors += _cuts(chain, ledger, measured)
    return errors


def _cuts(chain: Sequence[Point], ledger: _Ledger, measured: bool) -> Iterator[float]:
    last, first = chain[-1], chain[0].prompt
    growth = 0.0
    for place in range(len(chain) - 1, 0, -1):
        cost = ledger.costs[place] if measured else None
        growth += tokens.estimate(ledger.calibration, _total(chain[place].new)) if cost is None else cost
        since = chain[place - 1]
        true = first + last.prompt - since.prompt
        if SHARE[0] <= true / last.prompt <= SHARE[1]:
            estimate = first + growth - tokens.estimate(ledger.calibration, last.left - since.left)
            yield abs(estimate - true) / true


def carried(graded: GradedSession, others: Sequence[GradedSession], start: Start) -> Calibration:
    """What the other sessions of the same model leave behind, one after the other."""
    calibration = start(graded.model)
    for other in others:
        if other.model == graded.model and other.session != graded.session:
            for point in other.points:
                if point.before is not None:
                    calibration = _learn(calibration, [point], point.before)
    return calibration


def load(corpus: Path, measure: Measure = tokens.measure) -> list[GradedSession]:
    """All sessions of a corpus that were recorded, Claude Code's first."""
    return [
        graded
        for path in sorted(corpus.glob("*/*.jsonl*"))
        for graded in points(read(path), measure)
        if len(graded.points) > 1
    ]


def starting(model: str) -> Calibration:
    return tokens.starting(model, None)


def grade(sessions: Sequence[GradedSession], start: Start = starting, quick: bool = False) -> None:
    """Fill in the errors. `quick` leaves out what only the comparison does without: measured growth, warm starts."""
    for graded in sessions:
        cold = start(graded.model)
        graded.errors = {"next": next_request(graded, cold), "rate": after_cut(graded, cold, False)}
        warm = carried(graded, sessions, start)
        graded.errors |= {"next+": next_request(graded, warm), "rate+": after_cut(graded, warm, False)}
        if not quick:
            graded.errors["growth"] = after_cut(graded, cold, True)
            graded.errors["answer"] = next_request(graded, cold, True)


def is_claude(graded: GradedSession) -> bool:
    return "claude" in graded.model


def pooled(
    sessions: Sequence[GradedSession], what: str, wanted: Callable[[GradedSession], bool] = is_claude
) -> list[float]:
    return [error for graded in sessions if wanted(graded) for error in graded.errors.get(what, [])]


def quantile(values: Sequence[float], share: float) -> float:
    """By linear interpolation; nan of nothing."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else float("nan")


# What else characters could be: one class, or a tokenizer's count in their place. Same learner, same rest.


def _counted(count: Callable[[str], int]) -> Measure:
    def measure(kind: str, text: str) -> Sizes:
        return Sizes(words=count(text), calls=int(kind == "args"), parts=1)

    return measure


def _flat(weight: float) -> Start:
    def start(model: str) -> Calibration:
        usual = starting(model)
        return Calibration((weight, weight, *usual.weights[2:]), usual.doubt)

    return start


@cache
def _shipped() -> Path:
    spec = importlib.util.find_spec("litellm")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))) / "litellm_core_utils" / "tokenizers"


def _anthropic() -> Measure:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(_shipped() / "anthropic_tokenizer.json"))
    return _counted(lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids))


def _o200k() -> Measure:
    import tiktoken

    os.environ["TIKTOKEN_CACHE_DIR"] = str(_shipped())
    encoding = tiktoken.get_encoding("o200k_base")
    return _counted(lambda text: len(encoding.encode_ordinary(text)))


CONTENDERS: dict[str, tuple[Callable[[], Measure], Start]] = {
    "letters and marks": (lambda: tokens.measure, starting),
    "characters": (lambda: _counted(len), starting),
    "anthropic_tokenizer.json": (_anthropic, _flat(1.0)),
    "o200k_base": (_o200k, _flat(1.0)),
}


def milliseconds(measure: Measure, text: str) -> float:
    """To measure a text, the fastest of three."""
    taken = []
    for _ in range(3):
        begun = time.perf_counter()
        measure("result", text)
        taken.append(time.perf_counter() - begun)
    return min(taken) * 1000


def sample(corpus: Path, chars: int = 1_000_000) -> str:
    """So much text of tool results and replies, as the corpus has it."""
    found: list[str] = []
    for path in sorted(corpus.glob("*/*.jsonl*")):
        session = read(path)
        adapter = adapter_named(session.format)
        assert adapter is not None
        found += [p.text for raw in session.steps[-1].messages for p in adapter.parts_of(raw)]
        if sum(map(len, found)) >= chars:
            break
    return "\n".join(found)[:chars]


def compare(corpus: Path) -> list[list[str]]:
    """A row a contender: errors on Claude and on the rest, and the cost of measuring a megabyte."""
    text = sample(corpus)
    rows = []
    for name, (make, start) in CONTENDERS.items():
        measure = make()
        sessions = load(corpus, measure)
        grade(sessions, start, quick=True)
        row = [name]
        for wanted in (is_claude, lambda graded: not is_claude(graded)):
            row += [_percent(mean(pooled(sessions, what, wanted))) for what in ("next", "next+")]
            errors = pooled(sessions, "rate", wanted)
            row += [_percent(quantile(errors, 0.5)), _percent(quantile(errors, 0.9))]
        rows.append([*row, f"{milliseconds(measure, text):.0f}"])
    return rows


def _percent(share: float) -> str:
    return f"{share * 100:.2f}"


def _row(name: str, sessions: Sequence[GradedSession], wanted: Callable[[GradedSession], bool]) -> list[str]:
    chosen = [graded for graded in sessions if wanted(graded)]
    row = [name, str(len(chosen)), str(len(pooled(chosen, "next", wanted)))]
    row += [_percent(mean(pooled(chosen, what, wanted))) for what in ("next", "next+", "answer")]
    row.append(str(len(pooled(chosen, "rate", wanted))))
    for what in ("growth", "rate", "rate+"):
        errors = pooled(chosen, what, wanted)
        row += [_percent(quantile(errors, 0.5)), _percent(quantile(errors, 0.9))]
    return row


HEAD = (
    *("model", "sessions", "next n", "cold", "carried", "answer", "cut n"),
    *("growth p50", "growth p90", "cold p50", "cold p90", "carried p50", "carried p90"),
)
HEAD_COMPARED = (
    *("cold, by", "Claude next", "Claude next carried", "Claude cut p50", "Claude cut p90"),
    *("other next", "other next carried", "other cut p50", "other cut p90", "ms/MB"),
)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    lines = [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, ["-" * width for width in widths], *rows)
    ]
    return "\n".join(lines)


def report(sessions: Sequence[GradedSession]) -> list[list[str]]:
    models = sorted({graded.model for graded in sessions}, key=lambda model: ("claude" not in model, model))
    rows = [_row(model, sessions, lambda graded, model=model: graded.model == model) for model in models]  # type: ignore[misc]
    return [*rows, _row("all Claude", sessions, is_claude)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", help="folder of folders of transcripts")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    parser.add_argument("--sessions", action="store_true", help="one row a session, too")
    options = parser.parse_args()
    corpus = corpus_dir(options.corpus)
    sessions = load(corpus)
    grade(sessions)
    rows, compared = report(sessions), compare(corpus)
    if options.sessions:
        rows += [_row(f"{g.session} {g.model[7:17]}", sessions, lambda other, g=g: other is g) for g in sessions]  # type: ignore[misc]
    if options.json:
        named = [dict(zip(HEAD, row, strict=True)) for row in rows]
        print(
            json.dumps({"estimates": named, "measures": [dict(zip(HEAD_COMPARED, r, strict=True)) for r in compared]})
        )
        return
    print("Errors in percent.\n\n" + table(HEAD, rows) + "\n\n" + table(HEAD_COMPARED, compared))


if __name__ == "__main__":
    main()
