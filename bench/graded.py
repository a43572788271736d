"""The grades of `bench.estimates` that the project promises; that module prints all of them, a row a model.

"Cold" starts from the constants, "carried" from what other sessions of the model left behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import estimates
from bench.figures import Figure, Section

CUTS = (
    ("after a cut, measured growth", "growth", 1.0, 4.0),
    ("after a cut, learned rate alone, cold", "rate", 2.5, 8.0),
    ("after a cut, learned rate alone, carried", "rate+", 2.5, 8.0),
)
"""Name, which errors, the most at the median and at the 90th percentile."""


def run(folder: Path, quick: bool) -> Section:
    corpus = estimates.corpus_dir()
    sessions = estimates.load(corpus) if corpus.is_dir() else []
    if not sessions:
        return Section("graded", f"left out: no corpus at {corpus}", ())
    estimates.grade(sessions)
    figures = []
    for name, what in (("cold", "next"), ("carried", "next+")):
        error = estimates.mean(estimates.pooled(sessions, what))
        figures.append(Figure(f"next request, mean error, {name}", error * 100, "%", 0.5))
    for name, what, median, ninetieth in CUTS:
        errors = estimates.pooled(sessions, what)
        for word, at, most in (("median", 0.5, median), ("90th", 0.9, ninetieth)):
            figures.append(Figure(f"{name}, {word}", estimates.quantile(errors, at) * 100, "%", most))
    about = "estimates against the provider's counts, pooled over the recorded Claude sessions"
    made = {
        "least_prompt": estimates.LEAST_PROMPT,
        "share": list(estimates.SHARE),
        "withheld": f"1 report of {estimates.HELD_EVERY}",
    }
    return Section("graded", about, figures, list(_rows(sessions)), made)


def family(model: str) -> str:
    """As a bill knows it: the model without date and variant."""
    return model.split("[")[0].removesuffix("-latest").rsplit("-20", 1)[0]


def _rows(sessions: Sequence[estimates.GradedSession]) -> Iterator[dict[str, Any]]:
    """One a model family, Claude first."""
    names = sorted({family(one.model) for one in sessions}, key=lambda name: ("claude" not in name, name))
    for name in names:
        chosen = [one for one in sessions if family(one.model) == name]
        yield {"family": name, "sessions": len({one.session for one in chosen}), **_errors(chosen)}


def _errors(chosen: Sequence[estimates.GradedSession]) -> dict[str, Any]:
    """How many, and per cent; None of nothing."""
    found: dict[str, Any] = {}
    for what, said in (("next", "next_cold"), ("next+", "next_carried"), ("answer", "next_answer")):
        errors = estimates.pooled(chosen, what, lambda _: True)
        found["next_n"] = len(errors)
        found[said] = round(estimates.mean(errors) * 100, 3) if errors else None
    for what, said in (("growth", "growth"), ("rate", "cut_cold"), ("rate+", "cut_carried")):
        errors = estimates.pooled(chosen, what, lambda _: True)
        found["cut_n"] = len(errors)
        for word, at in (("p50", 0.5), ("p90", 0.9)):
            found[f"{said}_{word}"] = round(estimates.quantile(errors, at) * 100, 3) if errors else None
    return found
